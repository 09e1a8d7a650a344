"""Norm layers as functions of arrays. Pure, in float64."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float

from theodolite_jobs.statistics.ratio import ratio


@dataclass(frozen=True)
class Norm:
    """A norm layer: y = (x − mean) / √(variance + ε) · scale + bias, or x / √(mean x² + ε) · scale + bias for `rms`.

    Attributes:
        kind: `layer` subtracts the mean over features, `rms` does not.
        epsilon: ε, under the root.
        scale: (d_model,), ones if the model has no scale.
        bias: (d_model,), zeros if the model has no bias.
    """

    kind: Literal["rms", "layer"]
    epsilon: float
    scale: Float[np.ndarray, " d_model"]
    bias: Float[np.ndarray, " d_model"]


def standardised(x: Float[np.ndarray, "*dims d_model"], norm: Norm) -> Float[np.ndarray, "*dims d_model"]:
    """Return the norm's output for x before scale and bias, which lies near the sphere of radius √d_model."""
    centred = projected(x, norm)
    return np.asarray(centred / divisor(centred, norm))


def divisor(centred: Float[np.ndarray, "*dims d_model"], norm: Norm) -> Float[np.ndarray, "*dims 1"]:
    """Return √(mean square + ε) of rows that are `projected`, by which the norm divides them."""
    return np.asarray(np.sqrt((centred**2).mean(axis=-1, keepdims=True) + norm.epsilon))


def normalised(x: Float[np.ndarray, "*dims d_model"], norm: Norm) -> Float[np.ndarray, "*dims d_model"]:
    """Return the norm's output for x."""
    return np.asarray(standardised(x, norm) * norm.scale + norm.bias)


def projected(x: Float[np.ndarray, "*dims d_model"], norm: Norm) -> Float[np.ndarray, "*dims d_model"]:
    """Return Πx: x minus its mean over features for the `layer` kind, x itself for the `rms` kind."""
    return x - x.mean(axis=-1, keepdims=True) if norm.kind == "layer" else x


def unit(x: Float[np.ndarray, "*dims d_model"]) -> Float[np.ndarray, "*dims d_model"]:
    """Return x/‖x‖, NaN for a zero vector."""
    lengths = np.linalg.norm(x, axis=-1, keepdims=True)
    return ratio(x, lengths)
