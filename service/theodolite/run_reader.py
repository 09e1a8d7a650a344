"""Read the runs of a store in a notebook; `theodolite.client` reads those of a service with the same code."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import asdict
from html import escape
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal
from warnings import warn

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import xarray as xr
from numpy.typing import ArrayLike, NDArray

from theodolite.activation_files import export_activations
from theodolite.drawing.pictures import Width, one_panel, save_picture
from theodolite.drawing.titles import titled
from theodolite.errors import ResultsNotFoundError, SpecError, TheodoliteError
from theodolite.export import check_format, encode_directions, file_name, write_files
from theodolite.groups import GROUPS, Group, Variable
from theodolite.overview.view import Picture, read_picture
from theodolite.query.activations import read_activations
from theodolite.query.batches import read_batches
from theodolite.query.compare import Question, milestones, records
from theodolite.query.curves import curve_dataset, curve_frame, is_along_depth, name_at, select_curves
from theodolite.query.directions import RELIABLE
from theodolite.query.group_selection import GROUP_LABELS, label_list, select_direction, select_group
from theodolite.query.heads import Head, head_atlas, read_head
from theodolite.query.probes import Classes, Kind, Probe, read_probe
from theodolite.query.prompts import Order, read_prompt_path, read_scored_prompts
from theodolite.query.runs import describe_results, run_id_of, run_state, select_summaries, summaries
from theodolite.sections.catalogue import draw_figure, section_items, shown_groups
from theodolite.sections.conclusion import read_conclusion
from theodolite.sites import site_name
from theodolite.spec_parts import Label
from theodolite.store.cache import Cache
from theodolite.store.manifest import finished_groups
from theodolite.store.objects import absolute
from theodolite.store.result_reader import read_contrasts, read_finished_table
from theodolite.store.runs import Run
from theodolite.store.runs import open_run as open_stored_run

__all__ = ["CACHE_BYTES", "Head", "Labels", "RunReader", "html_table", "open_run", "run_table", "runs", "with_numbers"]

CACHE_BYTES = 48 * 2**20
"""Default size of the cache of a run's results, in bytes."""

Labels = str | int | Sequence[str] | Sequence[int] | None
"""One label, several, or None for all; one label drops its dimension, as xarray's `sel` does."""


_ONE = str | int | np.generic

_QUESTIONS = ("separable", "beyond_words", "beyond_untrained", "used")
"""The names of the tiles of an overview among the numbers of a run."""


def runs(
    store: str | Path, model: str | None = None, contrast: str | None = None, *, numbers: bool = False
) -> pd.DataFrame:
    """Return the complete runs of a store as a table, newest first, one row each.

    A run without results, or one that cannot be read, is left out; `theodolite run list` lists these too.

    Args:
        store: a folder, or a file://, s3://, gs:// or az:// URL.
        model: only models whose name contains this text, ignoring case.
        contrast: only runs with this contrast.
        numbers: whether the table has a row for each contrast of a run, with the numbers of `RunReader.numbers`; it
            takes seconds for each run.

    Raises:
        StoreError: the store cannot be reached.
    """
    url = absolute(str(store))
    table = run_table(select_summaries(summaries(url), model, contrast))
    return with_numbers(table, lambda run_id: open_run(url, run_id)) if numbers else table


def open_run(store: str | Path, run_id: str, *, cache_bytes: int = CACHE_BYTES) -> "RunReader":
    """Return a run of a store, without a service.

    Args:
        store: a folder, or a file://, s3://, gs:// or az:// URL.
        run_id: the run's id, or a name that only one run has.
        cache_bytes: size of the cache of results.

    Raises:
        RunNotFoundError: the run does not exist; the message lists the existing runs.
        StoreError: the store cannot be reached, or another version wrote the run.
    """
    url = absolute(str(store))
    return RunReader(open_stored_run(url, run_id_of(url, run_id), Cache(cache_bytes)))


