"""The derivative of norms, the leading tokens of a table, and z, against direct computations."""

import numpy as np
import pytest
import torch
from support.each import each

from theodolite_jobs.groups.logit_lens.formulas import (
    back_through_norm,
    changes,
    in_order,
    leading_tokens,
    limit_of_z,
    through_norm,
)
from theodolite_jobs.statistics.norms import Norm
from theodolite_jobs.statistics.permutations import DRAWS, permuted_labels

WIDTH, TOKENS = 12, 300
CPU = torch.device("cpu")


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


NORMS = {
    "rms": Norm("rms", 1e-2, 1 + 0.3 * random(WIDTH, seed=2), np.zeros(WIDTH)),
    "layer": Norm("layer", 1e-2, 1 + 0.3 * random(WIDTH, seed=2), random(WIDTH, seed=3)),
}


def torch_norm(norm):
    """Return the norm as PyTorch has it, in float64."""
    scale, bias = torch.from_numpy(norm.scale), torch.from_numpy(norm.bias)
    if norm.kind == "layer":
        return lambda x: torch.nn.functional.layer_norm(x, (WIDTH,), scale, bias, norm.epsilon)
    return lambda x: torch.nn.functional.rms_norm(x, (WIDTH,), scale, norm.epsilon) + bias


@each("kind", ["rms", "layer"])
def test_the_derivative_of_a_norm_is_that_of_autograd(kind):
    norm, at, vectors = NORMS[kind], random(WIDTH, seed=4) + 1, random(5, WIDTH, seed=5)
    jacobian = torch.autograd.functional.jacobian(torch_norm(norm), torch.from_numpy(at)).numpy()
    np.testing.assert_allclose(through_norm(vectors, at, norm), vectors @ jacobian.T, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(back_through_norm(vectors, at, norm), vectors @ jacobian, rtol=1e-12, atol=1e-13)


def test_the_derivative_by_hand():
    """At (3, 4) without ε, r² = 25/2; the radial part of a vector vanishes."""
    norm = Norm("rms", 0.0, np.array([1.0, 2.0]), np.zeros(2))
    root = np.sqrt(12.5)
    across = np.array([-4.0, 3.0])
    np.testing.assert_allclose(through_norm(np.array([3.0, 4.0]), np.array([3.0, 4.0]), norm), 0, atol=1e-15)
    np.testing.assert_allclose(through_norm(across, np.array([3.0, 4.0]), norm), [-4 / root, 6 / root])
    # LayerNorm in two dimensions maps all but the difference to nothing, and the difference is radial.
    layer = Norm("layer", 0.5, np.ones(2), np.ones(2))
    c, r = np.array([-0.5, 0.5]), np.sqrt(0.25 + 0.5)
    moved = np.array([-1.0, 1.0])
    expected = moved / r - c * 0.5 / r**3  # mean(c∘Πd) = 0.5
    np.testing.assert_allclose(through_norm(np.array([5.0, 7.0]), np.array([3.0, 4.0]), layer), expected)


def test_without_a_norm_vectors_stay():
    vectors = random(3, WIDTH)
    assert through_norm(vectors, random(WIDTH), None) is vectors
    assert back_through_norm(vectors, random(WIDTH), None) is vectors


@each("block_tokens", [1, 7, 64, 299, 4096])
def test_leading_tokens_are_those_of_the_whole_table(block_tokens):
    table, vectors = random(TOKENS, WIDTH, seed=1).astype(np.float32), random(6, WIDTH, seed=2)
    is_token = np.arange(TOKENS) % 11 != 5
    is_token[280:] = False
    steps = []
    found = leading_tokens(
        lambda rows: torch.from_numpy(table)[rows],
        is_token,
        vectors,
        10,
        CPU,
        lambda done, total: steps.append((done, total)),
        block_tokens,
    )
    ids = np.flatnonzero(is_token)
    order = np.argsort(vectors @ table[ids].T.astype(np.float64), axis=1)
    np.testing.assert_array_equal(found.lowered, ids[order[:, :10]])
    np.testing.assert_array_equal(found.raised, ids[order[:, ::-1][:, :10]])
    np.testing.assert_allclose(found.mean, table[ids].astype(np.float64).mean(axis=0), rtol=1e-12)
    assert steps[-1] == (TOKENS, TOKENS)
    assert len(steps) == -(-TOKENS // block_tokens)


def test_a_small_vocabulary_has_all_of_its_tokens_at_both_ends():
    table = torch.tensor([[1.0], [3.0], [2.0]])
    found = leading_tokens(lambda rows: table[rows], np.array([True, True, True]), np.ones((1, 1)), 10, CPU)
    assert found.raised.tolist() == [[1, 2, 0]]
    assert found.lowered.tolist() == [[0, 2, 1]]
    assert found.mean.tolist() == [2.0]


@each("paired", [True, False])
def test_z_is_the_distance_from_permuted_labels(paired):
    folds = np.arange(12) % 5
    labels, scores = permuted_labels(folds, folds, paired=paired), random(24, 3, seed=7)
    scores[:12, 0] += 3
    found = changes(scores, labels)
    drawn = np.array([[scores[row].mean(axis=0) - scores[~row].mean(axis=0)] for row in labels])[:, 0]
    np.testing.assert_allclose(found.change, drawn[0], rtol=1e-12)
    expected = (drawn[0] - drawn[1:].mean(axis=0)) / drawn[1:].std(axis=0, ddof=1)
    np.testing.assert_allclose(found.z, expected, rtol=1e-10)
    assert found.z[0] > 3


def test_without_a_spread_z_is_missing():
    folds = np.zeros(6, dtype=np.int64)
    scores = np.column_stack([np.full(12, 0.1), np.repeat([1.0, 0.0], 6)])
    found = changes(scores, permuted_labels(folds, folds, paired=False))
    assert found.change[1] == pytest.approx(1)
    assert np.isnan(found.z[0])
    assert np.isfinite(found.z[1])
    # One pair in each fold cannot be permuted, so all draws are the real labels.
    alone = changes(random(2, 3), permuted_labels(np.array([0]), np.array([1]), paired=False))
    assert np.isnan(alone.z).all()


def test_the_order_is_by_change_and_then_by_id():
    found = changes(np.array([[2.0, 5.0, 2.0], [0.0, 0.0, 0.0]]), np.array([[True, False]] * 3))
    ids = np.array([9, 4, 3])
    assert ids[in_order(found, ids, is_raised=True)].tolist() == [4, 3, 9]
    assert ids[in_order(found, ids, is_raised=False)].tolist() == [3, 9, 4]


def test_by_chance_a_third_of_the_leading_tokens_have_a_z_of_3_and_few_exceed_the_limit():
    """Sets without a difference, 60 data sets: the tokens with the largest changes, of 4,000 with equal lengths."""
    rng, folds = np.random.default_rng(0), np.arange(40) % 5
    table = rng.normal(size=(4000, 64))
    labels = permuted_labels(folds, folds, paired=True)
    limit, largest, beyond_3 = limit_of_z(4000, DRAWS), [], []
    for _ in range(60):
        samples = rng.normal(size=(80, 64))
        change = (samples[:40].mean(axis=0) - samples[40:].mean(axis=0)) @ table.T
        first = np.argsort(change)[-10:]
        z = changes(samples @ table[first].T, labels).z
        largest.append(z.max())
        beyond_3.append((z > 3).mean())
    assert 4 < limit < 5.5
    assert np.mean(np.array(largest) > limit) <= 0.05
    assert np.mean(beyond_3) > 0.1
