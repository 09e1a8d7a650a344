"""The table of `effects`: what each intervention changes for each prompt."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from theodolite.groups.effects.record import ADD, INTERVENTIONS, PATCH, PROMPT_EFFECTS
from theodolite_jobs.effects.work import Arrays, Question
from theodolite_jobs.groups.effects.formulas import restored_of_pair
from theodolite_jobs.groups.effects.means import is_after

_NUMBERS = ("dose", "kl", "log_odds", "pair_restored", "score_change")


def table_of(
    measured: Arrays, question: Question, samples: NDArray[np.int64], sets: Sequence[str], scored: Sequence[int]
) -> pd.DataFrame:
    """Return the table of one contrast at one position: a row for each prompt, place, and intervention or dose.

    Args:
        measured: the numbers of all prompts, the positive and the negative one of each pair in turns.
        question: what was changed.
        samples: index of each prompt in its set.
        sets: the positive and the negative set.
        scored: the layers at whose input the scores are measured.
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
            "pair_restored": _pair_restored(measured, moved, question, names).ravel(),
            "score_change": _last_score(measured, question, scored, names, doses).ravel(),
        }
    )


def _by_row(measured: Arrays, measure: str, without_dose: Sequence[str]) -> NDArray[np.float64]:
    """Return a measure, (prompt, place, intervention or dose)."""
    plain = np.stack([measured[f"{name}_{measure}"] for name in without_dose], axis=-1)
    return np.concatenate([plain, measured[f"dose_{measure}"]], axis=-1)


def _pair_restored(
    measured: Arrays, moved: NDArray[np.float64], question: Question, names: Sequence[str]
) -> NDArray[np.float64]:
    """Return the share of the pair's difference of the log-odds that a patch restores; NaN for all other rows."""
    found = np.full(moved.shape, np.nan)
    if question.is_paired:
        own = measured["intact_log_odds"]
        other = own.reshape(-1, 2)[:, ::-1].ravel()
        patch = names.index(PATCH)
        found[..., patch] = restored_of_pair(own[:, None] + moved[..., patch], own[:, None], other[:, None])
    return found


def _last_score(
    measured: Arrays, question: Question, scored: Sequence[int], names: Sequence[str], doses: Sequence[float]
) -> NDArray[np.float64]:
    """Return the change of the last score, (prompt, place, intervention or dose).

    It is NaN where the score is measured before the change, and for all doses except -1 of positive and 1 of negative
    prompts.
    """
    found = np.full((len(measured["intact_log_odds"]), len(question.places), len(names)), np.nan)
    if not scored:
        return found
    places = [place for place, change in enumerate(question.places) if is_after(scored[-1], change)]
    for which, (name, dose) in enumerate(zip(names, doses, strict=True)):
        first = {-1.0: 0, 1.0: 1}.get(dose) if name == ADD else None
        if name != ADD or first is not None:
            own = slice(None) if first is None else slice(first, None, 2)
            found[own, places, which] = measured[f"{name}_score"][own, places, -1]
    return found


def empty_table() -> pd.DataFrame:
    """Return the table without rows, which fixes the order of its columns."""
    texts = {name: pd.Series(dtype=object) for name in ("contrast", "set", "site", "intervention")}
    counts = {name: pd.Series(dtype="int64") for name in ("position", "sample", "layer")}
    numbers = {name: pd.Series(dtype="float64") for name in _NUMBERS}
    columns = {**texts, **counts, **numbers}
    return pd.DataFrame({name: columns[name] for name in PROMPT_EFFECTS.names})
