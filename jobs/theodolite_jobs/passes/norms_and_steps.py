"""Norm layers and steps through the blocks, measured layer by layer on one shard."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from theodolite.sites import Site, leaving_block
from theodolite.store.runs import Run
from theodolite_jobs.passes.norm_layers import NormLayer
from theodolite_jobs.passes.samples import Samples
from theodolite_jobs.passes.selections import branches_add, first_captured
from theodolite_jobs.statistics import norm_quantities
from theodolite_jobs.statistics.kernels import row_lengths
from theodolite_jobs.statistics.moments import Moments, moments
from theodolite_jobs.statistics.step_products import StepProducts
from theodolite_jobs.statistics.steps import Block, travel

At = Callable[[Site, int], NDArray[np.float32]]
"""Return the activations at a site and an index into the run's layers, (sample · position, d_model)."""


def cached_reader(shard: Samples) -> At:
    """Return a reader that caches the latest layers, since several statistics read each layer."""

    @lru_cache(maxsize=2 * len(Site))
    def at(site: Site, index: int) -> NDArray[np.float32]:
        values = shard.layer(site, index)
        return values.reshape(-1, values.shape[-1])

    return at


def measure_norms(
    into: NDArray[np.float64], norms: Sequence[NormLayer], at: At, layer_index: int, *, last: bool
) -> None:
    """Fill in the quantities of a layer's norms, (row, norm, quantity), and with the last layer of the final norm."""
    for number, norm in enumerate(norms):
        is_final = norm.sites == (Site.RESID_FINAL,)
        if norm.sites and (last if is_final else norm.layer_index == layer_index):
            parts = [at(site, norm.layer_index) for site in norm.sites]
            x = parts[0] if len(parts) == 1 else np.asarray(np.sum(parts, axis=0, dtype=np.float64))
            measure = norm_quantities.input_quantities if norm.reads else norm_quantities.output_quantities
            into[:, number] = measure(x, norm.norm)


def travel_outputs(
    run: Run, blocks: Iterable[Block], n_samples: int, n_positions: int
) -> tuple[dict[str, Moments], StepProducts]:
    """Return moments of the steps, (position, layer, step), and of the path, (position, quantity), and the products."""
    found = travel(blocks, n_samples, n_positions, len(run.record.layers))
    if len(run.record.layers) < run.record.model.n_layers:  # not all layers were captured, so the path is incomplete
        found.path[:] = np.nan
    return {"steps": moments(found.steps), "path": moments(found.path)}, found.products


def captured_blocks(
    run: Run, sites: Sequence[Site], at: Callable[[Site, int], NDArray[np.floating]], visit: Callable[[int], None]
) -> Iterator[Block]:
    """Yield each captured block, after a call of `visit` with the block's index; `at` may also return means."""
    layers, sums = run.record.layers, Site.RESID_MID in sites and branches_add(run)
    for index, layer in enumerate(layers):
        visit(index)
        captured = first_captured(run, leaving_block(layer, run.record.model.n_layers))
        leaving = None if captured is None else at(*captured)
        entering, middle = at(Site.RESID_PRE, index), at(Site.RESID_MID, index) if sums else None
        branches = (first_captured(run, [(site, layer)]) for site in (Site.ATTN_OUT, Site.MLP_OUT))
        attn, mlp = (None if place is None else row_lengths(at(*place)) for place in branches)
        yield Block(entering, middle, leaving, attn, mlp, follows=layers[index - 1 : index] == [layer - 1])
