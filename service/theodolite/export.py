"""Export a contrast's directions as safetensors, NumPy, or a GGUF control vector for llama.cpp and repeng."""

import json
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from math import isnan
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save as encode_tensors

from theodolite.errors import SpecError
from theodolite.files import write_atomically
from theodolite.run_reader import RunReader
from theodolite.sites import Site
from theodolite.version import __version__

CONVENTION = "positive minus negative, unit length"

Vectors = Mapping[int, NDArray[np.float64]]
"""Unit vectors (d_model) by layer."""


def export_direction(
    run: RunReader,
    contrast: str,
    site: str,
    layers: Sequence[int] = (),
    position: int | None = None,
    format: str = "safetensors",
    output: Path | None = None,
) -> Path:
    """Write a contrast's directions to a file and return its path; NAME.npy gets its metadata in NAME.npy.json.

    Args:
        run: the run, from a store or a service.
        contrast: the contrast's name.
        site: site in the block, such as `resid_pre`.
        layers: 0-based indices of the blocks. By default all that have a direction, and for gguf all of these that
            llama.cpp can apply.
        position: token position from the end; None selects the last measured one.
        format: safetensors, npy or gguf.
        output: the file. By default `RUN.CONTRAST.SITE.LAYER.FORMAT` in the working folder, without LAYER for several
            layers.

    Raises:
        SpecError: there is no such format, contrast, site, layer or position, the means are equal at it, llama.cpp
            cannot apply a vector at the site, or the file cannot be written.
    """
    if format not in _ENCODERS:
        raise SpecError(f"format: given {format!r}; allowed: {', '.join(_ENCODERS)}")
    positions = None if position is None else [position]
    norms = run.curves("difference_norm", contrast=contrast, site=site, position=positions).isel(position=-1)
    position = int(norms["position"])
    differing = [int(layer) for layer in norms["layer"].values[norms["value"].values > 0]]
    chosen = list(dict.fromkeys(layers)) or differing
    about = run.describe()
    if format == "gguf":
        chosen = _layers_of_control_vector(about, site, chosen, explicit=bool(layers))
    vectors = {layer: run.direction(contrast, site, layer, position) for layer in chosen}
    if not vectors:
        raise SpecError(f"{contrast} has no direction at {site} of any layer: the means of its sets are equal")
    metadata = _metadata(about, contrast, site, list(vectors), position)
    metadata |= {name: str(int(norms[name])) for name in ("n_positive", "n_negative")}
    for statistic in ("reliability", "noise_share"):
        values = run.curves(statistic, contrast=contrast, site=site, position=[position])["value"].isel(position=-1)
        chosen_values = [float(values.sel(layer=layer)) for layer in vectors]
        if not any(map(isnan, chosen_values)):  # an older version did not compute it
            metadata[statistic] = ",".join(f"{value:.3f}" for value in chosen_values)
    path = output or Path(".".join([run.id, contrast, site, *map(str, chosen if len(chosen) == 1 else ()), format]))
    if format == "npy":
        _write(path.with_name(f"{path.name}.json"), json.dumps(metadata, indent=1).encode())
    _write(path, _ENCODERS[format](vectors, metadata))
    return path


def encode_safetensors(vectors: Vectors, metadata: Mapping[str, str]) -> bytes:
    """Return a safetensors file with `direction` (d_model), or with `direction.LAYER` for each of several layers."""
    tensors = {
        "direction" if len(vectors) == 1 else f"direction.{layer}": vector.astype(np.float32)
        for layer, vector in vectors.items()
    }
    return bytes(encode_tensors(tensors, dict(metadata)))


def encode_npy(vectors: Vectors, _metadata: Mapping[str, str] | None = None) -> bytes:
    """Return a NumPy file: (d_model), or (layer, d_model) for several layers; the format stores no metadata."""
    stacked = np.stack(list(vectors.values())).astype(np.float32)
    content = BytesIO()
    np.save(content, stacked[0] if len(vectors) == 1 else stacked)
    return content.getvalue()


def encode_control_vector(vectors: Vectors, metadata: Mapping[str, str]) -> bytes:
    """Return a GGUF control vector for llama.cpp and repeng, which add `direction.N` to the output of block N.

    The file has the metadata under `theodolite.…`. The metadata's `family` becomes the model hint, and its `site`
    determines the block for each layer.
    """
    with TemporaryDirectory() as folder:  # GGUFWriter writes only files
        path = Path(folder) / "vector.gguf"
        writer = gguf.GGUFWriter(path, "controlvector")
        writer.add_string("controlvector.model_hint", metadata["family"])
        writer.add_uint32("controlvector.layer_count", len(vectors))
        for name, value in metadata.items():
            writer.add_string(f"theodolite.{name}", value)
        for layer, vector in vectors.items():
            writer.add_tensor(f"direction.{source_block(metadata['site'], layer)}", vector.astype(np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path.read_bytes()


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
        f"site: given {site!r}, but llama.cpp adds control vectors only to the output of a block; allowed: resid_pre "
        "and resid_post; or choose the format safetensors or npy"
    )


_ENCODERS: dict[str, Callable[[Vectors, Mapping[str, str]], bytes]] = {
    "safetensors": encode_safetensors,
    "npy": encode_npy,
    "gguf": encode_control_vector,
}


def _layers_of_control_vector(
    about: Mapping[str, Any], site: str, layers: Sequence[int], *, explicit: bool
) -> list[int]:
    """Return the layers whose stream llama.cpp can add to; raises SpecError for another layer if `explicit`."""
    if about["parity"].get("post_norm"):
        raise SpecError(
            f"format: given 'gguf', but the model of {about['run_id']} is an encoder, and llama.cpp adds control "
            "vectors only to decoders; choose safetensors or npy"
        )
    first = 1 - source_block(site, 0)
    left_out = [layer for layer in layers if layer < first]
    if left_out and explicit:
        raise SpecError(
            f"layer: given {left_out[0]}, but llama.cpp adds control vectors only from the output of block 1 on; "
            f"allowed at {site}: layer {first} and above"
        )
    return [layer for layer in layers if layer >= first]


def _metadata(
    about: Mapping[str, Any], contrast: str, site: str, layers: Sequence[int], position: int
) -> dict[str, str]:
    model, sets = about["model"], about["contrast_sets"][contrast]
    has_hub_id = model["kind"] == "hub" and model.get("weights") != "random"  # a hub id names trained weights
    return {
        "run_id": about["run_id"],
        "model": model["place"] if has_hub_id else model["name"],
        "revision": model["revision"],
        "family": model["family"],
        "contrast": contrast,
        "positive": sets["positive"],
        "negative": sets["negative"],
        "site": site,
        "layer": ",".join(map(str, layers)),
        "position": str(position),
        "convention": CONVENTION,
        "written_by": f"theodolite {__version__}",
    }


def _write(path: Path, content: bytes) -> None:
    """Write a file; raises SpecError if this fails."""
    try:
        write_atomically(path, content)
    except OSError as error:
        raise SpecError(f"output: cannot write {path}: {error.strerror}; choose another path") from error
