"""Sites of a transformer block. Their names are independent of the module names of a model family."""

from enum import StrEnum


class Site(StrEnum):
    """A site in a block, or `resid_final`, the residual stream after the last block and before the final norm."""

    RESID_PRE = "resid_pre"
    """Residual stream at the input of the block."""
    RESID_MID = "resid_mid"
    """Residual stream between attention and MLP. In post-norm blocks it is the output of the norm."""
    RESID_MID_SUM = "resid_mid_sum"
    """Sum of residual stream and attention output before the norm, in post-norm blocks only."""
    RESID_POST = "resid_post"
    """Residual stream at the output of the block."""
    HEAD_OUT = "head_out"
    """Output of each attention head before W_O: the values of the attended tokens, weighted by attention."""
    ATTN_OUT = "attn_out"
    """Output of attention that is added to the residual stream."""
    MLP_OUT = "mlp_out"
    """Output of the MLP that is added to the residual stream."""
    RESID_FINAL = "resid_final"
    """Residual stream after the last block and before the final norm; one per model, which a spec can decline."""

    @classmethod
    def _missing_(cls, value: object) -> "Site | None":
        return TRANSFORMER_LENS.get(str(value))


TRANSFORMER_LENS = {
    "hook_resid_pre": Site.RESID_PRE,
    "hook_resid_mid": Site.RESID_MID,
    "hook_resid_post": Site.RESID_POST,
    "hook_attn_out": Site.ATTN_OUT,
    "hook_mlp_out": Site.MLP_OUT,
    "hook_z": Site.HEAD_OUT,
    "attn.hook_z": Site.HEAD_OUT,
}
"""The sites by the names that TransformerLens gives them in a block."""


def site_name(name: str) -> str:
    """Return the name of a site; a name of TransformerLens is converted, any other stays."""
    return str(TRANSFORMER_LENS.get(name, name))


HALF_BLOCKS = (Site.RESID_PRE, Site.RESID_MID)
"""Sites of the curves along depth: the residual stream before attention and before the MLP."""

BLOCK_SITES = tuple(site for site in Site if site is not Site.RESID_FINAL)

STREAM_SITES = tuple(site for site in BLOCK_SITES if site is not Site.HEAD_OUT)
"""Sites of a block whose vectors have d_model features; the statistics along depth use them."""

# A block has two steps, attention and MLP, so depth counts half-blocks. The output of block l is the input of l+1.
_STEPS_INTO_BLOCK = {
    Site.RESID_PRE: 0,
    Site.RESID_MID: 1,
    Site.RESID_MID_SUM: 1,
    Site.RESID_POST: 2,
    Site.ATTN_OUT: 1,
    Site.MLP_OUT: 2,
}


def depth(site: Site, layer: int) -> int:
    """Return the depth of a stream site in half-blocks: pre 0, mid 0, pre 1, mid 1, … are 0, 1, 2, 3."""
    return 2 * layer + _STEPS_INTO_BLOCK[site]


def depth_label(depth: int) -> str:
    """Return the label of a depth: `0-pre`, `0-mid`, `1-pre`."""
    return f"{depth // 2}-{'mid' if depth % 2 else 'pre'}"


def leaving_block(layer: int, n_layers: int) -> tuple[tuple[Site, int], tuple[Site, int]]:
    """Return both (site, layer) of a block's output: its resid_post, and the next block's input or resid_final."""
    following = (Site.RESID_PRE, layer + 1) if layer + 1 < n_layers else (Site.RESID_FINAL, layer)
    return (Site.RESID_POST, layer), following
