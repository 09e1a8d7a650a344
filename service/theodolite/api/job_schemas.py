"""Describe survey jobs, uploads and checked specs for OpenAPI."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field

from theodolite.api.schemas import EXAMPLE_RUN
from theodolite.prompt_values import Text
from theodolite.spec_parts import Part


class CheckedSpec(BaseModel):
    """A valid spec."""

    valid: bool = Field(description="True; an invalid spec is a problem.")
    id: str = Field(description="Digest of the spec, the id of its survey job.", examples=["0123456789abcdef" * 4])
    has_cluster: bool = Field(description="Whether the service has a Ray cluster; it refuses survey jobs without one.")
    spec: dict[str, Any] = Field(description="The spec with its defaults.")


class SpecText(Part):
    """The text of a spec."""

    text: str = Field(description="YAML or JSON.", examples=["model: {id: smollm2-135m-instruct}"])


class ParsedText(BaseModel):
    """The mapping in the text of a spec."""

    spec: dict[str, Any] = Field(description="The mapping, without defaults, not checked.")


class EstimateState(BaseModel):
    """An estimate that is not known yet."""

    state: Literal["running"] = Field(description="The cluster computes the estimate.")


class Estimate(BaseModel):
    """The estimated cost of a survey, as `theodolite plan` prints it."""

    run_id: str = Field(description="Id that the run will have on this kind of device.", examples=[EXAMPLE_RUN])
    batch_tokens: int = Field(description="Token budget of a batch.")
    shard_prompts: int = Field(description="Number of prompts in a shard.")
    model: dict[str, Any] = Field(description="Name, revision, parameters, dtype and sizes of the model.")
    sets: dict[str, dict[str, Any]] = Field(
        description="By prompt set: prompts, template, positions, tokens, computed_tokens (those that prompts share "
        "count once), shards and batches; n_skipped and n_truncated (too long prompts that are left out, and that are "
        "cut) if they are not 0; dataset_commit of a hub dataset."
    )
    replica_memory_bytes: int = Field(description="Memory of one replica of the model.")
    stored_bytes_at_most: int = Field(description="Bytes of the stored activations before compression.")
    parts_about: dict[str, dict[str, Any]] = Field(
        description="For the capture, each requested analysis and their total: seconds by device, those of analyses on "
        "one core, and stored bytes before compression. The tasks of an analysis run on all cores; only the capture "
        "and effects run on a GPU."
    )
    on_request_about: dict[str, dict[str, Any]] = Field(
        description="The same for the analyses that the spec could request besides."
    )
    on_gpus_about: dict[str, dict[str, Any]] = Field(
        description="By kind of GPU: sizes of batches and shards, GPUs per replica, hours on one node of 8 GPUs, and "
        "GPU hours and US dollars per million prompts."
    )
    example: dict[str, Any] | None = Field(
        None,
        description="The first prompt of a set as the model reads it: `set`; `parts`, each a `text` of tokens and "
        "whether it `is_measured`; `is_cut`, whether earlier tokens are left out; and `is_harmful`, whether it is of "
        "the built-in harmful set, which is chosen if there is no other. Absent if the service shows no prompts.",
    )
    tokens_counted_by: str = Field(description="What counted the tokens.")
    warnings: list[str] = Field([], description="Warnings about the prompts; absent if there are none.")


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("must have at least one word")
    return text


class Sentence(Part):
    """The sentence of a small survey."""

    sentence: Annotated[Text, AfterValidator(_not_blank)] = Field(
        description="The sentence; no template is applied.", examples=["To kill two birds with one stone"]
    )


class Upload(BaseModel):
    """A prompt file in the store."""

    source: str = Field(description="The `source` of a prompt set that reads the file.", examples=["upload:DIGEST.csv"])
    bytes: int = Field(description="Size of the file.")


class StoredUpload(BaseModel):
    """An upload of a caller."""

    source: str = Field(description="The `source` of a prompt set that reads the file.", examples=["upload:DIGEST.csv"])
    bytes: int | None = Field(description="Size of the file; null if it is missing: upload it again.")
    uploaded: str | None = Field(
        description="Time of the last upload of the file, ISO 8601; null if its record is damaged: upload it again."
    )
    expires: str | None = Field(description="Time after which the upload is removed; null if it is unknown.")


class UploadList(BaseModel):
    """A page of uploads, last uploaded first."""

    items: list[StoredUpload]
    next: str | None = Field(description="Cursor of the next page; null on the last page.")


class Job(BaseModel):
    """A survey job: a survey that a client submitted to the cluster."""

    id: str = Field(description="Digest of the spec.", examples=["0123456789abcdef" * 4])
    name: str | None = Field(description="Label from the spec.")
    model: str = Field(description="The spec's model id.")
    state: str = Field(description="queued, running, succeeded, failed, stopped or lost.")
    attempt: int = Field(description="Number of the last attempt on the cluster; the first is 1.", examples=[1])
    submitted: str = Field(description="Time at which the attempt was submitted, ISO 8601.")
    reason: str | None = Field(description="Reason why the job failed or is lost; null if it is unknown.")
    run_id: str | None = Field(
        description="Id of its run; null until the job has determined it, and after the run was deleted.",
        examples=[EXAMPLE_RUN],
    )
    progress: dict[str, dict[str, int]] = Field(
        description="By prompt set: committed prompts (`done`) and all prompts (`total`)."
    )
    spec: dict[str, Any] = Field(description="The submitted spec.")
    yours: bool = Field(description="Whether this token may stop the job and read its logs.")


class JobList(BaseModel):
    """A page of survey jobs, newest first."""

    items: list[Job]
    next: str | None = Field(description="Cursor of the next page; null on the last page.")
