"""Maps of the experts of each layer: the share of the prompts that use an expert, and its difference in a contrast."""

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from numpy.typing import NDArray

from theodolite.drawing.maps import scale_of
from theodolite.drawing.panels import prompts_text
from theodolite.drawing.style import map_layout
from theodolite.groups.schema import ESTIMATE

_CUT = 0.98
"""Share of the cells inside the scale: some experts are used far more often than all others."""


def share_map(routing: xr.Dataset, prompt_set: str, title: str) -> go.Figure:
    """Return a map of the share of a set's prompts that use each expert, in percent.

    Args:
        routing: the results at one position; the maps of all its sets have one scale.
        prompt_set: the set.
        title: name of the number, above the map.
    """
    shares = 100 * routing["expert_share"].sel(estimate="value")
    finite = shares.values[np.isfinite(shares.values)]
    top = float(np.quantile(finite, _CUT)) if len(finite) else 0.0
    own = routing.sel(set=prompt_set)
    texts = _texts(own["expert_share"], "%", f"n = {int(own['n_samples'])}")
    return _expert_map(shares.sel(set=prompt_set), title, (0.0, top or 100.0), texts)


def difference_map(routing: xr.Dataset, title: str) -> go.Figure:
    """Return a map of the difference of both sets' shares (positive minus negative), in percentage points.

    Args:
        routing: the results at one contrast and position.
        title: name of the number, above the map.
    """
    values = 100 * routing["expert_difference"].sel(estimate="value")
    sizes = np.abs(values.values[np.isfinite(values.values)])
    top = (float(np.quantile(sizes, _CUT)) if len(sizes) else 0.0) or 100.0
    n = prompts_text(*routing["n_used"].values)
    p = routing["expert_difference_null"].sel(null="p_family")
    texts = _texts(routing["expert_difference"], "percentage points", n, p)
    return _expert_map(values, title, (-top, top), texts)


def _texts(values: xr.DataArray, unit: str, n: str, p: xr.DataArray | None = None) -> NDArray[np.str_]:
    """Return the hover label of each expert, (layer, expert): its number, the interval, the unit, n, and p."""
    numbers = 100 * values.transpose("layer", "expert", ESTIMATE).values
    tests = None if p is None else p.transpose("layer", "expert").values
    texts = np.empty(numbers.shape[:2], dtype=object)
    for at in np.ndindex(texts.shape):
        value, low, high = numbers[at]
        of_test = "" if tests is None else ", not tested" if np.isnan(tests[at]) else f", family-wise p {tests[at]:.2g}"
        texts[at] = f"{value:.1f} [{low:.1f}, {high:.1f}] {unit}, {n}{of_test}"
    return texts


def _expert_map(values: xr.DataArray, title: str, limits: tuple[float, float], texts: NDArray[np.str_]) -> go.Figure:
    """Return a map with layers from left to right, and experts from bottom to top."""
    by_expert = values.transpose("expert", "layer").values
    layers, experts = (values[name].values.tolist() for name in ("layer", "expert"))
    figure = go.Figure(
        go.Heatmap(
            z=by_expert.tolist(),
            x=layers,
            y=experts,
            customdata=_columns(texts),
            hovertemplate="layer %{x}, expert %{y}: %{customdata}<extra></extra>",
            **scale_of(by_expert, limits),
        )
    )
    figure.update_layout(map_layout(130 + min(420, max(110, 13 * len(experts))), title))
    figure.update_xaxes(title="layer", showgrid=False, zeroline=False)
    figure.update_yaxes(title="expert", showgrid=False, zeroline=False, dtick=max(1, round(len(experts) / 8)))
    return figure


def _columns(texts: NDArray[np.str_]) -> Sequence[Sequence[str]]:
    return [list(row) for row in texts.T]
