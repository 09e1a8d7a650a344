"""Sentences and figures of the section `basis`."""

import numpy as np
import pytest
import xarray as xr
from support.finished_runs import cached_run
from support.sentences import assert_each_says, assert_says

from theodolite.groups import GROUPS
from theodolite.groups.basis import sections as basis
from theodolite.groups.basis.figures import maps_figure, steps_figure
from theodolite.groups.basis.record import MAPS

LAYERS = 4
COLOURS = {"harmful": "#d9622b", "harmless": "#2b6cb0"}
VALUES = {
    "affine": 0.9,
    "orthogonal": 0.8,
    "identity": 0.5,
    "step": 0.7,
    "permuted": -0.0001,
    "gain": 0.1,
}
R_SQUARED = "affine map 0.900, orthogonal map 0.800, identity 0.500"
OUTPUTS = "outputs … {} … "
STEPS = "steps … {} … "
ISOMETRY = "isometry defect … {} … "


def group(sublayers=("attention", "mlp", "block"), sets=("harmful",), **changed):
    """Return the results of `basis` of sets with 40 prompts, in which only these sublayers were measured."""
    labels = {"set": list(sets), "position": [-1], "layer": range(LAYERS), **GROUPS["basis"].labels}
    variables = {}
    for variable in GROUPS["basis"].variables:
        shape = [len(labels[dim]) for dim in variable.dims]
        variables[variable.name] = (variable.dims, np.full(shape, 0 if variable.dtype == "int64" else np.nan))
    data = xr.Dataset(variables, {dim: list(of_dim) for dim, of_dim in labels.items()})
    data["n_samples"][:] = 40
    for sublayer in sublayers:
        for name, value in VALUES.items():
            r_squared(data, name, sublayer)[:] = [value, value - 0.04, value + 0.04]
        of_sublayer(data, "dimension", sublayer)[:] = 8
        of_sublayer(data, "leading_share", sublayer)[:] = 0.4
        of_sublayer(data, "stretch", sublayer)[:] = [0.5, 1.0, 2.0]
        of_sublayer(data, "isometry_defect", sublayer)[:] = 0.12
        of_sublayer(data, "isometry_defect_random", sublayer)[:] = 0.05
    for name, values in changed.items():
        statistic, _, sublayer = name.rpartition("_")
        of_sublayer(data, statistic, sublayer)[:] = values
    return data


def of_sublayer(data, statistic, sublayer):
    return data[statistic].sel(sublayer=sublayer)


def r_squared(data, name, sublayer):
    """Return R² of a map of the outputs, or another R², (set, position, layer, estimate)."""
    if name in MAPS:
        return of_sublayer(data, "r_squared", sublayer).sel(map=name)
    return of_sublayer(data, f"r_squared_{name}", sublayer)


@pytest.fixture
def section_of(monkeypatch, tmp_path):
    run = cached_run(tmp_path, {"curves": {}})

    def made(data):
        monkeypatch.setattr(basis, "read_group", lambda *_: data)
        colours = {name: COLOURS[name] for name in data["set"].values.tolist()}
        monkeypatch.setattr(basis, "colours_of", lambda *_: colours)
        (section,) = basis.sections(run)
        return section

    return made


def test_sentences_state_medians_and_their_references(section_of):
    section = section_of(group())
    defect = "harmful 0.1200 … random steps … 0.0500 … 4 of 4 layers"
    patterns = [
        text.format(sublayer) + numbers
        for text, numbers in (
            (OUTPUTS, f"harmful {R_SQUARED}"),
            (STEPS, "harmful 0.700 … permuted steps give 0.000"),
            (ISOMETRY, defect),
        )
        for sublayer in ("attention", "the MLP")
    ]
    assert_each_says(section.facts, *patterns, "R² = 1 would not show … 8 dimensions")
    assert_each_says(section.notes[:1], "R² excludes 0 … one of 20 layers")


def test_tables_have_the_medians_and_counts_of_each_sublayer(section_of):
    maps, stretch = section_of(group()).tables
    places = [["attention", "harmful", "40"], ["the MLP", "harmful", "40"]]
    r_squared = ["0.900", "0.800", "0.500", "0.700", "0.000", "4", "0", "4"]
    assert maps.rows == [[*place, *r_squared] for place in places]
    assert len(maps.columns) == len(maps.rows[0])
    defect = ["8", "0.1200", "0.1200", "0.0500", "4", "4", "0.50", "2.00"]
    assert stretch.rows == [[*place, *defect] for place in places]
    assert len(stretch.columns) == len(stretch.rows[0])
    assert_says(stretch.note, f"more than {basis._DEFECT_ERROR}")


