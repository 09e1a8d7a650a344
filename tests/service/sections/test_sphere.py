"""Sentences, maps and figures about norm layers."""

import numpy as np
import pytest
import xarray as xr
from support.finished_runs import cached_run

from theodolite.groups import GROUPS
from theodolite.groups.sphere import sections as sphere

SETS = ["harmful", "harmless"]
NORMS = ["0.attention", "0.mlp", "final"]


PLANE = np.ones((3, 20))
SPREAD = "Largest relative spread of the input's norm over prompts (standard deviation divided by mean): "
FITTED = (
    "there a Gaussian with the mean and covariance of {} gives 7.00 %; over 3 norm layers, the measured value is "
    "{:.2f} to {:.2f} times that of the Gaussian, median {:.2f}"
)
SOME_120 = FITTED.format("the first 250 prompts", 1.0, 1.2, 1.2)
LENGTHS = (
    "Share of the input's variance that is variance of its length, over norm layers (the rest is variance of its "
    "direction): "
)


GAUSSIAN = (
    ", at “final” (a Gaussian with the mean and covariance of the first 250 prompts: median about {} %, and {} % at "
    "“final”)"
)


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


def starting(section, text):
    """Return the only sentence that starts with this text."""
    (fact,) = (fact for fact in section.facts if fact.startswith(text))
    return fact


def lines_of(section, name):
    (figure,) = (one for one in section.figures if one.name == name)
    return [trace.name for trace in figure.draw().data if trace.name]


def test_the_norms_of_all_sets_stand_in_one_sentence(section_of):
    norms = np.array([[3.0, 10.0, 800.0], [4.0, 20.0, 1234.0]])[:, None]
    section = section_of(sphere_group(0.07, PLANE, euclidean_norm=norms))
    assert section.facts[0] == (
        "Mean norm of the input of the norm layers “0.attention” (first) and “final” (last): harmful 3 and 800; "
        "harmless 4 and 1.23e+03."
    )
    captured = section_of(sphere_group(0.07, PLANE, euclidean_norm=[np.nan, 10.0, 800.0]))
    assert captured.facts[0].startswith(
        "Mean norm of the input of the norm layers “0.mlp” (first) and “final” (last): "
    )


def test_the_spread_of_the_norm_stands_beside_the_fitted_gaussian(section_of):
    section = section_of(sphere_group([0.03, 0.05, 0.07], PLANE))
    assert section.facts[1] == (
        f"{SPREAD}harmful 8.40 % at “final” (n = 256; {SOME_120}); harmless 8.40 % at “final” (n = 255; {SOME_120})."
    )
    assert {"standard Gaussian", "harmful, fitted Gaussian"} <= set(lines_of(section, "sphere.norms"))


def test_a_gaussian_can_be_fitted_to_all_prompts(section_of):
    counts = ("set", "position"), np.array([[250], [255]])
    section = section_of(sphere_group([0.03, 0.05, 0.07], PLANE).assign(n_samples=counts))
    every = FITTED.format("these prompts", 1.0, 1.2, 1.2)
    assert section.facts[1] == (
        f"{SPREAD}harmful 8.40 % at “final” (n = 250; {every}); harmless 8.40 % at “final” (n = 255; {SOME_120})."
    )


def test_a_norm_layer_without_a_spread_has_no_ratio(section_of):
    spread, fitted = [0.0, 0.06, 0.084], [0.0, 0.03, 0.07]  # the first input is the same in all prompts
    section = section_of(sphere_group(fitted, PLANE, relative_spread=spread))
    some = FITTED.format("the first 250 prompts", 1.2, 2.0, 1.6).replace("over 3", "over 2")
    assert section.facts[1].endswith(f"(n = 255; {some}).")  # the median of 2 and 1.2


