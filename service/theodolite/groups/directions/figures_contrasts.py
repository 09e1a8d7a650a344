"""How similar the directions of several contrasts are at one depth."""

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from numpy.typing import NDArray

from theodolite.drawing.maps import pair_map

DISTINCT = 3.0
"""The |z| from which on a cosine is marked."""

_LONGEST = 20  # characters of the name of a contrast


def contrast_map(cosines: xr.DataArray, null: xr.DataArray | None, title: str) -> go.Figure:
    """Return a map of the cosine of each pair of contrasts, with a dot where it differs from permuted labels.

    Args:
        cosines: (contrast, contrast_other).
        null: what permuted labels give, (contrast, contrast_other, null); None without them.
        title: name of the number, above the map.
    """
    values, names = cosines.transpose("contrast", "contrast_other").values, cosines["contrast"].values.tolist()
    nulls = _parts(null, values.shape)
    texts = [
        [
            "" if np.isnan(value) else f"{value:.2f}{' •' if abs(z) >= DISTINCT else ''}"
            for value, z in zip(*row, strict=True)
        ]
        for row in zip(values, nulls["z"], strict=True)
    ]
    rows = zip(nulls["mean"], nulls["sd"], nulls["z"], strict=True)
    hover = [[_chance(*cell) for cell in zip(*row, strict=True)] for row in rows]
    off = np.where(np.eye(len(values), dtype=bool), np.nan, np.abs(values))
    limit = max(0.1, float(np.nanmax(off, initial=0.1)))
    figure = pair_map(
        values,
        title,
        (-limit, limit),
        axes=("contrast", "other contrast"),
        x=names,
        y=names,
        text=texts,
        texttemplate="%{text}",
        customdata=hover,
        hovertemplate="%{y} and %{x}: %{z:.3f}%{customdata}",
    )
    short = [name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…" for name in names]
    room = 20 + 7 * max(map(len, short))
    figure.update_layout(height=60 + room + max(90, 46 * len(names)), margin={"l": room, "b": room})
    ticks = {"type": "category", "title": None, "tickvals": names, "ticktext": short}
    figure.update_xaxes(**ticks, tickangle=-45)
    figure.update_yaxes(**ticks, autorange="reversed")
    return figure


def _parts(null: xr.DataArray | None, shape: tuple[int, ...]) -> dict[str, NDArray[np.float64]]:
    if null is None:
        return dict.fromkeys(("mean", "sd", "z"), np.full(shape, np.nan))
    return {part: null.sel(null=part).transpose("contrast", "contrast_other").values for part in ("mean", "sd", "z")}


def _chance(mean: float, sd: float, z: float) -> str:
    return f", permuted labels {mean:.3f} ± {sd:.3f}, z = {z:.1f}" if np.isfinite(z) else ""