def test_the_number_of_directions_is_the_median_over_layers(section_of):
    _, stretch = section_of(group(dimension_mlp=[3, 5, 7, 20])).tables
    assert [row[3] for row in stretch.rows] == ["8", "6"]


SHARES = "(harmful, n = 40 … "
NO_ROTATION = " … not show that layers are rotations"
EXPLAINED = "{}: … orthogonal map … 80 % … affine map 90 %{} … input plus a constant 50 %"


def test_the_finding_has_the_shares_of_three_maps_through_each_sublayer(section_of):
    data = group()
    r_squared(data, "gain", "mlp").sel(estimate="low")[:] = [0.06, -0.01, -0.2, 0.0]
    better = [f" (significantly better in {many} of 4 layers" for many in (4, 1)]
    texts = [EXPLAINED.format(*one) for one in zip(("Attention", "The MLP"), better, strict=True)]
    assert_says(section_of(data).finding, f"{SHARES}{' … '.join(texts)}{NO_ROTATION}")
    block = section_of(group(sublayers=("block",)))
    assert_says(block.finding, f"{SHARES}{EXPLAINED.format('The block', better[0])}{NO_ROTATION}")
    assert section_of(group(sublayers=())).finding == ""


def test_each_sentence_lists_all_sets(section_of):
    data = group(sets=("harmful", "harmless"))
    data["n_samples"][1] = 30
    r_squared(data, "affine", "mlp")[1, ..., 0] = 0.4
    r_squared(data, "gain", "mlp")[1, ..., 1:] = [-0.4, -0.2]
    r_squared(data, "step", "attention")[1, ..., 0] = [[0.1, 0.2, 0.4, 0.9]]
    of_sublayer(data, "isometry_defect", "mlp")[1] = np.nan
    section = section_of(data)
    facts = section.facts
    assert len(facts) == 7
    assert [row[:3] + row[-3:] for row in section.tables[0].rows[2:]] == [
        ["the MLP", "harmful", "40", "4", "0", "4"],
        ["the MLP", "harmless", "30", "0", "4", "4"],
    ]
    harmless = "harmless affine map 0.400, orthogonal map 0.800, identity 0.500"
    assert_says(facts[1], f"{OUTPUTS.format('the MLP')}harmful {R_SQUARED}; {harmless}")
    assert_says(facts[2], f"{STEPS.format('attention')}harmful 0.700 … give 0.000 … harmless 0.300 … give 0.000")
    assert_says(facts[4], "harmless 0.1200")
    assert_says(facts[5], f"{ISOMETRY.format('the MLP')}harmful 0.1200")
    assert "harmless" not in facts[5]


def test_layers_count_as_better_or_worse_if_the_interval_of_the_gain_excludes_0(section_of):
    data = group()
    r_squared(data, "gain", "mlp").sel(estimate="low")[:] = [0.06, -0.01, -0.2, 0.0]
    r_squared(data, "gain", "mlp").sel(estimate="high")[:] = [0.14, 0.0, -0.1, 0.02]
    maps, _ = section_of(data).tables
    assert [row[-3:] for row in maps.rows] == [["4", "0", "4"], ["1", "1", "4"]]


def test_layers_without_a_gain_are_not_counted(section_of):
    data = group()
    r_squared(data, "gain", "mlp")[:] = np.array([np.nan, 0.1, 0.2, 0.3])[:, None]
    maps, _ = section_of(data).tables
    assert maps.rows[1][-3:] == ["3", "0", "3"]


def test_layers_with_one_direction_are_named(section_of):
    section = section_of(group(leading_share_mlp=[0.5, 0.995, 0.999, 0.99]))
    (fact,) = (fact for fact in section.facts if "one direction" in fact)
    assert_says(fact, "the MLP … at least 99 % … harmful 3 of 4")
    data = group(sets=("harmful", "harmless"), leading_share_attention=0.989)
    of_sublayer(data, "leading_share", "attention")[1, 0, 2] = 0.99
    r_squared(data, "affine", "attention")[1, 0, 0] = np.nan
    (fact,) = (fact for fact in section_of(data).facts if "one direction" in fact)
    assert_says(fact, "attention … harmless 1 of 3")
    assert "harmful" not in fact


