"""The analysis `gram`: shape of each set's samples at every site and layer, and similarity of layers."""

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from theodolite.errors import StoreError
from theodolite.groups import GROUPS
from theodolite.groups.gram.record import SPACES
from theodolite.groups.schema import SUBLAYERS
from theodolite.sites import Site
from theodolite.spec_parts import Label
from theodolite.store.activations import read_positive_counts
from theodolite.store.records import Commit
from theodolite.store.runs import Run
from theodolite_jobs.groups.gram.blocks import branch_cka, branches, through_blocks
from theodolite_jobs.groups.gram.formulas import effective_rank_of_gaussian, participation_ratio_of_gaussian
from theodolite_jobs.groups.gram.formulas_cka import linear_cka, linear_cka_debiased
from theodolite_jobs.groups.gram.formulas_orthants import orthant_occupancy, orthant_overlap
from theodolite_jobs.groups.gram.layer import Statistics, pair_shape, set_shape
from theodolite_jobs.passes.point_clouds import PointCloud
from theodolite_jobs.passes.selections import quarantined
from theodolite_jobs.results.context import Context, Result
from theodolite_jobs.tasks import Progress, run_tasks

_FILL = {"float64": np.nan, "int64": -1, "n_samples": 0}
"""The value where a variable is not measured, by dtype or by name."""

_FILLS = {one.name: _FILL.get(one.name, _FILL[one.dtype]) for one in GROUPS["gram"].variables}


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
    labels = {**coordinates, **GROUPS["gram"].labels}
    arrays = {
        variable.name: xr.DataArray(
            np.full([len(labels[dim]) for dim in variable.dims], _FILLS[variable.name]),
            {dim: list(labels[dim]) for dim in variable.dims},
            variable.dims,
        )
        for variable in GROUPS["gram"].variables
    }

    def put(label: str, position: Label, values: Mapping[str, Any]) -> None:
        """Fill in the values of a set or contrast at a position."""
        for name, value in values.items():
            arrays[name].loc[{arrays[name].dims[0]: label, "position": position}] = value

    clouds = context.clouds(context.spec.gram.samples)
    with context.tasks():
        context.check_shards(clouds.values())
        for (name, position), cloud in clouds.items():
            put(name, position, _set_variables(run, cloud, context.progress))
        for name in coordinates["set"]:
            for own, values in _orthants(run, name, commits[name]).items():
                put(name, own, values)
        for label, contrast in context.contrasts.items():
            for position in coordinates["position"]:
                sides = [clouds.get((contrast[side], position)) for side in ("positive", "negative")]
                if sides[0] and sides[1]:
                    put(label, position, _pair_variables(run, label, sides[0], sides[1], context.progress))
    attributes = {"contrasts": context.contrasts, "options": context.spec.gram.model_dump()}
    return Result({name: array.values for name, array in arrays.items()}, coordinates, attributes)


def _set_variables(run: Run, cloud: PointCloud, progress: Progress) -> dict[str, Any]:
    """Return the variables of a set at one position: (site, layer, …), (layer, …) or a number."""
    n, sites = len(cloud.samples), list(run.record.spec.capture.stream_sites)
    arrays: dict[str, Any] = {
        "n_samples": n,
        "participation_ratio_gaussian": participation_ratio_of_gaussian(n, run.record.model.d_model),
        "effective_rank_gaussian": effective_rank_of_gaussian(n, run.record.model.d_model),
    }
    if n == 0:  # all samples are quarantined
        return arrays
    shape = len(sites), len(run.record.layers)
    arguments = [(run, cloud, site, index) for site, index in product(sites, range(shape[1]))]
    if Site.RESID_FINAL in run.record.spec.capture.all_sites:
        arguments.append((run, cloud, Site.RESID_FINAL, 0))
    shapes = run_tasks(set_shape, arguments, progress, f"Gram matrices of {cloud.prompt_set}", rounds=1)
    products, diagonals, values = similarities(shapes)
    arrays |= _by_place(values[: shape[0] * shape[1]], shape)
    plain = np.stack([linear_cka(one) for one in products], axis=-1)
    debiased = np.stack([linear_cka_debiased(*one) for one in zip(products, diagonals, strict=True)], axis=-1)
    for name, cka in (("linear_cka", plain), ("linear_cka_debiased", debiased)):
        arrays[name] = _within_sites(cka, *shape)
    of_branches, permuted = _branch_variables(run, cloud, progress)
    arrays["sublayer_cka"] = np.stack([through_blocks(run, debiased), of_branches], axis=2)  # in the order of OUTPUTS
    return arrays | {"sublayer_cka_permuted": permuted}


