"""Read the prompts of a finished run, and their held-out scores along the direction of a contrast."""

from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np
import pandas as pd

from theodolite.errors import SpecError, TableNotFoundError
from theodolite.groups.schema import SIDES
from theodolite.groups.separation.record import MOST_SCORED, SCALES, SCORES
from theodolite.query.curves import end_of
from theodolite.query.group_selection import label_list
from theodolite.sites import HALF_BLOCKS, Site, depth, site_name
from theodolite.spec_parts import Label, same_labels
from theodolite.store.manifest import finished_groups, finished_tables
from theodolite.store.prompts import read_prompts
from theodolite.store.result_reader import read_contrasts, read_finished_table, read_group
from theodolite.store.runs import Run

_Label = TypeVar("_Label", str, int)

Order = Literal["sample", "margin", "-margin"]
"""Orders of prompts: as in the set, worst classified first, best classified first."""


@dataclass(frozen=True)
class Place:
    """Where prompts are scored: along the direction of a contrast at a site, layer and position."""

    contrast: str
    site: str
    layer: int
    position: Label


@dataclass(frozen=True)
class ScoredPrompts:
    """The prompts of a set, one row each, and where they are scored; None if they have no scores.

    The columns of `rows` are `sample`, `text`, `n_tokens`, `status`, `error`, `score` and `margin`. The score is the
    distance of the activation from the midpoint along the direction of the other folds, in pooled standard deviations
    of the two sets. The margin is the score with the sign of the prompt's own side: a negative margin is a wrong
    classification. Both are NaN without a score.
    """

    rows: pd.DataFrame
    place: Place | None


def read_scored_prompts(
    run: Run,
    prompt_set: str,
    contrast: str | None = None,
    site: str | None = None,
    layer: int | None = None,
    position: Label | None = None,
    *,
    order: Order = "sample",
    containing: str = "",
    low: float | None = None,
    high: float | None = None,
) -> ScoredPrompts:
    """Return the prompts of a set with their held-out scores.

    Args:
        run: a complete run.
        prompt_set: name of the set.
        contrast: a contrast of the set; None selects the first one.
        site: site in the block; None selects that of the best separation, of resid_pre and resid_mid if measured.
        layer: 0-based index of the block; None selects that of the best separation at the site: the largest share of
            pairs in order, or, if the contrast is not paired, the largest AUROC.
        position: token position from the end, or its name; None selects the last measured one.
        order: order of the rows; prompts without a score are last.
        containing: only prompts that contain this text, ignoring case.
        low: only prompts with a score of at least this.
        high: only prompts with a score of at most this.

    Raises:
        SpecError: there is no such set, contrast, site, layer or position.
        RunDamagedError: a table cannot be read.
    """
    _check_set(run, prompt_set)
    prompts = read_prompts(run, prompt_set).drop(columns="shard")
    if containing:
        prompts = prompts[prompts["text"].str.casefold().str.contains(containing.casefold(), regex=False)]
    place = _place(run, prompt_set, contrast, site, layer, position)
    if place is None:
        return ScoredPrompts(_between(prompts.assign(score=np.nan, margin=np.nan), low, high), None)
    # Only filters by numbers skip row groups.
    scores = read_finished_table(run, SCORES.name, [("layer", "==", place.layer), ("position", "==", place.position)])
    of_set = scores["set"] == prompt_set
    own = _standardised(run, scores[of_set & (scores["contrast"] == place.contrast) & (scores["site"] == place.site)])
    rows = prompts.merge(own.drop_duplicates("sample")[["sample", "score", "margin"]], on="sample", how="left")
    return ScoredPrompts(_ordered(_between(rows, low, high), order), place)


def read_contrast_prompts(
    run: Run,
    contrast: str | None = None,
    site: str | None = None,
    layer: int | None = None,
    position: Label | None = None,
    *,
    order: Order = "sample",
    containing: str = "",
    low: float | None = None,
    high: float | None = None,
) -> ScoredPrompts:
    """Return the prompts of both sets of a contrast; its rows begin with the columns `set` and `side`.

    The arguments are those of `read_scored_prompts`; no contrast selects the first one of the run. In the order
    `sample`, the positive set is before the negative one.

    Raises:
        SpecError: there is no such contrast, site, layer or position.
        RunDamagedError: a table cannot be read.
    """
    contrasts = read_contrasts(run, finished_groups(run))
    if not contrasts:
        raise SpecError(f"contrast: {run.id} has none; choose one of its prompt sets: {', '.join(run.record.sets)}")
    sides = contrasts[_known(run, "contrast", list(contrasts), contrast or next(iter(contrasts), ""))]
    chosen = (contrast, site, layer, position)
    found = {
        side: read_scored_prompts(run, sides[side], *chosen, containing=containing, low=low, high=high)
        for side in SIDES
    }
    of_sides = [of_side.rows.assign(set=sides[side], side=side) for side, of_side in found.items()]
    rows = pd.concat(of_sides, ignore_index=True)
    first = ["set", "side"]
    return ScoredPrompts(_ordered(rows[[*first, *rows.columns.drop(first)]], order), found[SIDES[0]].place)


