"""R² of maps from the input to the output of attention and MLP by layer, and how far they stretch their inputs."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from theodolite.figures.panels import Line, Panel, panels_figure, prompts_text
from theodolite.figures.references import Reference
from theodolite.figures.style import MAIN, SECOND, THIRD

_MAPS = {"affine": MAIN, "orthogonal": SECOND, "identity": THIRD}


def maps_figure(basis: xr.Dataset, set_name: str, position: int, sublayers: Mapping[str, str]) -> go.Figure:
    """Return R² of the affine map, the orthogonal map and the identity by layer, with 95 % intervals.

    Args:
        basis: the result group.
        set_name: prompt set.
        position: token position.
        sublayers: title of each drawn sublayer.
    """
    selected = basis.sel(set=set_name, position=position)
    panels = []
    for sublayer, title in sublayers.items():
        lines = [
            _line(selected, name, colour, [f"r_squared_{name}_{sublayer}{end}" for end in ("", "_low", "_high")])
            for name, colour in _MAPS.items()
        ]
        panels.append(Panel(f"R² of the output, {title}", _measured(lines)))
    return panels_figure(panels, x_title="layer", ticks={})


def steps_figure(
    basis: xr.Dataset, position: int, sublayers: Mapping[str, str], colours: Mapping[str, str]
) -> go.Figure:
    """Return R² of the steps with its interval, and the median stretch with its 5 % and 95 % quantiles, by layer.

    Dashed lines are R² of permuted steps.

    Args:
        basis: the result group.
        position: token position.
        sublayers: title of each drawn sublayer.
        colours: colour of each set.
    """
    statistics = {
        "R² of the step": ("r_squared_step_{}", "r_squared_step_{}_low", "r_squared_step_{}_high"),
        "stretch": ("stretch_median_{}", "stretch_low_{}", "stretch_high_{}"),
    }
    panels = []
    for title, names in statistics.items():
        for sublayer, of in sublayers.items():
            variables = [name.format(sublayer) for name in names]
            lines = [
                _line(basis.sel(set=name, position=position), name, colour, variables)
                for name, colour in colours.items()
            ]
            is_stretch = title == "stretch"
            if is_stretch:
                lines = [replace(line, band="5 % to 95 % of directions") for line in lines]
            else:
                lines += [
                    _permuted(basis.sel(set=name, position=position), name, colour, sublayer)
                    for name, colour in colours.items()
                ]
            chance = [Reference(1, "isometry: 1")] if is_stretch else []
            panels.append(Panel(f"{title}, {of}", _measured(lines), chance, positive=is_stretch))
    return panels_figure(panels, x_title="layer", ticks={})


def _line(values: xr.Dataset, label: str, colour: str, variables: Sequence[str]) -> Line:
    """Return a curve by layer; the variables are its values and the lower and the upper end of its band."""
    value, low, high = (values[name] for name in variables)
    return Line(label, values["layer"], value, colour, low=low, high=high, n=prompts_text(values["n_samples"]))


def _permuted(values: xr.Dataset, label: str, colour: str, sublayer: str) -> Line:
    control = values[f"r_squared_permuted_{sublayer}"]
    n = prompts_text(values["n_samples"])
    return Line(f"{label}, permuted steps", values["layer"], control, colour, "dash", markers=False, n=n)


def _measured(lines: Sequence[Line]) -> list[Line]:
    return [line for line in lines if np.isfinite(line.y).any()]
