"""Attention heads: maps of all heads, and the heads with the largest and smallest numbers."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import xarray as xr

from theodolite.drawing.head_map import head_map
from theodolite.groups.heads.record import CIRCUITS
from theodolite.groups.heads.sections_composition import composition_sections
from theodolite.groups.heads.sections_rotary import rotary_sections
from theodolite.groups.schema import LEVEL
from theodolite.query.directions import RELIABLE, unreliable_layers
from theodolite.query.first_tokens import set_labels
from theodolite.query.heads import attention_layers, head_name
from theodolite.sections.parts import (
    CHANCE,
    Figure,
    Section,
    Table,
    last_position,
    listed,
    percent,
    quoted,
    texts_of,
)
from theodolite.sections.worth import UNTESTED, Worth, worth_of
from theodolite.spec_parts import Label
from theodolite.store.result_reader import read_group
from theodolite.store.runs import Run

_LISTED_LAYERS = 6  # more are not listed in a sentence
_LISTED_HEADS = 8  # with the largest copying scores, and as many with the smallest ones
_TESTS = 8  # four sides, for larger and for smaller alignments
_ALIGNMENT_NOTES = (
    "each side of the heads is tested by itself, for larger and for smaller alignments; p is not corrected for these "
    "eight tests. With Bonferroni's correction, only a p of at most 0.05/8 ≈ 0.006 is significant",
    "permuted labels mostly give directions with a large variance over prompts, not random directions. Their mean "
    "alignment can be larger or smaller than that of random directions. So a smaller alignment alone does not show "
    "that the head avoids the contrast's direction",
    "heads that share W_K or W_V have alignments that depend on each other",
)

_SIDES = {"qk_query": "QK query", "qk_key": "QK key", "ov_read": "OV read", "ov_write": "OV write"}

_HOW_TO_READ = (
    "A cell is one head; select it to open its card below the maps. QK decides to what a head attends, OV what it "
    "writes. The alignment with a contrast's direction is 1 if the circuit amplifies no other direction more. z is the "
    "alignment minus its mean under permuted labels, divided by their standard deviation."
)


def sections(run: Run) -> list[Section]:
    """Return a section with maps of all heads, where a click on a cell opens that head's card.

    Sections on the rotary part, if the heads have one, and on the analysis `composition`, if the run has it, follow.
    """
    heads = read_group(run, "heads")
    directions = read_group(run, "directions") if heads.sizes["contrast"] else None
    maps, notes, rotary = list(_maps(heads, directions)), texts_of(heads.attrs["notes"]), rotary_sections(heads)
    layers, n_layers = attention_layers(heads), heads.sizes["layer"]
    some = []
    if len(layers) < n_layers:  # a hybrid
        heads = heads.sel(layer=layers)
        some = [
            f"{len(layers)} of {n_layers} blocks have attention heads; all counts and medians are over these heads."
        ]
    title = f"Heads: QK and OV circuits of {heads.sizes['layer'] * heads.sizes['head']} attention heads"
    if np.isfinite(heads["direction_alignment_null"].sel(null="z")).any():
        notes += [CHANCE, *_ALIGNMENT_NOTES]
    facts = [*some, *_facts(run, heads, directions)]
    tables = [*_copying_tables(heads), *_alignment_tables(heads, directions)]
    return [
        Section(
            title,
            facts,
            maps=maps,
            tables=tables,
            notes=notes,
            how_to_read=_HOW_TO_READ,
            finding=" ".join([*facts[: len(some) + 1], *_writing_findings(heads, directions)]),
            headline=_headline(heads, directions),
            worth=_worth(heads, directions),
        ),
        *rotary,
        *composition_sections(run, heads.sizes["d_model"]),
    ]


def _maps(heads: xr.Dataset, directions: xr.Dataset | None) -> Iterator[Figure]:
    unrotated = heads.sel(offset=0)
    coverage = unrotated["coverage_99"].astype(float).where(unrotated["coverage_99"] >= 0)
    numbers = {
        "leading": ("leading singular value", unrotated["singular_values"].isel(rank=0)),
        "effective_rank": ("effective rank", unrotated["effective_rank"]),
        "coverage_99": ("number of singular values that cover 99 % of their sum", coverage),
    }
    for key, (title, values) in numbers.items():
        for circuit in CIRCUITS:
            caption, logarithmic = f"{circuit.upper()}: {title}", key == "leading"
            yield _map(f"{circuit}.{key}", caption, values.sel(circuit=circuit), circuit, logarithmic=logarithmic)
    aligned = [(one, *rest) for one in heads["contrast"].values.tolist() for rest in _alignments(heads, one)]
    for contrast, side, values in aligned:
        pale = np.isin(values["layer"], _unreliable(heads, directions, contrast, side)).tolist()
        caption = f"{_SIDES[side]}: alignment with {quoted(contrast)}"
        yield _map(f"{side}.{contrast}", caption, values, side[:2], pale=pale)
        z = heads["direction_alignment_null"].sel(contrast=contrast, side=side, null="z")
        if np.isfinite(z).any():
            caption = f"{_SIDES[side]}: z of the alignment with {quoted(contrast)}"
            yield _map(f"{side}.{contrast}.z", caption, z, side[:2], pale=pale, signed=True)
    copying = heads["copying_score"].sel(centring="centred")
    if np.isfinite(copying).any():
        yield _map("ov.copying_score", "OV: copying score", copying, "ov", signed=True)


def _map(name: str, caption: str, values: xr.DataArray, circuit: str, **options: Any) -> Figure:
    return Figure(f"heads.{name}", caption, partial(head_map, values, caption, **options), circuit)


def _facts(run: Run, heads: xr.Dataset, directions: xr.Dataset | None) -> Iterator[str]:
    yield from _rank_facts(heads)
    yield from _copying_facts(heads)
    yield from _alignment_facts(heads, directions)
    if not heads.sizes["position"]:  # a survey without prompts
        return
    position = last_position(heads)
    for where, part in _by_width(heads):
        yield from _null_space_fact(run, part, where, position)


def _null_space_fact(run: Run, heads: xr.Dataset, where: str, position: Label) -> Iterator[str]:
    """Yield a sentence about the null spaces of queries and keys, if inputs were captured."""
    unseen = heads["null_variance"].sel(position=position)
    if not np.isfinite(unseen).any():
        return
    labels, texts = set_labels(run, position), {}
    for name, counts in heads["n_samples"].sel(position=position).groupby("set"):
        query, key = (unseen.sel(set=name, projection=one).median() for one in ("query", "key"))
        if np.isfinite(query + key):
            texts[labels[str(name)]] = f"{percent(query, 1)} and {percent(key, 1)} (n = {int(counts.item())})"
    dimension, d_model = int(heads["null_dimension"].median()), heads.sizes["d_model"]
    if texts:
        yield (
            f"Median dimension of the null space of a query or key projection{where}: {dimension} of {d_model}, "
            f"{percent(dimension / d_model, 1)}. Share of the variance of attention's input in the null spaces of the "
            f"query and of the key, at position {position}, median over heads: {listed(texts)}. A random subspace of "
            f"this dimension holds {percent(dimension / d_model, 1)} on average."
        )


def _copying_facts(heads: xr.Dataset) -> Iterator[str]:
    """Yield sentences about copying scores, and about the effect of centring W_U."""
    copying, uncentred = heads["copying_score"].transpose("centring", ...)
    if not np.isfinite(copying).any():
        return
    yield (
        "The copying score is Σλ/Σ|λ| over the eigenvalues λ of the map from token embeddings through the head to "
        f"logits, without norms. It is above 0.9 in {int((copying > 0.9).sum())} of {copying.size} heads: in this "
        f"map, tokens on the whole raise their own logits (relative to the mean logit). It is below -0.9 in "
        f"{_counted_heads(int((copying < -0.9).sum()))}: in this map, tokens on the whole lower them."
        f"{_random_scores(heads)} The model also applies norms with their scales γ, and weighs tokens by attention; "
        "with these, the score can differ."
    )
    changed = int((np.sign(copying) != np.sign(uncentred)).where(np.isfinite(copying), False).sum())
    layer, head = _extreme_head(abs(copying - uncentred), largest=True)
    before, after = (float(scores.sel(layer=layer, head=head)) for scores in (uncentred, copying))
    yield (
        "The copying score uses the unembedding after subtraction of its mean row, which makes logits relative to the "
        f"mean logit. Without this subtraction, {changed} of {copying.size} heads have a score of the other sign; the "
        f"largest difference is that of {head_name(layer, head)}: {before:.2f} without the subtraction, {after:.2f} "
        "with it."
    )


def _copying_tables(heads: xr.Dataset) -> Iterator[Table]:
    """Yield a table of the heads with the largest and the smallest copying scores."""
    scores = heads["copying_score"].sel(centring="centred").transpose("layer", "head").stack(place=("layer", "head"))
    scores = scores[np.isfinite(scores.values)]
    if not scores.size:
        return
    order = np.argsort(-scores.values, kind="stable").tolist()
    ends = order if len(order) <= 2 * _LISTED_HEADS else order[:_LISTED_HEADS] + order[-_LISTED_HEADS:]
    rows = [[head_name(*scores["place"].values[index]), f"{float(scores[index]):.3f}"] for index in ends]
    yield Table("Heads with the largest and the smallest copying scores", ["head", "copying score"], rows)


def _writing_findings(heads: xr.Dataset, directions: xr.Dataset | None) -> Iterator[str]:
    """Yield, for each contrast with tests, how many heads write along its direction more than chance."""
    for contrast, p in _writing_tests(heads, directions).items():
        many, strict = _counts(p)
        yield (
            f"In {many} of {int(np.isfinite(p).sum())} heads with a reliable direction, the alignment of OV write "
            f"with {quoted(contrast)} is larger than with permuted labels (family-wise p of at most {LEVEL}"
            f"{_prompts(heads, contrast)}; with Bonferroni's correction {strict}). This compares the weights alone "
            "with the direction; what the heads write for these prompts is in the section Contributions."
        )


def _writing_tests(heads: xr.Dataset, directions: xr.Dataset | None) -> dict[str, xr.DataArray]:
    """Return the family-wise p of the alignment of OV write with each contrast that has tests, (layer, head)."""
    contrasts = heads["contrast"].values.tolist()
    tests = {contrast: _reliable(heads, directions, contrast, "ov_write") for contrast in contrasts}
    return {contrast: one["p_family"] for contrast, one in tests.items() if np.isfinite(one["z"]).any()}


def _headline(heads: xr.Dataset, directions: xr.Dataset | None) -> str:
    """Return the median effective ranks, and how many heads write along the first contrast's direction."""
    parts = [ranks] if (ranks := _ranks(heads)) else []
    for contrast, p in list(_writing_tests(heads, directions).items())[:1]:
        counts = f"{_counts(p)[0]} of {int(np.isfinite(p).sum())} heads"
        parts.append(f"OV alignment with “{contrast}” above chance in {counts}")
    return f"{'; '.join(parts)}." if parts else ""


