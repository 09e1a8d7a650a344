"""Convert Qwen1's tokenizer, which is a list of ranks for tiktoken, to the tokenizer of Qwen2."""

import base64
import json
import math
import shutil
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from theodolite.errors import ModelError
from theodolite_jobs.models.convert.files import read_json

_RANKS = "qwen.tiktoken"
_END_OF_TEXT = "<|endoftext|>"
# Their ids follow the ranks, in this order.
_OTHER_SPECIAL_TOKENS = ["<|im_start|>", "<|im_end|>", *(f"<|extra_{number}|>" for number in range(205))]

# The format of the authors' chat(), with its default system message.
_CHATML = """\
{%- if messages[0].role != 'system' -%}
    {{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' -}}
{%- endif -%}
{%- for message in messages -%}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
"""


def write_tokenizer(folder: Path, into: Path) -> None:
    """Write the tokenizer of a Qwen1 folder as Qwen2's, with its chat template, if the folder has a tokenizer.

    Raises:
        ModelError: the vocabulary cannot be read or converted.
    """
    template = _chat_template(folder)
    if (folder / _RANKS).is_file():
        tokenizer = _tokenizer(_read_ranks(folder / _RANKS))
        tokenizer.chat_template = template
        tokenizer.save_pretrained(into)
    elif (folder / "tokenizer.json").is_file():
        shutil.copy(folder / "tokenizer.json", into)
        settings = {"tokenizer_class": "Qwen2Tokenizer", "eos_token": _END_OF_TEXT, "pad_token": _END_OF_TEXT}
        settings |= {"chat_template": template} if template else {}
        (into / "tokenizer_config.json").write_text(json.dumps(settings, indent=2), encoding="utf-8")


def _chat_template(folder: Path) -> Any:
    """Return the folder's own template, ChatML if its configuration names that format, else None."""
    own = folder / "chat_template.jinja"
    if own.is_file():
        return own.read_text(encoding="utf-8")
    declared = read_json(folder / "tokenizer_config.json").get("chat_template")
    # The folder's name is not used: the conversion depends only on the content.
    is_chat = read_json(folder / "generation_config.json").get("chat_format") == "chatml"
    return declared or (_CHATML if is_chat else None)


def _read_ranks(file: Path) -> dict[bytes, int]:
    """Return each token's rank, which is its id; every line contains a token in base64 and its rank."""
    ranks = {}
    for number, line in enumerate(file.read_bytes().splitlines(), start=1):
        if not line:
            continue
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except ValueError as error:
            raise ModelError(
                f"{file}: line {number} is {line[:40]!r}; expected a token in base64 and its rank"
            ) from error
    if sorted(ranks.values()) != list(range(len(ranks))):
        raise ModelError(f"{file}: the ranks of {len(ranks)} tokens are not 0 to {len(ranks) - 1}, each once")
    lacking = next((byte for byte in range(256) if bytes([byte]) not in ranks), None)
    if lacking is not None:
        raise ModelError(f"{file}: byte {lacking} is not a token, so some texts have no token ids")
    return ranks


def _tokenizer(ranks: Mapping[bytes, int]) -> Any:
    # Qwen2Tokenizer has the pattern, normalisation and byte letters of Qwen1.
    from transformers import Qwen2Tokenizer
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    letters = bytes_to_unicode()

    def written(token: bytes) -> str:
        return "".join(letters[byte] for byte in token)

    tokens = sorted(ranks, key=ranks.__getitem__)
    vocab = {written(token): ranks[token] for token in tokens}
    merges: Any = [tuple(map(written, _merge(token, ranks))) for token in tokens if len(token) > 1]
    return Qwen2Tokenizer(vocab=vocab, merges=merges, extra_special_tokens=_OTHER_SPECIAL_TOKENS)


def _merge(token: bytes, ranks: Mapping[bytes, int]) -> tuple[bytes, bytes]:
    """Return the two tokens that tiktoken joins to get this one.

    tiktoken joins the two neighbours that give the token of lowest rank, the leftmost first, until no join is possible.
    The joins inside a stretch of text that becomes one token depend only on that token's bytes. Each token therefore
    has one pair that is joined to it, and a list of merges in the order of ranks gives the same ids.

    Raises:
        ModelError: no two tokens are joined to it.
    """
    parts = [token[index : index + 1] for index in range(len(token))]
    while len(parts) > 2:
        joined = [ranks.get(left + right, math.inf) for left, right in pairwise(parts)]
        index = joined.index(min(joined))
        if joined[index] == math.inf:
            raise ModelError(f"{_RANKS}: token {ranks[token]} ({token!r}) cannot be joined from other tokens")
        parts[index : index + 2] = [parts[index] + parts[index + 1]]
    return parts[0], parts[1]
