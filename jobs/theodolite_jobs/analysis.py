"""One loop that computes result groups: which ones a spec requests, which of those are missing, each one in turn."""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import xarray as xr

from theodolite.errors import ModelError, SiteNotFoundError, SpecError
from theodolite.groups import ANALYSES, GROUPS
from theodolite.metrics import timed
from theodolite.settings import Settings
from theodolite.sites import Site
from theodolite.spec import SurveySpec, digest_of
from theodolite.store.manifest import finished_groups
from theodolite.store.result_reader import damaged_groups, read_contrasts
from theodolite.store.result_writer import build_group, drop_groups, write_groups
from theodolite.store.runs import Run
from theodolite.store.tables import encode_table
from theodolite_jobs.models.load import check_readable, load_config, load_tokenizer
from theodolite_jobs.models.source import ModelSource, fetch, fetch_small_files, resolve_source
from theodolite_jobs.passes.selections import Contrasts
from theodolite_jobs.prepare import check_remote_code
from theodolite_jobs.progress import Console
from theodolite_jobs.report.page import write_report
from theodolite_jobs.results.computations import COMPUTATIONS
from theodolite_jobs.results.context import Context
from theodolite_jobs.results.tables import flat_table

if TYPE_CHECKING:
    from theodolite_jobs.models.weights import Weights


def analyse_run(run: Run, spec: SurveySpec, source: ModelSource | None, settings: Settings, console: Console) -> None:
    """Compute the results that a spec requests and that are missing, and write the report.

    Groups that the model does not allow are left out with a message, unless the spec names them.

    Args:
        run: a captured run.
        spec: what is requested; the run's own spec, or one that requests more over the same activations.
        source: the model; None looks for it again.
        settings: where Dask and converted models are.
        console: where messages go.

    Raises:
        ModelError: a group that the spec names cannot be computed for this model; the others were computed.
        SpecError: a group needs a site that was not captured.
    """
    damaged = damaged_groups(run)
    if damaged:
        console.say(f"{', '.join(damaged)}: not as they were written, and computed again")
        drop_groups(run, damaged)
    contrasts = all_contrasts(run, spec.resolved_contrasts())
    requested = requested_groups(run, spec, contrasts)
    try:
        with console.bar("statistics", unit="tasks") as bar:
            context = Context(
                run,
                spec,
                contrasts,
                open_weights=lambda: _open_weights(run, spec, source, settings),
                open_tokenizer=lambda weights: load_tokenizer(weights.folder, spec.model.trust_remote_code),
                dask_address=settings.dask_address,
                progress=bar.step_to,
            )
            computed, failed = compute_groups(context, requested)
        _report_failures(run, spec, failed, console)
    finally:
        if "curves" in finished_groups(run) or not run.record.sets:
            write_report(run)
    console.say(f"computed {', '.join(computed)}" if computed else "all results are there already")


def all_contrasts(run: Run, requested: Contrasts) -> Contrasts:
    """Return the contrasts that are requested, and those that results exist for already: more requests lose none."""
    finished = finished_groups(run)
    return {**read_contrasts(run, finished), **requested} if "curves" in finished else requested


def requested_groups(run: Run, spec: SurveySpec, contrasts: Contrasts) -> list[str]:
    """Return the groups that a spec requests, and those that they require, in the order of computation.

    Raises:
        SpecError: the spec names a group that needs a site which was not captured.
        SiteNotFoundError: the spec names layers of heads that the model lacks.
    """
    available = {
        "prompts": bool(run.record.sets),
        "contrasts": bool(contrasts),
        "resid_pre": Site.RESID_PRE in run.record.spec.capture.sites,
        "weights": True,
    }
    _check_request(run, spec, has_resid_pre=available["resid_pre"])
    possible = {name for name, group in GROUPS.items() if all(available[need] for need in group.needs)}
    if not spec.heads.vectors:
        possible.discard("words")  # there would be no vectors to decode
    if spec.heads.composition is None:
        possible.discard("composition")
    requested = set(spec.analyses or ANALYSES) & possible
    requested |= {name for name in possible if GROUPS[name].always}
    requested |= {required for name in requested for required in GROUPS[name].requires}
    if "heads" in requested:
        requested |= {"composition"} & possible
    return [name for name in GROUPS if name in requested]


