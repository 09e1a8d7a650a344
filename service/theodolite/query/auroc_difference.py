"""The AUROC of a run minus that of another run on the same prompts, with a simultaneous band."""

from statistics import NormalDist

import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import NDArray

from theodolite.bands import half_of_difference, simultaneous_quantile
from theodolite.digests import digest_of
from theodolite.groups.schema import ESTIMATE, INTERVAL, SIDES
from theodolite.groups.separation.record import SCORES
from theodolite.query.curves import end_of
from theodolite.spec_parts import Label, same_labels
from theodolite.store.manifest import finished_groups
from theodolite.store.result_reader import read_finished_table, read_group
from theodolite.store.runs import Run

_PLACE = ["site", "layer"]
_TAIL = 0.025  # of a 95 % interval, on each side


def auroc_difference(run: Run, subtracted: Run, contrast: str) -> xr.DataArray:
    """Return the difference of the AUROCs of a contrast and the ends of its 95 % band, along `estimate`.

    The band holds at all sites and layers of a position at once. It combines the intervals of both AUROCs, each widened
    by `auroc_fit_error`, with the correlation of their errors over prompts (Zou and Donner 2008). The errors of the
    fitted directions count as independent in both runs. NaN where one of the runs has no permutation tests.

    Args:
        run: a run with the analysis `separation`.
        subtracted: a run with the same group, contrast and prompts, such as its untrained twin.
        contrast: name of the contrast.

    Raises:
        StoreError: the scores of a run cannot be read.
    """
    states = [digest_of(finished_groups(one)) for one in (run, subtracted)]
    key = ("auroc difference", subtracted.url, *states, contrast)
    return run.cached(key, lambda: _difference(run, subtracted, contrast), lambda found: int(found.nbytes))


def _difference(run: Run, subtracted: Run, contrast: str) -> xr.DataArray:
    runs = run, subtracted
    # Positions as texts: a run with named positions has "-1" where another has -1.
    own, other = (_with_texts(read_group(one, "separation")["auroc"].sel(contrast=contrast, drop=True)) for one in runs)
    value = end_of(own) - end_of(other)
    paired = bool(read_group(run, "separation").attrs["contrasts"][contrast]["paired"])
    half = {end: xr.full_like(value, np.nan) for end in ("low", "high")}
    if all("permutations" in finished_groups(one) for one in runs):
        tests = [read_group(one, "permutations").sel(contrast=contrast, drop=True) for one in runs]
        of_fits = [_with_texts(one["auroc_fit_error"]) for one in tests]
        for position in value["position"].values.tolist():
            tables = [_scores(one, contrast, *same_labels([position], _positions(one))) for one in runs]
            for place, terms, quantile in _places(*tables, paired=paired):
                at = {"position": position, **place}
                fits = [float(error.sel(at)) for error in of_fits]
                ends = [
                    _ends(side.sel(at), quantile, quantile * error)
                    for side, error in zip((own, other), fits, strict=True)
                ]
                errors = [np.hypot(np.linalg.norm(one), error) for one, error in zip(terms, fits, strict=True)]
                correlation = np.asarray(terms[0] @ terms[1] / (errors[0] * errors[1] or np.inf))
                for end, opposite in (("low", "high"), ("high", "low")):
                    half[end].loc[at] = half_of_difference(ends[0][end], ends[1][opposite], correlation)
    bounds = {"value": value, "band_low": value - half["low"], "band_high": value + half["high"]}
    found = xr.concat(bounds.values(), xr.Variable(ESTIMATE, list(bounds))).clip(-1, 1)
    return found.assign_coords(position=same_labels(found["position"].values.tolist(), _positions(run)))


def _positions(run: Run) -> list[Label]:
    labels: list[Label] = read_group(run, "separation")["position"].values.tolist()
    return labels


def _with_texts(values: xr.DataArray) -> xr.DataArray:
    """Return values whose labels of positions are texts."""
    return values.assign_coords(position=list(map(str, values["position"].values.tolist())))


def _ends(auroc: xr.DataArray, quantile: float, of_fits: float) -> dict[str, NDArray[np.float64]]:
    """Return how far an interval of an AUROC reaches below and above it at another quantile, from its 95 % interval.

    As in `statistics/scores.auroc`, it is symmetric on the scale of log-odds, and that of an AUROC of 1 ends at
    (α/2)^(1/n). The error of the fits, times the quantile, is added as an independent one.
    """
    value, low, high = (float(end_of(auroc, end)) for end in INTERVAL)
    normal = NormalDist()
    power = np.log(normal.cdf(-quantile)) / np.log(_TAIL)
    if value in (0, 1):
        moved = {"low": low**power if value else 0.0, "high": 1.0 if value else 1 - (1 - high) ** power}
    else:
        wide, odds = quantile / normal.inv_cdf(1 - _TAIL), _log_odds(value)
        moved = {
            name: 1 / (1 + np.exp(-(odds + wide * (_log_odds(end) - odds))))
            for name, end in (("low", low), ("high", high))
        }
    return {name: np.hypot(value - end, of_fits) for name, end in moved.items()}


def _log_odds(value: float) -> np.float64:
    with np.errstate(divide="ignore"):
        return np.float64(np.log(np.float64(value)) - np.log1p(-np.float64(value)))


def _places(
    own: pd.DataFrame, other: pd.DataFrame, *, paired: bool
) -> list[tuple[dict[str, object], list[NDArray[np.float64]], float]]:
    """Return each place with the terms of both runs' errors over common prompts, and the quantile of the band."""
    places, rows = own.columns.intersection(other.columns), own.index.intersection(other.index)
    if not len(places) or not set(SIDES) <= set(rows.get_level_values("side")):
        return []
    terms = [_terms(table.loc[rows, places], paired=paired) for table in (own, other)]
    quantile = simultaneous_quantile(terms[0] - terms[1])
    return [
        (dict(zip(_PLACE, place, strict=True)), [of_run[:, column] for of_run in terms], quantile)
        for column, place in enumerate(places)
    ]


def _scores(run: Run, contrast: str, position: Label) -> pd.DataFrame:
    """Return the held-out scores of a contrast at a position: one row for each prompt, one column for each place."""
    table = read_finished_table(run, SCORES.name, [("position", "==", position)])
    table = table[table["contrast"] == contrast].astype({"site": str, "side": str})
    return table.pivot(index=["side", "sample"], columns=_PLACE, values="score").dropna(axis=1)


def _terms(scores: pd.DataFrame, *, paired: bool) -> NDArray[np.float64]:
    """Return the terms of the error of the AUROC, (row, place), as `statistics/scores.auroc_terms` does."""
    ranks = scores.rank()
    positive, negative = (
        (ranks.xs(side, level="side") - scores.xs(side, level="side").rank()).to_numpy() for side in SIDES
    )
    wins = positive / len(negative), -negative / len(positive)
    parts = [wins[0] + wins[1]] if paired else wins
    return np.concatenate([(part - part.mean(axis=0)) / np.sqrt(len(part) * max(len(part) - 1, 1)) for part in parts])
