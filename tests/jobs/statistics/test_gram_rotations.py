import numpy as np
from support.each import each

from theodolite_jobs.groups.gram.formulas import eigenvalues, intrinsic_dimension
from theodolite_jobs.groups.gram.formulas_rotations import (
    DRAWS,
    intrinsic_dimension_of_rotations,
    random_frame,
    rotations,
)
from theodolite_jobs.statistics.gram_matrices import gram


def of_samples(x):
    return gram(x - x.mean(axis=0))


def draw(seed, n, d, exponent, mean=0.0):
    """Gaussian samples whose k-th feature has the variance k^−exponent."""
    return np.random.default_rng(seed).normal(size=(n, d)) * np.arange(1, d + 1) ** (-exponent / 2) + mean


@each("n", [3, 10, 61])
def test_a_frame_is_orthonormal_and_orthogonal_to_the_constant(n):
    frame = random_frame(n)
    assert frame.shape == (n, n - 1)
    np.testing.assert_allclose(frame.T @ frame, np.eye(n - 1), atol=1e-12)
    np.testing.assert_allclose(frame.sum(axis=0), 0, atol=1e-12)


@each("n, d", [(10, 40), (40, 10)])
def test_rotated_gram_matrices_are_centred_and_keep_the_eigenvalues(n, d):
    values = eigenvalues(of_samples(draw(0, n, d, 1, mean=3)))
    matrices = list(rotations(values))
    assert len(matrices) == DRAWS
    for matrix in matrices:
        np.testing.assert_allclose(matrix.sum(axis=0), 0, atol=1e-10 * values.max())
        np.testing.assert_allclose(eigenvalues(matrix), values, atol=1e-10 * values.max())
    assert np.abs(matrices[0] - matrices[1]).max() > 0.01 * values.max()


def test_a_rotation_is_the_gram_matrix_of_samples_with_the_same_mean_and_covariance():
    """The samples are Q x with Q = V Bᵀ + 11ᵀ/n; B are the eigenvectors of x's Gram matrix, V those of the rotation."""
    x = draw(1, 12, 20, 1, mean=2)
    values, vectors = np.linalg.eigh(of_samples(x))
    matrix = next(rotations(np.maximum(values, 0)))
    _, turned = np.linalg.eigh(matrix)
    rotation = turned[:, 1:] @ vectors[:, 1:].T + np.ones((12, 12)) / 12
    np.testing.assert_allclose(rotation @ rotation.T, np.eye(12), atol=1e-9)
    moved = rotation @ x
    np.testing.assert_allclose(moved.mean(axis=0), x.mean(axis=0), atol=1e-9)
    np.testing.assert_allclose(np.cov(moved.T), np.cov(x.T), atol=1e-9)
    np.testing.assert_allclose(matrix, of_samples(moved), atol=1e-9)


@each("n, d, exponent", [(64, 200, 0), (64, 200, 1), (64, 200, 2), (150, 30, 0)])
def test_rotations_of_gaussian_samples_have_the_dimension_of_the_samples(n, d, exponent):
    """Means over 24 sets of samples; draws from the sample covariance would give 27 instead of 90 for flat spectra."""
    own, rotations = [], []
    for seed in range(24):
        matrix = of_samples(draw(seed, n, d, exponent, mean=1))
        own.append(intrinsic_dimension(matrix)[0])
        rotations.append(intrinsic_dimension_of_rotations(eigenvalues(matrix)))
    means, sds = np.transpose(rotations)
    # The frame is the same for all sets, so its own error enters once.
    error = np.hypot(np.std(own) / np.sqrt(24), np.mean(sds) / np.sqrt(DRAWS))
    assert abs(np.mean(own) - np.mean(means)) < 4 * error < 0.3 * np.mean(own)
    assert 0.4 < np.mean(sds) / np.std(own) < 2


def test_a_curved_sheet_has_a_smaller_dimension_than_its_rotations():
    angles = np.random.default_rng(0).uniform(0, 2 * np.pi, size=(200, 2))
    waves = np.concatenate([trig(k * angles) for k in (1, 2, 3) for trig in (np.sin, np.cos)], axis=1)
    matrix = of_samples(waves)
    mean, sd = intrinsic_dimension_of_rotations(eigenvalues(matrix))
    assert intrinsic_dimension(matrix)[0] < 3
    assert mean - 3 * sd > 6


def test_rotations_do_not_depend_on_scale():
    values = eigenvalues(of_samples(draw(3, 20, 6, 1)))
    np.testing.assert_allclose(
        intrinsic_dimension_of_rotations(1e6 * values), intrinsic_dimension_of_rotations(values), rtol=1e-6
    )


@each("values", [np.zeros(0), np.ones(2), np.zeros(9), np.full(9, np.nan)])
def test_too_few_equal_or_missing_samples_have_no_reference(values):
    assert np.isnan(intrinsic_dimension_of_rotations(values)).all()
