"""Vectors of one's own as files for other tools, and such files as arrays."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import gguf
import numpy as np
from numpy.typing import ArrayLike, NDArray
from safetensors import SafetensorError, safe_open

from theodolite.errors import SpecError
from theodolite.export import check_format, encode, write_files
from theodolite.query.exports import EITHER, LAYER_NUMBERING
from theodolite.run_reader import RunReader
from theodolite.sites import STREAM_SITES, site_name
from theodolite.store.manifest import finished_groups
from theodolite.store.result_reader import read_group
from theodolite.store.runs import Run
from theodolite.version import __version__

Operation = Literal["add", "project"]

_MEANINGS = {
    "add": "add the vector to the stream: x + strength · v",
    "project": "remove the stream's part along the vector: x - (x·v) v / ‖v‖²",
}


@dataclass(frozen=True, eq=False)
class Vectors:
    """Vectors of a file.

    Attributes:
        vectors: (d_model) by 0-based layer.
        site: site in the block, such as `resid_pre`.
        operation: `add`, `project`, or `add or project` for a unit direction, which is added times `difference_norm`.
        facts: everything else that the file says.
    """

    vectors: dict[int, NDArray[np.float32]]
    site: str
    operation: str
    facts: dict[str, Any] = field(repr=False)


def export_vector(
    vector: ArrayLike | Mapping[int, ArrayLike],
    model: RunReader | str,
    *,
    operation: Operation,
    layer: int | None = None,
    site: str = "resid_pre",
    format: str = "safetensors",
    output: str | Path | None = None,
) -> Path:
    """Write a vector of your own to a file, with what a tool must know to apply it, and return the file's path.

    Args:
        vector: (d_model), or such a vector for each of several layers, by 0-based layer. Its length is kept.
        model: a run of the model, which gives its name, its revision and the mean norms at the site, and against which
            the width and the layers are checked; or the model's name.
        operation: `add` or `project`: a vector that should be projected out does something else if it is added.
        layer: the 0-based layer of a single vector.
        site: the site of the stream at which it acts.
        format: safetensors, npy (with NAME.npy.json), gguf (a control vector of llama.cpp, only to add), or json.
        output: the file; by default `vector.SITE.FORMAT` in the working folder.

    Raises:
        SpecError: the vector has another width than the model, is 0 or not finite, or a choice does not exist.
    """
    check_format(format)
    if operation not in _MEANINGS:
        raise SpecError(f"operation: given {operation!r}; allowed: {', '.join(_MEANINGS)}")
    if format == "gguf" and operation != "add":
        raise SpecError(
            "format: given 'gguf', but llama.cpp adds control vectors; allowed for project: safetensors, npy"
        )
    if site_name(site) not in STREAM_SITES:
        raise SpecError(f"site: given {site!r}; allowed: {', '.join(map(str, STREAM_SITES))}")
    if not isinstance(vector, Mapping):
        if layer is None:
            raise SpecError("layer: not given; it is the 0-based layer at which the vector acts")
        vector = {layer: vector}
    vectors = {int(at): _checked(at, one) for at, one in sorted(vector.items())}
    if len({len(one) for one in vectors.values()}) != 1:
        raise SpecError("vector: the layers have vectors of different widths, or there is none")
    facts = {
        **({"model": model, "family": model} if isinstance(model, str) else _facts_of(model._run, vectors, site)),
        "site": site_name(site),
        "layer": list(vectors),
        "layer_numbering": LAYER_NUMBERING,
        "operation": operation,
        "convention": _MEANINGS[operation],
        "vector_norm": [float(np.linalg.norm(one)) for one in vectors.values()],
        "written_by": f"theodolite {__version__}",
    }
    path = Path(output or f"vector.{site_name(site)}.{format}")
    write_files(path, format, lambda kind: encode(vectors, facts, kind))
    return path


def _checked(layer: int, given: ArrayLike) -> NDArray[np.float64]:
    vector = np.asarray(given, np.float64)
    if vector.ndim != 1:
        raise SpecError(f"vector: given the shape {vector.shape} at layer {layer}; allowed: (d_model)")
    if not np.isfinite(vector).all() or not vector.any():
        raise SpecError(f"vector: that of layer {layer} is 0, or has numbers that are not finite")
    return vector


def _facts_of(run: Run, vectors: Mapping[int, NDArray[np.float64]], site: str) -> dict[str, Any]:
    """Return the model's name and the mean norms of each set at the site, after a check of widths and layers."""
    model, layers = run.record.model, list(vectors)
    width = len(vectors[layers[0]])
    if width != model.d_model:
        raise SpecError(f"vector: it has {width} numbers, but {model.name} has d_model {model.d_model}")
    if missing := [layer for layer in layers if not 0 <= layer < model.n_layers]:
        raise SpecError(f"layer: there is no layer {missing[0]}; {model.name} has 0 to {model.n_layers - 1}")
    facts = {"model": model.name, "family": model.family, "revision": model.revisions, "run_id": run.id}
    if "moments" not in finished_groups(run):
        return facts
    norms = read_group(run, "moments")["norm_mean"].isel(position=-1)
    if site_name(site) not in norms["site"].values or not set(layers) <= set(norms["layer"].values.tolist()):
        return facts
    at = norms.sel(site=site_name(site), layer=layers)
    return facts | {f"norm_mean_{name}": at.sel(set=name).values.tolist() for name in at["set"].values.tolist()}


