"""What each head, each MLP and the embedding writes onto the difference of a contrast's means."""

from collections.abc import Iterator, Mapping
from functools import partial

import numpy as np
import xarray as xr

from theodolite.drawing.head_map import head_map
from theodolite.groups.contributions.figures import contributions_figure
from theodolite.groups.schema import LEVEL, SIDES
from theodolite.query.directions import unreliable_layers
from theodolite.query.first_tokens import set_labels
from theodolite.query.heads import head_name
from theodolite.sections.parts import (
    CHANCE,
    LARGEST,
    Figure,
    Section,
    last_position,
    listed,
    number,
    percent,
    percents,
    quoted,
    same_token_notes,
    side_counts,
)
from theodolite.sections.worth import worth_of
from theodolite.sites import Site
from theodolite.store.result_reader import read_group
from theodolite.store.runs import Run

_OTHER_MIXERS = (
    "what mixers other than attention add to the stream is no part, so the shares do not add up to 100 %, and the "
    "family-wise p is over the parts that are measured; the MLP of a block with another mixer is measured only if "
    "resid_mid is captured"
)
"""Note about a hybrid."""

_THREE_QUESTIONS = (
    "A head can have a large standardised difference, a share near 0 and weights that are not aligned with the "
    "direction (section Heads): the difference compares what the head writes for the prompts of both sets with its "
    "spread, the share compares it with the distance of the means, and the alignment compares the head's weights alone "
    "with the direction."
)

_HOW_TO_READ = (
    "A part of the model adds to the distance of the means after the last block, along the direction between them; "
    "this contribution, divided by the distance, is its share. Shares can be negative, and leave out effects through "
    "later layers. Parts that write long vectors have large shares with permuted labels too, so read z."
)


def sections(run: Run) -> list[Section]:
    """Return a section for each contrast, at the last position that its sets have."""
    contributions = read_group(run, "contributions")
    contrasts = contributions["contrast"].values.tolist()
    return [section for contrast in contrasts if (section := _section(run, contributions, contrast))]


def _section(run: Run, contributions: xr.Dataset, contrast: str) -> Section | None:
    """Return the section of a contrast, or None if one of its sets lacks the last position."""
    position = last_position(contributions)
    values = contributions.sel(contrast=contrast, position=position)
    sides, labels = contributions.attrs["contrasts"][contrast], set_labels(run, position)
    counts = side_counts(values, [labels[sides[side]] for side in SIDES])
    if not values["n_used"].all():
        return None
    title = f"Contributions to {quoted(contrast)} at position {position}: {counts} prompts"
    if not np.isfinite(values["final_difference"]):
        return Section(title, [_why_missing(values)], headline=_why_missing(values))
    name = f"contributions.{contrast}"
    parts = {
        "head": _part(values["head_share"], values["head_share_null"]),
        "mlp": _part(values["mlp_share"], values["mlp_share_null"]),
    }
    pale = np.isin(values["layer"], _unreliable(run, contrast)).tolist()
    maps = {
        "share": (f"“{contrast}”: share of the difference that each head writes", values["head_share"], None),
        "z": (f"“{contrast}”: z of the share that each head writes", parts["head"]["z"], None),
        "standardised": (
            f"“{contrast}”: standardised difference of each head",
            values["head_standardised"],
            pale,
        ),
    }
    return Section(
        title,
        list(_facts(values, parts, _reliable_standardised(run, values, contrast))),
        [Figure(name, "Shares of the distance of the means by layer", partial(contributions_figure, values))],
        [
            Figure(f"{name}.{key}", caption, partial(head_map, of_heads, caption, signed=True, pale=faded), "ov")
            for key, (caption, of_heads, faded) in maps.items()
        ],
        notes=[
            *(CHANCE, LARGEST),
            *([_OTHER_MIXERS] if Site.HEAD_OUT in run.record.partial_sites else []),
            *same_token_notes(run, [sides[side] for side in SIDES], labels, position),
        ],
        how_to_read=_HOW_TO_READ,
        finding=_finding(values, parts),
        headline=_headline(values, parts),
        worth=worth_of(
            *((of_part["p_family"], of_part["z"]) for of_part in parts.values()),
            *((null.sel(null="p"), null.sel(null="z")) for null in values["total_null"]),
        ),
    )


def _part(share: xr.DataArray, null: xr.DataArray) -> xr.Dataset:
    """Return the `share` of each head or MLP beside its null, whose labels become variables."""
    return null.to_dataset("null").assign(share=share)


