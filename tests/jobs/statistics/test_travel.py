from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.each import each

from theodolite_jobs.statistics.steps import PATH, RATIOS, STEPS, Block, travel

ATTENTION, MLP, BLOCK = range(3)
NEXT, STREAM = range(2)


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def blocks_of(states, middles=None):
    """Blocks of a stream's states, (state, sample, d_model), and what lies between attention and MLP."""
    for index, (entering, leaving) in enumerate(pairwise(states)):
        yield Block(entering, None if middles is None else middles[index], leaving)


def named(blocks, n, n_blocks):
    """Travel through blocks at one position, by name; quantities of steps are (sublayer or pair, sample, block)."""
    found = travel(blocks, n, 1, n_blocks)
    paths = (*PATH, *(f"{name}_before_last" for name in RATIOS))
    return {
        **{name: np.moveaxis(found.steps[:, 0, :, columns], -1, 0) for name, columns in STEPS.items()},
        **{name: found.path[:, 0, column] for column, name in enumerate(paths)},
    }


def angle(x, y):
    return np.arccos(cosine(x, y))


def cosine(x, y):
    return x @ y / np.sqrt((x @ x) * (y @ y))


@given(st.integers(1, 5), st.integers(1, 6), st.integers(0, 100))
@settings(deadline=None)
def test_travel_equals_its_definition_written_out_sample_by_sample(n, n_blocks, seed):
    states, middles = random(n_blocks + 1, n, 7, seed=seed), random(n_blocks, n, 7, seed=seed + 1)
    found = named(blocks_of(states, middles), n, n_blocks)
    for sample in range(n):
        x, middle = states[:, sample], middles[:, sample]
        steps = [x[block + 1] - x[block] for block in range(n_blocks)]
        length = 0.0
        for block in range(n_blocks):
            at = sample, block
            np.testing.assert_allclose(found["step_norm"][ATTENTION][at], np.linalg.norm(middle[block] - x[block]))
            np.testing.assert_allclose(found["step_norm"][MLP][at], np.linalg.norm(x[block + 1] - middle[block]))
            np.testing.assert_allclose(found["step_norm"][BLOCK][at], np.linalg.norm(steps[block]))
            np.testing.assert_allclose(found["step_cosine"][STREAM][at], cosine(steps[block], x[block]), atol=1e-12)
            np.testing.assert_allclose(found["arc"][ATTENTION][at], angle(x[block], middle[block]))
            np.testing.assert_allclose(found["arc"][MLP][at], angle(middle[block], x[block + 1]))
            np.testing.assert_allclose(found["arc"][BLOCK][at], angle(x[block], x[block + 1]))
            if block + 1 < n_blocks:
                between = cosine(steps[block], steps[block + 1])
                np.testing.assert_allclose(found["step_cosine"][NEXT][at], between, atol=1e-12)
            length += np.linalg.norm(steps[block])
        displacement = np.linalg.norm(x[-1] - x[0])
        np.testing.assert_allclose(found["path_length"][sample], length)
        np.testing.assert_allclose(found["displacement"][sample], displacement)
        np.testing.assert_allclose(found["path_ratio"][sample], length / displacement)
        arc, circle = sum(angle(*states) for states in pairwise(x)), angle(x[0], x[-1])
        np.testing.assert_allclose(found["arc_length"][sample], arc)
        np.testing.assert_allclose(found["great_circle"][sample], circle)
        np.testing.assert_allclose(found["arc_ratio"][sample], arc / circle)
        if n_blocks > 1:
            before = x[:-1]
            length, arc = sum(map(np.linalg.norm, steps[:-1])), sum(angle(*states) for states in pairwise(before))
            displacement, circle = np.linalg.norm(before[-1] - before[0]), angle(before[0], before[-1])
            np.testing.assert_allclose(found["path_ratio_before_last"][sample], length / displacement)
            np.testing.assert_allclose(found["arc_ratio_before_last"][sample], arc / circle)
    if n_blocks == 1:
        assert np.isnan([found["path_ratio_before_last"], found["arc_ratio_before_last"]]).all()
    assert np.isnan(found["step_cosine"][NEXT][:, -1]).all()


