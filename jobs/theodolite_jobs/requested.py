"""What is requested of a run: its groups, and the request that COMPLETE stores until all of its groups are finished.

So the run of a driver that was killed, or that could not compute a group, does not look complete.
"""

from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from pydantic import ValidationError

from theodolite.errors import RunDamagedError, SiteNotFoundError, SpecError, StoreVersionError
from theodolite.groups import ANALYSES, GROUPS
from theodolite.query.runs import spec_of_results, with_analyses
from theodolite.sites import Site
from theodolite.spec import SurveySpec
from theodolite.store.manifest import finished_groups, unfinished_request, write_request
from theodolite.store.result_reader import read_contrasts
from theodolite.store.runs import Run
from theodolite_jobs.passes.selections import Contrasts

_NEEDED_SITES = {name: Site(need) for name, group in GROUPS.items() for need in group.needs if need in set(Site)}


class Request(NamedTuple):
    """What a run shall hold: its results, and those that are requested and not finished."""

    spec: SurveySpec
    groups: dict[str, str]
    """For each group, an empty text if it is requested, or else the digest that it had when the request began."""


def all_contrasts(run: Run, requested: Contrasts) -> Contrasts:
    """Return the requested contrasts and those with existing results, so that a new request removes no results."""
    finished = finished_groups(run)
    with suppress(RunDamagedError):  # the attributes of `curves` and their copy are damaged
        return {**read_contrasts(run, finished), **requested} if "curves" in finished else requested
    return requested


def check_request(spec: SurveySpec, sites: Collection[Site], n_layers: int) -> None:
    """Raise an error if a spec requests what a run with these sites and layers cannot give.

    Raises:
        SpecError: the spec names a group that needs another site.
        SiteNotFoundError: `heads.composition` names a layer that the model lacks.
    """
    for name, site in _NEEDED_SITES.items():
        if name in (spec.analyses or []) and site not in sites:
            raise SpecError(f"analyses: {name!r} needs the site {site}, which is not captured; add it to capture.sites")
    composition = spec.heads.composition
    if composition is not None and composition[1] >= n_layers:
        raise SiteNotFoundError(
            f"heads.composition: this model has no layer {composition[1]}; it has 0 to {n_layers - 1}"
        )


def requested_groups(run: Run, spec: SurveySpec, contrasts: Contrasts) -> list[str]:
    """Return the groups that a spec requests and the groups that they require, in the order of computation."""
    captured = run.record.spec.capture.sites
    available = {
        "prompts": bool(run.record.sets),
        "contrasts": bool(contrasts),
        "weights": True,
        **{str(site): site in captured for site in _NEEDED_SITES.values()},
    }
    possible = {name for name, group in GROUPS.items() if all(available[need] for need in group.needs)}
    if not spec.heads.vectors:
        possible.discard("words")  # `words` decodes the vectors of `heads`
    if spec.heads.composition is None:
        possible.discard("composition")
    requested = set(spec.analyses or ANALYSES) & possible
    requested |= {name for name in possible if GROUPS[name].always}
    requested |= {required for name in requested for required in GROUPS[name].requires}
    if "heads" in requested:
        requested |= {"composition"} & possible
    return [name for name in GROUPS if name in requested]


def requested_spec(run: Run) -> SurveySpec:
    """Return the spec of all that a run shall hold: its results, and those that are requested and not finished."""
    request = stored_request(run)
    spec = request.spec if request else spec_of_results(run)
    # An older version wrote run.json before it refused what the run cannot give.
    composition, captured = spec.heads.composition, run.record.spec.capture.sites
    if composition is not None and composition[1] >= run.record.model.n_layers:
        spec = spec.model_copy(update={"heads": spec.heads.model_copy(update={"composition": None})})
    impossible = {name for name, site in _NEEDED_SITES.items() if site not in captured}
    if impossible.isdisjoint(spec.analyses or []):
        return spec
    return spec.model_copy(update={"analyses": [name for name in spec.analyses or [] if name not in impossible]})