def _finding(values: xr.Dataset, parts: Mapping[str, xr.Dataset]) -> str:
    """Return the shares of all heads and of all MLPs, and how many parts have a larger share than chance gives."""
    heads, mlps = (_count(of_part) for of_part in parts.values())
    measured = np.isfinite(values["mlp_share"])
    of_mlps = "all MLPs" if measured.all() else f"the {int(measured.sum())} measured MLPs"
    return (
        f"All heads together directly write {_total(values, 'head')} of the distance between the two means after the "
        f"last block, and {of_mlps} {_total(values, 'mlp')}; p is two-sided. The share is shown to be above chance for "
        f"{heads} heads and {mlps} MLPs (family-wise p of at most {LEVEL}). This "
        "tests how the distance is divided among the parts, not whether a part separates the sets."
    )


def _count(part: xr.Dataset) -> str:
    """Return how many heads or MLPs have a larger share than chance gives, such as `2 of 8`."""
    p = part["p_family"]
    return f"{int((p <= LEVEL).sum())} of {int(np.isfinite(p).sum())}"


def _headline(values: xr.Dataset, parts: Mapping[str, xr.Dataset]) -> str:
    """Return the shares of all heads and of all MLPs, and how many parts have a larger share than chance gives."""
    totals = values["total"].sel(part=["head", "mlp"])
    if not np.isfinite(totals).all():
        return ""
    heads, mlps = (percent(total, 1) for total in totals)
    of_mlps = "MLPs" if np.isfinite(values["mlp_share"]).all() else "measured MLPs"
    is_tested = any(np.isfinite(of_part["p_family"]).any() for of_part in parts.values())
    above = f"above chance: {_count(parts['head'])} heads, {_count(parts['mlp'])} MLPs"
    tested = above if is_tested else "no share is tested against chance"
    shares = parts["head"]["share"]
    most = shares.isel(shares.fillna(-np.inf).argmax(...))
    name = head_name(int(most["layer"]), int(most["head"]))
    return f"Heads write {heads} (most: {name} {percent(most, 1)}), {of_mlps} {mlps} of the difference; {tested}."


def _total(values: xr.Dataset, part: str) -> str:
    """Return the share of all heads or MLPs, and its test."""
    of_part = values.sel(part=part)
    mean, sd, z, p = (of_part["total_null"].sel(null=one) for one in ("mean", "sd", "z", "p"))
    tested = f", z = {number(z, 1)}, p = {float(p):.2g}" if np.isfinite(z) else ""
    return f"{percent(of_part['total'], 1)} (permuted labels give {number(100 * mean, 1)} ± {percent(sd, 1)}{tested})"


def _why_missing(values: xr.Dataset) -> str:
    if not np.isfinite(values["head_difference"]).any():
        return "There are no contributions: in post-norm models the stream is not a sum of what heads and MLPs add."
    return (
        "There are no shares of the distance: they need all layers, resid_pre of the first block, and the output of "
        "the last block."
    )


def _reliable_standardised(run: Run, values: xr.Dataset, contrast: str) -> xr.Dataset:
    """Return the variables of the standardised differences, NaN at layers whose direction is unreliable.

    In a hybrid, the layers are those with heads.
    """
    of_heads = values[["head_standardised", "head_standardised_null"]]
    layers = of_heads["layer"].values.tolist()
    of_heads = of_heads.sel(layer=[layer for layer in layers if run.record.has_site(Site.HEAD_OUT, layer)])
    return of_heads.where(~of_heads["layer"].isin(_unreliable(run, contrast)))


def _unreliable(run: Run, contrast: str) -> list[int]:
    """Return the layers whose direction, directly after attention, is unreliable."""
    return unreliable_layers(read_group(run, "directions"), contrast, "ov_write")


