"""Estimate the seconds and the stored bytes of each analysis of a survey, before anything is captured.

Seconds are counts of the operations that take most of an analysis' time, times the measured time of one. The bytes of
arrays are exact, without compression; those of tables are numbers of rows times the measured size of a row.
"""

from contextlib import suppress
from dataclasses import replace
from math import ceil, prod
from typing import Any

from theodolite.errors import SpecError
from theodolite.groups import GROUPS
from theodolite.groups.effects.record import CONTROLS, INTERVENTIONS
from theodolite.groups.heads.record import CIRCUITS, ROTARY
from theodolite.groups.logit_lens.record import ENDS, TOKENS
from theodolite.groups.schema import SIDES, SUBLAYERS, is_flat
from theodolite.groups.separation.record import MOST_SCORED
from theodolite.spec_options import EffectsSpec, ProbesSpec
from theodolite_jobs.analysis_counts import COUNTS, Survey, changed_layers, n_experts
from theodolite_jobs.costs import (
    EFFECTS_SHARE,
    GPU,
    NANOSECONDS,
    OTHER_ROW_BYTES,
    ROW_BYTES,
    START_SECONDS,
    Forward,
    rounded,
)
from theodolite_jobs.effects.one_token import COLUMNS
from theodolite_jobs.groups.composition.formulas import KINDS
from theodolite_jobs.groups.effects.inputs import places_of
from theodolite_jobs.groups.heads import layer as heads
from theodolite_jobs.groups.weights import compute as weights
from theodolite_jobs.groups.weights import experts
from theodolite_jobs.models.families import known_anatomy
from theodolite_jobs.passes.norm_layers import norm_labels
from theodolite_jobs.requested import requested_groups


def analysis_costs(survey: Survey, one_core: Forward) -> dict[str, dict[str, Any]]:
    """Return the estimated `seconds` by device and the `bytes` of each requested analysis, in the order of computation.

    The seconds are those of one core; the tasks of an analysis run on all cores. In five surveys of models with d_model
    48 to 1024, and with 64 to 256 prompts of each set, those of analyses that take a second or more were 0.4 to 1.6
    times the measured ones; one of these surveys had no part in the measured constants. Larger ones were not compared.

    Args:
        survey: what the cost depends on.
        one_core: the cost of forward passes on one core.

    Raises:
        SpecError: `effects` is requested at a site or layer that is not captured.
    """
    names = requested_groups(survey.run, survey.spec, survey.contrasts)
    return {name: _cost(survey, name, one_core) for name in names}


def costs_on_request(survey: Survey, one_core: Forward) -> dict[str, dict[str, Any]]:
    """Return the same for the possible analyses that a survey has on request only, and that are not requested."""
    everything: dict[str, Any] = {
        "analyses": None,
        "effects": survey.spec.effects or EffectsSpec(),
        "probes": survey.spec.probes or ProbesSpec(),
        "words": survey.spec.words_options,
    }
    whole = replace(survey, spec=survey.spec.model_copy(update=everything))
    requested = requested_groups(survey.run, survey.spec, survey.contrasts)
    found = {}
    for name in requested_groups(survey.run, whole.spec, survey.contrasts):
        if GROUPS[name].on_request and name not in requested:
            with suppress(SpecError):  # no state that `effects` can change is captured
                found[name] = _cost(whole, name, one_core)
    return found


def _cost(survey: Survey, name: str, one_core: Forward) -> dict[str, Any]:
    own = seconds_of(survey, name)
    seconds = {"one CPU core": own}
    if name == "effects":  # it runs on replicas, as the capture does
        operations, launches = forwards(survey)
        seconds = {
            "one CPU core": own + Forward(one_core.peak, EFFECTS_SHARE).seconds(operations, launches),
            "one H200 GPU": own + GPU.seconds(operations, launches),
        }
    return {
        "seconds": {device: rounded(value) for device, value in seconds.items()},
        "bytes": array_bytes(survey, name) + round(_table_bytes(survey, name)),
    }


def seconds_of(survey: Survey, name: str) -> float:
    """Return the estimated processor time of an analysis, without forward passes."""
    return START_SECONDS.get(name, 0.0) + 1e-9 * sum(
        count * NANOSECONDS[name][kind] for kind, count in COUNTS[name](survey).items()
    )


def array_bytes(survey: Survey, name: str) -> int:
    """Return the bytes of the arrays of an analysis, without compression and without labels."""
    labels = {**survey.labels, **_labels(survey, name)}
    group = GROUPS[name]
    return sum(prod(group.shape(one, labels)) * _size(one.dtype) for one in group.variables)


def _size(dtype: str) -> int:
    return 4 if dtype == "float32" else 8


