"""The standalone page that compares several runs: one figure, and a table of where things happen."""

from collections.abc import Sequence
from pathlib import Path

import jinja2
import numpy as np
import pandas as pd
import plotly.offline

from theodolite.errors import StoreError
from theodolite.figures.comparison import comparison_figure, description
from theodolite.query.compare import Question, comparison, labels, milestones
from theodolite.store.runs import Run
from theodolite_jobs.report.page import script_json, shared_script


def write_comparison(runs: Sequence[Run], question: Question, bound: float, output: Path) -> None:
    """Write the comparison's page; raises as `render_comparison` does, and StoreError where it cannot be written."""
    page = render_comparison(runs, question, bound)
    try:
        output.write_text(page, encoding="utf-8")
    except OSError as error:
        raise StoreError(
            f"cannot write the page {output}: {error.strerror}; give another place with --output"
        ) from error


def render_comparison(runs: Sequence[Run], question: Question, bound: float) -> str:
    """Return the comparison as one HTML page; scripts and data are inside.

    Args:
        runs: the runs, in the order of their colours.
        question: which curve.
        bound: the AUROC from which on two sets count as separated.

    Raises:
        SpecError: there is no such statistic, or a run has not the contrast, set, site or position.
        StoreError: a run is not complete, or lacks the group that holds the statistic.
    """
    loader = jinja2.PackageLoader("theodolite_jobs.report", "templates")
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)
    frame = comparison(runs, question)
    return environment.get_template("comparison.html").render(
        runs=[run.record for run in runs],
        names=labels(frame),
        statistic=question.statistic.replace("_", " "),
        description=description(question.statistic),
        where=_where(frame, question),
        figure=comparison_figure(frame),
        of_blocks=bool((frame["site"] == "").all()),
        intervals=bool(frame["low"].notna().any()),
        rows=said(milestones(runs, question, bound)),
        bound=f"{bound:g}",
        script_json=script_json,
        shared_script=shared_script,
        plotly=plotly.offline.get_plotlyjs(),
    )


def said(table: pd.DataFrame) -> list[dict[str, str]]:
    """Return the table of `milestones` in words: each run's least cosine, and where its sets first separate."""
    return [
        {
            "run": str(row["run_id"]),
            "contrast": str(row["contrast"]),
            "least cosine": _at(row["least_cosine_at"], row["least_cosine_relative_depth"], row["least_cosine"]),
            "separates": _at(row["separates_at"], row["separates_relative_depth"]),
        }
        for row in table.to_dict("records")
    ]


def _at(place: str, relative_depth: float, value: float | None = None) -> str:
    """Return `0.8123 at 17-mid (0.58)`; where there is no depth, the word that stands in its place."""
    if np.isnan(relative_depth):
        return place
    return f"{'' if value is None else f'{value:.4f} at '}{place} ({relative_depth:.2f})"


def _where(frame: pd.DataFrame, question: Question) -> str:
    """Say of what, where and at which position the curves are."""
    sites = [site for site in frame["site"].unique() if site]
    positions = ", ".join(str(position) for position in frame["position"].unique())
    of = question.prompt_set or question.contrast
    parts = [*([f"of {of}"] if of else []), *([f"at {' and '.join(sites)}"] if sites else []), f"position {positions}"]
    return ", ".join(parts)
