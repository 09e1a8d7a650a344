"""Effects of interventions by layer and by dose, against those of control directions."""

from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from theodolite.drawing import style
from theodolite.drawing.panels import Line, Panel, Reference, panels_figure, prompts_text
from theodolite.drawing.style import DASHES, MAIN, SECOND, THIRD, short_site
from theodolite.groups.effects.record import ADD, ATTENTION, BLOCK, MATCHED, MLP, PATCH, PERMUTED, REMOVE
from theodolite.groups.schema import INTERVAL
from theodolite.query.curves import end_of
from theodolite.query.effects import towards_other
from theodolite.sites import Site

CONTROL_NAMES = {MATCHED: "directions of equal variance", PERMUTED: "directions of permuted labels"}
"""The controls as sentences name them."""

_CONTROLS = {MATCHED: "equal-variance control", PERMUTED: "permuted control"}

_SUBLAYERS = {ATTENTION: ("attention", style.ATTENTION), MLP: ("MLP", style.MLP), BLOCK: ("block", style.BLOCK)}

_CONTROL_DASHES = {MATCHED: "dot", PERMUTED: "dash"}

_SPREAD = f"mean ± {style.CHANCE_SDS} standard deviations of the controls"

_ZERO = (Reference(0, "no change: 0"),)


def effects_figure(
    effects: xr.Dataset, sides: Mapping[str, str], colours: Mapping[str, str], separation: xr.Dataset | None
) -> go.Figure:
    """Return what interventions change by layer, and the separation at the same places.

    Args:
        effects: the results at one contrast and position.
        sides: label of the set on each side.
        colours: colour of the set on each side.
        separation: the results of the analysis `separation` at the same contrast and position, if the run has it.
    """
    panels, removed = [], list[Line]()
    for side, label in sides.items():
        added = _signed_lines(effects, ADD, side, label, colours[side])
        panels.append(Panel(f"log-odds of {label},<br>difference added [nats]", added, _ZERO))
        removed += _signed_lines(effects, REMOVE, side, label, colours[side], controls=False)
    panels.append(Panel("log-odds,<br>direction removed [nats]", removed, _ZERO))
    titles = {ADD: "KL, difference added [nats]", PATCH: "KL, state patched [nats]"}
    for intervention, title in titles.items():
        panels.append(Panel(title, _kl_lines(effects, intervention, sides, colours), positive=True))
    if separation is not None:
        panels.append(Panel("AUROC", list(_separation_lines(effects, separation)), [Reference(0.5, "chance: 0.5")]))
    return panels_figure(panels)


def _name(effects: xr.Dataset, label: str, site: str) -> str:
    """Return the name of a set's line, without the site if only one is changed."""
    return f"{label}{f', {short_site(site)}' if effects.sizes['site'] > 1 else ''}"


def _with_ends(values: xr.DataArray) -> list[xr.DataArray]:
    """Return a statistic, and both ends of its interval."""
    return [values.sel(estimate=end) for end in INTERVAL]


def _signed_lines(
    effects: xr.Dataset, intervention: str, side: str, label: str, colour: str, *, controls: bool = True
) -> list[Line]:
    """Return changes of the log-odds towards the other set, and those by controls; none if no sign is expected."""
    lines = []
    of_side = effects.sel(prompt_side=side)
    for site in effects["site"].values.tolist() if np.isfinite(of_side["expected_sign"]) else ():
        values = of_side.sel(site=site, intervention=intervention)
        change, layers = towards_other(values), values["layer"]
        null = values["effect_null"].sel(measure="log_odds")
        where = _name(effects, label, site)
        for control in effects["control"].values.tolist() if controls else ():
            mean, sd = (null.sel(control=control, null=part) for part in ("mean", "sd"))
            name, dash = f"{where}, {_CONTROLS[control]}", _CONTROL_DASHES[control]
            ends = mean - style.CHANCE_SDS * sd, mean + style.CHANCE_SDS * sd
            lines.append(Line(name, layers, mean, style.PLAIN, dash, *ends, markers=False, band=_SPREAD))
        curve = change["value"], colour, DASHES[Site(site)], change["low"], change["high"]
        lines.append(Line(where, layers, *curve, n=prompts_text(values["n_used"])))
    return lines


