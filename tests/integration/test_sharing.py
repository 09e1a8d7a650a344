"""Surveys on a cluster whose GPUs are in use: they start with the free GPUs, and wait for the others."""

from pathlib import Path

import pytest
import torch
from support.nightly import at_night
from support.tiny_survey import spec_of

from theodolite.query.verification import verify
from theodolite.settings import Settings
from theodolite.store.commits import read_commits
from theodolite_jobs.progress import Console
from theodolite_jobs.survey import capture


class Told(Console):
    """A console that records its lines, and frees the held GPUs when a line reports waiting."""

    def __init__(self, give_back):
        super().__init__()
        self.lines, self.give_back = [], give_back

    def say(self, text):
        self.lines.append(text)
        if text.startswith("waiting"):
            self.give_back()


def holder(gpus):
    """Hold GPUs as another survey would; return a function that frees them."""
    import ray

    held = ray.remote(num_cpus=0, num_gpus=gpus)(type("Holder", (), {"hold": lambda self: True})).remote()
    ray.get(held.hold.remote())
    return lambda: ray.kill(held)


@pytest.mark.parametrize(
    ("held", "told"), [(4, "waiting for resources: "), *at_night([(3, "1 of 2 replicas have started")])]
)
def test_a_survey_starts_with_the_gpus_that_are_free(ray_with_pretend_gpus, tiny_folder, tmp_path, held, told):
    sets = {"harmful": {"source": "builtin:harmful", "limit": 4, "template": "none"}}
    spec = spec_of(tiny_folder, prompts=sets, contrasts={}, capture={"shard_prompts": 2, "layers": [0]})
    give_back = holder(held)
    try:
        console = Told(give_back)
        # Long enough for a process to start on a busy machine if a GPU is free; short if none is.
        seconds = 2 if held == 4 else 20
        settings = Settings(store=str(tmp_path), replicas=2, gpus_per_replica=1, replicas_wait_seconds=seconds)
        run = capture(spec, Path(), settings, console)
    finally:
        give_back()
    assert any(line.startswith(told) for line in console.lines), console.lines
    assert any("1 GPU(s) and computes on the CPU" in line for line in console.lines) != torch.cuda.is_available()
    assert sorted(read_commits(run, "harmful")) == [0, 1]
    assert [problem for problem in verify(run) if "results" not in problem] == []
