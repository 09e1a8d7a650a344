import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.each import each
from support.shapes import unchecked

from theodolite_jobs.groups.weights.formulas import (
    folded_reader,
    folded_writer,
    leading_basis,
    overlap,
    random_overlap,
    random_square,
    with_row_lengths,
)
from theodolite_jobs.statistics.norms import Norm, projected

SEEDS = st.integers(0, 1000)


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def written_by(matrix, rank):
    """The leading left singular vectors of (d_model, …)."""
    return np.linalg.svd(matrix)[0][:, :rank]


def projector(basis):
    return basis @ basis.T


@each("d, columns, rank", [(48, 80, 12), (48, 16, 16), (20, 20, 1), (30, 100, 30)])
def test_the_leading_basis_is_that_of_the_singular_vectors(d, columns, rank):
    matrix = random(d, columns) * np.geomspace(1, 0.01, columns)
    basis = leading_basis(matrix @ matrix.T, rank)
    assert basis.shape == (d, rank)
    np.testing.assert_allclose(basis.T @ basis, np.eye(rank), atol=1e-12)
    np.testing.assert_allclose(projector(basis), projector(written_by(matrix, rank)), atol=1e-7)  # values are squared
    # the largest first
    for index, vector in enumerate(basis.T[:3]):
        np.testing.assert_allclose(abs(vector @ written_by(matrix, index + 1)[:, index]), 1, rtol=1e-8)


@given(SEEDS, st.integers(1, 10))
@settings(deadline=None)
def test_overlap_of_a_subspace_with_itself_is_one_for_any_basis(seed, rank):
    basis = written_by(random(20, 20, seed=seed), rank)
    turn, _ = np.linalg.qr(random(rank, rank, seed=seed + 1))
    np.testing.assert_allclose(overlap(basis, basis), 1, rtol=1e-12)
    np.testing.assert_allclose(overlap(basis, basis @ turn), 1, rtol=1e-12)


@given(SEEDS, st.integers(1, 10))
@settings(deadline=None)
def test_overlap_is_the_mean_squared_cosine_of_principal_angles(seed, rank):
    first, second = (written_by(random(20, 20, seed=seed + index), rank) for index in (0, 1))
    cosines = np.linalg.svd(first.T @ second, compute_uv=False)
    np.testing.assert_allclose(overlap(first, second), np.mean(cosines**2), rtol=1e-10)
    np.testing.assert_allclose(overlap(first, second), np.trace(projector(first) @ projector(second)) / rank, rtol=1e-9)
    assert overlap(first, second) == pytest.approx(overlap(second, first), rel=1e-12)


def test_overlap_is_zero_for_orthogonal_and_half_for_half_shared_subspaces():
    whole = np.eye(8)
    assert overlap(whole[:, :4], whole[:, 4:]) == 0
    assert overlap(whole[:, :4], whole[:, 2:6]) == 0.5


@each("d, rank", [(48, 12), (100, 20)])
def test_overlap_of_random_subspaces_is_r_over_d(d, rank):
    found = [
        overlap(leading_basis(x @ x.T, rank), leading_basis(y @ y.T, rank))
        for x, y in (random(2, d, d, seed=seed) for seed in range(20))
    ]
    standard_error = np.std(found) / np.sqrt(20)
    assert abs(np.mean(found) - rank / d) < 4 * standard_error < 0.2 * rank / d


@each("kind", ["rms", "layer"])
def test_folded_squares_are_those_of_the_folded_matrices(kind):
    """A reader sees normalised samples; the norm behind a writer acts on what the matrix writes."""
    d, scale = 12, random(12, seed=3)
    norm = Norm(kind, 0.0, scale, np.zeros(d))
    reader, writer, samples, hidden = random(d, 7), random(7, d, seed=1), random(5, d, seed=2), random(5, 7, seed=4)
    # x Π diag(γ) W = x W′, so W′W′ᵀ is the sum over unit vectors x of the products of what they give
    read = (projected(np.eye(d), norm) * scale) @ reader
    np.testing.assert_allclose(projected(samples, norm) * scale @ reader, samples @ read, atol=1e-12)
    np.testing.assert_allclose(folded_reader(reader @ reader.T, norm), read @ read.T, atol=1e-12)
    written = projected(writer, norm) * scale
    np.testing.assert_allclose(projected(hidden @ writer, norm) * scale, hidden @ written, atol=1e-12)
    np.testing.assert_allclose(folded_writer(writer.T @ writer, norm), written.T @ written, atol=1e-12)


def test_folding_a_scale_of_ones_changes_nothing():
    square = random(9, 4) @ random(9, 4).T
    norm = Norm("rms", 0.0, np.ones(9), np.zeros(9))
    for fold in (folded_reader, folded_writer):
        np.testing.assert_array_equal(fold(square, norm), square)


@each("d, rank", [(2, 1), (12, 3), (40, 30)])
@unchecked()
def test_the_overlap_of_random_subspaces_has_the_stated_mean_and_spread(d, rank):
    rng = np.random.default_rng(0)
    overlaps = []
    for _ in range(4000):
        first, second = (np.linalg.qr(rng.normal(size=(d, rank)))[0] for _ in range(2))
        overlaps.append(overlap(first, second))
    mean, sd = random_overlap(rank, d)
    assert np.mean(overlaps) == pytest.approx(mean, abs=4 * sd / np.sqrt(4000))
    assert np.std(overlaps) == pytest.approx(sd, rel=0.06)
    assert random_overlap(d, d) == (1, 0)


@unchecked()
def test_a_random_square_has_the_moments_of_a_wishart_matrix():
    """E RRᵀ = n·I and E (RRᵀ)² = n(n + d + 1)·I, for columns of one and of several blocks."""
    rng, d = np.random.default_rng(0), 3
    for columns, draws in ((5, 4000), (5000, 40)):
        squares = np.array([random_square(columns, rng, d) for _ in range(draws)])
        close = {"rtol": 0.06, "atol": 0.06 * columns}
        np.testing.assert_allclose(squares.mean(axis=0), columns * np.eye(d), **close)
        expected = columns * (columns + d + 1) * np.eye(d)
        np.testing.assert_allclose((squares @ squares).mean(axis=0), expected, rtol=0.1, atol=0.1 * expected.max())


def test_rows_get_the_lengths_of_another_matrix_and_keep_their_directions():
    first, other = random(6, 9), random(6, 4, seed=1) * np.arange(6)[:, None]  # one row of the other is 0
    lengths = np.linalg.norm(other, axis=1)
    scaled = first / np.linalg.norm(first, axis=1)[:, None] * lengths[:, None]
    np.testing.assert_allclose(with_row_lengths(first @ first.T, other @ other.T), scaled @ scaled.T, atol=1e-12)
