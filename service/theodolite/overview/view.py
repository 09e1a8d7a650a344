"""Draw an overview as a fragment of HTML that needs no script, for the page, the report and notebooks."""

from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal

import jinja2
import numpy as np
import xarray as xr
from markupsafe import Markup

from theodolite.drawing.panels import coinciding_ratio, shown_sites
from theodolite.drawing.style import chance_ends
from theodolite.drawing.swarm import swarm
from theodolite.groups.schema import LEVEL, SIDES
from theodolite.overview.chart import SIZE, Band, Chart, Curve, dots
from theodolite.overview.facts import Badge, Overview, read_overview
from theodolite.overview.tiles import NO, PARTLY, UNTESTED, YES, Tile
from theodolite.query.curves import along_depth
from theodolite.sections.tokens import visible
from theodolite.store.result_reader import read_group
from theodolite.store.runs import Run

_TITLES = {"paired_accuracy": "share of pairs in order", "auroc": "AUROC"}
_ENDS = 5.0  # of the axis of scores, in pooled standard deviations at most
_COLUMNS = 60  # in which the points of a cloud stand
_MOST_TOKENS = 6  # that the direction raises, and as many that it lowers
_VERBS = {"raised": "the direction raises", "lowered": "the direction lowers"}


@dataclass(frozen=True)
class Picture:
    """An overview as notebooks show it: its sentence as a text, and the whole as HTML.

    Attributes:
        contrast: the contrast.
        site: site of the selected depth.
        layer: its 0-based block.
        sentence: the finding in one sentence.
        quoted: the sentence with the model and the warnings, as a text elsewhere should have it.
        badges: what limits the finding.
        tiles: the four questions with their answers.
        html: the picture.
    """

    contrast: str
    site: str
    layer: int
    sentence: str
    quoted: str
    badges: list[Badge]
    tiles: list[Tile]
    html: Markup

    def __repr__(self) -> str:
        return self.quoted

    def _repr_html_(self) -> str:
        return f"<style>{overview_style()}</style>{self.html}"


Texts = Literal["all", "builtin", "none"]
"""The prompts whose texts an overview shows; a file that is passed on shows only those of built-in sets."""


def read_picture(
    run: Run,
    contrast: str | None = None,
    site: str | None = None,
    layer: int | None = None,
    *,
    texts: Texts = "all",
) -> Picture:
    """Return the picture of a contrast; arguments and errors as those of `read_overview` and `overview_html`."""
    found = read_overview(run, contrast, site, layer)
    warnings = [f"⚠ {badge.label}" for badge in found.badges if badge.is_warning]
    return Picture(
        contrast=found.contrast,
        site=found.place.site,
        layer=found.place.layer,
        sentence=found.sentence,
        quoted=f"{found.sentence} ({', '.join([run.record.model.name, *warnings])})",
        badges=found.badges,
        tiles=found.tiles,
        html=overview_html(run, found, texts=texts),
    )


def overview_html(run: Run, overview: Overview, *, texts: Texts = "all") -> Markup:
    """Return an overview as HTML.

    Args:
        run: its run.
        overview: its content.
        texts: the prompts whose texts it shows; those of the built-in harmful ones wait for a click.
    """
    sources = {name: run.record.spec.sets[name].source for name in overview.sets}
    is_shown = {
        name: texts == "all" or (texts == "builtin" and of.startswith("builtin:")) for name, of in sources.items()
    }
    return Markup(
        _environment()
        .get_template("overview.html")
        .render(
            overview=overview,
            where=overview.place.text,
            main=_main_chart(run, overview),
            small=_small_charts(run, overview),
            clouds=_clouds(overview),
            tokens=_tokens(overview),
            is_shown=is_shown,
            spoken={YES: "yes", PARTLY: "partly", NO: "not shown", UNTESTED: "not tested"},
            folded=[name for name, source in sources.items() if source == "builtin:harmful"],
        )
    )


@cache
def overview_style() -> Markup:
    """Return the style of overviews, which takes its colours from the page around it if that has some."""
    return Markup(resources.files("theodolite.overview").joinpath("overview.css").read_text(encoding="utf-8"))


@cache
def _environment() -> jinja2.Environment:
    loader = jinja2.FunctionLoader(
        lambda name: resources.files("theodolite.overview").joinpath(name).read_text(encoding="utf-8")
    )
    return jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )


