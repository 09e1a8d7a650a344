"""Sentence about the variance that attention and the MLP add to the stream."""

from collections.abc import Iterator, Mapping

import numpy as np
import xarray as xr

from theodolite.sections.parts import listed, percent

_BRANCHES = {"attn": "attention", "mlp": "the MLP"}


def variance_facts(travel: xr.Dataset, labels: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence about all sets, at one position: where the growth of their variance comes from."""
    texts = {label: _growth(travel.sel(set=name)) for name, label in labels.items()}
    if known := {label: text for label, text in texts.items() if text}:
        yield f"Growth of the total variance over prompts, up to the block after which it is largest: {listed(known)}."


def _growth(values: xr.Dataset) -> str:
    """Return the parts of the growth of one set's variance; empty if it does not grow, or if a part is unknown."""
    before, after = values["variance_pre"], values["variance_post"]
    is_whole = np.isfinite(values["path_length"])  # the steps of some layers do not add up
    if not (is_whole and np.isfinite(after).all()):
        return ""
    top = int(np.argmax(after.values))
    first, largest = float(before[0]), float(after[top])
    if not largest > first:
        return ""
    until = values.isel(layer=slice(top + 1))

    branches = _BRANCHES if np.isfinite(values["variance_mid"]).all() else {"block": "the block"}

    def share(part: str) -> str:
        """Return the share of one part in the growth, and those of attention and the MLP."""
        shares = {name: float(until[f"{part}_{branch}"].sum()) / (largest - first) for branch, name in branches.items()}
        named = ", ".join(f"{name} {percent(one, 0)}" for name, one in shares.items())
        return percent(sum(shares.values()), 0) + (f" ({named})" if len(shares) > 1 else "")

    last = float(after[top] - before[top]) / (largest - first)
    return (
        f"from {first:.3g} to {largest:.3g} after layer {int(after['layer'][top])}, where variance of the steps makes "
        f"{share('variance_step')} of the growth, and twice their covariance with the stream "
        f"{share('twice_covariance')}; this last block alone makes {percent(last, 0)} "
        f"(n = {int(values['n_samples'])})"
    )
