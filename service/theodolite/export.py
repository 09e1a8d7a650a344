"""Taking a contrast's directions away: safetensors, NumPy, or a control vector that llama.cpp and repeng read."""

import json
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
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
    """Write a contrast's directions to a file and return where it is; beside NAME.npy, NAME.npy.json says what it is.

    Args:
        run: the run, of a store or of a service.
        contrast: the contrast's name.
        site: a site of the blocks.
        layers: 0-based blocks; none are all that have a direction, and in a control vector all that can be placed.
        position: a token position; None is the last one measured.
        format: safetensors, npy or gguf.
        output: the file; None is `RUN.CONTRAST.SITE.LAYER.FORMAT` here, without LAYER where there are several.

    Raises:
        SpecError: there is no such format, contrast, site, layer or position, the means are equal there, llama.cpp has
            no place for the site, or the file cannot be written.
    """
    if format not in _ENCODERS:
        raise SpecError(f"format: given {format!r}; allowed: {', '.join(_ENCODERS)}")
    norms = run.curves(
        "difference_norm", contrast=contrast, site=site, position=None if position is None else [position]
    )
    norms = norms.isel(position=-1)
    position = int(norms["position"])
    differing = [int(layer) for layer in norms["layer"].values[norms["value"].values > 0]]
    chosen = list(dict.fromkeys(layers)) or differing
    about = run.describe()
    if format == "gguf":
        chosen = _placeable(about, site, chosen, explicit=bool(layers))
    vectors = {layer: run.direction(contrast, site, layer, position) for layer in chosen}
    if not vectors:
        raise SpecError(f"{contrast} has no direction at {site} of any layer: the means of its sets are equal there")
    metadata = _metadata(about, contrast, site, list(vectors), position)
    metadata |= {name: str(int(norms[name])) for name in ("n_positive", "n_negative")}
    path = output or Path(".".join([run.id, contrast, site, *map(str, chosen if len(chosen) == 1 else ()), format]))
    if format == "npy":
        _write(path.with_name(f"{path.name}.json"), json.dumps(metadata, indent=1).encode())
    _write(path, _ENCODERS[format](vectors, metadata))
    return path


def encode_safetensors(vectors: Vectors, metadata: Mapping[str, str]) -> bytes:
    """Return a safetensors file: `direction` (d_model), or `direction.LAYER` where there are several."""
    names = {layer: "direction" if len(vectors) == 1 else f"direction.{layer}" for layer in vectors}
    encoded: bytes = encode_tensors(
        {names[layer]: vector.astype(np.float32) for layer, vector in vectors.items()}, dict(metadata)
    )
    return encoded


def encode_npy(vectors: Vectors, _metadata: Mapping[str, str] | None = None) -> bytes:
    """Return a NumPy file: (d_model), or (layer, d_model) where there are several; it has no room for metadata."""
    stacked = np.stack(list(vectors.values())).astype(np.float32)
    content = BytesIO()
    np.save(content, stacked[0] if len(vectors) == 1 else stacked)
    return content.getvalue()


def encode_control_vector(vectors: Vectors, metadata: Mapping[str, str]) -> bytes:
    """Return a GGUF control vector as llama.cpp and repeng read it: `direction.N` is added to what leaves block N.

    The metadata stands under `theodolite.…`; its `family` is the hint at the model, its `site` says which block's
    output each layer is.
    """
    with TemporaryDirectory() as folder:  # the writer knows files alone
        path = Path(folder) / "vector.gguf"
        writer = gguf.GGUFWriter(path, "controlvector")
        writer.add_string("controlvector.model_hint", metadata["family"])
        writer.add_uint32("controlvector.layer_count", len(vectors))
        for name, value in metadata.items():
            writer.add_string(f"theodolite.{name}", value)
        for layer, vector in vectors.items():
            writer.add_tensor(f"direction.{block_left(metadata['site'], layer)}", vector.astype(np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path.read_bytes()


def block_left(site: str, layer: int) -> int:
    """Return the 0-based block after which a site's stream is the stream; -1 is the embedding.

    llama.cpp adds a control vector to the stream between two blocks and nowhere else; what enters block l has left
    block l-1. It skips block 0 (`llama_adapter_cvec::init`: "there's never a tensor for layer 0").

    Raises:
        SpecError: the site is not between two blocks.
    """
    if site == Site.RESID_PRE:
        return layer - 1
    if site == Site.RESID_POST:
        return layer
    raise SpecError(
        f"site: given {site!r}, and llama.cpp adds control vectors only to the stream that leaves a block; export "
        "resid_pre or resid_post, or choose safetensors or npy"
    )


_ENCODERS: dict[str, Callable[[Vectors, Mapping[str, str]], bytes]] = {
    "safetensors": encode_safetensors,
    "npy": encode_npy,
    "gguf": encode_control_vector,
}


def _placeable(about: Mapping[str, Any], site: str, layers: Sequence[int], *, explicit: bool) -> list[int]:
    """Return the layers whose stream llama.cpp can add to; one that was asked for and cannot be placed is refused."""
    if about["parity"].get("post_norm"):
        raise SpecError(f"{about['run_id']} is of an encoder, and llama.cpp adds control vectors to decoders alone")
    first = 1 - block_left(site, 0)
    left_out = [layer for layer in layers if layer < first]
    if left_out and explicit:
        raise SpecError(
            f"layer: given {left_out[0]}, and llama.cpp adds nothing before block 1 has run; at {site} the first that "
            f"it can place is {first}"
        )
    return [layer for layer in layers if layer >= first]


def _metadata(
    about: Mapping[str, Any], contrast: str, site: str, layers: Sequence[int], position: int
) -> dict[str, str]:
    model, sets = about["model"], about["contrast_sets"][contrast]
    return {
        "run_id": about["run_id"],
        "model": model["place"] if model["kind"] == "hub" else model["name"],
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
    """Write a file; raises SpecError where it cannot be written."""
    try:
        write_atomically(path, content)
    except OSError as error:
        raise SpecError(f"output: cannot write {path}: {error.strerror}") from error
