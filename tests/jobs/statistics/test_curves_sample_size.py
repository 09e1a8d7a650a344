"""The plain cosine that other numbers of prompts are expected to give."""

from dataclasses import replace

import numpy as np
from support.each import each
from support.shapes import unchecked

from theodolite_jobs.groups.curves.formulas import cosine_curve
from theodolite_jobs.groups.curves.formulas_sample_size import (
    _product_variance,
    expected_cosines,
    squared_covariance_trace,
)
from theodolite_jobs.statistics.estimates import NORMAL_QUANTILE
from theodolite_jobs.statistics.folds import FOLDS, Folds, fold_moments
from theodolite_jobs.statistics.scatter import Scatter, no_sums, scatter


def folds_of(x):
    fold = np.arange(len(x)) % FOLDS
    means, deviations = fold_moments(x, fold)
    return Folds(np.bincount(fold, minlength=FOLDS), means, deviations)


def arguments_of(p, q, paired):
    """Return the arguments of one curve with one point."""
    a, b = p.mean(axis=0), q.mean(axis=0)
    traces = [np.array([x.var(axis=0, ddof=1).sum()]) for x in (p, q)]
    sums = Scatter(**{name: values[None] for name, values in vars(scatter(p, q, a, b, paired=paired)).items()})
    return a[None], b[None], *traces, len(p), len(q), sums


def expected(p, q, sizes, paired=False, squares=None):
    """Return the expected cosine and both ends of its interval, (3, size)."""
    squares = squares or tuple(np.array([squared_covariance_trace(folds_of(x))]) for x in (p, q))
    found = expected_cosines(sizes, *arguments_of(p, q, paired), squares, paired=paired)
    return np.array([values[0] for values in found])


def draw(rng, n, cosine, signal, spectrum, d=60):
    """Draw two sets of n samples around means of a given cosine and length, with noise of trace 1."""
    variances = np.ones(d) if spectrum == "flat" else 1 / np.arange(1, d + 1)
    deviations = np.sqrt(variances / variances.sum())
    return tuple(rng.normal(size=(2, n, d)) * deviations + means_of(cosine, signal, d)[:, None])


def means_of(cosine, signal, d):
    """Return two means of a given cosine and length, (2, d)."""
    return np.pad(signal * np.array([[1.0, 0.0], [cosine, np.sqrt(1 - cosine**2)]]), ((0, 0), (d - 2, 0)))


def plain(p, q):
    a, b = p.mean(axis=0), q.mean(axis=0)
    return a @ b / np.linalg.norm(a) / np.linalg.norm(b)


def test_a_tiny_case_by_hand():
    p, q = np.array([[3.0, 1.0], [3.0, -1.0]]), np.array([[0.0, 2.0], [2.0, 2.0]])
    # a = (3, 0), b = (1, 2); traces 2 and 2, n = 2: A = 9 - 1, B = 5 - 1. With 4 prompts A' = 8.5, B' = 4.5.
    found = expected(p, q, (4,), squares=(np.zeros(1), np.zeros(1)))[:, 0]
    cosine = 3 / np.sqrt(8.5 * 4.5)
    # x - a = (0, 1) and (0, -1): times b is 2 and -2, times a is 0, so the sum of squares is 8/(A'B'), over n - 1 = 1.
    positive = 8 / (8.5 * 4.5)
    # y - b = (-1, 0) and (1, 0): times a is -3 and 3, times b is -1 and 1.
    negative = 2 * (3 / np.sqrt(8.5 * 4.5) - cosine / 4.5) ** 2
    half = NORMAL_QUANTILE * np.sqrt((positive + negative) * (1 / 2 + 1 / 4))
    np.testing.assert_allclose(found, [cosine, cosine - half, cosine + half], rtol=1e-14)


def test_the_products_of_noise_terms_by_hand():
    # X <= 2 * 3 = 6 and Y = 0.5^2/2 * (4, 9) = (0.5, 1.125), with m = 2 new prompts, n = 10 and 20.
    cross = 6 * (1 / 4 - 1 / 200 - 1 / 40 - 1 / 20)
    own = 0.5 * (1 / 4 - 1 / 100 - 2 / 20) + 1.125 * (1 / 4 - 1 / 400 - 2 / 40)
    cosine, relative = np.array([0.5]), (np.array([4.0]), np.array([9.0]))
    np.testing.assert_allclose(_product_variance(cosine, *relative, 2, (10.0, 20.0)), cross + own, rtol=1e-14)
    infinite = 6 / 16 + 1.625 / 16  # pairs: nothing is known to be too large
    np.testing.assert_allclose(_product_variance(cosine, *relative, 4, (np.inf, np.inf)), infinite, rtol=1e-14)
    assert _product_variance(cosine, *relative, 100, (10.0, 20.0)) == 0  # no part is subtracted


