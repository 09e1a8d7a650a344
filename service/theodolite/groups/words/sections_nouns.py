"""Nouns through attention heads: relatedness of the scores, subject heads, keys and values."""

from collections.abc import Iterator
from functools import partial

import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import NDArray

from theodolite.groups.schema import LEVEL
from theodolite.groups.words.figures_nouns import pairs_of_nouns_map, relatedness_map, subject_figure
from theodolite.query.heads import head_name
from theodolite.query.words import read_words
from theodolite.sections.parts import Figure, Section, Table, number, percent, texts_of
from theodolite.sections.tokens import token_list
from theodolite.sections.worth import worth_of
from theodolite.store.runs import Run

_SHOWN_NOUNS = 12  # the first nouns, which the maps of pairs and the tables show
_SHOWN_TOKENS = 8  # tokens in a cell of a table
_LAYER_SUM = -1  # the head index in noun_values for the sum over all heads

_CONTROLS = {"permuted": "permuted nouns", "random": "random matrices"}

_HOW_TO_READ = (
    "Heads get the embeddings of the nouns, at offset 0, not states of the model. The relatedness of a head is 1 if it "
    "orders nouns as their embeddings do, and 0 without correlation. z compares it with permuted nouns. A dot also "
    "passes the test against random matrices, which is the stricter one if nouns form groups."
)


def noun_sections(run: Run, words: xr.Dataset) -> list[Section]:
    """Return the section of the nouns; none with fewer than three nouns."""
    of_heads = words["relatedness_null"].sel(control="permuted", null="z")
    if not np.isfinite(of_heads).any():
        return []
    n, chance = int(words.attrs["nouns"]), float(words.attrs["own_keys_chance"])
    scores = read_words(run, "noun_scores")
    layer, head = (int(scores[name].iloc[0]) for name in ("layer", "head"))
    nouns = scores["noun_id"].unique()
    first = nouns[:_SHOWN_NOUNS]
    some = scores[scores["noun_id"].isin(first) & scores["key_id"].isin(first)]
    z = "z of the relatedness against permuted nouns"
    subjects = "Share of nouns that have a spelling of themselves among the keys with the largest scores"
    pairs = {
        "similarity": f"similarity ê·ê of the first {len(first)} nouns, before the head",
        "score": f"scores of these nouns in {head_name(layer, head)}, the head with the largest z",
    }
    facts = [*_relatedness_facts(words, n), *_subject_facts(run, words, n, chance), *_offset_facts(run, words, nouns)]
    dropped = texts_of(words.attrs["nouns_dropped"])
    notes = [f"left out, because no spelling is a single token: {', '.join(dropped)}"] if dropped else []
    return [
        Section(
            f"Words: embeddings of {n} nouns through {words['relatedness'].size} attention heads",
            facts,
            [Figure("words.nouns.subjects", subjects, partial(subject_figure, words, chance))],
            [
                Figure("words.nouns.relatedness", z, partial(relatedness_map, of_heads, _passed(words), z)),
                *(
                    Figure(f"words.nouns.{column}", caption, partial(pairs_of_nouns_map, some, column, caption))
                    for column, caption in pairs.items()
                ),
            ],
            [_keys_and_values(run, layer, head, first), _layer_sums(run, words, first)],
            notes,
            _HOW_TO_READ,
            finding=facts[1],
            headline=_headline(words),
            worth=worth_of(_stricter(words)),
        )
    ]


def _passed(words: xr.Dataset) -> xr.DataArray:
    """Return whether each head's relatedness passes both tests, (layer, head)."""
    return _stricter(words)[0] <= LEVEL


def _stricter(words: xr.Dataset) -> tuple[xr.DataArray, xr.DataArray]:
    """Return the larger p and the smaller z of both tests of each head's relatedness, (layer, head)."""
    null = words["relatedness_null"]
    p, z = null.sel(null="p_family"), null.sel(null="z")
    return p.max("control", skipna=False), z.min("control", skipna=False)


