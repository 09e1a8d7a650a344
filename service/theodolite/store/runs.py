"""Create, open and list the runs of a store."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from typing_extensions import TypedDict

from theodolite.errors import RunDamagedError, RunNotFoundError, StoreVersionError, one_line
from theodolite.shard_bounds import MOST_REDUCED_PROMPTS, ShardBounds
from theodolite.sites import Site
from theodolite.spec import SurveySpec
from theodolite.spec_parts import LABEL, ModelSpec
from theodolite.store.cache import Cache, Value
from theodolite.store.checksums import seal, unseal
from theodolite.store.layout import COMPLETE, FORMAT, REPORT, RUN_RECORD
from theodolite.store.objects import (
    Location,
    absolute,
    folders,
    get,
    join,
    open_location,
    put_new,
    refuse_link,
    version,
)

RANDOM_WEIGHTS = "random weights"
"""The suffix of the name of a model that was surveyed with random weights."""

# A damaged record may hold any number, and arrays have these lengths and labels.
_Size = Annotated[int, Field(ge=1, le=2**24)]
_Labels = Annotated[list[Annotated[int, Field(ge=-(2**31), lt=2**31)]], Field(min_length=1)]
_Position = Annotated[int, Field(ge=-(2**31), lt=2**31)] | Annotated[str, Field(pattern=LABEL)]


class AdapterFacts(BaseModel):
    """Facts about an adapter that was merged into the model before everything else."""

    model_config = ConfigDict(frozen=True)

    name: str
    kind: str
    place: str
    revision: str
    method: str  # such as `LoRA` or `DoRA`
    ranks: tuple[int, int]  # the smallest and the largest rank of its matrices
    matrices: int  # that it changes or replaces
    vectors: int = 0  # that it replaces, such as biases
    base: str | None = None  # the base that its own settings name
    tokenizer: bool = False  # whether the tokenizer or the chat template is that of the adapter
    vocabulary: int | None = None  # the number of tokens, if it has an embedding of another size than the base
    unties: bool = False  # whether the language-model head is no longer the token embedding

    @property
    def summary(self) -> str:
        """The name, the kind, the rank and the number of changed matrices, in words."""
        low, high = self.ranks
        rank = f" of rank {low}" if low == high else f" of ranks {low} to {high}"
        changed = f"{self.matrices} {'matrix' if self.matrices == 1 else 'matrices'}"
        vectors = f" and {self.vectors} {'vector' if self.vectors == 1 else 'vectors'}" if self.vectors else ""
        return f"{self.name} ({self.method}{rank if high else ''}, {changed}{vectors} changed)"


class ModelFacts(BaseModel):
    """Facts about the model, read from its configuration and weights."""

    model_config = ConfigDict(frozen=True)

    name: str
    kind: str
    place: str
    revision: str
    family: str
    dtype: str
    attention: str
    n_layers: _Size
    d_model: _Size
    n_heads: _Size
    n_kv_heads: _Size
    d_head: _Size
    head_widths: tuple[int, ...] | None = None  # by layer, if layers differ; `d_head` and `n_kv_heads` are of the first
    context_length: int = Field(ge=1)
    weights: Literal["trained", "random"] = "trained"
    seed: int | None = None  # of random weights
    text_model: str | None = None  # the surveyed part: the family of a multimodal model's text part, or `encoder`
    dequantised_from: str | None = None  # the format of quantised weights, which are dequantised before everything else
    tokenizer_fixes: tuple[str, ...] = ()  # mistakes that were mended
    left_out: str | None = None  # what the checkpoint has and a survey does not use, such as multi-token prediction
    adapter: AdapterFacts | None = None

    @property
    def revisions(self) -> str:
        """The revision, and that of the adapter; equal weights have equal texts."""
        return self.revision if self.adapter is None else f"{self.revision}+{self.adapter.revision}"

    def pinned(self, model: ModelSpec) -> ModelSpec:
        """Return the model of the run's spec at the revisions of the run; only models on the hub have revisions.

        The spec of an adapter alone becomes that of its base on the hub and the adapter.
        """
        revision = self.revision if self.kind == "hub" else None
        if self.adapter is None:
            return model.model_copy(update={"revision": revision} if revision else {})
        own = self.adapter.revision if self.adapter.kind == "hub" else None
        if model.adapter is not None:
            return model.model_copy(update={"revision": revision, "adapter_revision": own})
        if revision is None:
            return model
        both = {"id": self.place, "revision": revision, "adapter": model.id, "adapter_revision": own}
        return model.model_copy(update=both)


class SetFacts(BaseModel):
    """Facts about one prompt set, as it was tokenised and planned."""

    model_config = ConfigDict(frozen=True)

    n_samples: int
    n_shards: int
    n_batches: int
    plan_sha256: str
    positions: list[_Position] = Field(min_length=1)
    """The labels of the captured positions. In a run with named positions they are texts, such as `-1`."""
    template: str
    shared_prefix: int
    tokens: int
    computed_tokens: int
    token_ids_sha256: str
    n_first: int  # prompts whose earliest captured position is their first token
    n_first_named: dict[str, int] = {}
    """Prompts whose first token is measured at each position of a set with named positions, by label."""
    n_units: int = Field(ge=0, le=2**24)
    """Hidden units of each MLP whose activity is counted, or 0."""
    n_experts: int = Field(0, ge=0, le=2**15)
    """Experts of a layer among which its router chooses, or 0 if experts are not recorded."""
    n_choices: int = Field(0, ge=0, le=2**15)
    """Experts that a token uses in a layer, or 0 if they are not recorded."""
    n_spelled: int = 0
    """Prompts that spell special tokens of the tokenizer, which are encoded as plain text."""
    parts: list[str] = []
    """Roles whose content the chat template got as a list of parts, and not as a text."""
    has_conversations: bool = False
    """Whether the prompts are conversations; the table of prompts then has the JSON of their messages as texts."""
    n_skipped: int = Field(0, ge=0)
    """Prompts that `too_long: skip` left out."""
    n_truncated: int = Field(0, ge=0)
    """Prompts that were cut to fit into the model's context."""
    dataset_commit: str | None = None
    """The commit of the hub dataset from which the prompts were read."""


