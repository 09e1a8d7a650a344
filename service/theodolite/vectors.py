"""Vectors of one's own as files for other tools, and such files as arrays."""

import json
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Integral
from pathlib import Path
from typing import Any, Literal

import gguf
import numpy as np
from numpy.typing import ArrayLike, NDArray
from safetensors import SafetensorError, safe_open

from theodolite.errors import SpecError, one_line
from theodolite.export import FIRST_BLOCKS, check_blocks, check_decoder, check_format, encode, suffix, write_files
from theodolite.query.exports import EITHER, LAYER_NUMBERING, facts_of_model
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

    vectors: dict[int, NDArray[np.float32]] = field(repr=False)
    site: str
    operation: str
    facts: dict[str, Any] = field(repr=False)

    @property
    def layers(self) -> list[int]:
        """The layers of the vectors, in the order of the lists in `facts`."""
        return list(self.vectors)

    @property
    def added(self) -> dict[int, NDArray[np.float32]]:
        """What a strength of 1 adds, (d_model) by layer: of a unit direction, the difference of the two means."""
        if self.operation != EITHER:
            return self.vectors
        lengths = _numbers(self.facts["difference_norm"])
        return {layer: length * one for (layer, one), length in zip(self.vectors.items(), lengths, strict=True)}


def _numbers(fact: Any) -> list[float]:
    """Return a fact with one number for each vector; safetensors stores it as a text with commas."""
    return [float(one) for one in (fact.split(",") if isinstance(fact, str) else np.atleast_1d(fact))]


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
        format: safetensors, npy (with NAME.npy.json), json (only the metadata), or, only to add, gguf (a control vector
            of llama.cpp and repeng) or vllm-lens (a `SteeringVector` as JSON).
        output: the file; by default `vector.SITE.FORMAT` in the working folder.

    Raises:
        SpecError: the vector has another width than the model, is 0 or not finite, or a choice does not exist.
    """
    check_format(format)
    if operation not in _MEANINGS:
        raise SpecError(f"operation: given {operation!r}; allowed: {', '.join(_MEANINGS)}")
    if format in FIRST_BLOCKS and operation != "add":
        raise SpecError(
            f"format: given {format!r}, but {FIRST_BLOCKS[format][0]} adds vectors; allowed for project: safetensors, "
            "npy"
        )
    if site_name(site) not in STREAM_SITES:
        raise SpecError(f"site: given {site!r}; allowed: {', '.join(map(str, STREAM_SITES))}")
    if not isinstance(vector, Mapping):
        if layer is None:
            raise SpecError("layer: not given; it is the 0-based layer at which the vector acts")
        vector = {layer: vector}
    if wrong := [at for at in vector if not isinstance(at, Integral)]:
        raise SpecError(f"layer: given {wrong[0]!r}; allowed: a whole number, counted from 0")
    vectors = {int(at): _checked(at, one) for at, one in sorted(vector.items())}
    if len({len(one) for one in vectors.values()}) != 1:
        raise SpecError("vector: the layers have vectors of different widths, or there is none")
    if min(vectors) < 0:
        raise SpecError(f"layer: given {min(vectors)}; layers are counted from 0")
    check_blocks(format, site_name(site), vectors)
    if not isinstance(model, str):
        check_decoder(model._run, format)
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
    path = Path(output or f"vector.{site_name(site)}.{suffix(format)}")
    write_files(path, format, lambda kind: encode(vectors, facts, kind))
    return path


def _checked(layer: int, given: ArrayLike) -> NDArray[np.float64]:
    try:
        array = np.asarray(given)
        if np.iscomplexobj(array):
            raise TypeError("its numbers are complex")
        vector = array.astype(np.float64)
    except (TypeError, ValueError, RuntimeError) as error:  # ragged lists; tensors of torch with a gradient
        raise SpecError(f"vector: that of layer {layer} is no array of numbers: {one_line(error)}") from error
    if vector.ndim != 1:
        raise SpecError(f"vector: given the shape {vector.shape} at layer {layer}; allowed: (d_model)")
    with np.errstate(over="ignore"):
        stored = vector.astype(np.float32)
    if not np.isfinite(stored).all() or not stored.any():
        raise SpecError(f"vector: that of layer {layer} is 0, or has numbers that are not finite, in float32")
    return vector


def _facts_of(run: Run, vectors: Mapping[int, NDArray[np.float64]], site: str) -> dict[str, Any]:
    """Return the model's name and the mean norms of each set at the site, after a check of widths and layers."""
    model, layers = run.record.model, list(vectors)
    width = len(vectors[layers[0]])
    if width != model.d_model:
        raise SpecError(f"vector: it has {width} numbers, but {model.name} has d_model {model.d_model}")
    if missing := [layer for layer in layers if not 0 <= layer < model.n_layers]:
        raise SpecError(f"layer: there is no layer {missing[0]}; {model.name} has 0 to {model.n_layers - 1}")
    facts = facts_of_model(run)
    if "moments" not in finished_groups(run):
        return facts
    norms = read_group(run, "moments")["norm_mean"].isel(position=-1)
    if site_name(site) not in norms["site"].values or not set(layers) <= set(norms["layer"].values.tolist()):
        return facts
    at = norms.sel(site=site_name(site), layer=layers)
    return facts | {f"norm_mean_{name}": at.sel(set=name).values.tolist() for name in at["set"].values.tolist()}


