"""The built-in prompt sets, and prompts that a spec contains."""

from pathlib import Path
from typing import Any

import pytest
from support.each import each

from theodolite.errors import PromptError
from theodolite.spec_parts import PromptSetSpec
from theodolite.store.uploads import store_upload
from theodolite_jobs.prompts.sources import read_prompts


def builtin(name: str, **settings: Any) -> list[str]:
    return read_prompts(name, PromptSetSpec(source=f"builtin:{name}", **settings), Path("/nowhere"))


@each("name, count", [("harmful", 256), ("harmless", 256), ("nouns", 100)])
def test_builtin_sets_have_their_size_and_no_duplicates_or_extra_spaces(name: str, count: int) -> None:
    texts = builtin(name)
    assert len(texts) == count
    assert len({text.casefold() for text in texts}) == count
    assert all(text == " ".join(text.split()) and text for text in texts)


def test_no_prompt_is_in_both_sets_of_the_pair() -> None:
    assert not set(builtin("harmful")) & set(builtin("harmless"))


def test_nouns_are_single_words() -> None:
    assert all(text.isalpha() and text.islower() for text in builtin("nouns"))


def test_pairs_have_the_same_first_word_ending_and_length() -> None:
    for harmful, harmless in zip(builtin("harmful"), builtin("harmless"), strict=True):
        assert harmful.split()[0] == harmless.split()[0]
        assert harmful[-1] == harmless[-1]
        assert harmful[-1] in ".?!"
        assert abs(len(harmful.split()) - len(harmless.split())) <= 2


def test_pairs_share_most_of_their_words() -> None:
    for harmful, harmless in zip(builtin("harmful"), builtin("harmless"), strict=True):
        mine, theirs = set(harmful.lower().split()), set(harmless.lower().split())
        assert len(mine & theirs) >= 0.25 * len(mine | theirs), (harmful, harmless)


def test_drawing_both_sets_alike_keeps_pairs_together() -> None:
    draw = {"test_size": 0.5, "random_state": 5}
    partner = dict(zip(builtin("harmful"), builtin("harmless"), strict=True))
    drawn = builtin("harmful", draw=draw, limit=20)
    assert [partner[text] for text in drawn] == builtin("harmless", draw=draw, limit=20)


def test_prompts_in_the_spec_and_uploaded_files_are_read(tmp_path):
    inline = PromptSetSpec(source="inline", texts=["one", "two", "three"], skip=1)
    assert read_prompts("mine", inline, Path("/nowhere")) == ["two", "three"]
    upload = store_upload(str(tmp_path), b"prompt\none\n", "csv")
    assert read_prompts("mine", PromptSetSpec(source=upload), Path("/nowhere"), str(tmp_path)) == ["one"]
    broken = store_upload(str(tmp_path), b'prompt\n"one\n', "csv")
    with pytest.raises(PromptError, match=r"prompts\.mine\.source: .*\.csv cannot be read: .* line 2"):
        read_prompts("mine", PromptSetSpec(source=broken), Path("/nowhere"), str(tmp_path))
