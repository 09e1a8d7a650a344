"""Judge captured activations in half precision: they may be no farther from a float32 run than a plain run is.

In half precision, captured and plain activations are two draws of the rounding errors. A fixed bound between the two
refuses sound models: some round much, and in a mixture of experts a rounding error can route a token to other experts.
So both are compared with a float32 run, and the plain run shows which distances rounding explains.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from theodolite.sites import Site
from theodolite_jobs.models.routing import Kind

ROUNDING = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
"""The largest relative error of rounding one number: the floor of each comparison."""

FARTHER = 2.0
"""The factor between two distances from which one counts as farther. Two attention kernels can round differently."""

CHANCE = 1e-6
"""The largest probability that counts as no chance. A model of 64 layers and 7 sites has about 450 comparisons."""

OUTLIER = 4.0
"""The factor between a distance and the largest plain distance from which rounding does not explain it."""

_AFTER_EXPERTS = (Site.MLP_OUT, Site.RESID_POST)

Distances = dict[Site, NDArray[np.float64]]
"""For each site, the largest distance over the positions, (probe, layer); `resid_final` has one layer."""


@dataclass(frozen=True)
class Rounding:
    """The distances of captured and plain activations from a float32 run, and the differences of their routing."""

    layers: Mapping[Site, Sequence[int]]  # the layers of each site
    captured: Distances
    plain: Distances
    # (probe,): the first layer that routes a token to other experts than in float32, in one of the two, or infinity
    rerouted_from: NDArray[np.float64]
    routing: Kind
    flips: int  # tokens that are routed to other experts than in the plain run, summed over layers
    routed: int  # compared routings, over tokens and layers

    @property
    def n_probes(self) -> int:
        """The number of probes."""
        return len(self.rerouted_from)

    def comparable(self, site: Site) -> NDArray[np.bool_]:
        """Return the vectors before which no token is routed to other experts, (probe, layer)."""
        return np.stack([precedes_experts(site, self.layers[site], first) for first in self.rerouted_from])

    def usual(self, site: Site) -> NDArray[np.float64]:
        """Return the largest plain distance over the vectors that no routing has changed, (layer,)."""
        comparable = self.comparable(site)
        largest = np.where(comparable, self.plain[site], -np.inf).max(axis=0)
        return np.where(comparable.any(axis=0), largest, np.inf)

    def limits(self) -> tuple[Distances, Kind]:
        """Return the largest plain distance of each site, (layer,), and whether the routing can be compared."""
        return {site: self.usual(site) for site in self.plain}, self.routing

    def summary(self) -> dict[str, dict[str, list[float]]]:
        """Return the median and the 95 % quantile of the distances of each site, over probes and layers."""
        runs = {"captured": self.captured, "plain": self.plain}
        return {
            str(site): {name: np.quantile(run[site], (0.5, 0.95)).tolist() for name, run in runs.items()}
            for site in self.captured
        }


@dataclass(frozen=True)
class Limits:
    """The errors that a passed parity check implies for other prompts of the run."""

    bound: float  # the largest error in float32
    unit: float  # the distance from a wider dtype that rounding explains in any case
    usual: Distances  # in half precision: the largest distance of plain probes from float32, (layer,) for each site
    routing: Kind


def precedes_experts(site: Site, layers: Sequence[int], first: float) -> NDArray[np.bool_]:
    """Return the layers at which a site precedes the experts of layer `first`, (layer,); one for `resid_final`."""
    if site is Site.RESID_FINAL:
        return np.asarray([math.isinf(first)])
    return np.asarray(layers) < first if site in _AFTER_EXPERTS else np.asarray(layers) <= first


def allowed_distance(rounding: Rounding, site: Site, unit: float) -> NDArray[np.float64]:
    """Return the largest distance from float32 that rounding explains, (layer,)."""
    return OUTLIER * rounding.usual(site) + unit


def excess(rounding: Rounding, unit: float) -> str | None:
    """Return a sentence about distances that rounding does not explain; None if there are none.

    `unit` is the dtype's entry of `ROUNDING`. There are two rules, at each site and layer:

    - The captured vectors may not be farther in more probes than chance explains. If both runs are draws of the same
      rounding errors, each is farther by a factor of `FARTHER` equally often, so the counts are those of a fair coin.
      For 20 probes to 0, its probability is below `CHANCE`.
    - No captured vector may be farther than `OUTLIER` times the largest plain distance over the probes. Vectors after a
      token that one of the two runs routes to other experts than float32 does are left out.
    """
    worst: tuple[float, str] | None = None
    for site, captured in rounding.captured.items():
        plain = rounding.plain[site]
        n_farther = (~(captured <= FARTHER * plain + unit)).sum(axis=0)  # a NaN counts
        n_nearer = (~(plain <= FARTHER * captured + unit)).sum(axis=0)
        limit = allowed_distance(rounding, site, unit)
        outlying = ~(captured <= limit) & rounding.comparable(site)
        for index in range(captured.shape[1]):
            where = str(site) if site is Site.RESID_FINAL else f"{site}, layer {rounding.layers[site][index]}"
            distance, usual = float(captured[:, index].max()), float(plain[:, index].max())
            found = f"distance {distance:.1e} at {where}, of plain Hugging Face at most {usual:.1e}"
            if outlying[:, index].any():
                reason = f"{int(outlying[:, index].sum())} of {rounding.n_probes} probes above {limit[index]:.1e}"
            elif _coin(int(n_farther[index]), int(n_nearer[index])) < CHANCE:
                reason = f"farther in {n_farther[index]} of {rounding.n_probes} probes, nearer in {n_nearer[index]}"
            else:
                continue
            ratio = distance / (usual + unit)
            size = math.inf if math.isnan(ratio) else ratio
            if worst is None or size > worst[0]:
                worst = size, f"{found} ({reason})"
    return worst[1] if worst else None


def _coin(heads: int, tails: int) -> float:
    """Return the probability that a fair coin shows at least so many heads."""
    n = heads + tails
    return float(sum(math.comb(n, k) for k in range(heads, n + 1)) / 2**n)