def test_norm_layers_without_a_fitted_gaussian_have_only_the_measured_spread(section_of):
    section = section_of(sphere_group(np.nan, PLANE))
    assert section.facts[1] == f"{SPREAD}harmful 8.40 % at “final” (n = 256); harmless 8.40 % at “final” (n = 255)."
    assert "harmful, fitted Gaussian" not in lines_of(section, "sphere.norms")


def test_the_share_of_length_stands_beside_that_of_the_fitted_gaussian(section_of):
    """The squared ratios of the Gaussian's spread to the measured one are 4, 1 and 0.51."""
    shares = np.array([[0.01, 0.02, 0.4], [np.nan, 0.1, 0.2]])[:, None]
    section = section_of(sphere_group(0.06, PLANE, length_variance_share=shares))
    assert section.facts[2] == (
        f"{LENGTHS}harmful median 2.0 %, largest 40.0 %{GAUSSIAN.format('4.0', '20.4')}; harmless median 15.0 %, "
        f"largest 20.0 %{GAUSSIAN.format('10.1', '10.2')}."
    )
    without = section_of(sphere_group(np.nan, PLANE, length_variance_share=shares))
    assert without.facts[2] == (
        f"{LENGTHS}harmful median 2.0 %, largest 40.0 %; harmless median 15.0 %, largest 20.0 %."
    )


def test_sets_without_a_number_are_left_out_of_its_sentence(section_of):
    numbers = np.array([[np.nan] * 3, [0.1, 0.2, 0.3]])[:, None]
    few = section_of(sphere_group(0.06, PLANE, relative_spread=numbers, length_variance_share=numbers))
    assert starting(few, SPREAD).startswith(f"{SPREAD}harmless 30.00 % at “final” (n = 255; there a Gaussian")
    # The Gaussian has 0.1·0.6², 0.2·0.3² and 0.3·0.2².
    assert starting(few, LENGTHS) == f"{LENGTHS}harmless median 20.0 %, largest 30.0 %{GAUSSIAN.format('1.8', '1.2')}."
    assert few.facts[0].endswith(": harmful 3 and 800; harmless 3 and 800.")
    none = section_of(sphere_group(0.07, PLANE, relative_spread=np.nan, length_variance_share=np.nan))
    assert not any(fact.startswith((SPREAD, LENGTHS)) for fact in none.facts)
    norms = np.array([[np.nan] * 3, [3.0, 10.0, 800.0]])[:, None]
    unmeasured = section_of(sphere_group(0.07, PLANE, euclidean_norm=norms))
    assert not any("harmful" in fact for fact in unmeasured.facts)
    assert [fact.partition(": ")[2].startswith("harmless ") for fact in unmeasured.facts[:3]] == [True] * 3


def test_the_largest_distance_from_the_sphere_has_its_norm_layer(section_of):
    residual = np.array([[1e-6, 3e-5, np.nan], [2e-6, 4e-5, 1e-5]])[:, None]
    section = section_of(sphere_group(0.07, PLANE, ellipsoid_residual=residual))
    assert starting(section, "Largest distance") == (
        "Largest distance of a norm layer's output, before its scale and bias, from the sphere of radius √d_model: "
        "4.0e-05 of the radius, at “0.mlp”. The ε in the formula of the norm causes this."
    )


def test_ellipsoids_are_described_by_quantiles_and_dead_features(section_of):
    scales = np.ones((3, 101))
    scales[1] = np.linspace(1, 3, 101)  # quantiles 1.1, 2 and 2.9
    scales[2, :2] = 0, 1e-7
    section = section_of(sphere_group(0.05, scales))
    axes = starting(section, "Quantiles")
    assert "of the ellipsoid of outputs: 1.1, 2 and 2.9 at the norm layer “0.mlp”" in axes
    ratio = "There the 95 % quantile is 2.6 times the 5 % quantile, the largest ratio of 3 norm layers (median 1);"
    assert f"{ratio} on a sphere it is 1." in axes
    dead = "Dead features (|γ| of at most 1e-06 of the norm layer's median): 2 of 303 in 3 norm layers."
    assert dead in section.facts
    assert not any("Most elongated" in fact for fact in section.facts)


