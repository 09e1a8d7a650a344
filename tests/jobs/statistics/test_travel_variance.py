"""The budget of the variance and the cosines of deviations, against NumPy and by hand."""

from functools import reduce
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.each import each
from support.shapes import unchecked

from theodolite.groups.schema import ENDS
from theodolite_jobs.groups.travel.formulas_variance import centred_cosines, common_share, variance_budget
from theodolite_jobs.statistics.step_products import merge_products
from theodolite_jobs.statistics.steps import Block, travel

NEXT, STREAM = range(2)


def drawn(n, n_blocks=3, width=7, seed=0, dtype=np.float64):
    """States of a stream with a common part, (state, sample, d_model); every second one lies inside a block."""
    rng = np.random.default_rng(seed)
    common, own = rng.normal(size=(2 * n_blocks + 1, 1, width)), rng.normal(size=(2 * n_blocks + 1, n, width))
    return np.cumsum(3 * common + own, axis=0).astype(dtype)


def products_of(states, n_positions=1):
    blocks = [Block(*states[index : index + 3]) for index in range(0, len(states) - 2, 2)]
    return travel(blocks, states.shape[1] // n_positions, n_positions, len(blocks)).products


def statistics_of(products):
    cosines, share = centred_cosines(products), common_share(products)
    return {**variance_budget(products), "step_cosine_centred": cosines, "step_common_share": share}


def test_two_prompts_in_two_dimensions_by_hand():
    """The steps of the two prompts differ by (2, 0) in attention and by (0, 4) in the MLP."""
    x, middle, y = np.array([[[1.0, 0], [3, 0]], [[2, 1], [6, 1]], [[2, 0], [6, 4]]])
    found = {name: values[0, 0] for name, values in statistics_of(products_of(np.stack([x, middle, y]))).items()}
    # Deviations of x are ±(1, 0), of the steps ±(1, 0) and ±(0, 2); so Var is twice the squared deviation.
    assert found["variance"].tolist() == [2, 8, 16]
    assert found["variance_change"].tolist() == [[2, 4], [8, 0], [10, 4]]
    assert found["step_cosine_centred"][STREAM] == pytest.approx(2 / np.sqrt(2 * 10), rel=1e-15)
    # The steps are (1, 0) and (3, 4): mean (2, 2), squares 1 and 25; the noise of the mean is 10/2.
    assert found["step_common_share"] == pytest.approx((8 - 5) / 13, rel=1e-15)


@given(st.integers(2, 9), st.integers(1, 4), st.integers(0, 100))
@settings(deadline=None)
def test_statistics_equal_numpy(n, n_blocks, seed):
    states = drawn(n, n_blocks, seed=seed)
    found = statistics_of(products_of(states))
    stream, middle = states[::2], states[1::2]
    steps = {"attention": middle - stream[:-1], "mlp": stream[1:] - middle, "block": np.diff(stream, axis=0)}
    starts = {"attention": stream[:-1], "mlp": middle, "block": stream[:-1]}

    def total(x, y):
        return np.trace(np.cov(x.T, y.T)[: x.shape[1], x.shape[1] :])

    for block in range(n_blocks):
        for point, state in enumerate((stream[block], middle[block], stream[block + 1])):
            assert found["variance"][0, block, point] == pytest.approx(total(state, state), rel=1e-12)
        for branch, name in enumerate(ENDS):
            step, start = steps[name][block], starts[name][block]
            step_variance, twice_covariance = found["variance_change"][0, block, branch]
            assert step_variance == pytest.approx(total(step, step), rel=1e-12)
            twice = pytest.approx(2 * total(start, step), rel=1e-10, abs=1e-12 * total(start, start))
            assert twice_covariance == twice
            cosine = total(start, step) / np.sqrt(total(start, start) * total(step, step))
            pair = {"attention": 2, "mlp": 3, "block": STREAM}[name]
            assert found["step_cosine_centred"][0, block, pair] == pytest.approx(cosine, rel=1e-9, abs=1e-11)
    for block, (step, following) in enumerate(pairwise(steps["block"])):
        u, v = (one - one.mean(axis=0) for one in (step, following))
        cosine = (u * v).sum() / np.sqrt((u**2).sum() * (v**2).sum())
        assert found["step_cosine_centred"][0, block, NEXT] == pytest.approx(cosine, rel=1e-10, abs=1e-12)
    assert np.isnan(found["step_cosine_centred"][0, -1, NEXT])


@each("dtype", [np.float32, np.float64])
@each("parts", [1, 4])
def test_the_variance_after_a_step_is_the_sum_of_its_three_parts(dtype, parts):
    states = 100 + drawn(64, 5, 600, dtype=dtype)
    found = variance_budget(reduce(merge_products, (products_of(one) for one in np.split(states, parts, axis=1))))
    pre, mid, post = np.moveaxis(found["variance"], -1, 0)
    added = found["variance_change"].sum(axis=-1)
    for branch, (before, after) in enumerate(((pre, mid), (mid, post), (pre, post))):
        np.testing.assert_allclose(before + added[..., branch], after, rtol=1e-12)
    np.testing.assert_allclose(post[:, :-1], pre[:, 1:], rtol=1e-12)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=5), st.integers(1, 2), st.integers(0, 50))
