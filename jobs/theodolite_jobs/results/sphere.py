"""The result group `sphere`: quantities of each norm layer, measured on prompts or computed from its parameters."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from theodolite_jobs.passes.collect import SetPasses
from theodolite_jobs.passes.norm_layers import FINAL, NormLayer
from theodolite_jobs.results.arrays import into_all_positions, set_counts
from theodolite_jobs.results.context import Arrays, Context, Result
from theodolite_jobs.statistics import sphere
from theodolite_jobs.tasks import Progress, run_tasks


def digest_inputs(context: Context) -> dict[str, Any]:
    """Return the contents of the group's digest."""
    return context.digest_inputs("sphere", {})


def compute(context: Context) -> Result:
    """Return the group from the first pass over the activations and the norms' parameters.

    Raises:
        ModelError: the model's weights, or one of its norms, cannot be read.
    """
    norms, sets = context.norms, context.collected.sets
    arrays = _parameter_variables(norms, _semi_axes(norms, context.progress))
    if sets:
        arrays |= _set_variables(sets, norms, context.coordinates["site"], len(context.coordinates["position"]))
    labels: dict[str, tuple[str, list[Any]]] = {
        "norm_kind": ("norm", [norm.which for norm in norms]),
        "norm_layer": ("norm", [norm.layer for norm in norms]),
    }
    return Result(arrays, {**context.coordinates, "norm": [norm.label for norm in norms]}, labels=labels)


def _semi_axes(norms: Sequence[NormLayer], progress: Progress) -> list[NDArray[np.float64]]:
    """Return the semi-axes of each norm's ellipsoid, one task for each norm, since wide layer norms take seconds."""
    arguments = [(norm.norm,) for norm in norms]
    return list(run_tasks(sphere.semi_axes, arguments, lambda done: progress("norm layers", done, len(norms))))


def _parameter_variables(norms: Sequence[NormLayer], axes: Sequence[NDArray[np.float64]]) -> Arrays:
    """Return the variables that depend only on the norms' parameters."""
    return {
        "semi_axes": np.stack(axes),
        "scale_radii": np.stack([sphere.scale_radii(norm.norm) for norm in norms]),
        "centre": np.stack([norm.norm.bias for norm in norms]),
    }


def _set_variables(
    sets: Sequence[SetPasses], norms: Sequence[NormLayer], sites: Sequence[Any], n_positions: int
) -> Arrays:
    """Return the variables that were measured on the prompts of each set, (set, position, norm)."""
    columns = {name: column for column, name in enumerate(sphere.QUANTITIES)}

    def over_sets(value: Callable[[SetPasses], NDArray[np.float64]]) -> NDArray[np.float64]:
        return into_all_positions(sets, n_positions, [value(passes) for passes in sets], axis=0)

    def mean(name: str) -> NDArray[np.float64]:
        return over_sets(lambda passes: passes["norms"].mean[..., columns[name]])

    def std(name: str) -> NDArray[np.float64]:
        return over_sets(lambda passes: np.sqrt(passes["norms"].variance[..., columns[name]]))

    def extreme(name: str, which: str) -> NDArray[np.float64]:
        values = over_sets(lambda passes: getattr(passes.first.extremes["norms"], which)[..., columns[name]])
        return np.where(np.isinf(values), np.nan, values)  # infinite without prompts

    arrays: Arrays = {}
    for name in ("norm_before", "normalized_norm"):
        arrays |= {f"{name}_mean": mean(name), f"{name}_std": std(name)}
        arrays |= {f"{name}_min": extreme(name, "minimum"), f"{name}_max": extreme(name, "maximum")}
    d_model = norms[0].norm.scale.shape[0]
    measured = np.where(np.isnan(mean("norm_before")), np.nan, 1.0)
    return {
        **arrays,
        "n_samples": set_counts(sets, n_positions),
        "normalized_norm_expected": mean("expected"),
        "worst_deviation": extreme("deviation", "maximum"),
        "mean_component_before": mean("component_before"),
        "mean_component_after": mean("component_after"),
        "ellipsoid_residual": extreme("residual", "maximum"),
        "length_variance_share": over_sets(lambda passes: _length_shares(passes, norms, sites)),
        "relative_spread": std("norm_before") / mean("norm_before"),
        "relative_spread_gaussian": measured * sphere.gaussian_spread(d_model),
        "relative_spread_squared": std("squared_norm_before") / mean("squared_norm_before"),
        "relative_spread_squared_gaussian": measured * sphere.gaussian_squared_spread(d_model),
    }


def _length_shares(passes: SetPasses, norms: Sequence[NormLayer], sites: Sequence[Any]) -> NDArray[np.float64]:
    """Return the share of variance of the norm in each input, (position, norm); NaN unless it is one captured site."""
    lengths = passes["norms"].m2[..., sphere.QUANTITIES.index("norm_before")]
    shares = np.full(lengths.shape, np.nan)
    for index, norm in enumerate(norms):
        if not norm.reads or len(norm.sites) != 1:
            continue
        if norm.which == FINAL:
            m2 = passes["final"].m2
        else:
            m2 = passes["raw"].m2[list(sites).index(norm.sites[0]), :, norm.layer_index]
        shares[:, index] = sphere.length_variance_share(lengths[:, index], m2)
    return shares
