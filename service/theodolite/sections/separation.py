"""Separation of held-out prompts along each contrast's direction."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import xarray as xr

from theodolite.figures.curves import shown_sites
from theodolite.figures.directions import reliability_figure
from theodolite.figures.maps import layer_map, scale_limits
from theodolite.figures.separation import separation_figure
from theodolite.groups.directions import RELIABLE
from theodolite.groups.permutations import LEVEL
from theodolite.query.compare import BOUND, separating
from theodolite.query.curves import along_depth, has_values
from theodolite.query.directions import is_unreliable
from theodolite.query.first_tokens import set_labels
from theodolite.query.twin import read_twin
from theodolite.sections.parts import (
    BAND,
    BRACKETS,
    CHANCE,
    SIDES,
    Figure,
    Section,
    last_position,
    layer_of,
    leaves_out_end,
    null_text,
    others_text,
    percent,
    point_text,
    quoted,
    same_token_notes,
)
from theodolite.sections.permutations import (
    control_facts,
    cosine_facts,
    permutation_facts,
    permutation_tables,
    token_facts,
    token_finding,
)
from theodolite.sections.twin import twin_cosine_between_layers, twin_finding, twin_separation_facts
from theodolite.sections.worth import UNTESTED, worth_of
from theodolite.store.manifest import finished_groups
from theodolite.store.result_reader import read_group
from theodolite.store.runs import Run

_NEAR_CHANCE = (
    "near an AUROC or an accuracy of 0.5, the intervals are too narrow; to decide there whether the sets differ, use "
    "the comparison with permuted labels"
)

_DEPENDENT = (
    "all depths share the stream, so the number of depths above chance is not a number of independent findings; sets "
    "with different words can be above chance in untrained networks too"
)


def sections(run: Run) -> list[Section]:
    """Return a section for each contrast: separation of held-out prompts, cosines between layers' directions."""
    separation, directions = read_group(run, "separation"), read_group(run, "directions")
    tests = read_group(run, "permutations") if "permutations" in finished_groups(run) else None
    twins = read_twin(run, "separation", "directions")
    contrasts = separation["contrast"].values.tolist()
    of_contrasts = [_section(run, separation, directions, tests, twins.get(name, {}), name) for name in contrasts]
    return [section for section in of_contrasts if section]


def _section(
    run: Run,
    separation: xr.Dataset,
    directions: xr.Dataset,
    tests: xr.Dataset | None,
    twin: Mapping[str, xr.Dataset],
    contrast: str,
) -> Section | None:
    """Return the section of a contrast, or None if one of its sets lacks the last position.

    `twin` holds the contrast in the groups `separation` and `directions` of the untrained twin, if there is one.
    """
    position, sites = last_position(separation), shown_sites(separation)
    shown = {"position": position, "site": sites}
    values = separation.sel({"contrast": contrast, **shown})
    counts = [int(values[f"n_{side}"]) for side in SIDES]
    if not all(counts):
        return None
    own = directions.sel({"contrast": contrast, **shown})
    null = tests.sel({"contrast": contrast, **shown}) if tests is not None else None
    if null is not None:
        null = null.assign(length_difference=_length_difference(run, contrast).sel(shown))
    tested = null if null is not None and np.isfinite(null["auroc_z"]).any() else None
    labels = _side_labels(run, contrast, position)
    sides = " and ".join(f"{n} {label}" for n, label in zip(counts, labels.values(), strict=True)) + " prompts"
    findings = [_finding(values, sides, tested)]
    if "separation" in twin:
        findings.append(twin_finding(twin["separation"].sel(shown)))
    return Section(
        f"Separation of {quoted(contrast)} at position {position}: {sides} in five folds",
        [
            *_facts(values, counts, tested, labels),
            *(twin_separation_facts(values, twin["separation"].sel(shown)) if "separation" in twin else ()),
            *_reliability_facts(own),
            *(cosine_facts(own, null) if null is not None else ()),
            *(twin_cosine_between_layers(twin["directions"].sel(shown)) if "directions" in twin else ()),
        ],
        [
            Figure(
                f"separation.{contrast}",
                "Separation of held-out prompts along the direction",
                partial(separation_figure, separation, tests, contrast, position, sites, twin.get("separation")),
            ),
            Figure(
                f"separation.{contrast}.reliability",
                "Reliability of the direction",
                partial(reliability_figure, directions, contrast, position, sites),
            ),
        ],
        [_map(directions, tests, contrast, site, _limits(own)) for site in sites],
        permutation_tables(null) if null is not None else [],
        notes=[
            *(BRACKETS, BAND, _NEAR_CHANCE),
            *([CHANCE, _DEPENDENT] if tests is not None else []),
            *_same_token_notes(run, contrast, position),
        ],
        finding=" ".join(filter(None, findings)),
        worth=UNTESTED if tested is None else worth_of((tested["auroc_p_family"], tested["auroc_z"])),
    )


