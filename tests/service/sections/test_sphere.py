"""Sentences, maps and figures about norm layers."""

import numpy as np
import pytest
import xarray as xr
from support.finished_runs import cached_run
from support.sentences import assert_says

from theodolite.groups import GROUPS
from theodolite.groups.sphere import sections as sphere

SETS = ["harmful", "harmless"]
NORMS = ["0.attention", "0.mlp", "final"]


PLANE = np.ones((3, 20))
SPREAD = "Largest relative spread"
LENGTHS = "variance of its length"


def fitted(prompts, low, high, median):
    return f"Gaussian … of {prompts} gives 7.00 % … {low} to {high} times … median {median}"


SOME_120 = fitted("the first 250 prompts", "1.00", "1.20", "1.20")


def gaussian(median, last):
    return f"at “final” (a Gaussian … first 250 prompts … {median} %, and {last} % at “final”"


_OF_PAIRS = ("scale_correlation", "ellipsoid_overlap", "ellipsoid_overlap_permuted", "plane_normal_cosine")


def sphere_group(fitted, scales, axes=None, **changed):
    """A group with two sets and three norm layers; `scales` are √d|γ| of each norm layer."""
    per_norm, radii = ("set", "position", "norm"), np.sort(scales)[:, ::-1]

    def numbers(values):
        return per_norm, np.broadcast_to(values, (2, 1, 3))

    def along(axes, *values):
        return (*per_norm, *axes), np.stack([numbers(one)[1] for one in values], axis=-1)

    of_norms = {
        "euclidean_norm": [3.0, 10.0, 800.0],
        "relative_spread": [0.03, 0.06, 0.084],
        "ellipsoid_residual": 1e-5,
        "length_variance_share": 0.02,
    } | changed
    _, null = along(["null"], 0.03, fitted)
    _, norms = along(["summary"], of_norms["euclidean_norm"], np.nan, 1.0, 900.0)
    variables = {
        **{name: numbers(of_norms[name]) for name in ("ellipsoid_residual", "length_variance_share")},
        "euclidean_norm": ((*per_norm, "stage", "summary"), np.stack([norms, np.nan * norms], axis=-2)),
        "relative_spread": along(["quantity"], of_norms["relative_spread"], np.nan),
        "relative_spread_null": ((*per_norm, "quantity", "null"), np.stack([null, np.nan * null], axis=-2)),
        "n_samples": (("set", "position"), np.array([[256], [255]])),
        "n_fitted": (("set", "position"), np.full((2, 1), 250)),
        "semi_axes": (("norm", "d_model"), radii if axes is None else axes),
        "scale_radii": (("norm", "d_model"), radii),
        **dict.fromkeys(_OF_PAIRS, pairs(np.nan)),
    }
    labels = {"set": SETS, "position": [-1], "norm": NORMS, "d_model": range(radii.shape[1])}
    own = {dim: list(of_dim) for dim, of_dim in GROUPS["sphere"].labels.items()}
    return xr.Dataset(variables, labels | own)


def pairs(*values):
    """Return a number of each pair of three norm layers: 0 and 1, 0 and 2, 1 and 2; 1 for each with itself."""
    matrix = np.ones((3, 3))
    matrix[np.triu_indices(3, 1)] = values
    return ("norm", "norm_other"), np.triu(matrix) + np.triu(matrix, 1).T


@pytest.fixture
def section_of(tmp_path, monkeypatch):
    run = cached_run(tmp_path, {"curves": {}})

    def made(group):
        monkeypatch.setattr(sphere, "read_group", lambda *_: group)
        monkeypatch.setattr(sphere, "colours_of", lambda *_: dict.fromkeys(SETS, "#123456"))
        (section,) = sphere.sections(run)
        return section

    return made


def about(section, text):
    """Return the only sentence with this text."""
    (fact,) = (fact for fact in section.facts if text in fact)
    return fact


def lines_of(section, name):
    (figure,) = (one for one in section.figures if one.name == name)
    return [trace.name for trace in figure.draw().data if trace.name]


def test_the_norms_of_all_sets_stand_in_one_sentence(section_of):
    norms = np.array([[3.0, 10.0, 800.0], [4.0, 20.0, 1234.0]])[:, None]
    section = section_of(sphere_group(0.07, PLANE, euclidean_norm=norms))
    first_and_last = "“0.attention” (first) and “final” (last)"
    assert_says(section.facts[0], f"{first_and_last}: harmful 3 and 800; harmless 4 and 1.23e+03")
    captured = section_of(sphere_group(0.07, PLANE, euclidean_norm=[np.nan, 10.0, 800.0]))
    assert_says(captured.facts[0], "“0.mlp” (first) and “final” (last)")