def test_a_straight_line_has_step_cosines_and_path_ratio_one():
    direction = random(9)
    direction /= np.linalg.norm(direction)
    states = [np.outer(np.array([1.0, 2.0]), direction) * distance for distance in (1.0, 3.0, 4.0, 8.0)]
    found = named(blocks_of(states), 2, 3)
    np.testing.assert_allclose(found["step_cosine"][NEXT][:, :2], 1, rtol=1e-12)
    np.testing.assert_allclose(found["step_cosine"][STREAM], 1, rtol=1e-12)
    np.testing.assert_allclose(found["step_norm"][BLOCK], [[2, 1, 4], [4, 2, 8]], rtol=1e-12)
    np.testing.assert_allclose(found["path_length"], [7, 14], rtol=1e-12)
    np.testing.assert_allclose(found["path_ratio"], 1, rtol=1e-12)
    assert np.isnan(found["step_norm"][ATTENTION]).all()


def test_half_a_circle_is_half_pi_times_as_long_as_its_chord():
    n_blocks, turn = 200, np.pi / 200
    states = [np.array([[np.cos(step * turn), np.sin(step * turn), 0.0]]) for step in range(n_blocks + 1)]
    found = named(blocks_of(states), 1, n_blocks)
    np.testing.assert_allclose(found["step_norm"][BLOCK], 2 * np.sin(turn / 2), rtol=1e-12)
    np.testing.assert_allclose(found["step_cosine"][NEXT][:, :-1], np.cos(turn), rtol=1e-10)
    np.testing.assert_allclose(found["step_cosine"][STREAM], -np.sin(turn / 2), atol=1e-12)
    np.testing.assert_allclose(found["displacement"], 2, rtol=1e-12)
    np.testing.assert_allclose(found["path_ratio"], np.pi / 2, rtol=1e-4)  # of a polygon
    np.testing.assert_allclose(found["arc"][BLOCK], turn, rtol=1e-10)
    np.testing.assert_allclose(found["arc_length"], np.pi, rtol=1e-10)
    np.testing.assert_allclose(found["great_circle"], np.pi, rtol=1e-10)
    np.testing.assert_allclose(found["arc_ratio"], 1, rtol=1e-10)


@given(st.integers(0, 100))
@settings(deadline=None)
def test_arcs_ignore_lengths_and_are_never_shorter_than_the_great_circle(seed):
    states, middles = random(5, 3, 7, seed=seed), random(4, 3, 7, seed=seed + 1)
    factors = np.exp(random(5, 3, 1, seed=seed + 2))
    found, scaled = (named(blocks_of(one, middles), 3, 4) for one in (states, states * factors))
    for name in ("arc", "arc_length", "great_circle", "arc_ratio"):
        np.testing.assert_allclose(scaled[name], found[name], rtol=1e-9)
    assert (found["arc"][ATTENTION] + found["arc"][MLP] >= found["arc"][BLOCK] - 1e-12).all()
    assert (found["arc_ratio"] >= 1 - 1e-12).all()


@each("turn", [0.0, 1e-6, 1e-3, 1.0, np.pi - 1e-3])
@each("length", [1.0, 1.001, 50.0])
def test_small_angles_have_the_stated_error(turn, length):
    states = np.array([[[1.0, 0.0]], [[length * np.cos(turn), length * np.sin(turn)]]])
    found = named(blocks_of(states), 1, 1)
    step = np.linalg.norm(states[1] - states[0])
    np.testing.assert_allclose(found["arc"][BLOCK], turn, rtol=1e-12, atol=4e-8 * step / length)


def test_a_right_angle_and_a_zero_vector():
    x, y, zero = np.array([[2.0, 0.0]]), np.array([[0.0, 3.0]]), np.zeros((1, 2))
    found = named(blocks_of([x, y, zero, x]), 1, 3)
    np.testing.assert_allclose(found["arc"][BLOCK][0, 0], np.pi / 2, rtol=1e-15)
    assert np.isnan(found["arc"][BLOCK][0, 1:]).all()
    assert np.isnan(found["arc_length"]).all()
    assert found["great_circle"] == 0
    assert np.isnan(found["arc_ratio"]).all()


def test_a_closed_path_has_a_length_and_no_ratio():
    home, away = random(2, 1, 5)
    found = named(blocks_of([home, away, home]), 1, 2)
    np.testing.assert_allclose(found["step_cosine"][NEXT][0, 0], -1, rtol=1e-12)
    np.testing.assert_allclose(found["path_length"], 2 * np.linalg.norm(away - home))
    assert found["displacement"] == 0
    assert np.isnan(found["path_ratio"])


