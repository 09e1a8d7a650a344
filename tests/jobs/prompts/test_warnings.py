"""Warnings about the prompts of a set."""

from theodolite_jobs.prompts.warnings import repeated


def test_repeated_prompts_are_named_in_a_warning() -> None:
    assert repeated("nouns", [(1, 2), (3,), (2, 1)], range(3)) is None
    warning = repeated("nouns", [(1, 2), (3,), (1, 2), (3,), (3,)], range(5))
    assert warning is not None
    assert warning.startswith("prompts.nouns: 3 of 5 prompts repeat the tokens of an earlier prompt")
    assert "prompt 0 and prompt 2" in warning


def test_repeated_sentences_are_named_by_their_field() -> None:
    warning = repeated("sentences", [(1,), (1,)], range(2))
    assert warning is not None
    assert warning.startswith("words.sentences: 1 of 2")
