"""Schemas of the answers for OpenAPI: names, units, examples. Answers are not validated against them."""

from typing import Any

from pydantic import BaseModel, Field

from theodolite.api.encoding import ARROW, HAS_ARROW, PARQUET
from theodolite.api.problems import MEDIA_TYPE
from theodolite.query.heads import TOKEN_COLUMNS

_RUN = "smollm2-135m-instruct-4e6f1ffc2d1b"
_STRING: dict[str, Any] = {"schema": {"type": "string", "format": "binary"}}


class ProblemDetails(BaseModel):
    """RFC 9457 problem details."""

    type: str = Field(examples=["urn:theodolite:run-not-found"])
    title: str = Field(examples=["Not Found"])
    status: int = Field(examples=[404])
    detail: str = Field(description="What is wrong, the value, what is allowed, what to do.")


class RunLine(BaseModel):
    """The short description of a run."""

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
    """The full description of a run."""

    run_id: str = Field(examples=[_RUN])
    state: str
    model: dict[str, Any] = Field(description="Family, sizes, revision, dtype, attention.")
    sets: dict[str, dict[str, Any]] = Field(description="Prompts, positions, tokens, shards committed, quarantined.")
    spec: dict[str, Any] = Field(description="The survey's spec.")
    parity: dict[str, Any] = Field(description="Parity certificate: captured activations against plain Hugging Face.")
    versions: dict[str, str]
    results: dict[str, dict[str, list[str]]] = Field(description="Dimensions of each variable of each result group.")


class VariableItem(BaseModel):
    """One array of a result group."""

    name: str = Field(examples=["auroc"])
    dims: list[str] = Field(examples=[["contrast", "site", "position", "layer"]])
    units: str = Field(examples=["1"])
    description: str
    dtype: str = Field(description="NumPy's name of the stored type.", examples=["float64"])
    interval: str | None = Field(
        description="Prefix of the arrays with its 95 % interval, `…_low` and `…_high`; null without one.",
        examples=["auroc"],
    )
    along_depth: bool = Field(description="Whether `/curves` and `/v1/compare` answer it.")


class GroupItem(BaseModel):
    """One result group of the register."""

    name: str = Field(examples=["separation"])
    title: str = Field(examples=["Separation"])
    order: int | None = Field(description="Rank in the report and on the page; null shows nothing.", examples=[2])
    is_analysis: bool = Field(description="Whether a spec may name it under `analyses`.")
    is_read_whole: bool = Field(description="Whether `/v1/runs/{run_id}/{group}` answers it.")
    tables: list[str] = Field(examples=[["separation"]])
    needs: list[str] = Field(description="prompts, contrasts, weights or resid_pre.", examples=[["contrasts"]])
    options: str | None = Field(description="Part of the spec with its options.", examples=["gram"])
    variables: list[VariableItem]


class GroupList(BaseModel):
    """The register of result groups, in the order in which they are computed."""

    items: list[GroupItem]


class CurveItem(BaseModel):
    """One statistic of one set or contrast along the layers."""

    statistic: str = Field(examples=["cosine_of_means_debiased"])
    contrast: str | None = Field(None, description="Only for a statistic of contrasts.", examples=["refusal"])
    set: str | None = Field(None, description="Only for a statistic of prompt sets.")
    site: str | None = Field(None, description="Absent for a statistic of whole blocks.", examples=["resid_pre"])
    position: int = Field(description="Token position from the end.", examples=[-1])
    n: dict[str, int] = Field(description="Numbers of prompts.", examples=[{"n_positive": 256, "n_negative": 256}])
    units: str = Field(description="Units of value, low and high.", examples=["1"])
    description: str
    layer: list[int] = Field(description="0-based blocks.", examples=[[0, 1]])
    depth: list[int] = Field(description="Along the stream in half-blocks; 0-pre is 0, 0-mid is 1.", examples=[[0, 2]])
    value: list[float | None] = Field(description="Null for a missing value.", examples=[[1.0, 0.9998]])
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
    """The form of `xarray.Dataset.from_dict`: each variable has `dims`, `attrs` (units, description) and `data`."""

    coords: dict[str, Any]
    data_vars: dict[str, Any]
    dims: dict[str, int]
    attrs: dict[str, Any]


class Atlas(BaseModel):
    """Leading singular value, ranks and alignment of every head, (layer, head)."""

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
    coverage_99: int = Field(description="First rank at which their cumulative sum exceeds 99 % of the total.")
    effective_rank: float | None
    stable_rank: float | None
    copying_score: float | None
    tokens: list[dict[str, Any]] = Field(description=f"Rows: {', '.join(TOKEN_COLUMNS)}; none without `words`.")


class GroupAnswer(BaseModel):
    """A result group, or a part of it."""

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
    """The names of a run's sections."""

    run_id: str = Field(examples=[_RUN])
    items: list[str] = Field(examples=[["curves", "separation"]])


class SectionAnswer(BaseModel):
    """The sections of one result group."""

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
        description="For each run: the depths of its smallest debiased cosine and of the first separation of its sets."
    )


class Job(BaseModel):
    """A survey that was submitted."""

    id: str = Field(description="The spec's digest.", examples=["0123456789abcdef" * 4])
    name: str | None
    model: str
    state: str = Field(description="queued, running, succeeded, failed, stopped or lost.")
    attempt: int = Field(description="Number of this attempt on the cluster.", examples=[1])
    submitted: str
    reason: str | None = Field(description="Why it is lost or failed, if the cluster says so.")
    run_id: str | None = Field(description="Null until it is known.", examples=[_RUN])
    progress: dict[str, dict[str, int]] = Field(description="Committed prompts and all prompts, by set.")
    yours: bool = Field(description="Whether this caller may stop it and read its logs.")


class JobList(BaseModel):
    """A page of jobs, newest first."""

    items: list[Job]
    next: str | None


def described(model: type[BaseModel], *, flat: bool = False, status: int = 200) -> dict[int | str, dict[str, Any]]:
    """Return OpenAPI's description of a route's answers.

    Args:
        model: the schema of JSON.
        flat: whether Parquet and Arrow are offered too.
        status: the status of a successful answer.
    """
    forms = {PARQUET: _STRING, **({ARROW: _STRING} if HAS_ARROW else {})} if flat else {}
    unchanged = {"description": "Not modified: the ETag is still that of If-None-Match."}
    return {status: {"model": model, "content": forms}, 304: unchanged, **problems_of()}


def problems_of() -> dict[int | str, dict[str, Any]]:
    """Return OpenAPI's description of a route's problems."""
    descriptions = {
        401: "No token, or one that is wrong or has expired.",
        403: "The token lacks the scope, or the origin is foreign.",
        404: "No such run, or no such results.",
        406: "The client accepts no form that is offered.",
        409: "The run is not complete, or damaged.",
        421: "The Host is not a name of this service.",
        422: "A parameter is wrong; the detail lists what is allowed.",
        503: "The store or the cluster cannot be reached.",
    }
    shape = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemDetails"}}}
    return {code: {"description": text, "content": shape} for code, text in descriptions.items()}
