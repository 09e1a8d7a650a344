"""Estimate the seconds and the stored bytes of each analysis of a survey, before anything is captured.

Seconds are counts of the operations that take most of an analysis' time, times the measured time of one. The bytes of
arrays are exact, without compression; those of tables are numbers of rows times the measured size of a row.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil, prod
from pathlib import Path
from typing import Any

from theodolite.errors import SpecError
from theodolite.groups import GROUPS
from theodolite.groups.effects.record import CONTROLS, INTERVENTIONS
from theodolite.groups.heads.record import CIRCUITS, ROTARY
from theodolite.groups.logit_lens.record import ENDS, TOKENS
from theodolite.groups.schema import SIDES, SUBLAYERS, is_flat
from theodolite.groups.separation.record import MOST_SCORED
from theodolite.spec import SurveySpec
from theodolite.spec_options import EffectsSpec
from theodolite.spec_parts import NOUNS, PromptSetSpec
from theodolite.store.runs import Run
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
from theodolite_jobs.groups.basis import compute as basis
from theodolite_jobs.groups.composition.formulas import KINDS
from theodolite_jobs.groups.effects.inputs import places_of
from theodolite_jobs.groups.heads import layer as heads
from theodolite_jobs.groups.heads import stream
from theodolite_jobs.groups.routing import compute as routing
from theodolite_jobs.groups.sphere import fitted_gaussian
from theodolite_jobs.groups.weights import compute as weights
from theodolite_jobs.groups.weights import experts
from theodolite_jobs.models.anatomy import head_widths_of
from theodolite_jobs.models.families import known_anatomy
from theodolite_jobs.models.latent import latent_sizes
from theodolite_jobs.passes.norm_layers import norm_labels
from theodolite_jobs.passes.selections import Contrasts
from theodolite_jobs.prompts.sources import read_prompts
from theodolite_jobs.requested import requested_groups
from theodolite_jobs.results import permuted_labels
from theodolite_jobs.results.context import Context
from theodolite_jobs.statistics.permutations import DRAWS

Counts = dict[str, float]
"""Numbers of operations by their kind, as in NANOSECONDS."""


@dataclass(frozen=True)
class Survey:
    """What the cost of analyses depends on.

    Attributes:
        run: a run, or the record of one that is not stored yet.
        spec: the requested analyses and their options.
        contrasts: the contrasts.
        config: configuration of the model.
        block_weights: number of weights of a block.
    """

    run: Run
    spec: SurveySpec
    contrasts: Contrasts
    config: Any
    block_weights: float

    @cached_property
    def labels(self) -> dict[str, Any]:
        """Labels of the dimensions that activations have."""
        return Context(self.run, self.spec, self.contrasts).coordinates

    @property
    def places(self) -> int:
        """Number of sites times number of layers."""
        return len(self.labels["site"]) * len(self.labels["layer"])

    @cached_property
    def heads_and_width(self) -> tuple[int, int]:
        """Number of query heads of a layer, and the largest number of singular values of a circuit."""
        model, widths = self.run.record.model, head_widths_of(self.config)
        rotary = latent_sizes(self.config).rotary if self.has_latents else 0
        return model.n_heads, max(*(widths or (model.d_head,)), rotary)

    @cached_property
    def has_latents(self) -> bool:
        """Whether heads have multi-head latent attention."""
        anatomy = known_anatomy(self.config)
        return anatomy is not None and anatomy.has_latents

    @property
    def vocabulary(self) -> int:
        """Number of tokens."""
        return int(self.config.get_text_config().vocab_size)

    @cached_property
    def n_nouns(self) -> int:
        """Number of words of the set of nouns, of which those that are one token count."""
        name, sets = self.spec.words_options.nouns, self.run.record.sets
        source = PromptSetSpec(source=f"builtin:{NOUNS}")
        return sets[name].n_samples if name in sets else len(read_prompts(name, source, Path()))

    def samples(self, most: float = float("inf")) -> list[float]:
        """Return the number of stored prompts, at most `most`, of each set at each of its positions."""
        sets, record = self.labels["set"], self.run.record
        return [min(most, record.bounds(name).n_kept) for name in sets for _ in record.sets[name].positions]

    def comparisons(self, most: float = float("inf")) -> list[tuple[Mapping[str, Any], list[float]]]:
        """Return each contrast at each position, with the numbers of stored prompts of both sides, at most `most`."""
        record = self.run.record
        found: list[tuple[Mapping[str, Any], list[float]]] = []
        for contrast in self.contrasts.values():
            names = [contrast[side] for side in SIDES]
            common = set.intersection(*(set(record.sets[name].positions) for name in names))
            found += [(contrast, [min(most, record.bounds(name).n_kept) for name in names])] * len(common)
        return found

    def both(self, most: float = float("inf")) -> list[float]:
        """Return the number of stored prompts of each contrast at each position, at most `most` of each side."""
        return [sum(sides) for _, sides in self.comparisons(most)]


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
    everything = {"analyses": None, "effects": survey.spec.effects or EffectsSpec(), "words": survey.spec.words_options}
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
        of_experts = range(_n_experts(survey))
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


def _n_experts(survey: Survey) -> int:
    """Return the number of experts of a layer that the sets record, the shared one not included."""
    return max((facts.n_experts for facts in survey.run.record.sets.values()), default=0)


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
        "prompt_effects": n_prompts * len(_changed_layers(survey)) * (2 + len(options.doses)),
        "head_tokens": each * 4 * vectors * 2 * tokens,
        "noun_keys": each * survey.n_nouns * tokens,
        "noun_values": each * survey.n_nouns * tokens,
        "noun_alignment": each * survey.n_nouns,
    }


def _changed_layers(survey: Survey) -> list[int]:
    """Return the layer of each place at which `effects` changes states."""
    sites, layers = places_of(survey.run, survey.spec.effects or EffectsSpec())
    return [layer for _ in sites for layer in layers]


def forwards(survey: Survey) -> tuple[float, float]:
    """Return the operations of the forward passes of `effects`, and the number of blocks that are run.

    Each variant is one token through the blocks from its place on, and through the unembedding. A family that needs a
    forward of all tokens for each variant takes as many times longer as a prompt has tokens.
    """
    record, options = survey.run.record, survey.spec.effects or EffectsSpec()
    n_layers, at = record.model.n_layers, _changed_layers(survey)
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


def _products(samples: list[float]) -> float:
    return sum(n**2 for n in samples)


def _cubes(samples: list[float]) -> float:
    return sum(n**3 for n in samples)


def _of_passes(survey: Survey) -> tuple[float, float]:
    """Return the numbers of activations that the passes over sets and over contrasts read."""
    record, vector = survey.run.record, survey.places * survey.run.record.model.d_model
    of_sets = sum(record.sets[name].n_samples * len(record.sets[name].positions) for name in survey.labels["set"])
    return of_sets * vector, sum(survey.both()) * vector


def _moments(survey: Survey) -> Counts:
    return {"activations": _of_passes(survey)[0]}


def _curves(survey: Survey) -> Counts:
    return {"activations": _of_passes(survey)[1]}


def _separation(survey: Survey) -> Counts:
    return {"scores": sum(survey.both()) * survey.places}


def _directions(survey: Survey) -> Counts:
    return {
        "products": len(survey.both()) * survey.places * len(survey.labels["layer"]) * survey.run.record.model.d_model
    }


def _permutations(survey: Survey) -> Counts:
    """Gram matrices, decompositions and scores of each draw, at each site and layer of each contrast."""
    n, places = survey.both(permuted_labels.SAMPLES), survey.places
    return {
        "products": _products(n) * places * survey.run.record.model.d_model,
        "decompositions": _cubes(n) * places,
        "draws": DRAWS * _products(n) * places,
        "places": len(n) * places,
    }


def _gram(survey: Survey) -> Counts:
    """Gram matrices of sets and contrasts, their eigenvalues, and the products of those of all pairs of places."""
    n, places = survey.samples(survey.spec.gram.samples), survey.places
    both = survey.both(survey.spec.gram.samples)
    return {
        "products": (_products(n) + _products(both)) * places * survey.run.record.model.d_model,
        "decompositions": _cubes(n) * places,
        "pairs": _products(n) * places,
        "entries": _products(n) * places**2,
        "places": (len(n) + len(both)) * places,
    }


def _sphere(survey: Survey) -> Counts:
    n = survey.samples(fitted_gaussian.SAMPLES)
    return {
        "activations": _of_passes(survey)[0],
        "products": _products(n) * survey.places * survey.run.record.model.d_model,
        "pairs": _products(n) * survey.places,
    }


def _travel(survey: Survey) -> Counts:
    n, n_layers = survey.samples(survey.spec.gram.samples), len(survey.labels["layer"])
    return {
        "activations": _of_passes(survey)[0],
        "products": _products(n) * n_layers * survey.run.record.model.d_model,
    }


def _basis(survey: Survey) -> Counts:
    n = survey.samples(min(basis.SAMPLES, survey.spec.gram.samples))
    n_layers = len(survey.labels["layer"])
    return {
        "products": _products(n) * n_layers * survey.run.record.model.d_model,
        "decompositions": _cubes(n) * n_layers,
        "pairs": _products(n) * n_layers,
        "layers": len(n) * n_layers,
    }


def _weights(survey: Survey) -> Counts:
    """Products of the matrices with themselves and their eigenvectors, and the overlaps of all pairs of layers."""
    model = survey.run.record.model
    return {"products": model.n_layers * survey.block_weights * model.d_model, "pairs": model.n_layers**2}


def _heads(survey: Survey) -> Counts:
    """Products of unembedding and embedding, decompositions of factors, directions of draws, variances of samples."""
    model = survey.run.record.model
    n_heads, width = survey.heads_and_width
    each, offsets = model.n_layers * n_heads, len(survey.spec.heads.offsets)
    return {
        "vocabulary": bool(survey.spec.heads.vectors) * survey.vocabulary * model.d_model**2,
        "factors": each * model.d_model * width**2 * (1 + offsets),
        "draws": DRAWS * len(survey.contrasts) * each * model.d_model * width,
        "samples": sum(survey.samples(stream.SAMPLES)) * each * model.d_model * width,
    }


def _composition(survey: Survey) -> Counts:
    first, last = survey.spec.heads.composition or (0, 0)
    n_heads, width = survey.heads_and_width
    pairs = (last - first + 1) * (last - first) / 2
    return {"products": pairs * (n_heads * width) ** 2 * survey.run.record.model.d_model, "pairs": pairs * n_heads**2}


def _contributions(survey: Survey) -> Counts:
    model, n = survey.run.record.model, survey.both(permuted_labels.SAMPLES)
    n_heads, width = survey.heads_and_width
    each = len(survey.labels["layer"]) * n_heads
    return {
        "products": DRAWS * len(n) * each * width * model.d_model,
        "draws": DRAWS * sum(n) * each,
    }


def _logit_lens(survey: Survey) -> Counts:
    model, n = survey.run.record.model, survey.both(permuted_labels.SAMPLES)
    return {
        "vocabulary": survey.vocabulary * model.d_model * survey.places * len(n),
        "draws": DRAWS * sum(n) * survey.places * TOKENS,
        "tokens": survey.vocabulary,
    }


def _routing(survey: Survey) -> Counts:
    n = sum(survey.both(routing.SAMPLES))
    return {"draws": DRAWS * n * len(survey.labels["layer"]) * _n_experts(survey)}


def _words(survey: Survey) -> Counts:
    """Products of the vocabulary with the vectors of each head, and with the nouns as keys and as values."""
    model, (n_heads, _) = survey.run.record.model, survey.heads_and_width
    requests = model.n_layers * n_heads * (4 * survey.spec.heads.vectors + 2 * survey.n_nouns)
    return {
        "vocabulary": requests * survey.vocabulary * model.d_model,
    }


def _effects(survey: Survey) -> Counts:
    return {"places": len(survey.both()) * len(_changed_layers(survey))}


COUNTS: Mapping[str, Callable[[Survey], Counts]] = {
    "moments": _moments,
    "curves": _curves,
    "separation": _separation,
    "permutations": _permutations,
    "directions": _directions,
    "gram": _gram,
    "sphere": _sphere,
    "travel": _travel,
    "basis": _basis,
    "weights": _weights,
    "heads": _heads,
    "composition": _composition,
    "contributions": _contributions,
    "logit_lens": _logit_lens,
    "routing": _routing,
    "effects": _effects,
    "words": _words,
}
"""The numbers of operations of each analysis."""
