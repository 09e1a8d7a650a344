"""What is requested of a run: its groups, and the request that COMPLETE stores until all of its groups are finished.

A driver that is killed while it computes, or that cannot compute a damaged group again, thus leaves a run that says so.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from pydantic import ValidationError

from theodolite.errors import RunDamagedError, SiteNotFoundError, SpecError, StoreVersionError
from theodolite.groups import ANALYSES, GROUPS
from theodolite.query.runs import spec_of_results
from theodolite.sites import Site
from theodolite.spec import SurveySpec
from theodolite.store.manifest import finished_groups, unfinished_request, write_request
from theodolite.store.result_reader import read_contrasts
from theodolite.store.runs import Run
from theodolite_jobs.passes.selections import Contrasts


class Request(NamedTuple):
    """What a run shall hold, and does not hold yet."""

    spec: SurveySpec
    groups: dict[str, str]
    """The former digest of each group that is to be restored, and an empty text for each other group."""


def all_contrasts(run: Run, requested: Contrasts) -> Contrasts:
    """Return the requested contrasts and those with existing results, so that a new request removes no results."""
    finished = finished_groups(run)
    with suppress(RunDamagedError):  # the attributes of `curves` and their copy are damaged
        return {**read_contrasts(run, finished), **requested} if "curves" in finished else requested
    return requested


def requested_groups(run: Run, spec: SurveySpec, contrasts: Contrasts) -> list[str]:
    """Return the groups that a spec requests and the groups that they require, in the order of computation.

    Raises:
        SpecError: the spec names a group that needs a site that was not captured.
        SiteNotFoundError: `heads.composition` names a layer that the model lacks.
    """
    available = {
        "prompts": bool(run.record.sets),
        "contrasts": bool(contrasts),
        "weights": True,
        **{site: Site(site) in run.record.spec.capture.sites for site in ("resid_pre", "head_out")},
    }
    for name, site in (("travel", "resid_pre"), ("contributions", "head_out")):
        if name in (spec.analyses or []) and not available[site]:
            raise SpecError(f"analyses: {name!r} needs the site {site}, which was not captured; survey again with it")
    composition, last = spec.heads.composition, run.record.model.n_layers - 1
    if composition is not None and composition[1] > last:
        raise SiteNotFoundError(f"heads.composition: this model has no layer {composition[1]}; it has 0 to {last}")
    possible = {name for name, group in GROUPS.items() if all(available[need] for need in group.needs)}
    if not spec.heads.vectors:
        possible.discard("words")  # `words` decodes the vectors of `heads`
    if composition is None:
        possible.discard("composition")
    requested = set(spec.analyses or ANALYSES) & possible
    requested |= {name for name in possible if GROUPS[name].always}
    requested |= {required for name in requested for required in GROUPS[name].requires}
    if "heads" in requested:
        requested |= {"composition"} & possible
    return [name for name in GROUPS if name in requested]


def requested_spec(run: Run) -> SurveySpec:
    """Return the spec of all that a run shall hold: its results, and what was requested and is not finished."""
    request = stored_request(run)
    return request.spec if request else spec_of_results(run)


def stored_request(run: Run) -> Request | None:
    """Return the request that COMPLETE stores; raise StoreVersionError if it is that of a newer version."""
    stored = unfinished_request(run)
    if stored is None:
        return None
    try:
        # An early version stored the spec alone.
        fields = stored if "spec" in stored else {"spec": stored, "groups": {}}
        groups = {str(name): str(digest) for name, digest in fields["groups"].items()}
        return Request(SurveySpec.model_validate(fields["spec"]), groups)
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


def open_request(run: Run, spec: SurveySpec, requested: Sequence[str] = (), restored: Mapping[str, str] = {}) -> None:
    """Add groups to the stored request, before they are computed.

    Args:
        run: the run.
        spec: requests the groups; the run's other results keep their options.
        requested: the groups that are to be computed with the options of `spec`.
        restored: the digests of groups that are to be restored, with the options that they have.
    """
    earlier = request.groups if (request := stored_request(run)) else {}
    former = {**restored, **{name: digest for name, digest in earlier.items() if digest}}
    groups = {**dict.fromkeys([*earlier, *requested], ""), **former}
    store_request(run, Request(_merged(requested_spec(run), spec, requested), groups))


def close_request(run: Run, attempted: Sequence[str]) -> list[str]:
    """Remove from the stored request what is settled; return the groups that are still to be computed.

    A group is settled if it is finished, or if it is new and cannot be computed, which its survey has then said.

    Args:
        run: the run.
        attempted: the groups that this process has computed, found unchanged, or could not compute.
    """
    request = stored_request(run)
    if request is None:
        return []
    finished = finished_groups(run)
    wanted = requested_groups(run, request.spec, all_contrasts(run, request.spec.resolved_contrasts()))

    def is_settled(name: str, former: str) -> bool:
        if name in GROUPS and name not in wanted:  # a later request has other options, without this group
            return True
        if name in attempted:
            return name in finished or not former
        return finished.get(name) == former

    open_groups = {name: former for name, former in request.groups.items() if not is_settled(name, former)}
    store_request(run, Request(request.spec, open_groups) if open_groups else None)
    return list(open_groups)


def _merged(results: SurveySpec, spec: SurveySpec, requested: Sequence[str]) -> SurveySpec:
    """Return the spec that requests the results of both, with the options of `spec` for the requested groups."""
    if not requested:
        return results
    options = sorted({own for name in requested if (own := GROUPS[name].options) is not None})
    changes: dict[str, Any] = {name: getattr(spec, name) for name in options}
    changes["contrasts"] = {**results.resolved_contrasts(), **spec.resolved_contrasts()}
    changes["analyses"] = None
    if results.analyses is not None and spec.analyses is not None:
        either = {*results.analyses, *spec.analyses}
        if not changes.get("heads", results.heads).vectors:
            either.discard("words")  # it decodes vectors, which the spec no longer requests
        changes["analyses"] = [name for name in ANALYSES if name in either]
    return SurveySpec.model_validate({**results.model_dump(mode="json"), **changes})
