"""Prompts as counts of their tokens, the control for words that differ between two sets. Pure, in float64."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64
from scipy.sparse import csr_array


def gram_of_token_counts(prompts: Sequence[Sequence[int]]) -> Float64[np.ndarray, "prompt prompt"]:
    """Return the Gram matrix of the prompts' token counts minus their mean.

    Each prompt is a vector with the number of occurrences of each token; the order of the tokens has no effect.

    Args:
        prompts: token ids of each prompt.
    """
    lengths = [len(ids) for ids in prompts]
    tokens = np.concatenate([np.asarray(ids, dtype=np.int64) for ids in prompts])
    columns = np.unique(tokens, return_inverse=True)[1]
    rows = np.repeat(np.arange(len(prompts)), lengths)
    counts = csr_array((np.ones(len(columns)), (rows, columns)), shape=(len(prompts), int(columns.max()) + 1))
    products = (counts @ counts.T).toarray()
    means = products.mean(axis=0)
    return np.asarray(products - means - means[:, None] + means.mean())
