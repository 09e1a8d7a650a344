"""Route that compares the same curve of several runs on relative depth."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from theodolite.api.access import Reader
from theodolite.api.encoding import answer
from theodolite.api.responses import FORMS, described
from theodolite.api.run_lookup import RUN_ID, complete_run, digest_over
from theodolite.api.schemas import Comparison
from theodolite.digests import digest_of
from theodolite.drawing.comparison import comparison_figure, description, scores_figure, width_figure
from theodolite.query.compare import (
    BOUND,
    Question,
    compared_scores,
    comparison,
    contrast_choices,
    difference,
    known_milestones,
    records,
    statistics_of,
)
from theodolite.query.spec_differences import spec_differences
from theodolite.spec_parts import LABEL
from theodolite.store.labels import read_labels

router = APIRouter(prefix="/v1/compare", tags=["compare"])

RUNS = 16
"""Maximum number of runs in one comparison: a figure has no more distinct colours."""

_RunIds = Annotated[
    list[Annotated[str, Query(pattern=RUN_ID)]],
    Query(
        alias="run",
        min_length=1,
        max_length=RUNS,
        description="Run id; repeat it for several. Their order is that of the colours.",
    ),
]


@router.get("", responses=described(Comparison, 404, 409, flat=True), dependencies=FORMS)
def compare(
    request: Request,
    _caller: Reader,
    run_ids: _RunIds,
    statistic: Annotated[
        str | None,
        Query(
            description="Statistic along depth; `/v1/analyses` lists them as `profiles`. By default the AUROC and the "
            "debiased cosine."
        ),
    ] = None,
    contrast: Annotated[
        list[Annotated[str, Query(max_length=300)]] | None,
        Query(
            description="Contrast; required if a run has several. If the runs have contrasts of different "
            "names, repeat it as RUN:CONTRAST.",
            max_length=RUNS + 1,
        ),
    ] = None,
    prompt_set: Annotated[
        str | None, Query(alias="set", description="Prompt set; only for a statistic of prompt sets.")
    ] = None,
    site: Annotated[str | None, Query(description="Site; by default resid_pre and resid_mid.")] = None,
    position: Annotated[
        str | None,
        Query(
            pattern=LABEL,
            description="Token position from the end, or its name; by default each run's last one.",
        ),
    ] = None,
    bound: Annotated[
        float,
        Query(
            ge=0.5,
            le=1,
            description="Two sets separate where AUROC's simultaneous band begins at this value or above.",
        ),
    ] = BOUND,
) -> Response:
    """Return a curve of each run on relative depth, and the options in which the surveys of the runs differ.

    Each run also has the depths of its smallest cosine and from which on its sets are separated. Two runs on the same
    prompts have the difference of their AUROCs too, with its simultaneous band, and the scores of each prompt.
    """
    runs = [complete_run(request, run_id) for run_id in dict.fromkeys(run_ids)]
    choices = contrast_choices(contrast or (), run_ids)
    question = Question(statistic, prompt_set=prompt_set, site=site, position=position, **choices)

    def content() -> dict[str, Any]:
        frame, beyond = comparison(runs, question), difference(runs, question)
        scores, against_width = compared_scores(runs, question), width_figure(frame)
        return {
            "statistics": {name: description(name) for name in statistics_of(runs, question)},
            "items": records(frame),
            "milestones": known_milestones(runs, question, bound),
            "differences": spec_differences(runs),
            "auroc_difference": [] if beyond is None else records(beyond),
            "figure": comparison_figure(frame, beyond).to_plotly_json(),
            "scores_figure": None if scores is None else scores_figure(scores, frame).to_plotly_json(),
            "width_figure": None if against_width is None else against_width.to_plotly_json(),
        }

    # The labels of the curves contain the names of the runs, which can change.
    digest = digest_of([[digest_over(run), read_labels(run).name] for run in runs])
    return answer(request, digest, content, lambda: comparison(runs, question))