def test_the_spread_of_the_norm_stands_beside_the_fitted_gaussian(section_of):
    section = section_of(sphere_group([0.03, 0.05, 0.07], PLANE))
    harmful, harmless = f"harmful 8.40 % at “final” (n = 256; … {SOME_120}", f"harmless 8.40 % … (n = 255; … {SOME_120}"
    assert_says(section.facts[1], f"{SPREAD} … {harmful} … {harmless}")
    assert {"standard Gaussian", "harmful, fitted Gaussian"} <= set(lines_of(section, "sphere.norms"))


def test_a_gaussian_can_be_fitted_to_all_prompts(section_of):
    counts = ("set", "position"), np.array([[250], [255]])
    section = section_of(sphere_group([0.03, 0.05, 0.07], PLANE).assign(n_samples=counts))
    every = fitted("these prompts", "1.00", "1.20", "1.20")
    assert_says(section.facts[1], f"harmful 8.40 % at “final” (n = 250; … {every} … harmless … (n = 255; … {SOME_120}")


def test_a_norm_layer_without_a_spread_has_no_ratio(section_of):
    spread, fitted = [0.0, 0.06, 0.084], [0.0, 0.03, 0.07]  # the first input is the same in all prompts
    section = section_of(sphere_group(fitted, PLANE, relative_spread=spread))
    assert_says(section.facts[1], "n = 255 … over 2 norm layers … 1.20 to 2.00 times … median 1.60")  # of 2 and 1.2


def test_norm_layers_without_a_fitted_gaussian_have_only_the_measured_spread(section_of):
    section = section_of(sphere_group(np.nan, PLANE))
    assert_says(
        section.facts[1], f"{SPREAD} … harmful 8.40 % at “final” (n = 256); harmless 8.40 % at “final” (n = 255)"
    )
    assert "harmful, fitted Gaussian" not in lines_of(section, "sphere.norms")


def test_the_share_of_length_stands_beside_that_of_the_fitted_gaussian(section_of):
    """The squared ratios of the Gaussian's spread to the measured one are 4, 1 and 0.51."""
    shares = np.array([[0.01, 0.02, 0.4], [np.nan, 0.1, 0.2]])[:, None]
    section = section_of(sphere_group(0.06, PLANE, length_variance_share=shares))
    harmful, harmless = "harmful median 2.0 %, largest 40.0 %", "harmless median 15.0 %, largest 20.0 %"
    expected = f"{harmful}, {gaussian('4.0', '20.4')} … {harmless}, {gaussian('10.1', '10.2')}"
    assert_says(section.facts[2], f"{LENGTHS} … {expected}")
    without = section_of(sphere_group(np.nan, PLANE, length_variance_share=shares))
    assert_says(without.facts[2], f"{LENGTHS} … {harmful}; {harmless}")


def test_sets_without_a_number_are_left_out_of_its_sentence(section_of):
    numbers = np.array([[np.nan] * 3, [0.1, 0.2, 0.3]])[:, None]
    few = section_of(sphere_group(0.06, PLANE, relative_spread=numbers, length_variance_share=numbers))
    assert_says(about(few, SPREAD), "harmless 30.00 % at “final” (n = 255; … Gaussian")
    # The Gaussian has 0.1·0.6², 0.2·0.3² and 0.3·0.2².
    assert_says(about(few, LENGTHS), f"harmless median 20.0 %, largest 30.0 %, {gaussian('1.8', '1.2')}")
    assert not any("harmful" in about(few, text) for text in (SPREAD, LENGTHS))
    assert_says(few.facts[0], "harmful 3 and 800; harmless 3 and 800")
    none = section_of(sphere_group(0.07, PLANE, relative_spread=np.nan, length_variance_share=np.nan))
    assert not any(SPREAD in fact or LENGTHS in fact for fact in none.facts)
    norms = np.array([[np.nan] * 3, [3.0, 10.0, 800.0]])[:, None]
    unmeasured = section_of(sphere_group(0.07, PLANE, euclidean_norm=norms))
    assert not any("harmful" in fact for fact in unmeasured.facts)
    assert all("harmless " in fact for fact in unmeasured.facts[:3])


