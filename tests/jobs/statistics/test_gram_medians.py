import numpy as np
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from support.each import each

from theodolite_jobs.groups.gram.formulas_medians import Centres, means_and_medians, median_weights
from theodolite_jobs.statistics.gram_matrices import gram

SEEDS = st.integers(0, 1000)


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def cloud(n, d, seed=0):
    """Heavy tails: the median is far from the mean."""
    return np.random.default_rng(seed).standard_t(1.5, size=(n, d)) + random(d, seed=seed + 1)


def median(x):
    weights = median_weights(gram(x - x.mean(axis=0)))
    np.testing.assert_allclose(weights.sum(), 1, rtol=1e-12)
    assert (weights >= 0).all()
    return weights @ x


def total_distance(point, x):
    return np.linalg.norm(x - point, axis=1).sum()


def least_total_distance(x):
    """The smallest sum of distances that a general minimiser finds, or that a sample has."""
    starts = [x.mean(axis=0), np.median(x, axis=0) + 1e-3]
    options = {"xatol": 1e-12, "fatol": 1e-14, "maxiter": 20_000, "maxfev": 20_000}
    found = [minimize(total_distance, start, (x,), method="Nelder-Mead", options=options).fun for start in starts]
    return min(*found, *(total_distance(sample, x) for sample in x))


def vectors_median(x):
    """Weiszfeld's iteration on the vectors themselves, to where it stands still; no sample may be the median."""
    point, before = x.mean(axis=0), np.inf
    while np.linalg.norm(point - before) > 1e-14 * np.linalg.norm(x - point):
        pull = 1 / np.linalg.norm(x - point, axis=1)
        point, before = pull @ x / pull.sum(), point
    return point


@given(SEEDS, st.integers(3, 20), st.integers(1, 4))
@settings(deadline=None, max_examples=25)
def test_the_median_minimises_the_sum_of_distances(seed, n, d):
    x = cloud(n, d, seed)
    # where the median nearly meets a sample the iteration nears it slowly
    assert total_distance(median(x), x) <= least_total_distance(x) * (1 + 1e-6)


@each("n, d", [(9, 30), (60, 12), (200, 50)])
def test_the_median_equals_weiszfelds_iteration_on_vectors(n, d):
    x = random(n, d) * np.geomspace(1, 10, n)[:, None] + 3
    np.testing.assert_allclose(median(x), vectors_median(x), atol=1e-8 * np.abs(x).max())


@each(
    "along, middle",
    [
        ([0, 1, 5], 1),
        ([-6, 1, 2, 3, 0], 1),  # the mean is a sample, and not the median
        ([1, 2, 3, 4, 100], 3),
        (list(range(11)), 5),  # the mean is the median
        ([0, 0, 0, 1, 9], 0),  # the median is three samples
        ([-100, 0, 1, 2, 3, 4, 90], 2),
    ],
)
@each("offset", [0.0, 30.0])
def test_on_a_line_of_odd_samples_the_median_is_the_middle_one(along, middle, offset):
    direction = random(5) / 2
    x = np.outer(np.array(along, float), direction) + offset
    scale = np.linalg.norm(direction) * np.ptp(along)
    assert np.linalg.norm(median(x) - (middle * direction + offset)) < 1e-6 * scale


@given(SEEDS, st.integers(2, 12), st.integers(1, 4))
@example(380, 7, 3)
@example(449, 4, 2)
@example(318, 12, 2)
@example(346, 11, 4)
@example(105, 7, 3)
@settings(deadline=None, max_examples=30)
def test_the_iteration_does_not_stop_at_a_sample_at_the_mean(seed, n, d):
    """Where the iteration begins."""
    x = cloud(n, d, seed)
    x = np.concatenate([x, x.mean(axis=0, keepdims=True)])
    assert total_distance(median(x), x) <= least_total_distance(x) * (1 + 1e-6)


@each("degrees", [179, 150, 125, 121, 120.2])
def test_a_triangle_with_a_wide_angle_has_its_median_in_that_corner(degrees):
    """From 120° on, as Torricelli found; near it the iteration is slow."""
    turn = np.deg2rad(degrees)
    x = np.array([[0.0, 0.0], [1.0, 0.0], [2 * np.cos(turn), 2 * np.sin(turn)]]) + 1
    np.testing.assert_allclose(median(x), x[0], atol=1e-6)


def test_the_median_is_the_point_where_half_of_all_samples_coincide():
    x = np.concatenate([np.tile(random(1, 6), (7, 1)), cloud(6, 6)])
    np.testing.assert_allclose(median(x), x[0], atol=1e-6 * np.abs(x).max())


@each("n", [1, 2, 9])
def test_identical_samples_are_their_own_median(n):
    same = np.tile(random(6), (n, 1))
    np.testing.assert_allclose(median(same), same[0], rtol=1e-12)


