"""The tokens that the direction of each contrast raises and lowers, by the logit lens."""

from collections.abc import Hashable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from theodolite.groups.logit_lens.figures import shown_depths, token_strip
from theodolite.groups.logit_lens.record import ENDS
from theodolite.groups.schema import SIDES
from theodolite.query.direction_tokens import chance_limit, depth_of_largest_separation, read_direction_tokens
from theodolite.query.first_tokens import set_labels
from theodolite.sections.parts import (
    MISSING,
    Figure,
    Section,
    Table,
    depths_text,
    last_position,
    layer_text,
    number,
    quoted,
    same_token_notes,
    side_counts,
)
from theodolite.sections.tokens import visible
from theodolite.sites import HALF_BLOCKS
from theodolite.store.result_reader import read_group
from theodolite.store.runs import Run

_NAMED = 3  # tokens of each end in the headline

_HOW_TO_READ = (
    "A row has the tokens whose logits the difference of the means changes most, read as the output of the last block "
    "(logit lens). A change of 1 nat multiplies the odds against a mean token by 2.7. Colour is z; a grey token can be "
    "an extreme by chance. In early layers, tokens often make no sense."
)

_NOTES = (
    "z is that of one token alone. The listed tokens are the extremes of a vocabulary, so a third of them can have a "
    "|z| of 3 and more by chance. The limit is Bonferroni's over the vocabulary, at one depth: with a probability of "
    "95 %, no token exceeds it by chance",
    "the derivative of the final norm is taken at the midpoint of the means of the real sets, also with permuted "
    "labels, and at most the first 512 prompts of each set count",
    "this is the direct path: later layers can amplify, undo or use the direction in other ways, and no word of the "
    "model was read",
)

_SOFT_CAP = "the model limits its logits by a soft cap, which is left out: real changes of large logits are smaller"


def sections(run: Run) -> list[Section]:
    """Return a section for each contrast with tokens, at its last position."""
    lens = read_group(run, "logit_lens")
    return [section for name in lens["contrast"].values.tolist() if (section := _section(run, lens, name))]


def _section(run: Run, lens: xr.Dataset, contrast: str) -> Section | None:
    position = last_position(lens, contrast)
    tokens = read_direction_tokens(run, contrast, position)
    if tokens.empty:
        return None
    shown = tokens[tokens["site"].isin(HALF_BLOCKS)]
    tokens = shown if len(shown) else tokens
    sides, labels = lens.attrs["contrasts"][contrast], set_labels(run, position)
    sets = [sides[side] for side in SIDES]
    counts = side_counts(lens.sel(contrast=contrast, position=position), [labels[name] for name in sets])
    separated = depth_of_largest_separation(run, contrast, position, set(tokens["site"]))
    last = int(tokens["depth"].max())
    depth = separated if separated is not None and separated in set(tokens["depth"]) else last
    here = tokens[tokens["depth"] == depth]
    limit, name = chance_limit(run), f"logit_lens.{contrast}"
    step = _left_out(tokens, depth)
    return Section(
        f"What the direction of {quoted(contrast)} says at position {position}: {counts} prompts",
        list(_facts(tokens, here, limit, is_best=depth == separated)),
        [
            Figure(
                f"{name}.{end}",
                f"Tokens that the direction {'raises' if end == ENDS[0] else 'lowers'} most at each depth{step}",
                partial(token_strip, tokens[tokens["end"] == end], limit, depth),
            )
            for end in ENDS
        ],
        tables=[_table(here)],
        notes=[
            *_NOTES,
            *([_SOFT_CAP] if lens.attrs["soft_cap"] else []),
            *same_token_notes(run, sets, labels, position),
        ],
        how_to_read=_HOW_TO_READ,
        headline=_headline(here, limit),
    )


def _left_out(tokens: pd.DataFrame, depth: int) -> str:
    """Return that a figure has not all depths; empty if it has."""
    depths = tokens["depth"].unique().tolist()
    n = len(shown_depths(depths, depth))
    return f" ({n} of {len(depths)} depths)" if n < len(depths) else ""


def _headline(here: pd.DataFrame, limit: float) -> str:
    """Return the finding in at most 25 words, each token counted as one."""
    beyond = here[here["z"].abs() > limit]
    named = [(verb, _named(beyond[beyond["end"] == end])) for end, verb in zip(ENDS, ("raises", "lowers"), strict=True)]
    parts = [f"{verb} {words}" for verb, words in named if words]
    where = f"At {_layer(here)}"
    if not parts:
        return f"{where}, no listed token differs from permuted labels beyond chance (|z| of at most {limit:.1f})."
    return f"{where}, the direction {' and '.join(parts)} most."


def _layer(here: pd.DataFrame) -> str:
    return layer_text(int(here["depth"].iloc[0]))


def _named(tokens: pd.DataFrame) -> str:
    """Return the first different words of tokens, in quotation marks."""
    words: dict[str, str] = {}
    for token in tokens.sort_values("place")["token"]:
        word = visible(token.strip() or token)
        words.setdefault(word.casefold(), word)
    return ", ".join(f"“{word}”" for word in list(words.values())[:_NAMED])


def _facts(tokens: pd.DataFrame, here: pd.DataFrame, limit: float, *, is_best: bool) -> Iterator[str]:
    first = [here[(here["end"] == end) & (here["place"] == 0)].iloc[0] for end in ENDS]
    raised, lowered = (f"“{visible(one['token'])}” most, by {_change(one)}" for one in first)
    yield (
        f"At {_layer(here)}, {'the depth of the largest separation' if is_best else 'the last depth'}, the difference "
        f"of the means raises the logit of {raised}, and lowers that of {lowered}, relative to the mean over the "
        "vocabulary."
    )
    yield (
        f"Of the {len(here)} listed tokens at this depth, {int((here['z'].abs() > limit).sum())} exceed the limit of "
        f"chance for the search over the vocabulary, |z| = {limit:.1f}."
    )
    share = tokens.assign(passed=tokens["z"].abs() > limit).groupby("depth")["passed"].mean()
    passed = xr.DataArray(share.to_numpy() >= 0.5, {"depth": share.index.to_numpy()}, ("depth",))
    n, total = int(passed.sum()), passed.size
    which = depths_text(passed)
    yield (
        f"Depths at which at least half of the listed tokens exceed it: {n} of {total}"
        f"{f' ({which})' if which and n < total else ''}."
    )


def _change(row: "pd.Series[Any]") -> str:
    """Return the size of a change with its z, such as `0.52 nats (z = 9.1)`."""
    z = f" (z = {number(row['z'], 1)})" if np.isfinite(row["z"]) else ""
    return f"{abs(row['change']):.2g} nats{z}"


def _table(here: pd.DataFrame) -> Table:
    """Return the tokens of both ends at one depth beside each other."""
    ends = [here[here["end"] == end].sort_values("place") for end in ENDS]
    rows = [
        [str(place + 1), *(cell for row in pair for cell in _cells(row))]
        for place, pair in enumerate(zip(*(end.to_dict("records") for end in ends), strict=True))
    ]
    return Table(
        f"Tokens that the direction raises and lowers most at {_layer(here)}",
        ["place", "raised", "change", "z", "lowered", "change", "z"],
        rows,
        "Change of the logit in nats, relative to the mean over the vocabulary. z: against permuted labels.",
    )


def _cells(row: Mapping[Hashable, Any]) -> list[str]:
    z = number(row["z"], 1) if np.isfinite(row["z"]) else MISSING
    return [visible(row["token"]), f"{row['change']:+.3g}", z]
