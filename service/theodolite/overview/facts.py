"""What an overview shows of one contrast: its questions, curves along depth, prompts, and what limits all of them."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd
import xarray as xr

from theodolite.drawing.panels import shown_sites
from theodolite.drawing.style import short_site
from theodolite.errors import SpecError, TableNotFoundError
from theodolite.groups.schema import LEVEL, SIDES
from theodolite.groups.separation.record import SCORES
from theodolite.overview.tiles import YES, Measured, Tile, number_text, tiles, words_share
from theodolite.query.curves import along_depth
from theodolite.query.direction_tokens import chance_limit, read_direction_tokens
from theodolite.query.prompts import read_contrast_prompts
from theodolite.query.twin import read_twin
from theodolite.sections.parts import has_common_token, without_spread
from theodolite.sites import HALF_BLOCKS, Site, depth, site_name
from theodolite.spec_parts import Label, NamedPosition
from theodolite.store.manifest import finished_groups, finished_tables, unfinished_groups
from theodolite.store.result_reader import read_contrasts, read_group
from theodolite.store.runs import Run

MOST_MISPLACED = 3
_FEW = 64  # prompts of a set, below which the number of prompts is a warning


@dataclass(frozen=True)
class Badge:
    """A limit of all findings as two or three words; `is_warning` ones go with every sentence that is copied."""

    label: str
    text: str
    is_warning: bool = False


@dataclass(frozen=True)
class Place:
    """One depth of the stream: site and layer."""

    site: str
    layer: int

    @property
    def depth(self) -> int:
        """The depth in half-blocks."""
        return depth(Site(self.site), self.layer)

    @property
    def text(self) -> str:
        """The depth as sentences write it, such as `layer 17 mid`."""
        return f"layer {self.layer} {short_site(self.site)}"


@dataclass(frozen=True)
class Overview:
    """The overview of a contrast.

    Attributes:
        contrast: its name.
        sets: the names of its positive and its negative set.
        position: the token position.
        places: all measured depths in the order of the stream.
        place: the selected depth.
        tiles: the four questions.
        badges: what limits the findings.
        sentence: the finding in at most 25 words.
        measured: the values behind the tiles, for the curves.
        scores: the held-out prompts at the selected depth: `set`, `sample`, `side`, `score`, `margin`, `text`.
        tokens: what the direction raises and lowers at the selected depth, as `read_direction_tokens` returns it.
        chance_limit: the |z| of these tokens that a search over the vocabulary finds by chance; NaN without tokens.
    """

    contrast: str
    sets: tuple[str, str]
    position: Label
    places: list[Place]
    place: Place
    tiles: list[Tile]
    badges: list[Badge]
    sentence: str
    measured: Measured
    scores: pd.DataFrame
    tokens: pd.DataFrame
    chance_limit: float

    @property
    def place_names(self) -> str:
        """All measured depths as one text, such as `resid_pre:0 resid_mid:0`."""
        return " ".join(f"{place.site}:{place.layer}" for place in self.places)

    @property
    def misplaced(self) -> pd.DataFrame:
        """The held-out prompts that lie farthest on the other set's side, at most MOST_MISPLACED."""
        wrong = self.scores[self.scores["margin"] < 0]
        return wrong.sort_values("margin", kind="stable").head(MOST_MISPLACED)


def contrasts_with_overview(run: Run) -> list[str]:
    """Return the contrasts of a run that have an overview: those whose separation was measured at a common position."""
    if "separation" not in finished_groups(run):
        return []
    has_both = read_group(run, "separation")["n_used"].all("prompt_side").any("position")
    return [str(name) for name in has_both["contrast"].values[has_both.values]]