@given(SEEDS, st.integers(3, 15))
@settings(deadline=None)
def test_the_median_is_equivariant_under_translation_rotation_and_scaling(seed, n):
    x = random(n, 5, seed=seed)
    turn, _ = np.linalg.qr(random(5, 5, seed=seed + 1))
    assume(np.linalg.norm(x - median(x), axis=1).min() > 1e-2)  # not at a sample
    np.testing.assert_allclose(median(7 * x @ turn + 2), 7 * median(x) @ turn + 2, atol=1e-6)
    np.testing.assert_allclose(median_weights(gram(x)), median_weights(gram(x - x.mean(axis=0))), atol=1e-6)


def of_vectors(p, q):
    """What `means_and_medians` says, from the vectors themselves."""

    def cosine(x, y):
        return x @ y / np.linalg.norm(x) / np.linalg.norm(y)

    return [
        Centres(
            norms=(np.linalg.norm(a), np.linalg.norm(b)),
            cosines=(cosine(a, a - b), cosine(b, a - b)),
            cosine=cosine(a, b),
            difference=np.linalg.norm(a - b),
        )
        for a, b in ((p.mean(axis=0), q.mean(axis=0)), (vectors_median(p), vectors_median(q)))
    ]


def norms_and_cosines(p, q):
    """As the analysis `gram` computes them: from products of samples minus a common point, and with that point."""
    both = np.concatenate([p, q])
    middle = both.mean(axis=0)
    moved = both - both[0]
    moved -= moved.mean(axis=0)
    of_p, of_q = moved[: len(p)], moved[len(p) :]
    along = of_p @ middle, of_q @ middle
    return means_and_medians(gram(of_p), gram(of_q), of_p @ of_q.T, *along, float(middle @ middle))


@each("n_p, n_q, d", [(9, 9, 6), (30, 17, 40), (50, 80, 12)])
@each("offset", [0.0, 1.0, 100.0])
def test_norms_and_cosines_equal_those_of_the_vectors(n_p, n_q, d, offset):
    p, q = random(n_p, d) + 0.4 + offset, random(n_q, d, seed=1) + offset
    expected, found = of_vectors(p, q), norms_and_cosines(p, q)
    for of_found, of_expected in zip(found, expected, strict=True):
        for name, value in of_expected._asdict().items():
            np.testing.assert_allclose(getattr(of_found, name), value, rtol=1e-7, atol=1e-8, err_msg=name)


def test_norms_and_cosines_are_exact_with_a_large_common_feature():
    p, q = random(40, 30) + 0.5, random(50, 30, seed=1)
    p[:, 7] += 1000
    q[:, 7] += 1000
    expected, found = of_vectors(p, q), norms_and_cosines(p, q)
    for of_found, of_expected in zip(found, expected, strict=True):
        for name, value in of_expected._asdict().items():
            np.testing.assert_allclose(getattr(of_found, name), value, rtol=1e-7, err_msg=name)


def test_norms_and_cosines_of_opposite_sets_of_one_sample():
    p, q = np.array([[3.0, 4.0]]), np.array([[-3.0, -4.0]])
    found = norms_and_cosines(p, q)
    for centres in found:
        assert (centres.norms[0], centres.difference) == (5, 10)
        assert (centres.cosine, *centres.cosines) == (-1, 1, -1)


@each("n_p, n_q", [(10, 10), (37, 37), (64, 32), (300, 150)])
@each("d", [16, 48, 577])
def test_two_sets_of_the_same_vector_have_difference_zero_and_nan_cosines(n_p, n_q, d):
    same = random(1, d).astype(np.float32).astype(np.float64) + 1
    found = norms_and_cosines(np.tile(same, (n_p, 1)), np.tile(same, (n_q, 1)))
    for centres in found:
        np.testing.assert_allclose(centres.cosine, 1, rtol=1e-12)
        assert centres.difference < 1e-12 * np.linalg.norm(same)
        assert np.isnan(centres.cosines).all()


@each("n", [5, 10, 37, 64, 100])
@each("d", [16, 48, 577])
def test_a_set_and_its_copy_have_difference_zero_and_nan_cosines(n, d):
    p = (random(n, d) + 1).astype(np.float32).astype(np.float64)
    found = norms_and_cosines(p, p.copy())
    for centres in found:
        assert centres.difference < 1e-12 * np.linalg.norm(p[0])
        assert np.isnan(centres.cosines).all()


def test_cosines_with_a_zero_mean_are_nan():
    p, q = np.array([[1.0, 0.0], [-1.0, 0.0]]), np.array([[0.0, 2.0], [0.0, 1.0]])
    means, _ = norms_and_cosines(p, q)
    assert means.norms[0] == 0
    assert np.isnan([means.cosine, means.cosines[0]]).all()
    np.testing.assert_allclose(means.cosines[1], -1, rtol=1e-12)
