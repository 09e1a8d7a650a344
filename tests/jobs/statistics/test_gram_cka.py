import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.each import each
from support.shapes import unchecked

from theodolite_jobs.groups.gram.formulas_cka import cka_with_permuted_steps, linear_cka, linear_cka_debiased, packed

SEEDS = st.integers(0, 1000)


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def layers(n, seed=0):
    """Clouds of as many samples in spaces of several sizes, the second a turn of the first, the last far from 0."""
    first, mixing = random(n, 9, seed=seed), random(9, 5, seed=seed + 1)
    turn, _ = np.linalg.qr(random(9, 9, seed=seed + 2))
    return [first, 3 * first @ turn + 1, first @ mixing + 0.3 * random(n, 5, seed=seed + 3), random(n, 7) + 20]


def prepared(clouds):
    """Inner products of centred Gram matrices, and their diagonals, as the statistics take them."""
    matrices = [(x - x.mean(axis=0)) @ (x - x.mean(axis=0)).T for x in clouds]
    entries = np.stack([packed(matrix) for matrix in matrices])
    return entries @ entries.T, np.stack([np.diag(matrix) for matrix in matrices])


def kornblith(x, y):
    """‖XᵀY‖²_F / (‖XᵀX‖_F ‖YᵀY‖_F) of centred features."""
    x, y = x - x.mean(axis=0), y - y.mean(axis=0)
    return np.linalg.norm(x.T @ y) ** 2 / np.linalg.norm(x.T @ x) / np.linalg.norm(y.T @ y)


def unbiased_hsic(x, y):
    """Song et al. 2012, eq. 5, from Gram matrices that are not centred and have no diagonal."""
    n = len(x)
    k, m = x @ x.T, y @ y.T
    np.fill_diagonal(k, 0)
    np.fill_diagonal(m, 0)
    one = np.ones(n)
    sums = (one @ k @ one) * (one @ m @ one) / ((n - 1) * (n - 2)) - 2 / (n - 2) * (one @ k @ m @ one)
    return (np.trace(k @ m) + sums) / (n * (n - 3))


def debiased(x, y):
    return unbiased_hsic(x, y) / np.sqrt(unbiased_hsic(x, x) * unbiased_hsic(y, y))


@given(SEEDS, st.integers(1, 12))
@settings(deadline=None)
def test_packed_matrices_have_the_inner_products_of_the_matrices(seed, n):
    first, second = (x + x.T for x in random(2, n, n, seed=seed))
    assert packed(first).shape == (n * (n + 1) // 2,)
    np.testing.assert_allclose(packed(first) @ packed(second), np.trace(first @ second), rtol=1e-10, atol=1e-10)


@given(SEEDS, st.integers(3, 40))
@settings(deadline=None)
def test_plain_cka_equals_its_formula_on_features(seed, n):
    clouds = layers(n, seed)
    found = linear_cka(prepared(clouds)[0])
    expected = [[kornblith(x, y) for y in clouds] for x in clouds]
    np.testing.assert_allclose(found, expected, atol=1e-10)
    np.testing.assert_allclose(np.diag(found), 1, rtol=1e-12)
    np.testing.assert_allclose(found[0, 1], 1, rtol=1e-10)  # neither turns nor scale nor place matter


@given(SEEDS, st.integers(5, 40))
@settings(deadline=None)
def test_debiased_cka_equals_the_estimator_of_song(seed, n):
    clouds = layers(n, seed)
    found = linear_cka_debiased(*prepared(clouds))
    with np.errstate(invalid="ignore"):
        expected = np.array([[debiased(x, y) for y in clouds] for x in clouds])
    # a cloud at 20 loses three digits in the reference's own sums, which are not centred
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(found[0, 1], 1, rtol=1e-8)


def test_plain_cka_of_independent_gaussians_is_high_and_debiased_cka_is_zero():
    plain, unbiased = [], []
    for seed in range(30):
        products, diagonals = prepared(random(2, 64, 576, seed=seed))
        plain.append(linear_cka(products)[0, 1])
        unbiased.append(linear_cka_debiased(products, diagonals)[0, 1])
    assert abs(np.mean(plain) - 0.90) < 0.005  # d/(n + d) is .9
    # its standard error from these draws; a bias of 1/n would be .016
    assert abs(np.mean(unbiased)) < 4 * np.std(unbiased) / np.sqrt(30) < 0.02


@unchecked()
def test_debiased_cka_of_shared_features_does_not_depend_on_the_number_of_samples():
    rng = np.random.default_rng(0)

    def mean_at(n, draws):
        found = []
        for _ in range(draws):
            shared = rng.normal(size=(n, 100))
            clouds = [shared + rng.normal(size=(n, 100)) for _ in range(2)]
            found.append(linear_cka_debiased(*prepared(clouds))[0, 1])
        return np.mean(found)

    # ‖Σ_xy‖²/(‖Σ_x‖‖Σ_y‖) with Σ_xy = I and Σ_x = Σ_y = 2I
    assert abs(mean_at(30, 300) - 0.25) < 0.03
    assert abs(mean_at(300, 5) - 0.25) < 0.02


@each("n", [1, 2, 3])
def test_debiased_cka_of_fewer_than_four_samples_is_nan(n):
    products, diagonals = prepared(random(2, n, 6))
    assert np.isnan(linear_cka_debiased(products, diagonals)).all()
    assert np.isnan(linear_cka(products)).all() == (n == 1)


@each("n", [4, 20])
def test_cka_with_a_layer_of_equal_samples_is_nan(n):
    clouds = [random(n, 6), np.full((n, 6), 2.5), random(n, 6, seed=1)]
    products, diagonals = prepared(clouds)
    for found in (linear_cka(products), linear_cka_debiased(products, diagonals)):
        assert np.isnan(found[1]).all()
        assert np.isnan(found[:, 1]).all()
        assert np.isfinite(found[np.ix_([0, 2], [0, 2])]).all()


def test_the_products_are_not_changed_in_place():
    products, diagonals = prepared(layers(9))
    before = products.copy(), diagonals.copy()
    linear_cka_debiased(products, diagonals)
    linear_cka(products)
    np.testing.assert_array_equal(products, before[0])
    np.testing.assert_array_equal(diagonals, before[1])


def test_permuted_steps_keep_the_similarity_that_the_skip_gives_and_no_more():
    """Steps that repeat the input keep its geometry; the same steps of other samples change it."""
    x = random(200, 30) * np.geomspace(3, 0.3, 30)
    x -= x.mean(axis=0)
    repeated, small = cka_with_permuted_steps(x, x), cka_with_permuted_steps(x, 0.01 * x)
    assert debiased(x, 2 * x) == pytest.approx(1)
    # The sum has the covariance C with x, and 2C with itself: ‖C‖²/(‖C‖·‖2C‖).
    assert repeated == pytest.approx(1 / 2, abs=0.03)
    assert small == pytest.approx(1, abs=1e-3)
    assert np.isnan(cka_with_permuted_steps(x[:3], x[:3]))