def run_table(items: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return short descriptions of runs as a table, one row each."""
    columns = ["run_id", "name", "tags", "model", "sets", "contrasts", "analyses", "state", "created"]
    frame = pd.DataFrame(items, columns=columns)
    return frame.assign(created=pd.to_datetime(frame["created"], utc=True))


def with_numbers(table: pd.DataFrame, open_it: Callable[[str], "RunReader"]) -> pd.DataFrame:
    """Return a table of runs with a row for each contrast and its numbers; those of an unreadable run are missing."""
    rows: list[dict[Any, Any]] = []
    for run_id in table["run_id"]:
        with suppress(TheodoliteError):
            rows += open_it(run_id).numbers().to_dict("records")
    return table.merge(pd.DataFrame(rows, columns=None if rows else ["run_id", "contrast"]), "left", "run_id")


def _names(group: Group, variable: Variable) -> Iterator[tuple[str, list[str], bool]]:
    """Yield the names of an array and of its curves, their dimensions, and whether they are curves along depth."""
    places = list(group.places(variable.dims)) if is_along_depth(group, variable) else []
    curves = {name_at(variable.name, at): [dim for dim in variable.dims if dim not in at] for at in places}
    for name, dims in {variable.name: [*variable.dims], **curves}.items():
        yield name, dims, name in curves


class RunReader:
    """The results of one run, from a store or from a service.

    Callers own the returned objects: changing them changes no cache.
    """

    def __init__(self, run: Run) -> None:
        self.id, self.url, self._opened = run.id, run.store, run

    @property
    def _run(self) -> Run:
        return self._opened.refreshed()

    def __repr__(self) -> str:
        run, record = self._run, self._run.record
        with suppress(TheodoliteError):  # a damaged run has a name nevertheless
            finished = finished_groups(run)
            rows = {
                "model": record.model.name,
                "state": run_state(run) if finished else "without results",
                "sets": ", ".join(f"{name} {facts.n_samples}" for name, facts in record.sets.items()),
                "sites": ", ".join(map(str, record.spec.capture.all_sites)) if record.sets else "",
                "layers": label_list(record.layers),
                "contrasts": ", ".join(read_contrasts(run, finished)),
            }
            known = "".join(f"\n  {name:9}  {text}" for name, text in rows.items() if text)
            return f"<RunReader {self.id} of {self.url}{known}>"
        return f"<RunReader {self.id} of {self.url}>"

    def _repr_html_(self) -> str:
        about = self.describe()
        picture = ""
        if "separation" in about["results"]:
            with suppress(TheodoliteError):  # the table alone is better than no answer
                picture = self.overview()._repr_html_()
        model = about["model"]
        rows = {
            "model": f"{model['name']}: {model['n_layers']} layers, d_model {model['d_model']}, {model['dtype']}",
            "prompts": ", ".join(f"{facts['n_samples']} {name}" for name, facts in about["sets"].items()),
            "contrasts": ", ".join(about["contrasts"]),
            "results": ", ".join(about["results"]),
            "state": about["state"],
            "from": self.url,
        }
        return html_table(self.id, rows) + picture

    def __dir__(self) -> list[str]:
        """Return the names that a caller uses."""
        return [name for name in super().__dir__() if not name.startswith("_")]

    def describe(self) -> dict[str, Any]:
        """Return the run's full description: spec, model, sets, parity certificate, results."""
        return deepcopy(describe_results(self._run))

    def statistics(self) -> pd.DataFrame:
        """Return the run's statistics as a table, one row each.

        The columns are `group`, `statistic`, `dims`, `units`, `description`, and `along_depth`: `curves` returns these.
        The curves of an array with axes have rows of their own, such as `variance_mean@space=sphere`.
        """
        rows = [
            {
                "group": name,
                "statistic": statistic,
                "dims": ", ".join(dims),
                "units": variable.units,
                "description": variable.description,
                "along_depth": along_depth,
            }
            for name in self.describe()["results"]
            if name in GROUPS  # another version may have written others
            for variable in GROUPS[name].variables
            for statistic, dims, along_depth in _names(GROUPS[name], variable)
        ]
        return pd.DataFrame(rows)

    def labels(self) -> dict[str, list[Any]]:
        """Return the labels that `curves` and `group` accept: `set`, `contrast`, `site`, `position` and `layer`."""
        about = self.describe()
        labels = {"set": [], "contrast": about["contrasts"], "site": [], "position": [], "layer": []}
        if "moments" in about["results"]:  # not in a survey of the weights alone
            measured = self.curves("norm_mean")
            labels |= {dim: measured[dim].values.tolist() for dim in ("set", "site", "position", "layer")}
        return labels

    def curves(
        self,
        statistic: str = "cosine_of_means_debiased",
        *,
        set: Labels = None,
        contrast: Labels = None,
        site: Labels = None,
        position: Labels = None,
    ) -> xr.Dataset:
        """Return one statistic along depth: `value`, and `low` and `high` if it has a 95 % interval.

        The dimensions are (set or contrast, site, position, layer); one label instead of a list drops its dimension.
        Further coordinates are `depth` in half-blocks (0-pre is 0, 0-mid is 1) and the numbers of prompts.

        Raises:
            SpecError: there is no such statistic or label; the message lists the existing ones.
            ResultsNotFoundError: the run lacks the analysis.
        """
        given = {"set": set, "contrast": contrast, "site": site, "position": position}
        dataset = curve_dataset(select_curves(self._run, [statistic], _label_lists(given)))
        return _without_single(dataset, given)

    def curves_frame(
        self,
        statistic: str | Sequence[str] = (),
        *,
        set: Labels = None,
        contrast: Labels = None,
        site: Labels = None,
        position: Labels = None,
    ) -> pd.DataFrame:
        """Return several statistics as one flat table, one row for each point; no names select the analysis `curves`.

        Raises as `curves` does.
        """
        given = {"set": set, "contrast": contrast, "site": site, "position": position}
        frame = curve_frame(select_curves(self._run, _listed(statistic), _label_lists(given)))
        return frame.astype({"value": float, "low": float, "high": float})

    def direction(self, contrast: str, site: str, layer: int, position: Label | None = None) -> NDArray[np.float64]:
        """Return the unit vector from the mean of a contrast's negative set to that of its positive set, (d_model).

        Args:
            contrast: name of the contrast.
            site: site in the block, such as `resid_pre`.
            layer: 0-based index of the block.
            position: token position from the end, or its name; None selects the last measured one.

        Raises:
            SpecError: there is no such contrast, site, layer or position, or the two means are equal at it.
        """
        return np.array(select_direction(self._run, contrast, site, layer, position).values, np.float64)

    def export(
        self,
        contrast: str,
        site: str = "resid_pre",
        *,
        layer: int | Sequence[int] | None = None,
        position: Label | None = None,
        format: str = "safetensors",
        output: str | Path | None = None,
    ) -> Path:
        """Write a contrast's directions and their scale to a file and return its path.

        The vectors have unit length. The metadata states the factors that give them the length of the difference of the
        means, the norms of the stream, and how reliable they are. NAME.npy gets its metadata in NAME.npy.json. A
        direction with a reliability below 0.5 gives a warning.

        Args:
            contrast: name of the contrast, or several with commas between them: npy is then (contrast, layer, d_model),
                and safetensors has `CONTRAST.direction.LAYER`, at the layers that all of them have.
            site: site in the block.
            layer: 0-based index of the block, or several. By default all that have a direction, and for gguf and
                vllm-lens all of these that the tool can apply.
            position: token position from the end, or its name; None selects the last measured one.
            format: safetensors, npy, gguf (a control vector of llama.cpp and repeng), vllm-lens (a `SteeringVector` as
                JSON, with the length of the difference of the means), or json (only the metadata).
            output: the file. By default `RUN.CONTRAST.SITE.LAYER.FORMAT` in the working folder, with LAYER if one was
                requested.

        Raises:
            SpecError: there is no such format, contrast, site, layer or position, the means are equal at it, llama.cpp
                cannot apply a vector at the site, or the file cannot be written.
        """
        check_format(format)
        layers = _listed(layer)
        path = Path(output or file_name(self.id, contrast, site, layers, format))
        write_files(path, format, lambda kind: self._export(contrast, site, layers, position, kind))
        facts = json.loads(self._export(contrast, site, layers, position, "json"))
        for name, of_contrast in (facts if "," in contrast else {contrast: facts}).items():
            reliability = zip(of_contrast["layer"], of_contrast["reliability"], strict=True)
            if weak := [str(at) for at, value in reliability if value is not None and value < RELIABLE]:
                warn(f"{name}: mostly noise at layer {', '.join(weak)} (reliability below 0.5)", stacklevel=2)
        return path

    def activations(
        self, set: str, site: str = "resid_pre", *, layer: Labels = None, position: Labels = None
    ) -> xr.DataArray:
        """Return the stored activations of a prompt set, (sample, position, layer, d_model), float32, lazily.

        `.values` is NumPy; with Dask installed, a chunk has one or more shards. `position` and `layer` are dimensions
        only if they have several labels or were given as a list, such as `position=[-1]`. The layers of a shard are
        read, and compared with their checksums, when a value of them is needed. Coordinates are the `text`, the
        `status` and the `token_id`. Prompts whose status is `quarantined`, positions before a prompt's first token
        (`token_id` -1), and layers without the site are NaN. A service sends activations
        to tokens with the scope `activations`.

        Args:
            set: name of the prompt set.
            site: site in the block, or `resid_final`.
            layer: 0-based index of the block, or several.
            position: token position from the end, or its name, or several.

        Raises:
            SpecError: there is no such set, site, layer or position.
            ResultsNotFoundError: the run stores no activations of the set.
            ServiceError: a service does not send them to this token.
            RunDamagedError: when values are read: a shard differs from its commit record.
        """
        found = read_activations(self._run, set, site, _listed(layer), _listed(position))
        given = {"layer": layer, "position": position}
        as_list = [dim for dim, labels in given.items() if labels is not None and np.ndim(labels)]
        return found.isel({dim: 0 for dim in ("layer", "position") if found.sizes.get(dim) == 1 and dim not in as_list})

    def export_activations(
        self,
        set: str,
        site: str = "resid_pre",
        *,
        layer: int | Sequence[int] | None = None,
        position: Labels = None,
        to: str = "arrow",
        output: str | Path | None = None,
    ) -> str:
        """Write stored activations as files for other tools, and return the folder or the URL.

        A repeated call writes what is missing or damaged. The files are those of `theodolite.activation_files`, and
        SHA256SUMS has their checksums.

        Args:
            set: name of the prompt set.
            site: site in the block, or `resid_final`.
            layer: 0-based index of the block, or several; None selects all.
            position: token position from the end, or its name, or several; None selects all stored ones.
            to: arrow (a dataset of Hugging Face's `datasets`), safetensors, or npy.
            output: a folder, or a file://, s3://, gs:// or az:// URL. By default the folder `RUN.SET.SITE.TO`.

        Raises:
            SpecError: there is no such set, site, layer, position or format, or the output holds something else.
            ResultsNotFoundError: the run stores no activations of the set, or no prompt has all of the positions.
            ServiceError: a service does not send them to this token.
            RunDamagedError: a shard differs from its commit record.
        """
        target = absolute(str(output or f"{self.id}.{set}.{site_name(site)}.{to}"))
        export_activations(self._run, set, site, _listed(layer), _listed(position), to, target)
        return target

    def batches(
        self,
        set: str,
        site: str = "resid_pre",
        layer: int | None = None,
        size: int = 256,
        seed: int = 0,
        *,
        position: Label | None = None,
        start: int = 0,
        kind: Literal["numpy", "torch"] = "numpy",
    ) -> Iterator[Any]:
        """Return an iterator over the stored activations of a set, shuffled, in batches of (size, d_model), float32.

        Each vector comes once, and the last batch may be smaller. The same seed gives the same batches, also from a
        service. Shards in random order are read in blocks of 128 MiB, of which at most three are in memory, and whose
        vectors are shuffled. Quarantined prompts, and positions before a prompt's first token, are left out. Those of
        `head_out` are (size, head, d_head).

        Args:
            set: name of the prompt set.
            site: site in the block, or `resid_final`, which has no layer.
            layer: 0-based index of the block.
            size: number of vectors in a batch.
            seed: seed of the order.
            position: token position from the end, or its name; None gives the vectors of all stored positions.
            start: number of batches to leave out, to resume: the blocks before them are not read.
            kind: arrays of NumPy, or tensors of torch, on the CPU.

        Raises:
            SpecError: there is no such set, site, layer or position, or torch is not installed.
            ResultsNotFoundError: the run stores no activations of the set.
            ServiceError: a service does not send them to this token.
            RunDamagedError: when a batch is read: a shard differs from its commit record.
        """
        if kind not in ("numpy", "torch"):
            raise SpecError(f"kind: given {kind!r}; allowed: numpy, torch")
        if kind == "torch" and not find_spec("torch"):
            raise SpecError("kind: given 'torch', which is not installed; run: pip install torch")
        found = read_batches(self._run, set, site, layer, size, seed, position, start)
        return map(import_module("torch").from_numpy, found) if kind == "torch" else found

    def probe(
        self,
        contrast: str | None = None,
        *,
        layer: int,
        site: str = "resid_pre",
        position: Label | None = None,
        set: str | Sequence[str] = (),
        labels: str | Sequence[Any] | None = None,
        kind: Kind = "logistic",
        classes: Classes = "one_against_rest",
        permutations: int = 0,
        winsorise: float | None = None,
        orthogonal_to: str | ArrayLike | None = None,
    ) -> Probe:
        """Return a probe that is fitted on stored activations, with held-out scores and its directions.

        Each prompt is scored by a fit on four other folds; nested folds choose the ridge. The folds of a contrast are
        those of `separation`; with labels, prompts of a class with the same index in several sets share a fold. Time
        grows with the square of the number of prompts. It needs `theodolite[jobs]`.

        Args:
            contrast: a contrast, whose classes are `negative` and `positive`; if it is paired, so are the intervals.
            layer: 0-based index of the block.
            site: site in the block.
            position: token position from the end, or its name; None selects the last one that all sets have.
            set: without a contrast: a prompt set, or several.
            labels: the class of each stored prompt of these sets, in their order, or a stored column, such as
                `n_tokens`. None takes the sets as classes.
            kind: `logistic` (the ridge is chosen by nested folds), `lda` (linear discriminants with the shrinkage of
                Ledoit and Wolf) or `mean_difference`.
            classes: each class against the rest, or one multinomial probe of all (of `logistic` or `lda`).
            permutations: number of permutations of the labels that give `p`; each fits all probes again.
            winsorise: limit each feature of an activation to this quantile of the absolute values of its features.
            orthogonal_to: leave out what lies along one or several vectors, the direction of another contrast, or the
                mean of a class. The latter two depend on all prompts, so all held-out numbers are then NaN.

        Raises:
            SpecError: an argument is invalid, or a class has too few prompts.
            ResultsNotFoundError: the run stores no activations of a set.
            RunDamagedError: a shard differs from its commit record.
        """
        return read_probe(
            self._run,
            contrast,
            [set] if isinstance(set, str) else list(set),
            labels,
            site,
            layer,
            position,
            kind=kind,
            classes=classes,
            permutations=permutations,
            winsorise=winsorise,
            orthogonal_to=orthogonal_to,
        )

    def heads(self, circuit: str = "qk", offset: int = 0) -> xr.Dataset:
        """Return each head's singular value and ranks, (layer, head), and its alignments with the directions.

        The alignments with the contrasts' directions, and their tests against permuted labels, are (contrast, side,
        layer, head).

        Args:
            circuit: qk is W_Q R W_Kᵀ, ov is W_V W_O; in multi-head latent attention, rotary is the rest of QK.
            offset: query position minus key position.

        Raises:
            SpecError: the run has no decomposition of the circuit at this offset.
            ResultsNotFoundError: the run lacks the analysis `heads`.
        """
        return head_atlas(self._run, circuit, offset).copy(deep=True)

    def head(self, layer: int, head: int, circuit: str = "qk", offset: int = 0) -> Head:
        """Return one head's spectrum, ranks, and the tokens of its leading vectors; raises as `heads` does."""
        return read_head(self._run, layer, head, circuit, offset)

    def group(self, name: str, statistic: str | Sequence[str] = (), **labels: Labels) -> xr.Dataset:
        """Return the results of an analysis, or some of them at some labels, without the singular vectors of heads.

        Args:
            name: name of the analysis.
            statistic: names of variables; none selects all.
            labels: the requested labels, by `set`, `contrast`, `site`, `position`, `layer` and `norm`.

        Raises:
            SpecError: there is no such analysis, variable or label.
            ResultsNotFoundError: the run lacks the analysis.
        """
        if name not in GROUPS:
            raise SpecError(f"group: given {name!r}; allowed: {', '.join(GROUPS)}")
        unknown = [dim for dim in labels if dim not in GROUP_LABELS]
        if unknown:
            raise SpecError(f"{unknown[0]}: results cannot be narrowed by this; allowed: {', '.join(GROUP_LABELS)}")
        selected = select_group(self._run, name, _listed(statistic), _label_lists(labels))
        return _without_single(selected, labels).copy(deep=True)

    def table(self, name: str) -> pd.DataFrame:
        """Return a whole flat table; raises TableNotFoundError, whose message lists the existing tables."""
        return read_finished_table(self._run, name)

    def prompts(
        self,
        set: str,
        *,
        contrast: str | None = None,
        site: str | None = None,
        layer: int | None = None,
        position: Label | None = None,
        order: Order = "sample",
    ) -> pd.DataFrame:
        """Return the prompts of a set with their held-out scores along the direction of a contrast, one row each.

        The columns are `sample`, `text`, `n_tokens`, `status`, `error`, `score` and `margin`; the table's `attrs` have
        the `place` of the scores, or None. A negative margin is a wrong classification.

        Args:
            set: name of the prompt set.
            contrast: a contrast of the set; None selects the first one.
            site: site in the block; None selects that of the best separation.
            layer: 0-based index of the block; None selects that of the best separation.
            position: token position from the end, or its name; None selects the last measured one.
            order: `sample`, `margin` (worst classified first) or `-margin` (best classified first).

        Raises:
            SpecError: there is no such set, contrast, site, layer or position.
        """
        chosen = {"contrast": contrast, "site": site, "layer": layer, "position": position, "order": order}
        rows, place = self._prompts(set, chosen)
        columns = ["sample", "text", "n_tokens", "status", "error", "score", "margin"]
        table = pd.DataFrame(rows, columns=columns).astype({"score": float, "margin": float})
        table.attrs = {"place": place}
        return table

    def prompt(
        self, set: str, sample: int, *, contrast: str | None = None, position: Label | None = None
    ) -> pd.DataFrame:
        """Return the held-out score and margin of one prompt at each depth, with quantiles of both sets' scores.

        Raises:
            SpecError: there is no such set, prompt, contrast or position, or the prompt has no score.
            TableNotFoundError: the run has no scores of this set.
        """
        return pd.DataFrame(self._prompt(set, sample, {"contrast": contrast, "position": position}))

    def figure(self, name: str, panel: str | None = None) -> go.Figure:
        """Return a figure by a name that `section` lists, or the first one of an analysis or of a statistic (`auroc`).

        Args:
            name: the name.
            panel: the title of a panel's vertical axis, such as `AUROC`, to get this panel alone.

        Raises:
            FigureNotFoundError: there is no such figure, analysis or statistic along depth.
            SpecError: the figure has no such panel; the message lists those that it has.
        """
        return titled(self._untitled(name, panel))

    def save_figure(self, name: str, path: str | Path, *, width: Width = "column", panel: str | None = None) -> Path:
        """Write a figure as SVG, PDF or PNG (300 dpi), with its title, model, prompts and finding; return the path.

        This needs `theodolite[pictures]`, and Chrome or Chromium. `run.figure(name).write_html(path)` needs neither.

        Args:
            name: the name, as of `figure`.
            path: the file; its suffix decides the format.
            width: `column`, 3.3 inches, or `page`, 6.8 inches.
            panel: the title of a panel's vertical axis, as of `figure`.

        Raises:
            FigureNotFoundError: there is no such figure, analysis or statistic along depth.
            SpecError: there is no such panel, format or width, or the picture cannot be drawn or written.
        """
        return save_picture(self._untitled(name, panel), path, width)

    def _untitled(self, name: str, panel: str | None) -> go.Figure:
        figure = self._figure(name)
        return figure if panel is None else one_panel(figure, panel)

    def overview(self, contrast: str | None = None, *, site: str | None = None, layer: int | None = None) -> Picture:
        """Return the overview of a contrast: four questions, curves along depth, and prompts; a notebook draws it.

        Args:
            contrast: its name; None selects the first one.
            site: site of the depth at which prompts are shown; None selects that of the largest value.
            layer: 0-based index of its block.

        Raises:
            SpecError: there is no such contrast or depth.
            ResultsNotFoundError: the run lacks the analysis `separation`.
        """
        return read_picture(self._run, contrast, site, layer)

    def numbers(self) -> pd.DataFrame:
        """Return the headline numbers of the run as a table, one row for each contrast, for example to log them.

        The columns are those of the `milestones` of `theodolite.compare`, and for each question of the overview
        (`separable`, `beyond_words`, `beyond_untrained`, `used`) its answer, such as `separable_answer`, and its value
        with the ends of the simultaneous interval, such as `separable`, `separable_low` and `separable_high`.

        Raises:
            ResultsNotFoundError: the run lacks the analysis `curves`.
        """
        run, rows = self._run, []
        for contrast in read_contrasts(run, finished_groups(run)):
            (row,) = records(milestones([run], Question(None, contrasts={run.id: contrast})))
            with suppress(SpecError, ResultsNotFoundError):  # without separation
                for name, tile in zip(_QUESTIONS, self.overview(contrast).tiles, strict=True):
                    row[f"{name}_answer"] = tile.answer
                    if tile.glyph is not None:
                        row |= {name: tile.glyph.value, f"{name}_low": tile.glyph.low, f"{name}_high": tile.glyph.high}
            rows.append({key: value for key, value in row.items() if key != "model"})
        return pd.DataFrame(rows, columns=None if rows else ["run_id", "contrast"])

    def conclusion(self) -> dict[str, Any]:
        """Return what the run asked, found, rests on, and does not say: `asked`, `found`, `rests_on`, `limits`.

        Each is a list of sentences; `found` has dictionaries with `text`, `group` and `figure`.
        """
        return asdict(read_conclusion(self._run))

    def sections(self) -> list[str]:
        """Return the names of the analyses that have sections, in the order of the report and the page."""
        return shown_groups(self._run)

    def section(self, name: str) -> list[dict[str, Any]]:
        """Return the sections of one analysis: sentences, names of figures, tables.

        Raises ResultsNotFoundError if no analysis of this name has sections.
        """
        return section_items(self._run, name)

    def _figure(self, name: str) -> go.Figure:
        """Return a figure without its title, which the caller owns."""
        return go.Figure(draw_figure(self._run, name))

    def _prompts(self, set: str, choices: Mapping[str, Any]) -> tuple[list[dict[Any, Any]], dict[str, Any] | None]:
        """Return the prompts of a set with their scores, one dictionary each, and the place of the scores."""
        found = read_scored_prompts(self._run, set, **choices)
        return found.rows.to_dict("records"), vars(found.place) if found.place else None

    def _prompt(self, set: str, sample: int, choices: Mapping[str, Any]) -> list[dict[Any, Any]]:
        """Return one prompt's score at each depth, one dictionary each."""
        return read_prompt_path(self._run, set, sample, **choices)[0].to_dict("records")

    def _export(self, contrast: str, site: str, layers: Sequence[int], position: Label | None, format: str) -> bytes:
        """Return an exported file."""
        return encode_directions(self._run, contrast, site, layers, position, format)


def html_table(title: str, rows: Mapping[str, Any]) -> str:
    """Return a small HTML table for a notebook; names and values are escaped."""
    cells = "".join(f"<tr><th>{escape(name)}</th><td>{escape(str(value))}</td></tr>" for name, value in rows.items())
    return f"<table><caption>{escape(title)}</caption><tbody>{cells}</tbody></table>"


def _listed(given: Labels) -> list[Any]:
    """Return labels as a list without duplicates; those of NumPy become those of Python."""
    labels: Any = () if given is None else [given] if isinstance(given, _ONE) else given
    return list(dict.fromkeys(one.item() if isinstance(one, np.generic) else one for one in labels))


def _label_lists(given: Mapping[str, Labels]) -> dict[str, list[Any]]:
    """Return the requested labels by dimension; a dimension of which all are requested is not among them."""
    return {dim: _listed(labels) for dim, labels in given.items() if labels is not None}


def _without_single(dataset: xr.Dataset, given: Mapping[str, Labels]) -> xr.Dataset:
    single = [dim for dim, labels in given.items() if isinstance(labels, _ONE) and dim in dataset.dims]
    return dataset.isel(dict.fromkeys(single, 0))
