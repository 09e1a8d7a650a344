"""Describe the responses for OpenAPI: names, units, examples. The service does not validate responses with them."""

from typing import Any

from pydantic import BaseModel, Field

from theodolite.overview.facts import Badge
from theodolite.overview.tiles import Tile
from theodolite.query.heads import TOKEN_COLUMNS
from theodolite.store.labels import Labels

EXAMPLE_RUN = "smollm2-135m-instruct-119a33e2a535"


class ProblemDetails(BaseModel):
    """RFC 9457 problem details."""

    type: str = Field(description="URN of the kind of problem.", examples=["urn:theodolite:run-not-found"])
    title: str = Field(description="Name of the HTTP status.", examples=["Not Found"])
    status: int = Field(description="HTTP status.", examples=[404])
    detail: str = Field(description="The problem, the given value, the allowed values, and what to do.")


class OfRun(BaseModel):
    """A response about one run."""

    run_id: str = Field(description="Id of the run.", examples=[EXAMPLE_RUN])


class RunLine(OfRun):
    """The short description of a run."""

    name: str | None = Field(description="Name of the run: the one among its labels, or else that of its spec.")
    tags: list[str] = Field(description="Tags that people gave the run.", examples=[["paper"]])
    model: str | None = Field(description="Name of the model.", examples=["SmolLM2-135M-Instruct"])
    sets: dict[str, int] = Field(
        description="Number of prompts of each set.", examples=[{"harmful": 256, "harmless": 256}]
    )
    contrasts: list[str] = Field(description="Names of the contrasts.", examples=[["refusal"]])
    analyses: list[str] = Field(description="Finished analyses.")
    unfinished: list[str] = Field(description="Analyses that were requested and are not finished.")
    state: str = Field(
        description="complete; captured (results are missing); capturing; damaged; or unreadable (of another version)."
    )
    created: str = Field(description="Time of creation, ISO 8601.")


class LabelsOfRun(OfRun, Labels):
    """The labels of a run: what people wrote about it after its survey."""


class RunList(BaseModel):
    """A page of runs, newest first."""

    items: list[RunLine]
    next: str | None = Field(description="Cursor of the next page; null on the last page.")


class RunDetails(OfRun):
    """The full description of a run."""

    name: str | None = Field(description="Name of the run: the one among its labels, or else that of its spec.")
    tags: list[str] = Field(description="Tags that people gave the run.", examples=[["paper"]])
    remarks: str = Field(description="Remarks that people wrote about the run.")
    state: str = Field(description="complete, captured (results are missing) or capturing.")
    model: dict[str, Any] = Field(description="Name, family, revision, dtype, attention kernel and sizes of the model.")
    sets: dict[str, dict[str, Any]] = Field(
        description="By prompt set: numbers of prompts, tokens, committed shards and quarantined prompts; positions."
    )
    spec: dict[str, Any] = Field(description="The survey's spec, without values that are the default.")
    parity: dict[str, Any] = Field(
        description="Parity certificate: errors of captured activations relative to plain Hugging Face."
    )
    versions: dict[str, str] = Field(description="Versions of the packages that captured the run.")
    results: dict[str, dict[str, list[str]]] = Field(description="Dimensions of each variable of each analysis.")


class VariableItem(BaseModel):
    """One array of an analysis."""

    name: str = Field(description="Name of the variable.", examples=["auroc"])
    dims: list[str] = Field(
        description="Dimensions, in order; the last one of a statistic with a 95 % interval is `estimate`.",
        examples=[["contrast", "site", "position", "layer", "estimate"]],
    )
    units: str = Field(description="Units; 1 for a dimensionless number.", examples=["1"])
    description: str = Field(description="One sentence about the variable.")
    dtype: str = Field(description="NumPy dtype of the stored array.", examples=["float64"])
    curves: list[str] = Field(
        description="The statistics by which `/curves` returns it, one at each label of its axes."
    )


class ColumnItem(BaseModel):
    """One column of a table."""

    name: str = Field(description="Name of the column.", examples=["score"])
    description: str = Field(description="One sentence about the column.")
    units: str = Field(description="Units of its numbers; 1 for a dimensionless one, empty for labels.", examples=["1"])


class TableItem(BaseModel):
    """One table of an analysis."""

    name: str = Field(description="Name of the table.", examples=["prompt_scores"])
    description: str = Field(description="One sentence about the table.")
    columns: list[ColumnItem] = Field(description="Its columns, in order.")


