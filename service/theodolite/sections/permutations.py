"""Sentences about a contrast's statistics against permuted labels, for the section of the group `separation`."""

from collections.abc import Iterator
from statistics import NormalDist

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from theodolite.groups.permutations import LEVEL
from theodolite.query.curves import has_values
from theodolite.sections.parts import SIDES, layer_text, listed, null_text
from theodolite.sites import Site, depth

_NAMES = {
    "auroc": "AUROC",
    "paired_accuracy": "share of pairs in the right order",
    "difference_norm": "distance of the two means",
    "silhouette": "silhouette of the two sets (from -1 to 1; near 0 or below, the sets are no clusters)",
}


def permutation_facts(tests: xr.Dataset) -> Iterator[str]:
    """Yield a sentence about each statistic of one contrast that is tested against permuted labels, (site, layer)."""
    counts = " and ".join(str(int(tests[f"n_{side}"])) for side in SIDES)
    texts = {name: text for statistic, name in _NAMES.items() if (text := _test(tests, statistic))}
    if texts:
        yield (
            f"Number of depths at which a statistic exceeds its values under permuted labels (family-wise p of at most "
            f"{LEVEL}, {counts} prompts): {listed(texts)}."
        )


def _test(tests: xr.Dataset, statistic: str) -> str:
    """Return how many depths pass a test, and the depth with the largest z; empty if no depth is tested."""
    places = tests.stack(point=("site", "layer"))
    z, p = places[f"{statistic}_z"].values, places[f"{statistic}_p_family"].values
    if not np.isfinite(z).any():  # a contrast without pairs, or a statistic that no permutation changes
        return ""
    best = places.isel(point=int(np.nanargmax(z)))
    where = layer_text(depth(Site(str(best["site"].values)), int(best["layer"])))
    value = float(best[f"{statistic}_null_mean"] + best[f"{statistic}_z"] * best[f"{statistic}_null_sd"])
    return (
        f"{(p <= LEVEL).sum()} of {np.isfinite(z).sum()} (largest z {np.nanmax(z):.1f}, at {where}, where it is "
        f"{value:.3g} and {null_text(best, statistic, '.2g', 'depths')})"
    )


def control_facts(tests: xr.Dataset) -> Iterator[str]:
    """Yield sentences about the AUROC on the sphere and of the norm alone, of one contrast, (site, layer)."""
    names = {
        "on_sphere_auroc": "Scaled to the same norm, so that only directions differ, the activations separate the sets",
        "norm_auroc": "The length of the activations alone (AUROC, where a value below 0.5 counts as 1 - AUROC) "
        "differs between the sets",
    }
    for name, text in names.items():
        if not has_values(tests, name):
            continue
        places = tests.stack(point=("site", "layer"))
        best = places.isel(point=int(np.nanargmax(places[name].values)))
        where = layer_text(depth(Site(str(best["site"].values)), int(best["layer"])))
        value, low, high = (float(best[f"{name}{end}"]) for end in ("", "_band_low", "_band_high"))
        p = places[f"{name}_p_family"].values
        yield (
            f"{text} at {(p <= LEVEL).sum()} of {np.isfinite(p).sum()} depths (family-wise p of at most {LEVEL}). The "
            f"largest AUROC is {value:.3f} [{low:.3f}, {high:.3f}] at {where}, where "
            f"{null_text(best, name, '.2f', 'depths')}."
        )


def cosine_facts(directions: xr.Dataset, tests: xr.Dataset) -> Iterator[str]:
    """Yield a sentence about the cosines between neighbouring layers' directions."""
    texts = {}
    for site in directions["site"].values.tolist():
        cosines = np.diagonal(directions["direction_cosine"].sel(site=site), offset=1)
        permuted = np.diagonal(tests["direction_cosine_null_mean"].sel(site=site), offset=1)
        if np.isfinite(cosines + permuted).any():
            spread = np.diagonal(tests["direction_cosine_null_sd"].sel(site=site), offset=1)
            text = f"permuted labels give {np.nanmedian(permuted):.2f}{_distinct(cosines - permuted, spread)}"
            texts[site] = f"{np.nanmedian(cosines):.2f} ({text})"
    if texts:
        yield f"Median cosine between the directions of neighbouring layers: {listed(texts)}."


def _distinct(excess: NDArray[np.float64], spread: NDArray[np.float64]) -> str:
    """Return how many of several cosines exceed chance, by Bonferroni's limit; empty without their spread."""
    z = (excess / spread)[np.isfinite(excess / spread)]
    if not len(z):
        return ""
    limit = NormalDist().inv_cdf(1 - LEVEL / len(z))
    return f"; {int((z > limit).sum())} of {len(z)} pairs of layers have a z above {limit:.1f}"
