"""Encode a contrast's directions as safetensors, NumPy, a GGUF control vector, or a SteeringVector of vllm-lens."""

import json
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from io import BytesIO
from math import isnan
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gguf
import numpy as np
from gguf import GGUFValueType
from numpy.typing import NDArray

from theodolite.errors import SpecError
from theodolite.files import write_atomically
from theodolite.query.exports import CONVENTION_ADDED, read_directions
from theodolite.query.group_selection import select_directions
from theodolite.sites import Site, site_name
from theodolite.spec_parts import Label
from theodolite.store.runs import Run

Vectors = Mapping[int, NDArray[np.float64]]
"""Vectors (d_model) by layer."""

Facts = Mapping[str, Any]
"""The metadata by name; a list has one value for each vector."""

CONTROL_VECTOR_NUMBERING = (
    "tensor direction.N: the output of block N, counted from 0, which is resid_post of layer N and resid_pre of layer "
    "N + 1; theodolite.layer has the layers, and theodolite.block the N, in the order of the other lists"
)

FIRST_BLOCKS = {"gguf": ("llama.cpp", 1), "vllm-lens": ("vllm-lens", 0)}
"""The formats of tools that add vectors to the outputs of blocks, the tools, and the first block they can use."""


def encode_directions(
    run: Run,
    contrast: str,
    site: str,
    layers: Sequence[int] = (),
    position: Label | None = None,
    format: str = "safetensors",
) -> bytes:
    """Return a file with a contrast's directions and their metadata; equal requests return equal bytes.

    Args:
        run: a complete run.
        contrast: the contrast's name, or several with commas between them, at the layers that all have.
        site: site in the block, such as `resid_pre`.
        layers: 0-based indices of the blocks. By default all that have a direction, and for gguf all of these that
            llama.cpp can apply.
        position: token position from the end, or its name; None selects the last measured one.
        format: one of FORMATS; npy has no metadata, json has only the metadata, and the vectors of vllm-lens have the
            length of the difference of the means.

    Raises:
        SpecError: there is no such format, contrast, site, layer or position, the means are equal at it, or the tool
            cannot apply a vector at the site, or can store one contrast only.
    """
    check_format(format)
    if "," in contrast:
        return _encode_stacked(run, contrast.split(","), site, layers, position, format)
    if format in FIRST_BLOCKS:
        layers = _layers_after_blocks(run, contrast, site_name(site), layers, position, format)
    directions = read_directions(run, contrast, site, layers, position)
    vectors, facts = directions.vectors, directions.facts
    if format == "vllm-lens":  # which has one scale for all layers
        lengths = facts["difference_norm"]
        vectors = {layer: length * vectors[layer] for layer, length in zip(vectors, lengths, strict=True)}
        facts |= {"operation": "add", "convention": CONVENTION_ADDED, "vector_norm": lengths}
    return encode(vectors, facts, format)


def encode(vectors: Vectors, facts: Facts, format: str) -> bytes:
    """Return a file of vectors with their metadata, in one of FORMATS."""
    return _ENCODERS[format](vectors, facts)


def write_files(path: Path, format: str, content_of: Callable[[str], bytes]) -> None:
    """Write a file, and beside NAME.npy its metadata, NAME.npy.json; raises SpecError if this fails.

    `content_of` returns the content in a format.
    """
    beside = {path.with_name(f"{path.name}.json"): "json"} if format == "npy" else {}
    contents = {file: content_of(kind) for file, kind in {**beside, path: format}.items()}
    for file, content in contents.items():
        try:
            write_atomically(file, content)
        except OSError as error:
            raise SpecError(f"output: cannot write {file}: {error.strerror}; choose another path") from error


def check_format(format: str) -> None:
    """Raise SpecError if there is no such format."""
    if format not in FORMATS:
        raise SpecError(f"format: given {format!r}; allowed: {', '.join(FORMATS)}")


def file_name(run_id: str, contrast: str, site: str, layers: Sequence[int], format: str) -> str:
    """Return the default name of a file, with the layer if one layer was requested."""
    first, *others = contrast.split(",")
    contrast = f"{first}-and-{len(others)}" if others else first
    return ".".join([run_id, contrast, site_name(site), *map(str, layers if len(layers) == 1 else ()), suffix(format)])


def suffix(format: str) -> str:
    """Return the end of the names of files of a format, without its first dot."""
    return "vllm-lens.json" if format == "vllm-lens" else format


