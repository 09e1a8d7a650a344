import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial import KDTree
from scipy.spatial.distance import cdist
from sklearn.metrics import silhouette_score
from support.each import each
from support.shapes import unchecked

from theodolite_jobs.groups.gram import formulas as statistics
from theodolite_jobs.groups.gram.formulas import (
    effective_rank_of_gaussian,
    eigenvalues,
    intrinsic_dimension,
    mean_cosine,
    participation_ratio,
    participation_ratio_of_gaussian,
    silhouette,
    standardised,
)
from theodolite_jobs.statistics.gram_matrices import gram, squared_distances
from theodolite_jobs.statistics.moments import on_sphere

SEEDS = st.integers(0, 1000)


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def stretched(n, d, seed=0):
    """Samples around a mean that is not 0, of a covariance that is not flat."""
    return random(n, d, seed=seed) * np.geomspace(3, 0.1, d) + random(d, seed=seed + 1)


def of_samples(x):
    return gram(x - x.mean(axis=0))


def effective_rank(matrix):
    return statistics.effective_rank(eigenvalues(matrix))


def dense_eigenvalues(x):
    """Those of the covariance (n−1), from its dense matrix or, where that is larger, from singular values."""
    values = np.linalg.svd(x - x.mean(axis=0), compute_uv=False) ** 2 / (len(x) - 1)
    dense = np.linalg.eigvalsh(np.cov(x.T))[::-1][: len(values)]
    np.testing.assert_allclose(values, dense, atol=1e-12 * values[0])
    return values


def two_nn(x):
    """N/Σ ln(r₂/r₁) with a k-d tree."""
    distances, _ = KDTree(x).query(x, k=3)
    return len(x) / np.log(distances[:, 2] / distances[:, 1]).sum()


@given(SEEDS, st.integers(2, 12), st.integers(1, 9))
@settings(deadline=None)
def test_the_mean_cosine_equals_the_loop_over_pairs(seed, n, d):
    x = random(n, d, seed=seed) + 0.5
    pairs = [x[i] @ x[j] / np.linalg.norm(x[i]) / np.linalg.norm(x[j]) for i in range(n) for j in range(n) if i != j]
    np.testing.assert_allclose(mean_cosine(x), np.mean(pairs), atol=1e-12)


@each("n, d", [(40, 12), (12, 40), (3, 5), (2, 5), (50, 2)])
def test_participation_ratio_and_effective_rank_are_those_of_the_covariance(n, d):
    x = stretched(n, d)
    values = dense_eigenvalues(x)
    np.testing.assert_allclose(
        eigenvalues(of_samples(x))[::-1][: len(values)] / (n - 1), values, atol=1e-12 * values[0]
    )
    shares = values[values > 1e-14 * values[0]] / values.sum()
    np.testing.assert_allclose(participation_ratio(of_samples(x)), values.sum() ** 2 / (values**2).sum(), rtol=1e-10)
    entropy = -(shares * np.log(shares)).sum()
    np.testing.assert_allclose(effective_rank(of_samples(x)), np.exp(entropy), rtol=1e-10)
    bound = min(n - 1, d) * (1 + 1e-10)
    assert 1 - 1e-10 <= participation_ratio(of_samples(x)) <= effective_rank(of_samples(x)) * (1 + 1e-10)
    assert effective_rank(of_samples(x)) <= bound


def test_both_ranks_count_directions_of_equal_variance():
    cross = np.concatenate([np.eye(7), -np.eye(7)])
    np.testing.assert_allclose(participation_ratio(of_samples(cross)), 7, rtol=1e-12)
    np.testing.assert_allclose(effective_rank(of_samples(cross)), 7, rtol=1e-12)


@given(SEEDS, st.integers(3, 25))
@settings(deadline=None)
def test_distances_and_shape_are_invariant_under_rotation_translation_and_scaling(seed, n):
    x = stretched(n, 6, seed)
    turn, _ = np.linalg.qr(random(6, 6, seed=seed))
    moved = 3 * x @ turn
    for statistic in (participation_ratio, effective_rank):
        np.testing.assert_allclose(statistic(of_samples(moved)), statistic(of_samples(x)), rtol=1e-9)
    np.testing.assert_allclose(mean_cosine(moved), mean_cosine(x), atol=1e-12)
    found, expected = intrinsic_dimension(of_samples(moved + 5)), intrinsic_dimension(of_samples(x))
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-7)
    distances = cdist(x, x, "sqeuclidean")
    np.testing.assert_allclose(squared_distances(gram(x)), distances, atol=1e-12 * (1 + distances.max()))
    assert (np.diag(squared_distances(gram(x))) == 0).all()


