import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from theodolite_jobs.heads import coverage_rank, decompose, effective_rank, stable_rank, thin


def factors(seed, heads=3, d_model=24, d_head=6, condition=1.0):
    rng = np.random.default_rng(seed)
    drawn = rng.normal(size=(heads, d_model, d_head))
    return (drawn * np.geomspace(1, 1 / condition, d_head)).astype(np.float32)


def dense(left, right, middle=None):
    middle = np.eye(left.shape[2]) if middle is None else middle
    return left.astype(np.float64) @ middle @ right.astype(np.float64).transpose(0, 2, 1)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), condition=st.sampled_from([1.0, 1e3, 1e6]), turned=st.booleans())
def test_the_decomposition_equals_a_dense_one_in_float64(seed, condition, turned):
    left, right = factors(seed, condition=condition), factors(seed + 1)
    middle = np.random.default_rng(seed + 2).normal(size=(6, 6)) if turned else None
    found = decompose(thin(left), thin(right), 6, middle=middle)
    whole = dense(left, right, middle)
    values = np.linalg.svd(whole, compute_uv=False)[:, :6]
    np.testing.assert_allclose(found.singular_values, values, atol=1e-12 * values[:, :1].max())
    rebuilt = np.einsum("hr,hrd,hre->hde", found.singular_values, found.left, found.right)
    assert np.linalg.norm(rebuilt - whole) <= 1e-12 * np.linalg.norm(whole)
    largest = np.take_along_axis(found.right, np.abs(found.right).argmax(-1)[..., None], -1)
    assert (largest > 0).all()


def test_vectors_are_orthonormal_and_the_leading_ones_do_not_depend_on_how_many_are_asked_for():
    left, right = factors(0), factors(1)
    six, two = (decompose(thin(left), thin(right), vectors) for vectors in (6, 2))
    for side in (six.left, six.right):
        np.testing.assert_allclose(side @ side.transpose(0, 2, 1), np.broadcast_to(np.eye(6), (3, 6, 6)), atol=1e-13)
    np.testing.assert_allclose(two.left, six.left[:, :2], atol=1e-13)
    alone = decompose(thin(left), thin(right), 0)
    np.testing.assert_allclose(alone.singular_values, six.singular_values, rtol=1e-12)
    assert alone.left.shape == (3, 0, 24)


def test_heads_of_a_group_share_their_right_factor():
    left, right = factors(0, heads=4), factors(1, heads=2)
    grouped = decompose(thin(left), thin(right), 3, right_of=np.array([0, 0, 1, 1]))
    apart = decompose(thin(left), thin(right.repeat(2, axis=0)), 3)
    np.testing.assert_allclose(grouped.singular_values, apart.singular_values, rtol=1e-13)
    np.testing.assert_allclose(grouped.right, apart.right, atol=1e-13)


def test_a_factor_of_lower_rank_is_decomposed_by_qr():
    left, right = factors(0), factors(1)
    left[1, :, 4] = left[1, :, 3]
    values = decompose(thin(left), thin(right), 0).singular_values
    np.testing.assert_allclose(values, np.linalg.svd(dense(left, right), compute_uv=False)[:, :6], atol=1e-11)
    assert values[1, 5] < 1e-6 * values[1, 0]


def test_a_weight_that_is_not_finite_is_named():
    left = factors(0)
    left[2, 0, 0] = np.nan
    with pytest.raises(ValueError, match="head 2 has a weight that is not finite"):
        thin(left)


def test_ranks_of_spectra_written_by_hand():
    flat, one = np.ones(4), np.array([1.0, 0.0, 0.0, 0.0])
    falling = np.array([98.0, 1.5, 0.4, 0.1])
    assert coverage_rank(np.stack([flat, one, falling])).tolist() == [4, 1, 2]
    np.testing.assert_allclose(effective_rank(np.stack([flat, one])), [4, 1])
    np.testing.assert_allclose(
        stable_rank(np.stack([flat, one, falling])), [4, 1, 1 + (1.5**2 + 0.4**2 + 0.1**2) / 98**2]
    )