def encode_safetensors(vectors: Vectors, facts: Facts) -> bytes:
    """Return a safetensors file with `direction` (d_model), or with `direction.LAYER` for each of several layers.

    Its metadata are strings; the values of a list are separated by commas.
    """
    names = ["direction"] if len(vectors) == 1 else [f"direction.{layer}" for layer in vectors]
    return _safetensors(dict(zip(names, vectors.values(), strict=True)), facts)


def _safetensors(vectors: Mapping[str, NDArray[np.float64]], facts: Facts) -> bytes:
    header: dict[str, Any] = {"__metadata__": {name: _text(value) for name, value in facts.items()}}
    content = b""
    for name, vector in vectors.items():
        start, content = len(content), content + vector.astype("<f4").tobytes()
        header[name] = {"dtype": "F32", "shape": list(vector.shape), "data_offsets": [start, len(content)]}
    # Not safetensors.numpy.save, which writes the metadata in another order each time.
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    return len(encoded).to_bytes(8, "little") + encoded + content


def encode_npy(vectors: Vectors, _facts: Facts) -> bytes:
    """Return a NumPy file: (d_model), or (layer, d_model) for several layers; the format stores no metadata."""
    stacked = np.stack(list(vectors.values()))
    return _npy(stacked[0] if len(vectors) == 1 else stacked)


def _npy(vectors: NDArray[np.float64]) -> bytes:
    content = BytesIO()
    np.save(content, vectors.astype(np.float32))
    return content.getvalue()


def encode_metadata(_vectors: Vectors, facts: Facts) -> bytes:
    """Return only the metadata, as JSON; NaN becomes null."""
    return json.dumps({name: _without_nan(value) for name, value in facts.items()}, indent=1).encode()