def test_a_map_without_leading_directions_has_no_isometry_defect(section_of):
    section = section_of(group(isometry_defect_attention=np.nan, isometry_defect_mlp=[np.nan, 0.1, 0.2, 0.6]))
    (isometry,) = (fact for fact in section.facts if "Isometry" in fact)
    assert_says(isometry, f"{ISOMETRY.format('the MLP')}harmful 0.2000")
    assert [row[:6] for row in section.tables[1].rows] == [["the MLP", "harmful", "40", "8", "0.2000", "0.6000"]]


def test_defects_are_counted_if_they_are_larger_than_random_ones_by_more_than_their_error(section_of):
    defects = [0.05, 0.063, 0.065, np.nan]  # random steps give 0.05; the error is 0.014
    section = section_of(group(isometry_defect_attention=defects, isometry_defect_mlp=0.04))
    assert [row[-4:-2] for row in section.tables[1].rows] == [["1", "3"], ["0", "4"]]
    assert_says(section.notes[1], f"at most {basis._DEFECT_ERROR}")


def test_a_family_without_a_middle_shows_whole_blocks(section_of):
    section = section_of(group(sublayers=("block",)))
    patterns = [text.format("the block") for text in (f"{OUTPUTS}harmful {R_SQUARED}", STEPS, ISOMETRY)]
    assert_each_says(section.facts, *patterns, "")
    assert "attention" not in " ".join(section.facts)
    drawn = section.figures[0].draw()
    assert drawn.layout.yaxis.title.text == "R² of the output, the block"


def test_a_set_without_maps_is_named(section_of):
    section = section_of(group(sublayers=()))
    (fact,) = section.facts
    assert_says(fact, "No maps … harmful (40 prompts) … at least 10 prompts")
    assert section.figures == []


def test_a_set_without_maps_stands_before_the_maps_of_another_set(section_of):
    data = group(sets=("harmful", "harmless"))
    data["n_samples"][1] = 9
    for name in data:
        if "layer" in data[name].dims and data[name].dtype == float:
            data[name][1] = np.nan
    facts = section_of(data).facts
    assert_says(facts[0], "No maps … harmless (9 prompts) … at least 10 prompts")
    assert_says(facts[1], f"{OUTPUTS.format('attention')}harmful")
    assert not any("harmless" in fact for fact in facts[1:])


def test_maps_have_a_panel_for_each_sublayer_with_intervals():
    figure = maps_figure(group(), "harmful", -1, {"attention": "attention", "mlp": "MLP"})
    curves = [trace for trace in figure.data if trace.mode == "lines+markers"]
    assert [trace.name for trace in curves] == ["affine", "orthogonal", "identity"] * 2
    assert len(figure.data) == 2 * len(curves)  # each has a band
    assert [curves[0].y[0], figure.data[0].y[0]] == pytest.approx([0.9, 0.86])


def test_steps_have_panels_of_r_squared_and_stretch():
    figure = steps_figure(group(), -1, {"attention": "attention", "mlp": "MLP"}, {"harmful": "#d9622b"})
    titles = [figure.layout[axis].title.text for axis in ("yaxis", "yaxis2", "yaxis3", "yaxis4")]
    assert titles == ["R² of the step, attention", "R² of the step, MLP", "stretch, attention", "stretch, MLP"]
    curves = [trace for trace in figure.data if trace.mode == "lines+markers"]
    assert [trace.y[0] for trace in curves] == pytest.approx([0.7, 0.7, 1.0, 1.0])


def test_layers_whose_input_does_not_vary_are_left_out_of_the_medians_of_r_squared(section_of):
    data = group()
    for name in ("affine", "identity"):
        r_squared(data, name, "attention")[..., 0, 0] = 0.0
    section = section_of(data)
    assert_says(section.facts[0], f"{OUTPUTS.format('attention')}harmful {R_SQUARED}")
    assert_says(section.finding, EXPLAINED.partition("%{}")[0].format("Attention"))
