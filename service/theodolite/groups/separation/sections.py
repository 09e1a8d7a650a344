"""Separation of held-out prompts along each contrast's direction."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import xarray as xr

from theodolite.drawing.panels import shown_sites
from theodolite.groups.schema import LEVEL, SIDES
from theodolite.groups.separation.figures import separation_figure
from theodolite.groups.separation.record import LEAST_PROMPTS
from theodolite.groups.separation.sections_permutations import (
    CLASSIFIERS,
    beyond_facts,
    control_facts,
    has_tokens,
    null_of,
    permutation_facts,
    permutation_tables,
    token_facts,
    token_finding,
    token_headline,
)
from theodolite.query.compare import BOUND
from theodolite.query.curves import along_depth, has_values, onset
from theodolite.query.first_tokens import set_labels
from theodolite.query.twin import read_twin
from theodolite.sections.parts import (
    BAND,
    BRACKETS,
    CHANCE,
    LOCATION,
    Figure,
    Section,
    depths_text,
    in_brackets,
    last_position,
    layer_of,
    leaves_out_end,
    location_text,
    null_text,
    percent,
    point_text,
    quoted,
    same_token_notes,
    side_counts,
    without_spread,
)
from theodolite.sections.twin import twin_finding, twin_separation_facts
from theodolite.sections.worth import UNTESTED, Worth, worth_of
from theodolite.spec_parts import Label
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
    """Return a section for each contrast."""
    separation = read_group(run, "separation")
    tests = read_group(run, "permutations") if "permutations" in finished_groups(run) else None
    twins = read_twin(run, "separation")
    contrasts = separation["contrast"].values.tolist()
    of_contrasts = [_section(run, separation, tests, twins.get(name, {}), name) for name in contrasts]
    return [section for section in of_contrasts if section]


def _section(
    run: Run,
    separation: xr.Dataset,
    tests: xr.Dataset | None,
    twin: Mapping[str, xr.Dataset],
    contrast: str,
) -> Section | None:
    """Return the section of a contrast, or None if its sets have no common position.

    `twin` holds the contrast in the analysis `separation` of the untrained twin, if there is one.
    """
    position, sites = last_position(separation, contrast), shown_sites(separation)
    shown = {"position": position, "site": sites}
    values = separation.sel({"contrast": contrast, **shown})
    counts = values["n_used"].values.tolist()
    if not all(counts):
        return None
    null = tests.sel({"contrast": contrast, **shown}) if tests is not None else None
    if null is not None:
        ridge = null["score_auroc"].sel(scored_by="ridge", drop=True)
        null = null.assign(ridge_auroc=ridge, length_difference=_length_difference(run, contrast).sel(shown))
    tested = null if null is not None and np.isfinite(null_of(null, "auroc", "z")).any() else None
    labels = _side_labels(run, contrast, position)
    sides = f"{side_counts(values, [*labels.values()])} prompts"
    unknown = _unknown(run, values, contrast, counts)
    findings = [unknown or _finding(values, sides, tested)]
    if "separation" in twin and not unknown:
        findings.append(twin_finding(twin["separation"].sel(shown)))
    return Section(
        f"Separation of {quoted(contrast)} at position {position}: {sides} in five folds",
        [
            *([unknown] if unknown else _facts(values, counts, tested, labels)),
            *(twin_separation_facts(twin["separation"].sel(shown)) if "separation" in twin else ()),
        ],
        [
            Figure(
                f"separation.{contrast}",
                "Separation of held-out prompts along the direction",
                partial(separation_figure, separation, tests, contrast, position, sites, twin.get("separation")),
            ),
        ],
        tables=permutation_tables(null) if null is not None and not unknown else [],
        notes=[
            *(BRACKETS, BAND, LOCATION, _NEAR_CHANCE),
            *([CHANCE, _DEPENDENT] if tests is not None else []),
            *_same_token_notes(run, contrast, position),
        ],
        finding=" ".join(filter(None, findings)),
        headline=unknown or _headline(values, tested),
        worth=UNTESTED if unknown or tested is None else _worth(tested),
    )


def _worth(tests: xr.Dataset) -> Worth:
    """Return what the finding is worth: the tests of both classifiers."""
    return worth_of(*((null_of(tests, one, "p_family"), null_of(tests, one, "z")) for one in CLASSIFIERS))


def _length_difference(run: Run, contrast: str) -> xr.DataArray:
    """Return the mean norm of the positive set minus that of the negative set, (position, site, layer)."""
    norms, sides = read_group(run, "moments")["norm_mean"], read_group(run, "separation").attrs["contrasts"][contrast]
    positive, negative = (norms.sel(set=sides[side], drop=True) for side in SIDES)
    return positive - negative


def _side_labels(run: Run, contrast: str, position: Label) -> dict[str, str]:
    """Return the label of the set on each side of a contrast."""
    sides, labels = read_group(run, "separation").attrs["contrasts"][contrast], set_labels(run, position)
    return {side: labels[sides[side]] for side in SIDES}


def _same_token_notes(run: Run, contrast: str, position: Label) -> list[str]:
    sides = read_group(run, "separation").attrs["contrasts"][contrast]
    return same_token_notes(run, [sides[side] for side in SIDES], set_labels(run, position), position)


def _facts(values: xr.Dataset, counts: list[int], tests: xr.Dataset | None, labels: Mapping[str, str]) -> Iterator[str]:
    auroc = along_depth(values["auroc"])
    best = int(np.nanargmax(auroc.values))
    yield f"{_largest(values, tests, 'auroc')}{_located(tests, values, 'auroc')}"
    if tests is not None and has_values(tests, "ridge_auroc"):
        yield f"{_largest(tests, tests, 'ridge_auroc')}{_located(tests, tests, 'ridge_auroc')}"
    yield _searched(values, auroc)
    if has_values(values, "paired_accuracy"):
        yield f"{_largest_share_of_pairs(values, counts[0])}{_located(tests, values, 'paired_accuracy')}"
    yield (
        f"At {layer_of(auroc, best)}, {point_text(values, 'accuracy', best, '.1f', 100, band=True)} % of held-out "
        f"prompts lie on their own set's side of the midpoint; {_by_chance(counts)}."
    )
    yield _fisher_sentence(values, best)
    if tests is not None:
        yield from permutation_facts(tests)
        yield from control_facts(tests, labels)
        yield from token_facts(tests)
        yield from beyond_facts(tests)
    elif float(along_depth(values["auroc"], "band_low")[best]) <= 0.5:
        yield "The interval of the largest AUROC contains 0.5, so chance can explain it."
    yield from _separated(values, min(counts))


def _unknown(run: Run, values: xr.Dataset, contrast: str, counts: Sequence[int]) -> str:
    """Return why nothing can be concluded about the separation of the two sets; empty if something can be."""
    if not has_values(values, "auroc"):
        few = min(counts) < 2
        reason = (
            "a set has only one prompt, so one fold has no other prompt to fit the direction on"
            if few
            else "the two sets' means are equal"
        )
        return f"No direction can be fitted: {reason}."
    sides = read_group(run, "separation").attrs["contrasts"][contrast]
    names = [sides[side] for side in SIDES]
    return without_spread(run, names, values["position"].item(), values["site"].values.tolist())


def _largest(values: xr.Dataset, tests: xr.Dataset | None, statistic: str) -> str:
    """Return the largest AUROC of a classifier, its depth, and whether chance explains it.

    Args:
        values: the statistics of one contrast at one position with the AUROC, (site, layer).
        tests: its permutation tests, if the run has them.
        statistic: `auroc` or `ridge_auroc`.
    """
    curve = along_depth(values[statistic])
    best, deepest = int(np.nanargmax(curve.values)), int(np.flatnonzero(np.isfinite(curve.values))[-1])
    last = ", the last measured depth" if best == deepest else ""
    return (
        f"By {CLASSIFIERS[statistic]}, the largest AUROC of held-out prompts is "
        f"{point_text(values, statistic, best, '.3f', band=True)}, at {layer_of(curve, best)}{last} "
        f"({_by_permuted_labels(tests, statistic, best)}).{_below_chance(float(curve[best]))}"
    )


def _located(tests: xr.Dataset | None, values: xr.Dataset, statistic: str) -> str:
    """Return how many depths cannot be told from that of the largest of the values."""
    if tests is None:
        return ""
    largest = int(np.nanargmax(along_depth(values[statistic]).values))
    return location_text(tests["location"].sel(held_out=statistic), largest)


def _below_chance(auroc: float) -> str:
    return " Even this value lies below chance." if auroc < 0.5 else ""


def _largest_share_of_pairs(values: xr.Dataset, n: int) -> str:
    shares = along_depth(values["paired_accuracy"])
    best = int(np.nanargmax(shares.values))
    return (
        f"By difference of means, the largest share of held-out pairs in the right order is "
        f"{point_text(values, 'paired_accuracy', best, '.1f', 100, band=True)} %, at {layer_of(shares, best)} ({n} "
        f"pairs; chance gives 50 %).{_below_chance(float(shares[best]))}"
    )


def _separated(values: xr.Dataset, n: int) -> Iterator[str]:
    """Yield where the AUROC's simultaneous interval lies above BOUND, or why it cannot; `n` is the smaller set."""
    low, limit = along_depth(values["auroc"], "band_low"), float(values["auroc_band_limit"])
    known = np.isfinite(low.values)
    passed = known & (low.values >= BOUND)
    many, total = int(passed.sum()), int(known.sum())
    if limit < BOUND:
        yield (
            f"With {n} prompts in the smaller set, no simultaneous AUROC interval can lie above {BOUND}: its lower end "
            f"is at most {limit:.3f}."
        )
        return
    subject = "the simultaneous AUROC interval by difference of means"
    reach = f" With {n} prompts in the smaller set, its lower end is at most {limit:.3f}." if np.isfinite(limit) else ""
    if not many:
        yield f"At none of {total} depths, {subject} lies above {BOUND}.{reach}"
        return
    first = onset(passed[known])
    if first is not None:
        earlier = int(passed[known][:first].sum())
        also = f", and at {earlier} earlier {'depth' if earlier == 1 else 'depths'}" if earlier else ""
        yield f"From {layer_of(low[known], first)} on, {subject} lies above {BOUND}{also}.{reach}"
    else:
        scattered = ", but not from a depth on" if many > 1 else ""
        where = in_brackets(depths_text(low >= BOUND))
        yield f"At {many} of {total} depths{where}{scattered}, {subject} lies above {BOUND}.{reach}"


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
    best = int(np.nanargmax(auroc.values))
    separate = _separate(values, tests, best)
    verdict = "separate better than chance" if separate else "are not shown to separate better than chance"
    if separate is None:
        verdict = "are too few to test"
    if separate is None and tests is not None:
        verdict += f": with fewer than {LEAST_PROMPTS} prompts in a set, no p can be at most {LEVEL}"
    texts = [
        f"By difference of means, the activations of {sides} {verdict}. The largest AUROC of held-out prompts over "
        f"{int(np.isfinite(auroc).sum())} depths{_before_end(values)} is "
        f"{point_text(values, 'auroc', best, '.3f', band=True)}, at {layer_of(auroc, best)} "
        f"({_by_permuted_labels(tests, 'auroc', best)}).{_below_chance(float(auroc[best]))}"
        f"{_located(tests, values, 'auroc')}"
    ]
    if has_values(values, "paired_accuracy"):
        ordered = point_text(values, "paired_accuracy", best, ".1f", 100, band=True)
        texts.append(f"At this depth, {ordered} % of the held-out pairs are in the right order.")
    if tests is not None and has_values(tests, "ridge_auroc"):
        texts.append(f"{_largest(tests, tests, 'ridge_auroc')}{_located(tests, tests, 'ridge_auroc')}")
    if tests is not None and has_tokens(tests, "auroc"):
        texts.append(token_finding(tests))
    return " ".join(texts)


