"""Compare the same statistic of several runs on relative depth, for the figure, the table and the API."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import xarray as xr

from theodolite.errors import ResultsNotFoundError, SpecError, StoreError, TableNotFoundError
from theodolite.groups.schema import ESTIMATE, LEVEL, SIDES
from theodolite.query.auroc_difference import auroc_difference
from theodolite.query.curves import along_depth, canonical_name, onset, unknown_statistic
from theodolite.query.group_selection import measured_positions
from theodolite.query.profiles import PROFILES
from theodolite.query.prompts import Place, read_contrast_prompts
from theodolite.query.runs import run_name, run_state
from theodolite.sites import HALF_BLOCKS, Site, depth, depth_label, site_name
from theodolite.spec_parts import Label, same_labels
from theodolite.store.labels import read_labels
from theodolite.store.manifest import finished_groups
from theodolite.store.prompts import read_prompts
from theodolite.store.result_reader import read_contrasts, read_group
from theodolite.store.runs import Run

BOUND = 0.95
"""Default for the smallest AUROC of two separated sets."""

FIRST = ("auroc", "cosine_of_means_debiased")
"""The statistics that a question without one compares."""


@dataclass(frozen=True)
class Question:
    """The selection of the compared curve; None selects the only label of each run.

    Attributes:
        statistic: one of `PROFILES`; None selects those of `FIRST` that all runs have.
        contrast: the contrast, for a statistic of contrasts and for the milestones.
        prompt_set: the prompt set, for a statistic of prompt sets.
        site: the site; None selects those of resid_pre and resid_mid that were measured.
        position: the token position; None selects each run's last measured one, since chat templates differ.
        contrasts: by run id, the contrasts of runs that have another contrast than `contrast`.
    """

    statistic: str | None = None
    contrast: str | None = None
    prompt_set: str | None = None
    site: str | None = None
    position: Label | None = None
    contrasts: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "statistic", canonical_name(self.statistic) if self.statistic else None)
        object.__setattr__(self, "site", site_name(self.site) if self.site else None)

    def to(self, run: Run) -> "Question":
        """Return the question to one run."""
        return replace(self, contrast=self.contrasts.get(run.id, self.contrast))


def contrast_choices(given: Sequence[str], run_ids: Sequence[str]) -> dict[str, Any]:
    """Return the fields `contrast` and `contrasts` of a question from texts `CONTRAST` and `RUN:CONTRAST`.

    Raises:
        SpecError: there are two contrasts for one run, or a run is not among the compared ones.
    """
    pairs = [one.rpartition(":")[::2] for one in given]
    if len(dict(pairs)) < len(pairs):
        raise SpecError("contrast: given twice for the same run; RUN:CONTRAST is the contrast of one run")
    contrasts = dict(pairs)
    contrast = contrasts.pop("", None)
    if unknown := contrasts.keys() - set(run_ids):
        raise SpecError(f"contrast: given for {min(unknown)}, which is not one of the compared runs")
    return {"contrast": contrast, "contrasts": contrasts}


def comparison(runs: Sequence[Run], question: Question) -> pd.DataFrame:
    """Return a curve of each run for each statistic as a table, one row for each point, in the order of depth.

    The columns are `run_id`, the run's `name`, `model`, its sizes `d_model` and `d_head` (that of the layer, if layers
    differ), `statistic`, `contrast` (empty for a statistic without one), `site` (empty for a statistic of whole blocks,
    which has the depth of the block's input), `layer`, `position` (missing for a statistic of weights), `depth` (0-pre
    is 0, 0-mid is 1), `relative_depth` (1 is the end of the last block), `value`, and `low` and `high` of its 95 %
    interval, NaN without an interval.

    Raises:
        SpecError: there is no such statistic, or a run lacks the contrast, set, site or position.
        StoreError: a run is not complete, or lacks the group of the statistic.
    """
    of_each = [replace(question, statistic=name) for name in statistics_of(runs, question)]
    return _typed(pd.concat([_curve(run, one.to(run)) for one in of_each for run in runs], ignore_index=True))


def statistics_of(runs: Sequence[Run], question: Question) -> list[str]:
    """Return the names of the compared statistics; raises SpecError if there is no such statistic."""
    if question.statistic is None:
        return [name for name in FIRST if all(_has(run, name, question.to(run)) for run in runs)] or [FIRST[-1]]
    if question.statistic not in PROFILES:
        raise unknown_statistic(question.statistic, PROFILES)
    return [question.statistic]


def difference(runs: Sequence[Run], question: Question) -> pd.DataFrame | None:
    """Return the AUROC of the first run minus that of the second along depth, with its simultaneous 95 % band.

    The columns are `depth`, `relative_depth`, `value`, `low` and `high`; the ends are NaN if a run has no permutation
    tests. See `auroc_difference`. It is None unless there are two runs with the AUROC of the same prompts, at the same
    position, in models with the same number of blocks.

    Raises:
        SpecError: a run lacks the contrast, site or position.
        StoreError: the scores or prompts of a run cannot be read.
    """
    if len(runs) != 2 or "auroc" not in statistics_of(runs, question):
        return None
    first, second = runs
    places = [_select(run, read_group(run, "separation"), replace(question.to(run), statistic="auroc")) for run in runs]
    own, other = ((str(one["contrast"].values), one["position"].item()) for one in places)
    if len({run.record.model.n_layers for run in runs}) > 1:
        return None
    if not _are_at_one_position(runs, own, other) or not _have_same_texts(runs, own[0]):
        return None
    try:
        values = auroc_difference(first, second, own[0]).sel(position=own[1])
    except TableNotFoundError:
        return None
    values = values.sel(site=np.intersect1d(values["site"], places[0]["site"]))
    ends = {"value": "value", "low": "band_low", "high": "band_high"}
    frame = pd.DataFrame({name: along_depth(values, end).to_series() for name, end in ends.items()})
    relative = [_relative_depth(first, half_blocks) for half_blocks in frame.index]
    return frame.assign(relative_depth=relative).rename_axis("depth").reset_index()


class ComparedScores(NamedTuple):
    """The held-out score of each prompt in two runs.

    Attributes:
        rows: `side`, `sample`, and `first` and `second`: the scores in pooled standard deviations of the run.
        places: where the first and the second run are scored, such as `layer 28 mid, position -1`.
    """

    rows: pd.DataFrame
    places: tuple[str, str]


def compared_scores(runs: Sequence[Run], question: Question) -> ComparedScores | None:
    """Return the held-out score of each prompt in two runs, each where the run separates best.

    It is None unless there are two runs with scores of the same prompts.

    Raises:
        SpecError: a run lacks the contrast or position.
        StoreError: the scores or prompts of a run cannot be read.
    """
    if len(runs) != 2 or "auroc" not in statistics_of(runs, question):
        return None
    of_runs = [replace(question.to(run), statistic="auroc") for run in runs]
    places = [_select(run, read_group(run, "separation"), one) for run, one in zip(runs, of_runs, strict=True)]
    (contrast, other), positions = (
        [str(one["contrast"].values) for one in places],
        [one["position"].item() for one in places],
    )
    if contrast != other or not _have_same_texts(runs, contrast):
        return None
    try:
        found = [
            read_contrast_prompts(run, contrast, position=position)
            for run, position in zip(runs, positions, strict=True)
        ]
    except TableNotFoundError:
        return None
    first, second = (one.rows.set_index(["side", "sample"])["score"] for one in found)
    scores = pd.DataFrame({"first": first, "second": second}).replace([np.inf, -np.inf], np.nan)
    of_first, of_second = (_place_text(one.place) for one in found)
    return ComparedScores(scores.dropna().reset_index(), (of_first, of_second))


def _place_text(place: Place | None) -> str:
    assert place is not None, "prompts with scores are scored somewhere"
    return f"layer {place.layer} {place.site.removeprefix('resid_')}, position {place.position}"


def _has(run: Run, statistic: str, question: Question) -> bool:
    """Return whether a run has a statistic of contrasts for the contrast of a question."""
    group = PROFILES[statistic].group
    if group not in finished_groups(run):
        return False
    return question.contrast is None or question.contrast in read_group(run, group)["contrast"].values


def _are_at_one_position(runs: Sequence[Run], own: tuple[str, Label], other: tuple[str, Label]) -> bool:
    """Return whether two contrasts have one name, and their positions are found in the same way in both runs."""
    (contrast, _), meanings = own, []
    if contrast != other[0]:
        return False
    for run, (_, position) in zip(runs, (own, other), strict=True):
        sides = read_contrasts(run, finished_groups(run))[contrast]
        meanings.append([run.record.spec.position_of(str(sides[side]), position) for side in SIDES])
    return meanings[0] == meanings[1]


def _have_same_texts(runs: Sequence[Run], contrast: str) -> bool:
    """Return whether a contrast compares the same texts in both runs."""
    of_runs = [read_contrasts(run, finished_groups(run))[contrast] for run in runs]
    if of_runs[0]["paired"] != of_runs[1]["paired"]:
        return False
    ours, theirs = (
        [read_prompts(run, str(sides[side]))["text"] for side in SIDES]
        for run, sides in zip(runs, of_runs, strict=True)
    )
    return all(one.equals(other) for one, other in zip(ours, theirs, strict=True))


def milestones(runs: Sequence[Run], question: Question, bound: float = BOUND) -> pd.DataFrame:
    """Return one row for each run: the depths of the smallest debiased cosine and of the separation.

    `least_cosine_low` and `least_cosine_high` are the ends of the simultaneous band at the smallest cosine.
    Sets separate at the first depth from which on the lower end of the simultaneous band of the cross-validated AUROC
    is at least `bound`. `separates_at` is `never` if there is no such depth, and `not measured` if the run lacks the
    group. `largest_auroc_low` is the largest lower end over all depths; few prompts limit it. `above_chance_at` is
    the first depth at which the AUROC exceeds that of permuted labels. `least_cosine_at` is `not resolved` if there are
    too few prompts for the debiased cosine. The statistic and the set of the question are ignored.

    Raises:
        SpecError: a run lacks the contrast, site or position.
        StoreError: a run is not complete.
    """
    rows = [_milestones(run, question.to(run), bound) for run in runs]
    return _typed(pd.DataFrame(rows))


def known_milestones(runs: Sequence[Run], question: Question, bound: float = BOUND) -> list[dict[str, Any]]:
    """Return the rows of `milestones`, or none if a run has several contrasts and the question names none of them."""
    try:
        return records(milestones(runs, question, bound))
    except SpecError:
        if question.contrast is not None or question.contrasts:
            raise
        return []


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return a table's rows as dictionaries of JSON types; a missing value is None."""
    plain: list[dict[str, Any]] = frame.astype(object).where(frame.notna(), None).to_dict("records")  # type: ignore[assignment]
    return plain


