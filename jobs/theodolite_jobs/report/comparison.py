"""The standalone page that compares several runs: one figure and a table of milestones."""

from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from theodolite.drawing.comparison import comparison_figure, description, scores_figure, width_figure
from theodolite.errors import StoreError
from theodolite.query.compare import (
    Question,
    compared_scores,
    comparison,
    difference,
    labels,
    milestones,
    statistics_of,
)
from theodolite.query.curves import title_of
from theodolite.store.runs import Run
from theodolite_jobs.report.page import render_template


def write_comparison(runs: Sequence[Run], question: Question, bound: float, output: Path) -> None:
    """Write the comparison to a file, as one HTML page that contains its scripts and data.

    Args:
        runs: the runs, in the order of their colours.
        question: the curve to compare.
        bound: the smallest AUROC of separated sets.
        output: path of the file.

    Raises:
        SpecError: there is no such statistic, or a run lacks the contrast, set, site or position.
        StoreError: a run is not complete or lacks the group of the statistic, or the file cannot be written.
    """
    frame, statistics = comparison(runs, question), statistics_of(runs, question)
    beyond = difference(runs, question)
    scores = compared_scores(runs, question)
    figures = {
        "depth": comparison_figure(frame, beyond),
        "scores": None if scores is None else scores_figure(scores, frame),
        "width": width_figure(frame),
    }
    page = render_template(
        "comparison.html",
        runs=[run.record for run in runs],
        names=labels(frame),
        statistic=" and ".join(title_of(name) for name in statistics),
        descriptions=[description(name) for name in statistics],
        has_difference=beyond is not None,
        selection=_selection_text(frame, question),
        figures={name: figure for name, figure in figures.items() if figure is not None},
        is_of_blocks=bool((frame["site"] == "").all()),
        has_intervals=bool(frame["low"].notna().any()),
        rows=milestone_texts(milestones(runs, question, bound)),
        bound=f"{bound:g}",
    )
    try:
        output.write_text(page, encoding="utf-8")
    except OSError as error:
        detail = f"cannot write the page {output}: {error.strerror}"
        raise StoreError(f"{detail}; give another path with --output") from error


def milestone_texts(table: pd.DataFrame) -> list[dict[str, str]]:
    """Return the rows of `milestones` as texts: the smallest debiased cosine, and where the sets are separated."""
    return [
        {
            "run": str(row["run_id"]),
            "contrast": str(row["contrast"]),
            "smallest cosine": _with_depth(
                row["least_cosine_at"], row["least_cosine_relative_depth"], row["least_cosine"]
            ),
            "largest AUROC": _with_depth(row["largest_auroc_at"], np.nan, row["largest_auroc"]),
            "above chance": str(row["above_chance_at"]),
            "separates": _separation(row),
        }
        for row in table.to_dict("records")
    ]


def _with_depth(label: str, relative_depth: float, value: float | None = None) -> str:
    """Return a text such as `0.8123 at 17-mid (0.58)`, without what is missing."""
    text = label if value is None or np.isnan(value) else f"{value:.4f} at {label}"
    return text if np.isnan(relative_depth) else f"{text} ({relative_depth:.2f})"


def _separation(row: Mapping[Hashable, Any]) -> str:
    """Return the depth from which on the sets are separated, or how near they come."""
    if row["separates_at"] == "never" and np.isfinite(row["largest_auroc_low"]):
        return f"none; the largest lower end of the band is {row['largest_auroc_low']:.3f}"
    return _with_depth(row["separates_at"], row["separates_relative_depth"])


def _selection_text(frame: pd.DataFrame, question: Question) -> str:
    """Return the set or contrast, the sites and the positions of the curves as one text."""
    sites = [site for site in frame["site"].unique() if site]
    positions = ", ".join(str(position) for position in frame["position"].dropna().unique())
    parts = [f"position {positions}"] if positions else ["from the weights"]
    if sites:
        parts.insert(0, f"{'sites' if len(sites) > 1 else 'site'} {' and '.join(sites)}")
    if question.prompt_set:
        parts.insert(0, f"set {question.prompt_set}")
    elif question.contrast:
        parts.insert(0, f"contrast {question.contrast}")
    return ", ".join(parts)
