"""R² of maps from Gram matrices, against fits in feature space, planted maps and simulated intervals."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import expm
from support.each import each
from support.shapes import unchecked

from theodolite_jobs.groups.basis.formulas import (
    MIN_SAMPLES,
    pair_grams,
    principal_components,
    r_squared,
    ridge_penalty,
)

NAMES = ("affine", "orthogonal", "identity", "step", "gain")


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def rotation(d, seed=0):
    return np.linalg.qr(random(d, d, seed=seed))[0]


def folds_of(n):
    return np.arange(n) % 5


def measured(x, y, folds=None):
    """Return R² by name, without intervals."""
    found = r_squared(pair_grams(x, y), folds_of(len(x)) if folds is None else folds)
    return {name: float(estimate.value) for name, estimate in found.items()}


def fitted(x, y, training):
    """Return the predictions of the held-out samples by name, from fits on features; relative to the training means."""
    x, y = x - x[training].mean(axis=0), y - y[training].mean(axis=0)
    own, steps, out = x[training], (y - x)[training], x[~training]
    n = len(own)
    left, lengths, directions = np.linalg.svd(own, full_matrices=False)
    kept = lengths > 1e-6 * lengths[0]
    left, lengths, directions = left[:, kept], lengths[kept], directions[kept]
    errors = []
    penalties = 10.0 ** np.arange(-10, 4.25, 0.25) * (lengths**2).sum() / (n - 1)
    for penalty in penalties:
        smoother = left * (lengths**2 / (lengths**2 + penalty)) @ left.T
        residual = steps - smoother @ steps
        errors.append((residual**2).sum() / (n - 1 - np.trace(smoother)) ** 2)
    penalty = penalties[np.argmin(errors)]
    coefficients = np.linalg.solve(own.T @ own + penalty * np.eye(x.shape[1]), own.T @ steps)
    u, sigma, v = np.linalg.svd(directions @ own.T @ (own + own @ coefficients), full_matrices=False)
    inside = out @ directions.T
    turned = sigma.sum() / (lengths**2).sum() * inside @ u @ v
    predictions = {
        "affine": out + out @ coefficients,
        "orthogonal": turned + out - inside @ directions,
        "identity": out,
    }
    return predictions, y[~training]


def expected(x, y, folds):
    """Return R² by name from fits on features."""
    errors, totals = dict.fromkeys(("affine", "orthogonal", "identity"), 0.0), 0.0
    for fold in range(5):
        predictions, out = fitted(x, y, folds != fold)
        totals += (out**2).sum()
        for name, prediction in predictions.items():
            errors[name] += ((out - prediction) ** 2).sum()
    values = {name: 1 - errors[name] / totals for name in predictions}
    gain = values["affine"] - values["orthogonal"]
    return values | {"step": 1 - errors["affine"] / errors["identity"], "gain": gain}


@each("n, d", [(60, 12), (60, 90), (41, 41), (10, 3), (13, 200)])
def test_values_equal_fits_on_features(n, d):
    x = random(n, d) * np.linspace(1, 4, d) + 5
    y = x + 0.4 * x @ random(d, d, seed=1) / np.sqrt(d) + 0.5 * random(n, d, seed=2)
    found, reference = measured(x, y), expected(x, y, folds_of(n))
    assert {name: found[name] for name in NAMES} == pytest.approx(reference, abs=1e-9)


def test_values_of_a_tiny_case_by_hand():
    """One feature, ten samples with x = ±1 in turn inside each fold, and y = 3x: only scales matter."""
    x = np.repeat([1.0, -1.0], 5)[:, None]
    found = measured(x, 3 * x)
    # All training means are 0. The identity leaves 2x of 3x. In one dimension, each map is a scale.
    assert found["identity"] == pytest.approx(1 - 4 / 9)
    assert found["orthogonal"] == pytest.approx(1)
    assert found["affine"] == pytest.approx(1)
    assert found["step"] == pytest.approx(1)


@given(st.integers(0, 1000), st.integers(10, 40), st.integers(1, 50))
@settings(deadline=None, max_examples=30)
def test_the_affine_map_explains_its_share_of_what_the_identity_leaves(seed, n, d):
    x, y = random(2, n, d, seed=seed)
    found = measured(x, x + 0.3 * y + 0.2 * x**2)
    assert 1 - found["affine"] == pytest.approx((1 - found["identity"]) * (1 - found["step"]), rel=1e-9)


@each("seed", range(3))
def test_values_do_not_depend_on_the_place_and_basis_of_the_features(seed):
    n, d = 50, 20
    x = random(n, d, seed=seed)
    y = x + x @ random(d, d, seed=1) / 5 + 0.3 * random(n, d, seed=2)
    turn = rotation(d, seed=3)
    assert measured(x @ turn + 7, y @ turn - 2) == pytest.approx(measured(x, y), abs=1e-9)


PLANTED = {
    "identity": (lambda x: x + 2, {"affine": 1, "orthogonal": 1, "identity": 1}),
    "scaled rotation": (lambda x: 1.7 * x @ rotation(x.shape[1]) + 1, {"affine": 1, "orthogonal": 1}),
    "any linear map": (lambda x: x @ random(x.shape[1], x.shape[1], seed=5) - 3, {"affine": 1}),
    "rank 3": (lambda x: x @ random(x.shape[1], 3, seed=5) @ random(3, x.shape[1], seed=6), {"affine": 1}),
}


@each("name", PLANTED)
def test_planted_maps_are_found(name):
    x = random(80, 15)
    planted, perfect = PLANTED[name]
    found = measured(x, planted(x))
    for kind in ("affine", "orthogonal", "identity"):
        if kind in perfect:
            assert found[kind] == pytest.approx(1, abs=1e-9)
        else:
            assert found[kind] < 0.9


def test_a_map_of_lower_rank_is_no_rotation():
    """The orthogonal map keeps the length of each direction, so it loses at least what the map removes."""
    x = random(200, 10)
    y = x.copy()
    y[:, 5:] = 0
    found = measured(x, y)
    # c = Σσ/ΣΛ = 5/10; the error of the kept half is (1−c)² and that of the removed half c², so R² = 1 − (¼ + ¼) = ½.
    assert found["orthogonal"] == pytest.approx(0.5, abs=0.02)
    assert found["affine"] == pytest.approx(1, abs=1e-9)
    assert found["identity"] == pytest.approx(0, abs=0.05)


@each("n, noise", [(64, 1.0), (256, 0.1), (256, 1.0)])
def test_noise_does_not_make_a_rotation_look_like_another_linear_map(n, noise):
    """A fit to the noisy outputs had R² of 0.24, 0.79 and 0.19, against 0.45, 0.88 and 0.48 of the affine map."""
    d = 192
    variances = 1 / np.arange(1, d + 1.0)
    generator = random(d, d)
    planted = expm(0.3 * (generator - generator.T) / np.sqrt(2 * d))
    x = random(n, d, seed=1) * np.sqrt(variances / variances.sum())
    found = measured(x, x @ planted + np.sqrt(noise / d) * random(n, d, seed=2))
    assert found["orthogonal"] > found["affine"] - 0.01
    assert found["orthogonal"] > found["identity"] - 0.01


@each("d", [10, 300])
def test_independent_outputs_are_not_predicted(d):
    x, y = random(2, 60, d)
    found = measured(x, y)
    assert all(found[name] <= 0.02 for name in ("affine", "orthogonal", "identity"))


@each("d", [10, 300])
def test_outputs_of_other_samples_are_not_predicted(d):
    x = random(60, d)
    y = x @ rotation(d)
    found = measured(x, y[np.random.default_rng(1).permutation(60)])
    assert all(found[name] <= 0.02 for name in ("affine", "orthogonal", "identity"))


@each("d", [10, 300])
def test_permuted_steps_are_not_predicted(d):
    x = random(60, d)
    found = measured(x, x + x @ random(d, d, seed=1) / 4)
    assert abs(found["permuted"]) < 0.02
    assert found["step"] > 0.1


def test_directions_outside_of_the_training_samples_are_left_as_they_are():
    """Near the identity this choice is fair: maps that send these directions to 0 lose what the identity keeps."""
    n, d = 40, 400
    x = random(n, d)
    generator = random(d, d, seed=1)
    near = np.linalg.qr(np.eye(d) + 0.2 * (generator - generator.T) / np.sqrt(d))[0]
    near = near * np.sign(np.diag(near))
    found = measured(x, x @ near)
    assert found["identity"] > 0.9
    assert found["affine"] > found["identity"]
    assert found["orthogonal"] > found["identity"]
    # The training samples span 31 of 400 dimensions. A map that sends all others to 0 cannot exceed this share.
    assert to_zero(x, x @ near) < 0.12
    # The price: a rotation of the whole space by large angles is not found from 40 samples.
    far = x @ rotation(d)
    assert measured(x, far)["orthogonal"] < to_zero(x, far)


def to_zero(x, y):
    """Return R² of the orthogonal map that sends directions outside of the training samples to 0."""
    errors = totals = 0.0
    for fold in range(5):
        training = folds_of(len(x)) != fold
        predictions, out = fitted(x, y, training)
        centred = x - x[training].mean(axis=0)
        own = np.linalg.svd(centred[training], full_matrices=False)[2][:-1]
        outside = centred[~training] - centred[~training] @ own.T @ own
        errors += ((out - predictions["orthogonal"] + outside) ** 2).sum()
        totals += (out**2).sum()
    return 1 - errors / totals


def test_cross_validation_chooses_nearly_the_best_penalty():
    """On heavy-tailed inputs with more features than samples, against the best penalty for the held-out samples."""
    n, d = 60, 90
    for seed in range(3):
        x = random(n, d, seed=seed) / np.sqrt(np.arange(1, d + 1))
        x /= np.sqrt(np.random.default_rng(seed).chisquare(5, size=(n, 1)) / 5)
        y = x + 0.5 * x @ random(d, d, seed=9) / np.sqrt(d) + 0.05 * random(n, d, seed=seed + 50)
        best = 0.0
        for penalty in 10.0 ** np.arange(-4, 3, 0.5):
            error = total = 0.0
            for fold in range(5):
                training = folds_of(n) != fold
                own, steps = x[training] - x[training].mean(axis=0), (y - x)[training]
                out, out_steps = x[~training] - x[training].mean(axis=0), (y - x)[~training] - steps.mean(axis=0)
                coefficients = np.linalg.solve(own.T @ own + penalty * np.eye(d), own.T @ (steps - steps.mean(axis=0)))
                error += ((out_steps - out @ coefficients) ** 2).sum()
                total += (out_steps**2).sum()
            best = max(best, 1 - error / total)
        assert measured(x, y)["step"] > best - 0.02


def test_the_noise_is_the_variance_that_no_map_explains():
    n, d, variance = 300, 40, 0.3
    estimates = []
    for seed in range(10):
        x = random(n, d, seed=seed)
        y = x @ random(d, d, seed=99) / 3 + np.sqrt(variance) * random(n, d, seed=seed + 100)
        grams = pair_grams(x, y)
        estimates.append(ridge_penalty(principal_components(grams.xx, np.trace(grams.xx)), grams.ss)[1])
    assert np.mean(estimates) == pytest.approx(variance * d, rel=0.02)


def test_inputs_that_do_not_vary_predict_nothing():
    y = random(20, 6)
    found = measured(np.full((20, 6), 0.1), y)
    assert found == dict.fromkeys(found, 0.0)


def test_an_input_that_varies_in_one_sample_only_predicts_nothing():
    """Without this sample, rounding of equal inputs must not look like directions."""
    x = np.full((20, 6), 0.1) * np.arange(1, 7) * 1e3
    x[3] += 1e5
    y = x + random(20, 6)
    assert abs(measured(x, y)["step"]) < 0.05


def test_outputs_or_steps_that_do_not_vary_have_no_r_squared():
    x = random(20, 6)
    found = measured(x, x.copy())
    assert [found[name] for name in ("identity", "affine", "orthogonal")] == pytest.approx([1, 1, 1])
    assert np.isnan([found["step"], found["permuted"]]).all()
    found = measured(x, np.full((20, 6), 0.3))
    assert np.isnan([found[name] for name in ("affine", "orthogonal", "identity")]).all()
    assert found["step"] == pytest.approx(1)


def test_few_samples_or_an_empty_fold_have_no_values():
    x, y = random(2, MIN_SAMPLES, 4)
    assert all(np.isfinite(value) for value in measured(x, y).values())
    assert all(np.isnan(value) for value in measured(x[1:], y[1:]).values())
    assert all(np.isnan(value) for value in measured(x, y, np.arange(MIN_SAMPLES) % 4).values())


def test_intervals_are_those_of_the_jackknife_over_folds():
    """Leaving one fold out of fit and test gives R² over the other four folds."""
    n, d = 43, 9
    x = random(n, d)
    y = x + x @ random(d, d, seed=1) / 3 + 0.5 * random(n, d, seed=2)
    folds = folds_of(n)
    found = r_squared(pair_grams(x, y), folds)
    left_out = []
    for fold in range(5):
        rest = folds != fold
        errors, totals = dict.fromkeys(("affine", "orthogonal", "identity"), 0.0), 0.0
        for other in set(range(5)) - {fold}:
            predictions, out = fitted(x[rest], y[rest], folds[rest] != other)
            totals += (out**2).sum()
            for name, prediction in predictions.items():
                errors[name] += ((out - prediction) ** 2).sum()
        values = {name: 1 - errors[name] / totals for name in predictions}
        values["gain"] = values["affine"] - values["orthogonal"]
        left_out.append(values | {"step": 1 - errors["affine"] / errors["identity"]})
    for name in NAMES:
        replicates = np.array([values[name] for values in left_out])
        half = 2.7764451 * np.sqrt(0.8 * ((replicates - replicates.mean()) ** 2).sum())
        assert float(found[name].high - found[name].value) == pytest.approx(half, rel=1e-6)
        assert float(found[name].value - found[name].low) == pytest.approx(half, rel=1e-6)


@each("noise", [0.1, 1.0])
@unchecked()
def test_intervals_cover_the_mean_of_many_draws(noise):
    """`benchmarks/maps.py` has more settings and draws."""
    n, d, draws = 30, 12, 100
    linear = random(d, d, seed=7) / 6
    found = []
    for seed in range(draws):
        x = random(n, d, seed=seed)
        y = x + x @ linear + np.sqrt(noise) * random(n, d, seed=10_000 + seed)
        found.append(r_squared(pair_grams(x, y), folds_of(n)))
    for name in NAMES:
        truth = np.mean([one[name].value for one in found])
        covered = np.mean([one[name].low <= truth <= one[name].high for one in found])
        assert 0.9 <= covered <= 1
