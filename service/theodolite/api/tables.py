"""Define the route of the flat tables of a run: rows that pass conditions, in an order, by page or whole."""

from typing import Annotated, Any

import pandas as pd
from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from theodolite.api.access import Reader
from theodolite.api.encoding import answer
from theodolite.api.paging import Cursor, next_cursor, start_of
from theodolite.api.responses import FORMS, described
from theodolite.api.run_lookup import RunId, complete_run, digest_over
from theodolite.api.schemas import TableRows
from theodolite.groups import table_owner
from theodolite.query.tables import (
    Condition,
    Page,
    Selection,
    column_kind,
    parse_condition,
    selected_rows,
    table_page,
)
from theodolite.store.result_reader import read_table_types, table_bytes

router = APIRouter(prefix="/v1/runs", tags=["runs"])

Where = Annotated[
    list[str] | None,
    Query(
        max_length=20,
        description="Condition on a column, such as `layer=3`, `p<=0.05` or `token~king` (contains, ignoring case); "
        "repeat it for several, which a row must pass all. Operators: = != < <= > >= for numbers, = != ~ for texts, "
        "and = != with true or false for booleans. Write a text that begins with a space in double quotes: "
        '`token=" the"`.',
        examples=[["layer=3", "token~king"]],
    ),
]
Order = Annotated[
    str,
    Query(
        max_length=100,
        description="Column that orders the rows; after `-` in descending order; by default the stored order.",
        examples=["-value"],
    ),
]


@router.get("/{run_id}/tables/{name}", responses=described(TableRows, 404, 409, flat=True), dependencies=FORMS)
def table(
    request: Request,
    _caller: Reader,
    run_id: RunId,
    name: str,
    where: Where = None,
    order: Order = "",
    layer: Annotated[int | None, Query(ge=-1, le=10_000, description="Only rows of this 0-based block.")] = None,
    head: Annotated[int | None, Query(ge=0, le=10_000, description="Only rows of this head, 0-based.")] = None,
    limit: Annotated[int, Query(ge=1, le=10_000, description="Maximum number of rows on a page.")] = 1000,
    cursor: Cursor = None,
) -> Response:
    """Return rows of a flat table. As CSV, Parquet or Arrow without `limit` and `cursor`, it returns all selected rows.

    As Parquet without any parameter, it returns the stored object.
    """
    run = complete_run(request, run_id)
    digest = digest_over(run, [table_owner(name) or "words"])
    numbers = {"layer": layer, "head": head}
    conditions = [Condition(column, "=", str(value)) for column, value in numbers.items() if value is not None]
    is_paged, is_whole = not {"limit", "cursor"}.isdisjoint(request.query_params), not request.query_params

    def selection() -> Selection:
        return Selection((*map(parse_condition, where or ()), *conditions), order)

    def page() -> Page:
        selected = selection()
        return table_page(run, name, start_of(cursor, digest, str(selected)), limit, selected)

    def content() -> dict[str, Any]:
        selected = page()
        following = next_cursor(selected.start + limit, selected.total, digest, str(selection()))
        rows = selected.rows.to_dict("records")
        columns = {column: column_kind(kind) for column, kind in selected.rows.dtypes.items()}
        return {
            "run_id": run_id,
            "table": name,
            "total": selected.total,
            "columns": columns,
            "items": rows,
            "next": following,
        }

    def frame() -> pd.DataFrame:
        return page().rows if is_paged else selected_rows(run, name, selection())

    stored = (lambda: table_bytes(run, name)) if is_whole else None
    return answer(request, digest, content, frame, stored, types=lambda: read_table_types(run, name)[0])
