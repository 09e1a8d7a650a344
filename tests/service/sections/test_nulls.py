"""Sentences and figures that hold a statistic against its null or control, also for runs of older versions."""

import numpy as np
import pytest
import xarray as xr
from support.finished_runs import finished_run

from theodolite.sections import curves, gram, sphere, weights

SETS = ["harmful", "harmless"]
SHAPE = {
    "participation_ratio": 20.0,
    "standardised_participation_ratio": 25.0,
    "participation_ratio_gaussian": 90.0,
    "mean_cosine": 0.9,
}
THROUGH = {"cka_attention": 0.994, "cka_mlp": 0.98, "cka_block": 0.97}
BRANCHES = {"cka_attention_branch": 0.763, "cka_mlp_branch": 0.9, "cka_block_branch": 0.85}
DIMENSION = np.array([10.0, 16.0, 12.0, 8.0])
GAUSSIAN = {
    "intrinsic_dimension": DIMENSION,
    "intrinsic_dimension_gaussian": 20.0,
    "intrinsic_dimension_gaussian_sd": 1.5,
}


def section_of(tmp_path, module, name, values):
    (section,) = module.sections(finished_run(tmp_path, {"curves": {}, name: values}))
    return section


def text_of(tmp_path, values):
    return " ".join(section_of(tmp_path, gram, "gram", values).facts)


def lines_of(section, name):
    (figure,) = (one for one in section.figures if one.name == name)
    return [trace.name for trace in figure.draw().data if trace.name]


def test_cka_through_a_block_stands_beside_the_cka_of_its_branch(tmp_path):
    section = section_of(tmp_path, gram, "gram", {**SHAPE, **THROUGH, **BRANCHES})
    text = " ".join(section.facts)
    assert "0.994 for attention, 0.980 for the MLP, 0.970 for the whole block (smallest 0.970)" in text
    assert "the branch alone adds: 0.763 for attention, 0.900 for the MLP, 0.850 for the whole block." in text
    assert "leave out" not in text
    assert lines_of(section, "gram.blocks").count("harmful, attention") == 2


def test_parallel_blocks_state_only_the_steps_that_they_have(tmp_path):
    text = text_of(tmp_path, {**SHAPE, "cka_block": 0.97, "cka_block_branch": 0.85})
    assert "over layers and sets: 0.970 for the whole block (smallest 0.970)." in text
    assert "the branch alone adds: 0.850 for the whole block." in text


def test_medians_of_cka_leave_out_and_name_sets_of_one_direction(tmp_path):
    ratios = np.full((2, 2, 1, 4), 20.0)
    ratios[1, 0, 0] = [1.001, 1.9, 1.5, 60.0]  # below 2 at three of four depths of resid_pre
    cka = np.array([0.9, 0.5])[:, None, None]
    text = text_of(tmp_path, {**SHAPE, **THROUGH, "participation_ratio": ratios, "cka_attention": cka})
    assert "0.900 for attention" in text
    assert "The medians of CKA leave out harmless: the participation ratio is below 2 at most depths" in text
    ratios[1, 0, 0, 2] = 2.0
    text = text_of(tmp_path / "half", {**SHAPE, **THROUGH, "participation_ratio": ratios, "cka_attention": cka})
    assert "0.700 for attention" in text
    assert "leave out" not in text


def test_no_median_is_stated_if_all_sets_have_one_direction(tmp_path):
    text = text_of(tmp_path, {**SHAPE, **THROUGH, **BRANCHES, "participation_ratio": 1.1})
    assert "Median debiased CKA" not in text
    assert "leave out harmful, harmless" in text


def test_the_dimension_stands_beside_that_of_gaussian_samples(tmp_path):
    section = section_of(tmp_path, gram, "gram", {**SHAPE, **GAUSSIAN})
    (fact,) = (fact for fact in section.facts if "TwoNN dimension of harmful" in fact)
    assert "at resid_pre: 16.0 in layer 1; Gaussian samples with as many prompts" in fact
    assert "give 20.0 ± 1.5." in fact
    assert "the dimension is 0.40 to 0.80 of that of the Gaussian samples" in fact
    assert "harmful, Gaussian with the same covariance" in lines_of(section, "gram.shape")


