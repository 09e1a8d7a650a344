"""Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): the matrices of each head through the latents.

Queries are x W_DQ / σ(x W_DQ) · γ W_UQ. Keys and values are x W_DKV / σ(x W_DKV) · γ W_UK and the same with W_UV.
Here σ is the root mean square of a token's latent. So a head has the matrices W_DQ diag(γ) W_UQ and so on, up to 1/σ of
each token. The last entries of a query rotate. Their keys are x W_KR: all heads share them, and no σ divides them.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

QUERY_DOWN, QUERY_NORM, QUERY_UP = "self_attn.q_a_proj", "self_attn.q_a_layernorm", "self_attn.q_b_proj"
QUERY = "self_attn.q_proj"  # of a model without a latent of queries
KEY_DOWN, KEY_NORM, KEY_UP = "self_attn.kv_a_proj_with_mqa", "self_attn.kv_a_layernorm", "self_attn.kv_b_proj"


@dataclass(frozen=True)
class LatentSizes:
    """The widths of a head's parts: of queries and keys without and with positions, and of values."""

    n_heads: int
    plain: int
    rotary: int
    value: int
    query_latent: int | None
    latent: int


@dataclass(frozen=True)
class LatentHeads:
    """Matrices (head, d_model, width) and biases (head, width) of the heads, in float64.

    The parts without positions are as wide as values: where they are narrower, columns of zeros follow.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    q_rotary: Tensor  # (head, d_model, rotary)
    k_rotary: Tensor  # (1, d_model, rotary)
    q_bias: Tensor | None
    k_bias: Tensor | None
    v_bias: Tensor | None


def latent_sizes(config: object) -> LatentSizes:
    """Return the widths that a configuration states."""
    names = ("num_attention_heads", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "q_lora_rank", "kv_lora_rank")
    return LatentSizes(*(getattr(config, name) for name in names))


def latent_heads(
    sizes: LatentSizes,
    d_model: int,
    projection: Callable[[str, tuple[int, int]], Tensor],
    bias: Callable[[str], Tensor | None],
    scale: Callable[[str], Tensor | None],
) -> LatentHeads:
    """Return the matrices of a layer's heads.

    The functions return the layer's tensors by name: a weight of the given shape, a bias, and the scale of a norm.
    """
    query_down, gamma, up = _queries(sizes, d_model, projection, scale)
    own = None if query_down is None else bias(QUERY_DOWN)
    query, query_bias = _through(query_down, gamma, up, own)

    key_down = projection(KEY_DOWN, (sizes.latent + sizes.rotary, d_model)).double()
    own, both = bias(KEY_DOWN), sizes.plain + sizes.value
    up = projection(KEY_UP, (sizes.n_heads * both, sizes.latent)).double().unflatten(0, (sizes.n_heads, both))
    latent_bias = None if own is None else own[: sizes.latent]
    keys, keys_bias = _through(key_down[: sizes.latent], scale(KEY_NORM), up, latent_bias)

    def part(matrix: Tensor | None, first: int, last: int) -> Tensor | None:
        return None if matrix is None else _padded(matrix[..., first:last], sizes.value)

    matrices = [(query, 0, sizes.plain), (keys, 0, sizes.plain), (keys, sizes.plain, both)]
    biases = [(query_bias, 0, sizes.plain), (keys_bias, 0, sizes.plain), (keys_bias, sizes.plain, both)]
    q, k, v = (_padded(matrix[..., first:last], sizes.value) for matrix, first, last in matrices)
    rotary = query[..., sizes.plain :], key_down[sizes.latent :].T[None]
    return LatentHeads(q, k, v, *rotary, *(part(*one) for one in biases))


def rotary_part(
    sizes: LatentSizes,
    d_model: int,
    projection: Callable[[str, tuple[int, int]], Tensor],
    scale: Callable[[str], Tensor | None],
) -> tuple[Tensor, Tensor]:
    """Return the matrices of the entries that rotate: `q_rotary` and `k_rotary` of `LatentHeads`, and nothing else.

    The other arguments are those of `latent_heads`, whose large products this function leaves out.
    """
    down, gamma, up = _queries(sizes, d_model, projection, scale)
    query, _ = _through(down, gamma, up[:, sizes.plain :], None)
    key = projection(KEY_DOWN, (sizes.latent + sizes.rotary, d_model))[sizes.latent :].double()
    return query, key.T[None]


def _queries(
    sizes: LatentSizes,
    d_model: int,
    projection: Callable[[str, tuple[int, int]], Tensor],
    scale: Callable[[str], Tensor | None],
) -> tuple[Tensor | None, Tensor | None, Tensor]:
    """Return W_DQ and γ of the latent of queries, None without one, and W_UQ, (head, width, latent or d_model)."""
    width, down, gamma, name = sizes.plain + sizes.rotary, None, None, QUERY
    if sizes.query_latent is not None:
        down = projection(QUERY_DOWN, (sizes.query_latent, d_model)).double()
        gamma, name = scale(QUERY_NORM), QUERY_UP
    up = projection(name, (sizes.n_heads * width, sizes.query_latent or d_model)).double()
    return down, gamma, up.unflatten(0, (sizes.n_heads, width))


def _through(down: Tensor | None, gamma: Tensor | None, up: Tensor, own: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Return W_D diag(γ) W_U as (head, d_model, width), and the bias of W_D through diag(γ) W_U."""
    if down is None:
        return up.transpose(1, 2), None
    scaled = up if gamma is None else up * gamma.double()
    mixed = None if own is None else scaled @ own.double()
    return torch.einsum("rd,hwr->hdw", down, scaled), mixed


def _padded(matrix: Tensor, width: int) -> Tensor:
    return torch.nn.functional.pad(matrix, (0, width - matrix.shape[-1])).contiguous()