@each("n, d", [(3, 2), (10, 3), (300, 5), (200, 40)])
def test_two_nn_equals_its_definition(n, d):
    x = stretched(n, d)
    found, left_out = intrinsic_dimension(of_samples(x))
    assert left_out == 0
    np.testing.assert_allclose(found, two_nn(x), rtol=1e-6)  # squared distances from products lose half the digits


def test_two_nn_finds_the_dimension_of_a_sheet_in_a_large_space():
    sheet = np.random.default_rng(0).uniform(size=(1500, 2)) @ random(2, 60)
    found, _ = intrinsic_dimension(of_samples(sheet))
    assert abs(found - 2) < 0.2  # 2/√1500 is 0.05; edges bend it a little


def test_two_nn_leaves_out_and_counts_coincident_samples():
    x = stretched(40, 5)
    doubled = np.concatenate([x, x[[3, 8]]])
    found, left_out = intrinsic_dimension(of_samples(doubled))
    assert left_out == 4
    distances, _ = KDTree(doubled).query(doubled, k=3)
    apart = distances[:, 1] > 0
    expected = apart.sum() / np.log(distances[apart, 2] / distances[apart, 1]).sum()
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_two_nn_leaves_out_samples_that_differ_by_float32_rounding():
    x = stretched(40, 5)
    x[7] = x[21] * (1 + 1e-7)
    assert intrinsic_dimension(of_samples(x))[1] == 2


@each("n", [0, 1, 2])
def test_too_few_samples_have_no_shape(n):
    matrix = of_samples(random(n, 4)) if n else np.empty((0, 0))
    assert np.isnan(intrinsic_dimension(matrix)[0])
    if n == 1:
        assert np.isnan([mean_cosine(random(1, 4)), participation_ratio(matrix), effective_rank(matrix)]).all()


def test_two_samples_have_one_dimension_and_three_have_two():
    two, three = (of_samples(random(n, 9)) for n in (2, 3))
    np.testing.assert_allclose([participation_ratio(two), effective_rank(two)], 1, rtol=1e-12)
    assert 1 < participation_ratio(three) < effective_rank(three) < 2
    assert np.isfinite(intrinsic_dimension(three)[0])


def test_identical_samples_have_a_mean_cosine_and_nan_dimensions():
    same = np.tile(random(8).astype(np.float32).astype(np.float64), (10, 1))
    matrix = of_samples(same)
    assert np.isnan([participation_ratio(matrix), effective_rank(matrix), intrinsic_dimension(matrix)[0]]).all()
    assert intrinsic_dimension(matrix)[1] == 10
    np.testing.assert_allclose(mean_cosine(same), 1, rtol=1e-12)


def test_a_zero_vector_makes_the_mean_cosine_nan():
    x = random(5, 4)
    x[2] = 0
    assert np.isnan(mean_cosine(x))


def test_a_nan_sample_makes_all_shapes_nan():
    x = random(6, 9)
    x[2] = 0
    turned = on_sphere(x)
    for statistic in (participation_ratio, effective_rank):
        assert np.isnan(statistic(of_samples(turned)))
    assert np.isnan([mean_cosine(turned), intrinsic_dimension(of_samples(turned))[0]]).all()


def test_a_nan_sample_makes_the_silhouette_nan():
    x = random(6, 9)
    x[2] = 0
    p, q = on_sphere(x), on_sphere(random(5, 9, seed=1))
    assert np.isnan(silhouette(gram(p), gram(q), p @ q.T))
    assert np.isnan(silhouette(gram(q), gram(p), q @ p.T))


@unchecked()
def simulated(statistic, n, d, draws):
    rng = np.random.default_rng(0)
    return np.mean([statistic(of_samples(rng.normal(size=(n, d)))) for _ in range(draws)])