def _branch_variables(
    run: Run, cloud: PointCloud, progress: Progress
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the CKA between the input of each branch and what it adds, (layer, sublayer, space); NaN if unknown.

    The second array is the CKA with permuted steps, (layer, sublayer).
    """
    known = list(branches(run))
    arguments = [(run, cloud, branch) for branch in known]
    cka = np.full((len(run.record.layers), len(SUBLAYERS), len(SPACES)), np.nan)
    permuted = np.full(cka.shape[:2], np.nan)
    for branch, values in zip(known, run_tasks(branch_cka, arguments, progress, "branches"), strict=True):
        at = branch.layer, SUBLAYERS.index(branch.name)
        cka[at], permuted[at] = values
    return cka, permuted


def similarities(
    shapes: Iterable[tuple[Statistics, NDArray[np.float64], NDArray[np.float64]]], tile_entries: int = 1 << 16
) -> tuple[NDArray[np.float64], NDArray[np.float64], list[Statistics]]:
    """Return inner products of all points' centred Gram matrices, (space, point, point), their diagonals and values.

    The matrices of a large run do not fit into memory together, so they go to a temporary file and are read in tiles.

    Args:
        shapes: what `set_shape` returns for each point.
        tile_entries: entries of each packed matrix in one product.
    """
    values, diagonals = [], []
    with _scratch() as file:
        for own, packed, diagonal in shapes:
            values.append(own)
            diagonals.append(diagonal)
            file.write(packed.tobytes())  # (point, space, entry)
        file.flush()
        n_points, (n_spaces, entries) = len(values), packed.shape
        products = np.zeros((n_spaces, n_points, n_points))
        for space, start in product(range(n_spaces), range(0, entries, tile_entries)):
            count = min(tile_entries, entries - start)
            tile = np.empty((n_points, count))
            for index in range(n_points):
                file.seek(8 * ((index * n_spaces + space) * entries + start))
                tile[index] = np.frombuffer(file.read(8 * count))
            products[space] += tile @ tile.T
    return products, np.stack(diagonals, axis=1), values


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
    """Return (site, layer, layer_other, …) from (point, point, …), of which `resid_final` may be the last."""
    n_points = n_sites * n_layers
    whole = matrix[:n_points, :n_points].reshape(n_sites, n_layers, n_sites, n_layers, *matrix.shape[2:])
    return np.stack([whole[site, :, site] for site in range(n_sites)])


def _orthants(run: Run, name: str, commits: Sequence[Commit]) -> dict[Label, dict[str, Any]]:
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
    """Return the variables of a contrast at one position, (site, layer, …)."""
    if not positive.samples or not negative.samples:
        return {}
    sites, n_layers = list(run.record.spec.capture.stream_sites), len(run.record.layers)
    arguments = [(run, positive, negative, site, index) for site in sites for index in range(n_layers)]
    points = list(run_tasks(pair_shape, arguments, progress, f"clusters of {label}"))
    return _by_place(points, (len(sites), n_layers))


def _by_place(points: Sequence[Statistics], shape: tuple[int, int]) -> dict[str, NDArray[Any]]:
    """Return the values of all points by name, (site, layer, …), with the fill value where a point has none."""
    inner = {name: np.shape(value) for point in points for name, value in point.items()}
    return {
        name: np.array([point.get(name, np.full(of, _FILLS[name])) for point in points]).reshape(*shape, *of)
        for name, of in inner.items()
    }
