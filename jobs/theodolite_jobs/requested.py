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
from theodolite.spec_options import EffectsSpec, ProbesSpec
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

    replaced: frozenset[str] = frozenset()
    """The requested groups that were finished before, with other options or damaged: the run must not lose them."""


def all_contrasts(run: Run, requested: Contrasts) -> Contrasts:
    """Return all contrasts that a run shall have: with results, of the stored request, and of a new request."""
    stored = stored_request(run)
    return {**_finished_contrasts(run), **(stored.spec.resolved_contrasts() if stored else {}), **requested}


def _finished_contrasts(run: Run) -> Contrasts:
    finished = finished_groups(run)
    with suppress(RunDamagedError):  # the attributes of `curves` and their copy are damaged
        return dict(read_contrasts(run, finished)) if "curves" in finished else {}
    return {}


def check_request(
    spec: SurveySpec, contrasts: Contrasts, sites: Collection[Site], n_layers: int, *, has_experts: bool
) -> None:
    """Raise an error if a spec requests what a run with these contrasts, sites, layers and experts cannot give.

    Raises:
        SpecError: the spec names a group that needs another site, a contrast, or recorded experts.
        SiteNotFoundError: `heads.composition` or `effects.layers` names a layer that the model lacks.
    """
    for name in spec.analyses or []:
        if name in _NEEDED_SITES and _NEEDED_SITES[name] not in sites:
            site = _NEEDED_SITES[name]
            raise SpecError(f"analyses: {name!r} needs the site {site}, which is not captured; add it to capture.sites")
        if "contrasts" in GROUPS[name].needs and not contrasts:
            raise SpecError(f"analyses: {name!r} compares two prompt sets; add a contrast, or leave {name!r} out")
        if "experts" in GROUPS[name].needs and not has_experts:
            raise SpecError(
                f"analyses: {name!r} needs the experts that tokens use, and none are recorded: the model has none in "
                f"the captured layers, or they cannot be read; leave {name!r} out"
            )
    layers = spec.effects.layers if spec.effects else None
    if isinstance(layers, list) and layers[-1] >= n_layers:
        raise SiteNotFoundError(f"effects.layers: this model has no layer {layers[-1]}; it has 0 to {n_layers - 1}")
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
        "experts": records_experts(run),
        **{str(site): site in captured for site in _NEEDED_SITES.values()},
    }
    possible = {name for name, group in GROUPS.items() if all(available[need] for need in group.needs)}
    keep = run.record.spec.capture.keep
    if keep is not None:
        possible -= {name for name, group in GROUPS.items() if keep < group.least_samples}
    if not spec.heads.vectors:
        possible.discard("words")  # `words` decodes the vectors of `heads`
    if spec.heads.composition is None:
        possible.discard("composition")
    requested = named_groups(spec) & possible
    requested |= {name for name in possible if GROUPS[name].always}
    requested |= {required for name in requested for required in GROUPS[name].requires}
    if "heads" in requested:
        requested |= {"composition"} & possible
    return [name for name in GROUPS if name in requested]


def records_experts(run: Run) -> bool:
    """Return whether a run records the experts that tokens use."""
    return any(facts.n_choices for facts in run.record.sets.values())


def named_groups(spec: SurveySpec) -> set[str]:
    """Return the analyses that a spec names, or else all; those on request only if the spec has their section."""
    if spec.analyses is not None:
        return set(spec.analyses)
    return {name for name in ANALYSES if not GROUPS[name].on_request or getattr(spec, name) is not None}


def requested_spec(run: Run) -> SurveySpec:
    """Return the spec of all that a run shall hold: its results, and those that are requested and not finished."""
    request = stored_request(run)
    return request.spec if request else spec_of_results(run)


def stored_request(run: Run) -> Request | None:
    """Return the request that COMPLETE stores; raise StoreVersionError if another version wrote it in another form."""
    stored = unfinished_request(run)
    if stored is None:
        return None
    try:
        groups = {str(name): str(digest) for name, digest in stored["groups"].items()}
        return Request(SurveySpec.model_validate(stored["spec"]), groups, frozenset(stored["replaced"]))
    except (AttributeError, KeyError, TypeError, ValidationError) as error:
        raise StoreVersionError(
            f"{run.id}: another version of Theodolite began to compute results, and this version cannot read what was "
            f"requested; run `theodolite run analyse {run.id}` with the version that began"
        ) from error


