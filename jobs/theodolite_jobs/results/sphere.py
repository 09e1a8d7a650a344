"""The arrays of `sphere`: what was measured at each norm layer, and what its parameters say."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from dask.delayed import delayed
from numpy.typing import NDArray

from theodolite_jobs.passes.norm_layers import FINAL, NormPlace
from theodolite_jobs.results.arrays import Arrays, Placer, Subject, counts
from theodolite_jobs.statistics import sphere
from theodolite_jobs.tasks import Progress, in_windows


def norm_axes(norms: Sequence[NormPlace], progress: Progress) -> list[NDArray[np.float64]]:
    """Return the semi-axes of each norm's ellipsoid, one task for each: of wide layer norms they take seconds."""
    tasks = [delayed(sphere.semi_axes, pure=False)(place.norm) for place in norms]
    return list(in_windows(tasks, lambda done: progress("norm layers", done, len(tasks))))


def sphere_arrays(
    sets: Sequence[Subject],
    n_positions: int,
    norms: Sequence[NormPlace],
    sites: Sequence[Any],
    axes: Sequence[NDArray[np.float64]],
) -> Arrays:
    """Return the variables of `sphere`; without sets, those of the norms' parameters.

    Args:
        sets: prompt sets.
        n_positions: positions of all sets.
        norms: the model's norm layers.
        sites: the captured sites.
        axes: semi-axes of each norm.
    """
    place = Placer([subject.places for subject in sets], n_positions)
    columns = {name: column for column, name in enumerate(sphere.QUANTITIES)}

    def over_sets(value: Callable[[Subject], NDArray[np.float64]]) -> NDArray[np.float64]:
        return place([value(subject) for subject in sets], axis=0)

    def mean(name: str) -> NDArray[np.float64]:
        return over_sets(lambda subject: subject["norms"].mean[..., columns[name]])

    def std(name: str) -> NDArray[np.float64]:
        return over_sets(lambda subject: np.sqrt(subject["norms"].variance[..., columns[name]]))

    def end(name: str, which: str) -> NDArray[np.float64]:
        found = over_sets(lambda subject: getattr(subject.known.extremes["norms"], which)[..., columns[name]])
        return np.where(np.isinf(found), np.nan, found)  # of no prompts

    arrays: Arrays = {
        "semi_axes": np.stack(axes),
        "scale_radii": np.stack([sphere.scale_radii(one.norm) for one in norms]),
        "centre": np.stack([one.norm.bias for one in norms]),
    }
    if not sets:
        return arrays
    for name in ("norm_before", "normalized_norm"):
        arrays |= {f"{name}_mean": mean(name), f"{name}_std": std(name)}
        arrays |= {f"{name}_min": end(name, "minimum"), f"{name}_max": end(name, "maximum")}
    d_model = norms[0].norm.scale.shape[0]
    measured = np.where(np.isnan(mean("norm_before")), np.nan, 1.0)
    return {
        **arrays,
        "n_samples": counts(sets, n_positions),
        "normalized_norm_expected": mean("expected"),
        "worst_deviation": end("deviation", "maximum"),
        "mean_component_before": mean("component_before"),
        "mean_component_after": mean("component_after"),
        "ellipsoid_residual": end("residual", "maximum"),
        "length_variance_share": over_sets(lambda subject: _length_shares(subject, norms, sites)),
        "relative_spread": std("norm_before") / mean("norm_before"),
        "relative_spread_gaussian": measured * sphere.gaussian_spread(d_model),
        "relative_spread_squared": std("squared_norm_before") / mean("squared_norm_before"),
        "relative_spread_squared_gaussian": measured * sphere.gaussian_squared_spread(d_model),
    }


def _length_shares(subject: Subject, norms: Sequence[NormPlace], sites: Sequence[Any]) -> NDArray[np.float64]:
    """Return the share of variance in length of what each norm reads, (position, norm); NaN where it reads no site."""
    lengths = subject["norms"].m2[..., sphere.QUANTITIES.index("norm_before")]
    shares = np.full(lengths.shape, np.nan)
    for index, place in enumerate(norms):
        if not place.reads or len(place.sites) != 1:
            continue
        if place.which == FINAL:
            m2 = subject["final"].m2
        else:
            m2 = subject["raw"].m2[list(sites).index(place.sites[0]), :, place.layer_index]
        shares[:, index] = sphere.length_variance_share(lengths[:, index], m2)
    return shares
