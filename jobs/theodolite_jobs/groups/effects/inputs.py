"""What the interventions of `effects` need: the prompts, the question, and the vectors from the stored activations."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from theodolite.errors import SpecError
from theodolite.groups.effects.record import CHANGEABLE
from theodolite.sites import Site
from theodolite.spec import TokenIds
from theodolite.spec_options import EffectsSpec
from theodolite.spec_parts import Label
from theodolite.store.prompts import read_spans, read_tokens
from theodolite.store.runs import Run
from theodolite_jobs.effects.work import Question, Vectors
from theodolite_jobs.groups.effects.formulas_controls import ControlFacts, Directions, directions_at, facts_of
from theodolite_jobs.passes.selections import first_captured
from theodolite_jobs.results.context import Context
from theodolite_jobs.results.permuted_labels import PermutedContrast
from theodolite_jobs.tasks import run_tasks, shared

DEFAULT_LAYERS = 6

LARGEST_FLOAT16 = 65504.0


def places_of(run: Run, options: EffectsSpec) -> tuple[list[Site], list[int]]:
    """Return the sites and layers at which states are changed; raise SpecError if one is not captured."""
    captured = run.record.spec.capture.stream_sites
    default = [Site.RESID_PRE] if Site.RESID_PRE in captured else captured[:1]
    sites = options.sites or [site for site in default if site in CHANGEABLE]
    layers = _layers_of(run.record.layers, options)
    if not sites:
        raise SpecError("effects.sites: no state of the residual stream is captured; add resid_pre to capture.sites")
    for site in sites:
        if site not in captured:
            raise SpecError(f"effects.sites: {site} is not captured; captured: {', '.join(captured)}")
    for layer in layers:
        if layer not in run.record.layers:
            raise SpecError(
                f"effects.layers: layer {layer} is not captured; captured: {', '.join(map(str, run.record.layers))}"
            )
    return sites, list(layers)


def _layers_of(captured: Sequence[int], options: EffectsSpec) -> Sequence[int]:
    if options.layers == "all":
        return captured
    count = min(DEFAULT_LAYERS, len(captured))
    return options.layers or [captured[(index + 1) * len(captured) // count - 1] for index in range(count)]


def sides_of(contrast: PermutedContrast, most: int) -> tuple[list[int], list[int]]:
    """Return the samples of the positive and of the negative prompts that are intervened on, in pairs of an index.

    They are evenly spaced over the prompts of their set, because neighbouring prompts often share a topic.
    """
    positive, negative = contrast.positive.samples, contrast.negative.samples
    count = min(len(positive), len(negative), most)
    return _spaced(positive, count), _spaced(negative, count)


def _spaced(samples: Sequence[int], count: int) -> list[int]:
    return [int(samples[index * len(samples) // count]) for index in range(count)]


def tokens_of(run: Run, contrast: PermutedContrast, position: Label, most: int) -> list[TokenIds]:
    """Return the tokens of positive and negative prompts in turns; they end at the position."""
    samples, names = sides_of(contrast, most), [side.prompt_set for side in (contrast.positive, contrast.negative)]
    tokens = [read_tokens(run, name) for name in names]
    spans = [read_spans(run, *of_side) for of_side in zip(names, tokens, strict=True)]
    at = [run.record.sets[name].positions.index(position) for name in names]
    return [
        tokens[side][sample][: spans[side][sample][at[side]][1]]
        for pair in zip(*samples, strict=True)
        for side, sample in enumerate(pair)
    ]


def question_of(
    options: EffectsSpec,
    contrast: PermutedContrast,
    sites: Sequence[Site],
    layers: Sequence[int],
    groups: Sequence[Sequence[int]],
) -> Question:
    """Return the question about a contrast, for two groups of next tokens."""
    return Question(
        sites=tuple(sites),
        layers=tuple(layers),
        doses=tuple(options.doses),
        first=tuple(groups[0]),
        second=tuple(groups[1]),
        is_paired=contrast.paired and options.patch != "mean",
        has_parts=contrast.paired and options.parts,
    )


def vectors_of(
    context: Context, contrast: PermutedContrast, sites: Sequence[Site], layers: Sequence[int], controls: int
) -> tuple[Vectors, ControlFacts]:
    """Return the vectors of the interventions, and what is known of their controls.

    Raises:
        RunDamagedError: a shard contains a number that is not finite.
    """
    run = context.run
    arguments = [
        (run, shared(contrast), site, run.record.layers.index(layer), controls) for site in sites for layer in layers
    ]
    found = list(run_tasks(_directions_at, arguments, context.progress, "directions of effects", rounds=1))
    scores = {layer: score for layer in run.record.layers if (score := _score_at(run, contrast, layer)) is not None}
    return stacked(found, scores), facts_of(found)


def stacked(directions: Sequence[Directions], scores: Mapping[int, NDArray[np.float64]]) -> Vectors:
    """Return the vectors of all places, from the directions at each place and the vectors of the scores by layer."""
    return Vectors(
        differences=np.stack([one.difference for one in directions]).astype(np.float32),
        means=np.stack([one.means for one in directions], axis=1).astype(np.float32),
        matched=np.stack([one.matched for one in directions], axis=1).astype(np.float32),
        permuted=np.stack([one.permuted for one in directions], axis=1).astype(np.float32),
        scores=np.array(list(scores.values()), dtype=np.float32).reshape(-1, directions[0].difference.size),
        score_layers=tuple(scores),
    )


def _directions_at(run: Run, contrast: PermutedContrast, site: Site, layer: int, controls: int) -> Directions:
    return directions_at(contrast.samples(run, site, layer), contrast.labels[: 1 + controls])


def _score_at(run: Run, contrast: PermutedContrast, layer: int) -> NDArray[np.float64] | None:
    """Return the vector whose product with the difference of the means at a block's input is 1; None without one."""
    place = first_captured(run, [(Site.RESID_PRE, layer)])
    if place is None:
        return None
    difference = contrast.differences(run, *place)[0]
    square = float(difference @ difference)
    return difference / square if square else None


def check_range(run: Run, question: Question, vectors: Vectors) -> None:
    """Raise SpecError if a dose takes the stream out of the range of float16."""
    if run.record.model.dtype != "float16":
        return
    dose = max(map(abs, question.doses))
    controls = np.abs(np.concatenate([vectors.matched, vectors.permuted])).max(axis=(0, 2))
    largest = np.abs(vectors.means).max(axis=(0, 2))
    largest += np.maximum(dose * np.abs(vectors.differences).max(axis=1), controls)
    place = int(largest.argmax())
    if largest[place] > LARGEST_FLOAT16:
        site, layer = question.places[place]
        raise SpecError(
            f"effects.doses: a dose of {dose:g} at {site}, layer {layer}, gives values up to "
            f"{largest[place]:.3g}, and float16 ends at {LARGEST_FLOAT16:.0f}; use smaller doses"
        )