def test_float32_states_have_the_steps_of_their_exact_values():
    states = (100 + random(4, 3, 500)).astype(np.float32)
    found, exact = named(blocks_of(states), 3, 3), named(blocks_of(states.astype(np.float64)), 3, 3)
    for name, values in exact.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-13)


def test_a_zero_step_has_nan_cosines_and_does_not_affect_others():
    x, y = random(2, 1, 5)
    found = named(blocks_of([x, x, y, y + 1]), 1, 3)
    assert found["step_norm"][BLOCK][0, 0] == 0
    assert np.isnan([found["step_cosine"][STREAM][0, 0], found["step_cosine"][NEXT][0, 0]]).all()
    assert np.isfinite(found["step_cosine"][NEXT][0, 1])
    assert np.isfinite(found["path_ratio"])


def test_a_stream_that_starts_at_zero_lacks_only_its_first_angle():
    states = [np.zeros((1, 5)), *random(2, 1, 5)]
    found = named(blocks_of(states), 1, 2)
    assert np.isnan(found["step_cosine"][STREAM]).tolist() == [[True, False]]


def test_a_nan_angle_of_one_sample_does_not_affect_others():
    x, y = random(2, 3, 5)
    y[1] = x[1]
    found = named(blocks_of([x, y]), 3, 1)
    assert np.isnan(found["step_cosine"][STREAM][:, 0]).tolist() == [False, True, False]


@each("missing", [0, 1, 3])
def test_a_block_without_output_has_no_steps_and_the_prompt_no_path(missing):
    states = random(5, 2, 6)
    blocks = list(blocks_of(states, random(4, 2, 6, seed=1)))
    lost = blocks[missing]
    blocks[missing] = Block(lost.entering, lost.middle, None)
    whole, found = named(blocks_of(states, random(4, 2, 6, seed=1)), 2, 4), named(blocks, 2, 4)
    lost_too = [(name, one, 0) for name in ("step_norm", "arc") for one in (MLP, BLOCK)]
    lost_too += [("step_cosine", STREAM, 0), ("step_cosine", NEXT, 1)]
    for name, one, beside in lost_too:
        gone = np.zeros(4, bool)
        gone[[block for block in (missing - beside, missing) if block >= 0]] = True
        assert np.isnan(found[name][one][:, gone]).all()
        np.testing.assert_array_equal(found[name][one][:, ~gone], whole[name][one][:, ~gone])
    for name in ("step_norm", "arc"):
        np.testing.assert_array_equal(found[name][ATTENTION], whole[name][ATTENTION])
    for name in ("path_length", "path_ratio", "arc_length", "arc_ratio"):
        assert np.isnan(found[name]).all()


def test_no_samples_are_no_error():
    found = travel(blocks_of(random(3, 0, 6)), 0, 1, 2)
    assert (found.steps.shape, found.path.shape) == ((0, 1, 2, 8), (0, 1, 8))
    assert found.products.count == 0


def test_captured_outputs_give_the_lengths_of_attention_and_mlp():
    states, attn, mlp = random(2, 3, 6), np.arange(3.0), np.arange(4.0, 7.0)
    found = named([Block(states[0], None, states[1], attn, mlp)], 3, 1)
    np.testing.assert_array_equal(found["step_norm"][ATTENTION][:, 0], attn)
    np.testing.assert_array_equal(found["step_norm"][MLP][:, 0], mlp)
    assert np.isnan(found["arc"][ATTENTION]).all()
    assert np.isfinite(found["arc"][BLOCK]).all()


@given(st.integers(0, 100), st.integers(-20, 20))
@settings(deadline=None)
def test_lengths_scale_with_the_stream_and_cosines_do_not(seed, exponent):
    states, factor = random(4, 3, 6, seed=seed), 2.0**exponent
    plain, scaled = named(blocks_of(states), 3, 3), named(blocks_of(states * factor), 3, 3)
    for name in ("step_norm", "path_length", "displacement"):
        np.testing.assert_array_equal(scaled[name], plain[name] * factor)
    for name in ("step_cosine", "path_ratio", "arc", "arc_length", "arc_ratio"):
        np.testing.assert_array_equal(scaled[name], plain[name])
