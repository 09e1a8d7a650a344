"""Stored runs of several sets with edge cases, and the definitions that analyses are compared with."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import NDArray
from support.stored import store_run

from theodolite.sites import Site
from theodolite.store.result_reader import read_group
from theodolite.store.runs import ModelFacts, Run
from theodolite_jobs.passes.norm_layers import NormLayer
from theodolite_jobs.statistics.norms import Norm

Float64 = NDArray[np.float64]

WIDTH, LAYERS = 8, 3
SEQUENTIAL = ("resid_pre", "resid_mid")
PARALLEL = ("resid_pre", "attn_out", "mlp_out")
REQUESTED = {"travel", "separation", "sphere", "permutations"}
SIZES = {"bad": 13, "good": 13, "words": 8, "one": 1, "same": 6}
QUARANTINED = {"bad": {5: "not finite"}}
FEW = ("bad", "words")


def contrast(positive: str, negative: str, paired: bool = False) -> dict[str, Any]:
    """Return a contrast as a spec has it."""
    return {"positive": positive, "negative": negative, "paired": paired}


CONTRASTS = {
    "refusal": contrast("bad", "good", paired=True),
    "unpaired": contrast("bad", "good"),
    "subject": contrast("words", "bad"),
    "itself": contrast("bad", "bad"),
    "mirrored": contrast("bad", "bad", paired=True),
    "lonely": contrast("one", "good"),
    "still": contrast("same", "good"),
}


def silent(*_: object) -> None:
    """Ignore progress."""


def draw(
    n: int,
    sites: Sequence[str] = SEQUENTIAL,
    positions: int = 2,
    layers: int = LAYERS,
    seed: int = 0,
    shift: float = 1.0,
) -> dict[str, NDArray[np.float32]]:
    """Return the arrays of one set: site → (sample, position, layer, d_model)."""
    rng = np.random.default_rng(seed)
    return {site: (rng.normal(size=(n, positions, layers, WIDTH)) + shift).astype(np.float32) for site in sites}


@dataclass
class Stored:
    """A run of several sets, and the arrays that it was written from.

    `arrays` are set → site → (sample, position, layer, d_model), `final` is set → (sample, position, d_model).
    """

    run: Run
    arrays: dict[str, dict[str, NDArray[np.float32]]]
    final: dict[str, NDArray[np.float32]]

    def usable(self, name: str, excluded: Collection[int] = ()) -> list[int]:
        """Return the indices of the samples that take part."""
        out = {*QUARANTINED.get(name, {}), *excluded}
        return [sample for sample in range(len(self.final[name])) if sample not in out]

    def at(self, name: str, site: str, position: int, layer: int, excluded: Collection[int] = ()) -> Float64 | None:
        """Return the samples that take part, (sample, d_model); None at a position that the set lacks."""
        if self.arrays[name][site].shape[1] < -position:
            return None
        return self.arrays[name][site][self.usable(name, excluded), position, layer].astype(np.float64)

    def final_at(self, name: str, position: int) -> Float64 | None:
        """Return `resid_final` of the samples that take part; None at a position that the set lacks."""
        if self.final[name].shape[1] < -position:
            return None
        return self.final[name][self.usable(name), position].astype(np.float64)


def store(
    folder: Path,
    sites: Sequence[str] = SEQUENTIAL,
    shard_prompts: int = 4,
    sets: Collection[str] = tuple(SIZES),
    contrasts: Mapping[str, Any] | None = None,
    **record: Any,
) -> Stored:
    """Store a run with edge cases: a NaN, a set of one sample, a set of equal samples, a set of one position."""
    arrays = {
        name: draw(n, sites, 1 if name == "words" else 2, LAYERS, seed, shift=0.5 + 0.1 * seed)
        for seed, (name, n) in enumerate(SIZES.items())
        if name in sets
    }
    rng = np.random.default_rng(9)
    last = {name: of_set["resid_pre"][:, :, -1] + 1 for name, of_set in arrays.items()}
    final = {name: (values + rng.normal(size=values.shape)).astype(np.float32) for name, values in last.items()}
    if "same" in arrays:
        for values in [*arrays["same"].values(), final["same"]]:
            values[:] = values[:1]
    for values in [*arrays["bad"].values(), final["bad"]]:
        values[5] = np.nan
    run = store_run(
        folder,
        arrays,
        shard_prompts,
        contrasts=contrasts,
        positions={name: [-1] if name == "words" else [-2, -1] for name in arrays},
        quarantined=QUARANTINED,
        final=final,
        **record,
    )
    return Stored(run, arrays, final)


def assert_group(
    run: Run, name: str, expected: Mapping[str, NDArray[Any]], rtol: float = 1e-9, atol: float = 1e-11
) -> xr.Dataset:
    """Compare all variables of a group with arrays of the same names."""
    group = read_group(run, name)
    assert set(group.data_vars) == set(expected)
    for variable, values in expected.items():
        np.testing.assert_allclose(group[variable], values, rtol=rtol, atol=atol, err_msg=variable)
    return group


def mean_and_spread(values: Float64) -> tuple[Any, Any]:
    """Return the mean and the standard deviation (n−1) over samples; NaN where there is one sample."""
    spread = np.std(values, axis=0, ddof=1) if len(values) > 1 else np.full(values.shape[1:], np.nan)
    return np.mean(values, axis=0), spread


def cosine(x: Float64, y: Float64) -> float:
    """Return the cosine of two vectors; NaN where one is zero."""
    lengths = np.sqrt((x @ x) * (y @ y))
    return float(x @ y / lengths) if lengths > 0 else np.nan


def model_of(n_layers: int) -> ModelFacts:
    """Return the facts of a model with this number of layers."""
    words = {
        "kind": "folder",
        "place": "x",
        "revision": "0",
        "family": "llama",
        "dtype": "float32",
        "attention": "sdpa",
    }
    sizes = {"d_model": WIDTH, "n_heads": 2, "n_kv_heads": 2, "d_head": 4, "context_length": 128}
    return ModelFacts(name="tiny", n_layers=n_layers, **words, **sizes)


def assert_same_rows(table: pd.DataFrame, group: xr.Dataset) -> None:
    """Assert that the rows of a flat table are the numbers of the group, except those that `flat_table` leaves out."""
    left_out = {"d_model", "contrast_other", "layer_other", "n_prompts"}
    kept = [
        variable
        for variable in group.data_vars.values()
        if "position" in variable.dims and not left_out & set(variable.dims)
    ]
    assert len(table) == sum(variable.size for variable in kept)
    assert set(table["statistic"]) == {variable.name for variable in kept}
    for row in table.to_dict("records"):
        variable = group[row["statistic"]]
        at = {dim: row[dim] for dim in variable.dims}
        np.testing.assert_array_equal(row["value"], float(variable.sel(at)))
        absent = {dim: row[dim] for dim in ("set", "contrast", "site", "norm", "layer") if dim in row and dim not in at}
        assert all(value in ("", -1) for value in absent.values())
        if "site" in row:
            along = {"resid_pre": 0, "resid_mid": 1}
            assert row["depth"] == (2 * row["layer"] + along[row["site"]] if row["site"] else -1)


def norms() -> list[NormLayer]:
    """Return norm layers of all kinds, before and after branches."""
    rng = np.random.default_rng(4)
    scale, bias = rng.normal(size=(2, 5, WIDTH))
    rms, none = [Norm("rms", 1e-2, scale[index], np.zeros(WIDTH)) for index in (0, 1)]
    centred, around, last = [Norm("layer", 1e-2, scale[index], bias[index]) for index in (2, 3, 4)]
    pre, mid = Site.RESID_PRE, Site.RESID_MID
    return [
        NormLayer("attention", 0, rms, (pre,), 0),
        NormLayer("mlp_output", 0, none),  # neither its input nor its output was captured
        NormLayer("mlp", 1, centred, (mid,), 1),
        NormLayer("attention_output", 1, around, (mid,), 1, reads=False),
        NormLayer("mlp_output", 2, around, (pre, mid), 2),  # it reads a sum
        NormLayer("final", -1, last, (Site.RESID_FINAL,)),
    ]
