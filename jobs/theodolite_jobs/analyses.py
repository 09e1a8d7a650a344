"""Which results a survey asks for, computed where they are missing: from activations, and from the model's weights."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from theodolite.errors import ModelError
from theodolite.models.load import check_readable, load_config, load_tokenizer
from theodolite.models.source import ModelSource, fetch, fetch_small_files, resolve_source
from theodolite.settings import Settings
from theodolite.spec import SurveySpec
from theodolite.store.complete import finished_groups
from theodolite.store.runs import Run
from theodolite_jobs.prepare import check_remote_code
from theodolite_jobs.progress import Console
from theodolite_jobs.report.page import write_report
from theodolite_jobs.stream.pipeline import analyse
from theodolite_jobs.tasks import Progress


def analyse_run(run: Run, spec: SurveySpec, source: ModelSource | None, settings: Settings, console: Console) -> None:
    """Compute what is missing of the results that a spec asks for, and write the report.

    What is not asked for by name, and cannot be had of this model, is left out and said.

    Args:
        run: a captured run.
        spec: what is asked; the run's own, or one that asks for more over the same activations.
        source: the model; found again where it is not known.
        settings: where Dask and converted models are.
        console: where it is said.
    """
    computed: list[str] = []
    try:
        with console.bar("statistics", unit="tasks") as bar:
            if run.record.sets:
                computed += analyse(run, spec.resolved_contrasts(), settings.dask_address, bar.step_to)
            computed += _analyse_weights(run, spec, source, settings, console, bar.step_to)
    finally:
        if "curves" in finished_groups(run) or not run.record.sets:
            write_report(run)
    console.say(f"computed {', '.join(computed)}" if computed else "all results are there already")


def _analyse_weights(
    run: Run, spec: SurveySpec, source: ModelSource | None, settings: Settings, console: Console, progress: Progress
) -> list[str]:
    """Compute what is missing of the results that come from the model's weights."""
    from theodolite_jobs.weights.head_groups import stale_heads, survey_heads
    from theodolite_jobs.weights.word_tables import stale_words, survey_words

    asked = {"heads", "words"} if spec.analyses is None else {"heads", "words"} & set(spec.analyses)
    wants_words = "words" in asked and spec.heads.vectors > 0 and stale_words(run, spec) is not None
    if not asked or not (wants_words or stale_heads(run, spec.heads)):
        return []
    from theodolite.models.weights import Weights

    computed: list[str] = []
    with _left_out_unless(spec.analyses is not None or not run.record.sets, "heads and words", console):
        files = _weight_files(run, spec, source, settings)
        weights = Weights(files, load_config(files, spec.model.trust_remote_code))
        computed += survey_heads(run, weights, spec.heads, settings.dask_address, progress)
        with _left_out_unless(spec.analyses is not None, "words", console):
            if wants_words:
                tokenizer = load_tokenizer(files, spec.model.trust_remote_code)
                computed += survey_words(run, weights, tokenizer, spec, settings.dask_address, progress)
    return computed


@contextmanager
def _left_out_unless(asked: bool, what: str, console: Console) -> Iterator[None]:
    """Let a model that cannot give something go without it, and say so, unless it was asked for by name."""
    try:
        yield
    except ModelError as error:
        if asked:
            raise
        console.say(f"{what}: left out, since {error}")


def _weight_files(run: Run, spec: SurveySpec, source: ModelSource | None, settings: Settings) -> Path:
    """Return the folder of the run's model; raises ModelError where its weights cannot be had or read."""
    check_remote_code(spec.model, settings)
    source = source or _same_model(run)
    check_readable(load_config(fetch_small_files(source, settings.cache), spec.model.trust_remote_code))
    return fetch(source, settings.cache)


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