def test_the_expected_cosine_does_not_depend_on_the_unit_of_activations():
    p, q = draw(np.random.default_rng(1), 40, 0.9, 0.5, "power law")
    np.testing.assert_allclose(expected(p * 1e-3, q * 1e-2, (16, 64)), expected(p, q, (16, 64)), rtol=1e-10)


def test_as_many_prompts_are_expected_to_give_the_plain_cosine_itself():
    p, q = draw(np.random.default_rng(0), 40, 0.8, 0.5, "power law")
    at_40, at_20 = expected(p, q, (40, 20))[0]
    np.testing.assert_allclose(at_40, plain(p, q), rtol=1e-13)
    assert at_20 < at_40


def test_very_many_prompts_are_expected_to_give_the_debiased_cosine_and_its_interval():
    p, q = draw(np.random.default_rng(0), 40, 0.8, 0.5, "flat")
    for paired in (False, True):
        curve = cosine_curve(*arguments_of(p, q, paired), paired=paired)
        debiased = curve.debiased
        np.testing.assert_allclose(expected(p, q, (10**12,), paired=paired), debiased, rtol=1e-6)


def test_equal_constant_sets_are_expected_to_have_the_cosine_one_without_a_width():
    same = np.tile(np.random.default_rng(0).normal(size=24), (10, 1))
    np.testing.assert_allclose(expected(same, same.copy(), (16, 64)), 1, rtol=1e-12)


@each("cosine, signal", [(0.9, 1 / 3), (0.99, 1.0)])
@each("n, size, paired", [(256, 16, False), (64, 64, False), (64, 64, True)])
@unchecked()
def test_the_cosine_of_a_second_sample_falls_inside_as_often_as_promised(n, size, paired, cosine, signal):
    """Without the products of noise terms it falls inside in 55 to 60 % of draws at 16 of 256 prompts.

    benchmarks/sample_sizes.py has a larger grid.
    """
    rng, spectrum = np.random.default_rng(5), "power law"
    inside, errors = [], []
    for _ in range(200):
        p, q = draw(rng, n, cosine, signal, spectrum)
        if paired:  # the noise of a pair has correlation 0.9
            mean_p, mean_q = means_of(cosine, signal, p.shape[1])
            q = mean_q + 0.9 * (p - mean_p) + np.sqrt(1 - 0.9**2) * (q - mean_q)
        value, low, high = expected(p, q, (size,), paired)[:, 0]
        second = plain(*draw(rng, size, cosine, signal, spectrum))
        inside.append(low <= second <= high)
        errors.append(second - value)
    assert 0.9 <= np.mean(inside) <= 0.99  # binomial standard error 0.015
    assert abs(np.mean(errors)) < 4 * np.std(errors) / np.sqrt(200) + 0.01 * (signal < 1)


def test_a_set_without_samples_has_no_expected_cosine():
    missing, sums = np.full((1, 3), np.nan), no_sums((1,))
    arguments = (missing, np.ones((1, 3)), np.full(1, np.nan), np.ones(1), 0, 7, sums, (np.full(1, np.nan), np.ones(1)))
    assert np.isnan(expected_cosines((16,), *arguments, paired=False)).all()


def test_the_trace_of_a_squared_covariance_by_hand():
    # Three folds of one sample each, on one axis: S = 1 with 2 degrees of freedom; 4/(1*4) * (1 - 1/2) = 1/2.
    folds = Folds(np.array([1, 1, 1, 0, 0]), np.array([[-1.0], [0.0], [1.0], [0.0], [0.0]]), np.zeros(5))
    np.testing.assert_allclose(squared_covariance_trace(folds), 0.5, rtol=1e-15)
    few = replace(folds, counts=np.array([1, 1, 0, 0, 0]))
    assert np.isnan(squared_covariance_trace(few))


@unchecked()
def test_the_trace_of_a_squared_covariance_is_unbiased_and_ignores_the_mean():
    rng = np.random.default_rng(1)
    deviations = np.geomspace(2, 0.2, 30)
    found = [
        squared_covariance_trace(folds_of(rng.normal(size=(23, 30)) * deviations + 50 * rng.normal(size=30)))
        for _ in range(800)
    ]
    assert abs(np.mean(found) - (deviations**4).sum()) < 4 * np.std(found) / np.sqrt(800)
