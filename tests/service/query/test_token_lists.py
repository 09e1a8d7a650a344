"""Lists of tokens of heads, by the matrix that ranks them."""

import pandas as pd

from theodolite.query.heads import token_lists

COLUMNS = ["circuit", "layer", "head", "vector", "side", "against", "end", "place", "token"]
TIED = [
    ("ov", 0, 1, 0, "left", "read", "top", 0, "a"),
    ("ov", 0, 1, 0, "right", "embedding", "top", 1, "c"),
    ("ov", 0, 1, 0, "right", "embedding", "top", 0, "b"),
    ("ov", 0, 1, 0, "right", "embedding", "bottom", 0, "d"),
    ("ov", 0, 1, 1, "right", "embedding", "top", 0, "e"),
]
UNTIED = ("ov", 0, 1, 0, "right", "unembedding", "top", 0, "f")


def test_lists_have_the_best_token_first():
    lists = token_lists(pd.DataFrame(TIED, columns=COLUMNS))
    assert lists == {
        ("ov", 0, 1, 0): {
            "left read top": ["a"],
            "right embedding top": ["b", "c"],
            "right embedding bottom": ["d"],
        },
        ("ov", 0, 1, 1): {"right embedding top": ["e"]},
    }


def test_tokens_of_embedding_and_unembedding_are_in_separate_lists():
    lists = token_lists(pd.DataFrame([*TIED, UNTIED], columns=COLUMNS))[("ov", 0, 1, 0)]
    assert lists["right embedding top"] == ["b", "c"]
    assert lists["right unembedding top"] == ["f"]
