"""R² of maps from the input to the output of attention and MLP by layer, and how far they stretch their inputs."""

from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from theodolite.drawing.panels import Line, Panel, Reference, panels_figure, prompts_text
from theodolite.drawing.style import MAIN, SECOND, THIRD
from theodolite.groups.basis.record import QUANTILES
from theodolite.groups.schema import INTERVAL
from theodolite.spec_parts import Label

_MAPS = {"affine": MAIN, "orthogonal": SECOND, "identity": THIRD}


def maps_figure(basis: xr.Dataset, set_name: str, position: Label, sublayers: Mapping[str, str]) -> go.Figure:
    """Return R² of the affine map, the orthogonal map and the identity by layer, with 95 % intervals.

    Args:
        basis: the results.
        set_name: prompt set.
        position: token position.
        sublayers: title of each drawn sublayer.
    """
    selected = basis.sel(set=set_name, position=position)
    panels = []
    for sublayer, title in sublayers.items():
        values = selected["r_squared"].sel(sublayer=sublayer)
        n = prompts_text(selected["n_samples"])
        lines = [_line(name, values.sel(map=name), colour, n) for name, colour in _MAPS.items()]
        panels.append(Panel(f"R² of the output, {title}", _measured(lines)))
    return panels_figure(panels)


def steps_figure(
    basis: xr.Dataset, position: Label, sublayers: Mapping[str, str], colours: Mapping[str, str]
) -> go.Figure:
    """Return R² of the steps with its interval, and the median stretch with its 5 % and 95 % quantiles, by layer.

    Dashed lines are R² of permuted steps.

    Args:
        basis: the results.
        position: token position.
        sublayers: title of each drawn sublayer.
        colours: colour of each set.
    """
    sets = {name: (basis.sel(set=name, position=position), colour) for name, colour in colours.items()}
    panels = []
    for sublayer, of in sublayers.items():
        lines, controls = [], []
        for name, (values, colour) in sets.items():
            n, at = prompts_text(values["n_samples"]), values.sel(sublayer=sublayer)
            lines.append(_line(name, at["r_squared_step"], colour, n))
            label, control = f"{name}, permuted steps", at["r_squared_permuted"].sel(estimate="value")
            controls.append(Line(label, values["layer"], control, colour, "dash", markers=False, n=n))
        panels.append(Panel(f"R² of the step, {of}", _measured([*lines, *controls])))
    for sublayer, of in sublayers.items():
        lines = [
            _stretch(name, values["stretch"].sel(sublayer=sublayer), colour, prompts_text(values["n_samples"]))
            for name, (values, colour) in sets.items()
        ]
        panels.append(Panel(f"stretch, {of}", _measured(lines), [Reference(1, "isometry: 1")], positive=True))
    return panels_figure(panels)


def _line(label: str, values: xr.DataArray, colour: str, n: str) -> Line:
    """Return a statistic by layer with its 95 % interval."""
    value, low, high = (values.sel(estimate=end) for end in INTERVAL)
    return Line(label, values["layer"], value, colour, low=low, high=high, n=n)


def _stretch(label: str, values: xr.DataArray, colour: str, n: str) -> Line:
    """Return the median stretch by layer, between the extreme quantiles."""
    low, median, high = (values.sel(quantile=one) for one in QUANTILES)
    return Line(label, values["layer"], median, colour, low=low, high=high, n=n, band="5 % to 95 % of directions")


def _measured(lines: Sequence[Line]) -> list[Line]:
    return [line for line in lines if np.isfinite(line.y).any()]
