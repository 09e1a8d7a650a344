"""Compare a run with published curves, or a few published points, of the same model.

The numbers are in `theodolite/published/`; each file names its source and its limitations.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from theodolite.groups.schema import ESTIMATE, INTERVAL
from theodolite.query.curves import along_depth
from theodolite.sites import HALF_BLOCKS
from theodolite.spec_parts import Label, PromptSetSpec
from theodolite.store.runs import ModelFacts


@dataclass(frozen=True)
class PublishedCurve:
    """A published statistic of one model at one position.

    Attributes:
        statistic: its name in the analysis `curves`.
        prompt_set: the run's prompt set that it belongs to; None for a statistic of the contrast.
        values: the value at each published depth.
        n_per_set: number of prompts in each set.
        source: authors and publication.
        note: limitations of a comparison.
        accuracy: largest error of a published cosine from its arithmetic.
        prompts: selection of the source's prompts, by `harmful` and `harmless`; empty if it is not known.
    """

    statistic: str
    prompt_set: str | None
    values: dict[int, float]
    n_per_set: int
    source: str
    note: str
    accuracy: float = 0.0
    prompts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class SelectedDirection:
    """The layer whose input gave a publication's refusal direction, at one position."""

    layer: int
    source: str


@dataclass(frozen=True)
class Deviation:
    """The depth at which a run differs most from a publication, with both values."""

    depth: int
    measured: float
    published: float

    @property
    def difference(self) -> float:
        """The run's value minus the published one."""
        return self.measured - self.published

    @property
    def share(self) -> float:
        """The difference as a share of the published value."""
        return self.difference / self.published


@dataclass(frozen=True)
class Expected:
    """A run's prediction of a statistic for the source's number of prompts, its 95 % interval, and the published value.

    The interval contains the source's accuracy.
    """

    depth: int
    value: float
    low: float
    high: float
    published: float

    @property
    def is_inside(self) -> bool:
        """Whether the published value lies in the interval."""
        return self.low <= self.published <= self.high

    @property
    def distance(self) -> float:
        """The distance of the published value from the prediction, in half widths of the interval."""
        return abs(self.published - self.value) / max((self.high - self.low) / 2, np.finfo(float).tiny)


def published_curves(model: ModelFacts, positive: str, negative: str, position: Label) -> list[PublishedCurve]:
    """Return the published curves of a model at a position, for a contrast of harmful with harmless prompts.

    A model matches by its hub id, ignoring case, or by the name of its local folder. Random weights never match. A set
    matches by its name, or by the part of its name before the first hyphen, as in `harmful-16`.
    """
    names = {"harmful": positive, "harmless": negative, None: None}
    return [
        PublishedCurve(
            statistic=entry["statistic"],
            prompt_set=names[entry.get("set")],
            values={_depth(label): float(value) for label, value in entry["values"].items()},
            n_per_set=entry["n_per_set"],
            source=file["source"],
            note=file["note"],
            accuracy=file.get("cosine_accuracy", 0.0),
            prompts=file.get("prompts", {}),
        )
        for file, entry in _matching("curves", model, positive, negative, position)
    ]


def selected_directions(model: ModelFacts, positive: str, negative: str, position: Label) -> list[SelectedDirection]:
    """Return the published choices of a direction, matched as in `published_curves`."""
    matching = _matching("selected_directions", model, positive, negative, position)
    return [SelectedDirection(entry["layer"], file["source"]) for file, entry in matching]


def has_same_prompts(published: PublishedCurve, positive: PromptSetSpec, negative: PromptSetSpec) -> bool:
    """Return whether a run's two prompt sets select the source's own prompts."""
    sides = {"harmful": positive, "harmless": negative}
    return bool(published.prompts) and all(
        own["source"] in sides[name].source
        and own == {"source": own["source"], **sides[name].model_dump(include=set(own) - {"source"})}
        for name, own in published.prompts.items()
    )


def expected_values(curves: xr.Dataset, published: PublishedCurve, contrast: str, position: Label) -> list[Expected]:
    """Return the run's predictions of a published plain cosine, by ascending depth.

    The list is empty for other statistics, and for numbers of prompts without predictions.
    """
    name = f"{published.statistic}_expected"
    if name not in curves or published.n_per_set not in curves["n_prompts"]:
        return []
    at = {"contrast": contrast, "position": position, "n_prompts": published.n_per_set}
    value, low, high = (_by_depth(curves[name].sel({**at, ESTIMATE: end})) for end in INTERVAL)
    margin = published.accuracy
    return [
        Expected(depth, value[depth], low[depth] - margin, high[depth] + margin, published.values[depth])
        for depth in value
        if depth in published.values and np.isfinite(low[depth])
    ]


def measured_values(curves: xr.Dataset, published: PublishedCurve, contrast: str, position: Label) -> dict[int, float]:
    """Return the run's values of a published statistic by depth, from the analysis `curves`."""
    of = {"contrast": contrast} if published.prompt_set is None else {"set": published.prompt_set}
    return _by_depth(curves[published.statistic].sel({**of, "position": position, "space": "raw"}))


def _by_depth(values: xr.DataArray) -> dict[int, float]:
    """Return the values of a statistic, (site, layer), at the inputs and the middles of blocks, by depth."""
    sites = [site for site in values["site"].values.tolist() if site in HALF_BLOCKS]
    curve = along_depth(values.sel(site=sites))
    return dict(zip(curve["depth"].values.astype(int).tolist(), curve.values.tolist(), strict=True))


def largest_deviation(measured: Mapping[int, float], published: PublishedCurve, *, relative: bool) -> Deviation | None:
    """Return the largest deviation of a run's values, by depth, from a published curve; None if they share no depth.

    If `relative`, differences are shares of the published value, and published zeros are left out.
    """
    deviations = [
        Deviation(depth, value, published.values[depth])
        for depth, value in measured.items()
        if depth in published.values and np.isfinite(value) and not (relative and published.values[depth] == 0)
    ]
    return max(deviations, key=lambda one: abs(one.share if relative else one.difference), default=None)


def _is_model(model: ModelFacts, hub_id: str) -> bool:
    """Return whether a run's model has this hub id, and its weights; those of a GGUF file or with an adapter differ."""
    if model.weights == "random" or model.adapter is not None:
        return False
    if model.kind == "hub":
        return model.place.lower() == hub_id.lower()
    return model.kind == "folder" and model.name.lower() == hub_id.split("/")[-1].lower()


def _depth(label: str) -> int:
    layer, _, step = label.partition("-")
    return 2 * int(layer) + ("pre", "mid").index(step)


def _matching(
    kind: str, model: ModelFacts, positive: str, negative: str, position: Label
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield each entry of a kind for a model, contrast and position, after its file."""
    # All sources compare harmful with harmless prompts, so only contrasts of sets with these names are compared.
    if [name.partition("-")[0] for name in (positive, negative)] == ["harmful", "harmless"]:
        for file in _files():
            for entry in file.get(kind, []):
                if _is_model(model, entry["model"]) and str(entry["position"]) == str(position):
                    yield file, entry


@cache
def _files() -> Sequence[dict[str, Any]]:
    files = sorted((Path(__file__).parents[1] / "published").glob("*.json"))
    return [json.loads(file.read_text(encoding="utf-8")) for file in files]
