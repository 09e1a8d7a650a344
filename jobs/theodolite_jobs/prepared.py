"""A survey that passed all checks that need no weights: what it will compute, its run id and its record."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

from theodolite.digests import digest_of
from theodolite.sites import Site
from theodolite.spec import Spans, SurveySpec, TokenIds
from theodolite.spec_parts import CaptureSpec, Label
from theodolite.store.layout import CAPTURE_VERSION
from theodolite.store.runs import ModelFacts, PartialSite, RunRecord, SetFacts
from theodolite.version import __version__
from theodolite_jobs.capture.plan import SetLayout, SetPlan, ShardPlan
from theodolite_jobs.models.adapter_source import adapter_notes
from theodolite_jobs.models.anatomy import (
    Dimensions,
    head_widths_of,
)
from theodolite_jobs.models.chat_templates import DEFAULT
from theodolite_jobs.models.convert.adapter_config import RULE as MERGE_RULE
from theodolite_jobs.models.convert.random_weights import RULE, SEED
from theodolite_jobs.models.facts import mlp_width
from theodolite_jobs.models.families import known_anatomy, text_model_of
from theodolite_jobs.models.load import resolved_dtype
from theodolite_jobs.models.quantised import DEQUANTISATION, dequantised_from
from theodolite_jobs.models.routers import Experts, captured_experts
from theodolite_jobs.models.source import (
    ModelSource,
    adapter_facts,
    slug,
    weight_format,
    weight_versions,
)
from theodolite_jobs.prompts.conversations import Prompt
from theodolite_jobs.prompts.tokens import Tokenized

_RECORDED_VERSIONS = ("torch", "transformers", "zarr", "numpy", "ray")


@dataclass(frozen=True)
class Prepared:
    """A survey that passed all checks that need no weights."""

    spec: SurveySpec  # as requested, with the sites that the model has, and the sizes of the plans
    requested: CaptureSpec  # options of the capture, in which sizes may be open
    folder: Path  # folder of the spec file
    source: ModelSource  # the model at its pinned revision
    config: Any  # the model's configuration
    dimensions: Dimensions
    layers: list[int]  # the layers to capture
    prompts: Mapping[str, list[Prompt]]  # of each set, as tokenised: without those left out, and cut if too long
    tokenized: Mapping[str, Tokenized]  # the token ids of each prompt of each set, and how they were made
    templates: Mapping[str, str]  # of each set: `chat`, `none` or a text with {prompt}
    positions: Mapping[str, tuple[Label, ...]]  # labels of the captured positions of each set
    plans: Mapping[str, SetPlan]  # shards and batches of each set
    spans: Mapping[str, Sequence[Spans]] = field(default_factory=dict)
    """The tokens of the positions of each prompt, of the sets with named positions."""
    warnings: Sequence[str] = ()  # about prompts and templates that may be a mistake
    mended: tuple[str, ...] = ()  # mistakes of the tokenizer that were mended
    left_out: str | None = None  # what the checkpoint has and a survey does not use
    read_facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """`dataset_commit`, `n_skipped` and `n_truncated` of each set, as in `SetFacts`, unless they are the default."""

    @property
    def tokens(self) -> dict[str, list[TokenIds]]:
        """The token ids of each prompt of each set."""
        return {name: one.tokens for name, one in self.tokenized.items()}

    @cached_property
    def digest(self) -> str:
        """The SHA-256 over the model, the contents of the selected prompts, and the capture rules.

        It excludes paths and resolves defaults, so equivalent specs give the same run.
        """
        spec = self.spec
        sets = {
            name: {
                "prompts": self.prompts[name],
                "template": self.templates[name],
                "chat_options": prompt_set.chat_options,
                "positions": self._rules(name),
                "n_spelled": self.tokenized[name].n_spelled,
            }
            for name, prompt_set in spec.sets.items()
        }
        model = {
            "place": self.source.location if self.source.kind == "hub" else self.source.kind,
            "revision": self.source.revision,
            "dtype": resolved_dtype(self.config, spec.model.dtype),
            "attention": spec.model.attention,
            "remote_code": spec.model.trust_remote_code,
            "tokenizer": self.mended,
        }
        if self.source.weights == "random":
            model |= {"weights": {"rule": RULE, "seed": SEED}}
        elif dequantised_from(self.config) is not None:
            model |= {"dequantisation": DEQUANTISATION}
        if spec.model.template not in (None, DEFAULT) and "chat" in self.templates.values():
            model |= {"template": spec.model.template}
        if (adapter := self.source.adapter) is not None:
            place = adapter.location if adapter.kind == "hub" else adapter.kind
            model |= {"adapter": {"place": place, "revision": adapter.revision, "rule": MERGE_RULE}}
        capture = spec.capture.model_dump(mode="json", exclude={"positions"})
        return digest_of({"capture_version": CAPTURE_VERSION, "model": model, "prompts": sets, "capture": capture})

    def spans_of(self, prompt_set: str) -> Sequence[Spans]:
        """Return the tokens of the positions of each prompt of a set."""
        layout = SetLayout(self.positions[prompt_set], 0)
        return self.spans.get(prompt_set) or list(map(layout.spans_of, self.tokens[prompt_set]))

    def _rules(self, prompt_set: str) -> Sequence[Any]:
        """Return the positions of a set, and how named ones are found."""
        if prompt_set not in self.spans:
            return self.positions[prompt_set]
        return [at if isinstance(at, int) else dict(at) for at in self.spec.positions_of(prompt_set)]

    @property
    def run_id(self) -> str:
        """The model's name and the first 12 hex digits of the digest."""
        return f"{slug(self.source.name)}-{self.digest[:12]}"

    @property
    def notes(self) -> list[str]:
        """What to say about the model before a survey: which adapter is merged into it."""
        return adapter_notes(adapter_facts(self.source, self.config), self.source.base_name)

    @property
    def run_blocks(self) -> int:
        """The number of blocks that a forward pass runs: without `resid_final`, none above the highest wanted layer."""
        return self.dimensions.n_layers if self.spec.capture.final else max(self.layers) + 1

    def counted_units(self, prompt_set: str) -> int:
        """Return the number of hidden units of each MLP whose activity is counted in a set, or 0.

        It is 0 for sets with `positions: all`, which feed only trajectories, and for models whose MLP width is unknown.
        """
        return 0 if self.spec.sets[prompt_set].positions == "all" else self._mlp_width

    @cached_property
    def _mlp_width(self) -> int:
        return mlp_width(self.config) or 0

    def recorded_experts(self, prompt_set: str) -> Experts | None:
        """Return the experts whose choice is recorded in a set; None for sets with `positions: all`, or without any."""
        return None if self.spec.sets[prompt_set].positions == "all" else self._experts

    @cached_property
    def _experts(self) -> Experts | None:
        return captured_experts(self.config, self.layers)

    def activation_bytes(self, shard: ShardPlan) -> int:
        """Return the bytes of the activations of a shard in float32, whether they are stored or reduced."""
        return (shard.stop - shard.start) * self.prompt_bytes(shard.prompt_set)

    def prompt_bytes(self, prompt_set: str) -> int:
        """Return the bytes of the activations of a prompt of a set in float32."""
        capture, sizes = self.spec.capture, self.dimensions
        vectors = len(self.layers) * len(capture.stream_sites) + capture.final  # at a position
        heads = len(self.layers) * (Site.HEAD_OUT in capture.sites) * sizes.n_heads * sizes.d_head
        return 4 * len(self.positions[prompt_set]) * (vectors * sizes.d_model + heads)

    @property
    def block_weights(self) -> int:
        """About how many weights of a block a token is multiplied with: those of attention and of the MLP."""
        d_model, mlp = self.dimensions.d_model, self._mlp_width or 4 * self.dimensions.d_model
        heads = 2 * (self.dimensions.n_heads + self.dimensions.n_kv_heads) * self.dimensions.d_head
        return d_model * (heads + 3 * mlp)

    def shard_bytes(self, shard: ShardPlan) -> int:
        """Return the bytes of what a shard stores, before compression."""
        values = len(self.positions[shard.prompt_set]) * len(self.layers)  # of one feature or unit at one site
        counts = 4 * values * self.counted_units(shard.prompt_set)
        if not shard.is_reduced:
            experts = self.recorded_experts(shard.prompt_set)
            chosen = 2 * (shard.stop - shard.start) * values * experts.n_choices if experts else 0
            return self.activation_bytes(shard) + counts + chosen
        # Means and sums of squares, unscaled and on the sphere, and two extremes, in float64; the rest is small.
        return 6 * 8 * values * len(self.spec.capture.stream_sites) * self.dimensions.d_model + counts

    def record(self, attention: str, parity: dict[str, Any]) -> RunRecord:
        """Return the content of run.json."""
        stored = weight_format(self.source, self.config)
        facts = ModelFacts(
            name=self.source.name,
            kind=self.source.kind,
            place=self.source.location if self.source.kind == "hub" else Path(self.source.location).name,
            revision=self.source.revision,
            family=self.config.model_type,
            text_model=text_model_of(self.config),
            dtype=resolved_dtype(self.config, self.spec.model.dtype),
            attention=attention,
            **asdict(self.dimensions),
            head_widths=head_widths_of(self.config),
            weights=self.source.weights,
            seed=SEED if self.source.weights == "random" else None,
            dequantised_from=stored,
            tokenizer_fixes=self.mended,
            left_out=self.left_out,
            adapter=adapter_facts(self.source, self.config),
        )
        versions = {name: version(name) for name in _RECORDED_VERSIONS} | weight_versions(facts)
        return RunRecord(
            run_id=self.run_id,
            digest=self.digest,
            created=datetime.now(UTC).replace(microsecond=0),
            spec=self.spec,
            model=facts,
            layers=self.layers,
            sets={name: self._set_facts(name) for name in self.plans},
            parity={**parity, "revision": self.source.revision, "dequantised_from": stored} if parity else {},
            versions={"theodolite": __version__, **versions},
            partial_sites=self._partial_sites() if self.plans else {},
            warnings=list(self.warnings),
        )

    def _partial_sites(self) -> dict[Site, PartialSite]:
        """Return the captured sites that only some blocks have; none for an unknown family."""
        anatomy = known_anatomy(self.config)
        if anatomy is None:
            return {}
        return {
            site: PartialSite(layers=list(anatomy.partial[site].layers), reason=anatomy.hybrid)
            for site in self.spec.capture.sites
            if site in anatomy.partial
        }

    def _set_facts(self, name: str) -> SetFacts:
        plan, experts = self.plans[name], self.recorded_experts(name)
        spans = self.spans_of(name)
        return SetFacts(
            n_samples=plan.n_samples,
            n_shards=len(plan.shards),
            n_batches=sum(len(shard.batches) for shard in plan.shards),
            plan_sha256=plan.digest(),
            positions=list(self.positions[name]),
            template=self.templates[name],
            shared_prefix=plan.layout.shared_prefix,
            tokens=plan.tokens,
            computed_tokens=plan.computed_tokens,
            token_ids_sha256=digest_of(self.tokens[name]),
            n_first=sum(min(span)[0] == 0 for span in spans),
            n_first_named={
                str(label): sum(span[index][0] == 0 for span in spans)
                for index, label in enumerate(self.positions[name])
                if name in self.spans
            },
            n_units=self.counted_units(name),
            n_experts=experts.n_experts if experts else 0,
            n_choices=experts.n_choices if experts else 0,
            n_spelled=self.tokenized[name].n_spelled,
            parts=list(self.tokenized[name].parts),
            has_conversations=not isinstance(self.prompts[name][0], str),
            **self.read_facts.get(name, {}),
        )
