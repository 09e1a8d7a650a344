"""The tables of the analysis `separation` about single prompts: their held-out scores, and the scale of the scores."""

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from theodolite.groups.schema import SIDES
from theodolite.groups.separation.record import MOST_SCORED, PLACE, SCALES, SCORES
from theodolite.store.runs import RunRecord
from theodolite.store.tables import encode_table
from theodolite_jobs.passes.selections import contrast_selection
from theodolite_jobs.results.context import Context

_ROW_GROUP = 20_000
"""Minimum number of rows of a row group: a reader of one layer decodes only the row groups with that layer."""


def score_tables(context: Context) -> dict[str, bytes]:
    """Return both tables of all contrasts, encoded."""
    scores, scales = [pd.DataFrame(columns=SCORES.names)], [pd.DataFrame(columns=SCALES.names)]
    for label, positions, prompts, by_place in _scores(context):
        places = [positions, context.coordinates["site"], context.coordinates["layer"]]
        scores.append(_score_frame(label, places, prompts, by_place))
        scales.append(_scale_frame(label, places, prompts["side"].to_numpy(), by_place))
    joined = (pd.concat(frames[1:] or frames, ignore_index=True) for frames in (scores, scales))
    table, scale = (_at_existing_sites(context.run.record, frame) for frame in joined)
    table = table.astype({name: "category" for name in ("contrast", "site", "side", "set")})
    at = table[list(PLACE)]
    starts = np.flatnonzero((at != at.shift()).any(axis=1))
    return {
        SCORES.name: encode_table(table, _row_groups(starts.tolist())),
        SCALES.name: encode_table(scale),
    }


def _at_existing_sites(record: RunRecord, frame: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of a table without those of layers that lack their site."""
    for site, partial in record.partial_sites.items():
        frame = frame[(frame["site"] != str(site)) | frame["layer"].isin(partial.layers)]
    return frame.reset_index(drop=True)


def _row_groups(starts: list[int]) -> list[int]:
    """Return those starts of places at which a row group begins."""
    chosen = [0]
    for start in starts:
        if start - chosen[-1] >= _ROW_GROUP:
            chosen.append(start)
    return chosen


def _scores(context: Context) -> Iterator[tuple[str, list[Any], pd.DataFrame, NDArray[np.float64]]]:
    """Yield each contrast with its positions, its prompts, and their scores, (position, site, layer, prompt)."""
    for (label, contrast), passes in zip(context.contrasts.items(), context.collected.contrasts, strict=True):
        assert passes.second is not None
        chosen = contrast_selection(context.run, contrast, context.commits)
        prompts, values = [], []
        for side in SIDES:
            selection, scores = getattr(chosen, side), np.concatenate(getattr(passes.second, side))
            stored = range(context.run.record.bounds(selection.prompt_set).n_kept)
            samples = [sample for sample in stored if sample not in selection.excluded]
            assert len(samples) == len(scores)
            prompts += [(side, selection.prompt_set, sample) for sample in samples[:MOST_SCORED]]
            values.append(scores[:MOST_SCORED])
        positions = [context.coordinates["position"][index] for index in passes.positions]
        frame = pd.DataFrame(prompts, columns=["side", "set", "sample"])
        yield label, positions, frame, np.concatenate(values).transpose(2, 1, 3, 0)


def _score_frame(label: str, places: list[Any], prompts: pd.DataFrame, by_place: NDArray[np.float64]) -> pd.DataFrame:
    """Return a row for each place and prompt, the prompts innermost."""
    index = pd.MultiIndex.from_product([*places, range(len(prompts))], names=["position", "site", "layer", "prompt"])
    frame = pd.DataFrame({"score": by_place.ravel()}, index=index).reset_index()
    of_prompt = prompts.iloc[frame.pop("prompt")]
    frame.insert(0, "contrast", label)
    for column in prompts:
        frame[column] = of_prompt[column].to_numpy()
    return frame


def _scale_frame(label: str, places: list[Any], sides: NDArray[Any], by_place: NDArray[np.float64]) -> pd.DataFrame:
    """Return a row for each place: the pooled standard deviation, and the 5 % and 95 % quantiles of both sides."""
    rows = []
    for (position, site, layer), at in zip(product(*places), np.ndindex(by_place.shape[:3]), strict=True):
        of_sides = {side: by_place[at][sides == side] for side in SIDES}
        variances = [values.var(ddof=1) if len(values) > 1 else np.nan for values in of_sides.values()]
        row = {"contrast": label, "position": position, "site": site, "layer": layer}
        row["deviation"] = float(np.sqrt(np.mean(variances)))
        for side, values in of_sides.items():
            ends = np.quantile(values, (0.05, 0.95)) if len(values) else (np.nan, np.nan)
            row |= {f"low_{side}": ends[0], f"high_{side}": ends[1]}
        rows.append(row)
    return pd.DataFrame(rows)
