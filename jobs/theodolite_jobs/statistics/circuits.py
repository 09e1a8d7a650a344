"""One layer's circuits as thin factors, the form of attention's weights that is decomposed."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from theodolite_jobs.statistics.norms import Norm


@dataclass(frozen=True)
class Circuits:
    """One layer's circuits: W_QK(δ) = query · rotation · keyᵀ and W_VO = value · writtenᵀ.

    An unchanged factor keeps the dtype of the model's files, so a layer of a large model needs little memory. A factor
    that a norm or a scale is folded into is in float64.

    Attributes:
        query: W_Q, with the scale of the norm on queries folded in.
        key: W_K, with the scale of the norm on keys folded in.
        value: W_V.
        output: W_Oᵀ.
        written: W_Oᵀ with the scale of the norm on attention's output and the residual multiplier folded in.
        kv_head_of: index of the key-value head that each head uses.
        rotations: s·R(δ) by offset δ, with the family's score scale s.
        query_bias: b_Q, or None.
        key_bias: b_K, or None.
        value_bias: b_V, or None.
        output_bias: b_O, or None.
        input_norm: the norm between the residual stream and attention, or None.
        output_norm: the norm on attention's output before it is added to the stream, or None.
        output_scale: factor on attention's output before it is added to the stream.
    """

    query: Float[np.ndarray, "head d_model d_head"]
    key: Float[np.ndarray, "kv_head d_model d_head"]
    value: Float[np.ndarray, "kv_head d_model d_head"]
    output: Float[np.ndarray, "head d_model d_head"]
    written: Float[np.ndarray, "head d_model d_head"]
    kv_head_of: Int[np.ndarray, " head"]
    rotations: Mapping[int, Float[np.ndarray, "d_head d_head"]]
    query_bias: Float[np.ndarray, "head d_head"] | None
    key_bias: Float[np.ndarray, "kv_head d_head"] | None
    value_bias: Float[np.ndarray, "kv_head d_head"] | None
    output_bias: Float[np.ndarray, " d_model"] | None
    input_norm: Norm | None
    output_norm: Norm | None
    output_scale: float
