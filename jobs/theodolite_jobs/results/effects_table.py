"""The table of `effects`: what each intervention changes for each prompt."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from theodolite.groups.effects import ADD, INTERVENTIONS, PATCH
from theodolite_jobs.effects.work import Arrays, Question
from theodolite_jobs.statistics.effects import restored_share

_NUMBERS = ("dose", "kl", "log_odds", "restored", "score_change")


def table_of(measured: Arrays, question: Question, samples: NDArray[np.int64], sets: Sequence[str]) -> pd.DataFrame:
    """Return the table of one contrast at one position: a row for each prompt, place, and intervention or dose.

    Args:
        measured: the numbers of all prompts, the positive and the negative one of each pair in turns.
        question: what was changed.
        samples: index of each prompt in its set.
        sets: the positive and the negative set.
    """
    without_dose = [name for name in INTERVENTIONS if name != ADD]
    names = [*without_dose, *[ADD] * len(question.doses)]
    doses = [*[np.nan] * len(without_dose), *question.doses]
    kl, moved = (_by_row(measured, measure, without_dose) for measure in ("kl", "log_odds"))
    prompt, place, which = (index.ravel() for index in np.indices(kl.shape))
    return pd.DataFrame(
        {
            "set": np.array(sets, dtype=object)[prompt % 2],
            "sample": samples[prompt],
            "site": np.array([str(site) for site, _ in question.places], dtype=object)[place],
            "layer": np.array([layer for _, layer in question.places])[place],
            "intervention": np.array(names, dtype=object)[which],
            "dose": np.array(doses)[which],
            "kl": kl.ravel(),
            "log_odds": moved.ravel(),
            "restored": _restored(measured, moved, question, names).ravel(),
            "score_change": _last_score(measured, kl.shape, names, doses).ravel(),
        }
    )


def _by_row(measured: Arrays, measure: str, without_dose: Sequence[str]) -> NDArray[np.float64]:
    """Return a measure, (prompt, place, intervention or dose)."""
    plain = np.stack([measured[f"{name}_{measure}"] for name in without_dose], axis=-1)
    return np.concatenate([plain, measured[f"dose_{measure}"]], axis=-1)


def _restored(
    measured: Arrays, moved: NDArray[np.float64], question: Question, names: Sequence[str]
) -> NDArray[np.float64]:
    """Return the share of the pair's difference of the log-odds that a patch restores; NaN for all other rows."""
    found = np.full(moved.shape, np.nan)
    if question.is_paired:
        own = measured["intact_log_odds"]
        other = own.reshape(-1, 2)[:, ::-1].ravel()
        patch = names.index(PATCH)
        found[..., patch] = restored_share(own[:, None] + moved[..., patch], own[:, None], other[:, None])
    return found


def _last_score(
    measured: Arrays, shape: tuple[int, ...], names: Sequence[str], doses: Sequence[float]
) -> NDArray[np.float64]:
    """Return the change of the last score; NaN for doses other than the one that adds the difference of the means."""
    found = np.full(shape, np.nan)
    if not measured[f"{PATCH}_score"].shape[-1]:
        return found
    for which, (name, dose) in enumerate(zip(names, doses, strict=True)):
        own = {-1.0: slice(0, None, 2), 1.0: slice(1, None, 2)}.get(dose) if name == ADD else slice(None)
        if own is not None:
            found[own, :, which] = measured[f"{name}_score"][own, :, -1]
    return found


def empty_table() -> pd.DataFrame:
    """Return the table without rows, which fixes the order of its columns."""
    texts = {name: pd.Series(dtype=object) for name in ("contrast", "set", "site", "intervention")}
    counts = {name: pd.Series(dtype="int64") for name in ("position", "sample", "layer")}
    numbers = {name: pd.Series(dtype="float64") for name in _NUMBERS}
    order = ("contrast", "position", "set", "sample", "site", "layer", "intervention", *_NUMBERS)
    columns = {**texts, **counts, **numbers}
    return pd.DataFrame({name: columns[name] for name in order})
