"""Check what the description of a run says about prompts that were longer than the model's context."""

from support.finished_runs import finished_run

from theodolite.query.runs import describe
from theodolite.store.runs import Run


def notes_of(run: Run, **facts: int) -> list[str]:
    """Return the notes on long prompts of the run, with other facts of the set `harmful`, which has four prompts."""
    changed = run.record.sets["harmful"].model_copy(update=facts)
    record = run.record.model_copy(update={"sets": {**run.record.sets, "harmful": changed}})
    return [note for note in describe(Run(run.store, record))["notes"] if "context" in note]


def test_the_description_of_a_run_counts_the_prompts_that_were_left_out_or_cut(tmp_path):
    run = finished_run(tmp_path, {"moments": {}})
    context = f"the model's context of {run.record.model.context_length} tokens"
    assert notes_of(run) == []
    (note,) = notes_of(run, n_skipped=3)
    assert note.startswith("3 of the 7 prompts of the set “harmful” are left out: they, or their partners in a paired")
    assert note.endswith(f"longer than {context}")
    _, note = notes_of(run, n_skipped=1, n_truncated=2)
    assert note.startswith(f"2 of the 4 prompts of the set “harmful” are cut to fit into {context}")
