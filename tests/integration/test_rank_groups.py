"""A model that several ranks share in tensor parallel, through Ray: three processes, one answer."""

from pathlib import Path

import numpy as np
import pytest
from support.ray_cluster import kill_after_the_first_shard
from support.tiny_sizes import GROUPED
from support.tiny_survey import save_model, spec_of
from transformers import LlamaConfig

from theodolite.errors import UnsupportedModelError
from theodolite.query.verification import verify
from theodolite.settings import Settings
from theodolite.sites import Site
from theodolite.store.commits import read_commits
from theodolite.store.shards import read_shard
from theodolite_jobs import capture_run
from theodolite_jobs.progress import Console
from theodolite_jobs.survey import capture

# Six query heads in three groups: over three ranks each holds one group.
HEADS = {"num_attention_heads": 6, "num_key_value_heads": 3}
SHARDS = 32  # many remain after the first commit, which takes longer than a few captures
PROMPTS = {"harmful": {"source": "builtin:harmful", "limit": 2 * SHARDS, "template": "none"}}


@pytest.fixture(scope="module")
def captured(ray_with_pretend_gpus, tmp_path_factory):
    model = save_model(tmp_path_factory.mktemp("ranks") / "model", config=LlamaConfig(**GROUPED | HEADS))
    spec = spec_of(model, prompts=PROMPTS, contrasts={}, capture={"shard_prompts": 2, "layers": [0, 2, 4]})
    return lambda store, **options: capture(spec, Path(), Settings(store=str(store), replicas=1, **options), Console())


@pytest.fixture(scope="module")
def alone(captured, tmp_path_factory):
    return captured(tmp_path_factory.mktemp("alone"), gpus_per_replica=0)


@pytest.mark.nightly
def test_three_ranks_capture_what_one_process_does_also_after_one_of_them_was_killed(
    alone, captured, tmp_path, monkeypatch
):
    retried = []
    killed = kill_after_the_first_shard(monkeypatch, capture_run, actors=3, rank=1, retried=retried.append)
    run = captured(tmp_path, gpus_per_replica=3, parallelism="tensor")
    assert run.id == alone.id
    assert run.record.parity["ranks"] == 3
    assert killed
    assert retried
    assert set(retried) == {"died"}
    assert sorted(read_commits(run, "harmful")) == list(range(SHARDS))
    assert [problem for problem in verify(run) if "results" not in problem] == []
    for site in (Site.RESID_PRE, Site.RESID_MID, Site.RESID_FINAL):
        for index in range(SHARDS):
            one, three = (read_shard(of, read_commits(of, "harmful")[index], site) for of in (alone, run))
            error = np.linalg.norm(one - three, axis=-1) / np.linalg.norm(one, axis=-1)
            assert error.max() < 1e-5, site


def test_ranks_that_heads_cannot_be_dealt_to_are_refused_before_anything_is_loaded(captured, tmp_path):
    with pytest.raises(
        UnsupportedModelError, match="6 heads and 3 key-value heads are not both divisible by 2; allowed: 1, 3"
    ):
        captured(tmp_path, gpus_per_replica=2, parallelism="tensor")
    assert not (tmp_path / "runs").exists() or not list((tmp_path / "runs").iterdir())
