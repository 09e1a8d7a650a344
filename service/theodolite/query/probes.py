"""Fit probes on the stored activations of a run, with labels of one's own; `theodolite_jobs` has the formulas."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal

import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import ArrayLike, NDArray

from theodolite.errors import RunDamagedError, SpecError, choices_text, one_line
from theodolite.groups.schema import INTERVAL
from theodolite.query.activations import read_activations, usable_positions
from theodolite.query.group_selection import select_direction
from theodolite.sites import Site, site_name
from theodolite.spec_parts import Label
from theodolite.store.manifest import finished_groups
from theodolite.store.prompts import read_prompts
from theodolite.store.result_reader import read_contrasts
from theodolite.store.runs import Run

Kind = Literal["logistic", "lda", "mean_difference"]
Classes = Literal["one_against_rest", "multinomial"]
_KINDS = ("logistic", "lda", "mean_difference")
_CLASSES = ("one_against_rest", "multinomial")

FOLDS, LEAST = 5, 10
"""The number of folds, and the smallest number of prompts of a class."""


@dataclass(frozen=True, eq=False)
class Probe:
    """A probe of two or more classes at one site, layer and position.

    Attributes:
        kind: `logistic`, `lda` or `mean_difference`.
        classes: `one_against_rest` or `multinomial`.
        place: `site`, `layer` and `position`.
        scores: one row for each prompt: `set`, `sample`, `label`, `predicted`, and its held-out score for each class:
            the log of the odds if all classes are equally frequent, for `mean_difference` the distance to the midpoint
            of the means along their difference, in units of the residual stream.
        accuracy: the share of held-out prompts whose class is predicted: `value`, `low` and `high` of the 95 %
            interval, and `p` against permuted labels.
        auroc: the same for the AUROC of each class against all others.
        directions: the unit vector of each class, (class, d_model), fitted on all prompts.
        fit: for each class the `length` and the `offset` of its score, length·(x·direction) - offset, or with
            `multinomial` of its discriminant, the largest of which is predicted; the `penalty` (the ridge of logistic,
            the shrinkage of lda); and `gap`, the distance along the direction between the means of the class and of
            all others, in units of the residual stream. x is winsorised if the probe is.
    """

    kind: str
    classes: str
    place: dict[str, Any]
    accuracy: "pd.Series[float]"
    auroc: pd.DataFrame
    fit: pd.DataFrame
    scores: pd.DataFrame = field(repr=False)
    directions: xr.DataArray = field(repr=False)

    @property
    def direction(self) -> NDArray[np.float64]:
        """The unit vector of the second of two classes, (d_model): from `negative` to `positive`, from 0 to 1."""
        if len(self.directions) != 2:
            names = ", ".join(map(repr, self.directions["class"].values.tolist()))
            raise SpecError(f"direction: the probe has more than two classes; choose one of {names} from `directions`")
        return np.array(self.directions[1].values)


@dataclass(frozen=True)
class _Prompts:
    """The chosen prompts: where each is, its label and its fold, and whether those of two classes are pairs."""

    table: pd.DataFrame
    samples: NDArray[np.float64]
    paired: bool


def read_probe(
    run: Run,
    contrast: str | None,
    sets: Sequence[str],
    labels: str | Sequence[Any] | None,
    site: str,
    layer: int,
    position: Label | None,
    *,
    kind: str,
    classes: str,
    permutations: int,
    winsorise: float | None,
    orthogonal_to: str | ArrayLike | None,
) -> Probe:
    """Return a probe; arguments and errors are those of `RunReader.probe`."""
    for name, given, allowed in (("kind", kind, _KINDS), ("classes", classes, _CLASSES)):
        if given not in allowed:
            raise SpecError(f"{name}: given {given!r}; allowed: {', '.join(allowed)}")
    joint = classes == "multinomial"
    if joint and kind == "mean_difference":
        raise SpecError("classes: given 'multinomial' for mean_difference; allowed: one_against_rest")
    if not 0 <= permutations <= 10_000:
        raise SpecError(f"permutations: given {permutations}; allowed: 0 to 10000")
    if not find_spec("scipy"):
        raise ImportError("run.probe needs packages that are not installed: pip install 'theodolite[jobs]'")
    prompts = _prompts(run, contrast, sets, labels, site, layer, position)
    names = _class_names(prompts.table)
    codes = np.array([names.index(label) for label in prompts.table["label"]])
    samples = _without(_winsorised(prompts.samples, winsorise), _vectors(run, prompts, orthogonal_to, site, layer))
    if not (samples != samples[0]).any():
        raise SpecError("labels: all prompts have the same activations there, so no probe can be fitted")
    formulas = import_module("theodolite_jobs.groups.probes.formulas_classes")
    folds = prompts.table["fold"].to_numpy()
    found = formulas.fit_classes(
        samples, codes, folds, kind=kind, joint=joint, paired=prompts.paired, draws=permutations
    )
    lengths = np.linalg.norm(found.vectors, axis=1)
    if not np.isfinite(lengths).all() or not lengths.all():
        raise SpecError("labels: the means of the classes are equal there, so no probe can be fitted")
    directions = found.vectors / lengths[:, None]
    along = samples @ directions.T
    gaps = [along[codes == row, row].mean() - along[codes != row, row].mean() for row in range(len(names))]
    index, columns = pd.Index(names, name="class"), [*INTERVAL, "p"]
    predicted = [names[code] for code in found.predicted]
    if isinstance(orthogonal_to, str):  # a vector of all prompts, so none is held out
        found = found._replace(
            **{name: getattr(found, name) * np.nan for name in ("accuracy", "auroc", "null", "scores")}
        )
        predicted = [None] * len(predicted)
    table = prompts.table.drop(columns="fold").assign(predicted=predicted)
    return Probe(
        kind,
        classes,
        {"site": site_name(site), "layer": layer, "position": prompts.table.attrs["position"]},
        pd.Series(np.append(found.accuracy, found.null[-1, 3]), columns, name="accuracy"),
        pd.DataFrame(np.column_stack([found.auroc, found.null[:-1, 3]]), index, columns),
        pd.DataFrame({"length": lengths, "offset": found.offsets, "penalty": found.chosen, "gap": gaps}, index),
        table.assign(**{f"score {name}": row for name, row in zip(names, found.scores, strict=True)}),
        xr.DataArray(directions, {"class": names}, ("class", "d_model"), name="direction"),
    )


def _prompts(
    run: Run,
    contrast: str | None,
    sets: Sequence[str],
    labels: str | Sequence[Any] | None,
    site: str,
    layer: int,
    position: Label | None,
) -> _Prompts:
    """Return the chosen prompts that are not quarantined, with their activations."""
    paired = False
    if contrast is not None:
        known = read_contrasts(run, finished_groups(run))
        if contrast not in known:
            raise SpecError(f"contrast: there is no {contrast!r}; {choices_text(contrast, list(known))}")
        if sets or labels is not None:
            raise SpecError("contrast: given with set or labels; give a contrast, or sets with labels")
        sets, paired = [known[contrast][side] for side in ("negative", "positive")], known[contrast]["paired"]
    if not sets:
        raise SpecError("set: neither a contrast nor a set is given; name a contrast, or a set with labels")
    if unknown := [name for name in sets if name not in run.record.sets]:
        raise SpecError(f"set: there is no {unknown[0]!r}; {choices_text(unknown[0], list(run.record.sets))}")
    if position is None:
        of_sets = [run.record.sets[name].positions for name in sets]
        common = [one for one in of_sets[0] if all(one in of_set for of_set in of_sets)]
        position = common[-1] if common else -1
    layers = [] if site_name(site) == Site.RESID_FINAL else [layer]
    frames, samples, usable_of = [], [], []
    for name in sets:
        activations = read_activations(run, name, site, layers, [position])
        if layers and not run.record.has_site(Site(site_name(site)), layer):
            reason = run.record.partial_sites[Site(site_name(site))].reason
            raise SpecError(f"layer: given {layer}, which has no {site_name(site)}: {reason}")
        usable_of.append(usable_positions(run, name, [position])[:, 0])
        frames.append(read_prompts(run, name).iloc[: len(activations)].assign(set=name))
        samples.append(activations.values.reshape(len(activations), -1).astype(np.float64))
    table = pd.concat(frames, ignore_index=True)
    table["label"] = _labels(table, contrast, labels)
    # As in `separation` for a contrast; labels of one's own may follow the folds, so each class is divided. Its prompts
    # with the same index in several sets can be pairs, so they share a fold.
    of_class = table.groupby("label")["sample"].rank("dense").astype(int) - 1
    table["fold"] = (table["sample"] if contrast else of_class) % FOLDS
    usable = np.concatenate(usable_of)
    if paired:
        first, second = usable_of
        n = min(len(first), len(second))
        both = first[:n] & second[:n]
        usable = np.concatenate([np.append(both, first[n:] & False), np.append(both, second[n:] & False)])
    samples_of = np.concatenate(samples)[usable]
    if not np.isfinite(samples_of).all():
        raise RunDamagedError(f"{run.id}: activations are not finite; run `theodolite run verify {run.id} --repair`")
    chosen = table.loc[usable, ["set", "sample", "label", "fold"]].reset_index(drop=True)
    chosen.attrs["position"] = position
    return _Prompts(chosen, samples_of, paired)


def _labels(table: pd.DataFrame, contrast: str | None, labels: str | Sequence[Any] | None) -> list[Any]:
    """Return the label of each stored prompt."""
    if contrast is not None:
        is_first = table["set"] == table["set"].iloc[0]
        return ["negative" if one else "positive" for one in is_first]
    if labels is None:
        return table["set"].tolist()
    if isinstance(labels, str):
        if labels not in table:
            raise SpecError(f"labels: prompts have no column {labels!r}; {choices_text(labels, list(table.columns))}")
        return list(table[labels])
    given: list[Any] = pd.Series(list(labels)).tolist()
    if len(given) != len(table):
        raise SpecError(f"labels: {len(given)} given for {len(table)} stored prompts; give one for each, in order")
    if missing := [index for index, label in enumerate(given) if pd.isna(label)]:
        raise SpecError(f"labels: {len(missing)} are missing, the first that of prompt {missing[0]}; give each a label")
    return given


def _class_names(table: pd.DataFrame) -> list[Any]:
    """Return the classes in ascending order, after a check of their numbers of prompts."""
    counts = table["label"].value_counts()
    if counts.empty:
        raise SpecError("set: no prompt has usable activations at this position; choose another position")
    if len(counts) < 2:
        only = ", ".join(map(repr, counts.index))
        raise SpecError(f"labels: all prompts have the label {only}; a probe needs two classes or more")
    few = counts.index[-1]
    folds = table.groupby("label")["fold"].nunique()
    if counts.iloc[-1] < LEAST or folds.min() < FOLDS:
        raise SpecError(
            f"labels: the class {few!r} has {counts.iloc[-1]} usable prompts; each needs at least {LEAST}, in all folds"
        )
    return sorted(counts.index.tolist(), key=lambda label: (isinstance(label, str), label))


def _winsorised(samples: NDArray[np.float64], quantile: float | None) -> NDArray[np.float64]:
    """Return samples whose features are limited to the quantile of the absolute values of the same sample."""
    if quantile is None:
        return samples
    if not 0 < quantile <= 1:
        raise SpecError(f"winsorise: given {quantile}; allowed: a quantile above 0, up to 1")
    limits = np.quantile(np.abs(samples), quantile, axis=1, keepdims=True)
    return np.clip(samples, -limits, limits)


def _vectors(
    run: Run, prompts: _Prompts, given: str | ArrayLike | None, site: str, layer: int
) -> NDArray[np.float64] | None:
    """Return the vectors that the probe shall be orthogonal to, (vector, d_model)."""
    if given is None:
        return None
    if isinstance(given, str):
        labels = prompts.table["label"].to_numpy()
        if (of_class := labels == given).any():
            return np.asarray(prompts.samples[of_class].mean(axis=0, keepdims=True))
        return np.array(select_direction(run, given, site, layer, prompts.table.attrs["position"]).values)[None]
    width = prompts.samples.shape[1]
    try:
        vectors = np.atleast_2d(np.asarray(given, np.float64))
    except (TypeError, ValueError) as error:
        raise SpecError(f"orthogonal_to: no array of numbers: {one_line(error)}") from error
    if vectors.shape != (len(vectors), width) or not np.isfinite(vectors).all() or not vectors.any(axis=1).all():
        raise SpecError(f"orthogonal_to: given the shape {np.shape(given)}; allowed: finite vectors of {width} numbers")
    return vectors


def _without(samples: NDArray[np.float64], vectors: NDArray[np.float64] | None) -> NDArray[np.float64]:
    """Return samples without their parts along vectors."""
    if vectors is None:
        return samples
    basis = np.linalg.svd(vectors, full_matrices=False)[2][: np.linalg.matrix_rank(vectors)]
    return np.asarray(samples - samples @ basis.T @ basis)