def labels(frame: pd.DataFrame) -> dict[str, str]:
    """Return the label of each run of a comparison.

    It is the run's model, with the run's name if runs share a model (with part of its id, if runs share the name too),
    and with the contrast if contrasts differ.
    """
    of_runs = frame.drop_duplicates("run_id").set_index("run_id")
    runs_of, named = Counter(of_runs["model"]), Counter(zip(of_runs["model"], of_runs["name"], strict=True))
    differ = of_runs["contrast"].nunique() > 1
    found = {}
    for run_id, model, name, contrast in of_runs[["model", "name", "contrast"]].itertuples():
        own = name if name and named[model, name] == 1 else str(run_id).rsplit("-", 1)[-1][:6]
        label = f"{model} ({own})" if runs_of[model] > 1 else model
        found[str(run_id)] = f"{label}, {contrast}" if differ and contrast else label
    return found


def _curve(run: Run, question: Question) -> pd.DataFrame:
    assert question.statistic is not None
    profile = PROFILES[question.statistic]
    group = _read(run, profile.group)
    selected = _select(run, group, question)
    if not selected["value"].size:
        raise ResultsNotFoundError(
            f"{run.id}: no norm layer reads the stream before attention or the MLP, so {question.statistic} has no "
            "depth"
        )
    points = selected.to_dataframe().reset_index()
    sites = points.get("site", pd.Series("", points.index))
    depths = [depth(Site(site or Site.RESID_PRE), layer) for site, layer in zip(sites, points["layer"], strict=True)]
    columns = {
        "run_id": run.id,
        "name": run_name(run, read_labels(run)) or "",
        "model": run.record.model.name,
        "d_model": run.record.model.d_model,
        "d_head": _head_widths(run, points["layer"]),
        "statistic": question.statistic,
        "contrast": str(selected["contrast"].values) if "contrast" in selected.coords else "",
        "site": sites,
        "layer": points["layer"],
        "position": points.get("position", pd.NA),
        "depth": depths,
        "relative_depth": [_relative_depth(run, half_blocks) for half_blocks in depths],
        **{name: points.get(name, np.nan) for name in ("value", "low", "high")},
    }
    return pd.DataFrame(columns).sort_values("depth", kind="stable")


