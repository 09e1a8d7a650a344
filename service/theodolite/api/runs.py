"""Define the routes of runs: lists, curves, directions, heads, sections and figures."""

from dataclasses import asdict
from typing import Annotated, Any, Literal

import pandas as pd
import xarray as xr
from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from pydantic import StringConstraints

from theodolite.api.access import Reader
from theodolite.api.encoding import answer
from theodolite.api.paging import Cursor, Limit, next_cursor, start_of
from theodolite.api.responses import FORMS, described
from theodolite.api.run_lookup import RunId, any_run, complete_run, digest_of_section, digest_over, digest_with_twin
from theodolite.api.schemas import (
    ConclusionAnswer,
    CurvesAnswer,
    Direction,
    FigureAnswer,
    HeadCard,
    OverviewAnswer,
    RunDetails,
    RunList,
    SectionAnswer,
    SectionList,
)
from theodolite.digests import digest_of
from theodolite.overview.facts import contrasts_with_overview
from theodolite.overview.view import read_picture
from theodolite.query.curves import STATISTICS, Curve, canonical_name, curve_frame, select_curves
from theodolite.query.group_selection import select_direction
from theodolite.query.heads import Head, read_head
from theodolite.query.runs import describe_results, select_summaries, summaries
from theodolite.sections.catalogue import draw_figure, section_items, shown_groups
from theodolite.sections.conclusion import read_conclusion
from theodolite.spec_parts import LABEL

router = APIRouter(prefix="/v1/runs", tags=["runs"])

Statistics = Annotated[
    list[str] | None, Query(description="Statistic; repeat it for several. `/v1/analyses` lists and describes all.")
]
Contrasts = Annotated[list[str] | None, Query(description="Contrast; repeat it for several; by default all.")]
Sites = Annotated[
    list[str] | None, Query(description="Site, such as resid_pre; repeat it for several; by default all.")
]
Positions = Annotated[
    list[Annotated[str, StringConstraints(pattern=LABEL)]] | None,
    Query(description="Token position, -1 is the last token, or its name; by default all."),
]
Sets = Annotated[list[str] | None, Query(alias="set", description="Prompt set; repeat it for several; by default all.")]
Layer = Annotated[int, Query(ge=0, le=10_000, description="0-based index of the block.")]
Circuit = Annotated[
    Literal["qk", "ov", "rotary"],
    Query(description="Bilinear map of a head: qk is W_Q R W_Kᵀ, ov is W_V W_O, rotary is W_QR R W_KRᵀ."),
]
Offset = Annotated[int, Query(ge=0, le=10**9, description="Query position minus key position; 0 for ov.")]