class ProfileItem(BaseModel):
    """One statistic along depth that `/v1/compare` accepts."""

    name: str = Field(description="Name of the statistic.", examples=["effective_rank@circuit=qk"])
    variable: str = Field(description="The stored array that it is computed from.", examples=["effective_rank"])
    dims: list[str] = Field(description="Its dimensions.", examples=[["layer"]])
    description: str = Field(description="One sentence about the statistic.")


class AnalysisItem(BaseModel):
    """One analysis of the registry."""

    name: str = Field(description="Name of the analysis.", examples=["separation"])
    title: str = Field(description="Title of its sections.", examples=["Separation"])
    chapter: str = Field(description="The chapter of the report that shows it; empty if none does.")
    is_requestable: bool = Field(description="Whether a spec may list it under `analyses`.")
    tables: list[TableItem] = Field(description="Its tables.")
    needs: list[str] = Field(
        description="Required inputs: prompts, contrasts, weights, experts, or the name of a site.",
        examples=[["contrasts"]],
    )
    options: str | None = Field(description="Field of the spec with its options.", examples=["gram"])
    variables: list[VariableItem] = Field(description="Its arrays.")
    labels: dict[str, list[str | float]] = Field(
        description="The labels of those dimensions that are the same in every run.",
        examples=[{"estimate": ["value", "low", "high", "band_low", "band_high"]}],
    )
    profiles: list[ProfileItem] = Field(description="Its statistics that `/v1/compare` accepts.")


class AnalysisList(BaseModel):
    """The registry of analyses, in the order of the report."""

    items: list[AnalysisItem]


class CurveItem(BaseModel):
    """One statistic of one set or contrast along the layers."""

    statistic: str = Field(
        description="Name of the statistic, with the labels of its axes except `space=raw`.",
        examples=["cosine_of_means_debiased", "variance_mean@space=sphere"],
    )
    contrast: str | None = Field(None, description="Contrast, only for a statistic of contrasts.", examples=["refusal"])
    set: str | None = Field(None, description="Prompt set, only for a statistic of prompt sets.")
    site: str | None = Field(
        None, description="Site in the block; absent for a statistic of whole blocks.", examples=["resid_pre"]
    )
    position: int | str = Field(
        description="Token position from the end, -1 is the last token; with named positions a text.", examples=[-1]
    )
    n: dict[str, int] = Field(
        description="Numbers of prompts behind the curve.", examples=[{"n_positive": 256, "n_negative": 256}]
    )
    units: str = Field(description="Units of `value`, `low` and `high`; 1 for a dimensionless number.", examples=["1"])
    description: str = Field(description="One sentence about the statistic.")
    layer: list[int] = Field(description="0-based indices of the blocks.", examples=[[0, 1]])
    depth: list[int] = Field(
        description="Depth of each point in half-blocks: 0 enters block 0, 1 is after its attention.", examples=[[0, 2]]
    )
    value: list[float | None] = Field(
        description="The statistic at each layer; null for a missing value.", examples=[[1.0, 0.9998]]
    )
    low: list[float | None] | None = Field(
        description="Lower end of the 95 % interval of one depth; null without an interval."
    )
    high: list[float | None] | None = Field(description="Upper end of the 95 % interval; null without an interval.")
    band_low: list[float | None] | None = Field(
        description="Lower end of the band for all depths at once, also for one chosen for its value; null without one."
    )
    band_high: list[float | None] | None = Field(description="Upper end of the band; null without a band.")


class CurvesAnswer(OfRun):
    """A page of curves."""

    items: list[CurveItem]
    next: str | None = Field(description="Cursor of the next page; null on the last page.")


class Direction(OfRun):
    """A unit vector of the residual stream."""

    contrast: str = Field(description="Contrast of two prompt sets.", examples=["refusal"])
    site: str = Field(description="Site in the block.", examples=["resid_pre"])
    layer: int = Field(description="0-based index of the block.", examples=[15])
    position: int | str = Field(
        description="Token position from the end, -1 is the last token; with named positions a text.", examples=[-1]
    )
    d_model: int = Field(description="Length of the vector.", examples=[3])
    direction: list[float] = Field(
        description="Difference of the means, positive minus negative, normalised to length 1.",
        examples=[[0.6, 0.0, -0.8]],
    )