def _ranks(heads: xr.Dataset) -> str:
    """Return the median effective ranks beside those of random weights; empty without ranks.

    If heads have two widths, those of OV of both; with more widths, none.
    """
    by_width = [(len(part["rank"]), _median_ranks(part)) for _, part in _by_width(heads)]
    if len(by_width) > 1:
        texts = [f"{ranks['OV']} of {width}" for width, ranks in by_width if "OV" in ranks]
        return f"Median effective rank of OV: {' and '.join(texts)}" if len(texts) == len(CIRCUITS) else ""
    ((width, ranks),) = by_width
    if not ranks:
        return ""
    if of_circuits := heads.attrs.get("circuits"):
        texts = [
            f"{name} {rank} of {own['largest_rank']} (random weights {own['effective_rank_random']:.1f})"
            for name, rank in ranks.items()
            if (own := of_circuits.get(name.lower()))
        ]
        return f"Median effective rank: {', '.join(texts)}" if texts else ""
    random = float(heads["effective_rank_random"])
    known = f"; random weights {random:.1f}" if np.isfinite(random) else ""
    return f"Median effective rank, of at most {width}: {', '.join(map(' '.join, ranks.items()))}{known}"


def _median_ranks(heads: xr.Dataset) -> dict[str, str]:
    """Return the median effective rank of each circuit that has one."""
    medians = {one: float(heads["effective_rank"].sel(offset=0, circuit=one).median()) for one in CIRCUITS}
    return {one.upper(): f"{median:.1f}" for one, median in medians.items() if np.isfinite(median)}


