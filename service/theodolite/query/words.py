"""Read the tables of the analysis `words` of a finished run."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from theodolite.errors import TableNotFoundError
from theodolite.sites import Site
from theodolite.store.result_reader import read_finished_table, read_group
from theodolite.store.runs import Run

_STREAM = (Site.RESID_PRE, Site.RESID_MID, Site.RESID_FINAL)


def read_words(run: Run, table: str, filters: Sequence[tuple[str, str, Any]] = ()) -> pd.DataFrame:
    """Return a table of `words`, or its rows that pass all filters, (column, operator, value).

    Raises:
        TableNotFoundError: the run has no such table; the message names those that it has.
    """
    existing = list(read_group(run, "words").attrs["tables"])
    if table not in existing:
        raise TableNotFoundError(f"{run.id} has no table {table!r}; it has {', '.join(existing)}")
    return read_finished_table(run, table, filters)


def along_stream(trajectory: pd.DataFrame) -> pd.DataFrame:
    """Return one token's rows of the residual stream, one for each depth, in ascending order of depth."""
    sites = [site for site in _STREAM if site in set(trajectory["site"])]
    if Site.RESID_PRE not in sites:  # a block's input is the output of the block before
        sites = [Site.RESID_POST, *sites]
    stream = trajectory[trajectory["site"].isin(sites)].sort_values("depth", kind="stable")
    return stream.drop_duplicates("depth", keep="last")