class HeadCard(OfRun):
    """One circuit of one attention head."""

    name: str = Field(description="Layer and head, both 0-based.", examples=["L12H3"])
    circuit: str = Field(description="qk (W_Q R W_Kᵀ), ov (W_V W_O) or rotary (W_QR R W_KRᵀ).", examples=["qk"])
    offset: int = Field(description="Query position minus key position.")
    offsets: list[int] = Field(description="All offsets at which the circuit was decomposed.", examples=[[0, 1, 4, 16]])
    singular_values: list[float] = Field(description="Singular values in descending order.")
    coverage_99: int = Field(
        description="First rank at which the cumulative sum of the singular values exceeds 99 % of their sum."
    )
    effective_rank: float | None = Field(description="exp of the entropy of σ/Σσ.")
    stable_rank: float | None = Field(description="Σσ² divided by the largest σ².")
    copying_score: float | None = Field(description="Near 1 if tokens, on the whole, raise their own logits.")
    written: dict[str, dict[str, float | None]] = Field(
        description="By contrast: the `share` of the distance of the means that the head writes, and its `z` and "
        "`p_family` against permuted labels; empty if the run has no `contributions`.",
        examples=[{"refusal": {"share": 0.038, "z": 1.2, "p_family": 0.99}}],
    )
    tokens: list[dict[str, Any]] = Field(
        description="Tokens of the leading singular vectors on both sides, one row each, with the columns "
        f"{', '.join(TOKEN_COLUMNS)}; empty if the run has no `words`."
    )


class TableRows(OfRun):
    """A page of a table's rows."""

    table: str = Field(description="Name of the table.", examples=["growth"])
    total: int = Field(description="Number of rows that pass the conditions, over all pages.")
    columns: dict[str, str] = Field(
        description="The columns in their order, with the type of their values: number, boolean or text.",
        examples=[{"quantity": "text", "position": "number", "origin_at_limit": "boolean"}],
    )
    items: list[dict[str, Any]] = Field(description="Rows of this page.")
    next: str | None = Field(description="Cursor of the next page; null on the last page.")


class ScorePlace(BaseModel):
    """Where prompts are scored."""

    contrast: str = Field(description="Contrast whose direction is used.", examples=["refusal"])
    site: str = Field(description="Site in the block.", examples=["resid_mid"])
    layer: int = Field(description="0-based index of the block.", examples=[29])
    position: int | str = Field(
        description="Token position from the end, -1 is the last token; with named positions a text.", examples=[-1]
    )


class PromptItem(BaseModel):
    """A prompt and its held-out score."""

    sample: int = Field(description="Index of the prompt in its set.", examples=[0])
    text: str | None = Field(description="The prompt; null if the service does not show prompts.")
    n_tokens: int = Field(description="Number of its tokens, template included.", examples=[46])
    status: str = Field(description="ok or quarantined.", examples=["ok"])
    error: str = Field(description="Reason of a quarantine; empty for other prompts.", examples=[""])
    score: float | None = Field(
        description="Distance from the midpoint of the two sets along the direction of the other folds, in pooled "
        "standard deviations; positive on the side of the positive set; null without a score."
    )
    margin: float | None = Field(
        description="The score with the sign of the prompt's own side; a negative margin is a wrong classification."
    )


class SidePromptItem(PromptItem):
    """A prompt of one of the sets of a contrast."""

    set: str = Field(description="Name of its prompt set.", examples=["harmful"])
    side: str = Field(description="Its side of the contrast: positive or negative.", examples=["positive"])


class _PromptCounts(OfRun):
    place: ScorePlace | None = Field(description="Where the prompts are scored; null if they have no scores.")
    total: int = Field(description="Number of selected prompts, over all pages.")
    n_scored: int = Field(
        description="Number of selected prompts with a score, over all pages: at most the first 10,000 of a set."
    )
    n_wrong: int = Field(description="Number of selected prompts with a negative margin, over all pages.")
    next: str | None = Field(description="Cursor of the next page; null on the last page.")


class PromptPage(_PromptCounts):
    """A page of the prompts of a set."""

    set: str = Field(description="Name of the prompt set.", examples=["harmful"])
    items: list[PromptItem]


class ContrastPromptPage(_PromptCounts):
    """A page of the prompts of both sets of a contrast."""

    items: list[SidePromptItem]


class ScoresAnswer(OfRun):
    """The held-out scores of both sets of a contrast at one depth, as a figure."""

    place: ScorePlace = Field(description="Where the prompts are scored.")
    sentence: str = Field(description="How many prompts of each set lie on the other set's side.")
    figure: dict[str, Any] = Field(description="The scores, in Plotly's JSON.")


