"""Prepare a survey without loading weights: resolve the model, read and tokenise the prompts, plan the shards."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

from theodolite.digests import digest_of
from theodolite.errors import PromptError, SpecError
from theodolite.settings import Settings
from theodolite.sites import Site
from theodolite.spec import SurveySpec, TokenIds
from theodolite.spec_parts import SENTENCES, ModelSpec
from theodolite.store.layout import CAPTURE_VERSION
from theodolite.store.runs import ModelFacts, PartialSite, RunRecord, SetFacts
from theodolite.version import __version__
from theodolite_jobs.capture.plan import SetPlan, ShardPlan, plan_set, planning_version
from theodolite_jobs.models.adapter_source import adapter_notes
from theodolite_jobs.models.anatomy import (
    Anatomy,
    Dimensions,
    check_layers,
    check_next_token,
    check_sites,
    dimensions_of,
    head_widths_of,
)
from theodolite_jobs.models.batching import batching_version, can_share_prefix, length_class_of
from theodolite_jobs.models.chat_templates import DEFAULT, choose_template, conflicting_templates, missing_template
from theodolite_jobs.models.convert.adapter_config import RULE as MERGE_RULE
from theodolite_jobs.models.convert.random_weights import RULE, SEED
from theodolite_jobs.models.facts import mlp_width
from theodolite_jobs.models.families import known_anatomy, text_model_of
from theodolite_jobs.models.gguf.windows import window_warning
from theodolite_jobs.models.load import load_config, load_tokenizer, resolved_dtype
from theodolite_jobs.models.next_token_blocks import left_out_note
from theodolite_jobs.models.quantised import DEQUANTISATION, dequantised_from
from theodolite_jobs.models.readable import check_readable
from theodolite_jobs.models.routers import Experts, captured_experts
from theodolite_jobs.models.source import (
    ModelSource,
    adapter_facts,
    check_configuration,
    fetch,
    on_every_node,
    resolve_source,
    slug,
    weight_format,
    weight_versions,
)
from theodolite_jobs.models.stored_names import check_names
from theodolite_jobs.prompts.conversations import Prompt
from theodolite_jobs.prompts.hub_datasets import pinned_set
from theodolite_jobs.prompts.next_tokens import next_token_groups
from theodolite_jobs.prompts.sources import check_pairs, read_prompts
from theodolite_jobs.prompts.tokens import (
    Tokenized,
    check_positions,
    check_tokens,
    resolve_positions,
    resolve_template,
    tokenize,
)
from theodolite_jobs.prompts.too_long import fit_context, long_prompt_warnings
from theodolite_jobs.prompts.warnings import prompt_warnings
from theodolite_jobs.requested import check_request, named_groups

_RECORDED_VERSIONS = ("torch", "transformers", "zarr", "numpy", "ray")


@dataclass(frozen=True)
class Prepared:
    """A survey that passed all checks that need no weights."""

    spec: SurveySpec  # as requested; its sites are the sites that the model has
    folder: Path  # folder of the spec file
    source: ModelSource  # the model at its pinned revision
    config: Any  # the model's configuration
    dimensions: Dimensions
    layers: list[int]  # the layers to capture
    prompts: Mapping[str, list[Prompt]]  # of each set, as tokenised: without those left out, and cut if too long
    tokenized: Mapping[str, Tokenized]  # the token ids of each prompt of each set, and how they were made
    templates: Mapping[str, str]  # of each set: `chat`, `none` or a text with {prompt}
    plans: Mapping[str, SetPlan]  # shards and batches of each set
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
                "system": prompt_set.system,
                "positions": self.plans[name].positions,
                # A set without these options has the digest that it had before they existed.
                **{key: value for key, value in prompt_set.chat_options.items() if key != "system"},
                **({"special_tokens": "text"} if self.tokenized[name].n_spelled else {}),
            }
            for name, prompt_set in spec.sets.items()
        }
        model = {
            "place": self.source.location if self.source.kind == "hub" else self.source.kind,
            "revision": self.source.revision,
            "dtype": resolved_dtype(self.config, spec.model.dtype),
            "attention": spec.model.attention,
            "remote_code": spec.model.trust_remote_code,
        }
        # These options are newer than the first runs, whose digests stay the same.
        if self.source.weights == "random":
            model |= {"weights": {"rule": RULE, "seed": SEED}}
        elif dequantised_from(self.config) is not None:
            model |= {"dequantisation": DEQUANTISATION}
        if spec.model.template not in (None, DEFAULT) and "chat" in self.templates.values():
            model |= {"template": spec.model.template}
        if self.mended:
            model |= {"tokenizer": self.mended}
        if (adapter := self.source.adapter) is not None:
            place = adapter.location if adapter.kind == "hub" else adapter.kind
            model |= {"adapter": {"place": place, "revision": adapter.revision, "rule": MERGE_RULE}}
        if (batching := batching_version(self.config)) > 1:
            model |= {"batching": batching}
        newer = {
            name for name, default in {"final": True, "keep": None}.items() if getattr(spec.capture, name) == default
        }
        capture = spec.capture.model_dump(mode="json", exclude={"positions", *newer})
        if (planning := planning_version(spec.capture.batch_tokens)) > 1:
            capture |= {"planning": planning}
        return digest_of({"capture_version": CAPTURE_VERSION, "model": model, "prompts": sets, "capture": capture})

    @property
    def run_id(self) -> str:
        """The model's name and the first 12 hex digits of the digest."""
        return f"{slug(self.source.name)}-{self.digest[:12]}"

    @property
    def pinned_model(self) -> ModelSpec:
        """The model's spec for every node: at the pinned revision, and independent of the spec's folder."""
        return on_every_node(self.spec.model, self.source, self.folder)

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
        capture, n_positions = self.spec.capture, len(self.plans[shard.prompt_set].positions)
        vectors = len(self.layers) * len(capture.stream_sites) + capture.final  # of a prompt at a position
        heads = len(self.layers) * (Site.HEAD_OUT in capture.sites) * self.dimensions.n_heads * self.dimensions.d_head
        return 4 * (shard.stop - shard.start) * n_positions * (vectors * self.dimensions.d_model + heads)

    def shard_bytes(self, shard: ShardPlan) -> int:
        """Return the bytes of what a shard stores, before compression."""
        values = len(self.plans[shard.prompt_set].positions) * len(self.layers)  # of one feature or unit at one site
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
        return SetFacts(
            n_samples=plan.n_samples,
            n_shards=len(plan.shards),
            n_batches=sum(len(shard.batches) for shard in plan.shards),
            plan_sha256=plan.digest(),
            positions=list(plan.positions),
            template=self.templates[name],
            shared_prefix=plan.shared_prefix,
            tokens=plan.tokens,
            computed_tokens=plan.computed_tokens,
            token_ids_sha256=digest_of(self.tokens[name]),
            n_first=sum(len(ids) == -plan.positions[0] for ids in self.tokens[name]),
            n_units=self.counted_units(name),
            n_experts=experts.n_experts if experts else 0,
            n_choices=experts.n_choices if experts else 0,
            n_spelled=self.tokenized[name].n_spelled,
            parts=list(self.tokenized[name].parts),
            has_conversations=not isinstance(self.prompts[name][0], str),
            **self.read_facts.get(name, {}),
        )


