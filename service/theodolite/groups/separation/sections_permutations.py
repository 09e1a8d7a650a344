"""Sentences about a contrast's statistics against permuted labels, for the section of the analysis `separation`."""

from collections.abc import Iterator, Mapping

import numpy as np
import xarray as xr

from theodolite.groups.schema import INTERVAL, LEVEL, VALUE_AND_BAND
from theodolite.groups.separation.record import MOST_EQUAL_PAIRS
from theodolite.query.curves import along_depth, end_of, has_values
from theodolite.sections.parts import Table, depths_text, in_brackets, layer_text, listed, null_text, number, percent
from theodolite.sites import Site, depth

CLASSIFIERS = {"auroc": "difference of means", "ridge_auroc": "ridge regression"}
"""The classifiers of held-out prompts, by the name of their AUROC."""

_WEAK = (
    "This control says little: in most pairs, both prompts have the same tokens, or the tokens that differ have no "
    "weight, for example because they occur in no other prompt."
)
_NAMES = {
    "auroc": "AUROC by difference of means",
    "ridge_auroc": "AUROC by ridge regression",
    "paired_accuracy": "share of pairs in the right order",
    "difference_norm": "distance of the two means",
    "silhouette": "silhouette of the two sets",
}


def permutation_facts(tests: xr.Dataset) -> Iterator[str]:
    """Yield a sentence about each statistic of one contrast that is tested against permuted labels, (site, layer)."""
    counts = " and ".join(map(str, tests["n_used"].values))
    texts = {
        _NAMES[one]: f"{_passed(tests, one)}{in_brackets(_where(tests, one), _clusters(tests, one))}"
        for one in _tested(tests)
    }
    if texts:
        yield (
            f"Number of depths at which a statistic exceeds its values under permuted labels (family-wise p of at most "
            f"{LEVEL}, {counts} prompts): {listed(texts)}."
        )


def permutation_tables(tests: xr.Dataset) -> list[Table]:
    """Return a table of the depths with the largest z of each tested statistic of one contrast, (site, layer)."""
    caption = "Statistics and their values under permuted labels, at the depth with the largest z"
    note = (
        "Permuted labels: mean ± standard deviation. The silhouette lies between -1 and 1, and a value near 0 or below "
        "means that the sets form no clusters (Euclidean distance over all features)."
    )
    columns = ["statistic", "depths above chance", "largest z", "depth", "value there", "permuted labels", "p"]
    rows = [_row(tests, statistic) for statistic in _tested(tests)]
    return [Table(caption, columns, rows, note)] if rows else []


def _tested(tests: xr.Dataset) -> list[str]:
    """Return the statistics with a test; a contrast may have no pairs, and permutations may change nothing."""
    return [statistic for statistic in _NAMES if np.isfinite(null_of(tests, statistic, "z")).any()]


def _passed(tests: xr.Dataset, statistic: str) -> str:
    p, z = (null_of(tests, statistic, part) for part in ("p_family", "z"))
    return f"{int((p <= LEVEL).sum())} of {int(np.isfinite(z).sum())}"


def null_of(tests: xr.Dataset, statistic: str, part: str) -> xr.DataArray:
    """Return a label of the axis `null` of a tested statistic."""
    return tests["tested_null"].sel(tested=statistic, null=part)


def _where(tests: xr.Dataset, statistic: str) -> str:
    """Return the depths at which a statistic exceeds chance; empty if these are all depths, or not a few ranges."""
    p = along_depth(null_of(tests, statistic, "p_family"))
    return "" if bool((p <= LEVEL).sum() == np.isfinite(p).sum()) else depths_text(p <= LEVEL)


def _clusters(tests: xr.Dataset, statistic: str) -> str:
    """Return the largest silhouette, which can exceed chance although it is small; empty for other statistics."""
    if statistic != "silhouette":
        return ""
    mean, sd, z = (null_of(tests, "silhouette", part) for part in ("mean", "sd", "z"))
    largest = np.nanmax(mean + z * sd)
    return f"largest value {largest:.3f}; near 0 the sets form no clusters"


def _row(tests: xr.Dataset, statistic: str) -> list[str]:
    places = tests["tested_null"].sel(tested=statistic).stack(point=("site", "layer"))
    best = places.isel(point=int(np.nanargmax(places.sel(null="z").values)))
    z, mean, sd, p = (float(best.sel(null=part)) for part in ("z", "mean", "sd", "p_family"))
    where = layer_text(depth(Site(str(best["site"].values)), int(best["layer"])))
    null = f"{mean:.2g} ± {sd:.2g}"
    return [_NAMES[statistic], _passed(tests, statistic), f"{z:.1f}", where, f"{mean + z * sd:.3g}", null, f"{p:.2g}"]


