"""The table `prompt_scores` of the group `separation`: the held-out score of each prompt at each depth."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from theodolite.groups.separation import MOST_SCORED
from theodolite.store.tables import encode_table
from theodolite_jobs.passes.selections import contrast_selection
from theodolite_jobs.results.context import Context

_PLACE = ["contrast", "position", "site", "layer"]
_COLUMNS = [*_PLACE, "side", "set", "sample", "score"]


def score_table(context: Context) -> bytes:
    """Return the table, with one row group for each contrast, position, site and layer."""
    frames = [frame[_COLUMNS] for frame in _scores(context) if len(frame)]
    if not frames:  # no contrast whose sets have a common position
        return encode_table(pd.DataFrame(columns=_COLUMNS))
    table = pd.concat(frames, ignore_index=True)
    ends = table.groupby(_PLACE, sort=False).size().cumsum()
    return encode_table(table, [0, *ends.iloc[:-1]])


def _scores(context: Context) -> Iterator[pd.DataFrame]:
    """Yield the scores of each contrast: its positions, sites, layers and prompts, the prompts innermost."""
    labels = context.coordinates
    for (name, contrast), passes in zip(context.contrasts.items(), context.collected.contrasts, strict=True):
        assert passes.second is not None
        chosen = contrast_selection(context.run, contrast, context.commits)
        sides = {"positive": (chosen.positive, passes.second.positive)}
        sides["negative"] = (chosen.negative, passes.second.negative)
        prompts, values = [], []
        for side, (selection, scores) in sides.items():
            stored = range(context.run.record.bounds(selection.prompt_set).n_kept)
            samples = [sample for sample in stored if sample not in selection.excluded][:MOST_SCORED]
            values.append(np.concatenate(scores)[:MOST_SCORED])
            assert len(samples) == len(values[-1])
            prompts += [(side, selection.prompt_set, sample) for sample in samples]
        places = [[labels["position"][index] for index in passes.positions], labels["site"], labels["layer"]]
        index = pd.MultiIndex.from_product([*places, range(len(prompts))], names=[*_PLACE[1:], "prompt"])
        by_place = np.concatenate(values).transpose(2, 1, 3, 0)
        frame = pd.DataFrame({"contrast": name, "score": by_place.ravel()}, index=index).reset_index()
        of_prompt = pd.DataFrame(prompts, columns=["side", "set", "sample"]).iloc[frame["prompt"]]
        for column in of_prompt:
            frame[column] = of_prompt[column].to_numpy()
        yield frame
