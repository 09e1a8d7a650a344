"""The standalone HTML report: opens offline, and says what was measured, on what, with which parity."""

import json
from collections.abc import Collection
from typing import Any

import jinja2
import numpy as np
import plotly.graph_objects as go
import plotly.offline
import xarray as xr
from markupsafe import Markup

from theodolite.figures.contrasts import ContrastView, contrast_figure, shown_sites
from theodolite.query.curves import along_depth
from theodolite.query.published import published_curves, selected_directions
from theodolite.query.runs import describe, last_asked
from theodolite.sites import depth_label
from theodolite.store.complete import finished_groups
from theodolite.store.layout import REPORT
from theodolite.store.objects import put
from theodolite.store.results import read_group
from theodolite.store.runs import Run
from theodolite_jobs.report.geometry import sphere_section, travel_section
from theodolite_jobs.report.heads import heads_section
from theodolite_jobs.report.published import published_facts
from theodolite_jobs.report.sections import Section
from theodolite_jobs.report.subspaces import weights_section
from theodolite_jobs.report.untangling import gram_section, separation_sections
from theodolite_jobs.report.words import trajectory_sections, vocabulary_section

_AS_THEY_ARE = "Activations as they are; variances in squared units of the stream"
_ON_SPHERE = "On the sphere: activations scaled to norm √d_model; variances in squared units of that"


def write_report(run: Run) -> None:
    """Write the run's report from its stored results; raises RunDamagedError where they are not finished."""
    put(run.location, REPORT, render_report(run).encode())


def render_report(run: Run) -> str:
    """Return the report as one HTML page; scripts and data are inside."""
    loader = jinja2.PackageLoader("theodolite_jobs.report", "templates")
    environment = jinja2.Environment(loader=loader, autoescape=_is_page, undefined=jinja2.StrictUndefined)
    finished = finished_groups(run)
    return environment.get_template("report.html").render(
        run=describe(run),
        record=run.record,
        sections=_sections(run),
        geometry=_geometry(run, finished),
        heads=heads_section(run, words="words" in finished) if "heads" in finished else None,
        trajectories=trajectory_sections(run) if "words" in finished else [],
        vocabulary=vocabulary_section(run) if "words" in finished else None,
        script_json=script_json,
        spec=last_asked(run).model_dump_json(indent=2, exclude_none=True),
        plotly=plotly.offline.get_plotlyjs(),
    )


def _geometry(run: Run, finished: Collection[str]) -> list[Section]:
    """Return a section, or several, for each group of results that there is."""
    found = [separation_sections(run)] if "separation" in finished else []
    sections = {"gram": gram_section, "sphere": sphere_section, "travel": travel_section, "weights": weights_section}
    found += [[section(run)] for name, section in sections.items() if name in finished]
    return [section for of_group in found for section in of_group]


def script_json(value: Any) -> Markup:
    """Return JSON, or a figure's, that is safe inside a script element, whatever strings it holds."""
    text = str(value.to_json()) if isinstance(value, go.Figure) else json.dumps(value)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def _is_page(name: str | None) -> bool:
    return name is not None and name.endswith(".html")


def _sections(run: Run) -> list[Section]:
    if not run.record.sets:  # only weights were surveyed
        return []
    curves = read_group(run, "curves")
    found = []
    for contrast, sides in curves.attrs["contrasts"].items():
        for position in curves["position"].values.tolist():
            n_positive, n_negative = (
                int(curves[f"n_{side}"].sel(contrast=contrast, position=position)) for side in ("positive", "negative")
            )
            if n_positive == 0:  # one of the sets does not keep this position
                continue
            view = ContrastView(contrast, sides["positive"], sides["negative"], position)
            sphere = ContrastView(contrast, sides["positive"], sides["negative"], position, on_sphere=True)
            where = (run.record.model, view.positive, view.negative, position)
            published = published_curves(*where)
            unpaired = f"{n_positive} and {n_negative} unpaired prompts"
            pairing = f"{n_positive} matched pairs" if sides["paired"] else unpaired
            found.append(
                Section(
                    f"{contrast}: {sides['positive']} against {sides['negative']}, position {position}, {pairing}",
                    [*_facts(curves, view), *published_facts(curves, view, published, selected_directions(*where))],
                    [
                        (_AS_THEY_ARE, contrast_figure(curves, view, published)),
                        (_ON_SPHERE, contrast_figure(curves, sphere)),
                    ],
                )
            )
    return found


def _facts(curves: xr.Dataset, view: ContrastView) -> list[str]:
    """Say in a few sentences what the curves that are drawn at once show, from the numbers."""
    at = curves.sel(contrast=view.contrast, position=view.position, site=shown_sites(curves))
    debiased = along_depth(at["cosine_of_means_debiased"])
    facts = []
    if np.isfinite(debiased).any():
        low, high = along_depth(at["cosine_of_means_low"]), along_depth(at["cosine_of_means_high"])
        least, last = int(np.nanargmin(debiased.values)), len(debiased) - 1
        words = {least: "is least at", last: "ends at"} if least != last else {last: "is least at the end,"}
        for place, where in words.items():
            facts.append(
                f"The debiased cosine of means {where} {depth_label(int(debiased['depth'][place]))}: "
                f"{float(debiased[place]):.4f} (95 % interval {float(low[place]):.4f} to {float(high[place]):.4f})."
            )
        if (low > 1).any():
            facts.append(
                "At some depths the whole interval lies above 1, which no cosine can: the two sets' noise is not what "
                "was assumed. If prompt i of one set matches prompt i of the other, set paired: true for the contrast."
            )
    unresolved = int(np.isnan(debiased).sum())
    if unresolved:
        facts.append(
            f"At {unresolved} depths the means are not resolved at this n, and the debiased cosine is left out."
        )
    for name in (view.positive, view.negative):
        largest = along_depth(at["variance_max"].sel(set=name))
        features = along_depth(at["variance_max_feature"].sel(set=name))
        mean = along_depth(at["variance_mean"].sel(set=name))
        if np.isfinite(largest).any():
            top = int(np.nanargmax(largest.values))
            facts.append(
                f"{name}: feature {int(features[top])} has the largest variance, {float(largest[top]):.3g} at "
                f"{depth_label(int(largest['depth'][top]))}, {float(largest[top] / mean[top]):.0f} times the mean "
                "over features there."
            )
    return facts
