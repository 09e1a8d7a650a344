"""Read the tokens that the direction of a contrast raises and lowers, from the analysis `logit_lens`."""

from collections.abc import Collection

import numpy as np
import pandas as pd

from theodolite.groups import GROUPS
from theodolite.query.curves import along_depth
from theodolite.spec_parts import Label
from theodolite.store.manifest import finished_groups
from theodolite.store.result_reader import read_finished_table, read_group
from theodolite.store.runs import Run


def read_direction_tokens(
    run: Run, contrast: str, position: Label, site: str | None = None, layer: int | None = None
) -> pd.DataFrame:
    """Return the rows of the table `direction_tokens` of a contrast at a position, by depth, end and place.

    No rows if the run lacks the analysis.

    Args:
        run: a complete run.
        contrast: name of the contrast.
        position: token position from the end, or its name.
        site: site of the stream; None selects all.
        layer: 0-based index of the block; None selects all.

    Raises:
        RunDamagedError: the table cannot be read.
    """
    if "logit_lens" not in finished_groups(run):
        return pd.DataFrame(columns=GROUPS["logit_lens"].tables[0].names)
    wanted = {"contrast": contrast, "position": position, "site": site, "layer": layer}
    filters = [(column, "==", label) for column, label in wanted.items() if label is not None]
    return read_finished_table(run, "direction_tokens", filters)


def chance_limit(run: Run) -> float:
    """Return the |z| that listed tokens of one depth exceed by chance with a probability of at most 5 %.

    The tokens are the extremes of a vocabulary: with permuted labels, many have a |z| of 3 and more.
    """
    return float(read_group(run, "logit_lens").attrs["limit"])


def depth_of_largest_separation(run: Run, contrast: str, position: Label, sites: Collection[str]) -> int | None:
    """Return the depth at which held-out prompts are separated best, as the overview selects it; None if unknown.

    Separation is the paired accuracy of a paired contrast, or else the AUROC.

    Args:
        run: a complete run.
        contrast: name of the contrast.
        position: token position from the end, or its name.
        sites: the sites to search.
    """
    if "separation" not in finished_groups(run):
        return None
    separation = read_group(run, "separation")
    known = {"contrast": contrast, "position": position}
    if any(label not in separation[dim].values for dim, label in known.items()):
        return None
    of_sites = separation.sel(known).sel(site=[site for site in separation["site"].values if site in sites])
    for statistic in ("paired_accuracy", "auroc"):
        curve = along_depth(of_sites[statistic])
        if np.isfinite(curve.values).any():
            return int(curve["depth"][int(np.nanargmax(curve.values))])
    return None