def test_a_run_without_nulls_of_gram_has_its_other_sentences(tmp_path):
    section = section_of(tmp_path, gram, "gram", {**SHAPE, **THROUGH, "intrinsic_dimension": DIMENSION})
    text = " ".join(section.facts)
    assert "0.994 for attention" in text
    assert "Gaussian samples" not in text
    assert "branch" not in text
    assert not any("Gaussian" in name for name in lines_of(section, "gram.shape"))
    assert lines_of(section, "gram.blocks").count("harmful, attention") == 1


NORMS = ["0.attention", "0.mlp", "final"]


def sphere_group(fitted, scales, axes=None):
    """A group with two sets and three norm layers; `scales` are √d|γ| of each norm layer."""
    per_norm, radii = ("set", "position", "norm"), np.sort(scales)[:, ::-1]

    def numbers(values):
        return per_norm, np.broadcast_to(values, (2, 1, 3))

    variables = {
        "norm_before_mean": numbers([3.0, 10.0, 800.0]),
        "norm_before_min": numbers(1.0),
        "norm_before_max": numbers(900.0),
        "relative_spread": numbers([0.03, 0.06, 0.084]),
        "relative_spread_gaussian": numbers(0.03),
        "relative_spread_gaussian_fitted": numbers(fitted),
        "ellipsoid_residual": numbers(1e-5),
        "length_variance_share": numbers(0.02),
        "n_samples": (("set", "position"), np.full((2, 1), 256)),
        "n_fitted": (("set", "position"), np.full((2, 1), 250)),
        "semi_axes": (("norm", "d_model"), radii if axes is None else axes),
        "scale_radii": (("norm", "d_model"), radii),
    }
    labels = {"set": SETS, "position": [-1], "norm": NORMS, "d_model": range(radii.shape[1])}
    return xr.Dataset(variables, labels)


def sphere_section(tmp_path, monkeypatch, *arguments):
    monkeypatch.setattr(sphere, "read_group", lambda *_: sphere_group(*arguments))
    monkeypatch.setattr(sphere, "colours_of", lambda *_: dict.fromkeys(SETS, "#123456"))
    (section,) = sphere.sections(finished_run(tmp_path, {"curves": {}}))
    return section


def test_the_spread_of_the_norm_stands_beside_both_gaussians(tmp_path, monkeypatch):
    section = sphere_section(tmp_path, monkeypatch, [0.03, 0.05, 0.07], np.ones((3, 20)))
    assert (
        "over prompts: 8.40 %, at the norm layer “final”; a standard Gaussian with d_model dimensions has 3.00 % (the "
        "measured value is 2.80 times that; the median of this ratio over norm layers is 2.00). A Gaussian with the "
        "mean and the covariance of 250 of these prompts has 7.00 % (the measured value is 1.20 times that; the median "
        "of this ratio over norm layers is 1.20)."
    ) in section.facts[0]
    assert {"standard Gaussian", "harmful, fitted Gaussian"} <= set(lines_of(section, "sphere.norms"))


def test_an_older_sphere_has_no_fitted_gaussian(tmp_path, monkeypatch):
    section = sphere_section(tmp_path, monkeypatch, np.nan, np.ones((3, 20)))
    assert "2.80 times" in section.facts[0]
    assert "A Gaussian with the mean" not in section.facts[0]
    assert "harmful, fitted Gaussian" not in lines_of(section, "sphere.norms")


def test_ellipsoids_are_described_by_quantiles_and_dead_features(tmp_path, monkeypatch):
    scales = np.ones((3, 101))
    scales[1] = np.linspace(1, 3, 101)  # quantiles 1.1, 2 and 2.9
    scales[2, :2] = 0, 1e-7
    facts = sphere_section(tmp_path, monkeypatch, 0.05, scales).facts
    (axes,) = (fact for fact in facts if fact.startswith("Quantiles"))
    assert "of the ellipsoid of outputs: 1.1, 2 and 2.9 at the norm layer “0.mlp”" in axes
    assert "There the last is 2.6 times the first, the largest ratio of 3 norm layers (median 1);" in axes
    assert "Dead features (|γ| of at most 1e-06 of the norm layer's median): 2 of 303 in 3 norm layers." in facts
    assert not any("Most elongated" in fact for fact in facts)


