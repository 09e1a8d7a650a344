"""Reduced shards: the first pass over captured activations in memory, and its outputs as a file.

The file is an uncompressed .npz archive of float64 arrays. `count` is the number of prompts that are not quarantined.
The other names are those of `FirstPass`, such as `moments.raw.mean`, with the shapes that it documents. Of the means of
`products`, the file has only that of the last block's output: the others are the means of `raw`.
"""

import io
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from theodolite.errors import RunDamagedError, StoreError
from theodolite.groups.schema import Output
from theodolite.sites import Site
from theodolite.store.activations import committed_bytes
from theodolite.store.commits import read_commit
from theodolite.store.layout import REDUCED
from theodolite.store.runs import Run
from theodolite_jobs.passes.norm_layers import NormLayer
from theodolite_jobs.passes.norms_and_steps import captured_blocks
from theodolite_jobs.passes.one_shard import Axes, FirstPass, Means, SecondPass, measure
from theodolite_jobs.passes.samples import SampleSelection
from theodolite_jobs.statistics.moments import Extremes, Moments
from theodolite_jobs.statistics.scatter import no_sums, scatter
from theodolite_jobs.statistics.step_products import StepProducts

_MERGED: frozenset[Output] = frozenset({"stream", "norms", "travel"})
"""The outputs that a reduced shard has: the folds serve scores of single prompts, which need stored activations."""

_AFTER_SITE = ("raw", "sphere", "norm")
"""The outputs with the dimension site before the dimension position."""


class CapturedSamples:
    """The usable samples of a captured part of a shard, in memory."""

    def __init__(
        self, activations: Mapping[Site, NDArray[np.float32]], start: int, quarantined: Collection[int]
    ) -> None:
        """Take activations as the engine returns them; their first sample has the index `start` in its set."""
        n_samples, self.n_positions = next(iter(activations.values())).shape[:2]
        self.samples = np.array([i for i in range(start, start + n_samples) if i not in quarantined], dtype=np.int64)
        self._rows, self._activations = self.samples - start, activations

    def layer(self, site: Site, index: int = 0) -> NDArray[np.float32]:
        """Return the activations at one site and an index into the run's layers, (sample, position, d_model)."""
        values = self._activations[site]
        return (values if site is Site.RESID_FINAL else values[:, :, index])[self._rows]


def reduce_samples(run: Run, samples: CapturedSamples, norms: Sequence[NormLayer] | None) -> FirstPass:
    """Return the outputs of the first pass over samples in memory.

    None for `norms` leaves out those of norm layers. A run without the site resid_pre has no steps.
    """
    missing = {"norms"} if norms is None else set()
    missing |= set() if Site.RESID_PRE in run.record.spec.capture.sites else {"travel"}
    return measure(run, samples, _MERGED - missing, norms or [])


def encode_reduced(first: FirstPass) -> bytes:
    """Return the file of a reduced shard."""
    arrays = {"count": np.asarray(first.count)}
    for kind, fields, parts in (
        ("moments", ("mean", "m2"), first.moments),
        ("extremes", ("minimum", "maximum"), first.extremes),
    ):
        for output, part in parts.items():
            arrays |= {f"{kind}.{output}.{field}": getattr(part, field) for field in fields}
    if (products := first.products) is not None:
        arrays |= {"products.travel.sums": products.sums, "products.travel.following": products.following}
        arrays["products.travel.last_mean"] = products.means[:, -1, -1]
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **arrays)
    return file.getvalue()


def read_reduced(run: Run, selection: SampleSelection, shard_index: int, outputs: Collection[Output] = ()) -> FirstPass:
    """Return the outputs of a reduced shard at the selected positions.

    Raises:
        RunDamagedError: the file is missing, has changed, or is no such file.
        StoreError: the outputs of norm layers are required, and the replica could not compute them.
    """
    commit = read_commit(run, selection.prompt_set, shard_index)
    content = committed_bytes(run, commit, REDUCED)
    try:
        first = _decode(run, content, selection.positions)
    except (ValueError, LookupError, TypeError, EOFError, BadZipFile) as error:
        raise RunDamagedError(f"{run.id}: {REDUCED} shard {commit.name} cannot be read: {error}") from error
    if "norms" in outputs and "norms" not in first.moments:
        raise StoreError(
            f"{run.id}: {REDUCED} shard {commit.name} has no numbers of the norm layers, because the version of "
            "Theodolite that captured it could not read them; leave 'sphere' out of `analyses`"
        )
    return first


def _decode(run: Run, content: bytes, positions: Sequence[int]) -> FirstPass:
    parts: dict[str, dict[str, dict[str, Any]]] = {"moments": {}, "extremes": {}, "products": {}}
    with np.load(io.BytesIO(content)) as file:
        count = int(file["count"])
        for name in set(file.files) - {"count"}:
            kind, output, field = name.split(".")
            axis = 1 if output in _AFTER_SITE else 0
            parts[kind].setdefault(output, {})[field] = file[name].take(positions, axis)
    moments = {output: Moments(count, **fields) for output, fields in parts["moments"].items()}
    extremes = {output: Extremes(**fields) for output, fields in parts["extremes"].items()}
    products = _products(run, moments, parts["products"]["travel"]) if "steps" in moments else None
    return FirstPass(moments, extremes, None, min(count, 1), products)


def _products(run: Run, moments: Mapping[str, Moments], stored: Mapping[str, NDArray[np.float64]]) -> StepProducts:
    """Return the products of a reduced shard with the means of its states."""
    raw, sites = moments["raw"], run.record.spec.capture.stream_sites

    def mean_at(site: Site, index: int) -> NDArray[np.float64]:
        return stored["last_mean"] if site is Site.RESID_FINAL else raw.mean[sites.index(site), :, index]

    nothing = np.full_like(stored["last_mean"], np.nan)
    blocks = captured_blocks(run, sites, mean_at, lambda _: None)
    means = [
        np.stack([nothing if state is None else state for state in (block.entering, block.middle, block.leaving)], 1)
        for block in blocks
    ]
    return StepProducts(raw.count, np.stack(means, axis=1), stored["sums"], stored["following"])


def second_pass_of_reduced(
    run: Run,
    positive: SampleSelection | None,
    negative: SampleSelection | None,
    shard_index: int,
    means_and_axes: tuple[Means, Axes | None],
    paired: bool,
) -> SecondPass:
    """Return a reduced shard's part of a contrast's sums: its mean counts as one sample with √n times its deviation.

    The arguments are those of `second_pass`; the samples of a reduced shard have no scores.
    """
    sides = [read_reduced(run, side, shard_index) if side is not None else None for side in (positive, negative)]
    means, _ = means_and_axes
    shape = next(iter(means.values()))[0].shape
    sums = {space: no_sums(shape[:-1]) for space in means}
    for space, both in means.items():
        parts = [None if side is None or side.count == 0 else side.moments[space] for side in sides]
        for at in np.ndindex(shape[:-1]):
            p, q = (
                np.empty((0, shape[-1])) if part is None else _as_one_sample(part, mean, at)
                for part, mean in zip(parts, both, strict=True)
            )
            part = scatter(p, q, both[0][at], both[1][at], paired=paired and None not in parts)
            sums[space].put(at, replace(part, cross_trace=np.zeros(())))  # single pairs know it better
    return SecondPass(sums, {space: ((), ()) for space in means}, (), ())


def _as_one_sample(part: Moments, mean: NDArray[np.float64], at: tuple[int, ...]) -> NDArray[np.float64]:
    return np.asarray(mean[at] + np.sqrt(part.count) * (part.mean[at] - mean[at]))[None]
