"""The names of TransformerLens for sites are those of the sites, wherever a site is given."""

import numpy as np
import pytest
from support.finished_runs import finished_run

from theodolite.errors import SpecError
from theodolite.export import encode_directions, file_name
from theodolite.query.compare import Question
from theodolite.query.curves import select_curves
from theodolite.query.exports import read_directions
from theodolite.query.group_selection import select_direction, select_group
from theodolite.sites import TRANSFORMER_LENS
from theodolite.spec_parts import CaptureSpec


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    groups = {"curves": {"variance_mean": 1.0}, "directions": {"direction": np.eye(8)[3]}, "moments": {}}
    return finished_run(tmp_path_factory.mktemp("store"), groups)


def test_a_query_takes_the_names_of_transformer_lens(run):
    own, other = (
        select_curves(run, ["variance_mean"], {"site": [name], "set": ["harmful"]})
        for name in ("resid_mid", "hook_resid_mid")
    )
    assert own == other
    assert own[0].of["site"] == "resid_mid"
    np.testing.assert_array_equal(
        select_direction(run, "refusal", "hook_resid_pre", 1), select_direction(run, "refusal", "resid_pre", 1)
    )
    assert read_directions(run, "refusal", "hook_resid_pre").facts["site"] == "resid_pre"
    assert select_group(run, "moments", only={"site": ["hook_resid_mid"]})["site"].values.tolist() == ["resid_mid"]
    assert Question(site="hook_resid_mid").site == "resid_mid"
    for form in ("gguf", "npy"):
        own, other = (
            encode_directions(run, "refusal", name, [2], None, form) for name in ("resid_pre", "hook_resid_pre")
        )
        assert own == other
    assert file_name("tiny-0", "refusal", "hook_resid_pre", [], "gguf") == "tiny-0.refusal.resid_pre.gguf"


def test_a_spec_takes_the_names_of_transformer_lens():
    assert CaptureSpec(sites=["hook_resid_mid", "attn.hook_z"]).sites == ["resid_mid", "head_out"]
    for name, site in TRANSFORMER_LENS.items():
        assert CaptureSpec(sites=[name, "resid_mid_sum"]) == CaptureSpec(sites=[site, "resid_mid_sum"])


def test_other_names_are_refused(run):
    with pytest.raises(SpecError, match="has no 'hook_q'; it has: resid_pre, resid_mid"):
        select_curves(run, ["variance_mean"], {"site": ["hook_q"]})
    with pytest.raises(ValueError, match="resid_pre"):
        CaptureSpec(sites=["blocks.3.hook_resid_pre"])
