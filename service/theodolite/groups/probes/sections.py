"""Probes of each contrast beside the difference of means."""

from collections.abc import Iterator
from functools import partial

import numpy as np
import xarray as xr

from theodolite.drawing.panels import shown_sites
from theodolite.groups.probes.figures import NAMES, probes_figure
from theodolite.groups.probes.record import BEYOND_MEANS, BEYOND_WORDS, MEASURES, PROBES
from theodolite.groups.schema import SIDES
from theodolite.query.curves import along_depth, has_values
from theodolite.query.first_tokens import set_labels
from theodolite.sections.parts import (
    BAND,
    BRACKETS,
    CHANCE,
    Figure,
    Section,
    depths_text,
    in_brackets,
    last_position,
    layer_of,
    layer_text,
    null_text,
    number,
    point_text,
    quoted,
    same_token_notes,
    side_counts,
)
from theodolite.store.result_reader import read_group
from theodolite.store.runs import Run

_HOW_TO_READ = (
    "Each probe is fitted on four fifths of the prompts and scores the others. The difference of means ignores the "
    "spread inside the sets. The linear discriminant divides by it. The logistic probe fits the log of the odds, with "
    "a penalty that other folds choose. Filled markers pass the test against permuted labels at all depths. The ribbon "
    "is the chance of the logistic probe. A cosine far from 1 means that a probe reads another direction, not that the "
    "model uses it."
)

_NOTE = (
    "a probe shows that the activations hold a difference, not that the model uses it. A fitted probe also uses what "
    "occurs together with the difference, for example words"
)


def sections(run: Run) -> list[Section]:
    """Return a section for each contrast with prompts at the last position."""
    probes = read_group(run, "probes")
    return [section for name in probes["contrast"].values.tolist() if (section := _section(run, probes, name))]


def _section(run: Run, probes: xr.Dataset, contrast: str) -> Section | None:
    position, sites = last_position(probes, contrast), shown_sites(probes)
    values = probes.sel(contrast=contrast, position=position, site=sites)
    if not values["n_used"].values.all():
        return None
    sides, labels = probes.attrs["contrasts"][contrast], set_labels(run, position)
    sets = [sides[side] for side in SIDES]
    counts = side_counts(values, [labels[name] for name in sets])
    title = f"Probes of {quoted(contrast)} at position {position}: {counts} prompts in five folds"
    named = _named(values)
    if not has_values(named, "logistic.auroc"):
        why = "No probe can be fitted: the two sets' means are equal, or a fold has no prompt of a set."
        return Section(title, [why], headline=why)
    return Section(
        title,
        list(_facts(named)),
        [
            Figure(
                f"probes.{contrast}",
                "Separation of held-out prompts by probes, beside the difference of means",
                partial(probes_figure, values, sites),
            )
        ],
        notes=[BRACKETS, BAND, CHANCE, _NOTE, *same_token_notes(run, sets, labels, position)],
        how_to_read=_HOW_TO_READ,
        headline=_headline(named),
    )


def _named(values: xr.Dataset) -> xr.Dataset:
    """Return each measure of each probe as an array of its own, such as `lda.auroc`, (site, layer, estimate)."""
    performance = values["probe_performance"]
    names = [(probe, measure) for probe in PROBES for measure in MEASURES]
    return values.assign({f"{one}.{other}": performance.sel(probe=one, measure=other) for one, other in names})


def _largest(named: xr.Dataset, statistic: str) -> tuple[int, str]:
    """Return the index of the largest value along depth, and the value with its band and its depth."""
    curve = along_depth(named[statistic])
    best = int(np.nanargmax(curve.values))
    return best, f"{point_text(named, statistic, best, '.3f', band=True)} at {layer_of(curve, best)}"


def _above(named: xr.Dataset, statistic: str) -> str:
    """Return at how many depths the band of a difference lies above 0, and at which."""
    low = along_depth(named[statistic], "band_low")
    many, total = int((low > 0).sum()), int(np.isfinite(low).sum())
    return f"at {many} of {total} depths{in_brackets(depths_text(low > 0)) if many < total else ''}"


def _facts(named: xr.Dataset) -> Iterator[str]:
    for probe, name in NAMES.items():
        best, text = _largest(named, f"{probe}.auroc")
        null = along_depth(named["probe_null"].sel(probe=probe, tested="auroc"))[best]
        tested = f" ({null_text(null)})" if np.isfinite(null.sel(null="p_family")) else ""
        yield f"By {name}, the largest AUROC of held-out prompts is {text}{tested}."
    for measure, control in {BEYOND_MEANS: "the difference of means", BEYOND_WORDS: "token counts"}.items():
        known = {probe: name for probe, name in NAMES.items() if has_values(named, f"{probe}.{measure}")}
        if known:
            counts = ", ".join(f"{_above(named, f'{probe}.{measure}')} by {name}" for probe, name in known.items())
            _, most = _largest(named, f"logistic.{measure}")
            yield (
                f"By simultaneous bands, the AUROC is larger than that of {control} {counts}. By {NAMES['logistic']}, "
                f"the largest difference is {most}."
            )
    best, _ = _largest(named, "logistic.auroc")
    fit = along_depth(named["probe_fit"])[best]
    cosines, penalties = ([float(fit.sel(probe=one, fit=name)) for one in PROBES] for name in ("cosine", "penalty"))
    yield (
        f"At {layer_text(int(fit['depth']))}, fitted on all prompts, logistic regression has a cosine of "
        f"{number(cosines[2], 2)} with the difference of means (ridge {penalties[2]:g}), and the linear discriminant "
        f"one of {number(cosines[1], 2)} (shrinkage {penalties[1]:.2g})."
    )


def _headline(named: xr.Dataset) -> str:
    _, text = _largest(named, "logistic.auroc")
    above = _above(named, f"logistic.{BEYOND_MEANS}").partition(" (")[0]
    if above.startswith("at 0 "):
        return f"The logistic probe is not shown to separate better than the difference of means: largest AUROC {text}."
    return f"The logistic probe separates better than the difference of means {above}: largest AUROC {text}."
