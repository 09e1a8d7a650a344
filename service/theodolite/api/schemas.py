"""What answers look like, for OpenAPI: names, units, examples. What is sent is not checked against it."""

from typing import Any

from pydantic import BaseModel, Field

from theodolite.api.encoding import ARROW, HAS_ARROW, PARQUET
from theodolite.api.problems import MEDIA_TYPE

_RUN = "smollm2-135m-instruct-4e6f1ffc2d1b"
_STRING: dict[str, Any] = {"schema": {"type": "string", "format": "binary"}}


class ProblemDetails(BaseModel):
    """RFC 9457: what was wrong."""

    type: str = Field(examples=["urn:theodolite:run-not-found"])
    title: str = Field(examples=["Not Found"])
    status: int = Field(examples=[404])
    detail: str = Field(description="What was wrong, which value, what is allowed, what to do.")


class RunLine(BaseModel):
    """A run in one line."""

    run_id: str = Field(examples=[_RUN])
    name: str | None
    model: str | None = Field(examples=["SmolLM2-135M-Instruct"])
    sets: dict[str, int] = Field(description="Prompts of each set.", examples=[{"harmful": 256, "harmless": 256}])
    contrasts: list[str] = Field(examples=[["refusal"]])
    analyses: list[str] = Field(description="Finished result groups.")
    state: str = Field(description="complete, captured, capturing, damaged or newer.")
    created: str


class RunList(BaseModel):
    """A page of runs, newest first."""

    items: list[RunLine]
    next: str | None = Field(description="Cursor of the next page.")


class RunDetails(BaseModel):
    """Everything known of a run but its arrays."""

    run_id: str = Field(examples=[_RUN])
    state: str
    model: dict[str, Any] = Field(description="Family, sizes, revision, dtype, attention.")
    sets: dict[str, dict[str, Any]] = Field(description="Prompts, positions, tokens, shards committed, quarantined.")
    spec: dict[str, Any] = Field(description="The survey that was asked for.")
    parity: dict[str, Any] = Field(description="Certificate: captured activations against plain Hugging Face.")
    versions: dict[str, str]
    results: dict[str, dict[str, list[str]]] = Field(description="Dimensions of each variable of each result group.")


class CurveItem(BaseModel):
    """One statistic of one set or contrast along the layers."""

    statistic: str = Field(examples=["cosine_of_means_debiased"])
    contrast: str | None = Field(None, description="Of a statistic of contrasts.", examples=["refusal"])
    set: str | None = Field(None, description="Of a statistic of prompt sets.")
    site: str | None = Field(None, description="None of a statistic of whole blocks.", examples=["resid_pre"])
    position: int = Field(description="Token position from the end.", examples=[-1])
    n: dict[str, int] = Field(description="Prompts it rests on.", examples=[{"n_positive": 256, "n_negative": 256}])
    units: str = Field(description="Units of value, low and high.", examples=["1"])
    description: str
    layer: list[int] = Field(description="0-based blocks.", examples=[[0, 1]])
    depth: list[int] = Field(description="Along the stream in half-blocks; 0-pre is 0, 0-mid is 1.", examples=[[0, 2]])
    value: list[float | None] = Field(description="Null where it is not known.", examples=[[1.0, 0.9998]])
    low: list[float | None] | None = Field(description="Lower end of the 95 % interval.")
    high: list[float | None] | None = Field(description="Upper end of the 95 % interval.")


class CurvesAnswer(BaseModel):
    """A page of curves."""

    run_id: str = Field(examples=[_RUN])
    items: list[CurveItem]
    next: str | None


class Direction(BaseModel):
    """A unit vector of the residual stream."""

    run_id: str = Field(examples=[_RUN])
    contrast: str = Field(examples=["refusal"])
    site: str = Field(examples=["resid_pre"])
    layer: int = Field(examples=[15])
    position: int = Field(examples=[-1])
    d_model: int = Field(examples=[3])
    direction: list[float] = Field(description="Of length 1; positive minus negative.", examples=[[0.6, 0.0, -0.8]])


class Dataset(BaseModel):
    """What `xarray.Dataset.from_dict` reads: each variable has `dims`, `attrs` (units, description) and `data`."""

    coords: dict[str, Any]
    data_vars: dict[str, Any]
    dims: dict[str, int]
    attrs: dict[str, Any]