def read_overview(run: Run, contrast: str | None = None, site: str | None = None, layer: int | None = None) -> Overview:
    """Return the overview of a contrast of a finished run.

    Args:
        run: a run with the analysis `separation`.
        contrast: its name; None selects the first one.
        site: site of the selected depth; None selects the depth of the largest value.
        layer: 0-based index of its block.

    Raises:
        SpecError: there is no such contrast or depth.
        ResultsNotFoundError: the run lacks the analysis `separation`.
        RunDamagedError: results cannot be read.
    """
    read_group(run, "separation")  # raises if the run lacks it
    known = contrasts_with_overview(run)
    contrast = contrast or next(iter(known), "")
    if contrast not in known:
        raise SpecError(f"contrast: {run.id} has no {contrast!r} with separation; it has {', '.join(known) or 'none'}")
    sides = read_contrasts(run, finished_groups(run))[contrast]
    sets = (str(sides["positive"]), str(sides["negative"]))
    measured, position = _measured(run, contrast, sets)
    values = measured.separation
    places = places_of(values)
    curve = along_depth(values[measured.statistic])
    place = places[int(np.nanargmax(curve))] if np.isfinite(curve).any() else places[0]
    if site is not None or layer is not None:
        place = Place(site_name(site) if site else place.site, place.layer if layer is None else layer)
        if place not in places:
            raise SpecError(f"layer: {run.id} has no {place.site} of layer {place.layer} with separation")
    answers = tiles(measured)
    tokens = read_direction_tokens(run, contrast, position, place.site, place.layer)
    return Overview(
        contrast=contrast,
        sets=sets,
        position=position,
        places=places,
        place=place,
        tiles=answers,
        badges=list(_badges(run, sets, position, measured, bool(sides["paired"]))),
        sentence=_sentence(sets, measured, answers),
        measured=measured,
        scores=_scores(run, contrast, place, position),
        tokens=tokens,
        chance_limit=float("nan") if tokens.empty else chance_limit(run),
    )


def places_of(values: xr.Dataset) -> list[Place]:
    """Return the depths of statistics in the order of the stream, as `along_depth` returns them."""
    sites, layers = values["site"].values.tolist(), values["layer"].values.tolist()
    return sorted((Place(site, int(layer)) for site in sites for layer in layers), key=lambda place: place.depth)


def _measured(run: Run, contrast: str, sets: tuple[str, str]) -> tuple[Measured, Label]:
    """Return what the questions of a contrast are answered with, at its last position, and this position."""
    finished, separation = finished_groups(run), read_group(run, "separation")
    has_both = separation["n_used"].sel(contrast=contrast).all("prompt_side")
    position: Label = separation["position"].values[has_both.values].tolist()[-1]
    sites = shown_sites(separation)
    if not set(sites) <= set(HALF_BLOCKS):
        sites = sites[:1]  # a line through other sites would be no path of the stream
    values = separation.sel(contrast=contrast, position=position, site=sites)

    def selected(group: str) -> xr.Dataset | None:
        if group not in finished or contrast not in (results := read_group(run, group))["contrast"]:
            return None
        return results.sel(contrast=contrast, position=position)

    is_mean = position in run.record.spec.means
    tests, twin = selected("permutations"), read_twin(run, "separation", contrast=contrast)
    of_twin = twin.get(contrast, {}).get("separation")
    paired = np.isfinite(values["paired_accuracy"]).any()
    measured = Measured(
        statistic="paired_accuracy" if paired else "auroc",
        separation=values,
        tests=None if tests is None else tests.sel(site=sites),
        twin=None if of_twin is None else of_twin.sel(position=position, site=sites),
        effects=None if is_mean else selected("effects"),
        is_trained=run.record.model.weights == "trained",
        places=[place.text for place in places_of(values)],
        unknown=without_spread(run, sets, position, sites),
        unfinished=unfinished_groups(run),
        is_mean=is_mean,
    )
    return measured, position


def _scores(run: Run, contrast: str, place: Place, position: Label) -> pd.DataFrame:
    """Return the held-out scores of both sets at a depth; no rows if the run has none."""
    columns = ["set", "sample", "side", "score", "margin", "text"]
    if SCORES.name not in finished_tables(run):
        return pd.DataFrame(columns=columns)
    try:
        rows = read_contrast_prompts(run, contrast, place.site, place.layer, position).rows
    except (SpecError, TableNotFoundError):
        return pd.DataFrame(columns=columns)
    return rows[columns].dropna(subset=["score"]).reset_index(drop=True)


