"""List and describe the runs of a store, and report their progress."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from pydantic import ValidationError

from theodolite.errors import RunDamagedError, RunNotFoundError, StoreError, StoreVersionError
from theodolite.groups import ANALYSES, GROUPS
from theodolite.query.first_tokens import n_first_tokens
from theodolite.query.parity import parity_notes, spot_check_notes
from theodolite.query.partial_sites import partial_site_notes
from theodolite.spec import SurveySpec
from theodolite.store.cache import Cache
from theodolite.store.commits import committed_indices, read_commits
from theodolite.store.labels import Labels, all_labels, read_labels
from theodolite.store.manifest import finished_groups, finished_tables, unfinished_groups, unfinished_request
from theodolite.store.result_reader import read_attributes, read_contrasts
from theodolite.store.runs import Run, find_run, list_run_ids


def run_state(run: Run) -> str:
    """Return a run's state: `complete`, `captured` (only results are missing), or `capturing`.

    A complete run is `captured` again while results that were requested later are computed.
    """
    if finished_groups(run):
        return "complete" if unfinished_request(run) is None else "captured"
    done = sum(len(committed_indices(run, name)) for name in run.record.sets)
    return "captured" if done == sum(facts.n_shards for facts in run.record.sets.values()) else "capturing"


def run_name(run: Run, labels: Labels) -> str | None:
    """Return the name of a run: the one in its labels, or else that of its spec; None if it has neither."""
    return labels.name or run.record.spec.name


def run_id_of(store: str, given: str) -> str:
    """Return the id of a run from its id, or from its name if no other run has it.

    A text that is neither is returned as it is: `open_run` then says which runs exist.

    Raises:
        RunNotFoundError: several runs have this name; the message lists their ids.
    """
    if given in list_run_ids(store):
        return given
    named = [str(item["run_id"]) for item in summaries(store) if item["name"] == given]
    if len(named) > 1:
        raise RunNotFoundError(f"{len(named)} runs have the name {given!r}; give the id of one: {', '.join(named)}")
    return named[0] if named else given


def summary(run: Run, labels: Labels) -> dict[str, Any]:
    """Return the short description of a run that lists show; a name among its labels replaces that of its spec."""
    finished = finished_groups(run)
    return {
        "run_id": run.id,
        "name": run_name(run, labels),
        "tags": list(labels.tags),
        "model": run.record.model.name,
        "sets": {name: facts.n_samples for name, facts in run.record.sets.items()},
        "contrasts": list(read_contrasts(run, finished)),
        "analyses": sorted(finished),
        "unfinished": unfinished_groups(run),
        "state": run_state(run),
        "created": run.record.created.isoformat(),
    }


def summaries(store: str, cache: Cache | None = None) -> list[dict[str, Any]]:
    """Return a short description of each run of a store, newest first.

    A run that cannot be read has the state `damaged` or `unreadable` and a reason; the other runs are listed as usual.
    """
    labels = all_labels(store)
    items = [_summary_or_reason(store, run_id, cache, labels.get(run_id, Labels())) for run_id in list_run_ids(store)]
    return sorted((item for item in items if item), key=lambda item: str(item["created"]), reverse=True)


def select_summaries(
    items: Sequence[Mapping[str, Any]],
    model: str | None = None,
    contrast: str | None = None,
    *,
    incomplete: bool = False,
) -> list[dict[str, Any]]:
    """Return the short descriptions of the runs with finished results, or of all runs if `incomplete`.

    Args:
        items: short descriptions.
        model: only models whose name contains this text, ignoring case.
        contrast: only runs with this contrast.
        incomplete: whether to include runs without finished results.
    """
    return [
        dict(run)
        for run in items
        if (incomplete or run["analyses"])
        and (model is None or model.lower() in str(run["model"]).lower())
        and (contrast is None or contrast in run["contrasts"])
    ]


def _summary_or_reason(store: str, run_id: str, cache: Cache | None, labels: Labels) -> dict[str, Any] | None:
    """Return a short description, or the reason why the run is unreadable, or None if it has no run.json yet."""
    unknown: dict[str, Any] = {"run_id": run_id, "name": labels.name, "tags": list(labels.tags)}
    unknown |= {"model": None, "created": "", "sets": {}, "contrasts": [], "analyses": [], "unfinished": []}
    try:
        run = find_run(store, run_id, cache)
        return None if run is None else summary(run, labels)
    except StoreVersionError as error:
        return {**unknown, "state": "unreadable", "reason": str(error)}
    except StoreError as error:
        return {**unknown, "state": "damaged", "reason": str(error)}


def progress(run: Run) -> dict[str, dict[str, int]]:
    """Return the number of committed prompts and of all prompts of each set: `done` and `total`."""
    is_complete = bool(finished_groups(run))  # then every prompt is committed, and there is no need to count

    def done(name: str, n_samples: int) -> int:
        if is_complete:
            return n_samples
        bounds = (run.record.bounds(name).of(index) for index in committed_indices(run, name))
        return sum(stop - start for start, stop in bounds)

    sets = {name: facts.n_samples for name, facts in run.record.sets.items()}
    return {name: {"done": done(name, total), "total": total} for name, total in sets.items()}


def describe_results(run: Run) -> dict[str, Any]:
    """Return the API's description of a run: `describe` without the report's URL, plus each contrast's two sets."""
    content = {name: value for name, value in describe(run).items() if name != "report"}
    return {**content, "contrast_sets": read_contrasts(run, finished_groups(run))}


