"""Whatever a store contains, commands end with one sentence: no traceback, and no number from damaged bytes."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.each import each
from support.stored import store_run

from theodolite.errors import StoreError, TheodoliteError
from theodolite.query.runs import describe, progress, spec_of_results, summaries
from theodolite.query.verification import unexpected_objects, verify
from theodolite.sites import Site
from theodolite.store.checksums import seal, unseal
from theodolite.store.commits import read_commits
from theodolite.store.manifest import list_groups
from theodolite.store.runs import open_run
from theodolite.store.shards import open_shard, read_slice

RUN = "runs/tiny-0"


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """A store with a run that has no results, but a COMPLETE that lists one."""
    folder = tmp_path_factory.mktemp("library")
    run = store_run(folder, {"harmful": {"resid_pre": np.ones((10, 1, 3, 8))}}, shard_prompts=4)
    list_groups(run, {"curves": "0"}, {"results.zarr/curves/zarr.json": "0"})
    return folder


@pytest.fixture
def store(library, tmp_path):
    return Path(shutil.copytree(library, tmp_path / "store"))


def use(store):
    """Do what commands do with a run; return the messages of the errors."""
    messages = []

    def read_shards():
        run = open_run(str(store), "tiny-0")
        for name in run.record.sets:
            for commit in read_commits(run, name).values():
                open_shard(run, commit, Site.RESID_PRE).layer(len(run.record.layers) - 1)
            read_slice(run, name, Site.RESID_PRE, 0, 4)

    def of_run(function):
        return lambda: function(open_run(str(store), "tiny-0"))

    uses = [describe, progress, spec_of_results, unexpected_objects, lambda run: list(verify(run))]
    for step in [lambda: summaries(str(store)), *map(of_run, uses), read_shards]:
        try:
            step()
        except TheodoliteError as error:
            messages.append(str(error))
    assert all(len(message.splitlines()) == 1 for message in messages), messages
    assert not any("line 1 column 1" in message for message in messages), messages
    return messages


@each("name", ["run.json", "COMPLETE", "shards/harmful/00001.json"])
@each("content", [b"", b"{", b"null", b"[]", b'"x"', b"{}", b"\xff\xfe", b"[" * 100_000, b"1e999", b'{"sha256": 5}'])
def test_an_object_with_odd_content_is_named(store, name, content):
    file = store / RUN / name
    before = file.read_bytes()
    file.write_bytes(content)
    try:
        assert any(name in message and "--repair" in message for message in use(store))
    finally:
        file.write_bytes(before)


@each("key", ["../x", "/etc/passwd", "a//b", "results.zarr/../../x", ".", "a\x1f"])
def test_complete_lists_nothing_outside_the_run(store, key):
    file = store / RUN / "COMPLETE"
    before = file.read_bytes()
    fields = unseal(before)
    file.write_bytes(seal({**fields, "checksums": {**fields["checksums"], key: "0"}}))
    assert any("which is no object of the run" in message for message in use(store))
    file.write_bytes(before)


def test_a_loop_of_links_is_named(store):
    os.symlink(store / RUN, store / RUN / "shards/harmful/again")
    os.symlink(store / RUN / "loop", store / RUN / "loop")
    named = [problem.partition(":")[0] for problem in verify(open_run(str(store), "tiny-0"))]
    assert named[:2] == ["loop", "shards/harmful/again"]


@pytest.mark.parametrize(
    "linked", ["activations.zarr/harmful/resid_pre/c/0/0/0/0", "prompts/harmful.parquet", "shards/harmful"]
)
def test_a_link_hides_no_other_damage(store, linked):
    moved = store / "moved"
    (store / RUN / linked).rename(moved)
    (store / RUN / linked).symlink_to(moved)
    named = list(verify(open_run(str(store), "tiny-0")))
    assert named[0].startswith(f"{linked}: is a link, which is not followed")
    assert linked == "shards/harmful" or "results.zarr/curves/zarr.json: is missing" in named


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@settings(max_examples=6 * settings.default.max_examples, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_no_changed_record_with_a_right_checksum_gives_a_traceback(library, data):
    """The checksum is right, so the change reaches the code behind it."""
    file = library / RUN / data.draw(st.sampled_from(["run.json", "COMPLETE", "shards/harmful/00001.json"]))
    before = file.read_bytes()
    record = unseal(before)
    part = record
    while True:
        if isinstance(part, list):
            key = data.draw(st.integers(0, len(part) - 1)) if part else None
        else:
            key = data.draw(st.sampled_from(sorted(part))) if part else None
        if key is None or not isinstance(part[key], dict | list) or data.draw(st.booleans()):
            break
        part = part[key]
    if key is not None:
        part[key] = data.draw(JSON)
    try:
        file.write_bytes(seal(record))
        use(library)
    finally:
        file.write_bytes(before)


@pytest.mark.parametrize(
    ("part", "field", "value", "words"),
    [
        ("model", "d_model", 0, "model.d_model: input should be greater than or equal to 1"),
        ("model", "n_layers", 10**30, "model.n_layers: input should be less than or equal to 16777216"),
        ("sets", "positions", [], "sets.harmful.positions: list should have at least 1 item"),
        ("sets", "n_samples", 10**12, "has 3 shards for the 1000000000000 prompts of harmful"),
    ],
)
def test_a_run_record_with_impossible_sizes_is_named(store, part, field, value, words):
    file = store / RUN / "run.json"
    record = unseal(file.read_bytes())
    (record["model"] if part == "model" else record["sets"]["harmful"])[field] = value
    file.write_bytes(seal(record))
    assert any(words in message and "--repair" in message for message in use(store))


def test_a_run_record_with_another_width_is_refused_by_its_shards(store):
    file = store / RUN / "run.json"
    record = unseal(file.read_bytes())
    file.write_bytes(seal({**record, "model": {**record["model"], "d_model": 5}}))
    run = open_run(str(store), "tiny-0")
    with pytest.raises(StoreError, match=r"harmful/00000, resid_pre: .* run\.json"):
        open_shard(run, read_commits(run, "harmful")[0], Site.RESID_PRE).layer(0)
