"""The loop that computes the analyses that a spec requests and that are missing or outdated."""

from collections.abc import Callable, Collection, Iterable, Sequence, Set
from contextlib import nullcontext, suppress
from pathlib import Path

import xarray as xr

from theodolite.digests import digest_of
from theodolite.errors import CaptureError, ModelError, RunDamagedError, StoreError, UnsupportedModelError
from theodolite.groups import GROUPS
from theodolite.metrics import timed
from theodolite.settings import Settings
from theodolite.spec import SurveySpec
from theodolite.store.manifest import drop_outdated, finished_groups, listed_checksums, refuse_changed_captured
from theodolite.store.removal import unless_removed
from theodolite.store.result_reader import damaged_groups
from theodolite.store.result_writer import build_group, drop_claims, remove_groups, restore_root, write_groups
from theodolite.store.runs import Run
from theodolite.store.tables import encode_table
from theodolite.store.writable import check_writable
from theodolite_jobs.effects.part_store import PartStore
from theodolite_jobs.effects.work import EffectsWork
from theodolite_jobs.full_disk import repeat_while_disk_is_full
from theodolite_jobs.groups import computation
from theodolite_jobs.models.load import load_config, load_tokenizer
from theodolite_jobs.models.readable import check_readable
from theodolite_jobs.models.source import ModelSource, check_weight_versions, fetch, resolve_source
from theodolite_jobs.models.weights import Weights
from theodolite_jobs.prepare import check_remote_code
from theodolite_jobs.progress import Console
from theodolite_jobs.report.page import update_report
from theodolite_jobs.requested import (
    all_contrasts,
    check_request,
    close_request,
    merged_spec,
    open_request,
    records_experts,
    requested_groups,
    requested_spec,
    stored_request,
)
from theodolite_jobs.results.context import Context
from theodolite_jobs.results.tables import flat_table
from theodolite_jobs.stages import Stage, listening

_FIRST = {"curves", "permutations"}
"""The analyses that the overview rests on: the report is written after each of them, and completed at the end."""


def analyse_run(run: Run, spec: SurveySpec, source: ModelSource | None, settings: Settings, console: Console) -> None:
    """Compute the requested results that are missing or outdated, and write the report.

    If a group cannot be computed for this model, a message says so; the group is an error only if the spec names it.
    If the disk of the store is full, the function waits for space.

    Args:
        run: a captured run.
        spec: the run's own spec, or one that requests other results from the same activations.
        source: the model's files; None resolves the model of the run again.
        settings: address of the Dask scheduler, and the cache of models.
        console: prints messages and progress.

    Raises:
        ModelError: a group that the spec names cannot be computed for this model; all other groups are computed.
        SpecError: the spec names a group that needs a site that was not captured.
        SiteNotFoundError: `heads.composition` names a layer that the model lacks.
        RunNotFoundError: the run was removed meanwhile.
        StoreVersionError: another version began to compute results, and this one cannot read what was requested.
    """
    before = finished_groups(run)
    with unless_removed(run) as look:
        try:
            repeat_while_disk_is_full(lambda: _analyse(run, spec, source, settings, console, look), console.say)
        finally:
            with suppress(StoreError):  # the error that ended the analysis says more
                _report_unfinished(run, before.keys(), console)


def _report_unfinished(run: Run, before: Set[str], console: Console) -> None:
    """Print that requested results are not finished, and which groups are gone and not requested."""
    request = stored_request(run)
    if request:
        left = ", ".join(request.groups)
        console.say(f"requested and not finished: {left}; `theodolite run analyse {run.id}` computes them")
    gone = before - finished_groups(run).keys() - (request.groups.keys() if request else set())
    if gone:
        console.say(f"removed {', '.join(sorted(gone))}, which used results that were replaced; request them again")