def control_facts(tests: xr.Dataset, labels: Mapping[str, str]) -> Iterator[str]:
    """Yield sentences about the AUROC on the sphere and of the norm alone, of one contrast, (site, layer).

    Args:
        tests: the permutation tests of the contrast, and its variable `length_difference`.
        labels: the label of the set on each side.
    """
    names = {
        "on_sphere": "Scaled to the same norm, activations separate the sets by difference of means",
        "norm": "By their length alone, activations separate the sets",
    }
    folded = {"norm": " (a value below 0.5 counts as 1 - AUROC)"}
    for score, text in names.items():
        places, tested = tests.sel(scored_by=score).stack(point=("site", "layer")), f"{score}_auroc"
        if not has_values(places, "score_auroc"):
            continue
        best = places.isel(point=int(np.nanargmax(end_of(places["score_auroc"]).values)))
        where = layer_text(depth(Site(str(best["site"].values)), int(best["layer"])))
        value, low, high = (float(end_of(best["score_auroc"], end)) for end in VALUE_AND_BAND)
        p = null_of(places, tested, "p_family").values
        shorter = _shorter(places.isel(point=p <= LEVEL), labels) if score == "norm" else ""
        yield (
            f"{text} better than chance at {(p <= LEVEL).sum()} of {np.isfinite(p).sum()} depths. The largest "
            f"AUROC{folded.get(score, '')} is {value:.3f} [{low:.3f}, {high:.3f}], at {where} "
            f"({null_text(best['tested_null'].sel(tested=tested))}).{shorter}"
        )


def _shorter(places: xr.Dataset, labels: Mapping[str, str]) -> str:
    """Return at how many of some depths the positive set has the smaller mean length; empty without depths."""
    difference = places["length_difference"].values
    if not len(difference):
        return ""
    many, total = int((difference < 0).sum()), len(difference)
    where = f"all these {total}" if many == total else f"{many} of these {total}"
    return f" At {where} depths, {labels['positive']} has the smaller mean length."


def has_tokens(tests: xr.Dataset, measure: str) -> bool:
    """Return whether the prompts' token counts have a statistic: `auroc` or `paired_accuracy`."""
    return bool(np.isfinite(tests["tokens"].sel(measure=measure, classifier="means", estimate="value")))


def token_facts(tests: xr.Dataset) -> Iterator[str]:
    """Yield sentences about the separation by the prompts' token counts alone, of one contrast at one position."""
    if not has_tokens(tests, "auroc"):  # all prompts have the same counts
        return
    p = tests["tokens_null"].sel(measure="auroc", null="p").values.tolist()
    means, ridge = (_with_interval(one, 3) for one in tests["tokens"].sel(measure="auroc"))
    yield (
        f"Token counts alone, without a model, give an AUROC of {means} by difference of means and {ridge} by ridge "
        "regression."
    )
    if has_tokens(tests, "paired_accuracy"):
        means, ridge = (_with_interval(100 * one, 1) for one in tests["tokens"].sel(measure="paired_accuracy"))
        yield (
            f"They put {means} % of the held-out pairs in the right order by difference of means{_equal_pairs(tests)}, "
            f"and {ridge} % by ridge regression."
        )
    if not np.isfinite(p).any():
        yield f"This is not tested, because it is the same under all permutations of the labels.{_weakness(tests)}"
        return
    tested = [number(one, 3) if np.isfinite(one) else "not tested" for one in p]
    is_shown = any(one <= LEVEL / len(p) for one in p)  # Bonferroni, for two classifiers
    yield (
        f"So words alone {'separate' if is_shown else 'are not shown to separate'} the sets better than chance (p = "
        f"{' and '.join(tested)} against permuted labels).{_weakness(tests)}"
    )


def beyond_facts(tests: xr.Dataset) -> Iterator[str]:
    """Yield at how many depths activations separate the sets better than words, and than length, do."""
    controls = {"words": "the better classifier of words", "length": "their own length"}
    for control, text in controls.items():
        differences = tests["beyond"].sel(control=control)
        if counts := _exceeded_by(differences):
            beyond = f"By simultaneous bands, activations have a larger AUROC than {text} {counts}."
            yield f"{beyond}{_worse(differences)}"
    if pairs := _exceeded(tests["beyond"].sel(control="words", held_out="paired_accuracy")):
        yield f"By difference of means, activations put more pairs in the right order than words do {pairs}."


