"""Runs with planted answers to the four questions of an overview."""

from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from support.finished_runs import cached_run, merged

from theodolite.groups.permutations.record import MEASURES
from theodolite.overview.tiles import NO, PARTLY, UNTESTED, YES
from theodolite.store.result_reader import read_group
from theodolite.store.runs import ModelFacts, Run

LATE, ONCE, NEVER, UNKNOWN = (
    np.array(p) for p in ([0.5, 0.5, 0.01, 0.02], [0.5, 0.02, 0.5, 0.5], [0.5] * 4, [np.nan] * 4)
)
"""A family-wise p at each of four layers."""


def estimate(value: Any, half: float, of_band: float) -> dict[str, Any]:
    """Return a statistic with an interval and a band of these half widths."""
    ends = {"low": value - half, "high": value + half, "band_low": value - of_band, "band_high": value + of_band}
    return {"value": value, **ends}


def effects(p: Any, kl: Any = UNKNOWN, sign: float = 1.0) -> dict[str, Any]:
    """Return the part of `effects` that answers whether the model uses the direction."""
    moved = {measure: {"value": 1.0, "low": 0.5, "high": 1.5} for measure in ("kl", "log_odds")}
    null = {measure: {"add": {"p_family": {"matched": at}}} for measure, at in (("log_odds", p), ("kl", kl))}
    return {"expected_sign": sign, "effect": moved, "effect_null": null, "n_used": 12}


AUROC = estimate(np.array([0.6, 0.7, 0.9, 0.8]), 0.02, 0.05)
SEPARABLE = {YES: LATE, NO: NEVER, UNTESTED: UNKNOWN}
WORDS = {YES: estimate(np.array([-0.1, 0.0, 0.2, 0.1]), 0.02, 0.05), NO: estimate(0.01, 0.02, 0.05), UNTESTED: np.nan}
USED = {
    (YES, "signed"): effects(LATE),
    (PARTLY, "signed"): effects(ONCE),
    (NO, "signed"): effects(NEVER),
    (PARTLY, "unsigned"): effects(UNKNOWN, ONCE, np.nan),
    (NO, "unsigned"): effects(UNKNOWN, NEVER, np.nan),
    (UNTESTED, "without controls"): effects(UNKNOWN),
}
PLANTED = {f"c{number}": truth for number, truth in enumerate(product(SEPARABLE, WORDS, USED))}
"""The answers of each contrast: separable, beyond words, used. Every other contrast is of pairs.

Without a permutation test, the band decides about separation, and it lies above chance here.
"""


def permuted(separable: str, words: str) -> dict[str, Any]:
    """Return the part of `permutations` that answers the first two questions."""
    null = {"mean": 0.5, "sd": 0.02, "critical": 0.6, "p_family": SEPARABLE[separable]}
    beyond = {"words": WORDS[words]}
    return {
        "tested_null": dict.fromkeys(MEASURES, null),
        "beyond": dict.fromkeys(MEASURES, beyond),
        "location": np.array([0.0, 0.0, 1.0, 1.0])[:, None],
        "tokens": {"value": 0.55},
        "tokens_is_ridge": 1.0,
        "n_used": 20,
    }


def planted_run(folder: Path) -> Run:
    """Write a run with a contrast for each combination of answers."""
    pairs = {name: number % 2 == 1 for number, name in enumerate(PLANTED)}
    contrasts = {name: {"positive": "harmful", "negative": "harmless", "paired": pairs[name]} for name in PLANTED}
    groups: dict[str, dict[str, Any]] = {
        "curves": {},
        "directions": {"reliability": 0.9},
        "separation": {
            "auroc": AUROC,
            "paired_accuracy": {name: AUROC for name in PLANTED if pairs[name]},
            "n_used": 20,
        },
        "permutations": _by_contrast({name: permuted(*truth[:2]) for name, truth in PLANTED.items()}),
        "effects": _by_contrast({name: USED[truth[2]] for name, truth in PLANTED.items()}),
    }
    return cached_run(folder, groups, contrasts=contrasts)


def _by_contrast(values: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return {variable: {contrast: numbers}} from {contrast: {variable: numbers}}."""
    return {name: {contrast: of[name] for contrast, of in values.items()} for name in next(iter(values.values()))}


RESULTS: dict[str, dict[str, Any]] = {
    "curves": {"n_used": 20},
    "directions": {"reliability": np.array([0.2, 0.9, 0.9, 0.9])},
    "separation": {"auroc": AUROC, "n_used": 20},
    "permutations": permuted(YES, YES),
    "effects": effects(LATE),
}


def overview_run(folder: Path, run_id: str = "tiny-0", model: ModelFacts | None = None, **changes: Any) -> Run:
    """Write a run of one contrast; each argument changes a group, or leaves it out if it is None."""
    changed = {name: changes.get(name, {}) for name in RESULTS}
    groups = {name: merged(of, changed[name]) for name, of in RESULTS.items() if changed[name] is not None}
    return cached_run(folder, groups, model, run_id)


def twin_difference(values: Mapping[str, Any]) -> Callable[..., xr.DataArray]:
    """Return a function that stands for `auroc_difference`, since these runs have no scores of prompts."""

    def auroc_difference(run: Run, _: Run, contrast: str) -> xr.DataArray:
        auroc = read_group(run, "separation").sel(contrast=contrast)["auroc"]
        filled = [np.broadcast_to(values.get(end, np.nan), auroc.shape[:-1]) for end in auroc["estimate"].values]
        return auroc.copy(data=np.stack(filled, -1))

    return auroc_difference