def _separate(values: xr.Dataset, tests: xr.Dataset | None, best: int) -> bool | None:
    """Return whether the sets separate better than chance by difference of means; None for too few prompts.

    Args:
        values: the statistics of one contrast at one position, (site, layer).
        tests: its permutation tests, if the run has them.
        best: the index of the largest AUROC along depth.
    """
    if tests is None:
        low = float(along_depth(values["auroc"], "band_low")[best])
        return None if np.isnan(low) else low > 0.5
    separate = float(along_depth(null_of(tests, "auroc", "p_family"))[best]) <= LEVEL
    return separate or (None if values["n_used"].min() < LEAST_PROMPTS else False)


def _headline(values: xr.Dataset, tests: xr.Dataset | None) -> str:
    """Return whether the two sets separate, the largest AUROC, and that of the prompts' token counts."""
    auroc = along_depth(values["auroc"])
    best = int(np.nanargmax(auroc.values))
    separate = _separate(values, tests, best)
    found = f"AUROC {point_text(values, 'auroc', best, '.3f', band=True)} at {layer_of(auroc, best)}"
    if separate is None:
        return f"The prompts are too few to test whether the sets separate: largest {found}."
    words = token_headline(tests, compared=separate) if tests is not None else ""
    if separate:
        return f"The sets separate better than chance: {found}{words}."
    if tests is None:
        return f"The sets are not shown to separate: largest {found} (chance gives 0.5)."
    if ridge := _ridge_headline(tests):
        means = f"the difference of means is not shown to ({found})"
        return f"Ridge regression alone separates the sets ({ridge}); {means}."
    p = float(along_depth(null_of(tests, "auroc", "p_family"))[best])
    tested = f" (p = {p:.2g})" if np.isfinite(p) else ""
    return f"The sets are not shown to separate: largest {found}{tested}{words}."