@settings(deadline=None)
def test_parts_merge_to_the_statistics_of_all_samples(sizes, n_positions, seed):
    states = 50 + drawn(sum(sizes) * n_positions, seed=seed)
    bounds = np.cumsum(sizes)[:-1] * n_positions
    parts = [products_of(part, n_positions) for part in np.split(states, bounds, axis=1)]
    merged, whole = reduce(merge_products, parts), products_of(states, n_positions)
    assert merged.count == whole.count
    found, expected = statistics_of(merged), statistics_of(whole)
    scale = np.nanmax(expected["variance"][..., -1]) if whole.count > 1 else 1.0
    for name, values in expected.items():
        tolerance = 1e-11 * scale if "variance" in name else 1e-9
        np.testing.assert_allclose(found[name], values, rtol=1e-10, atol=tolerance, err_msg=name)


def test_equal_prompts_have_exactly_no_variance_and_one_common_step():
    states = np.repeat(drawn(1), 6, axis=1).astype(np.float32)
    merged = reduce(merge_products, (products_of(part) for part in np.split(states, 3, axis=1)))
    found = statistics_of(merged)
    for name, values in found.items():
        if "variance" in name or "covariance" in name:
            np.testing.assert_array_equal(values, 0, err_msg=name)
    np.testing.assert_array_equal(found["step_common_share"], 1)
    assert np.isnan(found["step_cosine_centred"][..., NEXT]).all()


def test_a_common_step_raises_the_cosine_and_not_that_of_the_deviations():
    """Steps are a large common vector and independent deviations: successive steps look parallel and are not."""
    rng, (n, width, n_blocks) = np.random.default_rng(0), (400, 50, 4)
    steps = 2 * np.ones((n_blocks, 1, width)) + rng.normal(size=(n_blocks, n, width))
    states = np.concatenate([np.zeros((1, n, width)), np.cumsum(steps, axis=0)])
    blocks = [Block(entering, None, leaving) for entering, leaving in pairwise(states)]
    found = travel(blocks, n, 1, n_blocks)
    assert (found.steps[:, 0, :-1, 3].mean(axis=0) > 0.75).all()
    centred = centred_cosines(found.products)[0, :-1, NEXT]
    assert (np.abs(centred) < 4 / np.sqrt((n - 1) * width)).all()
    np.testing.assert_allclose(common_share(found.products), 4 / 5, atol=0.02)


@unchecked()
def test_the_common_share_is_unbiased_where_the_plain_one_is_not():
    """Of 8 prompts without a common step, the plain share is 1/8 on average; E‖Δ‖² is the same in all draws."""
    rng, shares, plain = np.random.default_rng(1), [], []
    for _ in range(500):
        step = rng.normal(size=(8, 40))
        products = products_of(np.stack([np.zeros_like(step), step, step]))
        shares.append(common_share(products)[0, 0])
        plain.append((step.mean(axis=0) ** 2).sum() / (step**2).sum(axis=1).mean())
    assert abs(np.mean(shares)) < 0.004
    assert np.mean(plain) > 0.12


@pytest.mark.parametrize("n", [0, 1])
def test_fewer_than_two_prompts_have_no_variance(n):
    assert all(np.isnan(values).all() for values in statistics_of(products_of(drawn(n))).values())