def _facts(values: xr.Dataset, parts: Mapping[str, xr.Dataset], of_heads: xr.Dataset) -> Iterator[str]:
    totals = {"heads": _total(values, "head"), "MLPs": _total(values, "mlp")}
    embedding = (values["embedding_share"], values["embedding_share_null"].sel(null="mean"))
    first = [percent(share, 1) for share in embedding]
    if set(first) != {percent(0, 1)}:  # such as 0 at a token that all prompts share
        totals["input of the first block"] = f"{first[0]} (permuted labels give {first[1]})"
    yield (
        f"Shares of the distance of the means after the last block ({float(values['final_difference']):.3g}): "
        f"{listed(totals)}. The p of a total is two-sided."
    )
    largest = {"head": _largest(parts["head"]), "MLP": _largest(parts["mlp"])}
    yield f"Largest share of a single part: {listed(largest)}."
    passed = {"heads": _passed(parts["head"]), "MLPs": _passed(parts["mlp"])}
    yield (
        f"Parts whose share exceeds their share with permuted labels (family-wise p of at most {LEVEL} over all heads, "
        f"MLPs and the input of the first block): {listed(passed)}. This tests how the distance is divided among the "
        "parts, not whether a part separates the sets."
    )
    standardised = abs(of_heads["head_standardised"])
    if np.isfinite(standardised).any():
        top = standardised.stack(place=("layer", "head"))
        top = top.isel(place=int(np.nanargmax(top.values)))
        at = {"layer": int(top["layer"]), "head": int(top["head"])}
        yield (
            "Each head's output is also projected onto the difference of the two sets' means in the stream directly "
            "after the attention of the head's layer. The two sets differ the most in this projection for "
            f"{head_name(at['layer'], at['head'])}: by {number(of_heads['head_standardised'].sel(at), 2)} pooled "
            f"standard deviations{_standardised_test(of_heads, at)}"
        )
        yield _THREE_QUESTIONS
    if np.isfinite(values["decomposition_error"]):
        yield (
            "The sum over heads and biases differs from attention's output by at most "
            f"{float(values['decomposition_error']):.1e} of the norm of the stream, over all prompts and layers."
        )


def _standardised_test(values: xr.Dataset, at: Mapping[str, int]) -> str:
    """Return the end of the sentence about standardised differences: how they compare with permuted labels."""
    null = values["head_standardised_null"]
    p = null.sel(null="p_family")
    left_out, without = int(np.isnan(values["head_standardised"]).sum()), ""
    if left_out:
        heads = "1 head has" if left_out == 1 else f"{left_out} heads have"
        without = f"{heads} no stated difference, since the direction is unreliable or the difference is unknown"
    if not np.isfinite(p).any():
        return f" (the direction is fitted to the same prompts{without and f'; {without}'})."
    permuted, passed = null.sel(null="mean").sel(at), values["head_standardised"].where(p <= LEVEL)
    return (
        f". With permuted labels, the mean absolute difference of this head is {number(permuted, 2)}; for each "
        "permutation, the direction is computed again from the permuted labels. The direction and the projections "
        "come from the same prompts; this alone can make differences larger, also with permuted labels. In "
        f"{int((p <= LEVEL).sum())} of {int(np.isfinite(p).sum())} heads the absolute difference is larger than with "
        f"permuted labels. It is positive (prompts of the positive set lie farther along the direction) in "
        f"{int((passed > 0).sum())} of them, and negative in {int((passed < 0).sum())}. The family-wise p, at most "
        f"{LEVEL}, accounts for the search over all {p.size} heads{without and ', also over those left out here'}."
        f"{without and f' {without}.'} If two sets differ at all, many heads can be expected to differ: they read and "
        "write the same stream."
    )


def _name(at: xr.Dataset) -> str:
    return head_name(int(at["layer"]), int(at["head"])) if "head" in at.coords else f"layer {int(at['layer'])}"


def _place(part: xr.Dataset, variable: str) -> xr.Dataset:
    """Return the numbers of the head or MLP with the largest value of a variable."""
    places = part.stack(place=[dim for dim in ("layer", "head") if dim in part.dims])
    return places.isel(place=int(np.nanargmax(places[variable].values)))


def _shares(at: xr.Dataset) -> list[str]:
    """Return the share of a part, and that with permuted labels."""
    return percents(at["share"], at["mean"], digits=1)


def _largest(part: xr.Dataset) -> str:
    at = _place(part, "share")
    share, permuted = _shares(at)
    return f"{_name(at)}, {share} (permuted labels give {permuted})"


def _passed(part: xr.Dataset) -> str:
    text = _count(part)
    if not np.isfinite(part["z"]).any():
        return text
    at = _place(part, "z")
    share, permuted = _shares(at)
    return (
        f"{text} (largest z {float(at['z']):.1f}, p = {float(at['p_family']):.2g}, of {_name(at)}: {share}, where "
        f"permuted labels give {permuted})"
    )
