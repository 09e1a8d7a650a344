"""A tokenizer of Mistral with the pattern of another is mended, and no other tokenizer is."""

import json
from pathlib import Path
from typing import Any

from support import tiny_survey
from support.each import each
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from theodolite.settings import Settings
from theodolite_jobs.models.load import load_tokenizer
from theodolite_jobs.prepare import prepare

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEKKEN = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"]
OTHER = ["<unk>", "<s>", "</s>", "[/INST]", "[INST]"]


def split_by(pattern: str) -> Any:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def save(folder: Path, special: list[str], pre_tokenizer: Any) -> Path:
    """Write a byte-level tokenizer that merges two digits."""
    alphabet = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet()), "12"]
    tokenizer = Tokenizer(models.BPE(vocab={one: index for index, one in enumerate(alphabet)}, merges=[("1", "2")]))
    tokenizer.pre_tokenizer = pre_tokenizer
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>").save_pretrained(folder)
    return folder


def test_the_pattern_of_another_tokenizer_is_replaced(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(save(tmp_path, TEKKEN, split_by(LLAMA3)))
    assert tokenizer.mended == ("mistral_regex",)
    assert tokenizer.tokenize("x12 y") == ["x", "1", "2", "Ġ", "y"]  # Tekken has a token for each digit
    tokenizer.save_pretrained(tmp_path)
    assert load_tokenizer(tmp_path).mended == ()


def test_the_mended_tokens_are_those_of_transformers_with_its_option(tmp_path: Path) -> None:
    save(tmp_path, TEKKEN, split_by(LLAMA3))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mistral", "transformers_version": "4.50.0"}))
    ours, theirs = load_tokenizer(tmp_path), PreTrainedTokenizerFast.from_pretrained(tmp_path)
    # The option has no effect on vocabularies of fewer than 100,000 tokens.
    theirs._patch_mistral_regex(theirs.backend_tokenizer, str(tmp_path), is_local=True, fix_mistral_regex=True)
    splits = [one.backend_tokenizer.pre_tokenizer.pre_tokenize_str for one in (ours, theirs)]
    for text in ("It's 1234 HTTPServers\n\n  naïve über-Straße", "fooBar BAZ's  'll/\r\n", "数学 12३४ \t x"):
        assert splits[0](text) == splits[1](text)
        assert ours(text)["input_ids"] == theirs(text)["input_ids"]


@each(
    "special, pre_tokenizer",
    [
        (OTHER, split_by(LLAMA3)),
        (TEKKEN, pre_tokenizers.Metaspace()),
        (TEKKEN, pre_tokenizers.ByteLevel(add_prefix_space=False)),
        (TEKKEN, None),
    ],
)
def test_other_tokenizers_stay_as_they_are(tmp_path: Path, special: list[str], pre_tokenizer: Any) -> None:
    save(tmp_path, special, pre_tokenizer)
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.mended == ()
    plain = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    assert tokenizer.tokenize("x12 y") == plain.tokenize("x12 y")


def test_a_mended_tokenizer_is_in_the_digest_and_in_the_record(tmp_path: Path) -> None:
    model = tiny_survey.save_model(tmp_path / "model")
    settings = Settings(store=str(tmp_path / "store"), cache=tmp_path / "cache")
    plain = prepare(tiny_survey.spec_of(model), tmp_path, settings)
    assert plain.record("eager", {}).model.tokenizer_fixes == ()

    def mended(folder: Path, trusted: bool) -> Any:
        tokenizer = load_tokenizer(folder, trusted)
        tokenizer.mended = ("mistral_regex",)
        return tokenizer

    prepared = prepare(tiny_survey.spec_of(model), tmp_path, settings, mended)
    assert prepared.run_id != plain.run_id
    assert prepared.record("eager", {}).model.tokenizer_fixes == ("mistral_regex",)
    assert "the tokenizer was mended (mistral_regex)" in prepared.warnings[-1]
