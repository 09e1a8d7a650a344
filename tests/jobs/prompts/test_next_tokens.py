"""Groups of next tokens: texts that are one token each, from a spec or built in."""

import pytest
from support.tiny_survey import save_model

from theodolite.errors import SpecError
from theodolite_jobs.models.load import load_tokenizer
from theodolite_jobs.prompts.next_tokens import next_token_groups


@pytest.fixture(scope="module")
def bytes_tokenizer(tmp_path_factory):
    return load_tokenizer(save_model(tmp_path_factory.mktemp("model")), False)


def test_listed_texts_become_their_tokens_in_the_order_of_the_groups(bytes_tokenizer):
    found = next_token_groups(bytes_tokenizer, {"no": ["N", "X"], "yes": ["Y"]})
    assert list(found) == ["no", "yes"]
    assert [bytes_tokenizer.decode([token]) for token in found["no"]] == ["N", "X"]


def test_built_in_words_that_are_several_tokens_are_left_out(bytes_tokenizer):
    found = next_token_groups(bytes_tokenizer, {})
    assert {name: {bytes_tokenizer.decode([token]) for token in ids} for name, ids in found.items()} == {
        "refusal": {"I"},
        "answer": {"A", "1"},
    }


def test_a_text_of_several_tokens_is_refused_with_its_tokens(bytes_tokenizer):
    with pytest.raises(SpecError, match=r"effects\.tokens\.no: 'No' is 2 tokens of this model \('N' 'o'\)"):
        next_token_groups(bytes_tokenizer, {"no": ["No"], "yes": ["Y"]})


class OneWord:
    """A tokenizer that has one token for every text."""

    def encode(self, text, add_special_tokens):
        return [0]

    def decode(self, ids):
        return "it"


def test_equal_tokens_of_different_texts_are_refused():
    with pytest.raises(SpecError, match="both groups have the token 'it'"):
        next_token_groups(OneWord(), {"no": ["a"], "yes": ["b"]})