def _labels(survey: Survey, name: str) -> dict[str, Any]:
    """Return labels, or a range of as many, of the dimensions that are not those of activations."""
    run, spec, model = survey.run, survey.spec, survey.run.record.model
    n_heads, width = survey.heads_and_width
    every, each_head = range(model.n_layers), range(n_heads)
    anatomy = known_anatomy(survey.config)
    if name == "sphere":
        norms = [] if anatomy is None else norm_labels(anatomy, model.n_layers)
        return {"norm": norms, "norm_other": norms}
    if name == "weights":
        of_experts = range(n_experts(survey))
        return {
            "layer": every,
            "layer_other": every,
            "writing_matrix": weights.WRITING,
            "reading_matrix": weights.READING,
            "mlp_matrix": experts.MATRICES if of_experts else (),
            "expert_or_shared": of_experts,
            "expert_or_shared_other": of_experts,
        }
    if name == "heads":
        return {
            "circuit": (*CIRCUITS, ROTARY) if survey.has_latents else CIRCUITS,
            "offset": spec.heads.offsets,
            "layer": every,
            "head": each_head,
            "rank": range(width),
            "vector": range(min(spec.heads.vectors, width)),
            "projection": heads.PROJECTIONS,
            "side": heads.SIDES,
        }
    if name == "composition" and spec.heads.composition:
        between = range(spec.heads.composition[0], spec.heads.composition[1] + 1)
        pairs = {"layer": between, "layer_other": between, "head": each_head, "head_other": each_head}
        return {"composition": KINDS, **pairs}
    if name == "routing":
        return {"expert": range(max(facts.n_experts for facts in run.record.sets.values()))}
    if name == "effects":
        options = spec.effects or EffectsSpec()
        sites, layers = places_of(run, options)
        changed = {"prompt_side": SIDES, "intervention": INTERVENTIONS, "control": CONTROLS, "dose": options.doses}
        return {**changed, "site": sites, "layer": layers, "head": each_head}
    return {"layer": every, "head": each_head} if name == "words" else {"head": each_head}


def _table_bytes(survey: Survey, name: str) -> float:
    flat = GROUPS[name].flat_table
    rows = _rows(survey)
    if flat is not None:
        labels = {**survey.labels, **_labels(survey, name)}
        of_variables = [prod(GROUPS[name].shape(one, labels)) for one in GROUPS[name].variables if is_flat(one.dims)]
        rows[flat.name] = sum(of_variables)
    return sum(rows.get(table.name, 0) * ROW_BYTES.get(table.name, OTHER_ROW_BYTES) for table in GROUPS[name].tables)


def _rows(survey: Survey) -> dict[str, float]:
    """Return the numbers of rows of the tables that can be large, besides flat ones."""
    n_heads, _ = survey.heads_and_width
    each, spec = survey.run.record.model.n_layers * n_heads, survey.spec
    options, n_contrasts = spec.effects or EffectsSpec(), len(survey.both())
    tokens, vectors = spec.words_options.tokens, spec.heads.vectors
    n_prompts = sum(2 * min(sides) for _, sides in survey.comparisons(options.prompts))
    return {
        "prompt_scores": sum(survey.both(MOST_SCORED)) * survey.places,
        "prompt_score_scales": n_contrasts * survey.places,
        "direction_tokens": n_contrasts * survey.places * len(ENDS) * TOKENS,
        "prompt_effects": n_prompts * len(changed_layers(survey)) * (2 + len(options.doses)),
        "head_tokens": each * 4 * vectors * 2 * tokens,
        "noun_keys": each * survey.n_nouns * tokens,
        "noun_values": each * survey.n_nouns * tokens,
        "noun_alignment": each * survey.n_nouns,
    }


def forwards(survey: Survey) -> tuple[float, float]:
    """Return the operations of the forward passes of `effects`, and the number of blocks that are run.

    Each variant is one token through the blocks from its place on, and through the unembedding. A family that needs a
    forward of all tokens for each variant takes as many times longer as a prompt has tokens.
    """
    record, options = survey.run.record, survey.spec.effects or EffectsSpec()
    n_layers, at = record.model.n_layers, changed_layers(survey)
    n_heads, _ = survey.heads_and_width
    variants = [(2 + len(options.doses) + 4 * options.controls, n_layers - layer) for layer in at]
    variants.append((1 + 2 * options.controls, n_layers - min(at)))  # removals at all places
    # A patch of a part costs another column, which adds what the part wrote after the last block.
    of_parts = [(n_heads + len(SUBLAYERS), n_layers - layer) for layer in dict.fromkeys(at)]
    operations, launches = 0.0, 0.0
    for contrast, sides in survey.comparisons(options.prompts):
        patches = of_parts if contrast["paired"] and options.parts else []
        own = [*variants, *patches, *((count, 1) for count, _ in patches)]
        facts = record.sets[contrast["positive"]]
        intact = 2 * n_layers * facts.tokens / facts.n_samples
        of_blocks = survey.block_weights * (intact + sum(count * blocks for count, blocks in own))
        of_logits = survey.vocabulary * record.model.d_model * sum(count for count, _ in own)
        prompts = 2 * min(sides)
        operations += 2 * prompts * (of_blocks + of_logits)
        launches += prompts * sum(ceil(count / COLUMNS) * blocks for count, blocks in own)
    return operations, launches
