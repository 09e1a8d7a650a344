"""The beeswarm of the scores of both sets of a contrast."""

import numpy as np
import pandas as pd
from support.each import each

from theodolite.drawing.prompts import swarm_figure


def scores_of(positive, negative):
    sides = {"positive": positive, "negative": negative}
    frames = [pd.DataFrame({"side": side, "sample": range(len(one)), "score": one}) for side, one in sides.items()]
    return pd.concat(frames, ignore_index=True)


def lines_of(figure):
    """Return the ends of the lines between pairs, as (score of the positive prompt, score of the negative one)."""
    found = [trace for trace in figure.data if trace.mode == "lines"]
    return [] if not found else list(zip(found[0].x[::3], found[0].x[1::3], strict=True))


def test_points_with_one_score_stand_on_each_other_and_infinite_scores_are_left_out():
    figure = swarm_figure(scores_of([1.0, 1.0, 2.0, np.inf], [-1.0, -1.0, -1.0]), "bad", "good", paired=False)
    bad, good = figure.data
    assert (bad.name, bad.x, bad.y, bad.customdata) == ("bad", (1, 1, 2), (1, 2, 1), (0, 1, 2))
    assert (good.name, good.y) == ("good", (-1, -2, -3))


@each("n, expected", [(100, 100), (101, 2), (300, 100)])
def test_lines_join_all_pairs_or_the_farthest_of_those_in_the_wrong_order(n, expected):
    positive, negative = np.full(n, 1.0), np.full(n, -1.0)
    wrong = 2 if n < 300 else 150
    negative[:wrong] = 1.5 + np.arange(wrong)
    lines = lines_of(swarm_figure(scores_of(positive, negative), "bad", "good", paired=True))
    assert len(lines) == expected
    if n > 100:
        assert {end for _, end in lines} == set(np.sort(negative)[-expected:])
    assert lines_of(swarm_figure(scores_of(positive, negative), "bad", "good", paired=False)) == []


def test_a_set_without_scores_leaves_an_empty_half():
    figure = swarm_figure(scores_of([0.5], []), "bad", "good", paired=True)
    assert [len(trace.x) for trace in figure.data] == [1, 0]
