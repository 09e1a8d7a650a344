"""What can be done with the runs of a store, as `theodolite.client` does it with those of a service."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from theodolite.drawing.comparison import description
from theodolite.query.compare import (
    BOUND,
    Question,
    comparison,
    contrast_choices,
    difference,
    known_milestones,
    records,
    statistics_of,
)
from theodolite.query.runs import run_id_of
from theodolite.query.verification import verify as find_damages
from theodolite.settings import read_settings
from theodolite.spec_parts import Label
from theodolite.store.labels import change_labels, parse_labels
from theodolite.store.leases import refuse_in_use
from theodolite.store.removal import remove_run
from theodolite.store.runs import Run, open_run

Store = str | Path | None
"""A folder, or a file://, s3://, gs:// or az:// URL; None is THEODOLITE_STORE, else ./theodolite-store."""


def stored_run(run_id: str, store: Store) -> Run:
    """Return a run by its id, or by a name that only one run has; raises RunNotFoundError."""
    url = read_settings(store=None if store is None else str(store)).store
    return open_run(url, run_id_of(url, run_id))


def label(run_id: str, *, store: Store = None, **labels: Any) -> dict[str, Any]:
    """Change the labels of a run, and return all of its labels.

    Args:
        run_id: id or name of the run.
        store: the store.
        labels: `name` (None is the name in its spec), `tags` (a list of texts) and `remarks`; labels that are not given
            stay.

    Raises:
        RunNotFoundError: the store has no such run.
        SpecError: a label is too long, has a control character, or is of the wrong type.
    """
    given = parse_labels(labels)
    return dict(change_labels(stored_run(run_id, store), given).model_dump(mode="json"))


def remove(run_id: str, *, store: Store = None) -> None:
    """Delete a run with all of its data. A deleted run cannot be restored.

    Raises:
        RunNotFoundError: the store has no such run.
        TheodoliteError: a survey, an analysis or a repair works on the run.
    """
    run = stored_run(run_id, store)
    refuse_in_use(run.store, run.id)
    remove_run(run)


def verify(run_id: str, *, store: Store = None) -> list[str]:
    """Compare each stored object of a run with its checksum, and return a line for each missing or damaged one.

    `theodolite run verify RUN --repair` restores them.

    Raises:
        RunNotFoundError: the store has no such run.
    """
    return list(find_damages(stored_run(run_id, store)))


def compared_runs(run_ids: Sequence[str], contrast: Sequence[str], store: Store) -> tuple[list[Run], dict[str, Any]]:
    """Return runs, each once, and the fields of a `Question` that select their contrasts; raises as `compare`."""
    named = {run_id: stored_run(run_id, store) for run_id in run_ids}
    choices = contrast_choices(contrast, list(named))
    choices["contrasts"] = {named[run_id].id: one for run_id, one in choices["contrasts"].items()}
    return list({run.id: run for run in named.values()}.values()), choices


def compare(
    run_ids: Sequence[str],
    statistic: str | None = None,
    *,
    contrast: str | Sequence[str] = (),
    set: str | None = None,
    site: str | None = None,
    position: Label | None = None,
    bound: float = BOUND,
    store: Store = None,
) -> pd.DataFrame:
    """Return the same curve of several runs on relative depth, one row for each point.

    The table's `attrs` have a sentence about each of the `statistics`; `milestones`: for each run the depths of the
    smallest debiased cosine, of the largest AUROC, of the first AUROC above permuted labels, and of the first
    separation of its sets; and `auroc_difference`, a table for two runs on the same prompts.

    Args:
        run_ids: ids of the runs.
        statistic: a statistic along depth; None selects the AUROC and the debiased cosine.
        contrast: one name, or a list of `RUN:CONTRAST` for contrasts of other names.
        set: prompt set, for a statistic of one set.
        site: site; None selects resid_pre and resid_mid.
        position: token position from the end, or its name; None selects each run's last measured one.
        bound: sets separate if the simultaneous interval of AUROC lies above it.
        store: the store.

    Raises:
        SpecError: there is no such statistic or label.
        RunNotFoundError: the store has no such run.
    """
    runs, choices = compared_runs(run_ids, [contrast] if isinstance(contrast, str) else contrast, store)
    question = Question(statistic, prompt_set=set, site=site, position=position, **choices)
    frame, beyond = comparison(runs, question), difference(runs, question)
    frame.attrs = {
        "statistics": {name: description(name) for name in statistics_of(runs, question)},
        "milestones": known_milestones(runs, question, bound),
        "auroc_difference": [] if beyond is None else records(beyond),
    }
    return frame
