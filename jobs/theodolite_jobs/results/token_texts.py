"""The texts of a tokenizer's tokens."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def token_texts(tokenizer: Any, n_rows: int) -> NDArray[np.object_]:
    """Return the text of each token of the tokenizer, with its spaces; unused rows of the embedding have no text."""
    pieces = tokenizer.convert_ids_to_tokens(range(min(len(tokenizer), n_rows)))
    return np.array([_text(tokenizer, piece) for piece in pieces], dtype=object)


def _text(tokenizer: Any, piece: str | None) -> str:
    if piece is None:
        return ""
    text = str(tokenizer.convert_tokens_to_string([piece]))
    # SentencePiece's decoders remove the space before a word.
    return f" {text}" if piece.startswith("▁") and not text.startswith(" ") else text