def _analyse(
    run: Run,
    spec: SurveySpec,
    source: ModelSource | None,
    settings: Settings,
    console: Console,
    look: Callable[[], None],
) -> None:
    if not listed_checksums(run):
        raise RunDamagedError(
            f"{run.id}: its capture is not finished, or COMPLETE is lost; run the survey again, or "
            f"`theodolite run verify {run.id} --repair`"
        )
    refuse_changed_captured(run)
    contrasts = all_contrasts(run, spec.resolved_contrasts())
    sites, n_layers = run.record.spec.capture.sites, run.record.model.n_layers
    check_request(spec, contrasts, sites, n_layers, has_experts=records_experts(run))
    requested = requested_groups(run, spec, contrasts)
    check_writable(run.store)
    context = Context(
        run,
        spec,
        contrasts,
        open_weights=lambda: _open_weights(run, spec, source, settings),
        open_tokenizer=lambda weights: load_tokenizer(weights.folder, spec.model.trust_remote_code),
        measure_effects=lambda work: _measure_effects(run, work, spec, source, settings, console),
        dask_address=settings.dask_address,
    )
    if damaged := damaged_groups(run):
        console.say(f"{', '.join(damaged)}: these results are damaged or of another version; removing them")
        _open_request(context, requested)
        remove_groups(run, damaged)
    try:
        with console.bar("statistics", unit="tasks") as bar:

            def progress(stage: str, done: int, total: int) -> None:
                look()
                bar.step_to(stage, done, total, "tasks")

            def fetched(stage: Stage | None) -> None:
                if stage is not None:
                    bar.step_to(*stage)

            def written(names: Collection[str]) -> None:
                """Show the first results while the others are computed."""
                if not _FIRST.isdisjoint(names) and "curves" in finished_groups(run):
                    with suppress(StoreError):  # the report is written again at the end, and then its errors count
                        update_report(run)
                        console.say(f"the report so far, with {', '.join(names)}: {run.report}")

            context.progress = progress
            with listening(fetched):
                computed, failed = compute_groups(context, requested, written)
        drop_claims(run)
        if digest := finished_groups(run).get("effects"):  # a driver that was killed may have left its parts
            PartStore(run.location, run.id, digest).drop()
        restore_root(run)
        _report_failures(run, spec, failed, console)
    finally:
        if "curves" in finished_groups(run) or not run.record.sets:
            update_report(run)
    console.say(f"computed {', '.join(computed)}" if computed else "all results of this spec exist already")


def compute_groups(
    context: Context, requested: Sequence[str], written: Callable[[Collection[str]], None] = lambda _names: None
) -> tuple[list[str], dict[str, ModelError]]:
    """Compute and write the requested groups that are missing or outdated; call `written` with those of each step.

    From the first computation until the end, COMPLETE stores the request. Another driver that writes COMPLETE at the
    same moment can remove a group that this one has just listed. The second round computes such a group again; if
    COMPLETE still lacks it then, it stays requested.

    Returns:
        The names of the computed groups, and the errors of the failed groups by name.
    """
    computed: list[str] = []
    failed: dict[str, ModelError] = {}
    for _ in range(2):
        possible = [name for name in requested if name not in failed]
        computed += (of_this_round := _compute_missing(context, possible, failed, written))
        if not of_this_round:
            break
    lost = _stale(context, [name for name in requested if name not in failed], {})
    unsupported = {name for name, error in failed.items() if isinstance(error, UnsupportedModelError)}
    close_request(context.run, set(requested) - failed.keys() - lost.keys(), unsupported)
    return list(dict.fromkeys(computed)), failed


def _compute_missing(
    context: Context,
    requested: Sequence[str],
    failed: dict[str, ModelError],
    written: Callable[[Collection[str]], None],
) -> list[str]:
    """Compute and write the missing or outdated groups once; return their names, and add to `failed`."""
    computed: list[str] = []
    has_request, is_open = stored_request(context.run) is not None, False
    # The groups that share passes over the activations are computed together, first those of the first picture, which
    # need moments of the stream alone. Then each other group is computed by itself.
    shared = [name for name in requested if GROUPS[name].outputs]
    first = [name for name in shared if not GROUPS[name].outputs - {"stream", "folds"}]
    rest = [name for name in shared if name not in first]
    for batch in [first, rest, *([name] for name in requested if name not in shared)]:
        context.stale = _stale(context, batch, failed)
        if not is_open and (has_request or context.stale or failed):
            _open_request(context, requested)
            is_open = True
        if not context.stale:
            continue
        try:
            with timed("passes" if len(batch) > 1 else batch[0]):
                _compute(context)
        except ModelError as error:
            failed |= dict.fromkeys(context.stale, error)
        except (StoreError, CaptureError):
            # Another driver that finished the same groups has removed what this one still needed.
            if not context.stale.items() <= finished_groups(context.run).items():
                raise
        else:
            computed += context.stale
            written(context.stale)
    return computed