def test_the_largest_distance_from_the_sphere_has_its_norm_layer(section_of):
    residual = np.array([[1e-6, 3e-5, np.nan], [2e-6, 4e-5, 1e-5]])[:, None]
    section = section_of(sphere_group(0.07, PLANE, ellipsoid_residual=residual))
    assert_says(section.facts, "Largest distance … sphere … 4.0e-05 … at “0.mlp” … ε")


def test_ellipsoids_are_described_by_quantiles_and_dead_features(section_of):
    scales = np.ones((3, 101))
    scales[1] = np.linspace(1, 3, 101)  # quantiles 1.1, 2 and 2.9
    scales[2, :2] = 0, 1e-7
    section = section_of(sphere_group(0.05, scales))
    assert_says(
        section.facts,
        "1.1, 2 and 2.9 … “0.mlp” … 2.6 times … 3 norm layers (median 1)",
        "Dead features … 2 of 303 in 3 norm layers",
    )
    assert not any("Most elongated" in fact for fact in section.facts)


SCALES = {
    "scale_correlation": pairs(0.5, -0.3, 0.25),
    "ellipsoid_overlap": pairs(0.8, 0.6, 0.7),
    "ellipsoid_overlap_permuted": pairs(0.5, 0.4, 0.45),
}
CORRELATION = "Correlation … 0.25 (0.25 between kinds … permuted features … 0 ± 0.22"
OVERLAP = "Overlap … ellipsoids … 70 % … permuted features … 45 %, equal ellipsoids 100 %"


def pair_facts(section):
    """Return the sentences about pairs of norm layers."""
    return [fact for fact in section.facts if "two norm layers" in fact]


def test_the_scales_of_pairs_of_norm_layers_stand_beside_permuted_features(section_of):
    section = section_of(sphere_group(0.05, PLANE).assign(SCALES))
    correlation, overlap = pair_facts(section)
    assert_says(correlation, CORRELATION)
    assert_says(overlap, OVERLAP)
    assert not any("hyperplanes" in fact for fact in section.facts)
    assert [one.name for one in section.maps] == ["sphere.scale_correlation", "sphere.ellipsoid_overlap"]
    drawn = [one.draw().data[0] for one in section.maps]
    assert [one.z[0][2] for one in drawn] == [-0.3, 0.6]
    assert all(one.zmax < 1 == one.z[0][0] for one in drawn)  # the diagonal does not set the scale
    assert [one.zmin == -one.zmax for one in drawn] == [True, False]


def test_norm_layers_of_the_same_kind_are_told_from_those_of_different_kinds(section_of):
    data = sphere_group(0.05, PLANE).assign({**SCALES, "scale_correlation": pairs(0.5, -0.3, 0.2)})
    data = data.assign_coords(norm=["0.attention", "1.attention", "final"])
    of_kinds = "0.20 (0.50 between norm layers of … same kind, -0.05 between kinds"
    assert_says(pair_facts(section_of(data))[0], CORRELATION.replace("0.25 (0.25 between kinds", of_kinds))


def test_constant_scales_have_no_correlation_and_no_null_of_it(section_of):
    constant = {**SCALES, "scale_correlation": (("norm", "norm_other"), np.full((3, 3), np.nan))}
    section = section_of(sphere_group(0.05, PLANE).assign(constant))
    (only,) = pair_facts(section)
    assert_says(only, OVERLAP)
    assert [one.name for one in section.maps] == ["sphere.ellipsoid_overlap"]


def test_ellipsoids_without_an_overlap_have_only_the_correlation_of_their_scales(section_of):
    unknown = {**SCALES, "ellipsoid_overlap": (("norm", "norm_other"), np.full((3, 3), np.nan))}
    section = section_of(sphere_group(0.05, PLANE).assign(unknown))
    (only,) = pair_facts(section)
    assert_says(only, CORRELATION)
    assert [one.name for one in section.maps] == ["sphere.scale_correlation"]


def test_planes_of_layer_norms_have_the_cosine_of_their_normals(section_of):
    section = section_of(sphere_group(0.05, PLANE).assign(plane_normal_cosine=pairs(0.9, 0.5, np.nan)))
    assert_says(section.facts, "absolute cosine … normals … two layer norms … 0.70 … 1, random … 0.15")
