"""Surveys with other numbers of replicas and of threads store the same bits in all groups."""

import copy
from pathlib import Path

import pytest
from chaos.processes import capture_without_ray
from support.damages import REWRITTEN, opened, settings
from support.nightly import at_night
from support.tiny_configs import CONFIGS
from support.tiny_survey import save_model, spec_of

from theodolite.store.manifest import finished_groups
from theodolite.store.objects import keys
from theodolite_jobs.progress import Console
from theodolite_jobs.survey import survey

pytestmark = pytest.mark.usefixtures("without_figures")

SETS = {
    "harmful": {"source": "builtin:harmful", "limit": 10, "template": "none"},
    "harmless": {"source": "builtin:harmless", "limit": 10, "template": "none"},
    "short": {"source": "inline", "texts": ["a", "b", "at", "in", "out", "sun"], "template": "none"},
}
"""The set `short` has forward passes of few tokens, whose products a library would divide between many threads."""

CAPTURE = {"sites": ["resid_pre", "resid_mid", "mlp_out", "attn_out"], "shard_prompts": 3, "batch_tokens": 12}
EFFECTS = {"prompts": 10, "layers": [1], "controls": 19}


@pytest.fixture(scope="module", params=["mixtral", *at_night(["llama"])])
def model(request, tmp_path_factory):
    config = copy.deepcopy(CONFIGS[request.param])
    config.num_hidden_layers = 3
    return save_model(tmp_path_factory.mktemp("model") / "model", config=config)


def surveyed(model, store, replicas, threads):
    own = settings(store).model_copy(update={"replicas": replicas})
    spec = spec_of(model, prompts=SETS, capture=CAPTURE, analyses=None, effects=EFFECTS)
    with capture_without_ray(threads=threads):
        return Path(survey(spec, Path(), own, Console()).url)


@pytest.fixture(scope="module")
def alone(model, tmp_path_factory):
    """The run of one replica with one thread."""
    return surveyed(model, tmp_path_factory.mktemp("alone"), 1, 1)


@pytest.mark.nightly
@pytest.mark.parametrize(("replicas", "threads"), [(2, 3), *at_night([(1, 3), (4, 2)])])
def test_replicas_and_threads_change_no_bit(model, alone, tmp_path, replicas, threads):
    run = surveyed(model, tmp_path, replicas, threads)
    has_experts = opened(run).record.model.family == "mixtral"
    assert {"effects", *(["routing"] if has_experts else [])} <= finished_groups(opened(run)).keys()
    objects = keys(opened(run).location)
    assert objects == keys(opened(alone).location)
    compared = [key for key in objects if not key.startswith((*REWRITTEN, "run.json"))]  # run.json has a time too
    assert [key for key in compared if (run / key).read_bytes() != (alone / key).read_bytes()] == []
