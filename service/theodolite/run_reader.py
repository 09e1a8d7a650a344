"""One finished run in a notebook, wherever it lies: the same calls and the same types from a service and from a store.

A reader asks and gets what the API's JSON holds; who answers, a service or the store itself, is all that differs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import xarray as xr
from numpy.typing import NDArray

from theodolite.api.answers import ANSWERS
from theodolite.decoding import curves_dataset, decode_array, decode_curve, decode_dataset, decode_number
from theodolite.errors import SpecError
from theodolite.query.curves import Curve, curve_frame
from theodolite.store.cache import Kept
from theodolite.store.objects import absolute
from theodolite.store.result_reader import table_bytes
from theodolite.store.runs import Run
from theodolite.store.runs import open_run as open_stored_run
from theodolite.store.tables import decode_table

GROUPS = ("sphere", "gram", "separation", "travel", "weights", "moments", "composition")
"""Result groups that are read whole; the others have calls of their own."""

_KEPT_BYTES = 48 * 2**20
_TOKEN_COLUMNS = ["side", "vector", "end", "place", "token", "token_id", "score", "against"]

Labels = str | int | Sequence[str] | Sequence[int] | None
"""One label, several, or None for all; one label's dimension is dropped, as xarray's `sel` does."""


class Source(Protocol):
    """Who answers questions about one run."""

    @property
    def place(self) -> str:
        """Where the run lies, for people."""

    def ask(self, what: str, **choices: Any) -> dict[str, Any]:
        """Return what the API's JSON holds, all pages in one; `what` is one of `theodolite.api.answers.ANSWERS`."""

    def table(self, name: str) -> bytes:
        """Return a whole table as Parquet."""


@dataclass(frozen=True, eq=False)
class Head:
    """One head's circuit.

    Attributes:
        name: as the field writes it, `L12H3`.
        circuit: qk or vo.
        offset: query position minus key position.
        singular_values: (rank), the largest first.
        coverage_99: first rank at which their sum so far passes 99 % of the whole.
        effective_rank: exp of the entropy of σ/Σσ.
        stable_rank: Σσ² over the largest σ².
        copying_score: 1 where each token raises itself.
        tokens: the tokens of its leading singular vectors on both sides; no rows in a run without `words`.
    """

    name: str
    circuit: str
    offset: int
    singular_values: NDArray[np.float64] = field(repr=False)
    coverage_99: int
    effective_rank: float
    stable_rank: float
    copying_score: float
    tokens: pd.DataFrame = field(repr=False)