SCALES = {
    "scale_correlation": pairs(0.5, -0.3, 0.25),
    "ellipsoid_overlap": pairs(0.8, 0.6, 0.7),
    "ellipsoid_overlap_permuted": pairs(0.5, 0.4, 0.45),
}
CORRELATION = (
    "Correlation over features between the scales γ of two norm layers: 0.25 (0.25 between kinds (attention, MLP, "
    "final); medians over pairs; permuted features give 0 ± 0.22)."
)
OVERLAP = (
    "Overlap of the ellipsoids of two norm layers along a feature (the range that both cover, divided by the range "
    "that at least one covers): 70 % (mean over features, median over pairs; permuted features give 45 %, equal "
    "ellipsoids 100 %). If one ellipsoid is only larger by a constant factor, the overlap is also below 100 %."
)


def pair_facts(section):
    """Return the sentences about pairs of norm layers."""
    return [fact for fact in section.facts if "two norm layers" in fact]


def test_the_scales_of_pairs_of_norm_layers_stand_beside_permuted_features(section_of):
    section = section_of(sphere_group(0.05, PLANE).assign(SCALES))
    assert pair_facts(section) == [CORRELATION, OVERLAP]
    assert not any("hyperplanes" in fact for fact in section.facts)
    assert [one.name for one in section.maps] == ["sphere.scale_correlation", "sphere.ellipsoid_overlap"]
    assert [one.caption for one in section.maps] == [
        "correlation over features between the scales γ of two norm layers",
        "overlap of the ellipsoids of two norm layers",
    ]
    drawn = [one.draw().data[0] for one in section.maps]
    assert [one.z[0][2] for one in drawn] == [-0.3, 0.6]
    assert all(one.zmax < 1 == one.z[0][0] for one in drawn)  # the diagonal does not set the scale
    assert [one.zmin == -one.zmax for one in drawn] == [True, False]


def test_norm_layers_of_the_same_kind_are_told_from_those_of_different_kinds(section_of):
    data = sphere_group(0.05, PLANE).assign({**SCALES, "scale_correlation": pairs(0.5, -0.3, 0.2)})
    data = data.assign_coords(norm=["0.attention", "1.attention", "final"])
    assert pair_facts(section_of(data))[0] == CORRELATION.replace(
        "0.25 (0.25 between kinds",
        "0.20 (0.50 between norm layers of the same kind, -0.05 between kinds",
    )


def test_constant_scales_have_no_correlation_and_no_null_of_it(section_of):
    constant = {**SCALES, "scale_correlation": (("norm", "norm_other"), np.full((3, 3), np.nan))}
    section = section_of(sphere_group(0.05, PLANE).assign(constant))
    assert pair_facts(section) == [OVERLAP]
    assert [one.name for one in section.maps] == ["sphere.ellipsoid_overlap"]


def test_ellipsoids_without_an_overlap_have_only_the_correlation_of_their_scales(section_of):
    unknown = {**SCALES, "ellipsoid_overlap": (("norm", "norm_other"), np.full((3, 3), np.nan))}
    section = section_of(sphere_group(0.05, PLANE).assign(unknown))
    assert pair_facts(section) == [CORRELATION]
    assert [one.name for one in section.maps] == ["sphere.scale_correlation"]


def test_planes_of_layer_norms_have_the_cosine_of_their_normals(section_of):
    section = section_of(sphere_group(0.05, PLANE).assign(plane_normal_cosine=pairs(0.9, 0.5, np.nan)))
    assert starting(section, "Median absolute cosine") == (
        "Median absolute cosine between the normals of the hyperplanes in which the outputs of two layer norms lie: "
        "0.70; one shared plane gives 1, random directions about 0.15."
    )
