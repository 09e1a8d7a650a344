"""Sentences that compare a run with its untrained twin: the same model with random weights, on the same prompts."""

from collections.abc import Iterator

import numpy as np
import xarray as xr

from theodolite.query.curves import along_depth, has_values
from theodolite.sections.parts import depths_text, in_brackets, layer_of, point_text


def twin_cosine_facts(values: xr.Dataset, twin: xr.Dataset) -> Iterator[str]:
    """Yield a sentence about the twin's smallest debiased cosine, and about its cosine where the model's is smallest.

    Args:
        values: statistics of one contrast at one position, (site, layer).
        twin: the same statistics of the twin.
    """
    statistic = "cosine_of_means_debiased"
    own, other = along_depth(values[statistic]), along_depth(twin[statistic])
    if not np.isfinite(own).any() or not np.isfinite(other).any():
        return
    smallest, here = int(np.nanargmin(other.values)), int(np.nanargmin(own.values))
    at_own = f", and {point_text(twin, statistic, here, '.4f')} at {layer_of(own, here)}"
    value = point_text(twin, statistic, smallest, ".4f", band=True)
    at_own = at_own if here != smallest and np.isfinite(other[here]) else ""
    yield (
        f"{_subject(twin)} has a smallest debiased cosine of means of {value} at {layer_of(other, smallest)}{at_own}, "
        "on the same prompts."
    )


def twin_separation_facts(values: xr.Dataset, twin: xr.Dataset) -> Iterator[str]:
    """Yield sentences about the twin's largest AUROC, and about the depths at which the model's AUROC is larger.

    Args:
        values: statistics of one contrast at one position, (site, layer).
        twin: the same statistics of the twin.
    """
    if (largest := _largest_auroc(twin)) is None:
        return
    value, where = largest
    yield f"{_subject(twin)} has a largest AUROC of {value} by difference of means, at {where}, on the same prompts."
    # Over all depths together, so the bands of both count; results of older versions have only intervals.
    kind = "_band" if all(has_values(one, "auroc_band_low") for one in (values, twin)) else ""
    low, high = along_depth(values[f"auroc{kind}_low"]), along_depth(twin[f"auroc{kind}_high"])
    measured, above = np.isfinite(low) & np.isfinite(high), low > high
    elsewhere = "At the other depths, these" if above.any() else "These"
    is_everywhere = bool((above | ~measured).all())
    limit = "" if is_everywhere else f" {elsewhere} prompts do not show that training raises the AUROC."
    where = "" if is_everywhere else in_brackets(depths_text(above))
    counts = f"{int(above.sum())} of {int(measured.sum())} depths{where}"
    yield f"The AUROC interval of this model by difference of means lies above that of the twin at {counts}.{limit}"


def twin_finding(twin: xr.Dataset) -> str:
    """Return the twin's largest AUROC; `twin` has one contrast at one position, (site, layer)."""
    if (largest := _largest_auroc(twin)) is None:
        return ""
    value, where = largest
    return f"The largest AUROC of an untrained twin, by difference of means, is {value}, at {where}."


def _largest_auroc(twin: xr.Dataset) -> tuple[str, str] | None:
    """Return the largest AUROC with its interval, and its depth; None if no depth has one."""
    auroc = along_depth(twin["auroc"])
    if not np.isfinite(auroc).any():
        return None
    best = int(np.nanargmax(auroc.values))
    return point_text(twin, "auroc", best, ".3f", band=True), layer_of(auroc, best)


def twin_cosine_between_layers(directions: xr.Dataset) -> Iterator[str]:
    """Yield a sentence about the cosines between neighbouring layers' directions of the twin, (site, layer)."""
    medians = []
    for site in directions["site"].values.tolist():
        cosines = np.diagonal(directions["direction_cosine"].sel(site=site), offset=1)
        if np.isfinite(cosines).any():
            medians.append(f"{np.nanmedian(cosines):.2f} at {site}")
    if medians:
        yield (
            "Median cosine between the directions of neighbouring layers of the untrained twin: "
            f"{' and '.join(medians)}."
        )


def _subject(twin: xr.Dataset) -> str:
    return f"An untrained twin of this model (random weights, seed {twin.attrs['seed']})"
