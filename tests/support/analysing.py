"""Computing the results of a stored run in tests, without a model where none is needed."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from theodolite.digests import digest_of
from theodolite.groups import GROUPS
from theodolite.spec_options import GramSpec
from theodolite.store.manifest import finished_groups
from theodolite.store.runs import Run
from theodolite_jobs.analysis import compute_groups
from theodolite_jobs.groups.gram import compute as gram
from theodolite_jobs.passes.norm_layers import NormLayer
from theodolite_jobs.requested import all_contrasts
from theodolite_jobs.results.context import Context
from theodolite_jobs.tasks import Progress


def context_of(
    run: Run,
    contrasts: Mapping[str, Any],
    dask_address: str | None = None,
    progress: Progress = lambda *_: None,
    weights: Any = None,
    **options: Any,
) -> Context:
    """Return the context of an analysis; `options` are parts of the spec that differ from the run's own."""
    spec = run.record.spec.model_copy(update=options)
    known = all_contrasts(run, dict(contrasts))
    return Context(run, spec, known, lambda: weights, dask_address=dask_address, progress=progress)


def analyse(
    run: Run,
    contrasts: Mapping[str, Any],
    dask_address: str | None = None,
    progress: Progress = lambda *_: None,
    requested: Collection[str] = (),
    norms: Sequence[NormLayer] = (),
) -> list[str]:
    """Compute the groups that every run has and those that are requested; return the names of those that were stale."""
    context = context_of(run, contrasts, dask_address, progress)
    context.norms = list(norms)  # instead of those of a model
    return _compute(context, {*requested, *(name for name, group in GROUPS.items() if group.always)})


def survey_gram(run: Run, contrasts: Mapping[str, Any], options: GramSpec, *_: Any) -> list[str]:
    """Compute `gram` where it is stale."""
    return _compute(context_of(run, contrasts, gram=options), {"gram"})


def survey_basis(run: Run, options: GramSpec) -> list[str]:
    """Compute `basis` where it is stale."""
    return _compute(context_of(run, {}, gram=options), {"basis"})


def stale_gram(run: Run, contrasts: Mapping[str, Any], options: GramSpec) -> bool:
    """Return whether `gram` would be computed again."""
    digest = digest_of(gram.digest_inputs(context_of(run, contrasts, gram=options)))
    return finished_groups(run).get("gram") != digest


def survey_weights(run: Run, weights: Any, *_: Any) -> list[str]:
    """Compute `weights` where it is stale."""
    return _compute(context_of(run, {}, weights=weights), {"weights"})


def _compute(context: Context, requested: Collection[str]) -> list[str]:
    computed, failed = compute_groups(context, [name for name in GROUPS if name in requested])
    for error in failed.values():
        raise error
    return computed
