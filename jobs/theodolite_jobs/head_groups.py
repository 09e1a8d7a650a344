"""The result groups of a model's attention heads: its weights, and a run's activations → tasks by layer → results."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from dask.delayed import delayed
from numpy.typing import NDArray

from theodolite.errors import SiteNotFoundError
from theodolite.sites import Site
from theodolite.spec import HeadsSpec, digest_of
from theodolite.store.commits import Commit
from theodolite.store.complete import finished_groups
from theodolite.store.results import build_group, drop_groups, read_group, write_groups, write_layer
from theodolite.store.runs import Run
from theodolite_jobs.atlas import CIRCUITS, PROJECTIONS, SIDES, Stream, layer_atlas, vocabulary_product
from theodolite_jobs.circuits import notes_on, read_circuits
from theodolite_jobs.composition import KINDS, composition
from theodolite_jobs.heads import coverage_rank, effective_rank, stable_rank
from theodolite_jobs.passes import shard_inputs
from theodolite_jobs.pipeline import all_commits, captured_digest, quarantined
from theodolite_jobs.tasks import Progress, in_windows, scheduler

if TYPE_CHECKING:
    from theodolite.models.weights import Weights

HEADS_VERSION = COMPOSITION_VERSION = 1
"""Raised whenever a number of the group could change."""

SAMPLES = 2048
"""Prompts of a set that shares of variance rest on, at most."""

_SAMPLE_BYTES = 256 * 2**20  # of the stream that are held at once, whatever the run's size
_BY_LAYER = ("left_vectors", "right_vectors")

Arrays = dict[str, NDArray[Any]]


def survey_heads(
    run: Run, weights: "Weights", heads: HeadsSpec, dask_address: str | None, progress: Progress
) -> list[str]:
    """Compute the result groups of heads that are missing or outdated; return their names.

    Where the run has directions and activations, heads are held against them.

    Raises:
        ModelError: a projection is missing, or a weight is not finite.
        SiteNotFoundError: composition is asked for of layers that the model does not have.
    """
    _check_layers(heads, weights)
    commits = all_commits(run)
    about_stream = {"captured": captured_digest(commits), "directions": finished_groups(run).get("directions")}
    wanted = {"heads": digest_of({"vectors": vectors_digest(heads), **about_stream})}
    if heads.composition is not None:
        layers = {"layers": heads.composition, "fold_norm": heads.fold_norm}
        wanted["composition"] = digest_of({"group": "composition", "version": COMPOSITION_VERSION, **layers})
    stale = {name: digest for name, digest in wanted.items() if finished_groups(run).get(name) != digest}
    # Copying scores are left out where singular values alone are asked for.
    vocabulary = vocabulary_product(weights) if "heads" in stale and heads.vectors else None
    with scheduler(dask_address):
        if "heads" in stale:
            drop_groups(run, ["heads"])
            group = _heads(run, weights, heads, commits, vocabulary, stale["heads"], progress)
            write_groups(run, {"heads": group}, {}, {"heads": stale["heads"]})
        if "composition" in stale:
            group = _composition(weights, heads, stale["composition"], progress)
            write_groups(run, {"composition": group}, {}, {"composition": stale["composition"]})
    return list(stale)


def vectors_digest(heads: HeadsSpec) -> str:
    """Return a digest of what singular values and vectors rest on, beside the model's weights."""
    options = heads.model_dump(mode="json", exclude={"composition"})
    return digest_of({"group": "heads", "version": HEADS_VERSION, **options})


