"""Shape of each set's point cloud along depth, and similarity of layers."""

from collections.abc import Iterator, Mapping

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from theodolite.drawing.panels import Line, Panel, Reference, depth_axis, panels_figure, prompts_text
from theodolite.query.curves import along_depth
from theodolite.spec_parts import Label


def shape_figure(gram: xr.Dataset, position: Label, site: str, colours: Mapping[str, str]) -> go.Figure:
    """Return the shape of each set's point cloud at one site along depth: anisotropy and three dimensions.

    Args:
        gram: the results.
        position: token position.
        site: site.
        colours: colour of each set.
    """
    selected = gram.sel(position=position)
    panels = []
    titles = {
        "mean_cosine": "mean cosine",
        "participation_ratio": "participation ratio",
        "effective_rank": "effective rank",
        "intrinsic_dimension": "TwoNN dimension",
    }
    for name, title in titles.items():
        lines = []
        for space, suffix, dash in (("raw", "", "solid"), ("standardised", ", standardised", "dot")):
            for set_name, colour in colours.items():
                curve = along_depth(selected[name].sel(set=set_name, site=[site], space=space))
                n = prompts_text(selected["n_samples"].sel(set=set_name))
                lines.append(Line(set_name + suffix, curve["depth"], curve, colour, dash, n=n))
        if name == "intrinsic_dimension":
            lines += _gaussian_lines(selected, site, colours)
        chance = [Reference(0, "uniform directions: 0")] if name == "mean_cosine" else []
        panels.append(Panel(title, lines, chance, positive=name != "mean_cosine"))
    cosines = selected["mean_cosine"].isel(set=0).sel(site=[site], space="raw")
    return panels_figure(panels, **depth_axis(along_depth(cosines)))


def _gaussian_lines(selected: xr.Dataset, site: str, colours: Mapping[str, str]) -> Iterator[Line]:
    """Yield the TwoNN dimension of Gaussian samples for each set that has an estimate."""
    for set_name, colour in colours.items():
        null = selected["intrinsic_dimension_null"].sel(set=set_name, site=[site])
        mean, sd = (along_depth(null.sel(null=one)) for one in ("mean", "sd"))
        if np.isfinite(mean).any():
            title = f"{set_name}, fitted Gaussian"
            low, high = mean - sd, mean + sd
            yield Line(title, mean["depth"], mean, colour, "dash", low, high, markers=False, band="± sd")


def blocks_figure(gram: xr.Dataset, position: Label, colours: Mapping[str, str]) -> go.Figure:
    """Return CKA through attention, MLP and block, CKA of their branches, and shares of hidden units, by layer.

    Args:
        gram: the results.
        position: token position.
        colours: colour of each set.
    """
    selected = gram.sel(position=position, space="raw")
    panels = []
    steps = {"attention": "attention", "mlp": "MLP", "block": "block"}
    cka = selected["sublayer_cka"]
    groups = {
        "debiased CKA": {name: cka.sel(sublayer=step, output="output") for step, name in steps.items()},
        "CKA of the branch": {name: cka.sel(sublayer=step, output="branch") for step, name in steps.items()},
        "share of MLP hidden units": {
            "active": selected["orthant_occupancy"],
            "equal sign in two prompts": selected["orthant_overlap"],
        },
    }
    for title, curves in groups.items():
        lines = [
            Line(
                f"{set_name}, {label}",
                selected["layer"],
                values.sel(set=set_name),
                colour,
                dash,
                n=prompts_text(selected["n_samples"].sel(set=set_name)),
            )
            for (label, values), dash in zip(curves.items(), ("solid", "dot", "dash"), strict=False)
            for set_name, colour in colours.items()
            if np.isfinite(values.sel(set=set_name)).any()
        ]
        chance = [Reference(0, "independent activations: 0")] if title == "CKA of the branch" else []
        panels.append(Panel(title, lines, chance))
    return panels_figure(panels)
