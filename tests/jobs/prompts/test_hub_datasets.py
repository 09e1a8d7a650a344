"""Datasets of the hub at one commit, with the real client libraries against a local stand-in of the hub."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support import hub
from support.each import each
from support.finished_runs import finished_run

from theodolite.spec_parts import PromptSetSpec
from theodolite_jobs.prompts.hub_datasets import with_commits

# Questions are JSON on standard input; each answer has the commit and the prompts, or the message of an error.
ASK = """
import json, sys
from pathlib import Path
from theodolite.errors import PromptError
from theodolite.spec_parts import PromptSetSpec
from theodolite_jobs.prompts.hub_datasets import pinned_set
from theodolite_jobs.prompts.sources import read_prompts

answers = {}
for name, settings in json.load(sys.stdin).items():
    try:
        pinned = pinned_set("goals", PromptSetSpec(**settings))
        answers[name] = [pinned.revision, read_prompts("goals", pinned, Path("/nowhere"))]
    except PromptError as error:
        answers[name] = str(error)
print(json.dumps(answers))
"""
OLD = "f" * 40
UNREACHABLE = "http://127.0.0.1:9"  # no server listens on the discard port

CARD = """---
configs:
- config_name: easy
  data_files: easy.jsonl
- config_name: hard
  data_files: hard.jsonl
