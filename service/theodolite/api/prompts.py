"""Define the routes of a run's prompts and their held-out scores."""

from typing import Annotated, Any

import pandas as pd
from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import Response

from theodolite.api.access import Reader
from theodolite.api.encoding import answer
from theodolite.api.paging import Cursor, Limit, next_cursor, start_of
from theodolite.api.responses import FORMS, described
from theodolite.api.run_lookup import RunId, complete_run, digest_over
from theodolite.api.schemas import PromptAnswer, PromptPage
from theodolite.digests import digest_of
from theodolite.drawing.prompts import prompt_figure
from theodolite.drawing.style import set_colours
from theodolite.drawing.switches import add_depth_switch
from theodolite.errors import SpecError
from theodolite.query.prompts import Order, ScoredPrompts, read_prompt_path, read_scored_prompts
from theodolite.store.prompts import read_prompts
from theodolite.store.result_reader import read_group

router = APIRouter(prefix="/v1/runs", tags=["runs"])

PromptSet = Annotated[str, Path(max_length=48, description="Name of the prompt set.", examples=["harmful"])]
Contrast = Annotated[
    str | None, Query(max_length=48, description="Contrast with the set; by default the first such contrast.")
]
Position = Annotated[
    int | None, Query(lt=0, ge=-10_000, description="Token position from the end; by default the last measured one.")
]


@router.get("/{run_id}/prompts/{prompt_set}", responses=described(PromptPage, 404, 409, flat=True), dependencies=FORMS)
def prompts(
    request: Request,
    _caller: Reader,
    run_id: RunId,
    prompt_set: PromptSet,
    contrast: Contrast = None,
    site: Annotated[str | None, Query(max_length=48, description="Site; by default that of the largest AUROC.")] = None,
    layer: Annotated[
        int | None, Query(ge=0, le=10_000, description="0-based block; by default that of the largest AUROC.")
    ] = None,
    position: Position = None,
    order: Annotated[Order, Query(description="margin: worst classified first; -margin: best classified first.")] = (
        "sample"
    ),
    containing: Annotated[
        str, Query(max_length=200, description="Only prompts that contain this text, ignoring case.")
    ] = "",
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    """Return prompts of a set, each with its held-out score along the direction of a contrast at one depth."""
    run = complete_run(request, run_id)
    shown = request.app.state.settings.prompts_shown
    if containing and not shown:
        raise SpecError("containing: this service does not show the texts of prompts (THEODOLITE_PROMPTS_SHOWN)")
    digest = digest_of([digest_over(run), shown])
    start = start_of(cursor, digest)

    def selected() -> ScoredPrompts:
        found = read_scored_prompts(
            run, prompt_set, contrast, site, layer, position, order=order, containing=containing
        )
        return found if shown else ScoredPrompts(found.rows.assign(text=None), found.place)

    def page() -> pd.DataFrame:
        return selected().rows.iloc[start : start + limit]

    def content() -> dict[str, Any]:
        found = selected()
        items = found.rows.iloc[start : start + limit].to_dict("records")
        place = vars(found.place) if found.place else None
        following = next_cursor(start + limit, len(found.rows), digest)
        margins = found.rows["margin"]
        counts = {"total": len(margins), "n_scored": int(margins.notna().sum()), "n_wrong": int((margins < 0).sum())}
        return {"run_id": run_id, "set": prompt_set, "place": place, **counts, "items": items, "next": following}

    return answer(request, digest, content, page)


@router.get(
    "/{run_id}/prompts/{prompt_set}/{sample}",
    responses=described(PromptAnswer, 404, 409, flat=True),
    dependencies=FORMS,
)
def one_prompt(
    request: Request,
    _caller: Reader,
    run_id: RunId,
    prompt_set: PromptSet,
    sample: Annotated[int, Path(ge=0, le=10**9, description="Index of the prompt in its set.")],
    contrast: Contrast = None,
    position: Position = None,
) -> Response:
    """Return one prompt's held-out score along depth, and a figure of it among the scores of both sets."""
    run = complete_run(request, run_id)
    shown = request.app.state.settings.prompts_shown

    def content() -> dict[str, Any]:
        path, place = read_prompt_path(run, prompt_set, sample, contrast, position)
        sides = read_group(run, "separation").attrs["contrasts"][place.contrast]
        curves = read_group(run, "curves")
        colours = set_colours(curves["set"].values.tolist(), curves.attrs["contrasts"])
        figure = prompt_figure(path, sides["positive"], sides["negative"], colours)
        row = read_prompts(run, prompt_set).set_index("sample").loc[sample]
        return {
            "run_id": run_id,
            "set": prompt_set,
            "sample": sample,
            "text": row["text"] if shown else None,
            "contrast": place.contrast,
            "position": place.position,
            "items": path.to_dict("records"),
            "figure": add_depth_switch(figure, run.record.model.n_layers).to_plotly_json(),
        }

    def frame() -> pd.DataFrame:
        return read_prompt_path(run, prompt_set, sample, contrast, position)[0]

    return answer(request, digest_of([digest_over(run), shown]), content, frame)
