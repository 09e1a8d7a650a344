"""Which results a survey asks for, computed where they are missing: from activations, and from the model's weights."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from theodolite.errors import ModelError, SpecError
from theodolite.metrics import timed
from theodolite.settings import Settings
from theodolite.sites import Site
from theodolite.spec import ANALYSES, OF_PROMPTS, SurveySpec
from theodolite.store.manifest import finished_groups
from theodolite.store.result_reader import damaged_groups
from theodolite.store.result_writer import drop_groups
from theodolite.store.runs import Run
from theodolite_jobs.models.load import check_readable, load_config, load_tokenizer
from theodolite_jobs.models.source import ModelSource, fetch, fetch_small_files, resolve_source
from theodolite_jobs.passes.norm_layers import NormPlace, norm_places
from theodolite_jobs.passes.selections import Contrasts
from theodolite_jobs.prepare import check_remote_code
from theodolite_jobs.progress import Console
from theodolite_jobs.report.page import write_report
from theodolite_jobs.results.context import all_contrasts, analyse, stale_groups
from theodolite_jobs.results.gram import survey_gram
from theodolite_jobs.tasks import Progress

if TYPE_CHECKING:
    from theodolite_jobs.models.weights import Weights


_OF_PASSES = frozenset({"sphere", "travel", "separation"})
"""Those that share the two passes over activations with what every run has."""


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
    damaged = damaged_groups(run)
    if damaged:
        console.say(f"{', '.join(damaged)}: not as they were written, and computed again")
        drop_groups(run, damaged)
    contrasts = all_contrasts(run, spec.resolved_contrasts())
    asked, dask = _asked(run, spec, contrasts), settings.dask_address
    computed: list[str] = []
    try:
        with console.bar("statistics", unit="tasks") as bar:
            weights, norms, reason = _weights(run, spec, asked, contrasts, source, settings)
            passes = asked & _OF_PASSES - ({"sphere"} if not norms else set())
            with timed("passes"):
                computed += analyse(run, contrasts, dask, bar.step_to, passes, norms)
            if "gram" in asked:
                with timed("gram"):
                    computed += survey_gram(run, contrasts, spec.gram, dask, bar.step_to)
            if reason is not None:
                if spec.analyses is not None or not run.record.sets:
                    raise reason
                console.say(f"what needs the model's weights is left out, since {reason}")
            if weights is not None:
                computed += _analyse_weights(run, spec, asked, weights, settings, console, bar.step_to)
    finally:
        if "curves" in finished_groups(run) or not run.record.sets:
            write_report(run)
    console.say(f"computed {', '.join(computed)}" if computed else "all results are there already")


def _asked(run: Run, spec: SurveySpec, contrasts: Contrasts) -> frozenset[str]:
    """Return the analyses that are asked for, or by default all that the run's activations allow."""
    lacking = set() if run.record.sets else set(OF_PROMPTS)
    if not contrasts:
        lacking.add("separation")
    if Site.RESID_PRE not in run.record.spec.capture.sites:
        lacking.add("travel")
        if "travel" in (spec.analyses or []):
            raise SpecError("analyses: 'travel' follows the stream from block to block, and needs the site resid_pre")
    return frozenset(spec.analyses or ANALYSES) - lacking


def _weights(
    run: Run,
    spec: SurveySpec,
    asked: frozenset[str],
    contrasts: Contrasts,
    source: ModelSource | None,
    settings: Settings,
) -> tuple["Weights | None", list[NormPlace], ModelError | None]:
    """Return the model's weights and norms where something that needs them is missing, or why they cannot be had."""
    from theodolite_jobs.results.heads import stale_heads
    from theodolite_jobs.results.weights import stale_weights

    stale = stale_groups(run, contrasts, asked & _OF_PASSES)
    # Heads are held against directions, and go with those that are computed again.
    heads = "directions" in stale or stale_heads(run, spec.heads) or _wants_words(run, spec, asked)
    if not ("sphere" in stale or (asked & {"heads", "words"} and heads) or ("weights" in asked and stale_weights(run))):
        return None, [], None
    from theodolite_jobs.models.weights import Weights

    try:
        files = _weight_files(run, spec, source, settings)
        weights = Weights(files, load_config(files, spec.model.trust_remote_code))
    except ModelError as error:
        return None, [], error
    try:
        return weights, norm_places(run, weights) if "sphere" in stale else [], None
    except ModelError as error:
        return weights, [], error


def _wants_words(run: Run, spec: SurveySpec, asked: frozenset[str]) -> bool:
    from theodolite_jobs.results.words import stale_words

    return "words" in asked and spec.heads.vectors > 0 and stale_words(run, spec) is not None


def _analyse_weights(
    run: Run,
    spec: SurveySpec,
    asked: frozenset[str],
    weights: "Weights",
    settings: Settings,
    console: Console,
    progress: Progress,
) -> list[str]:
    """Compute what is missing of the results that come from the model's weights."""
    from theodolite_jobs.results.heads import survey_heads
    from theodolite_jobs.results.weights import survey_weights
    from theodolite_jobs.results.words import survey_words

    computed: list[str] = []
    by_name, dask = spec.analyses is not None or not run.record.sets, settings.dask_address
    with _left_out_unless(by_name, "heads and words", console):
        if asked & {"heads", "words"}:
            with timed("heads"):
                computed += survey_heads(run, weights, spec.heads, dask, progress)
        with _left_out_unless(spec.analyses is not None, "words", console):
            if _wants_words(run, spec, asked):
                tokenizer = load_tokenizer(weights.folder, spec.model.trust_remote_code)
                with timed("words"):
                    computed += survey_words(run, weights, tokenizer, spec, dask, progress)
    with _left_out_unless(by_name, "weights", console):
        if "weights" in asked:
            with timed("weights"):
                computed += survey_weights(run, weights, dask, progress)
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