def _worth(heads: xr.Dataset, directions: xr.Dataset | None) -> Worth:
    """Return the worth of the alignments of OV write with all contrasts."""
    contrasts = heads["contrast"].values.tolist()
    tests = [_reliable(heads, directions, contrast, "ov_write") for contrast in contrasts]
    return worth_of(*((one["p_family"], one["z"]) for one in tests)) if tests else UNTESTED


def _random_scores(heads: xr.Dataset) -> str:
    """Return how many copying scores random weights do not explain."""
    of_widths = [(where, part, float(part["copying_score_random_sd"])) for where, part in _by_width(heads)]
    many = sum(int((abs(part["copying_score"].sel(centring="centred")) > 4 * sd).sum()) for _, part, sd in of_widths)
    given = " and ".join(f"0 ± {sd:.2f}{where}" for where, _, sd in of_widths)
    return (
        f" A random Gaussian W_OV with this model's embeddings gives {given}; the score differs from 0 by more "
        f"than four of these standard deviations in {_counted_heads(many)}."
    )


def _by_width(heads: xr.Dataset) -> list[tuple[str, xr.Dataset]]:
    """Return the heads of each width, and where they are; all heads and no text if they have one width."""
    parts = []
    for one in heads.attrs.get("widths", []):
        part = heads.sel(layer=one["layers"], rank=range(one["width"]))
        numbers = {name: one.get(name, np.nan) for name in ("effective_rank_random", "copying_score_random_sd")}
        layers = f"{len(one['layers'])} layer{'s' * (len(one['layers']) > 1)}"
        parts.append((f" in the {layers} with heads of width {one['width']}", part.assign(numbers)))
    return parts or [("", heads)]


