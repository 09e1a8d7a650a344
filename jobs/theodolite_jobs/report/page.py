"""The standalone HTML report of a run; it opens offline."""

import base64
import gzip
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from importlib import resources
from typing import Any

import jinja2
import plotly.graph_objects as go
import plotly.offline
from markupsafe import Markup

from theodolite.groups import GROUPS, SHOWN
from theodolite.overview.facts import contrasts_with_overview
from theodolite.overview.view import overview_style, read_picture
from theodolite.query.runs import describe, spec_of_results
from theodolite.query.twin import twin_state
from theodolite.sections.catalogue import drawn, figures_of, sections_of
from theodolite.sections.conclusion import conclusion
from theodolite.store.cache import Cache
from theodolite.store.checksums import sha256
from theodolite.store.layout import COMPLETE, REPORT
from theodolite.store.manifest import finished_groups
from theodolite.store.objects import get, put
from theodolite.store.result_reader import read_group
from theodolite.store.runs import Run
from theodolite.version import __version__
from theodolite_jobs.report.glossary import Linked, anchor
from theodolite_jobs.report.heads import head_cards, heads_with_cards

_CACHE_BYTES = 2**30  # cache of results during one report
_SEAL = b"\n<!-- "  # begins the last line of a report
_DIGITS = 8  # significant digits of the numbers in figures: a curve may differ from 1 in the fifth

PLANE = {"bar", "box", "contour", "heatmap", "histogram", "histogram2d", "image", "pie", "scatter", "violin"}
"""Types of traces in `plotly/plotly-cartesian.min.js`, the part of plotly.js without maps and 3-D scenes."""


def write_report(run: Run) -> None:
    """Write the run's report from its stored results; raises ResultsNotFoundError if there are none."""
    state = _state(run)  # before the results are read: if they change meanwhile, the report is outdated
    page = render_report(run).encode()
    put(run.location, REPORT, page + _seal(page, state))


def update_report(run: Run) -> None:
    """Write the report, except if the stored one is whole, of these results and of this version of Theodolite."""
    stored = get(run.location, REPORT) or b""
    page, _, _ = stored.rpartition(_SEAL)
    if stored != page + _seal(page, _state(run)):
        write_report(run)


def _state(run: Run) -> str:
    """Return the version of Theodolite and the checksum of COMPLETE, which changes with any result, and the twin."""
    twin = twin_state(run)
    compared = f", twin {twin}" if twin else ""
    return f"Theodolite {__version__}, COMPLETE {sha256(get(run.location, COMPLETE) or b'')}{compared}"


def _seal(page: bytes, state: str) -> bytes:
    """Return the last line of a report."""
    return _SEAL + f"{state}, page {sha256(page)} -->\n".encode()


def render_report(run: Run) -> str:
    """Return the report as one HTML page that contains its scripts and data.

    COMPLETE and the results of each analysis are read once, so the whole report describes one state of the run.
    """
    run = replace(run, cache=Cache(_CACHE_BYTES), complete_snapshot={})
    finished = finished_groups(run)
    sections = {group: found for group in SHOWN if (found := sections_of(run, group))}
    chapters = dict.fromkeys(GROUPS[group].chapter for group in sections)
    figures = {figure.name: drawn(run, figure) for found in sections.values() for figure in figures_of(found)}
    return render_template(
        "report.html",
        run=describe(run),
        record=run.record,
        conclusion=conclusion(run, sections),
        overviews=[read_picture(run, name, texts="builtin") for name in contrasts_with_overview(run)],
        overview_style=overview_style(),
        sections=sections,
        chapters={name: [group for group in sections if GROUPS[group].chapter == name] for name in chapters},
        titles={group: GROUPS[group].title for group in sections},
        figures=figures,
        linked=Linked(),
        anchor=anchor,
        heads=_heads(run, finished),
        spec=spec_of_results(run).model_dump_json(indent=2, exclude_defaults=True),
    )


def render_template(name: str, **content: Any) -> str:
    """Return a template filled with content; it can also use `plotly_script`, `shared_script` and `packed`."""
    loader = jinja2.PackageLoader("theodolite_jobs.report", "templates")
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)
    scripts = {"shared_script": shared_script, "packed": packed, "plotly_script": plotly_script}
    return environment.get_template(name).render(content | scripts)


def _heads(run: Run, finished: Collection[str]) -> dict[str, Any] | None:
    """Return the cards of heads, or None if no heads were decomposed."""
    if "heads" not in finished:
        return None
    heads = read_group(run, "heads")
    shown = heads_with_cards(heads)
    return {
        "cards": head_cards(run, heads, shown, words="words" in finished),
        "words": "words" in finished,
        "left_out": heads.sizes["layer"] * heads.sizes["head"] - len(shown),
    }


def plotly_script(figures: Mapping[str, go.Figure]) -> str:
    """Return plotly.js if a figure needs the whole of it, else its part for plane figures, a third of the bytes."""
    if any(trace.type not in PLANE for figure in figures.values() for trace in figure.data):
        return str(plotly.offline.get_plotlyjs())
    bundle = resources.files("theodolite_jobs.report").joinpath("plotly/plotly-cartesian.min.js")
    return bundle.read_text(encoding="utf-8")


def shared_script(*names: str) -> Markup:
    """Return scripts of the service's page as one script without imports and exports."""
    folder = resources.files("theodolite").joinpath("api/web")
    text = "\n".join(folder.joinpath(name).read_text(encoding="utf-8") for name in names)
    return Markup(re.sub(r"^(import .*;\n|export )", "", text, flags=re.MULTILINE))


def packed(value: str | Mapping[str, Any]) -> str:
    """Return a text, or figures and other values as JSON, gzipped and in base64; the report unpacks it."""
    if not isinstance(value, str):
        content = {name: _rounded(one) if isinstance(one, go.Figure) else one for name, one in value.items()}
        value = json.dumps(content, separators=(",", ":"))
    return base64.b64encode(gzip.compress(value.encode(), mtime=0)).decode()


def _rounded(figure: go.Figure) -> Any:
    """Return a figure as JSON values; more digits than it can show would double its bytes."""
    return json.loads(figure.to_json(), parse_float=lambda text: float(f"{float(text):.{_DIGITS}g}"))
