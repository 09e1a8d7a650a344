"""The group `routing` of stored runs, against counts by hand."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from support.analysing import context_of
from support.stored import store_run

from theodolite.errors import RunDamagedError
from theodolite.groups import GROUPS
from theodolite.groups.schema import NULL
from theodolite.store.activations import read_experts
from theodolite.store.commits import read_commit
from theodolite.store.runs import open_run
from theodolite_jobs.groups.routing import compute as routing

LAYERS, EXPERTS = 3, 6
CONTRASTS = {
    "paired": {"positive": "bad", "negative": "good", "paired": True},
    "unpaired": {"positive": "bad", "negative": "words", "paired": False},
}
SIZES = {"bad": 14, "good": 14, "words": 9}
PLANTED = (2, 5)
"""The layer and the expert that every bad prompt uses at the last position, and no other prompt."""


def choices(n, seed):
    """Return two of five experts for each token, ascending; layer 1 has no experts, and nobody uses expert 5."""
    rng = np.random.default_rng(seed)
    chosen = np.sort(rng.random((n, 2, LAYERS, 5)).argsort(axis=-1)[..., :2]).astype(np.int16)
    chosen[:, :, 1] = -1
    return chosen


@pytest.fixture(scope="module")
def chosen():
    of_sets = {name: choices(n, seed) for seed, (name, n) in enumerate(SIZES.items())}
    of_sets["bad"][:, 1, PLANTED[0], 1] = PLANTED[1]
    return of_sets


@pytest.fixture(scope="module")
def run(chosen, tmp_path_factory):
    arrays = {name: {"resid_pre": np.ones((n, 2, LAYERS, 4), np.float32)} for name, n in SIZES.items()}
    return store_run(
        tmp_path_factory.mktemp("store"),
        arrays,
        shard_prompts=4,
        quarantined={"good": {3: "not finite"}},
        experts=chosen,
        n_experts=EXPERTS,
        contrasts=CONTRASTS,
    )


@pytest.fixture(scope="module")
def arrays(run):
    return routing.compute(context_of(run, run.record.spec.resolved_contrasts())).arrays


def share_of(chosen, samples, position, layer, expert):
    """Return the share of samples whose token uses an expert, counted one by one."""
    return sum(expert in chosen[sample, position, layer] for sample in samples) / len(samples)


def test_stored_experts_are_read_as_they_were_written(run, chosen):
    for name, n in SIZES.items():
        for index, start in enumerate(range(0, n, 4)):
            own = read_experts(run, read_commit(run, name, index))
            assert own.dtype == np.int16
            np.testing.assert_array_equal(own, chosen[name][start : start + 4])


def test_shares_are_those_counted_by_hand(arrays, chosen):
    usable = {"bad": range(14), "good": [sample for sample in range(14) if sample != 3], "words": range(9)}
    for row, (name, samples) in enumerate(usable.items()):
        np.testing.assert_array_equal(arrays["n_samples"][row], len(samples))
        for at in np.ndindex(2, LAYERS, EXPERTS):
            expected = np.nan if at[1] == 1 else share_of(chosen[name], samples, *at)
            np.testing.assert_allclose(arrays["expert_share"][(row, *at, 0)], expected, atol=1e-12)
    np.testing.assert_allclose(arrays["expert_share"][..., 0].sum(axis=-1)[:, :, [0, 2]], 2)


def test_differences_leave_out_the_partners_of_quarantined_prompts(arrays, chosen):
    pairs = [sample for sample in range(14) if sample != 3]
    assert arrays["n_used"].tolist() == [[[13, 13]] * 2, [[14, 9]] * 2]
    for row, (other, own, others) in enumerate([("good", pairs, pairs), ("words", range(14), range(9))]):
        for at in np.ndindex(2, LAYERS, EXPERTS):
            expected = np.nan
            if at[1] != 1:
                expected = share_of(chosen["bad"], own, *at) - share_of(chosen[other], others, *at)
            np.testing.assert_allclose(arrays["expert_difference"][(row, *at, 0)], expected, atol=1e-12)


def test_the_planted_expert_is_found_in_both_contrasts(arrays):
    z, p_family = (arrays["expert_difference_null"][..., NULL.index(one)] for one in ("z", "p_family"))
    for row in range(2):
        value, low, _ = arrays["expert_difference"][row, 1, 2, 5]
        assert value == 1
        assert p_family[row, 1, 2, 5] == pytest.approx(1 / 201)
        assert low > 0.6
        assert np.nanargmax(z[row, 1]) == 2 * EXPERTS + 5
    assert np.nanmin(p_family[:, 0]) > 0.05  # the other position


def test_layers_without_experts_are_missing(arrays):
    for variable in GROUPS["routing"].variables:
        if "layer" in variable.dims and variable.name != "expert_active_units":  # this run has no weights
            assert np.isnan(arrays[variable.name][:, :, 1]).all(), variable.name
            assert np.isfinite(arrays[variable.name][:, :, 0]).any(), variable.name


def test_the_smallest_shares_and_largest_differences_lie_inside_their_intervals(arrays):
    for name in ("expert_share", "expert_difference"):
        value, low, high = np.moveaxis(arrays[name], -1, 0)
        known = np.isfinite(value)
        assert ((low <= value) & (value <= high))[known].all()
        assert (low[known] >= (-1 if name == "expert_difference" else 0)).all()
        assert (high[known] <= 1).all()


def test_only_the_first_prompts_are_used_if_a_set_has_many(run, monkeypatch):
    monkeypatch.setattr(routing, "SAMPLES", 6)
    arrays = routing.compute(context_of(run, run.record.spec.resolved_contrasts())).arrays
    assert arrays["n_samples"].tolist() == [[6, 6], [5, 5], [6, 6]]
    assert arrays["n_used"][..., 0].tolist() == [[5, 5], [6, 6]]


def test_a_run_without_contrasts_has_shares_alone(run):
    context = context_of(run, {})
    context.contrasts = {}
    arrays = routing.compute(context).arrays
    assert np.isfinite(arrays["expert_share"]).any()
    assert arrays["expert_difference"].shape == (0, 2, LAYERS, EXPERTS, 3)


def test_damaged_experts_are_refused(run, chosen, tmp_path):
    shutil.copytree(run.store, tmp_path / "store")
    damaged = open_run(str(tmp_path / "store"), run.id)
    (file,) = Path(tmp_path).rglob("activations.zarr/good/experts/c/1/0/0/0")
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(
        RunDamagedError, match=r"shard good/00001, experts: its bytes are not those that were committed"
    ):
        routing.compute(context_of(damaged, damaged.record.spec.resolved_contrasts()))