def _main_chart(run: Run, overview: Overview) -> Chart:
    """Return the separation of held-out prompts by depth, with chance and controls."""
    measured, statistic = overview.measured, overview.measured.statistic
    values, tests = measured.separation[statistic], measured.tests
    value = along_depth(values)
    bands, curves, levels, filled, located = [], [], [], None, None
    if tests is not None and statistic in tests["tested"]:
        null = tests["tested_null"].sel(tested=statistic)
        mean, sd, limit, p = (along_depth(null.sel(null=one)).values for one in ("mean", "sd", "critical", "p_family"))
        bands.append(Band(*chance_ends(mean, sd, limit), "chance"))
        curves.append(Curve(limit, "limit", "95 % of chance, all depths"))
        filled = p <= LEVEL
        located = along_depth(tests["location"].sel(held_out=statistic)).values == 1
        levels += _words_level(tests, statistic)
    if measured.twin is not None:
        curves.append(Curve(along_depth(measured.twin[statistic]).values, "control", "untrained twin"))
    bands += [
        Band(along_depth(values, f"{band}low").values, along_depth(values, f"{band}high").values, kind)
        for band, kind in (("band_", "band"), ("", "interval"))
    ]
    curves.append(Curve(value.values, "main", filled=np.zeros(value.size, bool) if filled is None else filled))
    return Chart(
        _TITLES[statistic],
        value["depth"].values.astype(np.float64),
        curves,
        bands,
        levels or [(0.5, "chance")],
        bracket=located,
        strip=_reliability(run, overview),
        selected=overview.place.depth,
        form=".0%" if statistic == "paired_accuracy" else ".2f",
    )


def _words_level(tests: xr.Dataset, statistic: str) -> list[tuple[float, str]]:
    """Return the level that token counts alone reach, by the classifier that is the control for words."""
    classifier = "ridge" if float(tests["tokens_is_ridge"].sel(measure=statistic)) == 1 else "means"
    value = float(tests["tokens"].sel(measure=statistic, classifier=classifier, estimate="value"))
    return [(value, "token counts alone")] if np.isfinite(value) else []


def _reliability(run: Run, overview: Overview) -> np.ndarray | None:
    values = read_group(run, "directions")["reliability"]
    at = {"contrast": overview.contrast, "position": overview.position}
    return along_depth(values.sel(at).sel(site=overview.measured.separation["site"].values)).values


def _small_charts(run: Run, overview: Overview) -> list[Chart]:
    """Return the three curves of the paper: cosine of means, mean variance and largest variance."""
    curves = read_group(run, "curves").sel(position=overview.position, space="raw")
    curves = curves.sel(site=shown_sites(curves))
    cosine = curves["cosine_of_means_debiased"].sel(contrast=overview.contrast)
    value = along_depth(cosine)
    x = value["depth"].values.astype(np.float64)
    has_band = "band_low" in cosine["estimate"]
    bands = [
        Band(along_depth(cosine, f"{band}low").values, along_depth(cosine, f"{band}high").values, kind)
        for band, kind in (("band_", "band"), ("", "interval"))
        if not band or has_band
    ]
    selected = overview.place.depth
    charts = [
        Chart("cosine of means (debiased)", x, [Curve(value.values, "main")], bands, form=".4g", selected=selected)
    ]
    for statistic, title in (("variance_mean", "mean variance"), ("variance_max", "largest variance")):
        of_sets = [along_depth(curves[statistic].sel(set=name)).values for name in overview.sets]
        charts.append(_of_sets(title, x, of_sets, overview))
    return charts


def _of_sets(title: str, x: np.ndarray, values: list[np.ndarray], overview: Overview) -> Chart:
    """Return a positive statistic of both sets on a logarithmic axis, or its ratio if the two lines would coincide."""
    selected = overview.place.depth
    if (ratio := coinciding_ratio(*values)) is not None:
        return Chart(
            f"{title}, ratio of sets", x, [Curve(ratio, "main")], levels=[(1.0, "")], form=".2f", selected=selected
        )
    curves = [Curve(one, side) for side, one in zip(SIDES, values, strict=True)]
    return Chart(title, x, curves, logarithmic=True, selected=selected)


def _clouds(overview: Overview) -> dict[str, Any] | None:
    """Return the held-out scores of both sets as clouds of points over one axis; None without scores."""
    scores = overview.scores
    if scores.empty:
        return None
    end = min(_ENDS, float(np.ceil(scores["score"].abs().max()))) or 1.0
    rows = []
    for side, name in zip(SIDES, overview.sets, strict=True):
        own = scores[scores["side"] == side]
        column, places = swarm(own["score"].to_numpy(np.float64), (-end, end), _COLUMNS)
        across = SIZE * (column + 0.5) / _COLUMNS
        step = min(SIZE / (places.max() + 2), SIZE / 12) if len(places) else 0.0
        rows.append(
            {"side": side, "name": name, "n": len(own), "points": dots(across, SIZE - (places + 1) * step)}
            | {"wrong": int((own["margin"] < 0).sum())}
        )
    below, above = ("≤ " if scores["score"].min() < -end else "", "≥ " if scores["score"].max() > end else "")
    return {"rows": rows, "ticks": [(0, f"{below}{-end:+g}"), (50, "0"), (100, f"{above}{end:+g}")]}


def _tokens(overview: Overview) -> dict[str, list[dict[str, Any]]]:
    """Return the first tokens that the direction raises and lowers, by what it does; empty without tokens."""
    return {
        verb: [
            {
                "text": visible(row["token"]),
                "change": f"{row['change']:+.2g}",
                "z": f"{row['z']:.1f}" if np.isfinite(row["z"]) else "unknown",
                "is_faint": not abs(row["z"]) > overview.chance_limit,
            }
            for row in rows.sort_values("place").head(_MOST_TOKENS).to_dict("records")
        ]
        for end, verb in _VERBS.items()
        if len(rows := overview.tokens[overview.tokens["end"] == end])
    }