def read_prompt_path(
    run: Run, prompt_set: str, sample: int, contrast: str | None = None, position: Label | None = None
) -> tuple[pd.DataFrame, Place]:
    """Return one prompt's score and margin at each depth, and the place of the best separation.

    The table has the columns `site`, `layer`, `depth`, `score` and `margin`, and `low_…` and `high_…`: the 5 % and 95 %
    quantiles of the scores of the positive and of the negative set. All are in pooled standard deviations.

    Raises:
        SpecError: there is no such set, prompt, contrast or position, or the prompt has no score.
        TableNotFoundError: the run has no scores of this set.
    """
    _check_set(run, prompt_set)
    n_prompts = run.record.sets[prompt_set].n_samples
    if not 0 <= sample < n_prompts:
        raise SpecError(f"sample: {prompt_set} has no {sample}; it has 0 to {n_prompts - 1}")
    place = _place(run, prompt_set, contrast, None, None, position)
    if place is None:
        raise TableNotFoundError(f"{run.id} has no scores of the prompts of {prompt_set}; {_remedy(run)}")
    scores = read_finished_table(run, SCORES.name, [("sample", "==", sample), ("position", "==", place.position)])
    own = scores[(scores["set"] == prompt_set) & (scores["contrast"] == place.contrast)]
    path = _standardised(run, own.drop_duplicates(["site", "layer"]))
    if path.empty:
        raise SpecError(
            f"sample: prompt {sample} of {prompt_set} has no score: it, or its partner in the other set, is "
            f"quarantined, or its activations are not stored, or it is not among the first {MOST_SCORED:,} prompts"
        )
    depths = [depth(Site(site), layer) for site, layer in zip(path["site"], path["layer"], strict=True)]
    ends = [f"{end}_{side}" for side in ("positive", "negative") for end in ("low", "high")]
    path = path.assign(depth=depths).sort_values("depth", kind="stable")
    return path[["site", "layer", "depth", "score", "margin", *ends]], place


def _between(rows: pd.DataFrame, low: float | None, high: float | None) -> pd.DataFrame:
    """Return the rows with a score between two ends, each of which may be None; without both, all rows."""
    if low is None and high is None:
        return rows
    return rows[rows["score"].between(-np.inf if low is None else low, np.inf if high is None else high)]


def _ordered(rows: pd.DataFrame, order: Order) -> pd.DataFrame:
    """Return the rows in an order; prompts without a score are last."""
    if order == "sample":
        return rows
    return rows.sort_values("margin", ascending=order == "margin", kind="stable", na_position="last")


def _check_set(run: Run, prompt_set: str) -> None:
    """Raise SpecError if the run has no such prompt set."""
    if prompt_set not in run.record.sets:
        raise SpecError(f"set: {run.id} has no {prompt_set!r}; it has {', '.join(run.record.sets) or 'none'}")


def _standardised(run: Run, scores: pd.DataFrame) -> pd.DataFrame:
    """Return scores, and the quantiles of both sets, in pooled standard deviations at the same place, and margins."""
    places = ["contrast", "position", "site", "layer"]
    strings = scores.astype({name: str for name in ("contrast", "site", "side", "set")})
    scaled = strings.merge(read_finished_table(run, SCALES.name), on=places, how="left")
    for name in ("score", "low_positive", "high_positive", "low_negative", "high_negative"):
        scaled[name] /= scaled["deviation"]
    return scaled.assign(margin=scaled["score"].where(scaled["side"] == "positive", -scaled["score"]))


def _place(
    run: Run, prompt_set: str, contrast: str | None, site: str | None, layer: int | None, position: Label | None
) -> Place | None:
    """Return where a set is scored; None if the run has no scores of the set and no place is requested."""
    is_requested = (contrast, site, layer, position) != (None, None, None, None)
    if SCORES.name not in finished_tables(run):
        if not is_requested:
            return None
        raise TableNotFoundError(f"{run.id} has no scores of single prompts; {_remedy(run)}")
    separation = read_group(run, "separation")
    sides = separation.attrs["contrasts"]
    own = [name for name, one in sides.items() if prompt_set in (one["positive"], one["negative"])]
    if not own and not is_requested:
        return None
    if not own and contrast is None:
        raise TableNotFoundError(f"{run.id} has no scores of {prompt_set}, because the set is in no contrast")
    contrast = _known(run, "contrast", own, own[0] if contrast is None else contrast)
    of_contrast = separation.sel(contrast=contrast)
    has_both = of_contrast["n_used"].all("prompt_side")
    measured = of_contrast["position"].values[has_both.values].tolist()
    if not measured:
        return None
    (chosen,) = same_labels([measured[-1] if position is None else position], measured)
    position = _known(run, "position", measured, chosen)
    statistic = "paired_accuracy" if sides[contrast]["paired"] else "auroc"  # as in the overview
    values = end_of(of_contrast[statistic]).sel(position=position)
    sites, layers = values["site"].values.tolist(), values["layer"].values.tolist()
    site = site_name(site) if site else None
    candidates = [_known(run, "site", sites, site)] if site else [one for one in sites if one in HALF_BLOCKS] or sites
    layers = [one for one in layers if any(run.record.has_site(Site(label), one) for label in candidates)]
    by_place = values.sel(site=candidates, layer=layers if layer is None else [_known(run, "layer", layers, layer)])
    best = by_place.fillna(-1).stack(place=("site", "layer")).idxmax("place").item()
    return Place(contrast, str(best[0]), int(best[1]), position)


def _remedy(run: Run) -> str:
    return f"it has no results of separation for it; `theodolite run analyse {run.id}` computes missing results"


def _known(run: Run, name: str, existing: list[_Label], label: _Label) -> _Label:
    if label not in existing:
        raise SpecError(f"{name}: {run.id} has no {label!r} with scores; it has {label_list(existing)}")
    return label
