"""Datasets and models from the hub, with the real client libraries against a local stand-in of the hub."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import hub
from support.asking_hub import UNREACHABLE, Answers, ask
from support.each import each
from support.sentences import assert_says


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, list[str]]]:
    """A hub with the dataset org/goals (splits train and test) and the model org/tiny."""
    root = tmp_path_factory.mktemp("hub")
    goals = root / "datasets" / "org" / "goals"
    goals.mkdir(parents=True)
    rows = [f'"goal {number}, please",{"more" if number % 2 else ""},{number}' for number in range(10)]
    (goals / "train.csv").write_text("\n".join(["goal,input,level", *rows, ""]))
    (goals / "test.csv").write_text("goal,input,level\nheld out,,1\n")
    lines = root / "datasets" / "org" / "lines"
    lines.mkdir()
    (lines / "train.jsonl").write_text('{"text": "first"}\n{"text": "second"}\n')
    tiny = root / "models" / "org" / "tiny"
    tiny.mkdir(parents=True)
    for name in FILES:
        (tiny / name).write_text(f"content of {name}")
    (root / "models" / "org" / "tiny-GGUF").mkdir()
    (root / "models" / "org" / "tiny-GGUF" / "tiny-Q4_K_M.gguf").write_text("content")
    with hub.serve_hub(root) as (endpoint, requests):
        yield endpoint, requests


FILES = {
    "config.json": "small",
    "tokenizer.json": "small",
    "chat_template.jinja": "small",
    "merges.txt": "small",
    "model.safetensors": "all",
    "modeling_own.py": "small",
    "pytorch_model.bin": "never",
    "training_log.md": "never",
}

GOALS = {"source": "hub:org/goals", "column": "goal"}
PROMPT_QUESTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "all": ("prompts", GOALS),
    "split": ("prompts", {**GOALS, "split": "test"}),
    "only_column": ("prompts", {"source": "hub:org/lines"}),
    "limit": ("prompts", {**GOALS, "limit": 2}),
    "where_empty": ("prompts", {**GOALS, "where": {"input": ""}, "limit": 3}),
    "where_number": ("prompts", {**GOALS, "where": {"level": 7}}),
    "missing_split": ("prompts", {**GOALS, "split": "validation"}),
    "missing_column": ("prompts", {**GOALS, "column": "prompt"}),
    "several_columns": ("prompts", {"source": "hub:org/goals"}),
    "missing_dataset": ("prompts", {**GOALS, "source": "hub:org/gone"}),
}
MODEL_QUESTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "newest": ("resolve", {"id": "org/tiny"}),
    "branch": ("resolve", {"id": "org/tiny", "revision": "main"}),
    "small_files": ("files", {"id": "org/tiny", "which": "small"}),
    "all_files": ("files", {"id": "org/tiny", "which": "all"}),
    "missing_model": ("resolve", {"id": "org/gone"}),
    "missing_revision": ("resolve", {"id": "org/tiny", "revision": "v9"}),
    "only_gguf": ("files", {"id": "org/tiny-GGUF", "which": "small"}),
    "missing_commit": ("files", {"id": "org/tiny", "revision": "f" * 40, "which": "all"}),
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder for the downloads of both libraries."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def answers(served: tuple[str, list[str]], home: Path) -> Answers:
    return ask(served[0], home, PROMPT_QUESTIONS | MODEL_QUESTIONS)


# Datasets


@pytest.mark.nightly
@each(
    "question, expected",
    [
        ("all", [f"goal {number}, please" for number in range(10)]),
        ("split", ["held out"]),
        ("only_column", ["first", "second"]),
        ("limit", ["goal 0, please", "goal 1, please"]),
        ("where_empty", ["goal 0, please", "goal 2, please", "goal 4, please"]),
        ("where_number", ["goal 7, please"]),
    ],
)
def test_a_dataset_is_read_like_a_file(answers: Answers, question: str, expected: list[str]) -> None:
    assert answers[question] == {"value": expected}


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ("missing_split", ["prompts.goals.source: hub:org/goals", "'validation'", "train", "test"]),
        ("missing_column", ["prompts.goals.column", "'prompt'", "allowed: goal, input, level"]),
        ("several_columns", ["prompts.goals.column", "goal, input, level"]),
        ("missing_dataset", ["prompts.goals.source: hub:org/gone", "doesn't exist"]),
    ],
)
def test_a_missing_part_of_a_dataset_is_named(answers: Answers, question: str, words: list[str]) -> None:
    assert answers[question]["error"] == "PromptError"
    for part in words:
        assert part in answers[question]["message"]


# Models


@pytest.mark.parametrize("question", ["newest", "branch"])
def test_a_model_is_pinned_to_its_commit(answers: Answers, question: str) -> None:
    assert answers[question] == {
        "value": {
            "name": "tiny",
            "kind": "hub",
            "location": "org/tiny",
            "revision": hub.COMMIT,
            "weights": "trained",
            "note": "",
            "adapter": None,
        }
    }


@pytest.mark.parametrize(("question", "kinds"), [("small_files", {"small"}), ("all_files", {"small", "all"})])
def test_only_the_files_that_are_needed_are_downloaded(answers: Answers, question: str, kinds: set[str]) -> None:
    assert answers[question] == {"value": {name: f"content of {name}" for name, kind in FILES.items() if kind in kinds}}


def test_a_download_counts_its_megabytes(tmp_path: Path) -> None:
    folder = tmp_path / "hub" / "models" / "org" / "large"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(bytes(21 * 10**6))
    with hub.serve_hub(tmp_path / "hub") as (endpoint, _):
        answers = ask(endpoint, tmp_path / "home", {"large": ("told", {"id": "org/large", "which": "all"})})
    *stages, last = answers["large"]["value"]
    assert last is None
    assert {(title, unit) for title, _, _, unit in stages} == {("downloading org/large", "MB")}
    done = [done for _, done, _, _ in stages]
    assert done == sorted(done)
    assert len(set(done)) > 1
    assert stages[-1][1:3] == [22, 22]  # begun megabytes: the configuration has two bytes


def test_pickled_weights_are_never_requested(answers: Answers, served: tuple[str, list[str]]) -> None:
    assert "GET /org/tiny/resolve/" + hub.COMMIT + "/model.safetensors" in served[1]
    assert not [request for request in served[1] if request.endswith(".bin")]


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ("missing_model", ["model.id", "'org/gone'"]),
        ("missing_revision", ["'org/tiny'", "v9"]),
        ("missing_commit", ["org/tiny", "f" * 40]),
        ("only_gguf", ["org/tiny-GGUF on the hub has GGUF files and no config.json", "tiny-Q4_K_M.gguf --local-dir ."]),
    ],
)
def test_a_missing_model_or_revision_on_the_hub_is_a_model_error(
    answers: Answers, question: str, words: list[str]
) -> None:
    assert answers[question]["error"] == "ModelError"
    for part in words:
        assert part in answers[question]["message"]


def test_the_error_of_a_missing_model_says_that_it_was_not_found(answers: Answers) -> None:
    message = answers["missing_model"]["message"].lower()
    assert re.search("not found|no such|no model|does not exist|doesn't exist", message), message


# Without a hub


def test_an_unreachable_hub_is_a_model_error(tmp_path: Path) -> None:
    answers = ask(UNREACHABLE, tmp_path, {"newest": MODEL_QUESTIONS["newest"]})
    assert answers["newest"]["error"] == "ModelError"
    assert "'org/tiny'" in answers["newest"]["message"]


OFFLINE = [
    pytest.param({"HF_HUB_OFFLINE": "1"}, id="offline"),
    pytest.param({}, id="no network", marks=pytest.mark.nightly),
]


@pytest.mark.parametrize("environment", OFFLINE)
def test_a_downloaded_model_is_resolved_from_the_cache(
    answers: Answers, home: Path, environment: dict[str, str]
) -> None:
    """Surveys download a commit; other programs also note which commit a branch was."""
    questions = {
        "pinned": ("files", {"id": "org/tiny", "revision": hub.COMMIT, "which": "all"}),
        "files": ("files", {"id": "org/tiny", "which": "all"}),
        "newest": MODEL_QUESTIONS["newest"],
        "branch": MODEL_QUESTIONS["branch"],
    }
    found = ask(UNREACHABLE, home, questions, **environment)
    assert found["pinned"] == found["files"] == answers["all_files"]
    assert found["newest"]["value"]["revision"] == hub.COMMIT
    assert_says(found["newest"]["value"]["note"], f"cannot be reached … org/tiny … only cached commit, {hub.COMMIT}")
    assert "no revision 'main' of 'org/tiny'" in found["branch"]["message"]
    refs = home / "hub" / "models--org--tiny" / "refs"
    refs.mkdir()
    (refs / "main").write_text(hub.COMMIT)
    other = refs.parent / "snapshots" / ("e" * 40)
    other.mkdir()
    found = ask(UNREACHABLE, home, {name: questions[name] for name in ("newest", "branch")}, **environment)
    other.rmdir()
    (refs / "main").unlink()
    refs.rmdir()
    for answer in found.values():
        assert answer["value"]["revision"] == hub.COMMIT
        assert_says(answer["value"]["note"], f"cannot be reached … org/tiny at main … cached commit {hub.COMMIT}")


@pytest.mark.parametrize("environment", OFFLINE)
def test_a_revision_that_is_not_cached_is_one_line(answers: Answers, home: Path, environment: dict[str, str]) -> None:
    questions = {"v9": MODEL_QUESTIONS["missing_revision"], "gone": MODEL_QUESTIONS["missing_model"]}
    found = ask(UNREACHABLE, home, questions, **environment)
    assert [answer["error"] for answer in found.values()] == ["ModelError"] * 2
    assert "the cache of the hub has no revision 'v9' of 'org/tiny'; download it" in found["v9"]["message"]
    assert "the cache of the hub has no revision 'main' of 'org/gone'" in found["gone"]["message"]
    assert "\n" not in found["v9"]["message"]


def test_a_partly_cached_model_is_named(served: tuple[str, list[str]], tmp_path: Path) -> None:
    ask(served[0], tmp_path, {"small": MODEL_QUESTIONS["small_files"]})
    answers = ask(UNREACHABLE, tmp_path, {"all": MODEL_QUESTIONS["all_files"]}, HF_HUB_OFFLINE="1")
    assert answers["all"]["error"] == "ModelError"
    missing = f"org/tiny at {hub.COMMIT} … cache lacks model.safetensors; download"
    assert_says(answers["all"]["message"], missing)
    (folder,) = (tmp_path / "hub" / "models--org--tiny").glob("snapshots/*")
    for listing in (tmp_path / "hub").glob("**/trees/**/*"):  # older libraries cached no list of all files
        listing.unlink()
    answers = ask(UNREACHABLE, tmp_path, {"all": MODEL_QUESTIONS["all_files"]}, HF_HUB_OFFLINE="1")
    assert f"{folder} has no *.safetensors: org/tiny at {hub.COMMIT} has none, or only" in answers["all"]["message"]
