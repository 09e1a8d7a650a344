"""Q-, K- and V-composition of pairs of attention heads, from thin factors. Pure, in float64."""

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from theodolite_jobs.statistics.factors import Circuits, Thin, thin
from theodolite_jobs.statistics.ratio import ratio

KINDS = ("q", "k", "v")


def composition(writer: Circuits, reader: Circuits) -> Float[np.ndarray, "3 head head_other"]:
    """Return the composition scores ‖W_OV W‖ / (‖W_OV‖ ‖W‖), in Frobenius norms, in the order of KINDS.

    W_OV belongs to a head of the earlier layer, `writer`. W belongs to a head of the later layer, `reader`: W_QK at
    offset 0 for Q-composition, W_QKᵀ for K-composition and W_OV for V-composition. Two random heads score about
    1/√d_model. NaN if one of the two heads has only zeros. Source: Elhage et al. 2021, in row convention.
    """
    writer_kv, reader_kv = writer.kv_head_of, reader.kv_head_of
    value, written = thin(writer.value), thin(writer.written)
    query, key, reader_value, reader_written = map(thin, (reader.query, reader.key, reader.value, reader.written))
    each = np.arange(len(query.factor))
    rotation = reader.rotations[0]
    pairs = (
        (query, each, rotation, key, reader_kv),
        (key, reader_kv, rotation.T, query, each),
        (reader_value, reader_kv, np.eye(rotation.shape[0]), reader_written, each),
    )
    triangles = value.triangle[writer_kv]
    writer_norms = np.linalg.norm(triangles @ written.triangle.transpose(0, 2, 1), axis=(1, 2))
    scores = []
    for left, left_of, middle, right, right_of in pairs:
        core = middle @ right.triangle.transpose(0, 2, 1)
        products = _product_norms(triangles, written.factor, left, core, left_of, right_of)
        reader_core = left.triangle[left_of] @ middle @ right.triangle[right_of].transpose(0, 2, 1)
        scores.append(ratio(products, writer_norms[:, None] * np.linalg.norm(reader_core, axis=(1, 2))))
    return np.stack(scores)


def _product_norms(
    triangles: NDArray[np.float64],
    written: NDArray[np.floating],
    left: Thin,
    core: NDArray[np.float64],
    left_of: NDArray[np.int64],
    right_of: NDArray[np.int64],
) -> NDArray[np.float64]:
    """Return ‖T_V (W_O A) C T_Bᵀ‖ of all pairs, (head, head_other), for one head of the writer at a time."""
    norms = np.empty((len(written), len(left_of)))
    for head, (triangle, output) in enumerate(zip(triangles, written, strict=True)):
        products = triangle @ left.times_factor(output.T.astype(np.float64))  # (factor, d_head, d_head)
        norms[head] = np.linalg.norm(products[left_of] @ core[right_of], axis=(1, 2))
    return norms
