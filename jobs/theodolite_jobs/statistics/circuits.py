"""One layer's circuits as thin factors: what the weights of attention are made into before they are decomposed."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from theodolite_jobs.statistics.norms import Norm


@dataclass(frozen=True)
class Circuits:
    """One layer's circuits: W_QK(δ) = query · rotation · keyᵀ and W_VO = value · writtenᵀ.

    Factors that are as they were read have the dtype they were read in, so that a layer of a large model is small in
    memory; those that something was folded into are in float64.

    Attributes:
        query: W_Q, with the scale of the norm on queries.
        key: W_K, likewise.
        value: W_V.
        output: W_Oᵀ.
        written: the same with what the family does to attention's output: a norm's scale, a multiplier.
        kv_head_of: which key and value each head uses.
        rotations: s·R(δ) by offset, with the family's score scale s.
        query_bias: b_Q, or None.
        key_bias: b_K, or None.
        value_bias: b_V, or None.
        output_bias: b_O, or None.
        input_norm: the norm that attention reads the stream through, or None.
        output_norm: the norm on attention's output before it is added, or None.
        output_scale: what attention's output is multiplied by before it is added.
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