def _relatedness_facts(words: xr.Dataset, n: int) -> Iterator[str]:
    values, passed, nulls = words["relatedness"], _passed(words), words["relatedness_null"].to_dataset("null")
    permuted = nulls["mean"].sel(control="permuted")
    yield (
        f"Relatedness (mean rank correlation between similarity and score, n = {n} nouns): median over heads "
        f"{float(values.median()):.2f}, from {float(values.min()):.2f} to {float(values.max()):.2f} (all heads, also "
        "those that pass no test). Chance does not give 0: with permuted nouns, the mean relatedness of a head is "
        f"between {number(permuted.min(), 2)} and {number(permuted.max(), 2)}. The reason is nouns whose key has a "
        "large score for every query: if such nouns are similar to many others, the relatedness is above 0 even by "
        "chance; if they are similar to few, it is below 0."
    )
    best = _clearest(words)
    compared = [
        f"{name} give {number(null['mean'], 2)} ± {float(null['sd']):.2f} (z = {float(null['z']):.1f}, p = "
        f"{float(null['p_family']):.2g} over all heads)"
        for name, null in ((name, best.sel(control=one)) for one, name in _CONTROLS.items())
    ]
    yield (
        f"In {int(passed.sum())} of {int(np.isfinite(values).sum())} heads the relatedness is larger than with "
        "permuted nouns and larger than with random matrices of the same singular values (family-wise p of at most "
        f"{LEVEL} in both tests). {'Each of these heads' if passed.any() else 'Each head'} has two z, one for each "
        f"test. The head whose smaller z is largest is {head_name(int(best['layer']), int(best['head']))}. Its "
        f"relatedness is {float(best['relatedness']):.2f}, where {' and '.join(compared)}."
    )


def _clearest(words: xr.Dataset) -> xr.Dataset:
    """Return the relatedness and the nulls of the head whose smaller z is largest, of those that pass if some do."""
    passed, (_, z) = _passed(words), _stricter(words)
    heads = words["relatedness_null"].to_dataset("null").assign(relatedness=words["relatedness"])
    z = z.where(passed) if passed.any() else z
    return heads.stack(place=("layer", "head")).isel(place=int(np.nanargmax(z.values)))


def _headline(words: xr.Dataset) -> str:
    """Return how many heads pass both tests of relatedness, and that of the clearest head beside both controls."""
    passed, best = _passed(words), _clearest(words)
    permuted, random = (number(best["mean"].sel(control=one), 2) for one in _CONTROLS)
    return (
        f"In {int(passed.sum())} of {int(np.isfinite(words['relatedness']).sum())} heads, the relatedness is shown to "
        f"exceed permuted nouns and random matrices; clearest in {head_name(int(best['layer']), int(best['head']))}: "
        f"{float(best['relatedness']):.2f}, against {permuted} and {random}."
    )


def _subject_facts(run: Run, words: xr.Dataset, n: int, chance: float) -> Iterator[str]:
    """Yield sentences about the heads whose query of a noun finds the noun itself."""
    first = words["own_first"]
    passed = words["own_first_null"].sel(null="p_family") <= LEVEL
    best = words.stack(place=("layer", "head")).isel(place=int(np.nanargmax(first.values)))
    sentence = (
        "Share of nouns whose query gives the largest score to the noun's own key: above 50 % in "
        f"{int((first > 0.5).sum())} of {first.size} heads, and larger than with permuted nouns in {int(passed.sum())} "
        f"(family-wise p of at most {LEVEL}, n = {n} nouns; the stricter test, with random matrices, was not made)"
    )
    if passed.any():
        layers = int(passed.any("head").sum())
        sentence += (
            f". These {int(passed.sum())} heads are in {layers} of {first.sizes['layer']} layers; their median share "
            f"is {percent(first.where(passed).median(), 0)}"
        )
    yield (
        f"{sentence}. The largest share is {percent(best['own_first'], 0)}, of "
        f"{head_name(int(best['layer']), int(best['head']))}{_ties(first)}; permuted nouns give "
        f"{percent(best['own_first_null'].sel(null='mean'), 1)}."
    )
    keys = words["own_keys"]
    if np.isfinite(keys).any():
        top = keys.stack(place=("layer", "head"))
        top = top.isel(place=int(np.nanargmax(top.values)))
        layer, head, others = int(top["layer"]), int(top["head"]), _keys_of_others(run)
        yield (
            f"For each noun as query, take the {int(words.attrs['tokens'])} tokens of the vocabulary with the largest "
            "scores as keys. Share of nouns for which a spelling of the noun (the noun as one token, in any case, "
            f"with or without spaces) is among these tokens: largest {percent(top, 0)}, of {head_name(layer, head)}"
            f"{_ties(keys)}; median over heads {percent(keys.median(), 1)}. Two comparisons: the tokens of a noun A "
            f"contain a spelling of another noun B in {percent(others.loc[layer, head], 1)} of the pairs (A, B) "
            f"({head_name(layer, head)}; median head {percent(others.median(), 1)}). If as many tokens are drawn at "
            f"random for each noun, they contain a spelling of this noun for {percent(chance, 2)} of the nouns (n = "
            f"{n} nouns; the shares are not tested)."
        )


def _ties(shares: xr.DataArray) -> str:
    """Return how many other heads have the largest share too; empty if none has."""
    others = int((shares == shares.max()).sum()) - 1
    if not others:
        return ""
    return f" ({others} other {'head has' if others == 1 else 'heads have'} the same share)"


