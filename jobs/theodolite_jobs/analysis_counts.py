"""What the cost of an analysis depends on, and the operations that take most of its time, counted."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from theodolite.groups.logit_lens.record import TOKENS
from theodolite.groups.schema import SIDES
from theodolite.spec import SurveySpec
from theodolite.spec_options import EffectsSpec, ProbesSpec
from theodolite.spec_parts import NOUNS, PromptSetSpec
from theodolite.store.runs import Run
from theodolite_jobs.groups.basis import compute as basis
from theodolite_jobs.groups.effects.inputs import places_of
from theodolite_jobs.groups.heads import stream
from theodolite_jobs.groups.routing import compute as routing
from theodolite_jobs.groups.sphere import fitted_gaussian
from theodolite_jobs.models.anatomy import head_widths_of
from theodolite_jobs.models.families import known_anatomy
from theodolite_jobs.models.latent import latent_sizes
from theodolite_jobs.passes.selections import Contrasts
from theodolite_jobs.prompts.sources import read_prompts
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


def n_experts(survey: Survey) -> int:
    """Return the number of experts of a layer that the sets record, the shared one not included."""
    return max((facts.n_experts for facts in survey.run.record.sets.values()), default=0)


def changed_layers(survey: Survey) -> list[int]:
    """Return the layer of each place at which `effects` changes states."""
    sites, layers = places_of(survey.run, survey.spec.effects or EffectsSpec())
    return [layer for _ in sites for layer in layers]


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


def _probes(survey: Survey) -> Counts:
    """Gram matrices, logistic fits of each draw and without each prompt, at each site and layer of each contrast."""
    n, places = survey.both(permuted_labels.SAMPLES), survey.places
    draws = 1 + (survey.spec.probes or ProbesSpec()).draws
    return {
        "products": _products(n) * places * survey.run.record.model.d_model,
        "fits": draws * _products(n) * places,
        "refits": _cubes(n) * places,
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
    return {"draws": DRAWS * n * len(survey.labels["layer"]) * n_experts(survey)}


def _words(survey: Survey) -> Counts:
    """Products of the vocabulary with the vectors of each head, and with the nouns as keys and as values."""
    model, (n_heads, _) = survey.run.record.model, survey.heads_and_width
    requests = model.n_layers * n_heads * (4 * survey.spec.heads.vectors + 2 * survey.n_nouns)
    return {
        "vocabulary": requests * survey.vocabulary * model.d_model,
    }


def _effects(survey: Survey) -> Counts:
    return {"places": len(survey.both()) * len(changed_layers(survey))}


COUNTS: Mapping[str, Callable[[Survey], Counts]] = {
    "moments": _moments,
    "curves": _curves,
    "separation": _separation,
    "permutations": _permutations,
    "probes": _probes,
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
