import pickle
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.each import each
from support.sealed import reseal
from support.stored import read_table, record_of

from theodolite.digests import digest_of
from theodolite.errors import RunDamagedError, RunNotFoundError, StoreVersionError
from theodolite.shard_bounds import ShardBounds
from theodolite.store.layout import prompts_key, tokens_key
from theodolite.store.objects import get, open_location, put
from theodolite.store.prompts import encode_prompts, encode_tokens, read_prompts, read_tokens
from theodolite.store.runs import create_run, list_run_ids, open_run
from theodolite.store.tables import encode_table

ARRAYS = {"set": {"resid_pre": np.zeros((4, 1, 2, 8), np.float32)}}


def test_a_run_is_created_once_and_never_changed(tmp_path):
    first = create_run(str(tmp_path), record_of(ARRAYS, 4))
    again = create_run(str(tmp_path), record_of(ARRAYS, 4, digest="other"))
    assert again.record == first.record
    assert open_run(str(tmp_path), "tiny-0").record == first.record
    assert list_run_ids(str(tmp_path)) == ["tiny-0"]


def test_a_run_passes_through_a_process_without_its_store(tmp_path):
    """Dask's scheduler loads the tasks that it passes on to its workers; its container has no volume for the store."""
    run = create_run(str(tmp_path), record_of(ARRAYS, 4))
    put(run.location, "object", b"content")
    passed_on = pickle.loads(pickle.dumps(run))
    assert "location" not in vars(passed_on), "nothing is opened"
    assert get(pickle.loads(pickle.dumps(passed_on)).location, "object") == b"content"


def test_a_run_of_a_relative_path_passes_to_a_process_with_another_working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    put(create_run("store", record_of(ARRAYS, 4)).location, "object", b"content")
    passed_on = pickle.dumps(open_run("store", "tiny-0"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert get(pickle.loads(passed_on).location, "object") == b"content"


def test_the_error_for_a_missing_run_lists_the_existing_runs(tmp_path):
    with pytest.raises(RunNotFoundError, match="no runs yet"):
        open_run(str(tmp_path / "nowhere"), "x")
    assert not (tmp_path / "nowhere").exists()
    create_run(str(tmp_path), record_of(ARRAYS, 4))
    with pytest.raises(RunNotFoundError, match="no run 'x'; it has tiny-0"):
        open_run(str(tmp_path), "x")
    (tmp_path / "runs/tiny-0/run.json").unlink()
    with pytest.raises(RunDamagedError, match=r"run\.json is missing, and COMPLETE too: the survey did not start, or"):
        open_run(str(tmp_path), "tiny-0")
    (tmp_path / "runs/tiny-0/COMPLETE").write_bytes(b"{}")
    with pytest.raises(RunDamagedError, match=r"run\.json is missing; run `theodolite run verify tiny-0 --repair`"):
        open_run(str(tmp_path), "tiny-0")


@each("written", [0, 2, 99])
def test_a_run_of_another_format_is_refused(tmp_path, written):
    run = create_run(str(tmp_path), record_of(ARRAYS, 4))
    reseal(Path(run.url) / "run.json", format=written, news=True)
    with pytest.raises(StoreVersionError, match=f"^tiny-0 was written in format {written} of the store; .* format 1$"):
        open_run(str(tmp_path), run.id)


@each("content", ["", "{}", "[]", '{"format": 1}'])
def test_a_broken_run_record_raises(tmp_path, content):
    run = create_run(str(tmp_path), record_of(ARRAYS, 4))
    (Path(run.url) / "run.json").write_text(content)
    with pytest.raises(RunDamagedError, match="tiny-0"):
        open_run(str(tmp_path), run.id)


def test_tokens_and_prompts_are_read_back_unchanged(tmp_path):
    tokens = [(1, 2, 3), (4,), (5, 6)]
    record = record_of(ARRAYS, 4)
    facts = record.sets["set"].model_copy(update={"token_ids_sha256": digest_of(tokens)})
    run = create_run(str(tmp_path), record.model_copy(update={"sets": {"set": facts}}))
    put(run.location, tokens_key("set"), encode_tokens(tokens))
    assert read_tokens(run, "set") == tokens
    table = encode_prompts(["a", "b “quoted”", "c"], [3, 1, 2], ShardBounds(3, 3, 2), {1: "why"})
    put(run.location, prompts_key("set"), table)
    prompts = read_prompts(run, "set")
    assert prompts["text"].tolist() == ["a", "b “quoted”", "c"]
    assert prompts["status"].tolist() == ["ok", "quarantined", "ok"]
    assert prompts["error"].tolist() == ["", "why", ""]
    assert prompts["shard"].tolist() == [0, 0, 1]


def test_tables_are_read_back_and_broken_tables_raise(tmp_path):
    location = open_location(str(tmp_path))
    frame = pd.DataFrame({"value": np.array([1.0, np.nan]), "name": ["x", ""]})
    put(location, "tables/t.parquet", encode_table(frame))
    pd.testing.assert_frame_equal(
        read_table(location, "tables/t.parquet"), frame, check_dtype=False, check_column_type=False
    )
    (tmp_path / "tables/t.parquet").write_bytes(b"PAR1nothing")
    with pytest.raises(RunDamagedError, match=r"tables/t\.parquet cannot be read"):
        read_table(location, "tables/t.parquet")
