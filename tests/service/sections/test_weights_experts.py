"""Sentences and the figure of the overlaps between the experts of a layer."""

import numpy as np
import xarray as xr
from support.sentences import assert_says

from theodolite.groups.weights.sections_experts import expert_facts, expert_figures

NAN = np.nan
LABELS = ["0", "1", "2", "shared"]


def group(*, shared=False, rank=2, **changes):
    """Two layers of three experts; layer 0 has none. The experts have no gate."""
    labels = LABELS if shared else LABELS[:3]
    overlaps = np.full((3, 2, 4, 4), NAN)
    overlaps[0, 1], overlaps[2, 1] = 0.1, 0.2
    overlaps[2, 1, 0, 2] = overlaps[2, 1, 2, 0] = 0.5
    overlaps[:, 1, 3, :3] = overlaps[:, 1, :3, 3] = 0.9
    overlaps[1] = NAN
    overlaps = overlaps[..., : len(labels), : len(labels)]
    index = np.arange(len(labels))
    overlaps[[[0], [2]], 1, index, index] = 1
    nulls = np.array([[NAN, 0.06], [NAN, NAN], [NAN, 0.07]])
    return xr.Dataset(
        {
            "expert_overlap": (("mlp_matrix", "layer", "expert_or_shared", "expert_or_shared_other"), overlaps),
            "expert_overlap_null": (("mlp_matrix", "layer"), nulls),
            "random_overlap": ("null", [0.05, 0.012]),
        }
        | changes,
        {
            "mlp_matrix": np.array(["down", "gate", "up"], object),
            "layer": [0, 1],
            "expert_or_shared": labels,
            "expert_or_shared_other": labels,
        },
        {"rank": 2, "expert_rank": rank},
    )


def test_the_mean_and_the_largest_overlap_stand_beside_random_matrices():
    mean, largest = expert_facts(group())
    assert_says(mean, "5.0 %, ± 1.2 % … W_down 10.0 % (6.0 %); W_up 30.0 % (7.0 %)")
    assert_says(largest, "experts 0 and 2 of layer 1, W_up, 50.0 % … 6 overlaps … biased upwards")
    assert "above chance" not in largest


def test_a_largest_overlap_of_experts_below_chance_says_so():
    nulls = (("mlp_matrix", "layer"), np.full((3, 2), 0.5))
    assert_says(expert_facts(group(expert_overlap_null=nulls)), "biased upwards … not above chance … 50.0 %")


def test_the_shared_expert_is_apart_from_the_routed_ones():
    facts = list(expert_facts(group(shared=True)))
    assert facts[:2] == list(expert_facts(group()))
    assert len(facts) == 3
    assert_says(facts[2], "shared expert … W_down 90.0 %; W_up 90.0 %")


def test_narrow_experts_are_not_compared_with_subspaces_of_another_rank():
    assert "random subspaces" not in next(iter(expert_facts(group(rank=1))))


def test_the_figure_has_a_line_and_a_null_for_each_matrix():
    (figure,) = expert_figures(group(shared=True))
    assert figure.name == "weights.experts"
    lines = {trace.name: np.array(trace.y, dtype=float) for trace in figure.draw().data}
    assert list(lines) == ["W_down", "W_down, random matrices", "W_up", "W_up, random matrices"]
    np.testing.assert_allclose(lines["W_up"], [NAN, 0.3])
    np.testing.assert_allclose(lines["W_up, random matrices"], [NAN, 0.07])


def test_models_without_experts_have_neither():
    weights = group().isel(mlp_matrix=[], expert_or_shared=[], expert_or_shared_other=[])
    assert list(expert_facts(weights)) == list(expert_figures(weights)) == []
