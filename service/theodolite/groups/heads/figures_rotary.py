"""The effective rank of the rotary part of scores in multi-head latent attention, by layer."""

import plotly.graph_objects as go
import xarray as xr

from theodolite.drawing.panels import Line, Panel, Reference, panels_figure
from theodolite.drawing.style import MAIN, SECOND
from theodolite.groups.heads.record import ROTARY


def rotary_figure(rotary: xr.Dataset) -> go.Figure:
    """Return the effective rank by layer: the median over heads at offset 0, and that of other offsets.

    The band of offset 0 is the range of the heads; that of the other offsets is the range of their medians.

    Args:
        rotary: the circuit `rotary` of the analysis `heads`.
    """
    layers, rank = rotary["layer"], rotary["effective_rank"]
    at_0, others = rank.sel(offset=0), rank.drop_sel(offset=0).median("head")
    lines = [
        Line(
            "offset 0: median over heads",
            layers,
            at_0.median("head"),
            MAIN,
            low=at_0.min("head"),
            high=at_0.max("head"),
            n=f"up to {int(at_0.count('head').max())} heads",
            band="range of the heads",
        )
    ]
    if others.sizes["offset"]:
        lines.append(
            Line(
                "other offsets: median of the medians over heads",
                layers,
                others.median("offset"),
                SECOND,
                low=others.min("offset"),
                high=others.max("offset"),
                n=f"{others.sizes['offset']} offset{'s' * (others.sizes['offset'] > 1)}",
                band="range of the medians",
            )
        )
    random = rotary.attrs["circuits"][ROTARY]["effective_rank_random"]
    references = [Reference(random, f"random matrices: {random:.1f}")]
    return panels_figure([Panel("effective rank", lines, references)])
