"""Sites: places in a transformer block, named by meaning and never by a module's name."""

from enum import StrEnum


class Site(StrEnum):
    """A place in a block, or `resid_final`, the stream after the last block and before the final norm."""

    RESID_PRE = "resid_pre"
    """The stream that enters the block."""
    RESID_MID = "resid_mid"
    """The stream after attention has been added, before the MLP branch reads it; normalised in post-norm blocks."""
    RESID_MID_SUM = "resid_mid_sum"
    """In blocks whose norms follow the sums: the sum of stream and attention, before the norm makes it `resid_mid`."""
    RESID_POST = "resid_post"
    """The stream that leaves the block."""
    ATTN_OUT = "attn_out"
    """What attention adds to the stream."""
    MLP_OUT = "mlp_out"
    """What the MLP adds to the stream."""
    RESID_FINAL = "resid_final"
    """The stream after the last block, before the final norm: one per model, always captured."""


HALF_BLOCKS = (Site.RESID_PRE, Site.RESID_MID)
"""The stream before and between a block's two steps: what curves along depth are drawn of."""

BLOCK_SITES = tuple(site for site in Site if site is not Site.RESID_FINAL)

# Along the stream a block has two steps, so depth counts half-blocks; what leaves block l enters block l+1.
_STEPS_INTO_BLOCK = {
    Site.RESID_PRE: 0,
    Site.RESID_MID: 1,
    Site.RESID_MID_SUM: 1,
    Site.RESID_POST: 2,
    Site.ATTN_OUT: 1,
    Site.MLP_OUT: 2,
}


def depth(site: Site, layer: int) -> int:
    """Return the place of a site along the stream: pre 0, mid 0, pre 1, mid 1, … are 0, 1, 2, 3."""
    return 2 * layer + _STEPS_INTO_BLOCK[site]


def depth_label(depth: int) -> str:
    """Return how the field writes a depth: `0-pre`, `0-mid`, `1-pre`."""
    return f"{depth // 2}-{'mid' if depth % 2 else 'pre'}"


def leaving_block(layer: int, n_layers: int) -> tuple[tuple[Site, int], tuple[Site, int]]:
    """Return where the stream that leaves a block can be read, as (site, layer): there, or where the next block begins."""
    following = (Site.RESID_PRE, layer + 1) if layer + 1 < n_layers else (Site.RESID_FINAL, layer)
    return (Site.RESID_POST, layer), following