def _exceeded_by(differences: xr.DataArray) -> str:
    """Return at how many depths each classifier of activations exceeds a control; empty if it is unknown."""
    found = {one: text for one in CLASSIFIERS if (text := _exceeded(differences.sel(held_out=one)))}
    if len(found) > 1 and len(set(found.values())) == 1:
        return f"{next(iter(found.values()))} by both classifiers"
    return " and ".join(f"{text} by {CLASSIFIERS[one]}" for one, text in found.items())


def _exceeded(difference: xr.DataArray) -> str:
    """Return at how many depths, and at which, the band of a difference lies above 0; empty without the difference."""
    if not np.isfinite(end_of(difference)).any():
        return ""
    low = along_depth(difference, "band_low")
    many, total = _counts_above(difference)
    return f"at {many} of {total} depths{in_brackets(depths_text(low > 0)) if many < total else ''}"


def _counts_above(difference: xr.DataArray) -> tuple[int, int]:
    """Return at how many depths the band of a difference lies above 0, and the number of depths."""
    low = end_of(difference, "band_low")
    return int((low > 0).sum()), int(np.isfinite(low).sum())


def _worse(differences: xr.DataArray) -> str:
    """Return at how many depths the control separates the sets better than activations do, after a space."""
    counts = {}
    for one, classifier in CLASSIFIERS.items():
        many = int((end_of(differences.sel(held_out=one), "band_high") < 0).sum())
        if many:
            counts[classifier] = f"at {many} {'depth' if many == 1 else 'depths'} by {classifier}"
    return f" They have a smaller one {' and '.join(counts.values())}." if counts else ""


def token_finding(tests: xr.Dataset) -> str:
    """Return what the prompts' token counts alone give, and where activations exceed it, of one contrast."""
    auroc = _better_tokens(tests)
    classifier = CLASSIFIERS["ridge_auroc" if auroc["classifier"] == "ridge" else "auroc"]
    text = f"Token counts alone, without a model, give an AUROC of {_with_interval(auroc, 3)} by {classifier}"
    counts = _exceeded_by(tests["beyond"].sel(control="words"))
    beyond = f"; activations are shown to exceed it {counts}" if counts else ""
    return f"{text}{beyond}.{_weakness(tests)}"


def token_headline(tests: xr.Dataset, *, compared: bool) -> str:
    """Return the AUROC of the prompts' token counts after a semicolon; empty if they have none.

    `compared` adds at how many depths activations exceed it by difference of means.
    """
    if not has_tokens(tests, "auroc"):
        return ""
    auroc = number(_better_tokens(tests).sel(estimate="value"), 3)
    if _weakness(tests):
        return f"; token counts, a weak control here, give {auroc}"
    beyond = tests["beyond"].sel(control="words", held_out="auroc")
    if not compared or not np.isfinite(end_of(beyond)).any():
        return f"; token counts alone give {auroc}"
    many, total = _counts_above(beyond)
    return f"; token counts alone give {auroc}, exceeded at {many} of {total} depths"


def _better_tokens(tests: xr.Dataset) -> xr.DataArray:
    """Return the AUROC of the prompts' token counts by the better classifier, (estimate)."""
    is_ridge = float(tests["tokens_is_ridge"].sel(measure="auroc")) == 1
    return tests["tokens"].sel(measure="auroc", classifier="ridge" if is_ridge else "means")


def _weakness(tests: xr.Dataset) -> str:
    """Return that the control says little, after a space; empty unless most pairs have equal token scores."""
    is_weak = has_values(tests, "tokens_equal_pairs") and float(tests["tokens_equal_pairs"]) > MOST_EQUAL_PAIRS
    return f" {_WEAK}" if is_weak else ""


def _equal_pairs(tests: xr.Dataset) -> str:
    """Return how many pairs have equal token scores; empty without such pairs."""
    if not has_values(tests, "tokens_equal_pairs") or not float(tests["tokens_equal_pairs"]):
        return ""
    return f" ({percent(tests['tokens_equal_pairs'], 1)} have equal scores, which count half)"


def _with_interval(values: xr.DataArray, digits: int) -> str:
    value, low, high = (number(values.sel(estimate=end), digits) for end in INTERVAL)
    return f"{value} [{low}, {high}]" if np.isfinite(values.sel(estimate="low")) else value
