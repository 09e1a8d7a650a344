import json
from pathlib import Path

import numpy as np
import pytest

from theodolite.errors import RunDamagedError
from theodolite.sites import Site
from theodolite.store.activations import encode_shard
from theodolite.store.commits import (
    Commit,
    array_key,
    commit_shard,
    damages,
    drop_pending,
    new_attempt,
    read_commits,
    recover,
    sha256,
)
from theodolite.store.objects import keys, open_location

SITES = (Site.RESID_PRE, Site.RESID_FINAL)


def attempt(seed=0, prompt_set="harmful", index=1):
    values = np.random.default_rng(seed).normal(size=(4, 1, 3, 8)).astype(np.float32)
    encoded = {
        Site.RESID_PRE: encode_shard(Site.RESID_PRE, values, index * 4, 4),
        Site.RESID_FINAL: encode_shard(Site.RESID_FINAL, values[:, :, 0], index * 4, 4),
    }
    checksums = {str(site): sha256(content) for site, content in encoded.items()}
    stop = (index + 1) * 4
    return Commit(prompt_set, index, index * 4, stop, new_attempt(), checksums, [[4, 5], [6, 7]], {5: "why"}), encoded


@pytest.fixture
def location(tmp_path: Path):
    return open_location(str(tmp_path))


def test_a_committed_shard_is_stored_intact_at_its_key(location):
    commit, encoded = attempt()
    assert commit_shard(location, commit, encoded) == commit
    assert read_commits(location, "harmful") == {1: commit}
    numbers = read_commits(location, "harmful")[1].numbers()
    assert (numbers["prompts"], numbers["quarantined"]) == (4, 1)
    assert numbers["stored_bytes"] == sum(map(len, encoded.values()))
    assert numbers["store_seconds"] > 0
    assert list(damages(location, commit)) == []
    assert keys(location, "pending") == []
    assert array_key(commit, Site.RESID_PRE) == "activations.zarr/harmful/resid_pre/c/1/0/0/0"
    assert array_key(commit, Site.RESID_FINAL) == "activations.zarr/harmful/resid_final/c/1/0/0"


def test_the_first_attempt_wins_and_a_late_one_changes_nothing(location):
    first, encoded = attempt(seed=0)
    commit_shard(location, first, encoded)
    late, other = attempt(seed=1)
    assert commit_shard(location, late, other) == first
    assert list(damages(location, first)) == []
    assert keys(location, "pending") == []


def test_a_crash_before_the_commit_leaves_no_committed_shard(location, monkeypatch):
    monkeypatch.setattr("theodolite.store.commits.put_new", crash)
    with pytest.raises(KeyboardInterrupt):
        commit_shard(location, *attempt())
    assert recover(location, "harmful") == {}
    assert keys(location, "activations.zarr") == []
    drop_pending(location)
    assert keys(location) == []


def test_recover_finishes_a_move_after_a_crash(location, monkeypatch):
    commit, encoded = attempt()
    with monkeypatch.context() as patch:
        patch.setattr("theodolite.store.commits.move_committed", crash)
        with pytest.raises(KeyboardInterrupt):
            commit_shard(location, commit, encoded)
    assert list(damages(location, commit)) != []
    assert recover(location, "harmful") == {1: commit}
    assert list(damages(location, commit)) == []


def test_a_set_with_the_same_prefix_is_not_included(location):
    commit_shard(location, *attempt(prompt_set="harm"))
    assert read_commits(location, "har") == {}
    assert list(read_commits(location, "harm")) == [1]


@pytest.mark.parametrize("site", SITES)
def test_a_flipped_byte_or_a_missing_array_is_reported(location, tmp_path, site):
    commit, encoded = attempt()
    commit_shard(location, commit, encoded)
    file = tmp_path / array_key(commit, site)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    assert list(damages(location, commit)) == [
        f"shard harmful/00001, {site}: its bytes are not those that were committed"
    ]
    file.unlink()
    assert list(damages(location, commit)) == [f"shard harmful/00001, {site}: is missing"]
    with pytest.raises(RunDamagedError, match="harmful/00001"):
        recover(location, "harmful")


def test_the_error_for_a_broken_commit_record_names_its_key(location, tmp_path):
    commit_shard(location, *attempt())
    record = tmp_path / "shards/harmful/00001.json"
    record.write_text(json.dumps({"index": 1}))
    with pytest.raises(RunDamagedError, match=r"shards/harmful/00001\.json"):
        read_commits(location, "harmful")


def crash(*_):
    raise KeyboardInterrupt