@each("n, d, draws", [(256, 576, 3), (30, 100, 40), (100, 30, 40), (9, 9, 400)])
def test_formulas_for_gaussians_equal_the_mean_over_draws(n, d, draws):
    # a ratio of means against a mean of ratios, and a law of large matrices: both differ by about 1/min(n, d)
    tolerance = 0.5 / min(n - 1, d)
    for statistic, formula in (
        (participation_ratio, participation_ratio_of_gaussian),
        (effective_rank, effective_rank_of_gaussian),
    ):
        np.testing.assert_allclose(formula(n, d), simulated(statistic, n, d, draws), rtol=tolerance)


def test_a_gaussian_of_576_dimensions_shows_176_at_256_samples():
    assert round(participation_ratio_of_gaussian(256, 576)) in (176, 177)
    np.testing.assert_allclose(participation_ratio_of_gaussian(10**7, 576), 576, rtol=1e-3)
    np.testing.assert_allclose(effective_rank_of_gaussian(10**7, 576), 576, rtol=1e-3)


@each("formula", [participation_ratio_of_gaussian, effective_rank_of_gaussian])
def test_gaussians_of_one_sample_have_no_shape_and_of_two_one_direction(formula):
    assert np.isnan([formula(0, 50), formula(1, 50)]).all()
    np.testing.assert_allclose(formula(2, 50), 1, rtol=0.02)


def of_sets(p, q):
    middle = np.concatenate([p, q]).mean(axis=0)
    p, q = p - middle, q - middle
    return gram(p), gram(q), p @ q.T


@given(SEEDS, st.integers(2, 15), st.integers(2, 15), st.floats(0, 4))
@settings(deadline=None)
def test_the_silhouette_is_scikit_learns(seed, n_p, n_q, distance):
    p, q = stretched(n_p, 6, seed) + distance, stretched(n_q, 6, seed + 5)
    expected = silhouette_score(np.concatenate([p, q]), [0] * n_p + [1] * n_q)
    np.testing.assert_allclose(silhouette(*of_sets(p, q)), expected, atol=1e-7)
    np.testing.assert_allclose(silhouette(*of_sets(q, p)), expected, atol=1e-7)


def test_the_silhouette_of_sets_that_coincide_is_not_positive():
    p = stretched(8, 6)
    expected = silhouette_score(np.concatenate([p, p]), [0] * 8 + [1] * 8)
    np.testing.assert_allclose(silhouette(*of_sets(p, p)), expected, atol=1e-7)
    assert expected < 0
    same = np.ones((4, 6))
    assert silhouette(*of_sets(same, same)) == 0  # (b − a)/max(a, b) of zeros counts as 0


def test_the_silhouette_of_two_points_apart_is_one_and_of_one_sample_undefined():
    p, q = np.zeros((3, 2)), np.ones((4, 2))
    np.testing.assert_allclose(silhouette(*of_sets(p, q)), 1, atol=1e-7)
    assert np.isnan(silhouette(*of_sets(p[:1], q)))
    assert np.isnan(silhouette(*of_sets(p, q[:1])))


@given(SEEDS, st.integers(2, 20))
@settings(deadline=None)
def test_standardised_features_have_variance_one_and_keep_their_means_ratio(seed, n):
    x = stretched(n, 6, seed)
    scaled, constant = standardised(x)
    assert constant == 0
    np.testing.assert_allclose(scaled.var(axis=0, ddof=1), 1, rtol=1e-10)
    np.testing.assert_allclose(scaled.mean(axis=0), x.mean(axis=0) / x.std(axis=0, ddof=1), rtol=1e-9, atol=1e-12)


@each("n", [2, 3, 7, 10, 11, 100, 2048])
@each("value", [0.0, 0.1, 1e-3, -7.3, 1e5])
def test_features_that_hold_one_value_are_left_out(value, n):
    """Stored numbers are float32, of which sums are exact."""
    x = random(n, 5)
    x[:, [1, 3]] = np.float32(value)
    scaled, constant = standardised(x)
    assert (constant, scaled.shape) == (2, (n, 3))


def test_features_that_hold_one_value_are_left_out_also_where_its_mean_is_rounded():
    x = random(10, 5)
    x[:, [1, 3]] = 0.1  # ten of them over ten are 0.09999999999999999
    scaled, constant = standardised(x)
    assert (constant, scaled.shape) == (2, (10, 3))


def test_one_sample_has_no_feature_that_varies():
    scaled, constant = standardised(random(1, 5))
    assert (constant, scaled.shape) == (5, (1, 0))
