"""Read the prompts of a finished run, and their held-out scores along the direction of a contrast."""

from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np
import pandas as pd

from theodolite.errors import SpecError, TableNotFoundError
from theodolite.groups.separation import SCORES_TABLE
from theodolite.query.group_selection import label_list
from theodolite.sites import HALF_BLOCKS, Site, depth
from theodolite.store.manifest import finished_tables
from theodolite.store.prompts import read_prompts
from theodolite.store.result_reader import read_finished_table, read_group
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
    position: int


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
    position: int | None = None,
    *,
    order: Order = "sample",
    containing: str = "",
) -> ScoredPrompts:
    """Return the prompts of a set with their held-out scores.

    Args:
        run: a complete run.
        prompt_set: name of the set.
        contrast: a contrast of the set; None selects the first one.
        site: site in the block; None selects the site, and the layer, with the largest AUROC.
        layer: 0-based index of the block; None selects the layer with the largest AUROC at the site.
        position: token position from the end; None selects the last measured one.
        order: order of the rows; prompts without a score are last.
        containing: only prompts that contain this text, ignoring case.

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
        return ScoredPrompts(prompts.assign(score=np.nan, margin=np.nan), None)
    filters = [(name, "==", value) for name, value in vars(place).items()]
    scores = _standardised(read_finished_table(run, SCORES_TABLE, filters))
    own = scores[scores["set"] == prompt_set].drop_duplicates("sample")[["sample", "score", "margin"]]
    rows = prompts.merge(own, on="sample", how="left")
    if order != "sample":
        rows = rows.sort_values("margin", ascending=order == "margin", kind="stable", na_position="last")
    return ScoredPrompts(rows, place)


def read_prompt_path(
    run: Run, prompt_set: str, sample: int, contrast: str | None = None, position: int | None = None
) -> tuple[pd.DataFrame, Place]:
    """Return one prompt's score and margin at each depth, and the place of the largest AUROC.

    The table has the columns `site`, `layer`, `depth`, `score` and `margin`, and `low_…` and `high_…`: the 5 % and 95 %
    quantiles of the scores of the positive and of the negative set.

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
        raise TableNotFoundError(f"{run.id} has no scores of the prompts of {prompt_set}")
    filters = [("contrast", "==", place.contrast), ("position", "==", place.position)]
    scores = _standardised(read_finished_table(run, SCORES_TABLE, filters))
    places = ["site", "layer"]
    is_own = (scores["set"] == prompt_set) & (scores["sample"] == sample)
    path = scores[is_own].drop_duplicates(places)[[*places, "score", "margin"]]
    if path.empty:
        raise SpecError(
            f"sample: prompt {sample} of {prompt_set} has no score: it, or its partner in the other set, is "
            "quarantined, or its activations are not stored"
        )
    for side, of_side in scores.groupby("side", sort=False):
        by_place = of_side.groupby(places, sort=False)["score"]
        for end, share in (("low", 0.05), ("high", 0.95)):
            path = path.merge(by_place.quantile(share).rename(f"{end}_{side}").reset_index(), on=places)
    depths = [depth(Site(site), layer) for site, layer in zip(path["site"], path["layer"], strict=True)]
    return path.assign(depth=depths).sort_values("depth", kind="stable"), place


def _check_set(run: Run, prompt_set: str) -> None:
    """Raise SpecError if the run has no such prompt set."""
    if prompt_set not in run.record.sets:
        raise SpecError(f"set: {run.id} has no {prompt_set!r}; it has {', '.join(run.record.sets) or 'none'}")


def _standardised(scores: pd.DataFrame) -> pd.DataFrame:
    """Return scores in pooled standard deviations of the two sets at the same place, and the margins."""
    places = ["contrast", "position", "site", "layer"]
    variances = scores.groupby([*places, "side"], sort=False)["score"].var().groupby(places, sort=False).mean()
    deviations = np.sqrt(variances.rename("deviation").reset_index().set_index(places)["deviation"])
    scaled = scores.join(deviations, on=places)
    score = scaled["score"] / scaled["deviation"]
    return scores.assign(score=score, margin=score.where(scores["side"] == "positive", -score))


def _place(
    run: Run, prompt_set: str, contrast: str | None, site: str | None, layer: int | None, position: int | None
) -> Place | None:
    """Return where a set is scored; None if the run has no scores of the set and no contrast is requested."""
    if SCORES_TABLE not in finished_tables(run):
        if contrast is None:
            return None
        raise TableNotFoundError(
            f"{run.id} has no scores of single prompts: it has no group separation, or an older version computed it; "
            f"`theodolite analyse {run.id}` computes missing and outdated groups"
        )
    separation = read_group(run, "separation")
    sides = separation.attrs["contrasts"]
    own = [name for name, one in sides.items() if prompt_set in (one["positive"], one["negative"])]
    if contrast is None and not own:
        return None
    contrast = _known(run, "contrast", own, own[0] if contrast is None else contrast)
    of_contrast = separation.sel(contrast=contrast)
    measured = of_contrast["position"].values[(of_contrast["n_positive"] > 0).values].tolist()
    if not measured:
        return None
    position = _known(run, "position", measured, measured[-1] if position is None else position)
    auroc = of_contrast["auroc"].sel(position=position)
    sites, layers = auroc["site"].values.tolist(), auroc["layer"].values.tolist()
    candidates = [_known(run, "site", sites, site)] if site else [one for one in sites if one in HALF_BLOCKS] or sites
    by_place = auroc.sel(site=candidates, layer=layers if layer is None else [_known(run, "layer", layers, layer)])
    best = by_place.fillna(-1).stack(place=("site", "layer")).idxmax("place").item()
    return Place(contrast, str(best[0]), int(best[1]), position)


def _known(run: Run, name: str, existing: list[_Label], label: _Label) -> _Label:
    if label not in existing:
        raise SpecError(f"{name}: {run.id} has no {label!r} with scores; it has {label_list(existing)}")
    return label