---
"""


def write_lines(file: Path, *texts: str) -> None:
    file.write_text("".join(f"{json.dumps({'text': text})}\n" for text in texts))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, list[str]]]:
    """A hub with datasets: a changed one, one with two configurations, with a NUL, a large one twice, images, chats."""
    root = tmp_path_factory.mktemp("hub")
    folders = {
        name: root / "datasets" / "org" / name
        for name in ("moved", f"moved@{OLD}", "two", "nul", "large", "streamed", "seen", "chats")
    }
    for folder in folders.values():
        folder.mkdir(parents=True)
    write_lines(folders["moved"] / "train.jsonl", "new")
    write_lines(folders[f"moved@{OLD}"] / "train.jsonl", "old")
    write_lines(folders["two"] / "easy.jsonl", "1 + 1")
    write_lines(folders["two"] / "hard.jsonl", "7 * 8")
    (folders["two"] / "README.md").write_text(CARD)
    write_lines(folders["nul"] / "train.jsonl", "a", "a\0b")
    (folders["large"] / "data").mkdir()
    (folders["streamed"] / "data").symlink_to(folders["large"] / "data")
    for shard in range(3):
        rows = [shard * 100 + row for row in range(100)]
        table = pa.table({"text": [f"goal {row}" for row in rows], "level": [row // 90 for row in rows]})
        pq.write_table(table, folders["large"] / "data" / f"train-{shard:05d}-of-00003.parquet")
    features = {"text": {"dtype": "string", "_type": "Value"}, "image": {"_type": "Image"}}
    image = {"bytes": b"no image, which is known only after decoding", "path": "a.png"}
    seen = pa.table({"text": ["a", "b"], "image": [image, image]})
    marked = seen.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    pq.write_table(marked, folders["seen"] / "train.parquet")
    (folders["chats"] / "train.jsonl").write_text("".join(f"{json.dumps({'chat': chat})}\n" for chat in CHATS))
    with hub.serve_hub(root) as (endpoint, requests):
        yield endpoint, requests


# The keys and types of these messages differ, so the package datasets stores them as texts of JSON.
CHATS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a\nb", "tool_calls": None}],
    [{"role": "user", "content": [{"type": "text", "text": "yo"}]}],
]
READ = [
    [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a\nb"}],
    [{"role": "user", "content": "yo"}],
]
MOVED, TWO, LARGE = ({"source": f"hub:org/{name}"} for name in ("moved", "two", "large"))
LARGE |= {"column": "text"}
STREAMED = {**LARGE, "source": "hub:org/streamed"}
QUESTIONS: dict[str, dict[str, Any]] = {
    "newest": MOVED,
    "branch": {**MOVED, "revision": "main"},
    "old": {**MOVED, "revision": OLD},
    "old_streamed": {**MOVED, "revision": OLD, "limit": 1},
    "missing_revision": {**MOVED, "revision": "v9"},
    "missing_commit": {**MOVED, "revision": "e" * 40},
    "missing_dataset": {"source": "hub:org/gone"},
    "no_config": TWO,
    "wrong_config": {**TWO, "config": "harder"},
    "config": {**TWO, "config": "hard"},
    "config_streamed": {**TWO, "config": "easy", "limit": 5},
    "data_files": {**TWO, "data_files": ["hard.jsonl"]},
    "missing_data_file": {**TWO, "data_files": ["harder.jsonl"]},
    "nul": {"source": "hub:org/nul"},
    "nul_streamed": {"source": "hub:org/nul", "limit": 2},
    "images": {"source": "hub:org/seen", "column": "text"},
    "images_streamed": {"source": "hub:org/seen", "column": "text", "limit": 2},
    "chats": {"source": "hub:org/chats"},
    "chats_streamed": {"source": "hub:org/chats", "limit": 2},
    "all": LARGE,
    "limit": {**LARGE, "limit": 250},
    "more": {**LARGE, "limit": 999},
    "none": {**LARGE, "where": {"level": 9}, "limit": 1},
    "column": {**LARGE, "where": {"colour": 9}, "limit": 1},
    "slice": {**LARGE, "split": "train[10:20]", "limit": 2},
    "drawn": {**LARGE, "draw": {"test_size": 0.5, "random_state": 0}, "limit": 2},
    "first": {**STREAMED, "limit": 3},
    "where": {**STREAMED, "where": {"level": 1}, "skip": 1, "limit": 2},
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder for the downloads of the libraries."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def answers(served: tuple[str, list[str]], home: Path) -> dict[str, Any]:
    return hub.ask_in_process(ASK, served[0], home, QUESTIONS)


@each(
    "question, commit, texts",
    [
        ("newest", hub.COMMIT, ["new"]),
        ("branch", hub.COMMIT, ["new"]),
        ("old", OLD, ["old"]),
        ("old_streamed", OLD, ["old"]),
        ("config", hub.COMMIT, ["7 * 8"]),
        ("config_streamed", hub.COMMIT, ["1 + 1"]),
        ("data_files", hub.COMMIT, ["7 * 8"]),
        ("images", hub.COMMIT, ["a", "b"]),
        ("images_streamed", hub.COMMIT, ["a", "b"]),
        ("chats", hub.COMMIT, READ),
        ("chats_streamed", hub.COMMIT, READ),
    ],
)
def test_a_dataset_is_read_at_a_commit(answers: dict[str, Any], question: str, commit: str, texts: list[Any]) -> None:
    assert answers[question] == [commit, texts]


@each(
    "question, message",
    [
        ("missing_revision", "prompts.goals.revision: the dataset org/moved has no revision 'v9'"),
        ("missing_commit", "prompts.goals.source: hub:org/moved, split 'train', cannot be read: Revision 'eeee"),
        ("missing_dataset", "prompts.goals.source: the hub has no dataset org/gone, or it is private"),
        ("no_config", "prompts.goals.config: is not given; hub:org/two has easy, hard; name one of them"),
        ("wrong_config", "prompts.goals.config: 'harder' does not exist; hub:org/two has easy, hard"),
        ("missing_data_file", "prompts.goals.source: hub:org/two, split 'train', cannot be read: "),
        ("nul", "prompts.goals (hub:org/nul, row 1): prompt 1 has a NUL character"),
        ("nul_streamed", "prompts.goals (hub:org/nul, row 1): prompt 1 has a NUL character"),
    ],
)
def test_what_a_dataset_lacks_is_an_error_of_one_line(answers: dict[str, Any], question: str, message: str) -> None:
    assert answers[question].startswith(message)
    assert "\n" not in answers[question]


def test_with_a_limit_only_the_files_of_the_first_prompts_are_requested(
    served: tuple[str, list[str]], answers: dict[str, Any]
) -> None:
    assert answers["first"] == [hub.COMMIT, ["goal 0", "goal 1", "goal 2"]]
    assert answers["where"] == [hub.COMMIT, ["goal 91", "goal 92"]]
    requests = [request for request in served[1] if "/org/streamed/" in request]
    files = {request.rpartition("/")[2] for request in requests if request.endswith(".parquet")}
    assert files == {"train-00000-of-00003.parquet"}


def test_a_limit_gives_the_first_prompts_of_the_whole_dataset(answers: dict[str, Any]) -> None:
    texts = [f"goal {row}" for row in range(300)]
    assert answers["all"][1] == answers["more"][1] == texts
    assert answers["limit"][1] == texts[:250]
    assert answers["none"].startswith("prompts.goals.where: none of the 300 rows has the requested values")
    assert answers["column"].startswith("prompts.goals.where: no column 'colour'; allowed: text, level")
    assert answers["slice"][1] == ["goal 10", "goal 11"]
    assert len(set(answers["drawn"][1])) == 2


def test_without_the_hub_only_the_requested_commit_is_read_from_the_cache(answers: dict[str, Any], home: Path) -> None:
    questions: dict[str, dict[str, Any]] = {
        "newest": TWO | {"config": "hard"},
        "commit": {**TWO, "config": "hard", "revision": hub.COMMIT},
        "other_commit": {**TWO, "config": "hard", "revision": "e" * 40},
        "branch": {**TWO, "config": "hard", "revision": "main"},
        "not_cached": {"source": "hub:org/gone"},
    }
    found = hub.ask_in_process(ASK, UNREACHABLE, home, questions, HF_HUB_OFFLINE="1")
    assert found["newest"] == found["commit"] == answers["config"]
    assert found["other_commit"].startswith("prompts.goals.revision: the hub did not answer for org/two")
    assert found["other_commit"].endswith(f"the cache has the commit {hub.COMMIT}, but not {'e' * 40}")
    for question in ("branch", "not_cached"):
        assert "the hub did not answer for org/" in found[question]
        assert "give a full commit that is in the cache as revision" in found[question]


def test_a_repair_reads_the_datasets_at_the_commits_of_the_run(tmp_path: Path) -> None:
    record = finished_run(tmp_path, {"moments": {}}).record
    prompts = {"harmful": PromptSetSpec(source="hub:org/moved"), "harmless": PromptSetSpec(source="builtin:harmless")}
    spec = record.spec.model_copy(update={"prompts": prompts})
    facts = {**record.sets, "harmful": record.sets["harmful"].model_copy(update={"dataset_commit": OLD})}
    again = with_commits(spec, record.model_copy(update={"spec": spec, "sets": facts}))
    assert {name: one.revision for name, one in again.prompts.items()} == {"harmful": OLD, "harmless": None}
    other = spec.model_copy(update={"prompts": {**prompts, "harmful": PromptSetSpec(source="hub:org/large")}})
    assert with_commits(other, record.model_copy(update={"spec": spec, "sets": facts})) == other