def _length_difference(run: Run, contrast: str) -> xr.DataArray:
    """Return the mean norm of the positive set minus that of the negative set, (position, site, layer)."""
    norms, sides = read_group(run, "moments")["norm_mean"], read_group(run, "separation").attrs["contrasts"][contrast]
    positive, negative = (norms.sel(set=sides[side], drop=True) for side in SIDES)
    return positive - negative


def _side_labels(run: Run, contrast: str, position: int) -> dict[str, str]:
    """Return the label of the set on each side of a contrast."""
    sides, labels = read_group(run, "separation").attrs["contrasts"][contrast], set_labels(run, position)
    return {side: labels[sides[side]] for side in SIDES}


def _same_token_notes(run: Run, contrast: str, position: int) -> list[str]:
    sides = read_group(run, "separation").attrs["contrasts"][contrast]
    return same_token_notes(run, [sides[side] for side in SIDES], set_labels(run, position), position)


def _limits(directions: xr.Dataset) -> tuple[float, float]:
    """Return the scale of the maps of one contrast's cosines, which is the same for all sites."""
    return scale_limits(*directions["direction_cosine"].transpose("site", ...).values)


def _map(
    directions: xr.Dataset, tests: xr.Dataset | None, contrast: str, site: str, limits: tuple[float, float]
) -> Figure:
    caption = f"cosine between directions, {site}"
    at = {"contrast": contrast, "site": site, "position": last_position(directions)}
    cosines = directions["direction_cosine"].sel(at)
    chance = tests["direction_cosine_null_mean"].sel(at) if tests is not None else None
    pale = is_unreliable(directions, contrast, site).tolist()
    return Figure(
        f"separation.{contrast}.{site}",
        caption,
        partial(layer_map, cosines, caption, limits=limits, chance=chance, pale=pale),
    )


def _reliability_facts(directions: xr.Dataset) -> Iterator[str]:
    """Yield sentences about how well a contrast's direction would repeat with other prompts."""
    reliability, share = along_depth(directions["reliability"]), along_depth(directions["noise_share"])
    if not np.isfinite(reliability).any():
        return
    lowest = int(np.nanargmin(reliability.values))
    sentence = (
        "Smallest reliability of the direction (expected cosine with a direction from as many new prompts of the same "
        f"kind): {float(reliability[lowest]):.2f} at {layer_of(reliability, lowest)}, where "
        f"{percent(share[lowest], 0)} of the squared distance of the means is noise (estimated from the variances)."
    )
    if few := int((reliability < RELIABLE).sum()):
        sentence += (
            f" At {few} of {int(np.isfinite(reliability).sum())} depths the reliability is below {RELIABLE}. Figures "
            "draw the direction at such a depth grey, and statistics of heads leave it out. The numbers of depths in "
            "the other sentences include such depths."
        )
    yield sentence