def prepare(
    spec: SurveySpec, folder: Path, settings: Settings, tokenizer_of: Callable[[Path, bool], Any] = load_tokenizer
) -> Prepared:
    """Return a prepared survey of the spec in `folder`; load the configuration and tokenizer, and no weights.

    `tokenizer_of` returns the tokenizer of a model's folder.

    Raises:
        SpecError: a set, column, prompt, site, layer, pairing or analysis is wrong.
        ModelError: the model cannot be found, or its family is unknown.
    """
    check_remote_code(spec.model, settings)
    sets, read = {}, {}
    for name in sorted(spec.prompts, key=lambda one: spec.prompts[one].source.startswith("hub:")):  # local ones first
        sets[name] = pinned_set(name, spec.prompts[name])
        read[name] = read_prompts(name, sets[name], folder, settings.store)
    prompts = {name: read[name] for name in spec.prompts}
    if SENTENCES in spec.sets:
        prompts[SENTENCES] = list(spec.words.sentences)
    check_pairs(spec, {name: len(of_set) for name, of_set in prompts.items()})
    check_configuration(spec.model, folder)
    source = resolve_source(spec.model, folder)
    files = fetch(source, settings.cache, weights=False)
    config = load_config(files, spec.model.trust_remote_code)
    anatomy = known_anatomy(config)
    if not spec.prompts or not {"sphere", "heads", "words", "weights"}.isdisjoint(spec.analyses or []):
        requested = spec.analyses or []
        check_readable(config, circuits="heads" in requested, words="words" in requested)
    dimensions = dimensions_of(config, anatomy.reserved_positions if anatomy else 0)
    layers = list(range(dimensions.n_layers)) if spec.capture.layers == "all" else spec.capture.layers
    check_layers(dimensions, layers)
    if anatomy is not None:  # an unknown family is probed after loading
        if "effects" in named_groups(spec):
            check_next_token(anatomy, config.model_type)
        spec = _with_resolved_sites(spec, anatomy, layers)
    has_experts = "routing" in (spec.analyses or []) and captured_experts(config, layers) is not None
    check_request(spec, spec.resolved_contrasts(), spec.capture.sites, dimensions.n_layers, has_experts=has_experts)
    left_out = None
    if source.weights == "trained":
        check_names(files, config)
        left_out = left_out_note(files, config)

    tokenizer = tokenizer_of(files, spec.model.trust_remote_code) if prompts else None
    is_estimate = getattr(tokenizer, "is_estimate", False)  # then no token, and no number of tokens, is that of the run
    if tokenizer is not None:
        templates_of_model = getattr(tokenizer, "chat_template", None)
        tokenizer.chat_template = choose_template(templates_of_model, spec.model.template)
        if "effects" in named_groups(spec) and not is_estimate:
            next_token_groups(tokenizer, spec.effects.tokens if spec.effects else {})  # raises for wrong texts
    templates = {name: resolve_template(name, spec.sets[name], tokenizer) for name in prompts}

    def tokenized_set(name: str, of_set: list[Prompt]) -> Tokenized:
        return tokenize(name, of_set, spec.sets[name], tokenizer, spec.capture.template_date)

    tokenized = {name: tokenized_set(name, of_set) for name, of_set in prompts.items()}
    tokens = {name: one.tokens for name, one in tokenized.items()}
    numbers: Mapping[str, Sequence[int]] = {name: range(len(of_set)) for name, of_set in prompts.items()}
    changed: Mapping[str, dict[str, int]] = {}
    context_length = dimensions.context_length
    try:
        prompts, numbers, changed = fit_context(spec, prompts, tokens, context_length, tokenizer, tokenized_set)
    except PromptError:
        if not is_estimate:
            raise
    tokenized |= {name: tokenized_set(name, prompts[name]) for name in changed}
    plans: dict[str, SetPlan] = {}
    for name, one in tokenized.items():
        ids = one.tokens
        positions = spec.sets[name].positions or spec.capture.positions
        if not is_estimate:
            check_tokens(name, ids, numbers[name], context_length, config.get_text_config().vocab_size)
            check_positions(name, positions, ids, numbers[name])
        plans[name] = plan_set(
            name,
            ids,
            resolve_positions(positions, ids),
            shard_prompts=spec.capture.shard_prompts,
            n_kept=spec.bounds(name, len(ids)).n_kept,
            batch_tokens=spec.capture.batch_tokens,
            share_prefix=can_share_prefix(config, anatomy),
            length_class=length_class_of(config),
        )
    warnings = prompt_warnings(spec, templates, tokenized, numbers)
    for name, counts in changed.items():
        warnings += long_prompt_warnings(name, len(prompts[name]), context_length, **counts)
    bare = [name for name in spec.prompts if templates[name] == "none" and spec.sets[name].template is None]
    if "chat" in templates.values():
        warnings += conflicting_templates(files)
    elif bare:
        warnings += missing_template(bare[0], source.name, tokenizer)
    if source.kind == "gguf":
        longest = max((len(ids) for one in tokenized.values() for ids in one.tokens), default=0)
        warnings += window_warning(config, longest)
    warnings += [note for note in (source.note, left_out) if note]
    mended = tuple(getattr(tokenizer, "mended", ()))
    warnings += [f"the tokenizer was mended ({name}): its files have the pattern of another one" for name in mended]
    commits = {name: {"dataset_commit": one.revision} for name, one in sets.items() if one.revision is not None}
    facts = {name: {**commits.get(name, {}), **changed.get(name, {})} for name in tokenized}
    parts = (source, config, dimensions, layers, prompts, tokenized, templates, plans)
    return Prepared(spec, folder, *parts, warnings, mended, left_out, facts)


def _with_resolved_sites(spec: SurveySpec, anatomy: Anatomy, layers: Sequence[int]) -> SurveySpec:
    """Return the spec with sites that the family has; if the spec names none, the default sites that exist.

    Raises:
        SiteNotFoundError: the spec has prompts and names a site that none of the captured layers has.
    """
    if "sites" in spec.capture.model_fields_set:
        if spec.prompts:
            check_sites(anatomy, spec.capture.sites, layers)
        return spec
    sites = [site for site in spec.capture.sites if site in anatomy.taps]
    if sites == spec.capture.sites:
        return spec
    return spec.model_copy(update={"capture": spec.capture.model_copy(update={"sites": sites})})


def check_remote_code(model: ModelSpec, settings: Settings) -> None:
    """Raise SpecError if the spec requests the model's own code and the deployment does not allow it."""
    if model.trust_remote_code and model.id not in settings.remote_code_allowed:
        raise SpecError(
            f"model.trust_remote_code: this deployment does not allow {model.id!r} to run its own code; "
            "add the model to THEODOLITE_REMOTE_CODE_ALLOWED"
        )