def _check_request(run: Run, spec: SurveySpec, *, has_resid_pre: bool) -> None:
    if "travel" in (spec.analyses or []) and not has_resid_pre:
        raise SpecError("analyses: 'travel' follows the stream from block to block, and needs the site resid_pre")
    composition, last = spec.heads.composition, run.record.model.n_layers - 1
    if composition is not None and composition[1] > last:
        raise SiteNotFoundError(f"heads.composition: this model has no layer {composition[1]}; it has 0 to {last}")


def compute_groups(context: Context, requested: Sequence[str]) -> tuple[list[str], dict[str, ModelError]]:
    """Compute and write the requested groups that are missing or outdated.

    Returns:
        The groups that were computed, and why others could not be.
    """
    computed: list[str] = []
    failed: dict[str, ModelError] = {}
    for batch in _batches(requested):
        context.stale = _stale(context, batch, failed)
        if not context.stale:
            continue
        try:
            with timed("passes" if len(batch) > 1 else batch[0]):
                _compute(context)
        except ModelError as error:
            failed |= dict.fromkeys(context.stale, error)
        else:
            computed += context.stale
    return computed, failed


def _batches(requested: Sequence[str]) -> Iterator[list[str]]:
    """Yield the groups that share the passes over the activations, and then each of the others."""
    shared = [name for name in requested if GROUPS[name].uses_passes]
    if shared:
        yield shared
    yield from ([name] for name in requested if name not in shared)


def _stale(context: Context, batch: Sequence[str], failed: dict[str, ModelError]) -> dict[str, str]:
    """Return the digests of the groups that are missing or outdated; those that cannot be computed go to `failed`."""
    finished, stale = finished_groups(context.run), {}
    for name in batch:
        lacking = [required for required in GROUPS[name].requires if required in failed]
        if lacking:
            failed[name] = failed[lacking[0]]
            continue
        digest = digest_of(COMPUTATIONS[name].rests_on(context))
        if finished.get(name) != digest:
            stale[name] = digest
    if "sphere" in stale:  # it shares the passes with groups that need no weights
        try:
            _ = context.norms
        except ModelError as error:
            failed["sphere"] = error
            del stale["sphere"]
    return stale


def _compute(context: Context) -> None:
    """Compute the stale groups and write them together."""
    datasets: dict[str, xr.Dataset] = {}
    tables: dict[str, bytes] = {}
    shares_passes = any(GROUPS[name].uses_passes for name in context.stale)
    with context.tasks() if shares_passes else nullcontext():
        for name, digest in context.stale.items():
            result = COMPUTATIONS[name].compute(context)
            attributes = {"digest": digest, "version": GROUPS[name].version, **result.attributes}
            dataset = build_group(name, result.arrays, result.coordinates, attributes, result.labels)
            datasets[name] = context.results[name] = dataset
            tables |= result.tables
            if name in GROUPS[name].tables:
                tables[name] = encode_table(flat_table(dataset))
    write_groups(context.run, datasets, tables, context.stale)


def _report_failures(run: Run, spec: SurveySpec, failed: dict[str, ModelError], console: Console) -> None:
    """Say which groups were left out and why; raise the reason where the spec names one of them."""
    reasons: dict[str, list[str]] = {}
    for name, error in failed.items():
        # Without prompts the weights are all that is surveyed; words may be left out for want of a vocabulary.
        if spec.analyses is not None or (not run.record.sets and not GROUPS[name].requires):
            raise error
        reasons.setdefault(str(error), []).append(name)
    for reason, names in reasons.items():
        console.say(f"{', '.join(names)}: left out, since {reason}")


def _open_weights(run: Run, spec: SurveySpec, source: ModelSource | None, settings: Settings) -> "Weights":
    """Return the weights of the run's model; raises ModelError where they are missing or cannot be read."""
    from theodolite_jobs.models.weights import Weights

    check_remote_code(spec.model, settings)
    source = source or _same_model(run)
    check_readable(load_config(fetch_small_files(source, settings.cache), spec.model.trust_remote_code))
    files = fetch(source, settings.cache)
    return Weights(files, load_config(files, spec.model.trust_remote_code))


def _same_model(run: Run) -> ModelSource:
    """Find the model that a run was begun with; raises ModelError where its weights have changed."""
    began = run.record.model
    pinned = {"revision": began.revision} if began.kind == "hub" else {}
    source = resolve_source(run.record.spec.model.model_copy(update=pinned), Path())
    if source.revision != began.revision:
        raise ModelError(
            f"{run.id}: the weights of {source.name} are not those the run was begun with; survey it again"
        )
    return source
