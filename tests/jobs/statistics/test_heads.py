"""Circuits of made-up factors, against their dense (d_model, d_model) matrices in float64."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.each import each
from support.shapes import unchecked

from theodolite_jobs.groups.heads.formulas import copying_score, copying_score_sd_of_gaussian_factors, gain, null_share
from theodolite_jobs.statistics.factors import (
    coverage_rank,
    decompose,
    effective_rank,
    effective_rank_of_gaussian_factors,
    numerical_rank,
    stable_rank,
    thin,
)

EACH = np.arange(3)
GROUPS = np.array([0, 0, 1])  # three heads, two groups


def factors(seed, heads=3, d_model=24, d_head=6, condition=10.0):
    """Random factors as they are stored, in float32; their singular values span `condition`."""
    rng = np.random.default_rng(seed)
    drawn = np.linalg.svd(rng.normal(size=(heads, d_model, d_head)), full_matrices=False)
    return (drawn[0] * np.geomspace(1, 1 / condition, d_head) @ drawn[2]).astype(np.float32)


def dense(left, right, middle=None):
    middle = np.eye(left.shape[2]) if middle is None else middle
    return left.astype(np.float64) @ middle @ right.astype(np.float64).transpose(0, 2, 1)


def rebuilt(found):
    return np.einsum("hr,hrd,hre->hde", found.singular_values, found.left, found.right)


def of_rank(rank, seed=0):
    """Factors of which the one of head 1 has a lower rank, exactly, and the others all of theirs."""
    factor = factors(seed).astype(np.float64)
    factor[1, :, rank:] = factor[1, :, :1] * np.arange(1, 7 - rank)  # multiples of a column, and so nothing new
    return factor


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    conditions=st.tuples(*[st.sampled_from([10.0, 1e3, 1e6, 1e9])] * 2),
    turned=st.booleans(),
    groups=st.sampled_from([(EACH, EACH), (EACH, GROUPS), (GROUPS, EACH)]),
)
def test_the_decomposition_equals_a_dense_one_in_float64(seed, conditions, turned, groups):
    left_of, right_of = groups
    left = factors(seed, left_of.max() + 1, condition=conditions[0])
    right = factors(seed + 1, right_of.max() + 1, condition=conditions[1])
    middle = np.random.default_rng(seed + 2).normal(size=(6, 6)) if turned else None
    found = decompose(thin(left), thin(right), 6, left_of, right_of, middle)
    whole = dense(left[left_of], right[right_of], middle)
    values = np.linalg.svd(whole, compute_uv=False)[:, :6]
    assert (np.abs(found.singular_values - values) <= 1e-12 * values[:, :1]).all()
    errors = np.linalg.norm(rebuilt(found) - whole, axis=(1, 2)) / np.linalg.norm(whole, axis=(1, 2))
    assert errors.max() <= 1e-12
    largest = np.take_along_axis(found.right, np.abs(found.right).argmax(-1)[..., None], -1)
    assert (largest > 0).all()


@each("condition", [1e3, 1e4, 3e4, 9e4, 2e5])
def test_singular_values_are_exact_on_both_sides_of_the_switch_to_qr(condition):
    for seed in range(20):
        left, right = factors(seed, condition=condition), factors(seed + 100, condition=condition)
        found = decompose(thin(left), thin(right), 6, EACH, EACH)
        values = np.linalg.svd(dense(left, right), compute_uv=False)[:, :6]
        assert (np.abs(found.singular_values - values) <= 1e-12 * values[:, :1]).all()
        for side in (found.left, found.right):  # vectors are stored in float32
            assert np.abs(side @ side.transpose(0, 2, 1) - np.eye(6)).max() <= 6e-8


@each("condition", [1.0, 1e3, 1e7])
def test_vectors_are_orthonormal_and_the_leading_ones_do_not_depend_on_how_many_are_asked_for(condition):
    left, right = thin(factors(0, condition=condition)), thin(factors(1))
    six, two, none = (decompose(left, right, vectors, EACH, EACH) for vectors in (6, 2, 0))
    for side in (six.left, six.right):
        # Below QR's threshold vectors come through a Gram matrix, whose rounding the condition's square multiplies.
        np.testing.assert_allclose(side @ side.transpose(0, 2, 1), np.broadcast_to(np.eye(6), (3, 6, 6)), atol=1e-9)
    np.testing.assert_allclose(two.left, six.left[:, :2], atol=1e-12)
    np.testing.assert_allclose(two.right, six.right[:, :2], atol=1e-12)
    np.testing.assert_allclose(none.singular_values, six.singular_values, rtol=0, atol=1e-14)
    assert none.left.shape == none.right.shape == (3, 0, 24)


def test_grouped_heads_share_a_factor_on_either_side():
    many, few = factors(0), factors(1, heads=2)
    grouped = decompose(thin(many), thin(few), 3, EACH, GROUPS)
    apart = decompose(thin(many), thin(few[GROUPS]), 3, EACH, EACH)
    mirrored = decompose(thin(few), thin(many), 3, GROUPS, EACH)
    for found in (grouped, mirrored):
        np.testing.assert_allclose(found.singular_values, apart.singular_values, rtol=1e-13)
    np.testing.assert_allclose(grouped.right, apart.right, atol=1e-13)
    np.testing.assert_allclose(np.abs(mirrored.left), np.abs(apart.right), atol=1e-12)


def test_a_factor_of_lower_rank_is_decomposed_by_qr():
    left, right = of_rank(4), factors(1)
    found = decompose(thin(left), thin(right), 6, EACH, EACH)
    whole = dense(left, right)
    values = np.linalg.svd(whole, compute_uv=False)[:, :6]
    assert np.abs(found.singular_values - values).max() <= 1e-12 * values.max()
    assert np.linalg.norm(rebuilt(found) - whole) <= 1e-12 * np.linalg.norm(whole)
    assert found.singular_values[1, 4] < 1e-14 * found.singular_values[1, 0]
    for side in (found.left, found.right):
        np.testing.assert_allclose(side @ side.transpose(0, 2, 1), np.broadcast_to(np.eye(6), (3, 6, 6)), atol=1e-12)


def test_the_sign_of_a_vector_is_that_of_the_first_of_its_largest_components():
    left = np.zeros((1, 4, 2))
    right = np.zeros((1, 4, 2))
    left[0, :, 0], right[0, :, 0] = [1, 1, 1, 1], [-3, 3, 3, 3]  # a tie: the first is negative
    left[0, :, 1], right[0, :, 1] = [1, -1, 1, -1], [0, 1, 1, -2]
    found = decompose(thin(left), thin(right), 2, np.array([0]), np.array([0]))
    np.testing.assert_allclose(found.right[0, 0], [0.5, -0.5, -0.5, -0.5], atol=1e-15)
    np.testing.assert_allclose(found.left[0, 0], [-0.5] * 4, atol=1e-15)
    np.testing.assert_allclose(found.right[0, 1], np.array([0, -1, -1, 2]) / 6**0.5, atol=1e-15)
    np.testing.assert_allclose(found.left[0, 1], [-0.5, 0.5, -0.5, 0.5], atol=1e-15)


@each("which", ["left", "right", "both"])
def test_a_head_of_zeros_has_no_ranks_and_the_others_are_as_without_it(which):
    left, right = factors(0), factors(1)
    whole = decompose(thin(left), thin(right), 3, EACH, EACH)
    for name, side in {"left": left, "right": right}.items():
        if which in (name, "both"):
            side[1] = 0
    found = decompose(thin(left), thin(right), 3, EACH, EACH)
    np.testing.assert_allclose(found.singular_values[[0, 2]], whole.singular_values[[0, 2]], rtol=1e-12)
    assert (found.singular_values[1] == 0).all()
    assert coverage_rank(found.singular_values)[1] == -1
    assert np.isnan(effective_rank(found.singular_values)).tolist() == [False, True, False]
    assert np.isnan(stable_rank(found.singular_values)).tolist() == [False, True, False]
    assert np.isfinite(found.left).all()
    assert np.isfinite(found.right).all()


def test_heads_that_are_wider_than_the_stream_are_refused_with_the_widths():
    with pytest.raises(ValueError, match="its heads of 8 values are wider than the stream of 6"):
        thin(np.ones((2, 6, 8)))
    assert thin(np.eye(6)[None]).triangle.shape == (1, 6, 6)


@each("value", [np.nan, np.inf, -np.inf])
@each("head", [0, 2])
def test_a_weight_that_is_not_finite_is_named(value, head):
    left = factors(0)
    left[head, 0, 0] = value
    with pytest.raises(ValueError, match=f"head {head} has a weight that is not finite"):
        thin(left)


def test_ranks_of_spectra_written_by_hand():
    flat, one = np.ones(4), np.array([1.0, 0.0, 0.0, 0.0])
    falling = np.array([98.0, 1.5, 0.4, 0.1])
    assert coverage_rank(np.stack([flat, one, falling])).tolist() == [4, 1, 2]
    np.testing.assert_allclose(effective_rank(np.stack([flat, one])), [4, 1])
    shares = falling / 100
    np.testing.assert_allclose(effective_rank(falling[None]), [np.prod(shares**-shares)])
    np.testing.assert_allclose(
        stable_rank(np.stack([flat, one, falling])), [4, 1, 1 + (1.5**2 + 0.4**2 + 0.1**2) / 98**2]
    )


def test_ranks_of_nan_spectra_are_nan():
    spectra = np.array([[[2.0, 1.0], [np.nan, np.nan]]])
    assert np.isnan(effective_rank(spectra)).tolist() == [[False, True]]
    assert np.isnan(stable_rank(spectra)).tolist() == [[False, True]]
    assert coverage_rank(spectra)[0, 1] == -1


@each("rank", [1, 4, 5])
def test_the_numerical_rank_is_numpys(rank):
    factor = of_rank(rank)
    factor[2] = 0
    assert numerical_rank(thin(factor)).tolist() == [6, rank, 0]
    assert numerical_rank(thin(factor)).tolist() == [np.linalg.matrix_rank(one) for one in factor]


@each("condition", [1.0, 1e7])
@each("turned", [False, True])
def test_gain_is_the_length_of_a_direction_through_the_dense_matrix(condition, turned):
    rng = np.random.default_rng(5)
    near, far = factors(0, condition=condition), factors(1, heads=2)
    middle = rng.normal(size=(6, 6)) if turned else None
    directions = rng.normal(size=(4, 24))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    directions[2] = np.nan
    whole = dense(near, far[GROUPS], middle)
    found = gain(directions, thin(near), thin(far), EACH, GROUPS, middle)
    np.testing.assert_allclose(found, np.linalg.norm(np.einsum("cd,hde->che", directions, whole), axis=-1), rtol=1e-12)
    assert np.isnan(found[2]).all()
    back = None if middle is None else middle.T
    mirrored = gain(directions, thin(far), thin(near), GROUPS, EACH, back)
    lengths = np.linalg.norm(np.einsum("cd,hed->che", directions, whole), axis=-1)
    np.testing.assert_allclose(mirrored, lengths, rtol=1e-12)


def test_gain_of_the_leading_vectors_is_the_leading_singular_value():
    near, far = thin(factors(0)), thin(factors(1))
    found = decompose(near, far, 1, EACH, EACH)
    gains = gain(found.left[:, 0], near, far, EACH, EACH)
    np.testing.assert_allclose(np.diag(gains), found.singular_values[:, 0], rtol=1e-12)
    assert (gains <= found.singular_values[:, 0] * (1 + 1e-12)).all()


@each("rank", [1, 4, 6])
@each("condition", [1.0, 1e7])
def test_the_null_share_is_that_of_a_projector_on_the_null_space(rank, condition):
    factor = factors(0, condition=condition).astype(np.float64)
    factor[1] = of_rank(rank)[1]
    samples = np.random.default_rng(3).normal(size=(40, 24)) * np.geomspace(1, 20, 24) + 5
    centred = samples - samples.mean(axis=0)
    expected = []
    for one in factor:
        left, _, _ = np.linalg.svd(one)  # the last columns of a whole basis are the null space of x ↦ x A
        null = left[:, np.linalg.matrix_rank(one) :]
        expected.append((centred @ null @ null.T).var(axis=0, ddof=1).sum() / samples.var(axis=0, ddof=1).sum())
    np.testing.assert_allclose(null_share(samples, thin(factor)), expected, rtol=1e-12)


def test_all_variance_is_in_the_null_space_of_zeros_and_none_where_samples_are_equal():
    factor = factors(0)
    factor[1] = 0
    samples = np.random.default_rng(3).normal(size=(40, 24))
    assert null_share(samples, thin(factor))[1] == 1
    assert np.isnan(null_share(np.tile(samples[:1], (7, 1)), thin(factor))).all()


def test_the_copying_score_is_that_of_the_whole_vocabulary():
    rng = np.random.default_rng(0)
    value, output = factors(0, heads=2).astype(np.float64), factors(1).astype(np.float64)
    embedding, unembedding = rng.normal(size=(2, 50, 24)) + 0.5
    found = copying_score(value, output, GROUPS, unembedding.T @ embedding)
    for head, score in enumerate(found):
        eigenvalues = np.linalg.eigvals(embedding @ value[GROUPS[head]] @ output[head].T @ unembedding.T)
        # All but d_head are zero, and come out as rounding: their magnitudes add up to 1e-13 or so.
        np.testing.assert_allclose(score, eigenvalues.sum().real / np.abs(eigenvalues).sum(), atol=1e-10)


def test_copying_scores_of_a_projector_and_its_negative_are_one_and_minus_one():
    rng = np.random.default_rng(0)
    embedding = rng.normal(size=(50, 24))
    value = rng.normal(size=(1, 24, 6))
    # V (V⁺): the projector on the span of V, which passes on what it sees.
    output = np.linalg.pinv(value[0]).T[None]
    table = embedding.T @ embedding
    both = copying_score(value, np.concatenate([output, -output, 0 * output]), np.zeros(3, dtype=int), table)
    np.testing.assert_allclose(both[:2], [1, -1], atol=1e-12)
    assert np.isnan(both[2])


@each("d_model, d_head", [(64, 8), (256, 32)])
def test_the_effective_rank_of_gaussian_factors_is_that_of_whole_matrices(d_model, d_head):
    rng = np.random.default_rng(7)
    singular = []
    for _ in range(40):
        first, second = rng.normal(size=(2, d_model, d_head))
        singular.append(np.linalg.svd(first @ second.T, compute_uv=False)[:d_head])
    expected = effective_rank(np.stack(singular)).mean()
    assert effective_rank_of_gaussian_factors(d_model, [d_head], [d_head]) == pytest.approx(expected, rel=0.01)


@unchecked()
def test_random_weights_through_latents_have_a_smaller_effective_rank():
    rng, singular = np.random.default_rng(1), []
    for _ in range(400):
        down, up, key = (rng.normal(size=shape) for shape in ((48, 20), (20, 8), (48, 8)))
        singular.append(np.linalg.svd(down @ up @ key.T, compute_uv=False)[:8])
    found = effective_rank(np.stack(singular))
    # A mean of five draws has an error of sd/√5.
    assert abs(effective_rank_of_gaussian_factors(48, [20, 8], [8]) - np.mean(found)) < 4 * np.std(found) / 5**0.5
    assert effective_rank_of_gaussian_factors(48, [8], [8]) > np.mean(found) + 2 * np.std(found)


@unchecked()
def test_the_copying_scores_of_gaussian_factors_spread_as_those_of_whole_matrices():
    rng = np.random.default_rng(3)
    embedding, unembedding = rng.normal(size=(2, 60, 24)) * np.linspace(0.1, 2, 24)
    scores = []
    for _ in range(400):
        first, second = rng.normal(size=(2, 24, 6))
        eigenvalues = np.linalg.eigvals(embedding @ first @ second.T @ unembedding.T)
        scores.append(eigenvalues.sum().real / np.abs(eigenvalues).sum())
    assert abs(np.mean(scores)) < 4 * np.std(scores) / 20
    found = copying_score_sd_of_gaussian_factors(unembedding.T @ embedding, [6], [6])
    assert found == pytest.approx(np.std(scores), rel=0.3)
