"""Similarity of norm layers' ellipsoids, by hand and against NumPy."""

import numpy as np
import pytest
from support.each import each

from theodolite_jobs.groups.sphere.formulas_ellipsoids import (
    ellipsoid_overlaps,
    plane_normal,
    scale_correlations,
    scale_cosines,
)
from theodolite_jobs.statistics.norms import Norm, normalised


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def norm_of(scale, bias=None, kind="layer"):
    scale = np.asarray(scale, dtype=np.float32)
    return Norm(kind, 1e-6, scale, np.zeros_like(scale) if bias is None else np.asarray(bias, dtype=np.float32))


def test_outputs_of_a_layer_norm_lie_in_the_plane_of_its_normal():
    norm = norm_of(1 + 0.5 * random(12), random(12, seed=1))
    outputs = normalised(random(40, 12, seed=2), norm)
    normal = plane_normal(norm)
    np.testing.assert_allclose((outputs - norm.bias) @ normal, 0, atol=1e-6)
    assert np.linalg.norm(normal) == pytest.approx(1)


@each("norm", [norm_of([1, 2, 3], kind="rms"), norm_of([1, 0, 3])])
def test_rms_norms_and_dead_features_have_no_normal(norm):
    assert np.isnan(plane_normal(norm)).all()


def test_cosines_and_correlations_equal_numpy():
    scales = np.abs(1 + 0.3 * random(4, 50))
    np.testing.assert_allclose(scale_correlations(scales), np.corrcoef(scales), rtol=1e-12)
    lengths = np.linalg.norm(scales, axis=1)
    np.testing.assert_allclose(scale_cosines(scales), scales @ scales.T / np.outer(lengths, lengths), rtol=1e-12)


def test_a_constant_scale_has_a_cosine_and_no_correlation():
    scales = np.array([[0.1] * 5, [0.1, 0.2, 0.3, 0.4, 0.5]], dtype=np.float32)
    assert np.isnan(scale_correlations(scales)).tolist() == [[True, True], [True, False]]
    assert np.isfinite(scale_cosines(scales)).all()


def test_overlaps_of_ranges_by_hand():
    """With d = 4 the radii are 2|γ|: [-2, 2] and [-1, 1], [0, 4], [3, 5] and a point twice."""
    first = norm_of([1, 1, 1, 0], [0, 0, 0, 7])
    second = norm_of([0.5, 1, 0.5, 0], [0, 2, 4, 7])
    overlap, _ = ellipsoid_overlaps([first, second])
    assert overlap[0, 1] == overlap[1, 0] == pytest.approx((2 / 4 + 2 / 6 + 0 + 1) / 4)
    np.testing.assert_array_equal(np.diag(overlap), 1)


def test_permuted_features_overlap_as_features_drawn_at_random():
    """Half of the features have the radius 1, the other half 3: two at random share 1, 1/3, 1/3 or 1."""
    scales = np.repeat([1.0, 3.0], 500)
    overlap, permuted = ellipsoid_overlaps([norm_of(scales), norm_of(scales[::-1])])
    assert overlap[0, 1] == pytest.approx(1 / 3)
    assert permuted == pytest.approx(np.full((2, 2), 2 / 3), abs=0.02)
