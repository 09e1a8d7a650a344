"""How much a head reads of what an earlier one writes: Q-, K- and V-composition from thin factors. Pure, in float64."""

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from theodolite_jobs.statistics.circuits import Circuits
from theodolite_jobs.statistics.heads import Thin, thin
from theodolite_jobs.statistics.ratio import ratio

KINDS = ("q", "k", "v")


def composition(writer: Circuits, reader: Circuits) -> Float[np.ndarray, "3 head head_other"]:
    """Return ‖W_VO W‖ / (‖W_VO‖ ‖W‖) of each head of a layer with each of a later one, in Frobenius norms.

    W is the later head's W_QK at offset 0 for Q-composition, W_QKᵀ for K and W_VO for V (Elhage et al. 2021, in row
    convention). Two random heads have about 1/√d_model; NaN for a head of zeros.
    """
    read = writer.kv_head_of, reader.kv_head_of
    value, written = thin(writer.value), thin(writer.written)
    query, key, value_other, written_other = map(thin, (reader.query, reader.key, reader.value, reader.written))
    each = np.arange(len(query.factor))
    turned = reader.rotations[0]
    pairs = (
        (query, each, turned, key, read[1]),
        (key, read[1], turned.T, query, each),
        (value_other, read[1], np.eye(turned.shape[0]), written_other, each),
    )
    own = value.triangle[read[0]]
    own_norm = np.linalg.norm(own @ written.triangle.transpose(0, 2, 1), axis=(1, 2))
    found = []
    for near, near_of, middle, far, far_of in pairs:
        product = _through(own, written.factor, near, middle @ far.triangle.transpose(0, 2, 1), near_of, far_of)
        found.append(ratio(product, own_norm[:, None] * _norms(near, middle, far, near_of, far_of)))
    return np.stack(found)


def _through(
    own: NDArray[np.float64],
    written: NDArray[np.floating],
    near: Thin,
    beyond: NDArray[np.float64],
    near_of: NDArray[np.int64],
    far_of: NDArray[np.int64],
) -> NDArray[np.float64]:
    """Return ‖T_V (W_O A) C T_Bᵀ‖ of all pairs, (head, head_other); one head of the writer at a time."""
    found = np.empty((len(written), len(near_of)))
    for head, (triangle, output) in enumerate(zip(own, written, strict=True)):
        met = triangle @ near.inside(output.T.astype(np.float64))  # (factor, d_head, d_head)
        found[head] = np.linalg.norm(met[near_of] @ beyond[far_of], axis=(1, 2))
    return found


def _norms(
    near: Thin,
    middle: NDArray[np.float64],
    far: Thin,
    near_of: NDArray[np.int64],
    far_of: NDArray[np.int64],
) -> NDArray[np.float64]:
    """Return ‖A C Bᵀ‖ of each head."""
    core = near.triangle[near_of] @ middle @ far.triangle[far_of].transpose(0, 2, 1)
    norms: NDArray[np.float64] = np.linalg.norm(core, axis=(1, 2))
    return norms
