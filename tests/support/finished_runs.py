"""Write finished runs with given results, so that tests of readers need no statistics."""

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import xarray as xr
from support.stored import record_of

from theodolite.groups import GROUPS
from theodolite.store import result_writer
from theodolite.store.cache import Cache
from theodolite.store.result_writer import build_group, write_groups
from theodolite.store.runs import AdapterFacts, ModelFacts, Run, create_run

REFUSAL = {"refusal": {"positive": "harmful", "negative": "harmless", "paired": False}}


def model_facts(
    name: str = "tiny",
    n_layers: int = 4,
    kind: str = "folder",
    place: str | None = None,
    adapter: AdapterFacts | None = None,
) -> ModelFacts:
    sizes = {"n_layers": n_layers, "d_model": 8, "n_heads": 2, "n_kv_heads": 2, "d_head": 4, "context_length": 128}
    words = {"revision": "sha256:0", "family": "llama", "dtype": "float32", "attention": "sdpa"}
    return ModelFacts(name=name, kind=kind, place=place or name, adapter=adapter, **sizes, **words)


def adapter_facts(kind: str = "folder", place: str = "lora") -> AdapterFacts:
    return AdapterFacts(
        name="lora",
        kind=kind,
        place=place,
        revision="a" * 40,
        method="LoRA",
        ranks=(8, 8),
        matrices=14,
        base="org/base",
    )


def finished_run(
    folder: Path,
    groups: Mapping[str, Mapping[str, Any]],
    model: ModelFacts | None = None,
    run_id: str = "tiny-0",
    contrasts: Mapping[str, Any] = REFUSAL,
    sites: Sequence[str] = ("resid_pre", "resid_mid"),
    positions: Sequence[int] = (-1,),
    layers: Sequence[int] | None = None,
    attributes: Mapping[str, Any] = {},
) -> Run:
    """Write a complete run from {group: {variable: numbers, broadcast to its dimensions}}; other variables are NaN.

    The numbers of a variable may be given by labels of its dimensions.

    `attributes` are those of every group, besides its digest, its version and the contrasts.
    """
    model = model or model_facts()
    layers = range(model.n_layers) if layers is None else layers
    sides = [of[side] for of in contrasts.values() for side in ("positive", "negative")]
    arrays = {
        name: {site: np.ones((4, len(positions), len(layers), 8)) for site in sites}
        for name in dict.fromkeys(["harmful", "harmless", *sides])
    }
    record = record_of(
        arrays,
        shard_prompts=4,
        contrasts=contrasts,
        positions={name: list(positions) for name in arrays},
        run_id=run_id,
        model=model,
        layers=list(layers),
    )
    run = create_run(str(folder), record)
    coordinates: dict[str, Any] = {
        "set": list(arrays),
        "contrast": list(contrasts),
        "contrast_other": list(contrasts),
        "site": list(sites),
        "position": list(positions),
        "layer": list(layers),
        "layer_other": list(layers),
        "d_model": range(8),
        "norm": [f"{layer}.{which}" for layer in range(model.n_layers) for which in ("attention", "mlp")],
        "norm_other": [f"{layer}.{which}" for layer in range(model.n_layers) for which in ("attention", "mlp")],
        "circuit": ["qk", "ov"],
        "prompt_side": ["positive", "negative"],
        "intervention": ["patch", "remove", "add"],
        "control": ["matched", "permuted"],
        "dose": [-1.0, 1.0],
        "projection": ["query", "key"],
        "side": ["qk_query", "qk_key", "ov_read", "ov_write"],
        "offset": [0],
        **{dim: range(2) for dim in ("head", "rank", "vector")},
        "expert": range(3),
    }
    attributes = {**attributes, "contrasts": dict(contrasts)}
    written = {name: _group(name, values, coordinates, attributes) for name, values in groups.items()}
    with patch.object(result_writer, "_encode_group", _encoded):
        write_groups(run, written, {}, dict.fromkeys(written, "digest"))
    return run


def cached_run(*arguments: Any, **options: Any) -> Run:
    """Return a finished run with a cache, as the service and a report read it: reading takes most of a test's time."""
    return replace(finished_run(*arguments, **options), cache=Cache(2**26))


def merged(values: Mapping[str, Any], changed: Mapping[str, Any]) -> dict[str, Any]:
    """Return values with changed ones; of a variable with labels, only those of the labels that `changed` has."""
    new = {name: merged(values.get(name, {}), of) if isinstance(of, dict) else of for name, of in changed.items()}
    return {**values, **new}


_ENCODED: dict[bytes, dict[str, bytes]] = {}
"""The objects of each group that was written, since tests write the same group into many runs."""

_encode_group = result_writer._encode_group


def _encoded(name: str, dataset: xr.Dataset) -> dict[str, bytes]:
    types = {str(variable): dataset[variable].dtype.str for variable in dataset.variables}
    key = sha256(pickle.dumps((name, list(GROUPS[name].by_layer), types, dataset.to_dict()))).digest()
    if key not in _ENCODED:
        _ENCODED[key] = _encode_group(name, dataset)
    return _ENCODED[key]


def _filled(numbers: Any, labels: Sequence[Sequence[Any]]) -> np.ndarray[Any, Any]:
    """Return numbers broadcast to the dimensions with these labels; a mapping has those of labels of one dimension."""
    if not isinstance(numbers, Mapping):
        return np.broadcast_to(numbers, [len(of_dim) for of_dim in labels])
    axis = max(index for index, of_dim in enumerate(labels) if set(numbers) <= set(of_dim))
    others = [*labels[:axis], *labels[axis + 1 :]]
    return np.stack([_filled(numbers.get(label, np.nan), others) for label in labels[axis]], axis)


def _group(
    name: str, values: Mapping[str, Any], coordinates: Mapping[str, Any], attributes: Mapping[str, Any]
) -> xr.Dataset:
    full = {}
    labels = {**coordinates, **GROUPS[name].labels}
    assert set(values) <= {variable.name for variable in GROUPS[name].variables}
    for variable in GROUPS[name].variables:
        if not variable.by_layer:
            empty = 4 if variable.dtype == "int64" else np.nan
            full[variable.name] = _filled(values.get(variable.name, empty), [labels[dim] for dim in variable.dims])
    own: dict[str, Any] = {"digest": "digest", "version": GROUPS[name].version}
    if name == "heads":
        own["direction_position"] = coordinates["position"][-1]
        own["direction_prompts"] = {contrast: [64, 63] for contrast in coordinates["contrast"]}
    return build_group(name, full, coordinates, {**own, **attributes})