def encode_control_vector(vectors: Vectors, facts: Facts) -> bytes:
    """Return a GGUF control vector for llama.cpp and repeng, which add `direction.N` to the output of block N.

    The file has the metadata under `theodolite.…`, numbers as 64-bit floats. The metadata's `family` becomes the model
    hint, and its `site` determines the block for each layer.
    """
    blocks = [source_block(facts["site"], layer) for layer in vectors]
    with TemporaryDirectory() as folder:  # GGUFWriter writes only files
        path = Path(folder) / "vector.gguf"
        writer = gguf.GGUFWriter(path, "controlvector")
        writer.add_string("controlvector.model_hint", facts["family"])
        writer.add_uint32("controlvector.layer_count", len(vectors))
        for name, value in {**facts, "block": blocks, "layer_numbering": CONTROL_VECTOR_NUMBERING}.items():
            _add_value(writer, f"theodolite.{name}", value)
        for block, vector in zip(blocks, vectors.values(), strict=True):
            writer.add_tensor(f"direction.{block}", vector.astype(np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path.read_bytes()


def encode_steering_vector(vectors: Vectors, facts: Facts) -> bytes:
    """Return the JSON of a `SteeringVector` of vllm-lens, which adds it to the outputs of blocks, with the metadata.

    `SteeringVector.model_validate` reads it; the metadata are under `theodolite`, which vllm-lens ignores.
    """
    blocks = [source_block(facts["site"], layer) for layer in vectors]
    stacked = np.stack(list(vectors.values())).astype("<f4")
    tensor = {"data": b64encode(stacked.tobytes()).decode(), "dtype": "float32", "shape": list(stacked.shape)}
    added = {"activations": tensor, "layer_indices": blocks, "scale": 1.0, "norm_match": False}
    return encode_metadata({}, {**added, "theodolite": {**facts, "block": blocks}})


def source_block(site: str, layer: int) -> int:
    """Return the 0-based index of the block whose output is the stream at a site, or -1 for the embedding.

    llama.cpp adds control vectors only to the output of a block, which is the input of the next one. It skips block 0
    (`llama_adapter_cvec::init`: "there's never a tensor for layer 0").

    Raises:
        SpecError: the stream at the site is not the output of a block.
    """
    if site == Site.RESID_PRE:
        return layer - 1
    if site == Site.RESID_POST:
        return layer
    raise SpecError(
        f"site: given {site!r}, but llama.cpp, repeng and vllm-lens add vectors only to the output of a block; "
        "allowed: resid_pre and resid_post; or choose the format safetensors or npy"
    )


_ENCODERS: dict[str, Callable[[Vectors, Facts], bytes]] = {
    "safetensors": encode_safetensors,
    "npy": encode_npy,
    "gguf": encode_control_vector,
    "vllm-lens": encode_steering_vector,
    "json": encode_metadata,
}

FORMATS = tuple(_ENCODERS)
"""The formats of exported directions; `json` has the metadata of `npy`, without vectors."""


def _encode_stacked(
    run: Run, contrasts: Sequence[str], site: str, layers: Sequence[int], position: Label | None, format: str
) -> bytes:
    """Return a file with the directions of several contrasts at the layers that all of them have.

    safetensors has `CONTRAST.direction.LAYER` and metadata `CONTRAST.NAME`, npy (contrast, layer, d_model), and json
    the metadata by contrast.
    """
    if format in FIRST_BLOCKS:
        raise SpecError(
            f"format: given {format!r} for several contrasts, but {FIRST_BLOCKS[format][0]} adds all vectors of a "
            "file; choose one contrast, or safetensors, npy or json"
        )
    if len(set(contrasts)) < len(contrasts) or not all(contrasts):
        raise SpecError(f"contrast: given {','.join(contrasts)!r}; name each contrast once, with commas between them")
    measured = [select_directions(run, one, site, layers, position)["layer"].values.tolist() for one in contrasts]
    common = [layer for layer in measured[0] if all(layer in of_one for of_one in measured)]
    if not common:
        raise SpecError(f"contrast: {', '.join(contrasts)} have directions at no common layer of {site_name(site)}")
    found = {one: read_directions(run, one, site, common, position) for one in contrasts}
    facts = {one: directions.facts for one, directions in found.items()}
    positions = {one: of["position"] for one, of in facts.items()}
    if len(set(positions.values())) > 1:
        each = ", ".join(f"{one} {position}" for one, position in positions.items())
        raise SpecError(f"position: the last measured ones differ ({each}); choose one that all have")
    if format == "json":
        return encode_metadata({}, facts)
    stacked = np.stack([np.stack(list(directions.vectors.values())) for directions in found.values()])
    if format == "npy":
        return _npy(stacked)
    vectors = {f"{one}.direction.{layer}": row for one, of in found.items() for layer, row in of.vectors.items()}
    return _safetensors(vectors, {f"{one}.{name}": value for one, of in facts.items() for name, value in of.items()})


def _layers_after_blocks(
    run: Run, contrast: str, site: str, layers: Sequence[int], position: Label | None, format: str
) -> list[int]:
    """Return the layers whose stream a tool can add to; raises SpecError if a requested layer is not one of them."""
    check_decoder(run, format)
    first = check_blocks(format, site, layers)
    measured = select_directions(run, contrast, site, (), position)["layer"].values.tolist()
    applied = [layer for layer in layers or measured if layer >= first]
    if not applied:
        raise _below(format, site, f"{contrast} has directions only below layer {first}")
    return applied


def check_decoder(run: Run, format: str) -> None:
    """Raise SpecError if the tool of a format adds vectors only to decoders, and the model of a run is an encoder."""
    if format in FIRST_BLOCKS and run.record.parity["post_norm"]:
        raise SpecError(
            f"format: given {format!r}, but the model of {run.id} is an encoder, and {FIRST_BLOCKS[format][0]} adds "
            "vectors only to decoders; choose safetensors or npy"
        )


def check_blocks(format: str, site: str, layers: Iterable[int]) -> int:
    """Return the first layer at a site to which the tool of a format can add; raises SpecError if one lies below."""
    if format not in FIRST_BLOCKS:
        return 0
    first = FIRST_BLOCKS[format][1] - source_block(site, 0)
    if below := [layer for layer in layers if layer < first]:
        raise _below(format, site, f"given {below[0]}")
    return first


def _below(format: str, site: str, given: str) -> SpecError:
    tool, block = FIRST_BLOCKS[format]
    return SpecError(
        f"layer: {given}, but {tool} adds vectors only from the output of block {block} on; allowed at {site}: "
        f"layer {block - source_block(site, 0)} and above"
    )


def _text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _without_nan(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_nan(one) for one in value]
    if isinstance(value, dict):
        return {name: _without_nan(one) for name, one in value.items()}
    return None if isinstance(value, float) and isnan(value) else value


def _add_value(writer: Any, name: str, value: Any) -> None:
    """Add a value in its own type; GGUFWriter alone would store floats with 32 bits."""
    kinds = {str: GGUFValueType.STRING, int: GGUFValueType.INT32, float: GGUFValueType.FLOAT64}
    if isinstance(value, list):
        writer.add_key_value(name, value, GGUFValueType.ARRAY, kinds[type(value[0])])
    else:
        writer.add_key_value(name, value, kinds[type(value)])
