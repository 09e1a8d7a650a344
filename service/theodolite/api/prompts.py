"""Define the routes of a run's prompts and their held-out scores."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import pandas as pd
from fastapi import APIRouter, Depends, Path, Query, Request
from fastapi.responses import Response

from theodolite.api.access import Reader
from theodolite.api.encoding import answer
from theodolite.api.paging import Cursor, Limit, next_cursor, start_of
from theodolite.api.responses import FORMS, described
from theodolite.api.run_lookup import RunId, complete_run, digest_over
from theodolite.api.schemas import ContrastPromptPage, PromptAnswer, PromptPage, ScoresAnswer
from theodolite.digests import digest_of
from theodolite.drawing.prompts import prompt_figure, swarm_figure
from theodolite.drawing.style import short_site
from theodolite.drawing.switches import add_depth_switch
from theodolite.errors import SpecError, TableNotFoundError
from theodolite.groups.schema import SIDES
from theodolite.query.prompts import (
    Order,
    ScoredPrompts,
    read_contrast_prompts,
    read_prompt_path,
    read_scored_prompts,
)
from theodolite.spec_parts import LABEL
from theodolite.store.prompts import read_prompts
from theodolite.store.result_reader import read_group
from theodolite.store.runs import Run

router = APIRouter(prefix="/v1/runs", tags=["runs"])

PromptSet = Annotated[str, Path(max_length=48, description="Name of the prompt set.", examples=["harmful"])]
Contrast = Annotated[
    str | None, Query(max_length=48, description="Contrast with the set; by default the first such contrast.")
]
Site = Annotated[str | None, Query(max_length=48, description="Site; by default that of the best separation.")]
Layer = Annotated[
    int | None, Query(ge=0, le=10_000, description="0-based block; by default that of the best separation.")
]
Position = Annotated[
    str | None,
    Query(pattern=LABEL, description="Token position from the end, or its name; by default the last measured one."),
]


def _end(description: str) -> Any:
    return Query(allow_inf_nan=False, description=f"Only prompts with a score of at {description} this.")


@dataclass(frozen=True)
class Selection:
    """The parameters that select prompts and order them, in the order of the arguments of `read_scored_prompts`."""

    contrast: Contrast = None
    site: Site = None
    layer: Layer = None
    position: Position = None
    order: Annotated[Order, Query(description="margin: worst classified first; -margin: best classified first.")] = (
        "sample"
    )
    containing: Annotated[
        str, Query(max_length=200, description="Only prompts that contain this text, ignoring case.")
    ] = ""
    low: Annotated[float | None, _end("least")] = None
    high: Annotated[float | None, _end("most")] = None


Selected = Annotated[Selection, Depends()]


@router.get("/{run_id}/prompts", responses=described(ContrastPromptPage, 404, 409, flat=True), dependencies=FORMS)
def prompts_of_contrast(
    request: Request, _caller: Reader, run_id: RunId, selection: Selected, limit: Limit = 100, cursor: Cursor = None
) -> Response:
    """Return prompts of both sets of a contrast, by default the first, each with its held-out score at one depth."""

    def read(run: Run) -> ScoredPrompts:
        return read_contrast_prompts(run, **vars(selection))

    return _page(request, run_id, selection, limit, cursor, read)


@router.get("/{run_id}/prompts/{prompt_set}", responses=described(PromptPage, 404, 409, flat=True), dependencies=FORMS)
def prompts(
    request: Request,
    _caller: Reader,
    run_id: RunId,
    prompt_set: PromptSet,
    selection: Selected,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    """Return prompts of a set, each with its held-out score along the direction of a contrast at one depth."""

    def read(run: Run) -> ScoredPrompts:
        return read_scored_prompts(run, prompt_set, **vars(selection))

    return _page(request, run_id, selection, limit, cursor, read, set=prompt_set)


def _page(
    request: Request,
    run_id: str,
    selection: Selection,
    limit: int,
    cursor: str | None,
    read: Callable[[Run], ScoredPrompts],
    **named: str,
) -> Response:
    """Return a page of the prompts that `read` selects; `named` is what else its JSON states."""
    run = complete_run(request, run_id)
    shown = request.app.state.settings.prompts_shown
    if selection.containing and not shown:
        raise SpecError("containing: this service does not show the texts of prompts (THEODOLITE_PROMPTS_SHOWN)")
    digest = digest_of([digest_over(run), shown])
    start = start_of(cursor, digest)

    def selected() -> ScoredPrompts:
        found = read(run)
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
        return {"run_id": run_id, **named, "place": place, **counts, "items": items, "next": following}

    return answer(request, digest, content, page)


@router.get("/{run_id}/scores", responses=described(ScoresAnswer, 404, 409))
def scores(
    request: Request,
    _caller: Reader,
    run_id: RunId,
    contrast: Contrast = None,
    site: Site = None,
    layer: Layer = None,
    position: Position = None,
) -> Response:
    """Return a figure of the held-out scores of both sets of a contrast at one depth; `prompts` has the numbers."""
    run = complete_run(request, run_id)

    def content() -> dict[str, Any]:
        found = read_contrast_prompts(run, contrast, site, layer, position)
        if (place := found.place) is None:
            raise TableNotFoundError(f"{run_id} has no held-out scores of this contrast")
        scored = found.rows.dropna(subset=["score"])
        sides = read_group(run, "separation").attrs["contrasts"][place.contrast]
        figure = swarm_figure(scored, sides["positive"], sides["negative"], paired=sides["paired"])
        own = [scored[scored["side"] == side] for side in SIDES]
        counts = [f"{(rows['margin'] < 0).sum():,} of {len(rows):,}" for rows in own]
        sentence = (
            f"At layer {place.layer} {short_site(place.site)}, {counts[0]} prompts of {sides['positive']} and "
            f"{counts[1]} of {sides['negative']} lie on the other set's side of the midpoint."
        )
        return {"run_id": run_id, "place": vars(place), "sentence": sentence, "figure": figure.to_plotly_json()}

    return answer(request, digest_over(run), content)


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
        figure = prompt_figure(path, sides["positive"], sides["negative"])
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