def store_request(run: Run, request: Request | None) -> None:
    """Store a request in COMPLETE, or remove the stored one."""
    content = request and {
        "spec": request.spec.model_dump(mode="json"),
        "groups": request.groups,
        "replaced": sorted(request.replaced),
    }
    if content != unfinished_request(run):
        write_request(run, content)


def open_request(
    run: Run, before: SurveySpec, merged: SurveySpec, requested: Collection[str], *, is_list: bool = False
) -> None:
    """Store a request before its first group is computed; what is stored already stays requested.

    Args:
        run: the run.
        before: requests all that the run was to hold so far.
        merged: requests all that it shall hold.
        requested: the groups to compute.
        is_list: whether the survey lists its analyses: if nothing is computed yet, it then needs no others.
    """
    earlier, finished = stored_request(run), finished_groups(run)
    if earlier and earlier.spec == merged and earlier.groups.keys() >= set(requested):
        return  # nothing new, so a repair still knows which results it restores
    wanted = set(_groups_of(run, before))
    # The new options can allow what was requested before, for example `words` after the first vectors.
    new = set(requested) | (set(_groups_of(run, merged)) - wanted)
    if not finished and not earlier and not is_list:  # the request of the first survey is only in run.json
        new |= wanted
    former = earlier or Request(merged, {})
    groups = {**finished, **former.groups, **dict.fromkeys(sorted(new), "")}
    replaced = former.replaced | (new & (finished.keys() | {name for name, digest in former.groups.items() if digest}))
    store_request(run, Request(merged, groups, replaced))


def open_repair(run: Run) -> Request:
    """Store and return the request of all that a run shall hold, with the former digests, before a repair."""
    earlier, spec = stored_request(run), requested_spec(run)
    requested = _groups_of(run, spec)
    groups = {**dict.fromkeys(requested, ""), **finished_groups(run), **(earlier.groups if earlier else {})}
    request = Request(merged_spec(run, spec, spec, requested), groups, earlier.replaced if earlier else frozenset())
    store_request(run, request)
    return request


def close_request(run: Run, settled: Collection[str], unsupported: Collection[str]) -> None:
    """Remove from the stored request what needs no more work, and the request itself if nothing remains.

    Args:
        run: the run.
        settled: the groups that were computed or are up to date.
        unsupported: the groups that this model cannot have with the requested options. A group that the run had before
            stays requested, since the model can have it with others.
    """
    request, finished = stored_request(run), finished_groups(run)
    if request is None:
        return
    never = {name for name in unsupported if not request.groups.get(name) and name not in request.replaced}
    settled = {*settled, *never}
    wanted = _groups_of(run, requested_spec(run))
    remaining = {
        name: former
        for name, former in request.groups.items()
        # Another version may have computed a group that this one does not know.
        if name not in settled and finished.get(name) != former and (name in wanted or name not in GROUPS)
    }
    replaced = request.replaced & remaining.keys()
    store_request(run, Request(request.spec, remaining, replaced) if remaining else None)


def _groups_of(run: Run, spec: SurveySpec) -> list[str]:
    return requested_groups(run, spec, all_contrasts(run, spec.resolved_contrasts()))


def merged_spec(run: Run, results: SurveySpec, spec: SurveySpec, requested: Sequence[str]) -> SurveySpec:
    """Return the spec of all that a run shall hold after a request.

    Args:
        run: the run.
        results: requests what the run was to hold so far; other results keep their options.
        spec: requests groups.
        requested: the names of these groups, which get the options of `spec`.
    """
    options = sorted({own for name in requested if (own := GROUPS[name].options) is not None})
    changes: dict[str, Any] = {name: getattr(spec, name) for name in options}
    if "effects" in changes:  # without the section, a later survey would not request the group
        changes["effects"] = spec.effects or EffectsSpec()
    if "probes" in changes:
        changes["probes"] = spec.probes or ProbesSpec()
    if "words" in changes:
        changes["words"] = spec.words_options
    has_heads = results.analyses is None or "heads" in results.analyses
    if "heads" in changes and changes["heads"].composition is None and has_heads:  # declines nothing that the run has
        changes["heads"] = changes["heads"].model_copy(update={"composition": results.heads.composition})
    changes["contrasts"] = {**results.resolved_contrasts(), **spec.resolved_contrasts()}
    merged = SurveySpec.model_validate({**results.model_dump(mode="json"), **changes, "analyses": None})
    if results.analyses is None or spec.analyses is None:
        return merged
    return with_analyses(merged, {*results.analyses, *spec.analyses, *(run.record.spec.analyses or [])})