def stored_request(run: Run) -> Request | None:
    """Return the request that COMPLETE stores; raise StoreVersionError if another version wrote it in another form."""
    stored = unfinished_request(run)
    if stored is None:
        return None
    try:
        if "spec" in stored:
            groups = {str(name): str(digest) for name, digest in stored["groups"].items()}
            return Request(SurveySpec.model_validate(stored["spec"]), groups)
        spec = SurveySpec.model_validate(stored)  # an early version stored the spec alone
        return Request(spec, dict.fromkeys(_groups_of(run, spec), ""))
    except (AttributeError, KeyError, TypeError, ValidationError) as error:
        raise StoreVersionError(
            f"{run.id}: another version of Theodolite began to compute results, and this version cannot read what was "
            f"requested; run `theodolite analyse {run.id}` with the version that began"
        ) from error


def store_request(run: Run, request: Request | None) -> None:
    """Store a request in COMPLETE, or remove the stored one."""
    content = request and {"spec": request.spec.model_dump(mode="json"), "groups": request.groups}
    if content != unfinished_request(run):
        write_request(run, content)


def merged_spec(run: Run, spec: SurveySpec, requested: Sequence[str]) -> SurveySpec:
    """Return the spec of all that a run shall hold after a request.

    Args:
        run: the run; its other results keep their options.
        spec: requests groups.
        requested: the names of these groups.
    """
    return _merged(requested_spec(run), spec, requested)


def open_request(run: Run, merged: SurveySpec, requested: Collection[str]) -> None:
    """Store a request before its first group is computed; what is stored already stays requested.

    Args:
        run: the run.
        merged: requests all that the run shall hold.
        requested: the groups to compute.
    """
    earlier = stored_request(run)
    if earlier and earlier.spec == merged and earlier.groups.keys() >= set(requested):
        return  # nothing new, so a repair still knows which results it restores
    finished = finished_groups(run)
    # Before the first result, the request of the first survey is only in run.json.
    first = [] if finished or earlier else _groups_of(run, requested_spec(run))
    groups = {**finished, **(earlier.groups if earlier else {}), **dict.fromkeys([*first, *requested], "")}
    store_request(run, Request(merged, groups))


def open_repair(run: Run) -> Request:
    """Store and return the request of all that a run shall hold, with the former digests, before a repair."""
    earlier, spec = stored_request(run), requested_spec(run)
    requested = _groups_of(run, spec)
    groups = {**dict.fromkeys(requested, ""), **finished_groups(run), **(earlier.groups if earlier else {})}
    request = Request(_merged(spec, spec, requested), groups)
    store_request(run, request)
    return request


def close_request(run: Run, settled: Collection[str]) -> None:
    """Remove from the stored request what needs no more work, and the request itself if nothing remains.

    Args:
        run: the run.
        settled: the groups that were computed or are up to date, and those that this model cannot have.
    """
    request, finished = stored_request(run), finished_groups(run)
    if request is None:
        return
    wanted = _groups_of(run, requested_spec(run))
    remaining = {
        name: former
        for name, former in request.groups.items()
        # A newer version may have computed a group that this one does not know.
        if name not in settled and finished.get(name) != former and (name in wanted or name not in GROUPS)
    }
    store_request(run, Request(request.spec, remaining) if remaining else None)


def _groups_of(run: Run, spec: SurveySpec) -> list[str]:
    return requested_groups(run, spec, all_contrasts(run, spec.resolved_contrasts()))


def _merged(results: SurveySpec, spec: SurveySpec, requested: Sequence[str]) -> SurveySpec:
    """Return the spec that requests the results of both, with the options of `spec` for the requested groups."""
    options = sorted({own for name in requested if (own := GROUPS[name].options) is not None})
    changes: dict[str, Any] = {name: getattr(spec, name) for name in options}
    has_heads = results.analyses is None or "heads" in results.analyses
    if "heads" in changes and changes["heads"].composition is None and has_heads:  # declines nothing that the run has
        changes["heads"] = changes["heads"].model_copy(update={"composition": results.heads.composition})
    changes["contrasts"] = {**results.resolved_contrasts(), **spec.resolved_contrasts()}
    merged = SurveySpec.model_validate({**results.model_dump(mode="json"), **changes, "analyses": None})
    if results.analyses is None or spec.analyses is None:
        return merged
    return with_analyses(merged, {*results.analyses, *spec.analyses})