@router.get("", responses=described(RunList, 409))
def list_runs(
    request: Request,
    _caller: Reader,
    model: Annotated[str | None, Query(max_length=200, description="Part of the model's name, ignoring case.")] = None,
    contrast: Annotated[str | None, Query(max_length=48, description="Only runs with this contrast.")] = None,
    incomplete: Annotated[bool, Query(description="Also list runs without finished results.")] = False,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    """Return a page of runs, newest first."""
    items = summaries(request.app.state.settings.store, request.app.state.cache)
    matching = select_summaries(items, model, contrast, incomplete=incomplete)
    start = start_of(cursor)
    content = {"items": matching[start : start + limit], "next": next_cursor(start + limit, len(matching))}
    return answer(request, digest_of(content), lambda: content, use_cache=False)


@router.get("/{run_id}", responses=described(RunDetails, 404, 409))
def show_run(request: Request, _caller: Reader, run_id: RunId) -> Response:
    """Return one run: spec, model, versions, parity certificate, progress of its sets, and its analyses."""
    content = describe_results(any_run(request, run_id))
    return answer(request, digest_of(content), lambda: content, use_cache=False)


@router.get("/{run_id}/curves", responses=described(CurvesAnswer, 404, 409, flat=True), dependencies=FORMS)
def curves(
    request: Request,
    _caller: Reader,
    run_id: RunId,
    statistic: Statistics = None,
    prompt_set: Sets = None,
    contrast: Contrasts = None,
    site: Sites = None,
    position: Positions = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    """Return curves along depth with their 95 % intervals; without `statistic`, those of the analysis `curves`."""
    run = complete_run(request, run_id)
    only = {"set": prompt_set or (), "contrast": contrast or (), "site": site or (), "position": position or ()}
    statistics = list(map(canonical_name, statistic or ()))
    groups = dict.fromkeys(STATISTICS[name].group for name in statistics if name in STATISTICS) or ["curves"]
    digest = digest_over(run, groups)
    start = start_of(cursor, digest)

    def content() -> dict[str, Any]:
        selected = select_curves(run, statistics, only)
        items = [_curve_item(curve) for curve in selected[start : start + limit]]
        return {"run_id": run_id, "items": items, "next": next_cursor(start + limit, len(selected), digest)}

    def frame() -> pd.DataFrame:
        return curve_frame(select_curves(run, statistics, only)[start : start + limit])

    return answer(request, digest, content, frame)


@router.get("/{run_id}/directions/{contrast}", responses=described(Direction, 404, 409, flat=True), dependencies=FORMS)
def direction(
    request: Request,
    _caller: Reader,
    run_id: RunId,
    contrast: str,
    site: Annotated[str, Query(description="Site in the block.", examples=["resid_pre"])],
    layer: Layer,
    position: Annotated[
        str | None,
        Query(pattern=LABEL, description="Token position from the end, or its name; by default the last measured one."),
    ] = None,
) -> Response:
    """Return the unit vector from the mean of a contrast's negative set to the mean of its positive set."""
    run = complete_run(request, run_id)
    digest = digest_over(run, ["directions"])

    def selected() -> xr.DataArray:
        return select_direction(run, contrast, site, layer, position)

    def content() -> dict[str, Any]:
        vector = selected()
        labels = {"contrast": contrast, **{name: vector[name].item() for name in ("site", "layer", "position")}}
        return {"run_id": run_id, **labels, "d_model": vector.size, "direction": vector.values}

    return answer(request, digest, content, lambda: selected().to_dataframe(name="direction").reset_index())


@router.get("/{run_id}/heads/{layer}/{head}", responses=described(HeadCard, 404, 409, flat=True), dependencies=FORMS)
def one_head(
    request: Request, _caller: Reader, run_id: RunId, layer: int, head: int, circuit: Circuit = "qk", offset: Offset = 0
) -> Response:
    """Return one head: its spectrum, its ranks, and the tokens of its leading singular vectors on both sides."""
    run = complete_run(request, run_id)
    digest = digest_over(run, ["heads", "words", "contributions"])

    def selected() -> Head:
        return read_head(run, layer, head, circuit, offset)

    def content() -> dict[str, Any]:
        one = selected()
        return {"run_id": run_id, **vars(one), "tokens": one.tokens.to_dict("records")}

    return answer(request, digest, content, lambda: selected().tokens)


@router.get("/{run_id}/conclusion", responses=described(ConclusionAnswer, 404, 409))
def conclusion(request: Request, _caller: Reader, run_id: RunId) -> Response:
    """Return what a run asked, what it found, what this rests on, and what it does not say, as sentences."""
    run = complete_run(request, run_id)
    return answer(request, digest_with_twin(run), lambda: {"run_id": run_id, **asdict(read_conclusion(run))})


@router.get("/{run_id}/overview", responses=described(OverviewAnswer, 404, 409))
def overview(
    request: Request,
    _caller: Reader,
    run_id: RunId,
    contrast: Annotated[str | None, Query(max_length=48, description="Contrast; by default the first one.")] = None,
    site: Annotated[str | None, Query(max_length=48, description="Site of the selected depth.")] = None,
    layer: Annotated[int | None, Query(ge=0, le=10_000, description="Its 0-based block.")] = None,
) -> Response:
    """Return the overview of a contrast: four questions and a picture, by default at the largest value."""
    run = complete_run(request, run_id)
    shown = request.app.state.settings.prompts_shown

    def content() -> dict[str, Any]:
        picture = read_picture(run, contrast, site, layer, texts="all" if shown else "none")
        return {"run_id": run_id, "contrasts": contrasts_with_overview(run), **asdict(picture)}

    return answer(request, digest_of([digest_with_twin(run), shown]), content)


@router.get("/{run_id}/sections", responses=described(SectionList, 404, 409))
def sections(request: Request, _caller: Reader, run_id: RunId) -> Response:
    """Return the analyses that have sections, in the order of the report and the page."""
    run = complete_run(request, run_id)
    return answer(request, digest_over(run), lambda: {"run_id": run_id, "items": shown_groups(run)})


@router.get("/{run_id}/sections/{group}", responses=described(SectionAnswer, 404, 409))
def section(request: Request, _caller: Reader, run_id: RunId, group: str) -> Response:
    """Return the sections of one analysis: sentences, names of figures, tables."""
    run = complete_run(request, run_id)

    def content() -> dict[str, Any]:
        return {"run_id": run_id, "group": group, "items": section_items(run, group)}

    return answer(request, digest_of_section(run, group), content)


@router.get("/{run_id}/figures/{name}", responses=described(FigureAnswer, 404, 409))
def figure(request: Request, _caller: Reader, run_id: RunId, name: str) -> Response:
    """Return a Plotly figure, `data` and `layout`. The sections list the names of the figures."""
    run = complete_run(request, run_id)
    digest = digest_of_section(run, name.partition(".")[0])
    return answer(request, digest, lambda: draw_figure(run, name).to_plotly_json())


def _curve_item(curve: Curve) -> dict[str, Any]:
    """Return the fields of a curve, with each label of `of` as a field of its own."""
    item = vars(curve).copy()
    labels = item.pop("of")
    return {**labels, **item}