def _keys_of_others(run: Run) -> "pd.Series[float]":
    """Return the share of pairs of nouns in which the keys of one have a spelling of the other, by layer and head."""
    keys = read_words(run, "noun_keys")
    keys = keys.assign(**{name: keys[name].str.strip().str.casefold() for name in ("noun", "token")})
    n = keys["noun_id"].nunique()
    others = keys[keys["token"].isin(keys["noun"].unique()) & (keys["token"] != keys["noun"])]
    found = others.drop_duplicates(["layer", "head", "noun_id", "token"]).groupby(["layer", "head"]).size()
    heads = pd.MultiIndex.from_frame(keys[["layer", "head"]].drop_duplicates())
    return found.reindex(heads, fill_value=0) / (n * (n - 1))


def _offset_facts(run: Run, words: xr.Dataset, nouns: NDArray[np.int32]) -> Iterator[str]:
    """Yield a sentence about the keys at other rotary offsets."""
    if "noun_offsets" not in words.attrs["tables"]:
        return
    table = read_words(run, "noun_offsets")
    medians = table.groupby("offset")["share_kept"].median()
    parts = [f"{percent(share, 0)} at offset {offset}" for offset, share in medians.items()]
    tokens, n = int(words.attrs["tokens"]), int(table["n"].iloc[0])
    shared = percent(_shared_keys(run, nouns[:n]), 1)
    yield (
        f"Take the {tokens} tokens with the largest scores as keys of a noun at offset 0. In the median head, this "
        f"share of them is also among the {tokens} tokens with the largest scores at another offset: "
        f"{', '.join(parts)} (a head without rotary positions has 100 % at every offset). Two different nouns share "
        f"{shared} of these tokens at offset 0, in the median head. The numbers of each head are means over the first "
        f"{n} nouns."
    )


def _shared_keys(run: Run, nouns: NDArray[np.int32]) -> float:
    """Return which share of the best keys of a noun another noun has too: mean over all pairs, in the median head."""
    keys = read_words(run, "noun_keys", [("noun_id", "in", nouns.tolist())])
    n_tokens = keys.groupby(["layer", "head", "noun_id"]).size().iloc[0]
    having = keys.groupby(["layer", "head", "token_id"]).size()  # the number of nouns with each key
    shared = (having * (having - 1)).groupby(["layer", "head"]).sum()
    return float(shared.median() / (len(nouns) * (len(nouns) - 1) * n_tokens))


def _keys_and_values(run: Run, layer: int, head: int, nouns: NDArray[np.int32]) -> Table:
    """Return the first keys and values of some nouns in one head, and their nearest nouns before and after it."""
    filters = [("layer", "==", layer), ("head", "==", head)]
    keys, values, near = (read_words(run, name, filters) for name in ("noun_keys", "noun_values", "noun_alignment"))
    near = near.set_index("noun_id")
    rows = [
        [
            near.loc[noun, "noun"].strip(),
            near.loc[noun, "nearest_before"].strip(),
            near.loc[noun, "nearest_after"].strip(),
            _first_tokens(keys[keys["noun_id"] == noun]),
            _first_tokens(values[values["noun_id"] == noun]),
        ]
        for noun in nouns
    ]
    return Table(
        f"Nouns in {head_name(layer, head)}, the head with the largest z against permuted nouns",
        ["noun", "most similar noun", "noun with the largest score", "keys", "tokens with the largest logits"],
        rows,
        "Keys: the tokens with the largest scores as keys. Logits: those of the noun's embedding plus the head's "
        "value; the embedding alone favours the noun itself.",
    )


def _layer_sums(run: Run, words: xr.Dataset, nouns: NDArray[np.int32]) -> Table:
    """Return the first values of some nouns through all heads of the first, the middle and the last layer."""
    layers = words["layer"].values
    shown = sorted({int(layers[0]), int(layers[len(layers) // 2]), int(layers[-1])})
    tables = [read_words(run, "noun_values", [("layer", "==", at), ("head", "==", _LAYER_SUM)]) for at in shown]
    names = dict(zip(tables[0]["noun_id"], tables[0]["noun"].str.strip(), strict=True))
    rows = [[names[noun], *(_first_tokens(table[table["noun_id"] == noun]) for table in tables)] for noun in nouns]
    caption = "Tokens with the largest logits of nouns through all heads of a layer"
    note = (
        "Of e + norm(e)·ΣW_OV after the final norm, where e is the noun's embedding, and the sum is over all heads. If "
        "the second term is short, as often in the first layer, the embedding determines the order, and favours the "
        "noun itself. Tokens with long embeddings have an advantage."
    )
    return Table(caption, ["noun", *(f"layer {at}" for at in shown)], rows, note)


def _first_tokens(rows: pd.DataFrame) -> str:
    return token_list(rows.sort_values("place", kind="stable")["token"].head(_SHOWN_TOKENS))
