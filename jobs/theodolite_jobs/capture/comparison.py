"""Compare captured probes with plain Hugging Face runs of them; in half precision, both with a float32 run too."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter

import numpy as np
import torch
from numpy.typing import NDArray

from theodolite.sites import Site
from theodolite.spec import Spans, TokenIds
from theodolite_jobs.capture.engine import Engine
from theodolite_jobs.capture.plan import SetLayout, one_batch
from theodolite_jobs.capture.probes import Probes, batches_of
from theodolite_jobs.capture.rounding import Rounding
from theodolite_jobs.models.loaded import LoadedModel
from theodolite_jobs.models.precision import computed_in
from theodolite_jobs.models.reference import Reading, at_layers, identity_errors, read_sites, relative_errors
from theodolite_jobs.models.routing import (
    Chosen,
    Kind,
    first_rerouted,
    recorded_routing,
    routing_kind,
    routing_of_batch,
    routing_of_prompt,
)


@dataclass(frozen=True)
class Comparison:
    """The sites and layers to compare, on the probe prompts of each set, which are captured as the set is."""

    sites: tuple[Site, ...]
    layers: tuple[int, ...]
    layouts: Mapping[str, SetLayout]
    probes: Probes
    few: Probes  # the first probes of each set, whose batches have padding


@dataclass(frozen=True)
class Measured:
    """The errors of each site's vectors and of the identities, and the smallest cosine."""

    errors: dict[Site, NDArray[np.float64]]
    identities: dict[str, float]
    min_cosine: float
    worst: tuple[TokenIds, Spans]  # the probe with the largest error, and its captured tokens
    rounding: Rounding | None = None  # the distances from float32, in half precision

    # np.max returns NaN if any value is NaN, which then fails the check; Python's max could drop it.
    @property
    def max_error(self) -> float:
        """The largest error."""
        return float(np.max([error.max() for error in self.errors.values()]))

    @property
    def identity_error(self) -> float:
        """The largest error of the identities."""
        return float(np.max(list(self.identities.values())))


@dataclass(frozen=True)
class _Captured:
    """A captured probe: its vectors at each site, (vector, feature), and the experts of its tokens."""

    ids: TokenIds
    spans: Spans
    vectors: dict[Site, NDArray[np.float64]]
    chosen: Chosen


@np.errstate(invalid="ignore", over="ignore")  # float16 overflows; the errors are then NaN or infinite
def measure(
    model: LoadedModel,
    comparison: Comparison,
    reference_model: LoadedModel | None = None,
    exact: torch.dtype | None = None,
) -> Measured:
    """Compare the captured probes with a plain run of each, by `reference_model` or else by the same model.

    If `exact` is a wider dtype, compare both with a plain run in this dtype too.
    """
    reference = reference_model or model
    errors: dict[Site, list[NDArray[np.float64]]] = {site: [] for site in comparison.sites}
    distances = _Distances({site: reference.anatomy.layers_with(site, comparison.layers) for site in comparison.sites})
    identities: dict[str, float] = {}
    cosines, of_probes = [1.0], []
    for probe in _captured(model, comparison):
        with recorded_routing(reference) as calls:
            reading = read_sites(reference, probe.ids, probe.spans)
        # Identities with a norm hold for tokens, and not for their means.
        has_means = any(stop - start > 1 for start, stop in probe.spans)
        of_tokens = read_sites(reference, probe.ids, [-1]) if has_means else reading
        for identity, error in identity_errors(reference, of_tokens).items():
            identities[identity] = float(np.maximum(identities.get(identity, 0.0), error))
        plain = _vectors(reference, reading, comparison)
        for site, vectors in plain.items():
            errors[site].append(relative_errors(probe.vectors[site], vectors))
            cosines.append(min_cosine(probe.vectors[site], vectors))
        largest = float(np.max([errors[site][-1].max(initial=0.0) for site in plain]))
        of_probes.append((largest, (probe.ids, probe.spans)))
        if exact is not None and probe.spans:
            with computed_in(model, exact), recorded_routing(model) as exact_calls:
                reading = read_sites(model, probe.ids, probe.spans)
            chosen = routing_of_prompt(calls), routing_of_prompt(exact_calls)
            distances.add(probe, plain, _vectors(model, reading, comparison), *chosen)
    joined = {site: np.concatenate(parts) for site, parts in errors.items()}
    rounding = distances.rounding(routing_kind(model)) if exact is not None else None
    _, worst = max(of_probes, key=itemgetter(0))
    return Measured(joined, identities, float(np.min(cosines)), worst, rounding)


def distance_from_float64(model: LoadedModel, comparison: Comparison, ids: TokenIds, spans: Spans) -> float:
    """Return the largest distance ‖x − y‖ / ‖y‖ of a plain run of one prompt in float32 from one in float64."""
    runs = []
    for dtype in (torch.float32, torch.float64):
        with computed_in(model, dtype):
            runs.append(_vectors(model, read_sites(model, ids, spans), comparison))
    return float(np.max([relative_errors(x, runs[1][site]).max(initial=0.0) for site, x in runs[0].items()]))


