"""Surveys from a GGUF file and from a Qwen1 checkpoint: the certificate holds the weights against their source."""

from pathlib import Path

import pytest
from support.gguf_files import tiny_llama, write_gguf
from support.qwen1 import save_qwen1
from support.tiny_survey import spec_of

from theodolite.query.verification import verify
from theodolite.settings import Settings
from theodolite.store.layout import REPORT
from theodolite.store.objects import get
from theodolite_jobs.progress import Console
from theodolite_jobs.survey import survey

pytestmark = pytest.mark.usefixtures("forked_replicas")


def gguf(folder: Path) -> Path:
    write_gguf(tiny_llama(), folder / "tiny.gguf", kind="Q8_0")
    return folder / "tiny.gguf"


def qwen1(folder: Path) -> Path:
    save_qwen1(folder / "qwen1")
    return folder / "qwen1"


# What each conversion is compared by: a tensor, and a setting under its name in the source.
HELD = {
    gguf: ("blk.0.ffn_down.weight", "rope.freq_base"),
    qwen1: ("transformer.h.0.mlp.c_proj.weight", "rotary_emb_base"),
}


@pytest.mark.parametrize("kind", HELD, ids=lambda kind: kind.__name__)
def test_a_survey_of_converted_weights_names_what_it_held_against_the_source(tmp_path: Path, kind) -> None:
    settings = Settings(store=str(tmp_path / "store"), cache=tmp_path / "cache", replicas=1, gpus_per_replica=0)
    spec = spec_of(kind(tmp_path), analyses=["curves"])
    short = {name: one.model_copy(update={"too_long": "truncate_right"}) for name, one in spec.prompts.items()}
    run = survey(spec.model_copy(update={"prompts": short}), Path(), settings, Console())
    held = run.record.parity["held_against_source"]
    tensor, setting = HELD[kind]
    assert tensor in held["tensors"]
    assert setting in held["settings"]
    report = get(run.location, REPORT).decode()
    assert f"Of the converted model, {len(held['tensors'])} tensors and {len(held['settings'])} settings" in report
    assert list(verify(run)) == []
