"""What all figures share: colours, paper, and how depth is written below an axis."""

from collections.abc import Sequence
from typing import Any

from theodolite.sites import depth_label

# Readable on white and on near-black, and told apart by people with any colour vision.
POSITIVE, NEGATIVE, COSINE, PLAIN = "#d9622b", "#3b82c4", "#8a63d2", "#8b9098"

_CLEAR = "rgba(0,0,0,0)"


def bare_layout(height: int) -> dict[str, Any]:
    """Return a layout without a background of its own, so that it stands on light and on dark pages."""
    return {
        "height": height,
        "margin": {"l": 76, "r": 16, "t": 60, "b": 56},
        "paper_bgcolor": _CLEAR,
        "plot_bgcolor": _CLEAR,
        "modebar": {"bgcolor": _CLEAR},
        "font": {"family": "system-ui, sans-serif", "size": 13},
    }


def depth_ticks(depths: Sequence[int]) -> dict[str, Any]:
    """Return some ten ticks at the beginnings of blocks, written `0-pre`, `3-pre`, …; only of what was measured."""
    starts = sorted({2 * (depth // 2) for depth in depths})
    ticks = starts[:: max(1, round(len(starts) / 10))]
    return {"tickvals": ticks, "ticktext": [depth_label(tick) for tick in ticks]}
