"""Similarity through the blocks: CKA between input and output, and between the input and what a branch adds to it."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from theodolite.groups.gram.record import SPACES
from theodolite.groups.schema import ENDS, SUBLAYERS
from theodolite.sites import Site
from theodolite.store.runs import Run
from theodolite_jobs.groups.gram.formulas_cka import cka_with_permuted_steps, linear_cka_debiased, packed
from theodolite_jobs.groups.gram.layer import TRANSFORMS
from theodolite_jobs.passes.point_clouds import PointCloud, read_cloud
from theodolite_jobs.passes.selections import block_states, branches_add, first_captured
from theodolite_jobs.statistics.gram_matrices import centred, gram

Place = tuple[Site, int]
"""A captured site, and an index into the run's layers; `resid_final` has index 0."""


class Branch(NamedTuple):
    """A branch of one block, or the whole block.

    Attributes:
        name: one of SUBLAYERS.
        layer: index into the run's layers.
        entering: its input.
        added: what it adds to the stream: a captured output, or two places whose difference is the output.
    """

    name: str
    layer: int
    entering: Place
    added: tuple[Place, ...]


def through_blocks(run: Run, debiased: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return debiased CKA between each sublayer's input and output, (layer, sublayer, space).

    It is NaN where one is not captured. `debiased` is (point, point, space); the points are (site, layer) and then
    `resid_final`.
    """
    layers, sites = run.record.layers, list(run.record.spec.capture.stream_sites)

    def row(place: Place | None) -> int | None:
        if place is None:
            return None
        return len(debiased) - 1 if place[0] is Site.RESID_FINAL else sites.index(place[0]) * len(layers) + place[1]

    cka = np.full((len(layers), len(SUBLAYERS), len(SPACES)), np.nan)
    for index, layer in enumerate(layers):
        rows = [row(place) for place in block_states(run, layer)]
        for sublayer, name in enumerate(SUBLAYERS):
            first, second = (rows[end] for end in ENDS[name])
            if first is not None and second is not None:
                cka[index, sublayer] = debiased[first, second]
    return cka


def branches(run: Run) -> Iterator[Branch]:
    """Yield the branches whose input and output are known.

    An output that was not captured is a difference of the stream. Post-norm blocks have no such difference, since the
    stream after a norm is not a sum. Parallel blocks have one only for the whole block.
    """
    is_sum = branches_add(run)
    for index, layer in enumerate(run.record.layers):
        entering, middle, leaving = block_states(run, layer)
        attention, mlp = (first_captured(run, [(site, layer)]) for site in (Site.ATTN_OUT, Site.MLP_OUT))
        # Without resid_mid, as in parallel blocks, the MLP's input is the block's input.
        inputs = {"attention": entering, "mlp": middle or entering, "block": entering}
        outputs = {
            "attention": _added(attention, entering, middle if is_sum else None),
            "mlp": _added(mlp, middle, leaving if is_sum else None),
            "block": _added(None, entering, leaving if is_sum else None),
        }
        for name, place in inputs.items():
            if place and outputs[name]:
                yield Branch(name, index, place, outputs[name])


def branch_cka(run: Run, cloud: PointCloud, branch: Branch) -> tuple[list[float], float]:
    """Return the debiased CKA between a branch's input and what it adds, in each space.

    The second number is the CKA between the input and its sum with what the branch adds to other prompts.
    """
    entering, first, *rest = (
        read_cloud(run, cloud, *place).astype(np.float64) for place in (branch.entering, *branch.added)
    )
    added = rest[0] - first if rest else first
    of_spaces = []
    for space in SPACES:
        matrices = [gram(centred(TRANSFORMS[space](x))) for x in (entering, added)]
        entries = np.stack([packed(matrix) for matrix in matrices])
        diagonals = np.stack([np.diag(matrix) for matrix in matrices])
        of_spaces.append(float(linear_cka_debiased(entries @ entries.T, diagonals)[0, 1]))
    return of_spaces, cka_with_permuted_steps(centred(entering), centred(added))


def _added(captured: Place | None, start: Place | None, end: Place | None) -> tuple[Place, ...]:
    """Return the place of a captured output, or else the two places whose difference it is; empty if it is unknown."""
    if captured:
        return (captured,)
    return (start, end) if start and end else ()
