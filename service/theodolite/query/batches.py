"""The stored activations of a set at one depth as shuffled batches, for example to train on them."""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import prod
from numbers import Integral

import numpy as np
from numpy.typing import NDArray

from theodolite.errors import ResultsNotFoundError, SpecError
from theodolite.query.activations import READERS, chosen_places, commit_of, usable_positions
from theodolite.sites import Site
from theodolite.spec_parts import Label
from theodolite.store.runs import Run
from theodolite.store.shards import read_layers, vector_shape

BLOCK_BYTES = 2**27
"""Activations that are shuffled together; two such blocks are in memory, and one more while a batch spans two."""


def read_batches(
    run: Run,
    prompt_set: str,
    site: str,
    layer: int | None,
    size: int,
    seed: int = 0,
    position: Label | None = None,
    start: int = 0,
) -> Iterator[NDArray[np.float32]]:
    """Return an iterator over all vectors of a set at a site and a layer, once each, (size, d_model).

    The last batch may be smaller. The order depends on the seed alone: shards in random order are joined to blocks,
    whose vectors are shuffled. Quarantined prompts, and positions before the first token of a prompt, are left out.
    `start` leaves out the first batches, without reading the blocks before them.

    Raises as `read_activations` does; SpecError also if the layer lacks the site, or a size, seed or start is none.
    """
    for name, given, least in (("size", size, 1), ("seed", seed, 0), ("start", start, 0)):
        if not isinstance(given, Integral) or given < least:
            raise SpecError(f"{name}: given {given!r}; allowed: a whole number of at least {least}")
    if layer is None and site != Site.RESID_FINAL:
        raise SpecError(f"layer: not given; batches have one of the layers {run.record.layers}")
    layers, positions = [] if layer is None else [layer], [] if position is None else [position]
    chosen, places = chosen_places(run, prompt_set, site, layers, positions)
    if layer is not None and not run.record.has_site(chosen, layer):
        raise SpecError(f"layer: given {layer}, which has no {chosen}: {run.record.partial_sites[chosen].reason}")
    captured = run.record.sets[prompt_set].positions
    index = run.record.layers.index(layer) if layer is not None and chosen is not Site.RESID_FINAL else 0
    source = _Source(run, prompt_set, chosen, index, [captured.index(one) for one in places["position"]])
    usable = usable_positions(run, prompt_set, places["position"])
    if not usable.any():
        raise ResultsNotFoundError(f"{run.id}: no prompt of {prompt_set} has usable activations at this position")
    return _batches(source, usable, size, seed, start)


@dataclass(frozen=True)
class _Source:
    run: Run
    prompt_set: str
    site: Site
    layer: int
    positions: list[int]  # indices

    def vectors(self, shard: int, usable: NDArray[np.bool_]) -> NDArray[np.float32]:
        """Return the usable vectors of a shard, (vector, *features); `usable` is (sample, position)."""
        (layer,) = read_layers(self.run, commit_of(self.run, self.prompt_set, shard), self.site, [self.layer])
        if usable.all() and usable.shape == layer.shape[:2]:
            return layer.reshape(-1, *layer.shape[2:])
        samples, positions = np.nonzero(usable)
        chosen: NDArray[np.float32] = layer[samples, np.array(self.positions)[positions]]
        return chosen


def _batches(
    source: _Source, usable: NDArray[np.bool_], size: int, seed: int, start: int
) -> Iterator[NDArray[np.float32]]:
    bounds, width = source.run.record.bounds(source.prompt_set), prod(vector_shape(source.run, source.site))
    per_block = max(1, BLOCK_BYTES // (4 * width * bounds.shard_prompts * len(source.positions)))
    order = np.random.default_rng([seed, 0]).permutation(bounds.n_stored).tolist()
    filled = [shard for shard in order if usable[slice(*bounds.of(shard))].any()]
    blocks = [filled[first : first + per_block] for first in range(0, len(filled), per_block)]
    counts = [sum(int(usable[slice(*bounds.of(shard))].sum()) for shard in block) for block in blocks]
    with ThreadPoolExecutor(READERS) as readers, ThreadPoolExecutor(1) as ahead:

        def load(number: int) -> NDArray[np.float32]:
            places = np.random.default_rng([seed, 1, number]).permutation(counts[number])
            own = [usable[slice(*bounds.of(shard))] for shard in blocks[number]]
            values, first = np.empty((0,), np.float32), 0
            for part in readers.map(source.vectors, blocks[number], own):
                if not first:
                    values = np.empty((counts[number], *part.shape[1:]), np.float32)
                values[places[first : first + len(part)]] = part
                first += len(part)
            return values

        skipped, waiting = start * size, deque(range(len(blocks)))
        while waiting and counts[waiting[0]] <= skipped:
            skipped -= counts[waiting.popleft()]
        following = ahead.submit(load, waiting.popleft()) if waiting else None
        left: NDArray[np.float32] | None = None
        while following is not None:
            values = following.result()[skipped:]
            following, skipped = ahead.submit(load, waiting.popleft()) if waiting else None, 0
            if left is not None and len(left):
                joined, values = np.concatenate([left, values[: size - len(left)]]), values[size - len(left) :]
                if len(joined) < size:
                    left = joined
                    continue
                yield joined
            whole = len(values) // size * size
            yield from (values[first : first + size] for first in range(0, whole, size))
            left = values[whole:].copy()
            del values
        if left is not None and len(left):
            yield left
