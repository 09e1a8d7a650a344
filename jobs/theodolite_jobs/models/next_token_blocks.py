"""Recognise the tensors of blocks for multi-token prediction, which read the stream after the last block.

DeepSeek-V3 and GLM number such a block like one after the last; Qwen3-Next, ERNIE, MiMo and Nemotron name it `mtp`.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_NAMED = re.compile(r"(^|\.)mtp(_\w+)?\.")
_NUMBERED = re.compile(r"(?P<blocks>(?:\w+\.)*?layers\.)(?P<layer>\d+)\.(?P<rest>.+)")
_JOINS_EMBEDDINGS = "eh_proj.weight"  # the matrix that joins the stream and the embeddings of the next tokens
_COUNTS = ("num_nextn_predict_layers", "num_mtp_layers", "mtp_num_hidden_layers", "mtp_num_layers")


def next_token_block_count(config: Any) -> int:
    """Return the number of blocks for multi-token prediction that a configuration states; 0 if it states none."""
    text = config.get_text_config()
    stated = [getattr(one, name, None) for one in (text, config) for name in _COUNTS]
    return next((count for count in stated if type(count) is int and count > 0), 0)


def next_token_names(config: Any, names: Iterable[str]) -> set[str]:
    """Return the names of the tensors of blocks for multi-token prediction.

    A block after the last is one if the configuration states that many, and if it reads the embeddings of the next
    tokens: else it is a block of a model with more layers than the configuration states.
    """
    names = set(names)
    n_layers, extra = config.get_text_config().num_hidden_layers, next_token_block_count(config)
    found = {name for name in names if _NAMED.search(name)}
    numbered = [match for name in names - found if (match := _NUMBERED.fullmatch(name))]
    for layer in range(n_layers, n_layers + extra):
        for blocks in {match["blocks"] for match in numbered}:
            block = [match for match in numbered if match["blocks"] == blocks and int(match["layer"]) == layer]
            if any(match["rest"] == _JOINS_EMBEDDINGS for match in block):
                found |= {match.string for match in block}
    return found


def left_out_note(folder: Path, config: Any) -> str | None:
    """Return a sentence on the blocks for multi-token prediction in a folder, or None; it may have an index alone.

    Raises:
        ModelError: a weight file or the index cannot be read, or they contradict each other.
    """
    from theodolite_jobs.models.tensors import names_in  # it loads torch

    count = len(next_token_names(config, names_in(folder)))
    if not count:
        return None
    return (
        f"{count} tensors of blocks for multi-token prediction are left out: they read the stream after the last block"
    )
