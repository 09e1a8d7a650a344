"""The warning about repeated prompts reaches the person who starts or plans a survey."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.each import each
from support.sentences import assert_each_says
from support.tiny_configs import CONFIGS

from theodolite.errors import ModelError
from theodolite.settings import Settings
from theodolite.spec_file import parse_spec
from theodolite_jobs import estimate, survey
from theodolite_jobs.progress import Console

WARNING = "prompts.some: 1 of 3 prompts repeat the tokens of an earlier prompt, the first are prompt 0 and prompt 2"


class OneTokenALetter:
    """Stands in for a tokenizer; the tiny models have none."""

    chat_template = None

    def __call__(self, texts: list[str], **_: Any) -> dict[str, list[list[Any]]]:
        return {
            "input_ids": [[ord(letter) % 60 + 3 for letter in text] for text in texts],
            "offset_mapping": [[(index, index + 1) for index in range(len(text))] for text in texts],
        }


def planned(folder: Path, texts: str = "one\nanother\none\n", **changes: Any) -> dict[str, Any]:
    (folder / "some.txt").write_text(texts)
    CONFIGS["llama"].save_pretrained(folder / "llama")
    prompts = {"some": {"source": "file:some.txt"}}
    spec = {"model": {"id": "llama"}, "prompts": prompts, "words": {"sentences": []}, **changes}
    return estimate.plan_survey(parse_spec(spec), folder, Settings(cache=folder / "cache"))


def test_a_plan_lists_the_warnings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(estimate, "load_tokenizer", lambda *_: OneTokenALetter())
    (warning,) = planned(tmp_path)["warnings"]
    assert warning.startswith(WARNING)


def test_a_contrast_of_equal_sets_is_in_the_warnings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(estimate, "load_tokenizer", lambda *_: OneTokenALetter())
    sets = {name: {"source": "file:some.txt"} for name in ("some", "same")}
    contrasts = {"any": {"positive": "some", "negative": "same", "paired": False}}
    same = "contrasts.any: some and same … same prompts"
    assert_each_says(planned(tmp_path, "one\ntwo\n", prompts=sets, contrasts=contrasts)["warnings"], same)
    sets["same"] = {"source": "inline", "texts": ["two", "one"]}
    assert_each_says(planned(tmp_path, "one\ntwo\n", prompts=sets, contrasts=contrasts)["warnings"], same)


def test_a_contrast_of_different_templates_is_in_the_warnings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(estimate, "load_tokenizer", lambda *_: OneTokenALetter())
    sets = {
        name: {"source": "inline", "texts": texts, "template": template}
        for name, texts, template in (("plain", ["one"], "none"), ("quoted", ["two"], "“{prompt}”"))
    }
    contrasts = {"any": {"positive": "plain", "negative": "quoted", "paired": False}}
    plan = planned(tmp_path, prompts=sets, contrasts=contrasts)
    said = "contrasts.any: plain … 'none' … quoted '“{prompt}”' … templates alone can separate"
    assert_each_says(plan["warnings"], said)
    assert [one["template"] for one in plan["sets"].values()] == ["none", "“{prompt}”"]


def test_a_plan_without_the_tokenizer_does_not_know_which_tokens_repeat(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def missing(*_: Any) -> Any:
        raise ModelError("no tokenizer")

    monkeypatch.setattr(estimate, "load_tokenizer", missing)
    assert "warnings" not in planned(tmp_path)


def test_a_survey_prints_each_warning(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    commit = {"goals": {"dataset_commit": "0" * 40}, "file": {"n_skipped": 1}}
    prepared = SimpleNamespace(run_id="x-0", plans={}, notes=["what is merged"], warnings=[WARNING], read_facts=commit)
    monkeypatch.setattr(survey, "prepare", lambda *_, **__: prepared)
    monkeypatch.setattr(survey, "capture_run", lambda *_: None)
    prompts = {"goals": {"source": "hub:org/goals"}, "file": {"source": "file:a.txt"}}
    spec = parse_spec({"model": {"id": "x"}, "prompts": prompts})
    survey.capture(spec, tmp_path, Settings(store=str(tmp_path / "store")), Console())
    said = capsys.readouterr().err
    assert f"what is merged\nwarning: {WARNING}\n" in said
    assert f"prompts.goals: hub:org/goals at the commit {'0' * 40}\n" in said
    assert "prompts.file" not in said


def test_a_plan_counts_long_prompts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(estimate, "load_tokenizer", lambda *_: OneTokenALetter())
    context = CONFIGS["llama"].max_position_embeddings
    long, cut = f"b{'a' * context}c", "a" * context
    for rule, prompts, counts in (("skip", 1, {"n_skipped": 1}), ("truncate_right", 2, {"n_truncated": 1})):
        source = {"source": "inline", "texts": ["short", long], "too_long": rule}
        plan = planned(tmp_path, prompts={"some": source})
        assert plan["sets"]["some"]["prompts"] == prompts
        assert {key: plan["sets"]["some"].get(key) for key in counts} == counts
        (warning,) = plan["warnings"]
        assert warning.startswith("prompts.some: 1 of 2 prompts are ")
        assert cut not in str(plan)


def test_a_plan_without_the_tokenizer_estimates_which_prompts_are_cut(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def missing(*_: Any) -> Any:
        raise ModelError("no tokenizer")

    monkeypatch.setattr(estimate, "load_tokenizer", missing)
    context = CONFIGS["llama"].max_position_embeddings
    source = {"source": "inline", "texts": ["short", "a" * 8 * context], "too_long": "truncate_left"}
    facts = planned(tmp_path, prompts={"some": source})["sets"]["some"]
    assert (facts["n_truncated"], facts["tokens"]) == (1, 2 + context)


LENGTH = CONFIGS["llama"].max_position_embeddings
CANNOT_FIT = [
    {"source": "inline", "texts": ["a" * 8 * LENGTH]},
    {"source": "inline", "texts": ["a" * 8 * LENGTH], "too_long": "skip"},
    {"source": "inline", "texts": [[{"role": "user", "content": "a" * 8 * LENGTH}]], "too_long": "truncate_left"},
    {"source": "inline", "texts": ["a"], "positions": [-9]},
]


@each("some", CANNOT_FIT)
def test_a_plan_without_the_tokenizer_refuses_no_prompt_for_its_length(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, some: dict[str, Any]
) -> None:
    def missing(*_: Any) -> Any:
        raise ModelError("no tokenizer")

    monkeypatch.setattr(estimate, "load_tokenizer", missing)
    facts = planned(tmp_path, prompts={"some": some})["sets"]["some"]
    assert (facts["prompts"], facts["tokens"]) == (1, 1 if "positions" in some else 2 * LENGTH)


def test_a_plan_without_the_tokenizer_does_not_check_the_tokens_of_effects(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def missing(*_: Any) -> Any:
        raise ModelError("no tokenizer")

    monkeypatch.setattr(estimate, "load_tokenizer", missing)
    sets = {name: {"source": "inline", "texts": [f"{name}{i}" for i in range(12)]} for name in ("some", "other")}
    contrasts = {"any": {"positive": "some", "negative": "other", "paired": False}}
    assert planned(tmp_path, prompts=sets, contrasts=contrasts, effects={})["sets"]["some"]["prompts"] == 12