class PromptAnswer(OfRun):
    """One prompt's held-out scores along depth."""

    set: str = Field(description="Name of the prompt set.", examples=["harmful"])
    sample: int = Field(description="Index of the prompt in its set.", examples=[0])
    text: str | None = Field(description="The prompt; null if the service does not show prompts.")
    contrast: str = Field(description="Contrast whose direction is used.", examples=["refusal"])
    position: int | str = Field(
        description="Token position from the end, -1 is the last token; with named positions a text.", examples=[-1]
    )
    items: list[dict[str, Any]] = Field(
        description="One row for each depth: site, layer, depth, score, margin, and the 5 % and 95 % quantiles of the "
        "scores of both sets: low_positive, high_positive, low_negative, high_negative."
    )
    figure: dict[str, Any] = Field(description="The scores by depth, in Plotly's JSON.")


class Finding(BaseModel):
    """The main result of a section."""

    text: str = Field(description="One or more sentences, with interval, number of prompts and null.")
    group: str = Field(description="Analysis that shows it.", examples=["separation"])
    figure: str = Field(description="Name of the first figure of its section; empty if there is none.")


class ConclusionAnswer(OfRun):
    """The conclusion of a run, as sentences."""

    asked: list[str] = Field(description="What was asked.")
    found: list[Finding] = Field(description="What was found: answers and passed tests first; at most five findings.")
    rests_on: list[str] = Field(description="Prompts, and the check of the captured activations.")
    limits: list[str] = Field(description="What the findings do not say.")


class OverviewAnswer(OfRun):
    """The overview of a contrast."""

    contrast: str = Field(description="The contrast.")
    contrasts: list[str] = Field(description="All contrasts with an overview.")
    site: str = Field(description="Site of the selected depth.")
    layer: int = Field(description="Its 0-based block.")
    sentence: str = Field(description="The finding in one sentence.")
    quoted: str = Field(description="The sentence with the model and the warnings, for a quotation.")
    badges: list[Badge] = Field(description="What limits the finding.")
    tiles: list[Tile] = Field(description="The four questions with their answers: ✓ yes, ~ partly, ✗ no, ? not tested.")
    html: str = Field(description="The overview as HTML with its figures in SVG; /static/overview.css is its style.")


class SectionList(OfRun):
    """The analyses that have sections."""

    items: list[str] = Field(
        description="Names of the analyses, in the order of the report.", examples=[["curves", "separation"]]
    )


class SectionAnswer(OfRun):
    """The sections of one analysis."""

    group: str = Field(description="Name of the analysis.", examples=["gram"])
    items: list[dict[str, Any]] = Field(
        description="Sections: title, facts (sentences), notes, how_to_read, figures (names), maps (names), tables."
    )


class FigureAnswer(BaseModel):
    """A figure in Plotly's JSON."""

    data: list[dict[str, Any]] = Field(description="Traces.")
    layout: dict[str, Any] = Field(description="Axes, titles and colours.")


class Comparison(BaseModel):
    """The same statistics of several runs, on relative depth."""

    statistics: dict[str, str] = Field(
        description="One sentence about each statistic.",
        examples=[{"cosine_of_means_debiased": "Cosine between the means of the two sets, without the bias of noise."}],
    )
    items: list[dict[str, Any]] = Field(
        description="One row for each point, with run_id, name, model, contrast, site, layer, position, depth, "
        "relative_depth (1 is the end of the last block), value, and low and high of the 95 % interval."
    )
    milestones: list[dict[str, Any]] = Field(
        description="One row for each run: the depths of its smallest debiased cosine, of its largest AUROC, of the "
        "first AUROC above permuted labels, and that from which on its sets are separated."
    )
    differences: list[dict[str, Any]] = Field(
        description="The options in which the specs differ: the option's path in the spec, and its value by run id.",
        examples=[[{"option": "model.id", "values": {"a-0123456789ab": "org/a", "b-0123456789ab": "org/b"}}]],
    )
    auroc_difference: list[dict[str, Any]] = Field(
        description="The AUROC of the first run minus that of the second, with depth, relative_depth, value, and low "
        "and high of the simultaneous 95 % band; empty unless two runs have the same prompts and number of blocks."
    )
    figure: dict[str, Any] = Field(description="The curves, in Plotly's JSON.")
    scores_figure: dict[str, Any] | None = Field(
        description="The score of each prompt in the second run against that in the first, each where the run "
        "separates best, in Plotly's JSON; null unless two runs have scores of the same prompts."
    )
    width_figure: dict[str, Any] | None = Field(
        description="The medians over depth against d_model, in Plotly's JSON; null if all models have one width."
    )
