"""The commit protocol: one attempt counts, its bytes arrive, and records prove which shard they describe."""

from pathlib import Path

import numpy as np
import obstore
import pytest
from obstore.exceptions import GenericError
from support.stored import record_of

from theodolite.errors import RunDamagedError, StoreError
from theodolite.sites import Site
from theodolite.store.activations import encode_shard
from theodolite.store.checksums import sha256
from theodolite.store.commits import (
    array_key,
    commit_shard,
    committed_indices,
    damages,
    drop_pending,
    new_attempt,
    read_commits,
    recover,
)
from theodolite.store.objects import keys
from theodolite.store.records import Commit
from theodolite.store.runs import create_run

SITES = (Site.RESID_PRE, Site.RESID_FINAL)
SHAPE = (8, 1, 3, 8)


def attempt(seed=0, prompt_set="harmful", index=1):
    values = np.random.default_rng(seed).normal(size=(4, *SHAPE[1:])).astype(np.float32)
    encoded = {
        Site.RESID_PRE: encode_shard(Site.RESID_PRE, values, index * 4, 4),
        Site.RESID_FINAL: encode_shard(Site.RESID_FINAL, values[:, :, 0], index * 4, 4),
    }
    checksums = {str(site): sha256(content) for site, content in encoded.items()}
    start, stop = index * 4, (index + 1) * 4
    batches = [[start, start + 1], [start + 2, start + 3]]
    quarantined = {start + 1: "why"}
    commit = Commit("tiny-0", prompt_set, index, start, stop, new_attempt(), checksums, batches, quarantined)
    return commit, encoded


@pytest.fixture
def run(tmp_path: Path):
    arrays = {name: {"resid_pre": np.zeros(SHAPE)} for name in ("harmful", "harm")}
    return create_run(str(tmp_path), record_of(arrays, shard_prompts=4))


@pytest.fixture
def folder(run):
    return Path(run.url)


def test_a_committed_shard_is_stored_intact_at_its_key(run):
    commit, encoded = attempt()
    assert commit_shard(run.location, commit, encoded) == commit
    assert read_commits(run, "harmful") == {1: commit}
    numbers = read_commits(run, "harmful")[1].numbers()
    assert (numbers["prompts"], numbers["quarantined"]) == (4, 1)
    assert numbers["stored_bytes"] == sum(map(len, encoded.values()))
    assert numbers["store_seconds"] > 0
    assert list(damages(run, commit)) == []
    assert keys(run.location, "pending") == []
    assert array_key(commit, Site.RESID_PRE) == "activations.zarr/harmful/resid_pre/c/1/0/0/0"
    assert array_key(commit, Site.RESID_FINAL) == "activations.zarr/harmful/resid_final/c/1/0/0"


def test_the_first_attempt_wins_and_a_late_one_changes_nothing(run):
    first, encoded = attempt(seed=0)
    commit_shard(run.location, first, encoded)
    late, other = attempt(seed=1)
    assert commit_shard(run.location, late, other) == first
    assert list(damages(run, first)) == []
    assert keys(run.location, "pending") == []


def test_a_crash_before_the_commit_leaves_no_committed_shard(run, monkeypatch):
    monkeypatch.setattr("theodolite.store.commits.put_new", crash)
    with pytest.raises(KeyboardInterrupt):
        commit_shard(run.location, *attempt())
    assert recover(run, "harmful") == {}
    assert keys(run.location, "activations.zarr") == []
    drop_pending(run)
    assert keys(run.location) == ["run.json"]


def commit_without_moving(run, monkeypatch, seed=0):
    commit, encoded = attempt(seed)
    with monkeypatch.context() as patch:
        patch.setattr("theodolite.store.commits.move_committed", crash)
        with pytest.raises(KeyboardInterrupt):
            commit_shard(run.location, commit, encoded)
    assert list(damages(run, commit)) != []
    return commit


def test_recover_finishes_a_move_after_a_crash(run, monkeypatch):
    commit = commit_without_moving(run, monkeypatch)
    assert recover(run, "harmful") == {1: commit}
    assert list(damages(run, commit)) == []


def test_a_late_attempt_finishes_the_move_of_the_committed_one(run, monkeypatch):
    commit = commit_without_moving(run, monkeypatch)
    assert commit_shard(run.location, *attempt(seed=1)) == commit
    assert list(damages(run, commit)) == []
    assert keys(run.location, "pending") == []


@pytest.mark.parametrize("answer", ["repeated by the client", "lost"])
def test_a_record_whose_creation_was_not_confirmed_is_recognised(run, monkeypatch, answer):
    put = obstore.put

    def put_unconfirmed(location, key, content, **options):
        result = put(location, key, content, **options)
        if options.get("mode") != "create":
            return result
        if answer == "lost":
            raise GenericError("503 Service Unavailable")
        return put(location, key, content, **options)  # finds the object of the first request

    monkeypatch.setattr(obstore, "put", put_unconfirmed)
    commit, encoded = attempt()
    assert commit_shard(run.location, commit, encoded) == commit
    assert list(damages(run, commit)) == []
    assert keys(run.location, "pending") == []


def test_an_attempt_whose_record_is_refused_keeps_its_bytes_for_a_resume(run, monkeypatch):
    put = obstore.put

    def refuse(location, key, content, **options):
        if options.get("mode") == "create":
            raise GenericError("503 Service Unavailable")
        return put(location, key, content, **options)

    with monkeypatch.context() as patch:
        patch.setattr(obstore, "put", refuse)
        with pytest.raises(StoreError, match="503 Service Unavailable"):
            commit_shard(run.location, *attempt())
    assert committed_indices(run, "harmful") == set()
    assert len(keys(run.location, "pending")) == len(SITES)


def test_an_attempt_with_the_same_bytes_heals_a_committed_shard(run, folder):
    commit, encoded = attempt()
    commit_shard(run.location, commit, encoded)
    (folder / array_key(commit, Site.RESID_PRE)).write_bytes(b"damaged")
    (folder / array_key(commit, Site.RESID_FINAL)).unlink()
    again, same = attempt()
    assert commit_shard(run.location, again, same) == commit
    assert list(damages(run, commit)) == []


def test_an_attempt_with_other_bytes_does_not_heal_a_committed_shard(run, folder):
    commit, encoded = attempt()
    commit_shard(run.location, commit, encoded)
    (folder / array_key(commit, Site.RESID_PRE)).unlink()
    with pytest.raises(RunDamagedError, match="harmful/00001, resid_pre: is missing, and this replica computes other"):
        commit_shard(run.location, *attempt(seed=1))


def test_a_set_with_the_same_prefix_is_not_included(run):
    commit_shard(run.location, *attempt(prompt_set="harmful"))
    assert read_commits(run, "harm") == {}
    assert list(read_commits(run, "harmful")) == [1]


@pytest.mark.parametrize("site", SITES)
def test_a_flipped_byte_or_a_missing_array_is_reported(run, folder, site):
    commit, encoded = attempt()
    commit_shard(run.location, commit, encoded)
    file = folder / array_key(commit, site)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    assert list(damages(run, commit)) == [f"shard harmful/00001, {site}: its bytes are not those that were committed"]
    file.write_bytes(content[:-1])
    with pytest.raises(RunDamagedError, match=r"harmful/00001 has [\d,]+ bytes; [\d,]+ were committed; .* --repair"):
        recover(run, "harmful")
    file.unlink()
    assert list(damages(run, commit)) == [f"shard harmful/00001, {site}: is missing"]
    with pytest.raises(RunDamagedError, match="harmful/00001"):
        recover(run, "harmful")


def crash(*_):
    raise KeyboardInterrupt