def _rank_facts(heads: xr.Dataset) -> Iterator[str]:
    """Yield a sentence about the effective ranks of both circuits."""
    yield " ".join(_rank_fact(part, where) for where, part in _by_width(heads))


def _rank_fact(heads: xr.Dataset, where: str) -> str:
    random, of_circuits = float(heads["effective_rank_random"]), heads.attrs.get("circuits", {})
    known = f"; circuits of random weights have {random:.1f} on average" if np.isfinite(random) else ""
    texts: dict[str, str] = {}
    for circuit in CIRCUITS:
        ranks = heads["effective_rank"].sel(offset=0, circuit=circuit)
        lowest = head_name(*_extreme_head(ranks, largest=False))
        text = f"{float(ranks.median()):.1f} (smallest {float(ranks.min()):.1f}, of {lowest}"
        if own := of_circuits.get(circuit):
            text += f"; at most {own['largest_rank']}; random weights: {own['effective_rank_random']:.1f} on average"
        texts[circuit.upper()] = f"{text})"
    most = "" if of_circuits else f", of at most {heads.sizes['rank']}"
    return f"Median effective rank of the circuits{where}{most}: {listed(texts)}{known}."


def _alignment_facts(heads: xr.Dataset, directions: xr.Dataset | None) -> Iterator[str]:
    """Yield a sentence about the alignments of all sides with each contrast's direction, and about heads left out."""
    for contrast in heads["contrast"].values.tolist():
        texts: dict[str, str] = {}
        left_out: list[str] = []
        for side, all_values in _alignments(heads, contrast):
            tests = _reliable(heads, directions, contrast, side)
            measured = int(np.isfinite(tests["alignment"]).sum())
            ignored = int(np.isfinite(all_values).sum()) - measured
            texts[_SIDES[side]] = _alignment(tests)
            # Equal means have no direction, and neither have states that were not captured.
            counts = {"unreliable direction": ignored, "no direction": all_values.size - measured - ignored}
            left_out += [_left_out(count, side, why) for why, count in counts.items() if count]
        if texts:
            yield (
                f"Heads whose alignment with the direction of {quoted(contrast)} is larger or smaller than with "
                f"permuted labels at position {heads.attrs['direction_position']}, at offset 0 (family-wise p of at "
                f"most {LEVEL} over the heads of a side; larger and smaller alignments are tested separately"
                f"{_prompts(heads, contrast)}): {listed(texts)}."
            )
        if left_out:
            yield (
                f"Alignments with {quoted(contrast)} that are left out: {', '.join(left_out)}. A direction is "
                f"unreliable if its reliability is below {RELIABLE}. There is none if the means are equal, or if the "
                "state was not captured."
            )


def _counted_heads(count: int) -> str:
    return f"{count} {'head' if count == 1 else 'heads'}"


def _left_out(count: int, side: str, why: str) -> str:
    return f"{_counted_heads(count)} of {_SIDES[side]} ({why})"


def _alignment(tests: xr.Dataset) -> str:
    """Return how many heads of one side pass each test, or the largest alignment if none is tested."""
    values = tests["alignment"]
    measured = int(np.isfinite(values).sum())
    if not measured:
        return "has no reliable direction at any layer"
    if not np.isfinite(tests["z"]).any():
        layer, head = _extreme_head(values, largest=True)
        largest = f"{head_name(layer, head)}: {float(values.sel(layer=layer, head=head)):.2f}"
        return f"is not tested (largest of {measured} heads {largest})"
    larger, smaller = _passing(tests["p_family"], "larger"), _passing(tests["p_low_family"], "smaller")
    return f"{larger}, {smaller}, of {measured}"


