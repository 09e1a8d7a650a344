"""Write the stored activations of a prompt set as files for other tools, to a folder or a bucket."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from theodolite.digests import digest_of
from theodolite.errors import ResultsNotFoundError, SpecError
from theodolite.query.activations import chosen_places, commit_of, tokens_at, usable_positions
from theodolite.sites import Site
from theodolite.spec_parts import Label
from theodolite.store.checksums import sha256
from theodolite.store.objects import get, keys, open_location, put, put_new
from theodolite.store.runs import Run
from theodolite.store.shards import read_layers, vector_shape
from theodolite.version import __version__

FORMATS = ("arrow", "safetensors", "npy")

REQUEST, SUMS = "export.json", "SHA256SUMS"
"""The first object of an export, and its last one: what was requested, and the checksums of all other objects."""

_HOOKS = {Site.HEAD_OUT: "attn.hook_z", Site.RESID_FINAL: "hook_resid_post"}


def export_activations(
    run: Run, prompt_set: str, site: str, layers: Sequence[int], positions: Sequence[Label], to: str, output: str
) -> None:
    """Write the activations of a set, each shard as one file or several, with an index and checksums.

    A repeated call keeps the files that are there, and writes those that are missing or differ from the checksums. The
    activations are (prompt, position, d_model), float32, under the name that TransformerLens gives to their hook point;
    heads are joined. Prompts that are quarantined, or too short for one of the positions, are left out.

    Args:
        run: the run.
        prompt_set: name of the set.
        site: site in the block, or `resid_final`.
        layers: 0-based indices of the blocks; none selects all that have the site.
        positions: token positions from the end, or their names; none selects all stored ones.
        to: one of FORMATS; `arrow` is a dataset of Hugging Face's `datasets`.
        output: a folder, or a file://, s3://, gs:// or az:// URL.

    Raises:
        SpecError: there is no such set, site, layer, position or format, or the output holds something else.
        ResultsNotFoundError: the run stores no activations of the set, or no prompt is left.
        RunDamagedError: a shard differs from its commit record.
        StoreError: the output cannot be written.
    """
    if to not in FORMATS:
        raise SpecError(f"to: given {to!r}; allowed: {', '.join(FORMATS)}")
    chosen, places = chosen_places(run, prompt_set, site, layers, positions)
    source = _Source(run, prompt_set, chosen, tuple(places.get("layer", ())), tuple(places["position"]))
    request, location = _json({**source.facts, "format": to}), open_location(output, create=True)
    encode = {"arrow": _arrow, "safetensors": _safetensors, "npy": _npy}[to]
    present = set(keys(location))
    if (present and REQUEST not in present) or not put_new(location, REQUEST, request):
        raise SpecError(f"output: {output} holds other files or another export; choose an empty folder")
    known = dict(line.split("  ")[::-1] for line in (get(location, SUMS) or b"").decode().splitlines())
    sums = {REQUEST: sha256(request)}
    for number, shard in enumerate(source.samples):
        names = source.names(to, number)
        kept = {name: sha256(get(location, name) or b"") for name in names if name in present}
        if len(kept) == len(names) and all(known.get(name, checksum) == checksum for name, checksum in kept.items()):
            sums |= kept
            continue
        for name, content in encode(source, number, source.columns(shard)).items():
            put(location, name, content)
            sums[name] = sha256(content)
    for name, content in _indices(source, to).items():
        put(location, name, content)
        sums[name] = sha256(content)
    put(location, SUMS, "".join(f"{sums[name]}  {name}\n" for name in sorted(sums)).encode())


@dataclass(frozen=True)
class _Source:
    """What is exported."""

    run: Run
    prompt_set: str
    site: Site
    chosen: tuple[int, ...]  # layers; none for `resid_final`
    positions: tuple[Label, ...]

    @cached_property
    def layers(self) -> list[int]:
        """The layers that have the site."""
        found = [layer for layer in self.chosen if self.run.record.has_site(self.site, layer)]
        if self.chosen and not found:
            reason = self.run.record.partial_sites[self.site].reason
            raise SpecError(f"layer: no requested layer has {self.site}: {reason}")
        return found

    @cached_property
    def hooks(self) -> list[str]:
        """The name of TransformerLens for each layer; `resid_final` is the output of the last block."""
        layers = self.layers or [self.run.record.model.n_layers - 1]
        return [f"blocks.{layer}.{_HOOKS.get(self.site, f'hook_{self.site}')}" for layer in layers]

    @cached_property
    def samples(self) -> dict[int, list[int]]:
        """The exported prompts of each shard that has any."""
        usable = [bool(reached.all()) for reached in usable_positions(self.run, self.prompt_set, self.positions)]
        if not any(usable):
            raise ResultsNotFoundError(
                f"{self.run.id}: no prompt of {self.prompt_set} has usable activations at all requested positions"
            )
        bounds = self.run.record.bounds(self.prompt_set)
        found = {shard: [one for one in range(*bounds.of(shard)) if usable[one]] for shard in range(bounds.n_stored)}
        return {shard: samples for shard, samples in found.items() if samples}

    @cached_property
    def shape(self) -> tuple[int, int]:
        """The positions and the width of the activations of a prompt."""
        return len(self.positions), prod(vector_shape(self.run, self.site))

    @cached_property
    def facts(self) -> dict[str, Any]:
        """Where the activations come from, and what they are."""
        model, n_prompts = self.run.record.model, sum(map(len, self.samples.values()))
        return {
            "run_id": self.run.id,
            "model": model.name,
            "revision": model.revisions,
            "set": self.prompt_set,
            "site": str(self.site),
            "layers": self.layers,
            "positions": self.positions,
            "hooks": self.hooks,
            "shape": [n_prompts, *self.shape],
            "left_out": self.run.record.bounds(self.prompt_set).n_kept - n_prompts,
            "written_by": f"theodolite {__version__}",
        }

    @cached_property
    def tokens(self) -> list[list[int]]:
        """The token ids of each prompt of the set at the positions."""
        return tokens_at(self.run, self.prompt_set, self.positions)

    def names(self, to: str, number: int) -> list[str]:
        """Return the names of the files of a shard, by its number among those that are exported."""
        if to == "npy":
            return [f"{column}.{number:05d}.npy" for column in (*self.hooks, "token_ids", "sample")]
        stem, first, suffix = ("data", 0, "arrow") if to == "arrow" else ("activations", 1, "safetensors")
        return [f"{stem}-{number + first:05d}-of-{len(self.samples):05d}.{suffix}"]

    def columns(self, shard: int) -> dict[str, NDArray[Any]]:
        """Return the activations of a shard by hook point, its token ids at the positions, and its samples."""
        captured, known = self.run.record.sets[self.prompt_set].positions, self.run.record.layers
        positions, samples = [captured.index(one) for one in self.positions], self.samples[shard]
        rows = np.array(samples) - self.run.record.bounds(self.prompt_set).of(shard)[0]
        commit = commit_of(self.run, self.prompt_set, shard)
        values = read_layers(self.run, commit, self.site, [known.index(layer) for layer in self.layers] or [0])
        activations = (layer[rows][:, positions].reshape(len(rows), *self.shape) for layer in values)
        return {
            **dict(zip(self.hooks, activations, strict=True)),
            "token_ids": np.array([self.tokens[one] for one in samples], np.int32),
            "sample": np.array(samples, np.int64),
        }

    @property
    def features(self) -> dict[str, Any]:
        """The columns as `datasets` describes them."""
        tokens = {"feature": {"dtype": "int32", "_type": "Value"}, "length": self.shape[0], "_type": "Sequence"}
        of_hooks = {hook: {"shape": self.shape, "dtype": "float32", "_type": "Array2D"} for hook in self.hooks}
        return {**of_hooks, "token_ids": tokens, "sample": {"dtype": "int64", "_type": "Value"}}


def _npy(source: _Source, number: int, columns: dict[str, NDArray[Any]]) -> dict[str, bytes]:
    contents = []
    for values in columns.values():
        content = BytesIO()
        np.save(content, values)
        contents.append(content.getvalue())
    return dict(zip(source.names("npy", number), contents, strict=True))


def _safetensors(source: _Source, number: int, columns: dict[str, NDArray[Any]]) -> dict[str, bytes]:
    tensors = {f"{column}.{number:05d}": np.ascontiguousarray(values) for column, values in columns.items()}
    (name,) = source.names("safetensors", number)
    return {name: save(tensors, {"theodolite": json.dumps(source.facts)})}


def _arrow(source: _Source, number: int, columns: dict[str, NDArray[Any]]) -> dict[str, bytes]:
    """Return a file in Arrow's stream format, whose schema says what `datasets` would write.

    https://huggingface.co/docs/datasets/about_arrow; not its own writer, which needs the whole package of the jobs.
    """
    try:
        import pyarrow as pa
    except ModuleNotFoundError:
        raise SpecError("to: arrow needs pyarrow, which is not installed; pip install 'theodolite[arrow]'") from None

    def lists(values: NDArray[Any]) -> Any:
        array = pa.array(values.reshape(-1))
        for axis in range(values.ndim - 1, 0, -1):
            size, rows = values.shape[axis], int(np.prod(values.shape[:axis]))
            array = pa.ListArray.from_arrays(pa.array(np.arange(rows + 1, dtype=np.int32) * size), array)
        return array

    extension = {
        "ARROW:extension:name": "datasets.features.features.Array2DExtensionType",
        "ARROW:extension:metadata": json.dumps([source.shape, "float32"]),
    }
    arrays = [lists(columns[hook]) for hook in source.hooks]
    fields = [pa.field(hook, array.type, metadata=extension) for hook, array in zip(source.hooks, arrays, strict=True)]
    tokens = pa.FixedSizeListArray.from_arrays(pa.array(columns["token_ids"].reshape(-1)), source.shape[0])
    fields += [pa.field("token_ids", tokens.type), pa.field("sample", pa.int64())]
    schema = pa.schema(fields, metadata={"huggingface": json.dumps({"info": {"features": source.features}})})
    batch = pa.record_batch([*arrays, tokens, pa.array(columns["sample"])], schema=schema)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(batch)
    (name,) = source.names("arrow", number)
    return {name: sink.getvalue().to_pybytes()}


def _indices(source: _Source, to: str) -> dict[str, bytes]:
    """Return the files that name the others, or describe them, for the readers of a format."""
    files = [source.names(to, number)[0] for number in range(len(source.samples))]
    if to == "arrow":
        state: dict[str, Any] = {
            "_data_files": [{"filename": name} for name in files],
            "_fingerprint": digest_of(source.facts)[:16],
        }
        state |= dict.fromkeys(("_format_columns", "_format_type", "_split"))
        state |= {"_format_kwargs": {}, "_output_all_columns": False}
        info = {"features": source.features, "description": json.dumps(source.facts), "citation": "", "homepage": ""}
        return {"state.json": _json(state), "dataset_info.json": _json({**info, "license": ""})}
    if to == "safetensors":
        columns = (*source.hooks, "token_ids", "sample")
        weights = {f"{column}.{number:05d}": name for number, name in enumerate(files) for column in columns}
        index = {"metadata": source.facts, "weight_map": dict(sorted(weights.items()))}
        return {"activations.safetensors.index.json": _json(index)}
    return {}


def _json(content: Any) -> bytes:
    return json.dumps(content, indent=1).encode()
