from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from theodolite_jobs.statistics.travel import PATH, STEPS, Block, travel


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def blocks_of(states, middles=None):
    """Blocks of a stream's states, (state, sample, d_model), and what lies between attention and MLP."""
    for index, (entering, leaving) in enumerate(pairwise(states)):
        attn = mlp = None
        if middles is not None:
            attn, mlp = (np.linalg.norm(step, axis=1) for step in (middles[index] - entering, leaving - middles[index]))
        yield Block(entering, attn, mlp, leaving)


def named(found):
    steps, path = found
    return {
        **{name: steps[:, :, column] for column, name in enumerate(STEPS)},
        **{name: path[:, column] for column, name in enumerate(PATH)},
    }


def cosine(x, y):
    return x @ y / np.sqrt((x @ x) * (y @ y))


@given(st.integers(1, 5), st.integers(1, 6), st.integers(0, 100))
@settings(deadline=None)
def test_travel_equals_its_definition_written_out_sample_by_sample(n, n_blocks, seed):
    states, middles = random(n_blocks + 1, n, 7, seed=seed), random(n_blocks, n, 7, seed=seed + 1)
    found = named(travel(blocks_of(states, middles), n, n_blocks))
    for sample in range(n):
        x, middle = states[:, sample], middles[:, sample]
        steps = [x[block + 1] - x[block] for block in range(n_blocks)]
        length = 0.0
        for block in range(n_blocks):
            at = sample, block
            np.testing.assert_allclose(found["step_norm_attn"][at], np.linalg.norm(middle[block] - x[block]))
            np.testing.assert_allclose(found["step_norm_mlp"][at], np.linalg.norm(x[block + 1] - middle[block]))
            np.testing.assert_allclose(found["step_norm_block"][at], np.linalg.norm(steps[block]))
            np.testing.assert_allclose(found["step_cosine_stream"][at], cosine(steps[block], x[block]), atol=1e-12)
            if block + 1 < n_blocks:
                between = cosine(steps[block], steps[block + 1])
                np.testing.assert_allclose(found["step_cosine_next"][at], between, atol=1e-12)
            length += np.linalg.norm(steps[block])
        displacement = np.linalg.norm(x[-1] - x[0])
        np.testing.assert_allclose(found["path_length"][sample], length)
        np.testing.assert_allclose(found["displacement"][sample], displacement)
        np.testing.assert_allclose(found["path_ratio"][sample], length / displacement)
    assert np.isnan(found["step_cosine_next"][:, -1]).all()


def test_a_straight_line_has_step_cosines_and_path_ratio_one():
    direction = random(9)
    direction /= np.linalg.norm(direction)
    states = [np.outer(np.array([1.0, 2.0]), direction) * distance for distance in (1.0, 3.0, 4.0, 8.0)]
    found = named(travel(blocks_of(states), 2, 3))
    np.testing.assert_allclose(found["step_cosine_next"][:, :2], 1, rtol=1e-12)
    np.testing.assert_allclose(found["step_cosine_stream"], 1, rtol=1e-12)
    np.testing.assert_allclose(found["step_norm_block"], [[2, 1, 4], [4, 2, 8]], rtol=1e-12)
    np.testing.assert_allclose(found["path_length"], [7, 14], rtol=1e-12)
    np.testing.assert_allclose(found["path_ratio"], 1, rtol=1e-12)
    assert np.isnan(found["step_norm_attn"]).all()


def test_half_a_circle_is_half_pi_times_as_long_as_its_chord():
    n_blocks, angle = 200, np.pi / 200
    states = [np.array([[np.cos(step * angle), np.sin(step * angle), 0.0]]) for step in range(n_blocks + 1)]
    found = named(travel(blocks_of(states), 1, n_blocks))
    np.testing.assert_allclose(found["step_norm_block"], 2 * np.sin(angle / 2), rtol=1e-12)
    np.testing.assert_allclose(found["step_cosine_next"][:, :-1], np.cos(angle), rtol=1e-10)
    np.testing.assert_allclose(found["step_cosine_stream"], -np.sin(angle / 2), atol=1e-12)
    np.testing.assert_allclose(found["displacement"], 2, rtol=1e-12)
    np.testing.assert_allclose(found["path_ratio"], np.pi / 2, rtol=1e-4)  # of a polygon