def _kl_lines(
    effects: xr.Dataset, intervention: str, sides: Mapping[str, str], colours: Mapping[str, str]
) -> list[Line]:
    lines = []
    for side, label in sides.items():
        for site in effects["site"].values.tolist():
            values = effects.sel(prompt_side=side, site=site, intervention=intervention, measure="kl")
            where = _name(effects, label, site)
            n, (kl, low, high) = prompts_text(values["n_used"]), _with_ends(values["effect"])
            lines.append(Line(where, values["layer"], kl, colours[side], DASHES[Site(site)], low, high, n=n))
            for control in effects["control"].values.tolist() if intervention == ADD else ():
                mean = values["effect_null"].sel(control=control, null="mean")
                name = f"{where}, {_CONTROLS[control]}"
                lines.append(Line(name, values["layer"], mean, style.PLAIN, _CONTROL_DASHES[control], markers=False))
    return lines


def _separation_lines(effects: xr.Dataset, separation: xr.Dataset) -> Sequence[Line]:
    lines = []
    for site in effects["site"].values.tolist():
        values = separation.sel(site=site)
        values = values.sel(layer=[layer for layer in effects["layer"].values if layer in values["layer"]])
        auroc, low, high = (end_of(values["auroc"], end) for end in INTERVAL)
        name = f"held-out prompts, {short_site(site)}"
        lines.append(Line(name, values["layer"], auroc, MAIN, DASHES[Site(site)], low, high))
    return lines


def dose_figure(effects: xr.Dataset, sides: Mapping[str, str], colours: Mapping[str, str]) -> go.Figure:
    """Return what doses of the difference of the means change at one place; arguments as in `effects_figure`.

    `effects` is the group at one contrast, position, site and layer.
    """
    panels = []
    for measure, title in {"log_odds": "change of the log-odds", "kl": "KL [nats]"}.items():
        lines = []
        for side, label in sides.items():
            values = effects.sel(prompt_side=side, measure=measure)
            n = prompts_text(values["n_used"])
            doses = [0.0, *values["dose"].values.tolist()]  # a dose of 0 changes nothing
            order = np.argsort(doses)
            curve, low, high = (np.array([0.0, *end.values])[order] for end in _with_ends(values["dose_effect"]))
            lines.append(Line(label, np.array(doses)[order], curve, colours[side], "solid", low, high, n=n))
        panels.append(Panel(title, lines, [Reference(0, "no change: 0")] if measure == "log_odds" else ()))
    return panels_figure(panels, x_title="dose: factor on the difference of the means")


def parts_figure(effects: xr.Dataset, sides: Mapping[str, str]) -> go.Figure:
    """Return what a patch of attention, of the MLP, and of both together changes, by layer; a panel for each set.

    Args:
        effects: the results at one contrast and position.
        sides: label of the set on each side.
    """
    panels = []
    for side, label in sides.items():
        values, n = effects.sel(prompt_side=side), prompts_text(effects["n_used"].sel(prompt_side=side))
        lines = []
        for sublayer, (name, colour) in _SUBLAYERS.items():
            kl, low, high = _with_ends(values["sublayer_effect"].sel(measure="kl", sublayer=sublayer))
            if np.isfinite(kl).any():
                lines.append(Line(name, values["layer"], kl, colour, "solid", low, high, n=n))
        panels.append(Panel(f"KL, {label} [nats]", lines, positive=True))
    return panels_figure(panels)


def score_figure(effects: xr.Dataset, layers: Sequence[int], label: str) -> go.Figure:
    """Return how far an added difference moves the input of later blocks along the contrast's direction there.

    Args:
        effects: the results at one contrast, position, site and side.
        layers: layers at which the difference is added, at most three.
        label: label of the set whose prompts are changed.
    """
    lines = []
    for layer, colour in zip(layers, (MAIN, THIRD, SECOND), strict=False):
        added = effects.sel(layer=layer, intervention=ADD)
        added = added.sel(layer_other=added["layer_other"] >= layer)
        scores, low, high = _with_ends(added["score_change"])
        name, n = f"added at layer {layer}, {label}", prompts_text(effects["n_used"])
        lines.append(Line(name, added["layer_other"], scores, colour, "solid", low, high, n=n))
    panel = Panel(
        "distances of the means", lines, [Reference(1, "distance of the means: 1"), Reference(0, "no change: 0")]
    )
    return panels_figure([panel])