def _heads(
    run: Run,
    weights: "Weights",
    heads: HeadsSpec,
    commits: dict[str, list[Commit]],
    vocabulary: NDArray[np.float32] | None,
    digest: str,
    progress: Progress,
) -> xr.Dataset:
    sizes, n_layers = weights.dimensions, weights.dimensions.n_layers
    sets = [name for name in run.record.sets if run.record.spec.sets[name].positions != "all"]
    positions = sorted({position for name in sets for position in run.record.sets[name].positions})
    around = Directions(run)
    coordinates = {
        "circuit": CIRCUITS,
        "offset": heads.offsets,
        "layer": range(n_layers),
        "head": range(sizes.n_heads),
        "rank": range(sizes.d_head),
        "vector": range(min(heads.vectors, sizes.d_head)),
        "d_model": range(sizes.d_model),
        "projection": PROJECTIONS,
        "set": sets,
        "position": positions,
        "contrast": around.contrasts,
        "side": SIDES,
    }
    lengths = {dim: len(labels) for dim, labels in coordinates.items()}
    parts: list[Arrays] = []
    done = 0
    for layers, samples in _samples_in_pieces(run, sets, positions, commits, n_layers):
        task = delayed(layer_atlas, pure=False)
        tasks = [
            task(
                weights,
                layer,
                heads,
                Stream(around.read(layer), around.written(layer), samples.get(layer, {})),
                (len(sets), len(positions)),
                vocabulary,
            )
            for layer in layers
        ]
        for part in in_windows(tasks, lambda count, past=done: progress("heads", past + count, n_layers), rounds=1):  # type: ignore[misc]
            for name in _BY_LAYER:
                write_layer(run, "heads", name, lengths, len(parts), part.pop(name))
            parts.append(part)
        done += len(layers)
    arrays = _over_layers(parts)
    values = arrays["singular_values"]
    arrays |= {"coverage_99": coverage_rank(np.nan_to_num(values)), "effective_rank": effective_rank(values)}
    arrays |= {"stable_rank": stable_rank(values), "n_samples": _counts(run, sets, positions, commits)}
    attributes = {
        "digest": digest,
        "version": HEADS_VERSION,
        "fold_norm": int(heads.fold_norm),
        "notes": notes_on(weights, heads.fold_norm),
        "direction_position": around.position,
    }
    return build_group("heads", arrays, coordinates, attributes)


def _over_layers(parts: Sequence[Arrays]) -> Arrays:
    """Stack the parts of all layers where each variable has its layers: before its heads."""
    before_heads = {"singular_values": 2, "null_dimension": 1, "null_variance": 3, "copying_score": 0}
    before_heads |= {"direction_alignment": 2, "vector_cosine": 2}
    return {name: np.stack([part[name] for part in parts], axis) for name, axis in before_heads.items()}


class Directions:
    """The contrasts' directions in the stream, at the last position that was measured; none without `directions`."""

    def __init__(self, run: Run) -> None:
        self.contrasts: list[str] = []
        self.position = -1
        self._found: xr.DataArray | None = None
        self._nowhere = np.empty((0, run.record.model.d_model))
        if "directions" in finished_groups(run):
            self._found = read_group(run, "directions")["direction"].isel(position=-1)
            self.contrasts = self._found["contrast"].values.tolist()
            self.position = int(self._found["position"])
            self._nowhere = np.full((len(self.contrasts), run.record.model.d_model), np.nan)

    def read(self, layer: int) -> NDArray[np.float64]:
        """Return them where a layer's attention reads, (contrast, d_model); NaN where nothing was captured there."""
        return self._first([(Site.RESID_PRE, layer), (Site.RESID_POST, layer - 1)])

    def written(self, layer: int) -> NDArray[np.float64]:
        """Return them where a layer's attention has written."""
        sums = [(Site.RESID_MID_SUM, layer), (Site.RESID_MID, layer), (Site.RESID_POST, layer)]
        return self._first([*sums, (Site.RESID_PRE, layer + 1)])

    def _first(self, places: Sequence[tuple[Site, int]]) -> NDArray[np.float64]:
        if self._found is None:
            return self._nowhere
        sites, layers = (set(self._found[name].values.tolist()) for name in ("site", "layer"))
        there = [place for place in places if place[0] in sites and place[1] in layers]
        return np.asarray(self._found.sel(site=str(there[0][0]), layer=there[0][1])) if there else self._nowhere