def weights_group(between, folded, written=0.2, folded_written=np.nan):
    """A group of three layers; `between` and `folded` are overlaps of (writing_matrix, reading_matrix)."""
    labels = {
        "writing_matrix": ["o", "down"],
        "reading_matrix": ["q", "k", "v", "gate", "up"],
        "layer": range(3),
        "layer_other": range(3),
    }
    later = np.where(np.triu(np.ones((3, 3)), 1) > 0, 1.0, np.nan)

    def overlap(values):
        return tuple(labels), np.broadcast_to(values, (2, 5))[..., None, None] * later

    def own(values):
        return ("writing_matrix", "layer", "layer_other"), np.full((2, 3, 3), values)

    variables = {
        "writer_reader_overlap": overlap(between),
        "folded_writer_reader_overlap": overlap(folded),
        "writing_overlap": own(written),
        "folded_writing_overlap": own(folded_written),
        "random_overlap": 0.05,
    }
    return xr.Dataset(variables, labels, {"rank": 2})


def weights_section(monkeypatch, *arguments):
    monkeypatch.setattr(weights, "read_group", lambda *_: weights_group(*arguments))
    (section,) = weights.sections(None)
    return section


def test_overlaps_are_quoted_as_stored_and_with_norms_folded(monkeypatch):
    stored, folded = np.full((2, 5), 0.10), np.full((2, 5), 0.07)
    stored[1, 4], folded[1, 4] = 0.25, 0.15
    section = weights_section(monkeypatch, stored, folded)
    assert (
        "Of all 10 combinations of a writing matrix with a reading matrix of later layers, W_down with W_up has the "
        "largest mean overlap, both as stored and with norms folded. Over all pairs of layers it is 25.0 % as stored "
        "and 15.0 % with norms folded (random subspaces give 5.0 %)."
    ) in section.facts
    # the excess falls from 5 to 2 %, and in one combination from 20 to 10 %
    assert section.facts[-2:] == [
        "Folding the norms changes how far the mean overlap of W_O with a reading matrix exceeds that of random "
        "subspaces: by -60 % to -60 % of this excess (5 reading matrices).",
        "Folding the norms changes how far the mean overlap of W_down with a reading matrix exceeds that of random "
        "subspaces: by -60 % to -50 % of this excess (5 reading matrices).",
    ]
    captions = [one.caption for one in section.maps]
    caption = "overlap of W_down with W_up of later layers"
    assert {caption, f"{caption}, norms folded"} <= set(captions)
    assert "overlap of the W_O of two layers, norms folded" not in captions
    assert len({one.name for one in section.maps}) == len(section.maps)
    assert all(one.draw().data for one in section.maps)


def test_another_pair_can_be_the_largest_when_norms_are_folded(monkeypatch):
    stored, folded = np.full((2, 5), 0.10), np.full((2, 5), 0.07)
    stored[1, 4], folded[0, 1] = 0.25, 0.3
    facts = weights_section(monkeypatch, stored, folded).facts
    assert any(
        "W_down with W_up has the largest mean overlap, as stored. Over all pairs of layers it is 25.0 %" in fact
        for fact in facts
    )
    assert any(
        "W_O with W_K has the largest mean overlap, with norms folded. Over all pairs of layers it is 10" in fact
        for fact in facts
    )


def test_norms_behind_writers_change_what_they_write(monkeypatch):
    section = weights_section(monkeypatch, 0.1, 0.07, 0.4, 0.3)
    assert any("that W_O writes: 40.0 %" in fact for fact in section.facts)
    assert any("that W_O (norms folded) writes: 30.0 %" in fact for fact in section.facts)
    assert "overlap of the W_O of two layers, norms folded" in [one.caption for one in section.maps]


def test_older_weights_have_only_the_stored_overlaps(monkeypatch):
    section = weights_section(monkeypatch, 0.1, np.nan)
    assert not any("folded" in text for text in [*section.facts, *(one.caption for one in section.maps)])


@pytest.mark.parametrize("share", [0.022, 0.9])
def test_the_share_of_the_leading_features_is_stated_not_assumed(tmp_path, share):
    values = {"variance_max": 5.0, "variance_mean": 1.0, "variance_top3_share": share}
    section = section_of(tmp_path, curves, "curves", values)
    text = f"The three features with the largest variances have {100 * share:.1f} % to {100 * share:.1f} % of"
    assert any(text in fact and "would have 37.5 %" in fact for fact in section.facts)  # three of eight
    assert "In many models" not in section.how_to_read
    older = section_of(tmp_path / "older", curves, "curves", {"variance_max": 5.0, "variance_mean": 1.0})
    assert not any("three features" in fact for fact in older.facts)
