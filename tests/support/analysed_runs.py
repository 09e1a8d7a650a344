"""Stored runs of random activations with their results."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray
from support.analysing import analyse
from support.stored import Arrays, store_run

from theodolite.store.runs import Run

SITES = ("resid_pre", "resid_mid")


PAIRED = {"refusal": {"positive": "bad", "negative": "good", "paired": True}}


UNPAIRED = {"subject": {"positive": "bad", "negative": "words", "paired": False}}


def draw(n: int, positions: int = 2, seed: int = 0, shift: float = 1.0) -> dict[str, NDArray[np.float32]]:
    """Return the arrays of one set: site → (sample, position, layer, d_model)."""
    rng = np.random.default_rng(seed)
    return {site: (rng.normal(size=(n, positions, 3, 16)) + shift).astype(np.float32) for site in SITES}


def silent(*_: object) -> None:
    """Ignore progress."""


def crash(*_: object, **__: object) -> NoReturn:
    """Interrupt the analysis."""
    raise KeyboardInterrupt


def analysed(folder: Path, arrays: Arrays, contrasts: Mapping[str, Any], **record: Any) -> Run:
    """Store a run and compute the groups that every run has."""
    run = store_run(folder, arrays, contrasts=contrasts, **record)
    analyse(run, run.record.spec.resolved_contrasts(), None, silent)
    return run
