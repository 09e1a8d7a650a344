"""Prepare a survey without loading weights: resolve the model, read and tokenise the prompts, plan the shards."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from theodolite.errors import PromptError, SpecError
from theodolite.settings import Settings
from theodolite.spec import Spans, SurveySpec
from theodolite.spec_parts import SENTENCES, ModelSpec, NamedPosition
from theodolite_jobs.capture.plan import plan_set
from theodolite_jobs.capture.sizes import Device, SetSizes, with_sizes
from theodolite_jobs.models.anatomy import (
    Anatomy,
    Dimensions,
    check_layers,
    check_next_token,
    check_sites,
    dimensions_of,
)
from theodolite_jobs.models.batching import can_share_prefix, length_class_of
from theodolite_jobs.models.chat_templates import choose_template, conflicting_templates, missing_template
from theodolite_jobs.models.families import known_anatomy
from theodolite_jobs.models.gguf.windows import window_warning
from theodolite_jobs.models.load import load_config, load_tokenizer
from theodolite_jobs.models.next_token_blocks import left_out_note
from theodolite_jobs.models.readable import check_readable
from theodolite_jobs.models.routers import captured_experts
from theodolite_jobs.models.source import (
    ModelSource,
    check_configuration,
    fetch,
    resolve_source,
)
from theodolite_jobs.models.stored_names import check_names
from theodolite_jobs.prepared import Prepared
from theodolite_jobs.prompts.conversations import Prompt
from theodolite_jobs.prompts.hub_datasets import pinned_set
from theodolite_jobs.prompts.next_tokens import next_token_groups
from theodolite_jobs.prompts.sources import check_pairs, read_prompts
from theodolite_jobs.prompts.spans import token_spans
from theodolite_jobs.prompts.tokens import (
    Tokenized,
    all_positions,
    check_positions,
    check_tokens,
    resolve_template,
    tokenize,
)
from theodolite_jobs.prompts.too_long import fit_context, long_prompt_warnings
from theodolite_jobs.prompts.warnings import prompt_warnings
from theodolite_jobs.requested import check_request, named_groups


@dataclass(frozen=True)
class _Tokens:
    """The prompts of each set as tokenised, and what was done with those that are too long."""

    prompts: Mapping[str, list[Prompt]]
    numbers: Mapping[str, Sequence[int]]  # of the prompts in their sets, counting those that are left out too
    of_sets: Mapping[str, Tokenized]
    changed: Mapping[str, dict[str, int]]  # `n_skipped` and `n_truncated` of the sets that lost prompts or tokens


def prepare(
    spec: SurveySpec,
    folder: Path,
    settings: Settings,
    tokenizer_of: Callable[[Path, bool], Any] = load_tokenizer,
    message: Callable[[str], None] = lambda _: None,
) -> Prepared:
    """Return a prepared survey of the spec in `folder`; load the configuration and tokenizer, and no weights.

    Args:
        spec: the survey.
        folder: the folder of the spec.
        settings: the cache, the store, what the deployment allows, and the cluster, whose devices decide sizes that the
            spec leaves open.
        tokenizer_of: returns the tokenizer of a model's folder.
        message: called with a sentence if the nodes of the cluster are waited for.

    Raises:
        SpecError: a set, column, prompt, site, layer, pairing or analysis is wrong.
        ModelError: the model cannot be found, its family is unknown, or its files do not fit its configuration.
    """
    check_remote_code(spec.model, settings)
    prompts, commits = _read_sets(spec, folder, settings)
    check_configuration(spec.model, folder)
    source = resolve_source(spec.model, folder)
    files = fetch(source, settings.cache, weights=False)
    config = load_config(files, spec.model.trust_remote_code)
    anatomy = known_anatomy(config)
    dimensions = dimensions_of(config, anatomy.reserved_positions if anatomy else 0)
    layers = list(range(dimensions.n_layers)) if spec.capture.layers == "all" else spec.capture.layers
    spec = _checked_spec(spec, config, dimensions, layers)
    left_out = None
    if source.weights == "trained":
        check_names(files, config, is_local=source.kind == "folder")
        left_out = left_out_note(files, config)
    tokenizer = _checked_tokenizer(spec, tokenizer_of(files, spec.model.trust_remote_code)) if prompts else None
    templates = {name: resolve_template(name, spec.sets[name], tokenizer) for name in prompts}
    tokens = _tokenized_sets(spec, prompts, tokenizer, dimensions.context_length)
    if not _is_estimate(tokenizer):
        _check_tokens(spec, tokens, config, dimensions)
    mended = tuple(getattr(tokenizer, "mended", ()))
    warnings = [
        *prompt_warnings(spec, templates, tokens.of_sets, tokens.numbers),
        *_warnings_of_lengths(tokens, source, config, dimensions.context_length),
        *_template_warnings(spec, templates, tokenizer, source, files),
        *(note for note in (source.note, left_out) if note),
        *(f"the tokenizer was mended ({name}): its files have the pattern of another one" for name in mended),
    ]
    facts = {name: {**commits.get(name, {}), **tokens.changed.get(name, {})} for name in prompts}
    unplanned = Prepared(
        spec=spec,
        requested=spec.capture,
        folder=folder,
        source=source,
        config=config,
        dimensions=dimensions,
        layers=layers,
        prompts=tokens.prompts,
        tokenized=tokens.of_sets,
        templates=templates,
        positions={
            name: tuple(spec.labels_of(name)) or all_positions(one.tokens) for name, one in tokens.of_sets.items()
        },
        spans=_spans(spec, tokens, tokenizer),
        plans={},
        warnings=warnings,
        mended=mended,
        left_out=left_out,
        read_facts=facts,
    )
    is_open = "auto" in (spec.capture.batch_tokens, spec.capture.shard_prompts)
    return planned(unplanned, device_of(settings, message) if is_open and prompts else "cpu")


def device_of(settings: Settings, message: Callable[[str], None]) -> Device:
    """Return the kind of device: as the settings say, or else that of the cluster's nodes, or of this machine.

    `message` is called with a sentence if the nodes are waited for.

    Raises:
        CaptureError: the cluster cannot be reached, or has no nodes for work.
    """
    if settings.gpus_per_replica is not None:
        return "gpu" if settings.gpus_per_replica else "cpu"
    if settings.ray_address:
        from theodolite_jobs.cluster.session import choose_resources, ray_session

        with ray_session(settings.ray_address, message):
            grows = settings.nodes_wait_seconds > 0
            return "gpu" if choose_resources(settings.replicas, None, grows=grows, message=message).gpus else "cpu"
    import torch

    return "gpu" if torch.cuda.is_available() else "cpu"


def planned(prepared: Prepared, device: Device) -> Prepared:
    """Return the survey with the shards and batches of each set for a kind of device."""
    block_weights = prepared.block_weights if device == "gpu" else 0
    sets = [
        SetSizes(len(ids), sum(map(len, ids)), prepared.prompt_bytes(name)) for name, ids in prepared.tokens.items()
    ]
    capture = with_sizes(prepared.requested, device, block_weights, sets)
    if prepared.plans and capture == prepared.spec.capture:
        return prepared
    spec = prepared.spec.model_copy(update={"capture": capture})
    anatomy = known_anatomy(prepared.config)
    plans = {
        name: plan_set(
            name,
            ids,
            prepared.positions[name],
            spans=prepared.spans.get(name, ()),
            shard_prompts=capture.sizes.shard_prompts,
            n_kept=spec.bounds(name, len(ids)).n_kept,
            batch_tokens=capture.sizes.batch_tokens,
            share_prefix=can_share_prefix(prepared.config, anatomy),
            length_class=length_class_of(prepared.config),
        )
        for name, ids in prepared.tokens.items()
    }
    return replace(prepared, spec=spec, plans=plans)


def _read_sets(
    spec: SurveySpec, folder: Path, settings: Settings
) -> tuple[dict[str, list[Prompt]], dict[str, dict[str, str]]]:
    """Return the prompts of each set, in the order of the spec, and `dataset_commit` of those from the hub."""
    sets, read = {}, {}
    for name in sorted(spec.prompts, key=lambda one: spec.prompts[one].source.startswith("hub:")):  # local ones first
        sets[name] = pinned_set(name, spec.prompts[name])
        read[name] = read_prompts(name, sets[name], folder, settings.store)
    prompts = {name: read[name] for name in spec.prompts}
    if SENTENCES in spec.sets:
        prompts[SENTENCES] = list(spec.words_options.sentences)
    check_pairs(spec, {name: len(of_set) for name, of_set in prompts.items()})
    return prompts, {name: {"dataset_commit": one.revision} for name, one in sets.items() if one.revision is not None}


def _checked_spec(spec: SurveySpec, config: Any, dimensions: Dimensions, layers: Sequence[int]) -> SurveySpec:
    """Return the spec with the sites that the family has; raise SpecError for what it lacks."""
    anatomy, requested = known_anatomy(config), spec.analyses or []
    if not spec.prompts or not {"sphere", "heads", "words", "weights"}.isdisjoint(requested):
        check_readable(config, circuits="heads" in requested, words="words" in requested)
    check_layers(dimensions, layers)
    if "effects" in named_groups(spec):
        check_next_token(check_readable(config)[0], config.model_type)
    if anatomy is not None:  # an unknown family is probed after loading
        spec = _with_resolved_sites(spec, anatomy, layers)
    has_experts = "routing" in requested and captured_experts(config, layers) is not None
    check_request(spec, spec.resolved_contrasts(), spec.capture.sites, dimensions.n_layers, has_experts=has_experts)
    return spec


def _checked_tokenizer(spec: SurveySpec, tokenizer: Any) -> Any:
    """Return the tokenizer with the chosen chat template; raise SpecError for a wrong name or wrong next tokens."""
    tokenizer.chat_template = choose_template(getattr(tokenizer, "chat_template", None), spec.model.template)
    if "effects" in named_groups(spec) and not _is_estimate(tokenizer):
        next_token_groups(tokenizer, spec.effects.tokens if spec.effects else {})  # raises for wrong texts
    return tokenizer


def _is_estimate(tokenizer: Any) -> bool:
    """Return whether no token, and no number of tokens, is that of the run."""
    return bool(getattr(tokenizer, "is_estimate", False))


def _tokenized_sets(
    spec: SurveySpec, prompts: Mapping[str, list[Prompt]], tokenizer: Any, context_length: int
) -> _Tokens:
    """Return the tokens of each set, without or with cut prompts that are too long, as `too_long` of the set says."""

    def tokenized_set(name: str, of_set: list[Prompt]) -> Tokenized:
        return tokenize(name, of_set, spec.sets[name], tokenizer, spec.capture.template_date)

    of_sets = {name: tokenized_set(name, of_set) for name, of_set in prompts.items()}
    tokens = {name: one.tokens for name, one in of_sets.items()}
    try:
        fitted, numbers, changed = fit_context(spec, prompts, tokens, context_length, tokenizer, tokenized_set)
    except PromptError:
        if not _is_estimate(tokenizer):
            raise
        return _Tokens(prompts, {name: range(len(one)) for name, one in prompts.items()}, of_sets, {})
    return _Tokens(fitted, numbers, of_sets | {name: tokenized_set(name, fitted[name]) for name in changed}, changed)


def _check_tokens(spec: SurveySpec, tokens: _Tokens, config: Any, dimensions: Dimensions) -> None:
    """Raise PromptError for tokens and positions that a set cannot have."""
    for name, one in tokens.of_sets.items():
        numbers = tokens.numbers[name]
        check_tokens(name, one.tokens, numbers, dimensions.context_length, config.get_text_config().vocab_size)
        check_positions(name, [at for at in spec.positions_of(name) if isinstance(at, int)], one.tokens, numbers)


def _spans(spec: SurveySpec, tokens: _Tokens, tokenizer: Any) -> dict[str, list[Spans]]:
    """Return the tokens of the positions of each prompt of the sets with named positions, or guesses for an estimate.

    Raises:
        PromptError: a prompt lacks a position, or it is not known which tokens are meant.
    """
    found = {}
    for name, one in tokens.of_sets.items():
        positions = spec.positions_of(name)
        if not any(isinstance(position, NamedPosition) for position in positions):
            continue
        if _is_estimate(tokenizer):
            found[name] = [((len(ids) - 1, len(ids)),) * len(positions) for ids in one.tokens]
            continue
        about = name, tokens.prompts[name], spec.sets[name], positions, one.tokens, tokenizer
        try:
            found[name] = token_spans(*about, spec.capture.template_date, tokens.numbers[name])
        except PromptError as error:
            if "n_truncated" not in tokens.changed.get(name, {}):
                raise
            raise PromptError(f"{error} (too_long: {spec.sets[name].too_long} has cut prompts of this set)") from error
    return found


def _warnings_of_lengths(tokens: _Tokens, source: ModelSource, config: Any, context_length: int) -> list[str]:
    """Return how many prompts are left out and cut, and if one exceeds a window that a GGUF file does not state."""
    warnings = []
    for name, counts in tokens.changed.items():
        warnings += long_prompt_warnings(name, len(tokens.prompts[name]), context_length, **counts)
    if source.kind == "gguf":
        longest = max((len(ids) for one in tokens.of_sets.values() for ids in one.tokens), default=0)
        warnings += window_warning(config, longest)
    return warnings


def _template_warnings(
    spec: SurveySpec, templates: Mapping[str, str], tokenizer: Any, source: ModelSource, files: Path
) -> list[str]:
    """Return warnings of chat templates that contradict each other, or of a chat model that has none."""
    if "chat" in templates.values():
        return conflicting_templates(files)
    bare = [name for name in spec.prompts if templates[name] == "none" and spec.sets[name].template is None]
    return missing_template(bare[0], source.name, tokenizer, is_gguf=source.kind == "gguf") if bare else []


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
