"""Which results a survey asks for, computed where they are missing: from activations, and from the model's weights."""

from pathlib import Path

from theodolite.errors import ModelError, UnsupportedModelError
from theodolite.models.load import check_readable, load_config, load_tokenizer
from theodolite.models.source import ModelSource, fetch, fetch_small_files, resolve_source
from theodolite.settings import Settings
from theodolite.spec import SurveySpec
from theodolite.store.runs import Run
from theodolite_jobs.pipeline import analyse
from theodolite_jobs.progress import Console
from theodolite_jobs.report import write_report
from theodolite_jobs.tasks import Progress


def analyse_run(run: Run, spec: SurveySpec, source: ModelSource | None, settings: Settings, console: Console) -> None:
    """Compute what is missing of the results that a spec asks for, and write the report.

    Args:
        run: a captured run.
        spec: what is asked; the run's own, or one that asks for more over the same activations.
        source: the model; found again where it is not known.
        settings: where Dask and converted models are.
        console: where it is said.
    """
    computed: list[str] = []
    with console.bar("statistics", unit="tasks") as bar:
        if run.record.sets:
            computed += analyse(run, spec.resolved_contrasts(), settings.dask_address, bar.step_to)
        try:
            computed += _analyse_weights(run, spec, source, settings, bar.step_to)
        except UnsupportedModelError as error:
            if spec.analyses is not None or not run.record.sets:
                raise
            console.say(f"what the model's weights would say is left out: {error}")
    console.say(f"computed {', '.join(computed)}" if computed else "all results are there already")
    write_report(run)


def _analyse_weights(
    run: Run, spec: SurveySpec, source: ModelSource | None, settings: Settings, progress: Progress
) -> list[str]:
    """Compute what is missing of the results that come from the model's weights."""
    asked = {"heads", "words"} if spec.analyses is None else {"heads", "words"} & set(spec.analyses)
    if not asked:
        return []
    from theodolite.models.weights import Weights
    from theodolite_jobs.head_groups import survey_heads
    from theodolite_jobs.word_tables import survey_words

    source = source or _same_model(run)
    check_readable(load_config(fetch_small_files(source, settings.cache), spec.model.trust_remote_code))
    files = fetch(source, settings.cache)
    weights = Weights(files, load_config(files, spec.model.trust_remote_code))
    computed = survey_heads(run, weights, spec.heads, settings.dask_address, progress)
    if "words" in asked and spec.heads.vectors:
        tokenizer = load_tokenizer(files, spec.model.trust_remote_code)
        computed += survey_words(run, weights, tokenizer, spec, settings.dask_address, progress)
    return computed


def _same_model(run: Run) -> ModelSource:
    """Find the model that a run was begun with; raises ModelError where it is another one by now."""
    began = run.record.model
    pinned = {"revision": began.revision} if began.kind == "hub" else {}
    source = resolve_source(run.record.spec.model.model_copy(update=pinned), Path())
    if source.revision != began.revision:
        raise ModelError(
            f"{run.id}: the weights of {source.name} are not those the run was begun with; survey it again"
        )
    return source
