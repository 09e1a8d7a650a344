"""Where the direction of a contrast is too unreliable to be interpreted."""

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from theodolite.sites import Site

RELIABLE = 0.5
"""The least reliability at which a direction is interpreted. Its expected cosine to the direction of the true means is
the root of the reliability, 0.7."""

_READ, _WRITTEN = (Site.RESID_PRE,), (Site.RESID_MID_SUM, Site.RESID_MID)
"""Sites of the directions that heads are compared with, before and after attention."""


def is_unreliable(directions: xr.Dataset, contrast: str, site: str) -> NDArray[np.bool_]:
    """Return for each captured layer whether the direction at the last position is below the least reliability."""
    values = directions["reliability"].sel(contrast=contrast, site=site).isel(position=-1)
    return np.asarray(values.values < RELIABLE)  # NaN, where there is no direction, is not less


def unreliable_layers(directions: xr.Dataset, contrast: str, side: str) -> list[int]:
    """Return the layers where the direction that a side of the heads is compared with is too unreliable.

    Args:
        directions: the results.
        contrast: name of the contrast.
        side: side of a circuit, such as `qk_query` or `ov_write`.
    """
    captured = directions["site"].values.tolist()
    site = next((site for site in (_WRITTEN if side == "ov_write" else _READ) if site in captured), None)
    if site is None:
        return []
    layers = directions["layer"].values[is_unreliable(directions, contrast, site)]
    return [int(layer) for layer in layers]