class Atlas(BaseModel):
    """What every head's circuit is like, (layer, head)."""

    run_id: str = Field(examples=[_RUN])
    circuit: str = Field(examples=["qk"])
    offset: int
    dataset: Dataset


class HeadCard(BaseModel):
    """One head's circuit."""

    run_id: str = Field(examples=[_RUN])
    name: str = Field(examples=["L12H3"])
    circuit: str
    offset: int
    singular_values: list[float] = Field(description="The largest first.")
    coverage_99: int = Field(description="First rank at which their sum so far passes 99 % of the whole.")
    effective_rank: float | None
    stable_rank: float | None
    copying_score: float | None
    tokens: list[dict[str, Any]] = Field(
        description="Rows: side, vector, end, place, token, score; none without words."
    )


class GroupAnswer(BaseModel):
    """A result group, or some of it."""

    run_id: str = Field(examples=[_RUN])
    group: str = Field(examples=["separation"])
    dataset: Dataset


class TableRows(BaseModel):
    """A page of a table's rows."""

    run_id: str = Field(examples=[_RUN])
    table: str = Field(examples=["growth"])
    total: int = Field(description="Rows that pass the filters.")
    items: list[dict[str, Any]]
    next: str | None


class SectionList(BaseModel):
    """Which sections a run has."""

    run_id: str = Field(examples=[_RUN])
    items: list[str] = Field(examples=[["curves", "separation"]])


class SectionAnswer(BaseModel):
    """What one result group shows."""

    run_id: str = Field(examples=[_RUN])
    group: str = Field(examples=["gram"])
    items: list[dict[str, Any]] = Field(description="Sections: title, facts, notes, figures, maps, tables.")


class FigureAnswer(BaseModel):
    """A figure as Plotly reads it."""

    data: list[dict[str, Any]]
    layout: dict[str, Any]


class Comparison(BaseModel):
    """The same statistic of several runs, on relative depth."""

    statistic: str = Field(examples=["auroc"])
    description: str
    items: list[dict[str, Any]] = Field(
        description="Rows: run_id, model, site, layer, position, depth, relative_depth (1 is the end of the last "
        "block), value, low, high."
    )
    milestones: list[dict[str, Any]] = Field(
        description="For each run: where the debiased cosine is least, and where the sets first separate surely."
    )


class Job(BaseModel):
    """A survey that was submitted."""

    id: str = Field(description="The spec's digest.", examples=["0123456789abcdef" * 4])
    name: str | None
    model: str
    state: str = Field(description="queued, running, succeeded, failed, stopped or lost.")
    attempt: int = Field(description="Which try on the cluster this is.", examples=[1])
    submitted: str
    reason: str | None = Field(description="Why it is lost or failed, where the cluster says.")
    run_id: str | None = Field(description="Once it is known.", examples=[_RUN])
    progress: dict[str, dict[str, int]] = Field(description="Prompts committed and in all, by set.")
    yours: bool = Field(description="Whether the token that asks may stop it and read its logs.")


class JobList(BaseModel):
    """A page of jobs, newest first."""

    items: list[Job]
    next: str | None


def described(model: type[BaseModel], *, flat: bool = False, status: int = 200) -> dict[int | str, dict[str, Any]]:
    """Return what OpenAPI says of a call's answers.

    Args:
        model: what JSON holds.
        flat: whether Parquet and Arrow are offered too.
        status: of the answer.
    """
    forms = {PARQUET: _STRING, **({ARROW: _STRING} if HAS_ARROW else {})} if flat else {}
    unchanged = {"description": "Not modified: the ETag is still that of If-None-Match."}
    return {status: {"model": model, "content": forms}, 304: unchanged, **problems_of()}


def problems_of() -> dict[int | str, dict[str, Any]]:
    """Return what OpenAPI says of a call's problems."""
    said = {
        401: "No token, or one that is wrong or has expired.",
        403: "The token lacks the scope, or the origin is foreign.",
        404: "No such run, or no such results.",
        406: "No form that is accepted is offered.",
        409: "The run is not complete, or damaged.",
        421: "This service is not called so.",
        422: "A parameter is wrong; says what is allowed.",
        503: "The store or the cluster cannot be reached.",
    }
    shape = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemDetails"}}}
    return {code: {"description": text, "content": shape} for code, text in said.items()}
