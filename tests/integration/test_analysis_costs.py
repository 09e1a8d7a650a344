"""The bytes that are estimated for analyses before a survey are those of the arrays of the finished run."""

from pathlib import Path

import pytest
import zarr
from support.damages import settings
from support.tiny_configs import CONFIGS
from support.tiny_survey import EFFECTS, save_model, spec_of

from theodolite.groups import GROUPS
from theodolite.store.manifest import finished_groups
from theodolite.store.runs import Run
from theodolite_jobs.analysis_costs import array_bytes
from theodolite_jobs.analysis_counts import Survey
from theodolite_jobs.prepare import prepare
from theodolite_jobs.progress import Console
from theodolite_jobs.survey import survey

pytestmark = pytest.mark.usefixtures("forked_replicas", "without_figures")


def planned(spec, folder) -> Survey:
    """Return what is known of a survey before its capture."""
    prepared = prepare(spec, Path(), settings(folder))
    run = Run("", prepared.record("", {}))
    return Survey(run, prepared.spec, prepared.spec.resolved_contrasts(), prepared.config, prepared.block_weights)


@pytest.mark.parametrize("family", ["llama", "deepseek_v3"])
def test_the_bytes_of_arrays_are_those_of_a_finished_run(family, tmp_path):
    model = save_model(tmp_path / "model", config=CONFIGS[family])
    changes = {
        "capture": {"positions": [-2, -1], "sites": ["resid_pre", "resid_mid", "head_out"], "shard_prompts": 5},
        "analyses": None,
        "effects": EFFECTS,
        "probes": {"draws": 19},
        "heads": {"vectors": 3, "offsets": [0, 2], "composition": [1, 3]},
    }
    if family == "deepseek_v3":  # whose heads have no words
        changes |= {"effects": None, "words": None}
    spec = spec_of(model, **changes)
    before = planned(spec, tmp_path)
    run = survey(spec, Path(), settings(tmp_path), Console())
    finished = set(finished_groups(run))
    others = {"routing"} if family == "deepseek_v3" else {"effects", "words", "composition", "logit_lens"}
    assert finished >= {"probes", *others}
    root = zarr.open_group(f"{run.url}/results.zarr", mode="r")
    stored = {name: sum(root[f"{name}/{one.name}"].nbytes for one in GROUPS[name].variables) for name in finished}
    if family == "deepseek_v3":  # the shared expert is not known before the weights are read
        stored.pop("weights")
    assert {name: array_bytes(before, name) for name in stored} == stored
