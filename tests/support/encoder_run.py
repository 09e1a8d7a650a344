"""A run of a small real encoder with every result, made once for all tests of a run of pytest."""

from pathlib import Path

import pytest
from chaos.processes import capture_without_ray
from support.made_once import made_once
from support.short_reports import short_reports

from theodolite.settings import Settings
from theodolite.spec_file import parse_spec
from theodolite.store.runs import Run, open_run
from theodolite_jobs.progress import Console
from theodolite_jobs.survey import survey

ENCODER = "all-minilm-l6-v2"
PROMPTS, VECTORS, TOKENS = 12, 6, 12

HOSTILE = "</script><img src=x onerror=alert(1)>"
"""The label of the run, and the start of its sentence."""

SPEC = {
    "name": HOSTILE,
    "model": {"id": ENCODER},
    "prompts": {
        "bad": {"source": "builtin:harmful", "limit": PROMPTS},
        "good": {"source": "builtin:harmless", "limit": PROMPTS},
    },
    "contrasts": {"refusal": {"positive": "bad", "negative": "good"}},
    "heads": {"vectors": VECTORS},
    "words": {"tokens": TOKENS, "sentences": [f"{HOSTILE} with one stone", "stone"]},
}


def encoder_run(factory: pytest.TempPathFactory) -> Run:
    """Return the run, in a store of its own."""
    folder, run = made_once(factory, "encoder", _surveyed)
    return open_run(str(folder), run)


def _surveyed(folder: Path) -> str:
    settings = Settings(store=str(folder), replicas=1, gpus_per_replica=0)
    with capture_without_ray(), short_reports():
        return survey(parse_spec(SPEC), Path(), settings, Console()).id