class RunReader:
    """One run's results.

    Args:
        run_id: the run's id.
        source: who answers.
    """

    def __init__(self, run_id: str, source: Source) -> None:
        self.id, self._source = run_id, source

    def __repr__(self) -> str:
        return f"RunReader({self.id!r}, {self._source.place!r})"

    def _repr_html_(self) -> str:
        about = self.describe()
        model = about["model"]
        rows = {
            "model": f"{model['name']}: {model['n_layers']} layers, d_model {model['d_model']}, {model['dtype']}",
            "prompts": ", ".join(f"{facts['n_samples']} {name}" for name, facts in about["sets"].items()),
            "contrasts": ", ".join(about["contrasts"]),
            "results": ", ".join(about["results"]),
            "state": about["state"],
            "from": self._source.place,
        }
        return html_table(self.id, rows)

    def describe(self) -> dict[str, Any]:
        """Return everything known of the run but its arrays: spec, model, sets, parity certificate, results."""
        return self._source.ask("details")

    def curves(
        self,
        statistic: str = "cosine_of_means_debiased",
        *,
        set: Labels = None,
        contrast: Labels = None,
        site: Labels = None,
        position: Labels = None,
    ) -> xr.Dataset:
        """Return one statistic along depth: `value`, and `low` and `high` of its 95 % interval where it has one.

        The dimensions are (set or contrast, site, position, layer), without those that one label was given of. Beside
        the layers stands `depth`, in half-blocks (0-pre is 0, 0-mid is 1), and beside sets and contrasts the prompts
        that they rest on.

        Raises:
            SpecError: there is no such statistic or label; the message says which there are.
            ResultsNotFoundError: the run lacks the analysis.
        """
        given = {"set": set, "contrast": contrast, "site": site, "position": position}
        dataset = curves_dataset(self._curves([statistic], given))
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
        """Return several statistics as one flat table, a row for each point; none are all of the group `curves`.

        Raises as `curves` does.
        """
        given = {"set": set, "contrast": contrast, "site": site, "position": position}
        return curve_frame(self._curves(_listed(statistic), given))

    def direction(self, contrast: str, site: str, layer: int, position: int | None = None) -> NDArray[np.float64]:
        """Return the unit vector from a contrast's negative to its positive mean, (d_model).

        Args:
            contrast: its name.
            site: a site of the blocks.
            layer: a 0-based block.
            position: None is the last one measured.

        Raises:
            SpecError: there is no such contrast, site, layer or position, or the two means are equal there.
        """
        content = self._source.ask("direction", contrast=contrast, site=site, layer=layer, position=position)
        return np.array(content["direction"], dtype=np.float64)

    def heads(self, circuit: str = "qk", offset: int = 0) -> xr.Dataset:
        """Return what each head's circuit is like, (layer, head), and how it meets the contrasts' directions.

        Args:
            circuit: qk is W_Q R W_Kᵀ, vo is W_V W_O.
            offset: query position minus key position.

        Raises:
            SpecError: the circuit was not decomposed at this offset.
            ResultsNotFoundError: the run has no `heads`.
        """
        return decode_dataset(self._source.ask("heads", circuit=circuit, offset=offset)["dataset"])

    def head(self, layer: int, head: int, circuit: str = "qk", offset: int = 0) -> Head:
        """Return one head's spectrum, ranks, and the tokens of its leading vectors; raises as `heads` does."""
        content = self._source.ask("head", layer=layer, head=head, circuit=circuit, offset=offset)
        return Head(
            name=content["name"],
            circuit=content["circuit"],
            offset=content["offset"],
            singular_values=decode_array(content["singular_values"]),
            coverage_99=content["coverage_99"],
            effective_rank=decode_number(content["effective_rank"]),
            stable_rank=decode_number(content["stable_rank"]),
            copying_score=decode_number(content["copying_score"]),
            tokens=pd.DataFrame(content["tokens"], columns=_TOKEN_COLUMNS),
        )

    def group(self, name: str, statistic: str | Sequence[str] = (), **labels: Labels) -> xr.Dataset:
        """Return a result group, or some of its variables at some labels.

        Args:
            name: one of `GROUPS`.
            statistic: names of variables; none are all.
            labels: which are wanted, by `set`, `contrast`, `site`, `position`, `layer` and `norm`.

        Raises:
            SpecError: there is no such group, variable or label, or the answer would be too long.
            ResultsNotFoundError: the run lacks the analysis.
        """
        if name not in GROUPS:
            raise SpecError(
                f"group: given {name!r}; allowed: {', '.join(GROUPS)}; curves, direction and heads are their own calls"
            )
        dims = ("set", "contrast", "site", "position", "layer", "norm")
        unknown = [dim for dim in labels if dim not in dims]
        if unknown:
            raise SpecError(f"{unknown[0]}: a group cannot be narrowed by it; allowed: {', '.join(dims)}")
        wanted = {dim: _listed(given) for dim, given in labels.items() if given is not None}
        content = self._source.ask("group", group=name, statistic=_listed(statistic), **wanted)
        return _without_single(decode_dataset(content["dataset"]), labels)

    def table(self, name: str) -> pd.DataFrame:
        """Return a whole flat table; raises TableNotFoundError, whose message names those that there are."""
        return decode_table(self._source.table(name), name)

    def figure(self, name: str) -> go.Figure:
        """Return a figure by the name that `section` gives; raises FigureNotFoundError."""
        return go.Figure(self._source.ask("figure", name=name))

    def sections(self) -> list[str]:
        """Return the result groups that have something to show, in the order of reading."""
        return list(self._source.ask("sections")["items"])

    def section(self, name: str) -> list[dict[str, Any]]:
        """Return what one result group shows: sentences made from the numbers, names of figures, tables.

        Raises ResultsNotFoundError where there is no such section.
        """
        return list(self._source.ask("section", group=name)["items"])

    def _curves(self, statistics: Sequence[str], given: Mapping[str, Labels]) -> list[Curve]:
        wanted = {dim: _listed(labels) for dim, labels in given.items() if labels is not None}
        items = self._source.ask("curves", statistic=list(statistics), **wanted)["items"]
        return [decode_curve(item) for item in items]


@dataclass(frozen=True)
class _Stored:
    """A run that is read from its store, without a service."""

    run: Run

    @property
    def place(self) -> str:
        return self.run.store

    def ask(self, what: str, **choices: Any) -> dict[str, Any]:
        return ANSWERS[what](replace(self.run, seen={}), **choices)

    def table(self, name: str) -> bytes:
        return table_bytes(replace(self.run, seen={}), name)


def open_run(store: str | Path, run_id: str) -> RunReader:
    """Open a run in a store, without a service.

    Args:
        store: a folder, or a file://, s3://, gs:// or az:// URL.
        run_id: the run's id.

    Raises:
        RunNotFoundError: there is no such run; the message names those that are there.
        StoreError: the store cannot be reached, or a newer version wrote the run.
    """
    return RunReader(run_id, _Stored(open_stored_run(absolute(str(store)), run_id, Kept(_KEPT_BYTES))))


def html_table(title: str, rows: Mapping[str, Any]) -> str:
    """Return a small table for a notebook; whatever it is given is text and never markup."""
    cells = "".join(f"<tr><th>{escape(name)}</th><td>{escape(str(value))}</td></tr>" for name, value in rows.items())
    return f"<table><caption>{escape(title)}</caption><tbody>{cells}</tbody></table>"


def _listed(given: Labels) -> list[Any]:
    """Return labels as a list, each once."""
    return [] if given is None else [given] if isinstance(given, str | int) else list(dict.fromkeys(given))


def _without_single(dataset: xr.Dataset, given: Mapping[str, Labels]) -> xr.Dataset:
    single = [dim for dim, labels in given.items() if isinstance(labels, str | int) and dim in dataset.dims]
    return dataset.isel(dict.fromkeys(single, 0))