def _sentence(sets: tuple[str, str], measured: Measured, answers: list[Tile]) -> str:
    """Return the finding in at most 25 words, the names of the sets counted as one each."""
    separable, words, _, used = answers
    subject = " and ".join(sets)
    if separable.glyph is None:
        return f"Nothing can be concluded about {subject}."
    glyph = separable.glyph
    of = "pairs ordered" if measured.statistic == "paired_accuracy" else "AUROC"
    where = separable.number.rpartition(", ")[2]
    interval = f" {glyph.interval}" if glyph.interval else ""
    found = f"{number_text(measured.statistic, glyph.value)} {of}{interval} at {where}"
    beyond = words.claim if separable.answer == YES else ""
    return f"{subject} {separable.claim} ({found}){beyond}{used.claim}."


def _meaning(run: Run, sets: tuple[str, str], position: Label) -> str:
    """Return how a position is found in the prompts of a contrast, as the end of a sentence."""
    found = {name: run.record.spec.position_of(name, position) for name in sets}
    texts = {name: one.meaning for name, one in found.items() if isinstance(one, NamedPosition)}
    if not texts:
        return ", counted from the end with its template"
    if len(set(texts.values())) == 1:
        return f": {texts[sets[0]]}"
    return f": {'; '.join(f'in {name}, {text}' for name, text in texts.items())}"


def _badges(run: Run, sets: tuple[str, str], position: Label, measured: Measured, is_paired: bool) -> Iterator[Badge]:
    n = [int(count) for count in measured.separation["n_used"].sel(prompt_side=list(SIDES)).values]
    size = f"{n[0]} pairs" if is_paired else f"{n[0]} + {n[1]} prompts"
    yield Badge(
        size,
        "The findings hold for these prompts with these templates. Intervals and permutations treat the prompts of a "
        "set (in a paired contrast, the pairs) as independent; prompts that share a topic may not be."
        + f" Fewer than {_FEW} of a set are few: intervals are wide, and worse approximations."
        * (min(n) < _FEW),
        is_warning=min(n) < _FEW,
    )
    last = "last token" if str(position) == "-1" else f"position {position}"
    yield Badge(last, f"All statistics are of position {position} of each prompt{_meaning(run, sets, position)}.")
    if has_common_token(run, sets, position):
        yield Badge("same final token", "All prompts of both sets have the same token at this position.")
    templates = {run.record.sets[name].template for name in sets}
    if len(templates) > 1:
        alone = "The two sets have different templates, which alone can separate them."
        yield Badge("different templates", alone, is_warning=True)
    model = run.record.model
    if model.kind == "gguf" or model.dequantised_from:
        stated = f" from {model.dequantised_from}" if model.dequantised_from else ""
        yield Badge(
            "dequantised weights",
            f"The weights are dequantised{stated}. The model in its original precision can give other numbers.",
        )
    if model.adapter is not None:
        yield Badge("with adapter", f"The weights include the adapter {model.adapter.summary}, merged in float32.")
    if not measured.is_trained:
        yield Badge("random weights", f"This is an untrained model (seed {model.seed}).")
    elif not measured.has_twin:
        yield Badge(
            "no twin",
            "An untrained model may separate the sets too, because their words differ; none was compared.",
            is_warning=True,
        )
    if _words_explain(measured):
        yield Badge(
            f"words explain {'all' if words_share(measured) == 1 else 'part'}",
            "The counts of the tokens alone, which no layer has processed, separate the sets better than chance.",
            is_warning=True,
        )
    if measured.effects is not None:
        tested = measured.effects["n_used"].sel(prompt_side=list(SIDES)).values.tolist()
        yield Badge(
            f"effects: {int(tested[0])} {'pairs' if is_paired else 'prompts'}",
            "The last question is answered with these prompts alone. No text is generated: the probabilities of the "
            "next token are compared with those by control directions.",
        )
    elif "effects" not in measured.unfinished:
        yield Badge("effects not measured", "The findings say what the activations contain, not what the model uses.")


def _words_explain(measured: Measured) -> bool:
    """Return whether token counts alone separate the sets better than chance, by the better classifier."""
    if measured.tests is None:
        return False
    p = measured.tests["tokens_null"].sel(measure=measured.statistic, null="p")
    return bool((p.notnull().sum() * p <= LEVEL).any())  # Bonferroni over the classifiers