def _open_request(context: Context, requested: Sequence[str]) -> None:
    """Store the request, with the finished groups that its options or contrasts make outdated."""
    before = requested_spec(context.run)
    merged = merged_spec(context.run, before, context.spec, requested)
    outdated: set[str] = set()
    if merged != before:
        digests_before, digests = _digests(context, before, GROUPS), _digests(context, merged, GROUPS)
        outdated = {
            name
            for name, digest in finished_groups(context.run).items()
            if name in GROUPS and digests_before[name] == digest != digests[name]
        }
    is_list = context.spec.analyses is not None
    open_request(context.run, before, merged, {*requested, *outdated}, is_list=is_list)


def _digests(context: Context, spec: SurveySpec, names: Iterable[str]) -> dict[str, str]:
    """Return the digest that each of these groups has with the options and contrasts of a spec."""
    other = Context(context.run, spec, all_contrasts(context.run, spec.resolved_contrasts()))
    other.commits = context.commits
    return {name: digest_of(computation(name).digest_inputs(other)) for name in names}


def _stale(context: Context, batch: Sequence[str], failed: dict[str, ModelError]) -> dict[str, str]:
    """Return the digests of missing or outdated groups; add groups that cannot be computed to `failed`."""
    finished, stale = finished_groups(context.run), {}
    for name in batch:
        missing = [required for required in GROUPS[name].requires if required in failed]
        if missing:
            failed[name] = failed[missing[0]]
            continue
        digest = digest_of(computation(name).digest_inputs(context))
        if finished.get(name) != digest:
            stale[name] = digest
    if "sphere" in stale:  # a failure must not affect the groups that share its passes and need no weights
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
    layers: dict[str, str] = {}
    if "directions" in context.stale:  # the stored `heads` must not rest on other directions than those of the run
        drop_outdated(context.run, {"heads": _digests(context, requested_spec(context.run), ["heads"])["heads"]})
    shares_passes = any(GROUPS[name].outputs for name in context.stale)
    with context.tasks() if shares_passes else nullcontext():
        for name, digest in context.stale.items():
            result = computation(name).compute(context)
            attributes = {"digest": digest, "version": GROUPS[name].version, **result.attributes}
            dataset = build_group(name, result.arrays, result.coordinates, attributes, result.labels)
            datasets[name] = context.results[name] = dataset
            tables |= result.tables
            layers |= result.layers
            if flat := GROUPS[name].flat_table:
                tables[name] = encode_table(flat_table(dataset, flat))
    vars(context).pop("collected", None)  # frees memory, and a second round may collect for other groups
    write_groups(context.run, datasets, tables, context.stale, layers)


def _report_failures(run: Run, spec: SurveySpec, failed: dict[str, ModelError], console: Console) -> None:
    """Print which groups failed and why; raise the error if the spec names the group."""
    reasons: dict[str, list[str]] = {}
    for name, error in failed.items():
        # A survey without prompts is about the weights, so only `words`, which requires `heads`, may fail.
        if spec.analyses is not None or (not run.record.sets and not GROUPS[name].requires):
            raise error
        reasons.setdefault(str(error), []).append(name)
    for reason, names in reasons.items():
        console.say(f"{', '.join(names)}: left out, since {reason}")


def _open_weights(run: Run, spec: SurveySpec, source: ModelSource | None, settings: Settings) -> Weights:
    """Return the weights of the run's model; raise ModelError if they are missing or cannot be read."""
    check_remote_code(spec.model, settings)
    check_weight_versions(run)
    source = source or _same_model(run)
    check_readable(load_config(fetch(source, settings.cache, weights=False), spec.model.trust_remote_code))
    files = fetch(source, settings.cache)
    return Weights(files, load_config(files, spec.model.trust_remote_code))


def _measure_effects(
    run: Run, work: EffectsWork, spec: SurveySpec, source: ModelSource | None, settings: Settings, console: Console
) -> None:
    from theodolite_jobs.measure_effects import measure_effects  # Ray takes seconds to load

    source = source or _same_model(run)
    config = load_config(fetch(source, settings.cache, weights=False), spec.model.trust_remote_code)
    measure_effects(run, work, source, config, settings, console)


def _same_model(run: Run) -> ModelSource:
    """Return the source of the run's model; raise ModelError if its weights have changed."""
    source = resolve_source(run.record.model.pinned(run.record.spec.model), Path())
    if source.revisions != run.record.model.revisions:
        raise ModelError(f"{run.id}: the weights of {source.name} differ from those of the run; survey the model again")
    return source
