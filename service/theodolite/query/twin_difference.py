"""The AUROC of a run minus that of its untrained twin on the same prompts, with a simultaneous band."""

from statistics import NormalDist

import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import NDArray

from theodolite.bands import simultaneous_quantile
from theodolite.groups.separation import SCORES_TABLE
from theodolite.store.manifest import finished_groups
from theodolite.store.result_reader import read_finished_table, read_group
from theodolite.store.runs import Run

_SIDES = ("positive", "negative")
_PLACE = ["position", "site", "layer"]


def auroc_beyond_twin(run: Run, twin: Run, contrast: str) -> xr.Dataset:
    """Return `auroc_beyond_twin` and the ends of its 95 % band, `…_band_low` and `…_band_high`, for a contrast.

    The band holds at all sites and layers of a position at once, as that of `auroc_beyond_words` does: it combines the
    intervals of both AUROCs, each widened by `auroc_error_ratio`, with the correlation of their errors over prompts
    (Zou and Donner 2008). NaN where one of the runs has no permutation tests.

    Args:
        run: a run with the group `separation`.
        twin: its untrained twin, with the same group and contrast.
        contrast: name of the contrast.
    """
    own, other = (read_group(one, "separation").sel(contrast=contrast, drop=True) for one in (run, twin))
    value, paired = own["auroc"] - other["auroc"], bool(own.attrs["contrasts"][contrast]["paired"])
    half = {end: xr.full_like(value, np.nan) for end in ("low", "high")}
    if all("permutations" in finished_groups(one) for one in (run, twin)):
        tables = [_scores(one, contrast) for one in (run, twin)]
        widths = [_widths(one, side, contrast) for one, side in ((run, own), (twin, other))]
        for position in own["position"].values.tolist():
            for place, correlation, quantile in _correlations(tables, position, paired=paired):
                one, control = ({end: float(width[end].sel(place)) for end in width} for width in widths)
                for end, opposite in (("low", "high"), ("high", "low")):
                    square = one[end] ** 2 + control[opposite] ** 2 - 2 * correlation * one[end] * control[opposite]
                    half[end].loc[place] = quantile / NormalDist().inv_cdf(0.975) * np.sqrt(max(square, 0))
    ends = {"": value, "_band_low": value - half["low"], "_band_high": value + half["high"]}
    return xr.Dataset({f"auroc_beyond_twin{end}": values for end, values in ends.items()})


def _widths(run: Run, separation: xr.Dataset, contrast: str) -> dict[str, xr.DataArray]:
    """Return how far the interval of the AUROC reaches below and above it, with the error of the fitted directions."""
    ratio = read_group(run, "permutations").sel(contrast=contrast, drop=True)["auroc_error_ratio"]
    return {end: ratio * abs(separation["auroc"] - separation[f"auroc_{end}"]) for end in ("low", "high")}


def _correlations(
    tables: list[pd.DataFrame], position: int, *, paired: bool
) -> list[tuple[dict[str, object], float, float]]:
    """Return each place of a position with the correlation of both runs' errors, and the quantile of the band.

    Only prompts count that both runs have.
    """
    here = [table.loc[:, table.columns.get_level_values("position") == position].dropna(axis=1) for table in tables]
    places, rows = here[0].columns.intersection(here[1].columns), here[0].index.intersection(here[1].index)
    if not len(places) or not set(_SIDES) <= set(rows.get_level_values("side")):
        return []
    own, other = (_terms(table.loc[rows, places], paired=paired) for table in here)
    lengths = np.sqrt((own**2).sum(axis=0) * (other**2).sum(axis=0))
    correlations = (own * other).sum(axis=0) / np.where(lengths > 0, lengths, np.inf)
    quantile = simultaneous_quantile(own - other)
    return [
        (dict(zip(_PLACE, place, strict=True)), float(correlation), quantile)
        for place, correlation in zip(places, correlations, strict=True)
    ]


def _scores(run: Run, contrast: str) -> pd.DataFrame:
    """Return the held-out scores of a contrast: one row for each prompt, one column for each place."""
    table = read_finished_table(run, SCORES_TABLE)
    table = table[table["contrast"] == contrast].astype({"site": str, "side": str})
    return table.pivot(index=["side", "sample"], columns=_PLACE, values="score")


def _terms(scores: pd.DataFrame, *, paired: bool) -> NDArray[np.float64]:
    """Return the terms of the error of the AUROC, (row, place), see `separation_scores.auroc_terms`."""
    ranks = scores.rank()
    positive, negative = (
        (ranks.xs(side, level="side") - scores.xs(side, level="side").rank()).to_numpy() for side in _SIDES
    )
    wins = positive / len(negative), -negative / len(positive)
    parts = [wins[0] + wins[1]] if paired else wins
    return np.concatenate([(part - part.mean(axis=0)) / np.sqrt(len(part) * max(len(part) - 1, 1)) for part in parts])
