"""What is answered about a finished run, in the shape that JSON has: the API sends it, `theodolite.open_run` reads it.

Numbers that are not known are NaN here; the API writes them as null.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import xarray as xr

from theodolite.errors import ResultsNotFoundError
from theodolite.query.curves import Curve, select_curves
from theodolite.query.group_selection import select_direction, select_group
from theodolite.query.heads import head_atlas, head_card
from theodolite.query.runs import describe
from theodolite.sections.catalogue import SECTIONS, draw_figure, sections_of, sections_there
from theodolite.sections.parts import Figure, Section
from theodolite.store.manifest import finished_groups
from theodolite.store.result_reader import read_contrasts
from theodolite.store.runs import Run


def details(run: Run) -> dict[str, Any]:
    """Return everything known of a run but its arrays; `contrast_sets` says what each contrast's two sets are."""
    content = {name: value for name, value in describe(run).items() if name != "report"}
    return {**content, "contrast_sets": read_contrasts(run, finished_groups(run))}


def curves(run: Run, statistic: Sequence[str] = (), **only: Sequence[Any]) -> dict[str, Any]:
    """Return curves of statistics along depth; raises as `select_curves` does.

    Args:
        run: a complete run.
        statistic: names; none are all of the group `curves`.
        only: which labels are wanted, by `set`, `contrast`, `site` and `position`.
    """
    return {"run_id": run.id, "items": [curve_item(curve) for curve in select_curves(run, statistic, only)]}


def curve_item(curve: Curve) -> dict[str, Any]:
    """Return one curve: its statistic, labels, what it rests on, and its numbers."""
    names = ("n", "units", "description", "layer", "depth", "value", "low", "high")
    return {"statistic": curve.statistic, **curve.of, **{name: getattr(curve, name) for name in names}}


def direction(run: Run, contrast: str, site: str, layer: int, position: int | None = None) -> dict[str, Any]:
    """Return the unit vector from a contrast's negative to its positive mean; raises as `select_direction` does."""
    found = select_direction(run, contrast, site, layer, position)
    return {
        "run_id": run.id,
        "contrast": contrast,
        "site": site,
        "layer": layer,
        "position": int(found["position"]),
        "d_model": found.size,
        "direction": found.values,
    }


def heads(run: Run, circuit: str = "qk", offset: int = 0) -> dict[str, Any]:
    """Return what every head's circuit is like; raises as `head_atlas` does."""
    atlas = head_atlas(run, circuit, offset)
    return {"run_id": run.id, "circuit": circuit, "offset": offset, "dataset": dataset_content(atlas)}


def head(run: Run, layer: int, head: int, circuit: str = "qk", offset: int = 0) -> dict[str, Any]:
    """Return one head: its spectrum, its ranks, and the tokens of its leading vectors; raises as `head_card` does."""
    card = head_card(run, layer, head, circuit, offset)
    return {"run_id": run.id, **card, "tokens": card["tokens"].to_dict("records")}


def group(run: Run, group: str, statistic: Sequence[str] = (), **only: Sequence[Any]) -> dict[str, Any]:
    """Return a result group, or some of its variables at some labels; raises as `select_group` does."""
    found = select_group(run, group, statistic, only)
    return {"run_id": run.id, "group": group, "dataset": dataset_content(found)}


def sections(run: Run) -> dict[str, Any]:
    """Return which sections a run has, in the order of reading."""
    return {"run_id": run.id, "items": sections_there(run)}


def section(run: Run, group: str) -> dict[str, Any]:
    """Return what one result group shows: sentences made from the numbers, names of figures, tables.

    Raises:
        ResultsNotFoundError: there is no such section; the message names those that there are.
    """
    if group not in SECTIONS:
        raise ResultsNotFoundError(f"there is no section {group!r}; there are {', '.join(SECTIONS)}")
    return {"run_id": run.id, "group": group, "items": [_section_item(one) for one in sections_of(run, group)]}


def figure(run: Run, name: str) -> dict[str, Any]:
    """Return a figure as Plotly reads it, `data` and `layout`; raises as `draw_figure` does."""
    drawn: dict[str, Any] = draw_figure(run, name).to_plotly_json()
    return drawn


ANSWERS: Mapping[str, Callable[..., dict[str, Any]]] = {
    "details": details,
    "curves": curves,
    "direction": direction,
    "heads": heads,
    "head": head,
    "group": group,
    "sections": sections,
    "section": section,
    "figure": figure,
}
"""Everything that can be asked of a run, but its tables, which are Parquet."""


def dataset_content(dataset: xr.Dataset) -> dict[str, Any]:
    """Return a dataset as `xarray.Dataset.from_dict` reads it.

    Variables without numbers are left out, since lists that hold none have lost their shape.
    """
    dataset = dataset.drop_vars([name for name, variable in dataset.data_vars.items() if not variable.size])
    content: dict[str, Any] = dataset.to_dict(data=False)
    for kind in ("coords", "data_vars"):
        for name, variable in content[kind].items():
            values = dataset[name].values
            # A single number stays one: ascontiguousarray would make it a list.
            as_list = values.dtype.kind in "OUT" or not values.ndim
            variable["data"] = values.tolist() if as_list else np.ascontiguousarray(values)
            variable.pop("dtype"), variable.pop("shape")
    return content


def _section_item(section: Section) -> dict[str, Any]:
    def drawn(figures: list[Figure]) -> list[dict[str, str]]:
        return [{"name": one.name, "caption": one.caption, "circuit": one.circuit} for one in figures]

    return {
        "title": section.title,
        "facts": section.facts,
        "notes": section.notes,
        "figures": drawn(section.figures),
        "maps": drawn(section.maps),
        "tables": [asdict(table) for table in section.tables],
    }
