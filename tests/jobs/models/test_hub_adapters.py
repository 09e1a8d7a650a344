"""Adapters on the hub: their base at the commit that is pinned, with the real client library."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import hub
from support.adapters import change_settings, save_adapter, save_base
from support.asking_hub import UNREACHABLE, Answers, ask

QUESTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "alone": ("resolve", {"id": "org/lora"}),
    "alone_at_a_commit": ("resolve", {"id": "org/lora", "revision": hub.COMMIT}),
    "both": ("resolve", {"id": "org/base", "adapter": "org/lora", "adapter_revision": "main"}),
    "beside": ("resolve", {"id": "org/beside"}),
    "with_a_path": ("resolve", {"id": "org/path"}),
    "wrong_revision": ("resolve", {"id": "org/base", "adapter": "org/lora", "adapter_revision": "v9"}),
    "no_adapter": ("merged", {"id": "org/base", "adapter": "org/base"}),
    "two": ("resolve", {"id": "org/lora", "adapter": "org/beside"}),
}
BASE = {
    "name": "base + lora",
    "kind": "hub",
    "location": "org/base",
    "revision": hub.COMMIT,
    "weights": "trained",
    "note": "",
}
LORA = {"name": "lora", "kind": "hub", "location": "org/lora", "revision": hub.COMMIT}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, list[str]]]:
    """A hub with a base, an adapter of it, both in one repository, and an adapter whose base is a path."""
    models = tmp_path_factory.mktemp("hub") / "models" / "org"
    models.mkdir(parents=True)
    base = save_base("llama", models / "base", tie_word_embeddings=False)
    lora = save_adapter(base, models / "lora", target_modules=["q_proj"])
    change_settings(lora, base_model_name_or_path="org/base", revision="main")
    (lora / "config.json").write_bytes((base / "config.json").read_bytes())  # as some programs for training do
    (models / "beside").mkdir()
    for file in (*base.iterdir(), *lora.iterdir()):
        (models / "beside" / file.name).write_bytes(file.read_bytes())
    (models / "path").mkdir()
    (models / "path" / "adapter_config.json").write_text(
        json.dumps({"peft_type": "LORA", "r": 4, "lora_alpha": 6, "base_model_name_or_path": "/etc/secret"})
    )
    with hub.serve_hub(models.parents[1]) as (endpoint, requests):
        yield endpoint, requests


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def answers(served: tuple[str, list[str]], home: Path) -> Answers:
    merged = ("merged", {"id": "org/lora", "cache": str(home / "cache")})
    no_adapter = ("merged", {**QUESTIONS["no_adapter"][1], "cache": str(home / "cache")})
    return ask(served[0], home, {**QUESTIONS, "no_adapter": no_adapter, "merged": merged})


@pytest.mark.parametrize("question", ["alone", "alone_at_a_commit", "both"])
def test_base_and_adapter_are_pinned_to_their_commits(answers: Answers, question: str) -> None:
    assert answers[question] == {"value": {**BASE, "adapter": LORA}}


def test_an_adapter_beside_its_base_on_the_hub_is_merged(answers: Answers) -> None:
    adapter = {**LORA, "name": "beside", "location": "org/beside"}
    own = {"name": "beside + adapter", "location": "org/beside", "adapter": adapter}
    assert answers["beside"] == {"value": {**BASE, **own}}


def test_only_what_is_needed_is_downloaded_and_merged(answers: Answers, served: tuple[str, list[str]]) -> None:
    assert {"config.json", "model.safetensors.index.json"} < set(answers["merged"]["value"])
    assert "adapter_config.json" not in answers["merged"]["value"]
    assert f"GET /org/lora/resolve/{hub.COMMIT}/adapter_model.safetensors" in served[1]


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ("with_a_path", ["'/etc/secret', which is no hub id", "set model: {id: BASE, adapter: ADAPTER}"]),
        ("wrong_revision", ["model.adapter_revision", "'org/lora'", "'v9'"]),
        ("no_adapter", ["model.adapter: org/base", "has no adapter_config.json"]),
        ("two", ["model.adapter: given 'org/beside', but org/lora contains an adapter itself"]),
    ],
)
def test_an_adapter_that_cannot_be_used_is_named(answers: Answers, question: str, words: list[str]) -> None:
    for word in words:
        assert word in answers[question]["message"]


@pytest.mark.nightly
def test_offline_both_are_used_by_their_commits(answers: Answers, home: Path) -> None:
    assert "value" in answers["merged"]
    alone = {"id": "org/lora", "revision": hub.COMMIT, "cache": str(home / "cache")}
    both = {"id": "org/base", "revision": hub.COMMIT, "adapter": "org/lora", "adapter_revision": hub.COMMIT}
    questions = {"both": ("merged", {**both, "cache": str(home / "cache")}), "alone": ("merged", alone)}
    offline = ask(UNREACHABLE, home, questions, HF_HUB_OFFLINE="1")
    assert offline["both"] == answers["merged"]
    assert "org/lora contains an adapter; set model: {id: BASE, adapter: org/lora}" in offline["alone"]["message"]
