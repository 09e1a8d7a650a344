import io
from types import SimpleNamespace

import numpy as np
import pytest
from support.stored import store_run

from theodolite.errors import RunDamagedError, StoreError
from theodolite.sites import Site
from theodolite_jobs.passes import reduced
from theodolite_jobs.passes.norm_layers import NormLayer
from theodolite_jobs.passes.one_shard import first_pass
from theodolite_jobs.passes.reduced import CapturedSamples, encode_reduced, read_reduced, reduce_samples
from theodolite_jobs.passes.samples import SampleSelection
from theodolite_jobs.statistics.norms import Norm

N, BAD = 9, {4: "activation is not finite"}
NORMS = [
    NormLayer("attention", 1, Norm("rms", 1e-6, np.full(8, 1.5), np.zeros(8)), (Site.RESID_PRE,), 1),
    NormLayer("final", -1, Norm("layer", 1e-5, np.full(8, 0.5), np.ones(8)), (Site.RESID_FINAL,)),
]


@pytest.fixture
def arrays():
    values = np.random.default_rng(0).normal(size=(2, N, 2, 3, 8)).astype(np.float32)
    values[:, list(BAD)] = np.nan
    return {Site.RESID_PRE: values[0], Site.RESID_MID: values[1], Site.RESID_FINAL: values[1, :, :, -1] + 1}


@pytest.fixture
def run(tmp_path, arrays):
    sites = {site: values for site, values in arrays.items() if site is not Site.RESID_FINAL}
    final = {"set": arrays[Site.RESID_FINAL]}
    return store_run(tmp_path, {"set": sites}, N, quarantined={"set": BAD}, final=final, positions={"set": [-2, -1]})


def stored(run, positions=(0, 1)):
    outputs = frozenset({"stream", "norms", "travel"})
    return first_pass(run, SampleSelection("set", frozenset(BAD), positions), 0, outputs, NORMS)


def arrays_of(first):
    parts = [(name, *vars(part).values()) for name, part in sorted(first.moments.items())]
    parts += [(name, *vars(ends).values()) for name, ends in sorted(first.extremes.items())]
    return [*parts, ("products", *vars(first.products).values())]


def assert_equal(ours, theirs):
    assert ours.count == theirs.count == N - len(BAD)
    for one, other in zip(arrays_of(ours), arrays_of(theirs), strict=True):
        assert one[0] == other[0]
        for x, y in zip(one[1:], other[1:], strict=True):
            np.testing.assert_array_equal(x, y, err_msg=one[0])


def test_samples_in_memory_give_the_bits_of_a_stored_shard(run, arrays):
    assert_equal(reduce_samples(run, CapturedSamples(arrays, 0, BAD), NORMS), stored(run))


@pytest.mark.parametrize("positions", [(0, 1), (1,)])
def test_a_file_gives_back_the_selected_positions(run, arrays, monkeypatch, positions):
    content = encode_reduced(reduce_samples(run, CapturedSamples(arrays, 0, BAD), NORMS))
    monkeypatch.setattr(reduced, "read_commit", lambda *_: SimpleNamespace(name="set/00000"))
    monkeypatch.setattr(reduced, "committed_bytes", lambda *_: content)
    found = read_reduced(run, SampleSelection("set", frozenset(), positions), 0)
    assert_equal(found, stored(run, positions))
    assert found.n_groups == 1
    assert content == encode_reduced(reduce_samples(run, CapturedSamples(arrays, 0, BAD), NORMS))


def test_a_file_of_parts_has_the_means_of_the_merged_parts(run, arrays, monkeypatch):
    """The file contains the means of the stream once: those of the products follow from them."""
    parts = [{site: values[rows] for site, values in arrays.items()} for rows in (slice(0, 3), slice(3, N))]
    first, second = (
        reduce_samples(run, CapturedSamples(part, start, BAD), NORMS) for part, start in zip(parts, (0, 3), strict=True)
    )
    merged = first.merged(second)
    monkeypatch.setattr(reduced, "read_commit", lambda *_: SimpleNamespace(name="set/00000"))
    monkeypatch.setattr(reduced, "committed_bytes", lambda *_: encode_reduced(merged))
    assert_equal(read_reduced(run, SampleSelection("set", frozenset(), (0, 1)), 0), merged)


def test_a_run_without_resid_pre_has_no_steps(tmp_path, arrays):
    mid = {Site.RESID_MID: arrays[Site.RESID_MID]}
    final = {"set": arrays[Site.RESID_FINAL]}
    run = store_run(
        tmp_path / "mid", {"set": mid}, N, quarantined={"set": BAD}, final=final, positions={"set": [-2, -1]}
    )
    samples = CapturedSamples({**mid, Site.RESID_FINAL: final["set"]}, 0, BAD)
    found = reduce_samples(run, samples, [])
    assert set(found.moments) == {"raw", "sphere", "norm", "norms", "final"}
    assert found.products is None
    assert not any(name.startswith("products") for name in np.load(io.BytesIO(encode_reduced(found))).files)


def test_numbers_of_norm_layers_that_a_replica_could_not_compute_are_named(run, arrays, monkeypatch):
    content = encode_reduced(reduce_samples(run, CapturedSamples(arrays, 0, BAD), None))
    monkeypatch.setattr(reduced, "read_commit", lambda *_: SimpleNamespace(name="set/00000"))
    monkeypatch.setattr(reduced, "committed_bytes", lambda *_: content)
    selection = SampleSelection("set", frozenset(), (0, 1))
    assert "norms" not in read_reduced(run, selection, 0, {"stream"}).moments
    with pytest.raises(StoreError, match="leave 'sphere' out of `analyses`"):
        read_reduced(run, selection, 0, {"stream", "norms"})


def test_a_shard_without_usable_samples_adds_nothing(run, arrays):
    whole = stored(run)
    empty = reduce_samples(run, CapturedSamples(arrays, 0, range(N)), NORMS)
    assert empty.count == 0
    assert_equal(whole.merged(empty), whole)
    assert_equal(empty.merged(whole), whole)


@pytest.mark.parametrize("content", [b"", b"PK nothing", b"PK\x03\x04 nothing"])
def test_a_file_that_is_no_archive_is_named(run, monkeypatch, content):
    monkeypatch.setattr(reduced, "read_commit", lambda *_: SimpleNamespace(name="set/00000"))
    monkeypatch.setattr(reduced, "committed_bytes", lambda *_: content)
    with pytest.raises(RunDamagedError, match="set/00000 cannot be read"):
        read_reduced(run, SampleSelection("set", frozenset(), (0,)), 0)
