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


def twin_separation_facts(twin: xr.Dataset) -> Iterator[str]:
    """Yield sentences about the twin's largest AUROC, and about the depths at which the model's AUROC is larger.

    Args:
        twin: statistics of the twin for one contrast at one position, from `read_twin`, (site, layer).
    """
    if (largest := _largest_auroc(twin)) is None:
        return
    value, where = largest
    yield f"{_subject(twin)} has a largest AUROC of {value} by difference of means, at {where}, on the same prompts."
    if not has_values(twin, "auroc_beyond_twin", "band_low"):
        return
    low, high = (along_depth(twin["auroc_beyond_twin"], end) for end in ("band_low", "band_high"))
    above, known = low > 0, np.isfinite(low)
    elsewhere = "At the other depths, these" if above.any() else "These"
    is_everywhere = bool((above | ~known).all())
    limit = "" if is_everywhere else f" {elsewhere} prompts do not show that training raises the AUROC."
    where = "" if is_everywhere else in_brackets(depths_text(above))
    difference = along_depth(twin["auroc_beyond_twin"]).where(known)
    best = int(np.nanargmax(difference.values))
    yield (
        f"The AUROC of this model by difference of means is shown to lie {beyond_twin(twin)}{where}. The largest "
        f"difference is {float(difference[best]):.3f} [{float(low[best]):.3f}, {float(high[best]):.3f}], at "
        f"{layer_of(difference, best)}.{limit}"
    )


def beyond_twin(twin: xr.Dataset) -> str:
    """Return at how many depths the model's AUROC lies above that of the twin."""
    low = along_depth(twin["auroc_beyond_twin"], "band_low")
    return f"above that of the twin at {int((low > 0).sum())} of {int(np.isfinite(low).sum())} depths"


def twin_finding(twin: xr.Dataset) -> str:
    """Return the twin's largest AUROC, and where the model's is larger; arguments as in `twin_separation_facts`."""
    if (largest := _largest_auroc(twin)) is None:
        return ""
    value, where = largest
    above = (
        f" The model's AUROC is shown to lie {beyond_twin(twin)}."
        if has_values(twin, "auroc_beyond_twin", "band_low")
        else ""
    )
    return f"The largest AUROC of an untrained twin, by difference of means, is {value}, at {where}.{above}"


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
