"""Encode the special tokens that a prompt spells as plain text, and those of its template as special tokens.

A tokenizer splits a text at its special tokens first, wherever they come from. So a copy of the tokenizer knows each of
them by a private name, and by the same id. In a rendered prompt, the template's special tokens get their private names.
The copy splits the text at these exactly as the tokenizer splits it at the usual ones, and the others are plain text.
"""

import json
import re
from collections.abc import Callable, Container, Iterable, Set
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import islice
from typing import Any

from theodolite.spec import TokenIds

_PRIVATE = range(0xF0000, 0xFFFFD)
"""A plane of Unicode whose characters have no meaning."""


def special_spellings(tokenizer: Any) -> re.Pattern[str] | None:
    """Return a pattern of the texts that a tokenizer encodes as special tokens; None if there are none.

    Of two tokens that begin at one place, the longer one matches, as in the tokenizer.
    """
    added = getattr(tokenizer, "added_tokens_decoder", {}).values()
    texts = sorted({token.content for token in added if token.special and token.content}, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, texts))) if texts else None


def special_ids(tokenizer: Any) -> frozenset[int]:
    """Return the ids of special tokens, without that of unknown text, which plain text may give."""
    unknown = _unknown(tokenizer)
    return frozenset(
        index for index, token in tokenizer.added_tokens_decoder.items() if token.special and token.content != unknown
    )


def _unknown(tokenizer: Any) -> str | None:
    """Return the token that a tokenizer gives for unknown text; None if it knows every text, as all bytes do.

    Some tokenizers of bytes declare one that they never give.
    """
    model = getattr(getattr(tokenizer, "backend_tokenizer", None), "model", None)
    known = type(model).__name__ in ("BPE", "WordPiece", "WordLevel")  # a Unigram does not say which it is
    return getattr(model, "unk_token", None) if known else tokenizer.unk_token


@dataclass(frozen=True)
class PlainText:
    """A tokenizer that encodes special tokens as plain text if a mark precedes them."""

    tokenizer: Any
    copy: Any  # of `tokenizers`, with private names of the special tokens
    spellings: re.Pattern[str]
    special: frozenset[int]  # without `unknown`
    unknown: str | None  # the token of unknown text, which plain text may give
    mark: str  # a character that no text has

    def marked(self, text: str) -> str:
        """Return a text of a prompt with a mark before each special token that it spells."""
        return self.spellings.sub(lambda match: self.mark + match[0], text)

    def encode(self, rendered: str, *, add_special_tokens: bool) -> TokenIds | None:
        """Return the ids of a rendered prompt with marks; None if they cannot be those of plain text.

        They cannot if the copy splits this prompt otherwise than the tokenizer, or still finds special tokens in
        the prompt's own text.
        """
        plain = rendered.replace(self.mark, "")
        usual = self.tokenizer([plain], add_special_tokens=add_special_tokens)["input_ids"][0]
        if list(usual) != self._ids(self._renamed(plain), add_special_tokens=add_special_tokens):
            return None
        found = self._ids(self._renamed(rendered), add_special_tokens=add_special_tokens)
        n_usual, n_found = (sum(token in self.special for token in ids) for ids in (usual, found))
        n_marked = rendered.count(self.mark) - rendered.count(f"{self.mark}{self.unknown}")
        return tuple(found) if n_usual - n_found == n_marked else None

    def _renamed(self, text: str) -> str:
        """Return a text with private names of the special tokens that have no mark, and without marks."""
        marked_or_not = re.compile(f"({self.mark}?)({self.spellings.pattern})")
        return marked_or_not.sub(lambda match: match[2] if match[1] else _private(self.mark, match[2]), text)

    def _ids(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return list(self.copy.encode(text, add_special_tokens=add_special_tokens).ids)


def plain_text_tokenizer(tokenizer: Any, texts: Iterable[str]) -> PlainText | None:
    """Return a tokenizer that can encode special tokens of the texts as plain text, or None if this one cannot.

    Only tokenizers of the library `tokenizers` can.
    """
    spellings = special_spellings(tokenizer)
    if spellings is None or not getattr(tokenizer, "is_fast", False):
        return None
    (mark,) = unused_marks(set().union(*texts))
    copy = _renamed_copy(tokenizer, mark)
    if copy is None:
        return None
    return PlainText(tokenizer, copy, spellings, special_ids(tokenizer), _unknown(tokenizer), mark)


def is_special_inside(tokenizer: Any, special: Set[int], render: Callable[[Callable[[str], str]], str]) -> bool:
    """Return whether a special token of a rendered prompt covers characters of the prompt's own texts.

    `render` gets a function that changes each text first. If it is not known where the texts are, the answer is yes.
    """
    plain = render(str)
    (mark,) = unused_marks(plain)
    marked = render(partial(between_marks, mark))
    if marked.replace(mark, "") != plain or not getattr(tokenizer, "is_fast", False):
        return True
    ends = [match.start() - number for number, match in enumerate(re.finditer(mark, marked))]
    encoded = tokenizer([plain], add_special_tokens=False, return_offsets_mapping=True)
    return any(
        start < last and first < stop
        for token, (start, stop) in zip(encoded["input_ids"][0], encoded["offset_mapping"][0], strict=True)
        if token in special
        for first, last in zip(ends[::2], ends[1::2], strict=True)
    )


def unused_marks(text: Container[str], number: int = 1) -> list[str]:
    """Return characters without a meaning that a text does not have."""
    return list(islice((chr(code) for code in _PRIVATE if chr(code) not in text), number))


def between_marks(mark: str, text: str) -> str:
    """Return a text with marks around it, but not around its outer blanks, which a template may remove."""
    return re.sub(r"\S(.*\S)?", lambda match: f"{mark}{match[0]}{mark}", text, count=1, flags=re.DOTALL)


@lru_cache(maxsize=1)  # it takes seconds for a large vocabulary, and cutting a prompt asks for it many times
def _renamed_copy(tokenizer: Any, mark: str) -> Any:
    """Return a copy of the tokenizer with private names of the special tokens, or None if there cannot be one."""
    from tokenizers import Tokenizer

    content = json.loads(tokenizer.backend_tokenizer.to_str())
    special = [token["content"] for token in content["added_tokens"] if token["special"]]
    names = {token: _private(mark, token) for token in special}
    for token in content["added_tokens"]:
        token["content"] = names.get(token["content"], token["content"])
    _rename(content["model"], names)
    try:
        copy = Tokenizer.from_str(json.dumps(content))
    # The library raises bare exceptions, for example if a merge makes a special token.
    except Exception:
        return None
    copy.no_truncation()
    copy.no_padding()
    return copy


def _private(mark: str, token: str) -> str:
    return f"{mark}{token}{mark}"


def _rename(model: dict[str, Any], names: dict[str, str]) -> None:
    """Rename the special tokens in a vocabulary, so that their ids stay and no plain text becomes one of them."""
    vocabulary = model.get("vocab", {})
    if isinstance(vocabulary, dict):
        model["vocab"] = {names.get(piece, piece): index for piece, index in vocabulary.items()}
    else:  # Unigram: pieces with scores
        model["vocab"] = [[names.get(piece, piece), score] for piece, score in vocabulary]
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
