"""Read and write captured arrays: activations at each site, counts of active neurons, and experts of tokens.

Each capture shard is one Zarr shard of an array of activations, and one chunk of the arrays of counts and experts.
"""

from collections.abc import Mapping
from contextlib import suppress

import google_crc32c
import numpy as np
from numcodecs import Blosc
from numpy.typing import NDArray
from zarr.buffer.cpu import Buffer

from theodolite.errors import RunDamagedError
from theodolite.sites import Site
from theodolite.store.checksums import damage_of
from theodolite.store.commits import array_key
from theodolite.store.descriptions import create_counts, create_experts, group_in_memory
from theodolite.store.layout import EXPERTS, MLP_POSITIVE, shard_key
from theodolite.store.objects import get
from theodolite.store.records import Commit
from theodolite.store.runs import Run

_COMPRESSOR = Blosc(cname="lz4", shuffle=Blosc.SHUFFLE)  # the codec of the descriptions, called without Zarr


def encode_shard(site: Site, values: NDArray[np.float32], start: int, shard_prompts: int) -> bytes:
    """Return the bytes of the Zarr shard with `values`; their first sample has the index `start` in its set.

    `start` is a multiple of `shard_prompts`, so a shard with fewer values is the last one of its set.

    Zarr would write the same bytes, with copies of the whole shard that take more time than the compression. A shard is
    the compressed chunks, one of each layer, and an index of offsets and lengths with a CRC-32C:
    https://zarr-specs.readthedocs.io/en/latest/v3/codecs/sharding-indexed/
    """
    layers = [values] if site is Site.RESID_FINAL else np.moveaxis(values, 2, 0)
    chunks = []
    for layer in layers:
        padding = [(0, shard_prompts - len(layer)), *[(0, 0)] * (layer.ndim - 1)]
        chunks.append(_COMPRESSOR.encode(np.pad(layer, padding, constant_values=np.nan)))
    lengths = np.array([len(chunk) for chunk in chunks], dtype="<u8")
    index = np.stack([lengths.cumsum() - lengths, lengths], axis=1).tobytes()
    return b"".join([*chunks, index, google_crc32c.value(index).to_bytes(4, "little")])


def layers_of(encoded: Mapping[str, bytes]) -> dict[str, list[tuple[int, int]]]:
    """Return the size and the CRC-32C of each compressed layer of a shard, by site; see `encode_shard`.

    A site without a readable index has none.
    """
    found = {}
    for site in sorted(encoded.keys() & set(map(str, Site))):
        content = encoded[site]
        with suppress(ValueError):
            end = sum(np.frombuffer(content[-20:-4], "<u8").tolist())  # of the last layer: there the index begins
            index = np.frombuffer(content[end:-4], "<u8").reshape(-1, 2).tolist()
            found[site] = [(size, google_crc32c.value(content[start : start + size])) for start, size in index]
    return found


def encode_counts(counts: NDArray[np.int32], shard_index: int) -> bytes:
    """Return the bytes of the Zarr chunk with a shard's `counts`, (position, layer, unit)."""
    lengths = dict(zip(MLP_POSITIVE.dims[1:], counts.shape, strict=True))
    group, memory = group_in_memory()
    create_counts(group, shard_index + 1, lengths)[shard_index] = counts
    content: bytes = memory[shard_key(MLP_POSITIVE.name, shard_index)].to_bytes()
    return content


def encode_experts(experts: NDArray[np.int16], start: int, shard_prompts: int) -> bytes:
    """Return the bytes of the Zarr chunk with a shard's `experts`, (sample, position, layer, choice).

    The first sample has the index `start` in its set; `start` is a multiple of `shard_prompts`.
    """
    lengths = dict(zip(EXPERTS.dims[1:], experts.shape[1:], strict=True))
    group, memory = group_in_memory()
    create_experts(group, start + len(experts), shard_prompts, lengths)[start:] = experts
    content: bytes = memory[shard_key(EXPERTS.name, start // shard_prompts)].to_bytes()
    return content


def read_experts(run: Run, commit: Commit) -> NDArray[np.int16]:
    """Return the experts of the tokens of a shard, (sample, position, layer, choice); -1 is none.

    The run must record them (`n_choices` of the set), and the shard must be one that is stored whole.

    Raises:
        RunDamagedError: the experts are missing, or their checksum differs from the commit record.
    """
    content, facts = committed_bytes(run, commit, EXPERTS.name), run.record.sets[commit.prompt_set]
    lengths = {"position": len(facts.positions), "layer": len(run.record.layers), "choice": facts.n_choices}
    shard_prompts = run.record.bounds(commit.prompt_set).shard_prompts
    group, memory = group_in_memory()
    array = create_experts(group, commit.stop, shard_prompts, lengths)
    memory[shard_key(EXPERTS.name, commit.index)] = Buffer.from_bytes(content)
    return np.asarray(array[commit.start :], dtype=np.int16)


def read_positive_counts(run: Run, commit: Commit) -> NDArray[np.int32] | None:
    """Return in how many of a shard's usable prompts each neuron is active, (position, layer, unit), or None.

    None means that the shard has no counts: its set has `positions: all`, or the model's hidden units are unknown.

    Raises:
        RunDamagedError: the counts are missing, or their checksum differs from the commit record.
    """
    if MLP_POSITIVE.name not in commit.checksums:
        return None
    content = committed_bytes(run, commit, MLP_POSITIVE.name)
    group, memory = group_in_memory()
    facts = run.record.sets[commit.prompt_set]
    lengths = {"position": len(facts.positions), "layer": len(run.record.layers), "unit": facts.n_units}
    array = create_counts(group, commit.index + 1, lengths)
    memory[shard_key(MLP_POSITIVE.name, commit.index)] = Buffer.from_bytes(content)
    return np.asarray(array[commit.index], dtype=np.int32)


def committed_bytes(run: Run, commit: Commit, name: str) -> bytes:
    """Return the bytes of one array of a shard; raises RunDamagedError if they are missing or have changed."""
    content = get(run.location, array_key(commit, name))
    if wrong := damage_of(content, commit.checksums[name], "committed"):
        raise RunDamagedError(
            f"{run.id}: shard {commit.name}, {name}: {wrong}; run `theodolite run verify {run.id} --repair`"
        )
    return content or b""