def _passing(p: xr.DataArray, what: str) -> str:
    """Return the number of heads that pass a test; their layers if these are few, and how many pass eight tests."""
    layers = p["layer"].values[(p <= LEVEL).any("head").values].tolist()
    many, strict = _counts(p)
    if not many:
        return f"0 {what}"
    where = f"layer{'s' if len(layers) > 1 else ''} {', '.join(map(str, layers))}; " * (len(layers) <= _LISTED_LAYERS)
    return f"{many} {what} ({where}{strict} with Bonferroni's correction)"


def _counts(p: xr.DataArray) -> tuple[int, int]:
    """Return how many heads pass a test, and how many with Bonferroni's correction for eight tests."""
    return int((p <= LEVEL).sum()), int((p <= LEVEL / _TESTS).sum())


def _alignment_tables(heads: xr.Dataset, directions: xr.Dataset | None) -> Iterator[Table]:
    """Yield a table for each contrast: the heads with the largest and the smallest z of each side."""
    for contrast in heads["contrast"].values.tolist():
        rows = []
        for side, _ in _alignments(heads, contrast):
            tests = _reliable(heads, directions, contrast, side)
            if np.isfinite(tests["z"]).any():
                rows += [_row(_SIDES[side], tests, largest) for largest in (True, False)]
        if rows:
            caption = f"Heads with the largest and the smallest z of the alignment with {quoted(contrast)}"
            note = (
                "Permuted labels: mean ± standard deviation. p is over all heads of the side; that of a smallest z "
                "tests for values below those of permuted labels."
            )
            yield Table(caption, ["side", "z", "head", "alignment", "permuted labels", "p"], rows, note)


def _row(side: str, tests: xr.Dataset, largest: bool) -> list[str]:
    layer, head = _extreme_head(tests["z"], largest=largest)
    at = tests.sel(layer=layer, head=head)
    p = float(at["p_family" if largest else "p_low_family"])
    null = f"{float(at['mean']):.2f} ± {float(at['sd']):.2f}"
    z = f"{'largest' if largest else 'smallest'} {float(at['z']):.1f}"
    return [side, z, head_name(layer, head), f"{float(at['alignment']):.2f}", null, f"{p:.2g}"]


def _prompts(heads: xr.Dataset, contrast: str) -> str:
    """Return the numbers of prompts of a contrast's directions."""
    positive, negative = heads.attrs["direction_prompts"][contrast]
    return f", {positive} and {negative} prompts"


def _alignments(heads: xr.Dataset, contrast: str) -> Iterator[tuple[str, xr.DataArray]]:
    """Yield side and alignment, (layer, head), where there is an alignment."""
    for side in _SIDES:
        values = heads["direction_alignment"].sel(contrast=contrast, side=side)
        if np.isfinite(values).any():
            yield side, values


def _reliable(heads: xr.Dataset, directions: xr.Dataset | None, contrast: str, side: str) -> xr.Dataset:
    """Return the `alignment` of one side beside its null, whose labels become variables, (layer, head).

    All are NaN at layers whose direction is unreliable.
    """
    of_side = heads[["direction_alignment", "direction_alignment_null"]].sel(contrast=contrast, side=side)
    tests = of_side["direction_alignment_null"].to_dataset("null").assign(alignment=of_side["direction_alignment"])
    return tests.where(~tests["layer"].isin(_unreliable(heads, directions, contrast, side)))


def _unreliable(heads: xr.Dataset, directions: xr.Dataset | None, contrast: str, side: str) -> list[int]:
    """Return the layers whose heads are compared with an unreliable direction on one side."""
    unreliable = [] if directions is None else unreliable_layers(directions, contrast, side)
    if side not in ("qk_key", "ov_read"):
        return unreliable
    keys_of = heads.attrs.get("keys_of", {})  # keys and values of an earlier layer read the stream there
    return [layer for layer in heads["layer"].values.tolist() if keys_of.get(str(layer), layer) in unreliable]


def _extreme_head(values: xr.DataArray, *, largest: bool) -> tuple[int, int]:
    """Return layer and head of the largest or smallest finite value."""
    by_layer = values.transpose("layer", "head")
    index = np.nanargmax(by_layer.values) if largest else np.nanargmin(by_layer.values)
    row, column = np.unravel_index(int(index), by_layer.shape)
    return int(by_layer["layer"][row]), int(by_layer["head"][column])
