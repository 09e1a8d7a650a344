"""The result group `gram`: shape of each set's samples at every site and layer, and similarity of layers."""

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from theodolite.errors import RunDamagedError, StoreError
from theodolite.groups import GROUPS
from theodolite.sites import Site, leaving_block
from theodolite.store.activations import read_positive_counts
from theodolite.store.commits import Commit, damages
from theodolite.store.runs import Run
from theodolite_jobs.passes.samples import SampleSelection
from theodolite_jobs.passes.selections import first_captured, quarantined
from theodolite_jobs.results.context import Context, Result
from theodolite_jobs.results.gram_layer import TRANSFORMS, PointCloud, pair_shape, set_shape
from theodolite_jobs.statistics.gram import effective_rank_of_gaussian, participation_ratio_of_gaussian
from theodolite_jobs.statistics.gram_cka import linear_cka, linear_cka_debiased
from theodolite_jobs.statistics.gram_orthants import orthant_occupancy, orthant_overlap
from theodolite_jobs.tasks import Progress, run_tasks

_ENTRIES = 1 << 16  # of each packed matrix in one product

Point = tuple[Site, int]
"""A site and an index into the run's layers; `resid_final` has index 0."""


def digest_inputs(context: Context) -> dict[str, Any]:
    """Return the contents of the group's digest."""
    return context.digest_inputs("gram", context.contrasts, samples=context.spec.gram.samples)


def compute(context: Context) -> Result:
    """Return the group from the first usable samples of each set, layer by layer.

    Raises:
        RunDamagedError: a shard differs from its commit record, or contains a number that is not finite.
        StoreError: a temporary file cannot be written.
    """
    run, commits, coordinates = context.run, context.commits, context.coordinates
    arrays = _Arrays(coordinates)
    clouds = {
        (name, position): _cloud(run, name, position, commits[name], context.spec.gram.samples)
        for name in coordinates["set"]
        for position in run.record.sets[name].positions
    }
    with context.tasks():
        _verify(run, clouds.values(), commits, context.progress)
        for (name, position), cloud in clouds.items():
            arrays.put(name, position, _set_variables(run, cloud, context.progress))
        for name in coordinates["set"]:
            for position, values in _orthants(run, name, commits[name]).items():
                arrays.put(name, position, values)
        for label, contrast in context.contrasts.items():
            for position in coordinates["position"]:
                sides = [clouds.get((contrast[side], position)) for side in ("positive", "negative")]
                if sides[0] and sides[1]:
                    arrays.put(label, position, _pair_variables(run, label, sides[0], sides[1], context.progress))
    attributes = {"contrasts": context.contrasts, "options": context.spec.gram.model_dump()}
    return Result(arrays.values, coordinates, attributes)


class _Arrays:
    """The group's variables, filled in for one set or contrast and one position at a time."""

    def __init__(self, coordinates: Mapping[str, Sequence[Any]]) -> None:
        self.coordinates = coordinates
        self.dims = {variable.name: variable.dims for variable in GROUPS["gram"].variables}
        fills = {"float64": np.nan, "int64": -1}
        self.values = {
            variable.name: np.full([len(coordinates[dim]) for dim in variable.dims], fills[variable.dtype])
            for variable in GROUPS["gram"].variables
        }
        self.values["n_samples"][:] = 0

    def put(self, label: str, position: int, values: Mapping[str, Any]) -> None:
        """Fill in the values of a set or contrast at a position."""
        column = self.coordinates["position"].index(position)
        for name, value in values.items():
            row = self.coordinates[self.dims[name][0]].index(label)
            self.values[name][(row, slice(None), column) if "site" in self.dims[name] else (row, column)] = value


def _cloud(run: Run, name: str, position: int, commits: Sequence[Commit], limit: int) -> PointCloud:
    """Return the first usable samples of a set."""
    bad = quarantined(commits)
    usable = [sample for sample in range(run.record.sets[name].n_samples) if sample not in bad][:limit]
    index = run.record.sets[name].positions.index(position)
    return PointCloud(SampleSelection(name, bad, (index,)), tuple(usable))


def _verify(
    run: Run, clouds: Iterable[PointCloud], commits: Mapping[str, Sequence[Commit]], progress: Progress
) -> None:
    """Compare each shard that is read layer by layer with its commit record; raise RunDamagedError if they differ."""
    last = {cloud.selection.prompt_set: max(cloud.samples, default=-1) for cloud in clouds}
    needed = [commit for name, stop in last.items() for commit in commits[name] if commit.start <= stop]
    arguments = [(run, commit) for commit in needed]
    for damage in run_tasks(_damages_of, arguments, lambda done: progress("checking shards", done, len(needed))):
        if damage:
            raise RunDamagedError(f"{run.id}: {damage[0]}; run `theodolite verify {run.id}`")


def _damages_of(run: Run, commit: Commit) -> list[str]:
    return list(damages(run.location, commit))


