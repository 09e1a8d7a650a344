"""What parts of the stream write onto the difference of the means of two sets. Pure, in float64.

The stream after the last block is the sum of the first block's input and of what all heads and MLPs add. A projection
onto a direction is linear, so the contributions of the parts add up to that of the stream. This is direct logit
attribution (Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits") with a difference of means in
place of a logit.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Float64

from theodolite_jobs.statistics.factors import Circuits
from theodolite_jobs.statistics.norms import divisor, projected
from theodolite_jobs.statistics.permutations import Tested, permutation_test
from theodolite_jobs.statistics.ratio import ratio


class HeadOutputs(NamedTuple):
    """Outputs of heads as the stream gets them: head h of a sample adds `scaled` · `written`ᵀ.

    Attributes:
        scaled: outputs before W_O, divided by the divisor of the norm on attention's output, if there is one.
        written: W_Oᵀ with the linear part of this norm and the residual multiplier folded in.
        rest: what the biases of W_O and of this norm add.
    """

    scaled: Float64[np.ndarray, "sample head d_head"]
    written: Float[np.ndarray, "head d_model d_head"]
    rest: Float64[np.ndarray, "sample d_model"]

    def attention(self) -> Float64[np.ndarray, "sample d_model"]:
        """Return the sum over heads and biases: attention's output."""
        return np.asarray(_sum_over_heads(self.scaled, self.written) + self.rest)


def head_outputs(outputs: Float64[np.ndarray, "sample head d_head"], circuits: Circuits) -> HeadOutputs:
    """Return what each head adds to the stream; a norm on attention's output divides all heads of a sample alike."""
    n, d_model = len(outputs), circuits.output.shape[1]
    bias = np.zeros(d_model) if circuits.output_bias is None else circuits.output_bias
    norm = circuits.output_norm
    if norm is None:
        return HeadOutputs(outputs, circuits.written, np.tile(bias * circuits.output_scale, (n, 1)))
    whole = projected(_sum_over_heads(outputs, circuits.output) + bias, norm)
    divisors = divisor(whole, norm)
    rest = (projected(bias, norm) / divisors * norm.scale + norm.bias) * circuits.output_scale
    return HeadOutputs(outputs / divisors[:, :, None], circuits.written, rest)


def _sum_over_heads(
    outputs: Float64[np.ndarray, "sample head d_head"], matrices: Float[np.ndarray, "head d_model d_head"]
) -> Float64[np.ndarray, "sample d_model"]:
    flat = np.moveaxis(matrices.astype(np.float64), 1, 2).reshape(-1, matrices.shape[1])
    return np.asarray(outputs.reshape(len(outputs), -1) @ flat)


def written_along(
    heads: HeadOutputs, weights: Float64[np.ndarray, "draw sample"], directions: Float64[np.ndarray, "draw d_model"]
) -> Float64[np.ndarray, "draw head"]:
    """Return Σ w·(what each head adds) along the direction of each draw."""
    shape = len(weights), *heads.scaled.shape[1:]
    sums = (weights @ heads.scaled.reshape(len(heads.scaled), -1)).reshape(shape)
    read = np.stack([directions @ matrix.astype(np.float64) for matrix in heads.written], axis=1)
    return np.asarray(np.vecdot(sums, read))


def vectors_along(
    vectors: Float64[np.ndarray, "sample d_model"],
    weights: Float64[np.ndarray, "draw sample"],
    directions: Float64[np.ndarray, "draw d_model"],
) -> Float64[np.ndarray, " draw"]:
    """Return Σ w·x along the direction of each draw."""
    return np.asarray(np.vecdot(weights @ vectors, directions))


def standardised_differences(
    heads: HeadOutputs, directions: Float64[np.ndarray, "draw d_model"], labels: Bool[np.ndarray, "draw sample"]
) -> tuple[Float64[np.ndarray, "draw head"], Float64[np.ndarray, "draw head"]]:
    """Return the difference of the means of what each head writes onto a direction, and the same over the pooled SD.

    The standard deviation (n−1) is the root of the mean of both sets' variances; NaN where it is 0 or unknown.

    Args:
        heads: outputs of the heads of one layer.
        directions: the direction of each draw.
        labels: which samples count as positive in each draw, from `permuted_labels`.
    """
    difference, pooled = np.full((2, len(labels), len(heads.written)), np.nan)
    sides = [labels, ~labels]
    sizes = [side.sum(axis=1) for side in sides]
    for head, matrix in enumerate(heads.written):
        written = (heads.scaled[:, head] @ (directions @ matrix).T).T  # (draw, sample)
        means = [ratio((written * side).sum(axis=1), size) for side, size in zip(sides, sizes, strict=True)]
        difference[:, head] = means[0] - means[1]
        squares = [
            (((written - mean[:, None]) * side) ** 2).sum(axis=1) for side, mean in zip(sides, means, strict=True)
        ]
        variances = [ratio(square, np.maximum(size - 1, 0)) for square, size in zip(squares, sizes, strict=True)]
        pooled[:, head] = np.sqrt((variances[0] + variances[1]) / 2)
    return difference, ratio(difference, pooled)


def sum_error(
    measured: Float64[np.ndarray, "sample d_model"],
    summed: Float64[np.ndarray, "sample d_model"],
    stream: Float64[np.ndarray, "sample d_model"],
) -> float:
    """Return the maximum over samples of ‖measured − summed‖/‖stream‖."""
    errors = np.linalg.norm(measured - summed, axis=1)
    return float(ratio(errors, np.linalg.norm(stream, axis=1)).max())


def total_of_shares(
    shares: Float64[np.ndarray, "draw part"],
) -> tuple[float, Float64[np.ndarray, " null"]]:
    """Return the sum of the shares of all parts of one kind, and its two-sided test against permuted labels.

    The p is the share of rows, the real labels included, whose total is as far from the mean of all rows. This mean
    does not depend on which row has the real labels, so all rows are exchangeable if the labels are.

    Args:
        shares: first with the real labels, then with those of each draw; NaN for parts that do not exist.
    """
    totals = np.where(np.isnan(shares).all(axis=1), np.nan, np.nansum(shares, axis=1))
    tested = permutation_test(np.stack([totals, np.abs(totals - totals.mean())], axis=1))
    unknown = np.array(np.nan)  # each total is tested alone
    null = Tested(tested.null_mean[0], tested.null_sd[0], tested.z[0], tested.p[1], unknown, unknown)
    return float(totals[0]), null.stacked()
