"""Tokens of the report's cards of heads, of tied and of untied models."""

import numpy as np
import pandas as pd
import xarray as xr
from support.each import each

from theodolite_jobs.report import heads as report_heads

LABELS = {"circuit": ["qk", "ov"], "offset": [0], "layer": [0], "head": [0, 1], "rank": range(3), "vector": range(2)}


def atlas():
    dims = ("circuit", "offset", "layer", "head", "rank")
    values = np.broadcast_to([3.0, 2.0, 1.0], (2, 1, 1, 2, 3))
    vectors = (("vector",), np.zeros(2))
    return xr.Dataset({"singular_values": (dims, values), "of_vectors": vectors}, LABELS)


def rows(matrices):
    columns = ["circuit", "layer", "head", "vector", "side", "against", "end", "place", "token"]
    found = [
        ("ov", 0, 1, vector, "left" if against == "read" else "right", against, end, place, f"{against} {end} {place}")
        for vector in range(2)
        for against in matrices
        for end in ("top", "bottom")
        for place in (1, 0)
    ]
    return pd.DataFrame(found, columns=columns)


@each("matrices", [("read", "embedding"), ("read", "embedding", "unembedding")])
def test_a_card_has_the_tokens_of_each_matrix(monkeypatch, matrices):
    monkeypatch.setattr(report_heads, "read_words", lambda *_: rows(matrices))
    cards = report_heads.head_cards(None, atlas(), [(0, 0), (0, 1)], words=True)
    first, _ = cards["ov"]["L0H1"]["tokens"]
    sides = {"read": "left", "embedding": "right", "unembedding": "right"}
    assert first == {
        f"{sides[against]} {against} {end}": [f"{against} {end} 0", f"{against} {end} 1"]
        for against in matrices
        for end in ("top", "bottom")
    }
    assert cards["ov"]["L0H0"]["tokens"] == [{}, {}]
    assert cards["qk"]["L0H1"]["values"] == [3.0, 2.0, 1.0]


def test_a_card_without_words_has_no_tokens():
    cards = report_heads.head_cards(None, atlas(), [(0, 1)], words=False)
    assert cards["ov"]["L0H1"]["tokens"] == []
