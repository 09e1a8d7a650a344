"""Biases of queries and keys, decoded into tokens."""

import xarray as xr

from theodolite.query.heads import head_name
from theodolite.query.words import read_words
from theodolite.sections.parts import Section, Table
from theodolite.sections.tokens import token_list
from theodolite.store.runs import Run

_SHOWN_HEADS = 8  # of each side
_SHOWN_TOKENS = 8
_SIDES = {"query": "queries, s·W_Q R b_Kᵀ", "key": "keys, s·b_Q R W_Kᵀ"}


def bias_sections(run: Run, words: xr.Dataset) -> list[Section]:
    """Return a section about the tokens that biases prefer; none for a model without biases of queries and keys."""
    if "bias_tokens" not in words.attrs["tables"]:
        return []
    table = read_words(run, "bias_tokens")
    tops = table[(table["end"] == "top") & (table["place"] == 0)].sort_values("score", ascending=False, kind="stable")
    facts, rows, largest = [], [], []
    for side, leading in tops.groupby("side", sort=False):
        first, name = leading.iloc[0], _SIDES[str(side)].split(",")[0]
        score, median = (f"{float(number):.3g}" for number in (first["score"], leading["score"].median()))
        facts.append(
            f"Largest score that a bias adds to {name}: {score}, in "
            f"{head_name(int(first['layer']), int(first['head']))} for the token “{token_list([first['token']])}”; "
            f"median over {len(leading)} heads of the largest score of a token: {median}."
        )
        largest.append(f"{score} to {name} (median head {median})")
        for layer, head in leading[["layer", "head"]].head(_SHOWN_HEADS).itertuples(index=False):
            own = table[(table["side"] == side) & (table["layer"] == layer) & (table["head"] == head)]
            own = own[own["place"] < _SHOWN_TOKENS].sort_values("place", kind="stable")
            ends = [token_list(own.loc[own["end"] == end, "token"]) for end in ("top", "bottom")]
            rows.append([head_name(int(layer), int(head)), _SIDES[str(side)], *ends])
    caption = (
        f"Tokens that the biases of attention prefer and avoid: the {_SHOWN_HEADS} heads of each side with the largest "
        "score"
    )
    notes = [
        "a bias of keys changes the scores of queries, and a bias of queries those of keys; without rotary positions, "
        "the softmax cancels the first"
    ]
    return [
        Section(
            "Words: biases of queries and keys",
            facts,
            tables=[Table(caption, ["head", "side", "largest scores", "most negative scores"], rows)],
            notes=notes,
            headline=f"The largest scores that biases add: {', '.join(largest)}." if largest else "",
        )
    ]
