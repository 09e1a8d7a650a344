"""The conclusion about planted directions is right in a few of the benchmark's trials."""

import sys
from pathlib import Path

import pytest
from support.nightly import at_night


@pytest.fixture(scope="module")
def planted():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path, str(Path(__file__).parents[3] / "benchmarks")])
        import planted_effects

        yield planted_effects


@pytest.mark.parametrize("strength", [0.8, *at_night([4.0])])
def test_a_direction_that_the_head_reads_is_used_from_the_right_layer_on(planted, strength):
    trials = [planted.trial(planted.Setting(strength, is_read=True), seed, 16) for seed in range(3)]
    assert [found for found, _ in trials] == [truth for _, truth in trials]


@pytest.mark.parametrize("spread", [6.0, *at_night([1.0])])
def test_a_direction_that_is_written_but_not_read_is_not_used(planted, spread):
    setting = planted.Setting(1.6, is_read=False, spread=spread)
    assert [planted.trial(setting, seed, 16) for seed in range(3)] == [(None, None)] * 3