class PartialSite(BaseModel):
    """A captured site that only some blocks of a hybrid have."""

    model_config = ConfigDict(frozen=True)

    layers: _Labels  # of the model, whether they were captured or not
    reason: str  # why the other layers lack it


class Parity(TypedDict, total=False):
    """The fields of a parity certificate that are read again; it has more, and none in a survey of the weights."""

    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc]

    prompts: int
    dtype: str
    attention: str
    device: str
    ranks: int
    sites_known_by: str
    post_norm: bool
    branches_add: bool
    bound: float | None
    max_error: float
    identity_error: float
    float32_blocks_max_error: float | None
    float32_distances: dict[str, dict[str, list[float]]] | None
    routing: str
    routing_flips: int
    routed: int
    warning: str | None


class RunRecord(BaseModel):
    """The content of run.json: the spec, and the values it was resolved to. It is written once and never changes."""

    model_config = ConfigDict(frozen=True)

    format: int = FORMAT
    run_id: str
    digest: str
    created: datetime
    spec: SurveySpec
    model: ModelFacts
    layers: _Labels
    sets: dict[str, SetFacts]
    parity: Parity
    versions: dict[str, str]
    partial_sites: dict[Site, PartialSite] = {}
    warnings: list[str] = []
    """Sentences about prompts and templates that may be a mistake, as the survey printed them."""

    def has_site(self, site: Site, layer: int) -> bool:
        """Return whether a layer of the model has a captured site; its activations are NaN at the other layers."""
        return site not in self.partial_sites or layer in self.partial_sites[site].layers

    def has_site_at(self, site: Site, index: int) -> bool:
        """Return the same for an index into the run's layers; every index has `resid_final`."""
        return self.has_site(site, self.layers[index])

    def bounds(self, prompt_set: str) -> ShardBounds:
        """Return the bounds of the shards of a set."""
        return self.spec.bounds(prompt_set, self.sets[prompt_set].n_samples)


@dataclass(frozen=True)
class Run:
    """An existing run of the store with this URL, with the content of its run.json."""

    store: str
    record: RunRecord
    cache: Cache | None = field(default=None, compare=False, repr=False)  # None reads each object again every time
    # The content of COMPLETE at the first read, if there is a cache: all reads for one response see the same state.
    complete_snapshot: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)
    served: Location | None = field(default=None, compare=False, repr=False)  # the objects of a run of a service

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the opened store: Dask's scheduler, which passes runs on to its workers, may not reach it.

        The path of a store becomes an absolute one, because a worker may have another working folder.
        """
        state = {name: value for name, value in self.__dict__.items() if name != "location"}
        return {**state, "store": absolute(self.store)}

    @property
    def id(self) -> str:
        """The run's id."""
        return self.record.run_id

    @property
    def url(self) -> str:
        """URL of the run's objects."""
        return run_url(self.store, self.id)

    @cached_property
    def location(self) -> Location:
        """The run's objects."""
        return open_location(self.url) if self.served is None else self.served

    @property
    def report(self) -> str:
        """URL of the report."""
        return join(self.url, REPORT)

    def cached(self, key: tuple[Hashable, ...], read: Callable[[], Value], size: Callable[[Value], int]) -> Value:
        """Return a value of the run, through its cache if it has one; see `Cache.get`."""
        return read() if self.cache is None else self.cache.get((self.url, *key), read, size)

    def refreshed(self) -> "Run":
        """Return the same run without the snapshot of COMPLETE, so that the next read fetches it again."""
        return replace(self, complete_snapshot={})


