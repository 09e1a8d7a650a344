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

# Letters with a case, in the version of Unicode that this tokenizer was made with.
_DEEPSEEK_LETTERS = (
    "A-Za-z\u00b5\xc0-\xd6\xd8-\xf6\xf8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373"
    "\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481"
    "\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf"
    "\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d"
    "\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4"
    "\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107"
    "\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f"
    "\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d"
    "\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17"
    "\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb"
    "\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_DEEPSEEK_PUNCTUATION = "!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002"
_DEEPSEEK_IDEOGRAPHS = "[\u0800-\u9fa5\uac00-\ud7ff]+"
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
    "deepseek-llm": Splitting(
        (
            r"[\r\n]",
            rf"\s?[{_DEEPSEEK_LETTERS}]+",
            rf"\s?[{_DEEPSEEK_PUNCTUATION}]+",
            r"\s+$",
            _DEEPSEEK_IDEOGRAPHS,
            r"\p{N}",
        )
    ),
    "deepseek-coder": Splitting((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_IDEOGRAPHS, r"\p{N}")),
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