def test_a_closed_path_has_a_length_and_no_ratio():
    home, away = random(2, 1, 5)
    found = named(travel(blocks_of([home, away, home]), 1, 2))
    np.testing.assert_allclose(found["step_cosine_next"][0, 0], -1, rtol=1e-12)
    np.testing.assert_allclose(found["path_length"], 2 * np.linalg.norm(away - home))
    assert found["displacement"] == 0
    assert np.isnan(found["path_ratio"])


def test_float32_states_have_the_steps_of_their_exact_values():
    states = (100 + random(4, 3, 500)).astype(np.float32)
    found, exact = named(travel(blocks_of(states), 3, 3)), named(travel(blocks_of(states.astype(np.float64)), 3, 3))
    for name, values in exact.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-13)


def test_a_zero_step_has_nan_cosines_and_does_not_affect_others():
    x, y = random(2, 1, 5)
    found = named(travel(blocks_of([x, x, y, y + 1]), 1, 3))
    assert found["step_norm_block"][0, 0] == 0
    assert np.isnan([found["step_cosine_stream"][0, 0], found["step_cosine_next"][0, 0]]).all()
    assert np.isfinite(found["step_cosine_next"][0, 1])
    assert np.isfinite(found["path_ratio"])


def test_a_stream_that_starts_at_zero_lacks_only_its_first_angle():
    states = [np.zeros((1, 5)), *random(2, 1, 5)]
    found = named(travel(blocks_of(states), 1, 2))
    assert np.isnan(found["step_cosine_stream"]).tolist() == [[True, False]]


def test_a_nan_angle_of_one_sample_does_not_affect_others():
    x, y = random(2, 3, 5)
    y[1] = x[1]
    found = named(travel(blocks_of([x, y]), 3, 1))
    assert np.isnan(found["step_cosine_stream"][:, 0]).tolist() == [False, True, False]


@pytest.mark.parametrize("missing", [0, 1, 3])
def test_a_block_without_output_has_no_steps_and_the_prompt_no_path(missing):
    states = random(5, 2, 6)
    blocks = list(blocks_of(states, random(4, 2, 6, seed=1)))
    lost = blocks[missing]
    blocks[missing] = Block(lost.entering, lost.attn, None, None)
    whole, found = named(travel(blocks_of(states, random(4, 2, 6, seed=1)), 2, 4)), named(travel(blocks, 2, 4))
    lost_too = {"step_norm_mlp": 0, "step_norm_block": 0, "step_cosine_stream": 0, "step_cosine_next": 1}
    for name, beside in lost_too.items():
        gone = np.zeros(4, bool)
        gone[[block for block in (missing - beside, missing) if block >= 0]] = True
        assert np.isnan(found[name][:, gone]).all()
        np.testing.assert_array_equal(found[name][:, ~gone], whole[name][:, ~gone])
    np.testing.assert_array_equal(found["step_norm_attn"], whole["step_norm_attn"])
    assert np.isnan(found["path_length"]).all()
    assert np.isnan(found["path_ratio"]).all()


def test_no_blocks_and_no_samples_are_no_error():
    steps, path = travel([], 3, 0)
    assert steps.shape == (3, 0, 5)
    assert np.isnan(path).all()
    steps, path = travel(blocks_of(random(3, 0, 6)), 0, 2)
    assert (steps.shape, path.shape) == ((0, 2, 5), (0, 3))


@given(st.integers(0, 100), st.integers(-20, 20))
@settings(deadline=None)
def test_lengths_scale_with_the_stream_and_cosines_do_not(seed, exponent):
    states, factor = random(4, 3, 6, seed=seed), 2.0**exponent
    plain, scaled = named(travel(blocks_of(states), 3, 3)), named(travel(blocks_of(states * factor), 3, 3))
    for name in ("step_norm_block", "path_length", "displacement"):
        np.testing.assert_array_equal(scaled[name], plain[name] * factor)
    for name in ("step_cosine_next", "step_cosine_stream", "path_ratio"):
        np.testing.assert_array_equal(scaled[name], plain[name])