def _typed(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a table with positions as numbers, or as texts if a run has named ones."""
    are_numbers = all(isinstance(label, int | np.integer) for label in frame["position"].dropna())
    return frame.astype({"position": "Int64" if are_numbers else "str"})


def _milestones(run: Run, question: Question, bound: float) -> dict[str, Any]:
    row = {
        "run_id": run.id,
        "model": run.record.model.name,
        "contrast": "",
        "position": None,
        "least_cosine": np.nan,
        "least_cosine_low": np.nan,
        "least_cosine_high": np.nan,
        "least_cosine_at": "not measured",
        "least_cosine_relative_depth": np.nan,
        "separates_at": "not measured",
        "separates_relative_depth": np.nan,
        "largest_auroc": np.nan,
        "largest_auroc_at": "not measured",
        "largest_auroc_low": np.nan,
        "above_chance_at": "not measured",
    }
    curves = _read(run, "curves")
    if question.contrast is None and not curves.sizes["contrast"]:
        return row
    question = replace(question, prompt_set=None, statistic="cosine_of_means_debiased")
    selected = _select(run, curves, question)
    cosine = along_depth(selected["value"])
    contrast, position = str(selected["contrast"].values), selected["position"].item()
    row |= {"contrast": contrast, "position": position, "least_cosine_at": "not resolved"}
    if np.isfinite(cosine).any():
        smallest = cosine[int(np.nanargmin(cosine.values))]
        row |= {"least_cosine": smallest.item(), **_at_depth(run, "least_cosine", int(smallest["depth"]))}
        for end in ("low", "high"):
            row[f"least_cosine_{end}"] = along_depth(selected[f"band_{end}"]).sel(depth=smallest["depth"]).item()
    if "separation" not in finished_groups(run):
        return row
    separation = read_group(run, "separation")
    if contrast not in separation["contrast"].values:
        return row
    question = replace(question, contrast=contrast, position=position, statistic="auroc")
    of_sites = _select(run, separation, question)
    # A band, since the first depth at which sets separate is chosen among all depths.
    low, auroc = along_depth(of_sites["band_low"]), along_depth(of_sites["value"])
    known = low[np.isfinite(low.values)]
    first = onset(known.values >= bound)
    if np.isfinite(auroc).any():
        best = auroc[int(np.nanargmax(auroc.values))]
        row |= {"largest_auroc": best.item(), "largest_auroc_at": depth_label(int(best["depth"]))}
    else:
        row["largest_auroc_at"] = "not resolved"
    row |= {"largest_auroc_low": low.max().item(), "above_chance_at": _above_chance(run, of_sites["value"])}
    if first is None:
        return row | {"separates_at": "never"}
    return row | _at_depth(run, "separates", int(known["depth"][first]))


def _above_chance(run: Run, auroc: xr.DataArray) -> str:
    """Return the first depth at which the AUROC, (site, layer), exceeds that of permuted labels."""
    if "permutations" not in finished_groups(run):
        return "not measured"
    p_family = read_group(run, "permutations")["tested_null"].sel(tested="auroc", null="p_family")
    labels = {dim: auroc[dim].values for dim in ("contrast", "position", "site")}
    if not all(np.isin(wanted, p_family[dim].values).all() for dim, wanted in labels.items()):
        return "not measured"
    p = along_depth(p_family.sel(labels))
    if not np.isfinite(p).any():
        return "not measured"
    above = p["depth"].values[p.values <= LEVEL].tolist()
    return depth_label(above[0]) if above else "never"


def _at_depth(run: Run, what: str, half_blocks: int) -> dict[str, Any]:
    return {f"{what}_at": depth_label(half_blocks), f"{what}_relative_depth": _relative_depth(run, half_blocks)}


def _head_widths(run: Run, layers: pd.Series) -> int | pd.Series:
    widths = run.record.model.head_widths
    return run.record.model.d_head if widths is None else layers.map(dict(enumerate(widths)))


def _relative_depth(run: Run, half_blocks: int) -> float:
    return half_blocks / (2 * run.record.model.n_layers)


def _read(run: Run, group: str) -> xr.Dataset:
    finished = finished_groups(run)
    if not finished:
        state = run_state(run)
        raise StoreError(
            f"{run.id} is not complete: its state is {state}; resume it with `theodolite survey`, or leave it out"
        )
    if group not in finished:
        raise ResultsNotFoundError(
            f"{run.id} has no results {group!r}; survey it again with analyses: [{group}], or leave it out"
        )
    return read_group(run, group)


def _select(run: Run, group: xr.Dataset, question: Question) -> xr.Dataset:
    """Return `value`, and the ends of the interval and the band if there are any, at one place."""
    assert question.statistic is not None
    profile = PROFILES[question.statistic]
    values = profile.read(group[profile.variable])
    selected = values.to_dataset(ESTIMATE) if ESTIMATE in values.dims else values.to_dataset(name="value")
    if question.prompt_set is not None and "set" not in selected.dims:
        raise SpecError(
            f"set: given {question.prompt_set!r}, but {question.statistic} is no statistic of single sets; leave it out"
        )
    if question.site is not None and "site" not in selected.dims:
        raise SpecError(
            f"site: given {question.site!r}, but {question.statistic} is a statistic of whole blocks; leave it out"
        )
    for dim, given in (("contrast", question.contrast), ("set", question.prompt_set)):
        if dim in selected.dims:
            selected = selected.sel({dim: _only(run, dim, selected[dim].values.tolist(), given)})
    if "site" in selected.dims:  # parallel blocks have no resid_mid: their MLP's norm has no depth of its own
        captured = run.record.spec.capture.all_sites
        selected = selected.sel(site=[site for site in selected["site"].values.tolist() if site in captured])
        selected = selected.sel(site=_sites(run, selected["site"].values.tolist(), question.site))
    if "position" not in selected.dims:
        return selected
    return selected.sel(position=_position(run, selected["value"], question.position))


def _only(run: Run, dim: str, names: list[str], given: str | None) -> str:
    allowed = ", ".join(names) or "none"
    if given is None and len(names) != 1:
        raise SpecError(f"{dim}: not given, and {run.id} has {len(names)}; choose one of: {allowed}")
    if given is not None and given not in names:
        raise SpecError(f"{dim}: {run.id} has no {given!r}; it has: {allowed}")
    return given or names[0]


def _sites(run: Run, names: list[str], given: str | None) -> list[str]:
    chosen = [name for name in names if (name in HALF_BLOCKS if given is None else name == given)]
    if not chosen:
        wanted = "neither resid_pre nor resid_mid" if given is None else f"no {given!r}"
        raise SpecError(f"site: {run.id} has {wanted}; it has: {', '.join(names)}")
    return chosen


def _position(run: Run, values: xr.DataArray, given: Label | None) -> Label:
    known = measured_positions(values)
    (position,) = same_labels([known[-1] if given is None else given], known)
    if position not in known:
        raise SpecError(f"position: {run.id} has no values at {given}; it has: {', '.join(map(str, known))}")
    return position