def _samples_in_pieces(
    run: Run, sets: Sequence[str], positions: Sequence[int], commits: dict[str, list[Commit]], n_layers: int
) -> Iterator[tuple[list[int], dict[int, dict[tuple[int, int], NDArray[np.float32]]]]]:
    """Yield some layers at a time with what enters them: layer → (set, position) → (sample, d_model)."""
    everything = list(range(n_layers))
    if not sets or Site.RESID_PRE not in run.record.spec.capture.sites:
        yield everything, {}
        return
    rows = int(_counts(run, sets, positions, commits).sum())
    size = max(1, _SAMPLE_BYTES // (rows * run.record.model.d_model * 4))
    remaining = iter(everything)
    while layers := list(islice(remaining, size)):
        kept = [layer for layer in layers if layer in run.record.layers]
        yield layers, _samples(run, sets, positions, commits, kept)


def _samples(
    run: Run,
    sets: Sequence[str],
    positions: Sequence[int],
    commits: dict[str, list[Commit]],
    layers: Sequence[int],
) -> dict[int, dict[tuple[int, int], NDArray[np.float32]]]:
    found: dict[int, dict[tuple[int, int], NDArray[np.float32]]] = {layer: {} for layer in layers}
    task = delayed(shard_inputs, pure=False)
    for row, name in enumerate(sets):
        shards = [commit.index for commit in commits[name] if commit.start < SAMPLES]
        tasks = [task(run, name, index, quarantined(commits[name]), layers) for index in shards]
        parts = np.concatenate(list(in_windows(tasks, lambda _: None)))[:SAMPLES]
        for column, position in enumerate(run.record.sets[name].positions):
            for index, layer in enumerate(layers):
                found[layer][row, positions.index(position)] = parts[:, column, index]
    return found


def _counts(
    run: Run, sets: Sequence[str], positions: Sequence[int], commits: dict[str, list[Commit]]
) -> NDArray[np.int64]:
    """Return how many prompts of each set shares of variance rest on, (set, position)."""
    counts = np.zeros((len(sets), len(positions)), dtype=np.int64)
    for row, name in enumerate(sets):
        usable = min(SAMPLES, run.record.sets[name].n_samples - len(quarantined(commits[name])))
        counts[row, [positions.index(position) for position in run.record.sets[name].positions]] = usable
    return counts


def _composition(weights: "Weights", heads: HeadsSpec, digest: str, progress: Progress) -> xr.Dataset:
    assert heads.composition is not None
    layers = list(range(heads.composition[0], heads.composition[1] + 1))
    n_heads = weights.dimensions.n_heads
    score = np.full((len(KINDS), len(layers), n_heads, len(layers), n_heads), np.nan)
    pairs = [(first, second) for second in range(len(layers)) for first in range(second)]
    task = delayed(_pair_composition, pure=False)
    tasks = [task(weights, layers[first], layers[second], heads.fold_norm) for first, second in pairs]
    found = in_windows(tasks, lambda count: progress("composition", count, len(tasks)), rounds=1)
    for (first, second), values in zip(pairs, found, strict=True):
        score[:, first, :, second] = values
    coordinates: Mapping[str, Sequence[Any]] = {
        "composition": KINDS,
        "layer": layers,
        "head": range(n_heads),
        "layer_other": layers,
        "head_other": range(n_heads),
    }
    attributes = {"digest": digest, "version": COMPOSITION_VERSION, "fold_norm": int(heads.fold_norm)}
    return build_group("composition", {"score": score}, coordinates, attributes)


def _pair_composition(weights: "Weights", writer: int, reader: int, fold_norm: bool) -> NDArray[np.float64]:
    circuits = [read_circuits(weights, layer, fold_norm=fold_norm) for layer in (writer, reader)]
    return composition(*circuits)


def _check_layers(heads: HeadsSpec, weights: "Weights") -> None:
    last = weights.dimensions.n_layers - 1
    if heads.composition is not None and heads.composition[1] > last:
        raise SiteNotFoundError(
            f"heads.composition: this model has no layer {heads.composition[1]}; it has 0 to {last}"
        )
