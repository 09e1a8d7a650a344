"""The AUROC of a run minus that of its untrained twin on the same prompts, with a simultaneous band."""

from statistics import NormalDist

import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import NDArray

from theodolite.bands import half_of_difference, simultaneous_quantile
from theodolite.groups.separation import SCORES_TABLE
from theodolite.store.manifest import finished_groups
from theodolite.store.result_reader import read_finished_table, read_group
from theodolite.store.runs import Run

_SIDES = ("positive", "negative")
_PLACE = ["site", "layer"]
_TAIL = 0.025  # of a 95 % interval, on each side


def auroc_beyond_twin(run: Run, twin: Run, contrast: str) -> xr.Dataset:
    """Return `auroc_beyond_twin` and the ends of its 95 % band, `…_band_low` and `…_band_high`, for a contrast.

    The band holds at all sites and layers of a position at once. It combines the intervals of both AUROCs, each widened
    by `auroc_error_ratio`, with the correlation of their errors over prompts (Zou and Donner 2008). The errors of the
    fitted directions count as independent in both runs. NaN where one of the runs has no permutation tests.

    Args:
        run: a run with the group `separation`.
        twin: its untrained twin, with the same group and contrast.
        contrast: name of the contrast.

    Raises:
        StoreError: the scores of a run cannot be read.
    """
    runs = run, twin
    own, other = (read_group(one, "separation").sel(contrast=contrast, drop=True) for one in runs)
    value, paired = own["auroc"] - other["auroc"], bool(own.attrs["contrasts"][contrast]["paired"])
    half = {end: xr.full_like(value, np.nan) for end in ("low", "high")}
    if all("permutations" in finished_groups(one) for one in runs):
        ratios = [
            read_group(one, "permutations").sel(contrast=contrast, drop=True)["auroc_error_ratio"] for one in runs
        ]
        for position in value["position"].values.tolist():
            tables = [_scores(one, contrast, position) for one in runs]
            for place, correlation, quantile in _correlations(*tables, paired=paired):
                at = {"position": position, **place}
                factors = [float(ratio.sel(at)) for ratio in ratios]
                ends = [
                    _ends(side.sel(at), quantile * factor) for side, factor in zip((own, other), factors, strict=True)
                ]
                of_all = np.asarray(correlation / (factors[0] * factors[1]))
                for end, opposite in (("low", "high"), ("high", "low")):
                    half[end].loc[at] = half_of_difference(ends[0][end], ends[1][opposite], of_all)
    bounds = {"": value, "_band_low": value - half["low"], "_band_high": value + half["high"]}
    return xr.Dataset({f"auroc_beyond_twin{end}": bound.clip(-1, 1) for end, bound in bounds.items()})


def _ends(separation: xr.Dataset, quantile: float) -> dict[str, NDArray[np.float64]]:
    """Return how far an interval of an AUROC reaches below and above it at another quantile, from its 95 % interval.

    As in `separation_scores.auroc`, it is symmetric on the scale of log-odds, and that of an AUROC of 1 ends at
    (α/2)^(1/n).
    """
    value, low, high = (float(separation[f"auroc{end}"]) for end in ("", "_low", "_high"))
    normal = NormalDist()
    power = np.log(normal.cdf(-quantile)) / np.log(_TAIL)
    if value in (0, 1):
        return {"low": np.asarray(value - low**power if value else 0.0), "high": np.asarray(1 - (1 - high) ** power)}
    wide = quantile / normal.inv_cdf(1 - _TAIL)

    def moved(end: float) -> float:
        odds, at = np.log(value / (1 - value)), np.log(end / (1 - end)) if 0 < end < 1 else np.inf * (end - value)
        return float(1 / (1 + np.exp(-(odds + wide * (at - odds)))))

    return {"low": np.asarray(value - moved(low)), "high": np.asarray(moved(high) - value)}


def _correlations(
    own: pd.DataFrame, other: pd.DataFrame, *, paired: bool
) -> list[tuple[dict[str, object], float, float]]:
    """Return each place with the correlation of both runs' errors over common prompts, and the quantile of the band."""
    places, rows = own.columns.intersection(other.columns), own.index.intersection(other.index)
    if not len(places) or not set(_SIDES) <= set(rows.get_level_values("side")):
        return []
    terms = [_terms(table.loc[rows, places], paired=paired) for table in (own, other)]
    lengths = np.sqrt((terms[0] ** 2).sum(axis=0) * (terms[1] ** 2).sum(axis=0))
    correlations = (terms[0] * terms[1]).sum(axis=0) / np.where(lengths > 0, lengths, np.inf)
    quantile = simultaneous_quantile(terms[0] - terms[1])
    return [
        (dict(zip(_PLACE, place, strict=True)), float(correlation), quantile)
        for place, correlation in zip(places, correlations, strict=True)
    ]


def _scores(run: Run, contrast: str, position: int) -> pd.DataFrame:
    """Return the held-out scores of a contrast at a position: one row for each prompt, one column for each place."""
    table = read_finished_table(run, SCORES_TABLE, [("position", "==", position)])
    table = table[table["contrast"] == contrast].astype({"site": str, "side": str})
    return table.pivot(index=["side", "sample"], columns=_PLACE, values="score").dropna(axis=1)


def _terms(scores: pd.DataFrame, *, paired: bool) -> NDArray[np.float64]:
    """Return the terms of the error of the AUROC, (row, place), as `separation_scores.auroc_terms` does."""
    ranks = scores.rank()
    positive, negative = (
        (ranks.xs(side, level="side") - scores.xs(side, level="side").rank()).to_numpy() for side in _SIDES
    )
    wins = positive / len(negative), -negative / len(positive)
    parts = [wins[0] + wins[1]] if paired else wins
    return np.concatenate([(part - part.mean(axis=0)) / np.sqrt(len(part) * max(len(part) - 1, 1)) for part in parts])
