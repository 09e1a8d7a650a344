"""Directions that few prompts cannot repeat are drawn grey, and no sentence interprets them."""

import numpy as np
import pytest
import xarray as xr
from support.finished_runs import finished_run

from theodolite.query.directions import unreliable_layers
from theodolite.sections import heads, separation
from theodolite.store.result_reader import read_group

RELIABILITY = np.array([[np.nan, 0.3, 0.6, 0.9], [0.2, 0.4, 0.7, 0.95]])[:, None]  # (site, position, layer)
NOISE = np.array([[np.nan, 0.8, 0.35, 0.1], [0.85, 0.55, 0.3, 0.05]])[:, None]


@pytest.fixture
def run(tmp_path):
    directions = {"reliability": RELIABILITY, "noise_share": NOISE, "direction_cosine": 0.5}
    return finished_run(tmp_path, {"curves": {}, "directions": directions, "separation": {"auroc": 0.7}})


def test_the_section_names_the_least_reliable_direction(run):
    (section,) = separation.sections(run)
    text = " ".join(section.facts)
    assert "of as many other prompts): 0.20 at layer 0 mid. Largest share of noise" in text
    assert "85 % at layer 0 mid." in text
    assert "At 3 of 7 depths the reliability is below 0.5" in text


def test_a_map_of_cosines_is_pale_at_unreliable_layers(run):
    (section,) = separation.sections(run)
    pre, mid = (figure.draw() for figure in section.maps)
    for figure, layers in ((pre, [1]), (mid, [0, 1])):
        covered = np.array(figure.data[1].z, dtype=object) == 1
        expected = np.isin(range(4), layers)
        np.testing.assert_array_equal(covered, expected[:, None] | expected)


def test_reliable_directions_have_no_pale_cells(tmp_path):
    directions = {"reliability": 0.9, "noise_share": 0.1, "direction_cosine": 0.5}
    run = finished_run(tmp_path, {"curves": {}, "directions": directions, "separation": {"auroc": 0.7}})
    (section,) = separation.sections(run)
    assert [len(figure.draw().data) for figure in section.maps] == [1, 1]
    assert "drawn grey" not in " ".join(section.facts)


def test_the_figure_of_reliability_has_both_measures_at_each_site(run):
    (section,) = separation.sections(run)
    figure = next(one for one in section.figures if one.name == "separation.refusal.reliability").draw()
    names = [trace.name for trace in figure.data]
    assert names == ["reliability, pre", "reliability, mid", "noise share, pre", "noise share, mid", *names[4:]]
    np.testing.assert_array_equal(np.array(figure.data[1].y, dtype=float), RELIABILITY[1, 0])


def heads_group(alignment, z=np.nan):
    values, z = (np.broadcast_to(array, (1, 4, 4, 2)) for array in (alignment, z))
    dims = ("contrast", "side", "layer", "head")
    tests = {"null_mean": 0.25, "null_sd": 0.125, "z": z, "p_family": np.where(z > 3, 0.02, 0.3)}
    return xr.Dataset(
        {
            "direction_alignment": (dims, values),
            **{f"alignment_{name}": (dims, np.broadcast_to(array, values.shape)) for name, array in tests.items()},
        },
        {
            "contrast": ["refusal"],
            "side": ["qk_query", "qk_key", "vo_read", "vo_write"],
            "layer": range(4),
            "head": range(2),
        },
    )


def test_heads_at_unreliable_layers_are_not_the_largest(run):
    directions = read_group(run, "directions")
    assert unreliable_layers(directions, "refusal", "qk_query") == [1]
    assert unreliable_layers(directions, "refusal", "vo_write") == [0, 1]
    by_layer = np.array([0.9, 0.8, 0.2, 0.3])[:, None] + np.array([0.0, 0.01])
    facts = list(heads._alignment_facts(heads_group(by_layer), directions))
    assert "QK query: of 6 heads, L0H1 aligns most with the direction of refusal, 0.91; this is not tested" in facts[0]
    assert "2 heads are left out" in facts[0]
    assert "VO output: of 4 heads, L3H1 aligns most" in facts[3]
    assert "4 heads are left out" in facts[3]


def test_heads_are_chosen_by_their_z_against_permuted_labels(run):
    alignment = np.array([[0.9, 0.9], [0.8, 0.8], [0.5, 0.75], [0.4, 0.6]])
    z = np.array([[9.0, 9.0], [9.0, 9.0], [4.0, 2.0], [5.0, 1.0]])
    facts = list(heads._alignment_facts(heads_group(alignment, z), read_group(run, "directions")))
    assert facts[3].startswith(
        "VO output: 2 of 4 heads align more with the direction of refusal than chance gives (family-wise p of at most "
        "0.05). The largest z is 5.0, of L3H0: alignment 0.40, where permuted labels give 0.25 ± 0.12 (p = 0.02 over "
        "all heads of the side)."
    )
    few = list(heads._alignment_facts(heads_group(alignment, z / 4), read_group(run, "directions")))
    assert few[3].startswith("VO output: none of 4 heads aligns more")


def test_reading_sides_name_the_norm_and_their_prompts(run):
    z = np.array([[9.0, 9.0], [9.0, 9.0], [4.0, 2.0], [5.0, 1.0]])
    group = heads_group(0.5, z).assign_attrs(direction_prompts={"refusal": [64, 63]})
    facts = list(heads._alignment_facts(group, read_group(run, "directions")))
    reading = (
        "direction of refusal (difference of the means after the norm before attention, 64 and 63 prompts) than chance"
    )
    assert [reading in fact for fact in facts] == [True, True, True, False]


def test_no_head_is_named_if_no_direction_is_reliable(tmp_path):
    run = finished_run(tmp_path, {"directions": {"reliability": 0.1}})
    facts = list(heads._alignment_facts(heads_group(0.5), read_group(run, "directions")))
    assert facts[0] == "The direction of refusal is too unreliable for alignments of QK query at all layers."
