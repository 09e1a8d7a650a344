"""How the byte-level tokenizers of GGUF files split text before their merges, by the name in `tokenizer.ggml.pre`.

A file states a name only. The patterns are those of the models' own tokenizers.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:  # a file may be refused by its header
    from tokenizers.pre_tokenizers import PreTokenizer

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_LLAMA3 = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}|{_SYMBOLS}|{_SPACES}"
_QWEN2 = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}|{_SYMBOLS}|{_SPACES}"

# Words with at most one change from upper to lower case.
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = [rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+", rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"]
_CASED_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_TEKKEN = rf"{'|'.join(_CASED)}|\p{{N}}|{_CASED_SYMBOLS}|{_SPACES}"
_GPT4O = rf"{'|'.join(f'{one}{_CONTRACTIONS}?' for one in _CASED)}|\p{{N}}{{1,3}}|{_CASED_SYMBOLS}|{_SPACES}"

_DEEPSEEK3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
    rf"|{_SPACES}"
)


@dataclass(frozen=True)
class Splitting:
    """How a text is split. `digits` and `falcon` are those of the package tokenizers; the others are patterns."""

    patterns: tuple[str, ...] = ()
    kind: Literal["patterns", "words", "digits", "falcon"] = "patterns"
    whole_words: bool = False  # a word that is a token is not merged from smaller ones
    adds_bos: bool = False  # for a file that does not state it
    normal_form: bool = False  # Unicode's NFC


_WORDS_OF_GPT2 = Splitting(kind="words")
_WORDS_AND_DIGITS = Splitting(kind="digits")
_OF_LLAMA3 = Splitting((_LLAMA3,), whole_words=True, adds_bos=True)
_OF_DBRX = Splitting((_LLAMA3,))

SPLITTINGS: dict[str, Splitting] = {
    "gpt-2": _WORDS_OF_GPT2,
    "phi-2": _WORDS_OF_GPT2,
    "olmo": Splitting(kind="words", normal_form=True),
    "starcoder": _WORDS_AND_DIGITS,
    "refact": _WORDS_AND_DIGITS,
    "smollm": _WORDS_AND_DIGITS,
    "command-r": Splitting(kind="digits", normal_form=True),
    "falcon": Splitting(kind="falcon"),
    "llama-bpe": _OF_LLAMA3,
    "llama3": _OF_LLAMA3,
    "llama-v3": _OF_LLAMA3,
    "falcon3": Splitting((_LLAMA3,), whole_words=True),
    "lfm2": _OF_LLAMA3,
    "dbrx": _OF_DBRX,
    "smaug-bpe": Splitting((_LLAMA3,), whole_words=True),
    "glm4": _OF_DBRX,
    "chatglm-bpe": _OF_DBRX,
    "qwen2": Splitting((_QWEN2,), normal_form=True),
    "deepseek-r1-qwen": Splitting((_QWEN2,), normal_form=True),
    "stablelm2": Splitting((_QWEN2,), normal_form=True),
    "tekken": Splitting((_TEKKEN,), whole_words=True, adds_bos=True),
    "gpt-4o": Splitting((_GPT4O,)),
    "deepseek-v3": Splitting((r"\p{N}{1,3}", "[一-龥\u3040-\u309f\u30a0-\u30ff]+", _DEEPSEEK3)),
}


def pre_tokenizer(splitting: Splitting) -> "PreTokenizer":
    """Return the steps that split a text into the words whose bytes are merged."""
    from tokenizers import Regex, pre_tokenizers

    bytes_of_words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if splitting.kind == "words":
        return bytes_of_words
    if splitting.kind == "digits":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), bytes_of_words])
    if splitting.kind == "falcon":
        threes = pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), behavior="isolated")
        digits = pre_tokenizers.Digits(individual_digits=False)
        return pre_tokenizers.Sequence([pre_tokenizers.Punctuation("contiguous"), bytes_of_words, digits, threes])
    splits = [pre_tokenizers.Split(Regex(one), behavior="isolated") for one in splitting.patterns]
    return pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