def _facts(values: xr.Dataset, counts: list[int], tests: xr.Dataset | None, labels: Mapping[str, str]) -> Iterator[str]:
    auroc, low = along_depth(values["auroc"]), along_depth(values[separating(values)])
    if not np.isfinite(auroc).any():
        few = min(counts) < 2
        reason = (
            "a set has only one prompt, so one fold has no other prompt to fit the direction on"
            if few
            else "the two sets' means are equal"
        )
        yield f"No direction can be fitted: {reason}."
        return
    best, deepest = int(np.nanargmax(auroc.values)), int(np.flatnonzero(np.isfinite(auroc.values))[-1])
    largest = point_text(values, "auroc", best, ".3f", band=True)
    yield (
        f"The largest cross-validated AUROC is {largest}, at {layer_of(auroc, best)}"
        f"{', the last measured depth' if best == deepest else ''} ({counts[0]} and {counts[1]} prompts; "
        f"{_auroc_by_chance(tests, best)}). {_searched(values, auroc)}{others_text(values, 'auroc', best)}"
    )
    if has_values(values, "paired_accuracy"):
        ordered = point_text(values, "paired_accuracy", best, ".1f", 100, band=True)
        yield (
            f"Pairs in the right order at that depth: in {ordered} % of {counts[0]} held-out pairs the positive prompt "
            "lies farther along the direction than its own partner; chance gives 50 %. AUROC also compares prompts of "
            "different pairs, so it is smaller if the pairs have different positions along the direction."
        )
    yield (
        f"Accuracy at that depth: {point_text(values, 'accuracy', best, '.1f', 100, band=True)} % of the held-out "
        f"prompts lie on their own set's side of the midpoint; {_by_chance(counts)}. {_fisher_sentence(values, best)}"
    )
    if tests is not None:
        yield from permutation_facts(tests)
        yield from control_facts(tests, labels)
        yield from token_facts(tests)
    elif float(low[best]) <= 0.5:
        yield "The interval of the largest AUROC contains 0.5, so chance can explain it."
    passed = np.flatnonzero(low.values >= BOUND)
    if len(passed):
        kind = "simultaneous AUROC interval" if has_values(values, "auroc_band_low") else "AUROC interval"
        yield f"First depth whose {kind} lies above {BOUND}: {layer_of(low, int(passed[0]))}."


def _searched(values: xr.Dataset, auroc: xr.DataArray) -> str:
    """Return the depths over which the largest AUROC was searched."""
    n = int(np.isfinite(auroc).sum())
    depths = "1 depth" if n == 1 else f"{n} depths"
    last = ", without the output of the last block" if leaves_out_end(values) else ""
    return f"The search covers the {depths} at which the means of the two sets differ{last}."


def _before_end(values: xr.Dataset) -> str:
    return " before the output of the last block" if leaves_out_end(values) else ""


def _finding(values: xr.Dataset, sides: str, tests: xr.Dataset | None) -> str:
    """Return whether the two sets separate, and how well; `sides` are their numbers of prompts."""
    auroc = along_depth(values["auroc"])
    if not np.isfinite(auroc).any():
        return ""
    best = int(np.nanargmax(auroc.values))
    if tests is not None:
        separate = float(along_depth(tests["auroc_p_family"])[best]) <= LEVEL
    else:
        separate = float(along_depth(values[separating(values)])[best]) > 0.5
    text = (
        f"The activations of {sides} {'separate better' if separate else 'do not separate better'} than chance: the "
        f"largest AUROC of held-out prompts, over {int(np.isfinite(auroc).sum())} depths{_before_end(values)}, is "
        f"{point_text(values, 'auroc', best, '.3f', band=True)}, at {layer_of(auroc, best)} "
        f"({_auroc_by_chance(tests, best)}).{others_text(values, 'auroc', best)}"
    )
    if has_values(values, "paired_accuracy"):
        ordered = point_text(values, "paired_accuracy", best, ".1f", 100, band=True)
        text += f" At this depth, {ordered} % of the held-out pairs are in the right order."
    if tests is not None and has_values(tests, "tokens_auroc"):
        text += f" {token_finding(tests)}"
    return text


def _auroc_by_chance(tests: xr.Dataset | None, index: int) -> str:
    """Return what chance gives for the AUROC at a point of the curve along depth."""
    if tests is None:
        return "chance gives 0.5"
    names = [f"auroc_{part}" for part in ("null_mean", "null_sd", "p_family")]
    return null_text(xr.Dataset({name: along_depth(tests[name])[index] for name in names}), "auroc")


def _fisher_sentence(values: xr.Dataset, best: int) -> str:
    known = np.isfinite(along_depth(values["fisher_ratio"]).values)
    if not known.any():
        return "The Fisher ratio is missing: each of the five folds needs at least one prompt of each set."
    if not known[best]:
        return "The Fisher ratio there is missing: all prompts of a set have the same activations."
    ratio = point_text(values, "fisher_ratio", best, ".3g")
    kind = "; the interval is for this depth alone, which was chosen by its AUROC" if "[" in ratio else ""
    return (
        f"The Fisher ratio there is {ratio} (squared distance of the means, divided by the sum of the two sets' total "
        f"variances; equal means give 0{kind})."
    )


def _by_chance(counts: Sequence[int]) -> str:
    share = percent(max(counts) / sum(counts), 1)
    return "chance gives 50 %" if len(set(counts)) == 1 else f"the larger set for every prompt would give {share}"