def load_vector(path: str | Path) -> Vectors:
    """Return the vectors of a file that `export_vector`, `run.export`, repeng or llama.cpp's tools wrote.

    A GGUF control vector without facts of Theodolite acts on the outputs of its blocks, which are `resid_post`.

    Raises:
        SpecError: the file cannot be read, or is no file of vectors of one contrast.
    """
    path = Path(path)
    readers = {".safetensors": _of_safetensors, ".gguf": _of_gguf, ".npy": _of_npy}
    if path.suffix not in readers:
        raise SpecError(f"{path}: given a file of type {path.suffix!r}; allowed: {', '.join(readers)}")
    try:
        vectors, facts = readers[path.suffix](path)
        operation = str(facts.pop("operation", EITHER))
        return Vectors(vectors, str(facts.pop("site")), operation, facts)
    except (OSError, KeyError, ValueError, IndexError, SafetensorError) as error:
        raise SpecError(f"{path}: no vectors of one contrast with their facts: {error}") from error


def _of_safetensors(path: Path) -> tuple[dict[int, NDArray[np.float32]], dict[str, Any]]:
    with safe_open(path, "np") as file:
        facts, tensors = dict(file.metadata() or {}), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    layers = [int(layer) for layer in facts.pop("layer").split(",")]
    names = ["direction"] if len(layers) == 1 else [f"direction.{layer}" for layer in layers]
    return {layer: tensors[name] for layer, name in zip(layers, names, strict=True)}, facts


def _of_npy(path: Path) -> tuple[dict[int, NDArray[np.float32]], dict[str, Any]]:
    facts, stacked = json.loads(path.with_name(f"{path.name}.json").read_text()), np.load(path)
    layers = facts.pop("layer")
    return dict(zip(layers, np.atleast_2d(stacked), strict=True)), facts


def _of_gguf(path: Path) -> tuple[dict[int, NDArray[np.float32]], dict[str, Any]]:
    reader = gguf.GGUFReader(path)
    tensors = {tensor.name: np.array(tensor.data) for tensor in reader.tensors}
    own = {name: one.contents() for name, one in reader.fields.items() if name.startswith("theodolite.")}
    facts = {name.removeprefix("theodolite."): value for name, value in own.items()}
    blocks = [int(name.removeprefix("direction.")) for name in tensors]
    if not blocks:
        raise KeyError("direction.N")
    layers = dict(zip(facts.pop("block", blocks), facts.pop("layer", blocks), strict=True))
    vectors = {layers[block]: tensors[f"direction.{block}"] for block in blocks}
    return vectors, {"site": "resid_post", "operation": "add"} | facts