def _set_variables(run: Run, cloud: PointCloud, progress: Progress) -> dict[str, Any]:
    """Return the variables of a set at one position: (site, layer), (layer,) or a number."""
    n, sites = len(cloud.samples), list(run.record.spec.capture.sites)
    arrays: dict[str, Any] = {
        "n_samples": n,
        "participation_ratio_gaussian": participation_ratio_of_gaussian(n, run.record.model.d_model),
        "effective_rank_gaussian": effective_rank_of_gaussian(n, run.record.model.d_model),
    }
    if n == 0:  # all samples are quarantined
        return arrays
    points = [(site, index) for site in sites for index in range(len(run.record.layers))]
    shape = len(sites), len(run.record.layers)
    products, diagonals, values = _similarities(run, cloud, [*points, (Site.RESID_FINAL, 0)], progress)
    for name in values[0]:
        arrays[name] = np.array([point[name] for point in values[:-1]]).reshape(shape)
    for space, prefix in enumerate(TRANSFORMS):
        plain, debiased = linear_cka(products[space]), linear_cka_debiased(products[space], diagonals[space])
        for name, matrix in (("linear_cka", plain), ("linear_cka_debiased", debiased)):
            arrays[prefix + name] = _within_sites(matrix, *shape)
        if not prefix:
            arrays |= _along_blocks(run, sites, debiased)
    return arrays


def _similarities(
    run: Run, cloud: PointCloud, points: Sequence[Point], progress: Progress
) -> tuple[NDArray[np.float64], NDArray[np.float64], list[dict[str, float]]]:
    """Return inner products of all points' centred Gram matrices, (space, point, point), their diagonals and values.

    The matrices of a large run do not fit into memory together, so they go to a temporary file and are read in tiles.
    """
    n = len(cloud.samples)
    entries = n * (n + 1) // 2
    arguments = [(run, cloud, site, index) for site, index in points]
    what = f"Gram matrices of {cloud.selection.prompt_set}"
    shapes = run_tasks(set_shape, arguments, lambda done: progress(what, done, len(points)), rounds=1)
    products = np.zeros((len(TRANSFORMS), len(points), len(points)))
    diagonals = np.empty((len(TRANSFORMS), len(points), n))
    values = []
    with _scratch() as file:
        for index, shape in enumerate(shapes):
            values.append(shape.values)
            diagonals[:, index] = shape.diagonals
            file.write(shape.packed.tobytes())  # (point, space, entry)
        file.flush()
        for space in range(len(TRANSFORMS)):
            for start in range(0, entries, _ENTRIES):
                count = min(_ENTRIES, entries - start)
                tile = np.empty((len(points), count))
                for index in range(len(points)):
                    file.seek(8 * ((index * len(TRANSFORMS) + space) * entries + start))
                    tile[index] = np.frombuffer(file.read(8 * count))
                products[space] += tile @ tile.T
    return products, diagonals, values


@contextmanager
def _scratch() -> Iterator[Any]:
    """Open a temporary file; raise StoreError if it cannot be written."""
    try:
        with tempfile.TemporaryFile() as file:
            yield file
    except OSError as error:
        raise StoreError(
            f"Gram matrices cannot be written to a temporary file in {tempfile.gettempdir()}: {error.strerror}; "
            "set TMPDIR to a folder with more space"
        ) from error


def _within_sites(matrix: NDArray[np.float64], n_sites: int, n_layers: int) -> NDArray[np.float64]:
    """Return (site, layer, layer_other) from a matrix over all points, the last of which is `resid_final`."""
    whole = matrix[:-1, :-1].reshape(n_sites, n_layers, n_sites, n_layers)
    return np.stack([whole[site, :, site] for site in range(n_sites)])


def _along_blocks(run: Run, sites: Sequence[Site], debiased: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
    """Return debiased CKA between each block's input, middle and output, (layer,); NaN where one is not captured."""
    layers = run.record.layers

    def row(candidates: Sequence[tuple[Site, int]]) -> int | None:
        captured = first_captured(run, candidates)
        if captured is None:
            return None
        site, index = captured
        return len(debiased) - 1 if site is Site.RESID_FINAL else sites.index(site) * len(layers) + index

    names = {"cka_attention": (0, 1), "cka_mlp": (1, 2), "cka_block": (0, 2)}
    similarities = {name: np.full(len(layers), np.nan) for name in names}
    for index, layer in enumerate(layers):
        leaving = leaving_block(layer, run.record.model.n_layers)
        rows = row([(Site.RESID_PRE, layer)]), row([(Site.RESID_MID, layer)]), row(leaving)
        for name, (first, second) in names.items():
            if rows[first] is not None and rows[second] is not None:
                similarities[name][index] = debiased[rows[first], rows[second]]
    return similarities


def _orthants(run: Run, name: str, commits: Sequence[Commit]) -> dict[int, dict[str, Any]]:
    """Return the shares of a set's active hidden units, (layer,), by position; empty if a shard has no counts."""
    counts: Any = 0
    for commit in commits:
        counted = read_positive_counts(run, commit)
        if counted is None:
            return {}
        counts = counts + counted.astype(np.int64)
    n = run.record.sets[name].n_samples - len(quarantined(commits))
    return {
        position: {
            "orthant_occupancy": orthant_occupancy(counts[index], n),
            "orthant_overlap": orthant_overlap(counts[index], n),
        }
        for index, position in enumerate(run.record.sets[name].positions)
    }


def _pair_variables(
    run: Run, label: str, positive: PointCloud, negative: PointCloud, progress: Progress
) -> dict[str, Any]:
    """Return the variables of a contrast at one position, (site, layer)."""
    if not positive.samples or not negative.samples:
        return {}
    sites, n_layers = list(run.record.spec.capture.sites), len(run.record.layers)
    arguments = [(run, positive, negative, site, index) for site in sites for index in range(n_layers)]
    what = f"clusters of {label}"
    points = list(run_tasks(pair_shape, arguments, lambda done: progress(what, done, len(arguments))))
    return {name: np.array([point[name] for point in points]).reshape(len(sites), n_layers) for name in points[0]}
