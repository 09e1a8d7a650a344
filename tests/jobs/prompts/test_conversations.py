"""Conversations from files and specs: what is one, and what is refused by its row."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.each import each
from support.prompt_files import read, write

from theodolite.errors import PromptError
from theodolite.spec_parts import PromptSetSpec
from theodolite.store.uploads import store_upload, with_uploaded_texts
from theodolite_jobs.prompts.conversations import text_of
from theodolite_jobs.prompts.sources import read_prompts

SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "Name a tool."}
ANSWER = {"role": "assistant", "content": "A hammer"}
SECRET = {"role": "user", "content": "A secret"}
CHATS = [[SYSTEM, USER], [USER, ANSWER, USER], [USER, ANSWER]]


def lines(*rows: Any) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


@each(
    "file, content",
    [
        ("a.jsonl", lines(*({"messages": chat} for chat in CHATS))),
        ("a.jsonl", lines(*CHATS)),
        ("a.json", json.dumps(CHATS)),
        ("a.json", json.dumps([{"messages": chat} for chat in CHATS])),
    ],
)
def test_lists_of_messages_are_conversations(tmp_path: Path, file: str, content: str) -> None:
    write(tmp_path, file, content)
    assert read(tmp_path, file) == CHATS
    assert read(tmp_path, file, skip=1, limit=1) == CHATS[1:2]


def test_a_column_of_a_table_can_have_conversations(tmp_path: Path) -> None:
    pd.DataFrame({"messages": CHATS, "label": list("abc")}).to_parquet(tmp_path / "a.parquet")
    assert read(tmp_path, "a.parquet", column="messages") == CHATS


def test_keys_without_a_value_are_no_part_of_a_message(tmp_path: Path) -> None:
    """A table has the columns of all messages in each of them."""
    write(tmp_path, "a.json", json.dumps([[{**USER, "name": None, "tool_calls": None}]]))
    assert read(tmp_path, "a.json") == [[USER]]
    empty = {**USER, "name": "", "tool_calls": [], "extra": {}}
    write(tmp_path, "b.json", json.dumps([[empty]]))
    assert read(tmp_path, "b.json") == [[USER]]
    pd.DataFrame({"messages": [[empty | {"extra": None}]]}).to_parquet(tmp_path / "a.parquet")
    assert read(tmp_path, "a.parquet") == [[USER]]


def test_a_content_of_one_text_part_is_its_text(tmp_path: Path) -> None:
    part = {"role": "user", "content": [{"type": "text", "text": "Name a tool."}]}
    write(tmp_path, "a.json", json.dumps([[part]]))
    assert read(tmp_path, "a.json") == [[USER]]
    write(tmp_path, "b.json", json.dumps([[{**part, "content": np.array(part["content"]).tolist()}]]))
    assert read(tmp_path, "b.json") == [[USER]]


def test_conversations_can_be_in_the_spec_and_in_an_upload(tmp_path: Path) -> None:
    inline = PromptSetSpec(source="inline", texts=CHATS)
    assert read_prompts("mine", inline, tmp_path) == CHATS
    upload = PromptSetSpec(source=store_upload(str(tmp_path), json.dumps(CHATS).encode(), "json"))
    assert read_prompts("mine", upload, tmp_path, str(tmp_path)) == CHATS


def test_a_survey_stores_the_conversations_of_its_spec_as_an_upload(tmp_path: Path) -> None:
    from theodolite.spec_file import parse_spec

    spec = parse_spec({"model": {"id": "x"}, "prompts": {"mine": {"source": "inline", "texts": CHATS}}})
    stored = with_uploaded_texts(spec, str(tmp_path)).prompts["mine"]
    assert stored.source.startswith("upload:")
    assert read_prompts("mine", stored, tmp_path, str(tmp_path)) == CHATS


def test_the_text_of_a_conversation_is_the_json_of_its_messages() -> None:
    assert text_of("é") == "é"
    assert json.loads(text_of([SYSTEM, USER])) == [SYSTEM, USER]
    assert "é" in text_of([{"role": "user", "content": "é"}])


BAD: dict[str, tuple[Any, list[str]]] = {
    "empty": ([], ["is an empty list"]),
    "texts": (["A secret"], ["message 0 is of type str"]),
    "numbers": ([1], ["message 0 is of type int"]),
    "without_role": ([{"content": "A secret"}], ["message 0 has no role (keys: content)"]),
    "without_content": ([USER, {"role": "user"}], ["message 1 has no content (keys: role)"]),
    "blank_content": ([{"role": "user", "content": ""}], ["message 0 is empty"]),
    "zero": ([{**USER, "weight": 0}], ["message 0 also has weight"]),
    "null_content": ([{"role": "user", "content": None}], ["message 0 has no content"]),
    "sharegpt": ([{"from": "human", "value": "A secret"}], ["has no role (keys: from, value)"]),
    "tool_role": ([{"role": "tool", "content": "A secret"}], ["the role tool; allowed: system, user, assistant"]),
    "odd_role": ([{"role": "A secret role", "content": "x"}], ["the role (a name of 13 characters)"]),
    "number_as_role": ([{"role": 1, "content": "x"}], ["the role int"]),
    "tool_calls": ([{**ANSWER, "tool_calls": [{"id": "A secret"}]}], ["message 0 also has tool_calls", "remove"]),
    "thoughts": ([{**ANSWER, "reasoning_content": "A secret"}], ["also has reasoning_content"]),
    "image": (
        [{"role": "user", "content": [{"type": "image", "url": "A secret"}, {"type": "text", "text": "A secret"}]}],
        ["parts of the types image, text; allowed: a text"],
    ),
    "no_parts": ([{"role": "user", "content": []}], ["parts of the types none"]),
    "empty_content": ([SYSTEM, {"role": "user", "content": " \n"}], ["message 1 is empty"]),
    "number_as_content": ([{"role": "user", "content": 5}], ["message 0 is of type int"]),
    "half_of_a_pair": ([{"role": "user", "content": "\ud800"}], ["message 0"]),
}


@each("case", BAD)
def test_what_is_no_conversation_is_refused_by_its_row(tmp_path: Path, case: str) -> None:
    chat, words = BAD[case]
    write(tmp_path, "a.json", json.dumps([[USER], chat]))
    with pytest.raises(PromptError) as caught:
        read(tmp_path, "a.json")
    message = str(caught.value)
    assert message.startswith("prompts.goals (file:a.json, row 1): prompt 1")
    assert "secret" not in message.replace("A secret role", "")
    for part in words:
        assert part in message


@each("rows", [["A secret", [SECRET]], [[SECRET], "A secret"]])
def test_texts_and_conversations_in_one_set_are_refused(tmp_path: Path, rows: list[Any]) -> None:
    write(tmp_path, "a.json", json.dumps(rows))
    with pytest.raises(PromptError, match=rf"row {rows.index([SECRET])}\): prompt . is a conversation, and prompts"):
        read(tmp_path, "a.json")


def test_the_json_of_a_conversation_in_a_cell_is_refused_unless_a_template_says_that_it_is_a_text(
    tmp_path: Path,
) -> None:
    pd.DataFrame({"prompt": ["[1] is a list", json.dumps([SECRET])]}).to_csv(tmp_path / "a.csv", index=False)
    with pytest.raises(PromptError, match=r"line 3\): prompt 1 is the text of a conversation; give it as a list"):
        read(tmp_path, "a.csv")
    assert read(tmp_path, "a.csv", template="none")[1] == json.dumps([SECRET])


SPELLED = {
    "python": str([SYSTEM, SECRET]),
    "numpy": str(np.array([SYSTEM, SECRET])),
    "numpy_repr": repr(np.array([SYSTEM, SECRET])),
    "other_key_first": str([{"name": None, **SECRET}]),
    "object": json.dumps({"messages": [SECRET]}),
    "python_object": str({"id": 3, "messages": [SECRET]}),
    "sharegpt": json.dumps([{"from": "human", "value": "A secret"}]),
    "python_sharegpt": str({"conversations": [{"from": "human", "value": "A secret"}]}),
}


@each("case", SPELLED)
def test_a_conversation_that_pandas_wrote_into_a_cell_is_refused(tmp_path: Path, case: str) -> None:
    pd.DataFrame({"prompt": ["Hi", SPELLED[case]]}).to_csv(tmp_path / "a.csv", index=False)
    with pytest.raises(PromptError, match=r"line 3\): prompt 1 is the text of a conversation") as caught:
        read(tmp_path, "a.csv")
    assert "secret" not in str(caught.value)


@each("text", ['[{"value": 1}, {"value": 2}]', "[{'role': 'a', 'content': 'b'}] Is this valid?", "{}"])
def test_other_objects_in_a_text_are_texts(tmp_path: Path, text: str) -> None:
    pd.DataFrame({"prompt": [text]}).to_csv(tmp_path / "a.csv", index=False)
    assert read(tmp_path, "a.csv") == [text]


def test_a_list_of_prompts_in_a_line_is_still_refused(tmp_path: Path) -> None:
    write(tmp_path, "a.jsonl", '["A secret", "Another"]\n')
    with pytest.raises(PromptError, match=r"line 1 begins a list, .* needs the suffix \.json"):
        read(tmp_path, "a.jsonl")