def _ridge_headline(tests: xr.Dataset) -> str:
    """Return the largest AUROC by ridge regression; empty unless its test passes as one of two."""
    if not has_values(tests, "ridge_auroc"):
        return ""
    auroc, p = along_depth(tests["ridge_auroc"]), along_depth(null_of(tests, "ridge_auroc", "p_family"))
    best = int(np.nanargmax(auroc.values))
    passed = len(CLASSIFIERS) * float(p[best]) <= LEVEL
    return point_text(tests, "ridge_auroc", best, ".3f", band=True) if passed else ""


def _by_permuted_labels(tests: xr.Dataset | None, statistic: str, index: int) -> str:
    """Return what chance gives for the AUROC of a classifier at a point of the curve along depth."""
    if tests is None or np.isnan(null_of(tests, statistic, "z")).all():
        return "chance gives 0.5"
    return null_text(along_depth(tests["tested_null"].sel(tested=statistic))[index])


def _fisher_sentence(values: xr.Dataset, best: int) -> str:
    known = np.isfinite(along_depth(values["fisher_ratio"]).values)
    if not known.any():
        return "The Fisher ratio is missing: each of the five folds needs at least one prompt of each set."
    if not known[best]:
        return "The Fisher ratio there is missing: all prompts of a set have the same activations."
    ratio = point_text(values, "fisher_ratio", best, ".3g")
    kind = "; the interval is for this depth alone" if "[" in ratio else ""
    return (
        f"The Fisher ratio there is {ratio} (squared distance of the means over the sum of both sets' total variances; "
        f"equal means give 0{kind})."
    )


def _by_chance(counts: Sequence[int]) -> str:
    share = percent(max(counts) / sum(counts), 1)
    return "chance gives 50 %" if len(set(counts)) == 1 else f"the larger set for every prompt would give {share}"