def run_url(store: str, run_id: str) -> str:
    """Return the URL of a run."""
    return join(store, "runs", run_id)


def create_run(store: str, record: RunRecord) -> Run:
    """Write run.json and return the run; if the run exists already, return it: the same id means the same spec."""
    location = open_location(run_url(store, record.run_id), create=True)
    if put_new(location, RUN_RECORD, seal(record.model_dump(mode="json"), indent=1)):
        return Run(store, record)
    return open_run(store, record.run_id)


def find_run(store: str, run_id: str, cache: Cache | None = None, served: Location | None = None) -> Run | None:
    """Return a run, or None if it does not exist; raises as `open_run` does for one that cannot be read.

    Args:
        store: URL of the store, or of a service.
        run_id: the run's id.
        cache: the cache of what is read.
        served: the run's objects, if a service reads them.
    """
    if served is None:
        refuse_link(open_location(store), f"runs/{run_id}")
    location = open_location(run_url(store, run_id)) if served is None else served
    written = version(location, RUN_RECORD)
    if written is None:
        return None

    def read() -> RunRecord:
        return _parse_record(run_id, get(location, RUN_RECORD) or b"")

    record = read() if cache is None else cache.get(("run", store, run_id, written), read, lambda _: 20_000)
    return Run(store, record, cache, served=served)


def open_run(store: str, run_id: str, cache: Cache | None = None) -> Run:
    """Return a run of the store with this URL.

    Raises:
        RunNotFoundError: the run does not exist; the message lists the existing runs.
        StoreVersionError: the run has another format than this version reads.
        RunDamagedError: run.json is missing or cannot be read.
    """
    run = find_run(store, run_id, cache)
    if run is None:
        known = list_run_ids(store)
        if run_id in known:
            if version(open_location(run_url(store, run_id)), COMPLETE) is not None:
                raise _damaged(run_id, "is missing")
            raise RunDamagedError(
                f"{run_id}: run.json is missing, and COMPLETE too: the survey did not start, or both are lost; run the "
                f"survey again, or `theodolite run verify {run_id} --repair` with --spec"
            )
        available = f"it has {', '.join(known)}" if known else "it has no runs yet"
        raise RunNotFoundError(f"the store {store} has no run {run_id!r}; {available}")
    return run


def open_run_at(url: str) -> Run:
    """Return the run with this URL; raises as `open_run` does."""
    store, _, run_id = url.rpartition("/runs/")
    return open_run(store, run_id)


def list_run_ids(store: str) -> list[str]:
    """Return the ids of all runs, sorted."""
    return folders(open_location(store), "runs")


def _parse_record(run_id: str, content: bytes) -> RunRecord:
    try:
        fields = unseal(content)
        written = fields.get("format")  # first, because another format may have other fields
        if type(written) is not int:
            raise ValueError("has no format")
        if written != FORMAT:
            raise StoreVersionError(
                f"{run_id} was written in format {written} of the store; this version reads format {FORMAT}"
            )
        record = RunRecord.model_validate(fields)
        if record.run_id != run_id or not set(record.sets) <= set(record.spec.sets):
            raise ValueError("belongs to another run, or its sets differ from those of its spec")
        for name, facts in record.sets.items():
            most = facts.n_shards * max(record.spec.capture.sizes.shard_prompts, MOST_REDUCED_PROMPTS)
            if not facts.n_shards <= facts.n_samples <= most:
                raise ValueError(f"has {facts.n_shards} shards for the {facts.n_samples} prompts of {name}")
        return record
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        where = ".".join(map(str, problem["loc"]))
        raise _damaged(run_id, f"is not a run record: {where}: {problem['msg'].lower()}") from error
    except ValueError as error:
        raise _damaged(run_id, str(error)) from error


def _damaged(run_id: str, problem: str) -> RunDamagedError:
    return RunDamagedError(f"{run_id}: run.json {one_line(problem)}; run `theodolite run verify {run_id} --repair`")
