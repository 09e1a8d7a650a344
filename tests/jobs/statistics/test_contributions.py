"""Contributions of heads and vectors along directions, against sums that are written out."""

import numpy as np
import pytest
from scipy.stats import kstest
from support.each import each
from support.shapes import unchecked

from theodolite.groups.schema import NULL_AND_LIMIT
from theodolite_jobs.groups.contributions.formulas import (
    head_outputs,
    standardised_differences,
    sum_error,
    total_of_shares,
    vectors_along,
    written_along,
)
from theodolite_jobs.statistics.factors import Circuits
from theodolite_jobs.statistics.norms import Norm, normalised, projected

N, HEADS, D_HEAD, WIDTH = 9, 3, 4, 10


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def circuits(norm=None, bias=None, scale=1.0):
    """Circuits of which only the output projection matters here."""
    output = random(HEADS, WIDTH, D_HEAD, seed=1)
    folded = output
    if norm is not None:
        folded = (projected(output.transpose(0, 2, 1), norm) * norm.scale).transpose(0, 2, 1)
    nothing = np.zeros((HEADS, WIDTH, D_HEAD))
    return Circuits(
        query=nothing,
        key=nothing,
        value=nothing,
        output=output,
        written=folded * scale,
        kv_head_of=np.arange(HEADS),
        rotations={0: np.eye(D_HEAD)},
        query_bias=None,
        key_bias=None,
        value_bias=None,
        output_bias=bias,
        input_norm=None,
        source_norm=None,
        output_norm=norm,
        output_scale=scale,
    )


NORMS = {
    "none": None,
    "rms": Norm("rms", 1e-5, 1 + 0.3 * random(WIDTH, seed=2), np.zeros(WIDTH)),
    "layer": Norm("layer", 1e-5, 1 + 0.3 * random(WIDTH, seed=2), random(WIDTH, seed=3)),
}


@each("bias", [None, random(WIDTH, seed=4)])
@each("norm, scale", [("none", 1.0), ("none", 0.22), ("rms", 1.0), ("layer", 1.0)])
def test_heads_and_biases_add_up_to_attentions_output(norm, scale, bias):
    outputs, of_layer = random(N, HEADS, D_HEAD), circuits(NORMS[norm], bias, scale)
    whole = sum(outputs[:, head] @ of_layer.output[head].T for head in range(HEADS)) + (0 if bias is None else bias)
    expected = whole * scale if NORMS[norm] is None else normalised(whole, NORMS[norm])
    np.testing.assert_allclose(head_outputs(outputs, of_layer).attention(), expected, rtol=1e-12, atol=1e-12)


def test_contributions_along_directions_are_those_of_each_sample_and_head():
    heads = head_outputs(random(N, HEADS, D_HEAD), circuits(NORMS["rms"], random(WIDTH, seed=4)))
    weights, directions = random(5, N, seed=5), random(5, WIDTH, seed=6)
    found = written_along(heads, weights, directions)
    for draw in range(5):
        for head in range(HEADS):
            vectors = [heads.written[head] @ heads.scaled[sample, head] for sample in range(N)]
            expected = sum(weights[draw, sample] * vectors[sample] @ directions[draw] for sample in range(N))
            assert found[draw, head] == pytest.approx(expected, rel=1e-10)
    whole = vectors_along(heads.attention(), weights, directions)
    rest = vectors_along(heads.rest, weights, directions)
    np.testing.assert_allclose(found.sum(axis=1) + rest, whole, rtol=1e-10, atol=1e-12)


def test_standardised_differences_by_hand():
    """The head writes 1, 3 and 5, 9 onto the direction: means 2 and 7, variances 2 and 8."""
    outputs = np.zeros((4, HEADS, D_HEAD))
    outputs[:, 1, 0] = 1, 3, 5, 9
    of_layer = circuits()
    of_layer.written[:] = 0
    of_layer.written[1, 0, 0] = 1
    directions = np.stack([np.eye(WIDTH)[0], -2 * np.eye(WIDTH)[0]])
    labels = np.array(
        [[True, True, False, False], [False, True, False, True]]
    )  # in the second draw 3 and 9 against 1, 5
    difference, standardised = standardised_differences(head_outputs(outputs, of_layer), directions, labels)
    np.testing.assert_allclose(difference, [[0, -5, 0], [0, -6, 0]])
    np.testing.assert_allclose(standardised[:, 1], [-5 / np.sqrt(5), -6 / np.sqrt((4 * 18 + 4 * 8) / 2)])
    assert np.isnan(standardised[:, [0, 2]]).all()


def test_a_set_of_one_prompt_has_a_difference_and_no_standard_deviation():
    heads = head_outputs(random(4, HEADS, D_HEAD), circuits())
    labels = np.array([[True, False, False, False]])
    difference, standardised = standardised_differences(heads, random(1, WIDTH), labels)
    assert np.isfinite(difference).all()
    assert np.isnan(standardised).all()


def test_the_error_of_a_sum_is_relative_to_the_stream():
    measured, stream = np.array([[3.0, 4.0], [1.0, 0.0]]), np.array([[10.0, 0.0], [0.0, 4.0]])
    assert sum_error(measured, np.array([[3.0, 3.0], [1.0, 1.0]]), stream) == pytest.approx(1 / 4)


def test_the_total_of_shares_is_tested_on_both_sides():
    """Totals of 201 rows: 0.2 with the real labels, and 0.5 ± 0.1 with permuted ones; a row has the parts 1 and NaN."""
    shares = np.full((201, 3), np.nan)
    shares[:, 0] = 0.1
    shares[1:, 2] = 0.4 + 0.1 * random(200)
    for real in (0.1, 0.7):  # as far below as above
        shares[0, 2] = real
        total, null = total_of_shares(shares)
        found = dict(zip(NULL_AND_LIMIT, null, strict=True))
        assert total == pytest.approx(0.1 + real)
        assert found["mean"] == pytest.approx(shares[1:, 2].mean() + 0.1)
        assert found["sd"] == pytest.approx(shares[1:, 2].std(ddof=1))
        assert found["z"] == pytest.approx((total - found["mean"]) / found["sd"])
        extreme = (np.abs(shares[:, 2] - shares[:, 2].mean()) >= abs(real - shares[:, 2].mean())).sum()
        assert found["p"] == pytest.approx(extreme / 201)


@unchecked()
def test_the_p_of_a_total_is_uniform_if_the_real_labels_are_one_of_the_permutations():
    random_totals = np.random.default_rng(3)
    p = [total_of_shares(random_totals.exponential(size=(201, 1)))[1][NULL_AND_LIMIT.index("p")] for _ in range(400)]
    assert kstest(p, "uniform").pvalue > 0.01


def test_a_total_without_parts_is_unknown():
    total, null = total_of_shares(np.full((201, 2), np.nan))
    assert np.isnan([total, *null]).all()