def _captured(model: LoadedModel, comparison: Comparison) -> Iterator[_Captured]:
    """Capture the probes batch by batch, and yield them."""
    engine = Engine(model, comparison.sites, comparison.layers)
    for name, layout in comparison.layouts.items():
        prefix: Chosen = {}
        for batch in batches_of(model, comparison.probes[name], len(comparison.few[name])):
            prompts = [comparison.probes[name][probe] for probe in batch]
            with recorded_routing(model) as calls:
                captured = engine.capture(one_batch(name, layout, prompts))
            lengths = [len(ids) - layout.shared_prefix for ids in prompts]
            for row, (ids, chosen) in enumerate(zip(prompts, routing_of_batch(calls, lengths, prefix), strict=True)):
                spans = tuple(span for span in layout.spans_of(ids) if span[0] >= 0)
                first = len(layout.positions) - len(spans)
                vectors = {
                    site: engine.measured(site, values)[row, first:].reshape(-1, engine.width(site)).astype(np.float64)
                    for site, values in captured.activations.items()
                }
                yield _Captured(ids, spans, vectors, chosen)


def change_by_padding(model: LoadedModel, comparison: Comparison) -> float:
    """Return how much the vectors of plain runs change if the padding of its batch follows a prompt.

    In exact arithmetic, a causal model does not change: tokens do not attend to later tokens.
    """
    changes = [0.0]
    for name, layout in comparison.layouts.items():
        probes = comparison.probes[name]
        for batch in batches_of(model, probes, len(comparison.few[name])):
            longest = max(len(probes[probe]) for probe in batch)
            for ids in (probes[probe] for probe in batch):
                padding = longest - len(ids)
                spans = [span for span in layout.spans_of(ids) if span[0] >= 0]
                alone = read_sites(model, ids, spans)
                padded = read_sites(model, (*ids, *(0,) * padding), spans)
                layers = range(len(model.blocks))
                changes += [
                    relative_errors(*(at_layers(model, one, site, layers) for one in (padded, alone))).max(initial=0.0)
                    for site in alone
                ]
    return float(np.max(changes))


def _vectors(model: LoadedModel, reading: Reading, comparison: Comparison) -> dict[Site, NDArray[np.float64]]:
    """Return the vectors of a plain run at each site and layer of the comparison, (vector, feature)."""
    chosen = {site: at_layers(model, reading, site, comparison.layers) for site in comparison.sites}
    return {site: values.reshape(-1, values.shape[-1]) for site, values in chosen.items()}


class _Distances:
    """Collects the distances of the probes from a run in a wider dtype."""

    def __init__(self, layers: Mapping[Site, Sequence[int]]) -> None:
        self._layers = layers
        self._captured: dict[Site, list[NDArray[np.float64]]] = {site: [] for site in layers}
        self._plain: dict[Site, list[NDArray[np.float64]]] = {site: [] for site in layers}
        self._rerouted: list[float] = []
        self._flips, self._routed = 0, 0

    def add(
        self,
        probe: _Captured,
        plain: Mapping[Site, NDArray[np.float64]],
        exact: Mapping[Site, NDArray[np.float64]],
        chosen: Chosen,
        exact_chosen: Chosen,
    ) -> None:
        for site, vectors in exact.items():
            shape = len(probe.spans), -1  # the vectors of a position are those of its layers
            self._captured[site].append(relative_errors(probe.vectors[site], vectors).reshape(shape).max(axis=0))
            self._plain[site].append(relative_errors(plain[site], vectors).reshape(shape).max(axis=0))
        _, flips, routed = first_rerouted(probe.chosen, chosen)
        self._rerouted.append(min(first_rerouted(one, exact_chosen)[0] for one in (probe.chosen, chosen)))
        self._flips, self._routed = self._flips + flips, self._routed + routed

    def rounding(self, kind: Kind) -> Rounding:
        if kind == "compared" and not self._routed:
            kind = "unknown"
        return Rounding(
            layers=self._layers,
            captured={site: np.stack(rows) for site, rows in self._captured.items()},
            plain={site: np.stack(rows) for site, rows in self._plain.items()},
            rerouted_from=np.zeros(len(self._rerouted)) if kind == "unknown" else np.asarray(self._rerouted),
            routing=kind,
            flips=self._flips,
            routed=self._routed,
        )


def min_cosine(ours: NDArray[np.float64], reference: NDArray[np.float64]) -> float:
    """Return the smallest cosine between corresponding vectors, (vector, feature); 1 if all are zero."""
    product = (ours * reference).sum(axis=-1)
    scale = np.linalg.norm(ours, axis=-1) * np.linalg.norm(reference, axis=-1)
    used = ~(scale == 0)  # a NaN is not dropped, and fails the check
    return float((product[used] / scale[used]).min(initial=1.0))
