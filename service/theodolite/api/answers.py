"""Return the content of responses about finished runs as dictionaries; `encoding` writes NaN as null."""

from typing import Any

import numpy as np
import xarray as xr

from theodolite.query.curves import CURVE_FIELDS, Curve
from theodolite.query.group_selection import select_direction
from theodolite.query.heads import head_atlas, read_head
from theodolite.sections.catalogue import draw_figure, section_items, shown_groups
from theodolite.store.runs import Run


def curve_item(curve: Curve) -> dict[str, Any]:
    """Return the fields of one curve, with each label of `of` as a field of its own."""
    item: dict[str, Any] = {}
    for name in CURVE_FIELDS:
        item |= curve.of if name == "of" else {name: getattr(curve, name)}
    return item


def direction(run: Run, contrast: str, site: str, layer: int, position: int | None = None) -> dict[str, Any]:
    """Return the unit vector from a contrast's negative to its positive mean; raises as `select_direction` does."""
    selected = select_direction(run, contrast, site, layer, position)
    return {
        "run_id": run.id,
        "contrast": contrast,
        "site": site,
        "layer": layer,
        "position": int(selected["position"]),
        "d_model": selected.size,
        "direction": selected.values,
    }


def heads(run: Run, circuit: str = "qk", offset: int = 0) -> dict[str, Any]:
    """Return the atlas of all heads; raises as `head_atlas` does."""
    atlas = head_atlas(run, circuit, offset)
    return {"run_id": run.id, "circuit": circuit, "offset": offset, "dataset": dataset_content(atlas)}


def head(run: Run, layer: int, head: int, circuit: str = "qk", offset: int = 0) -> dict[str, Any]:
    """Return one head's spectrum, ranks and tokens; raises as `read_head` does."""
    circuit_of_head = read_head(run, layer, head, circuit, offset)
    return {"run_id": run.id, **vars(circuit_of_head), "tokens": circuit_of_head.tokens.to_dict("records")}


def group(run: Run, name: str, selected: xr.Dataset) -> dict[str, Any]:
    """Return a result group, or the selected part of it."""
    return {"run_id": run.id, "group": name, "dataset": dataset_content(selected)}


def sections(run: Run) -> dict[str, Any]:
    """Return the names of a run's sections, in the order of the report and the page."""
    return {"run_id": run.id, "items": shown_groups(run)}


def section(run: Run, group: str) -> dict[str, Any]:
    """Return the sections of one result group: sentences, names of figures, tables; raises as `section_items` does."""
    return {"run_id": run.id, "group": group, "items": section_items(run, group)}


def figure(run: Run, name: str) -> dict[str, Any]:
    """Return a figure as Plotly reads it, `data` and `layout`; raises as `draw_figure` does."""
    content: dict[str, Any] = draw_figure(run, name).to_plotly_json()
    return content


def dataset_content(dataset: xr.Dataset) -> dict[str, Any]:
    """Return a dataset as a dictionary that `xarray.Dataset.from_dict` reads.

    Empty variables are left out, since a JSON list does not keep their shape.
    """
    dataset = dataset.drop_vars([name for name, variable in dataset.data_vars.items() if not variable.size])
    content: dict[str, Any] = dataset.to_dict(data=False)
    for kind in ("coords", "data_vars"):
        for name, variable in content[kind].items():
            values = dataset[name].values
            # ascontiguousarray would turn a scalar into a list.
            as_list = values.dtype.kind in "OUT" or not values.ndim
            variable["data"] = values.tolist() if as_list else np.ascontiguousarray(values)
            variable.pop("dtype"), variable.pop("shape")
    return content