def describe(run: Run) -> dict[str, Any]:
    """Return the full description of a run: spec, model, parity certificate, progress, analyses."""
    labels = read_labels(run)
    short = summary(run, labels)
    captured = {name: _captured(run, name, is_complete=short["state"] == "complete") for name in run.record.sets}
    n_quarantined = {name: int(facts["quarantined"]) for name, facts in captured.items()}
    return {
        **short,
        "remarks": labels.remarks,
        "report": run.report,
        "digest": run.record.digest,
        "model": run.record.model.model_dump(),
        "capture": run.record.spec.capture.model_dump(mode="json"),
        "sets": {
            name: {**facts.model_dump(exclude_defaults=True), **captured[name]}
            for name, facts in run.record.sets.items()
        },
        "notes": list(_notes(run, n_quarantined)),
        "parity": run.record.parity,
        "parity_notes": [*parity_notes(run.record.parity), *spot_check_notes(captured)],
        "versions": run.record.versions,
        "spec": run.record.spec.model_dump(mode="json", exclude_defaults=True),
        # Another version may have written a group that this one does not know.
        "results": {
            name: {one.name: list(one.dims) for one in GROUPS[name].variables} if name in GROUPS else {}
            for name in short["analyses"]
        },
        "tables": finished_tables(run),
    }


def _captured(run: Run, name: str, *, is_complete: bool) -> dict[str, float]:
    """Return a set's numbers of committed shards, quarantined prompts and spot checks, and their largest error."""

    def read() -> dict[str, float]:
        commits = read_commits(run, name).values()
        return {
            "shards_committed": len(commits),
            "quarantined": sum(len(commit.quarantined) for commit in commits),
            "spot_checks": sum(commit.spot_checks for commit in commits),
            "spot_checks_rerouted": sum(commit.spot_checks_rerouted for commit in commits),
            "spot_check_error": max((commit.spot_check_error for commit in commits), default=0.0),
        }

    # A large run has thousands of commit records, and those of a complete run never change.
    return run.cached(("captured", name, run.record.created), read, lambda _: 500) if is_complete else read()


def _notes(run: Run, n_quarantined: Mapping[str, int]) -> Iterator[str]:
    """Yield the survey's warnings, the reasons for missing values, and remarks on reduced shards and first tokens."""
    yield from run.record.warnings
    yield from partial_site_notes(run.record)
    for name, facts in run.record.sets.items():
        kept = run.record.bounds(name).n_kept
        if kept < facts.n_samples:
            yield (
                f"the activations of the first {kept} of the {facts.n_samples} prompts of the set “{name}” are stored; "
                "separation, Gram matrices and the inputs of heads use these alone"
            )
        usable = facts.n_samples - n_quarantined[name]
        for position in facts.positions:
            first = n_first_tokens(run, name, position)
            if not first:
                continue
            yield (
                f"position {position} has the first token of {first} of the "
                f"{facts.n_samples} prompts of the set “{name}”; in many models the first token has a very large norm "
                "(an attention sink), so a statistic over these prompts describes the sink more than the prompts"
            )
        if run.record.spec.sets[name].positions == "all" or usable > 1:
            continue
        if usable == 1:
            yield f"{name} has one usable prompt: variances and intervals need two, so they are NaN"
        else:
            yield f"{name} has no usable prompt: all {facts.n_samples} are quarantined, so its statistics are NaN"


def spec_of_results(run: Run) -> SurveySpec:
    """Return the spec that requests all finished results of a run, also those that were requested after its capture.

    If the attributes of a group are damaged, its options are those of run.json.
    """
    spec, finished, changes = run.record.spec, finished_groups(run), dict[str, Any]()
    for name, group in GROUPS.items():
        # The group with the name of the section decides; without it, for example `travel` has the options of `gram`.
        if group.options and name in finished and (group.options == name or group.options not in finished):
            with suppress(RunDamagedError, KeyError):  # `composition` and `rotary` have none
                changes[group.options] = read_attributes(run, name)["options"]
    if "composition" in finished:  # later options of `heads` may not request it
        with suppress(RunDamagedError):
            heads = changes.get("heads", spec.heads.model_dump(mode="json"))
            changes["heads"] = {**heads, "composition": read_attributes(run, "composition")["layers"]}
    with suppress(RunDamagedError):
        changes["contrasts"] = read_contrasts(run, finished)
    results = SurveySpec.model_validate({**spec.model_dump(mode="json"), **changes, "analyses": None})
    return results if spec.analyses is None else with_analyses(results, {*finished, *spec.analyses})


def with_analyses(spec: SurveySpec, names: Collection[str]) -> SurveySpec:
    """Return the spec with those analyses that it can name.

    For example, it cannot name `words` if it requests no vectors, and an analysis of contrasts if it has none.
    """
    if "effects" not in names:  # a list that leaves it out allows no options of it
        spec = spec.model_copy(update={"effects": None})
    content = spec.model_dump(mode="json")

    def is_allowed(name: str) -> bool:
        try:
            effects = content["effects"] if name == "effects" else None
            SurveySpec.model_validate({**content, "analyses": [name], "effects": effects})
        except ValidationError:
            return False
        return True

    return spec.model_copy(update={"analyses": [name for name in ANALYSES if name in names and is_allowed(name)]})
