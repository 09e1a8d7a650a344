"""Norms as functions of arrays. Pure, in float64."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from theodolite_jobs.statistics.ratio import ratio

if TYPE_CHECKING:
    from theodolite_jobs.models.weights import NormWeights


@dataclass(frozen=True)
class Norm:
    """A norm layer: y = (x − mean) / √(variance + ε) · scale + bias, or of the `rms` kind x / √(mean x² + ε) · scale.

    Attributes:
        kind: which of the two.
        epsilon: ε, under the root.
        scale: (d_model,), ones where the norm has none.
        bias: (d_model,), zeros where the norm has none.
    """

    kind: Literal["rms", "layer"]
    epsilon: float
    scale: Float[np.ndarray, " d_model"]
    bias: Float[np.ndarray, " d_model"]


def norm_of(stored: "NormWeights", d_model: int) -> Norm:
    """Return a norm as it is computed, whether it has a scale and a bias or not."""
    scale = np.ones(d_model) if stored.scale is None else stored.scale.double().numpy()
    bias = np.zeros(d_model) if stored.bias is None else stored.bias.double().numpy()
    return Norm(stored.kind, stored.epsilon, scale, bias)


def standardised(x: Float[np.ndarray, "*dims d_model"], norm: Norm) -> Float[np.ndarray, "*dims d_model"]:
    """Return x on the sphere: what a norm gives before its scale and bias."""
    centred = projected(x, norm)
    result: NDArray[np.float64] = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + norm.epsilon)
    return result


def normalised(x: Float[np.ndarray, "*dims d_model"], norm: Norm) -> Float[np.ndarray, "*dims d_model"]:
    """Return what a norm gives."""
    result: NDArray[np.float64] = standardised(x, norm) * norm.scale + norm.bias
    return result


def projected(x: Float[np.ndarray, "*dims d_model"], norm: Norm) -> Float[np.ndarray, "*dims d_model"]:
    """Return Πx: without its mean over features for the `layer` kind, x itself for the other."""
    return x - x.mean(axis=-1, keepdims=True) if norm.kind == "layer" else x


def unit(x: Float[np.ndarray, "*dims d_model"]) -> Float[np.ndarray, "*dims d_model"]:
    """Return unit vectors; NaN for a zero."""
    lengths = np.linalg.norm(x, axis=-1, keepdims=True)
    return ratio(x, lengths)