def load_vector(path: str | Path, contrast: str | None = None) -> Vectors:
    """Return the vectors of a file that `export_vector`, `run.export`, repeng or llama.cpp's tools wrote.

    A GGUF control vector without facts of Theodolite acts on the outputs of its blocks, which are `resid_post`.

    Args:
        path: a file of one of the formats; that of vllm-lens ends with .json.
        contrast: the contrast, of a file with several.

    Raises:
        SpecError: the file cannot be read, or has no vectors with their facts, or several contrasts and none is given.
    """
    path = Path(path)
    readers = {".safetensors": _of_safetensors, ".gguf": _of_gguf, ".npy": _of_npy, ".json": _of_vllm_lens}
    if path.suffix not in readers:
        raise SpecError(f"{path}: given a file of type {path.suffix!r}; allowed: {', '.join(readers)}")
    try:
        found = readers[path.suffix](path)
    except (OSError, KeyError, ValueError, IndexError, TypeError, SafetensorError) as error:
        raise SpecError(f"{path}: no vectors with their facts: {one_line(error)}") from error
    if (contrast is None and len(found) > 1) or contrast not in (None, *found):
        raise SpecError(f"contrast: given {contrast!r}; {path} has {', '.join(map(str, found))}")
    return found[contrast] if contrast else next(iter(found.values()))


Found = dict[str, Vectors]
"""The vectors of a file by contrast; those of no contrast have an empty name."""


def _found(vectors: Mapping[int, Any], facts: dict[str, Any]) -> Found:
    if not all(np.isfinite(one).all() and np.ndim(one) == 1 for one in vectors.values()):
        raise ValueError("a vector has numbers that are not finite, or is not (d_model)")
    contrast = str(facts.get("contrast", ""))
    operation = str(facts.pop("operation", EITHER))
    return {contrast: Vectors(dict(vectors), str(facts.pop("site")), operation, facts)}


def _of_safetensors(path: Path) -> Found:
    with safe_open(path, "np") as file:
        given, tensors = dict(file.metadata() or {}), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    contrasts = [name.removesuffix(".layer") for name in given if name.endswith(".layer")]
    found: Found = {}
    for prefix in [f"{name}." for name in contrasts] or [""]:
        facts = {name.removeprefix(prefix): value for name, value in given.items() if name.startswith(prefix)}
        layers = [int(layer) for layer in facts.pop("layer").split(",")]
        is_alone = not contrasts and len(layers) == 1
        names = ["direction"] if is_alone else [f"{prefix}direction.{layer}" for layer in layers]
        found |= _found({layer: tensors[name] for layer, name in zip(layers, names, strict=True)}, facts)
    return found


def _of_npy(path: Path) -> Found:
    given, stacked = json.loads(path.with_name(f"{path.name}.json").read_text()), np.load(path)
    if stacked.ndim < 3:
        return _found(dict(zip(given.pop("layer"), np.atleast_2d(stacked), strict=True)), given)
    found: Found = {}
    for facts, of_contrast in zip(given.values(), stacked, strict=True):
        found |= _found(dict(zip(facts.pop("layer"), of_contrast, strict=True)), facts)
    return found


def _of_gguf(path: Path) -> Found:
    reader = gguf.GGUFReader(path)
    tensors = {tensor.name: np.array(tensor.data) for tensor in reader.tensors}
    own = {name: one.contents() for name, one in reader.fields.items() if name.startswith("theodolite.")}
    facts = {name.removeprefix("theodolite."): value for name, value in own.items()}
    of_blocks = {int(name.removeprefix("direction.")): one for name, one in tensors.items()}
    return _after_blocks(of_blocks, facts)


def _of_vllm_lens(path: Path) -> Found:
    given = json.loads(path.read_text())
    tensor = given["activations"]
    if tensor.get("compression") or tensor["dtype"] != "float32":
        raise ValueError("only float32 without compression can be read")
    stacked = np.frombuffer(b64decode(tensor["data"]), "<f4").reshape(tensor["shape"]) * np.float32(given["scale"])
    return _after_blocks(dict(zip(given["layer_indices"], stacked, strict=True)), dict(given.get("theodolite", {})))


def _after_blocks(vectors: Mapping[int, Any], facts: dict[str, Any]) -> Found:
    """Return vectors that are added to the outputs of blocks, given by block."""
    if not vectors:
        raise KeyError("direction.N")
    layers = dict(zip(facts.pop("block", vectors), facts.pop("layer", vectors), strict=True))
    facts = {"site": "resid_post", "operation": "add"} | facts
    return _found({layers[block]: one for block, one in vectors.items()}, facts)
