"""Runs written straight from arrays: tests of the store and the statistics need no model."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from theodolite.digests import digest_of
from theodolite.groups import GROUPS
from theodolite.sites import Site
from theodolite.spec import TokenIds
from theodolite.spec_file import parse_spec
from theodolite.store.activations import encode_counts, encode_experts, encode_shard, layers_of
from theodolite.store.checksums import sha256
from theodolite.store.commits import commit_shard, new_attempt
from theodolite.store.descriptions import encode_descriptions
from theodolite.store.layout import prompts_key, tokens_key
from theodolite.store.manifest import captured_keys, list_groups
from theodolite.store.objects import Location, get, keys, put
from theodolite.store.prompts import encode_prompts, encode_tokens
from theodolite.store.records import Commit
from theodolite.store.result_writer import consolidate
from theodolite.store.runs import ModelFacts, Run, RunRecord, SetFacts, create_run
from theodolite.store.tables import decode_table


def read_table(location: Location, key: str) -> pd.DataFrame:
    """Return a table of results."""
    return decode_table(get(location, key) or b"", key)


def assert_declared(run: Run) -> None:
    """Assert that each table of a run has the columns that the record of its group declares."""
    declared = {table.name: table.names for group in GROUPS.values() for table in group.tables}
    stored = {Path(key).stem: read_table(run.location, key) for key in keys(run.location, "tables")}
    assert {name: list(frame) for name, frame in stored.items()} == {name: declared[name] for name in stored}


_MODEL: dict[str, Any] = {
    "name": "tiny",
    "kind": "folder",
    "place": "tiny",
    "revision": "sha256:0",
    "family": "llama",
    "dtype": "float32",
    "attention": "sdpa",
    "n_heads": 2,
    "n_kv_heads": 2,
    "d_head": 4,
    "context_length": 128,
}
_PARITY = {
    "prompts": 2,
    "dtype": "float32",
    "device": "cpu",
    "bound": 5e-5,
    "max_error": 1e-6,
    "identity_error": 1e-7,
    "sites_known_by": "record",
    "post_norm": False,
    "branches_add": True,
    "attention": "sdpa",
    "ranks": 1,
    "float32_blocks_max_error": None,
    "warning": None,
}

Arrays = Mapping[str, Mapping[str, NDArray[Any]]]
"""Set → site → (sample, position, layer, d_model)."""


def record_of(
    arrays: Arrays,
    shard_prompts: int,
    contrasts: Mapping[str, Any] | None = None,
    positions: Mapping[str, list[Any]] | None = None,
    n_experts: int = 0,
    n_choices: Mapping[str, int] | None = None,
    n_units: Mapping[str, int] | None = None,
    **changes: Any,
) -> RunRecord:
    """Return the record of a run that holds `arrays`; `changes` replace fields of the record."""
    positions = positions or {}
    sites = list(next(iter(arrays.values())))
    shapes = {name: of_set[sites[0]].shape for name, of_set in arrays.items()}
    of_sets = {name: positions.get(name, list(range(-shape[1], 0))) for name, shape in shapes.items()}
    spec = parse_spec(
        {
            "model": {"id": "tiny"},
            "prompts": {name: {"source": "builtin:nouns", "positions": of_sets[name]} for name in arrays},
            "capture": {"sites": sites, "shard_prompts": shard_prompts, "batch_tokens": 2048},
            "contrasts": contrasts or {},
            "analyses": ["curves"],
        }
    )
    _, _, n_layers, d_model = next(iter(shapes.values()))
    facts = {
        name: SetFacts(
            n_samples=shape[0],
            n_shards=-(-shape[0] // shard_prompts),
            n_batches=-(-shape[0] // shard_prompts),
            plan_sha256="0",
            positions=spec.labels_of(name),
            template="none",
            shared_prefix=0,
            tokens=8 * shape[0],
            computed_tokens=8 * shape[0],
            token_ids_sha256=digest_of(tokens_of(shape[0])),
            n_first=0,
            n_units=(n_units or {}).get(name, 0),
            n_experts=n_experts,
            n_choices=(n_choices or {}).get(name, 0),
        )
        for name, shape in shapes.items()
    }
    return RunRecord(
        **{
            "run_id": "tiny-0",
            "digest": "0",
            "created": datetime(2026, 1, 1, tzinfo=UTC),
            "spec": spec,
            "model": ModelFacts(**_MODEL, n_layers=n_layers, d_model=d_model),
            "layers": list(range(n_layers)),
            "sets": facts,
            "parity": _PARITY,
            "versions": {"theodolite": "0"},
            **changes,
        }
    )


def tokens_of(n_samples: int) -> list[TokenIds]:
    """Return the token ids of each prompt of a set: one token for each."""
    return [(sample,) for sample in range(n_samples)]


def store_run(
    folder: Path,
    arrays: Arrays,
    shard_prompts: int = 4,
    quarantined: Mapping[str, Mapping[int, str]] | None = None,
    signs: Mapping[str, NDArray[np.bool_]] | None = None,
    final: Mapping[str, NDArray[Any]] | None = None,
    experts: Mapping[str, NDArray[Any]] | None = None,
    **record: Any,
) -> Run:
    """Write a captured run.

    Args:
        folder: the store.
        arrays: set → site → (sample, position, layer, d_model).
        shard_prompts: maximum number of prompts of a shard.
        quarantined: set → sample → the reason of its quarantine.
        signs: set → (sample, position, layer, unit), counted over each shard's usable samples.
        final: set → `resid_final`, (sample, position, d_model); by default the first site at the last layer.
        experts: set → the experts of each token, (sample, position, layer, choice); the record has `n_experts`.
        record: contrasts, positions and other fields of the record.
    """
    n_choices = {name: chosen.shape[-1] for name, chosen in (experts or {}).items()}
    n_units = {name: positive.shape[-1] for name, positive in (signs or {}).items()}
    run = create_run(str(folder), record_of(arrays, shard_prompts, n_choices=n_choices, n_units=n_units, **record))
    for name, of_set in arrays.items():
        whole: dict[Site, NDArray[Any]] = {Site(site): values for site, values in of_set.items()}
        first = next(iter(whole.values()))
        coordinates: dict[str, Any] = {
            "position": run.record.sets[name].positions,
            "layer": run.record.layers,
            "d_model": range(first.shape[-1]),
        }
        if Site.HEAD_OUT in whole:
            coordinates |= {"head": range(run.record.model.n_heads), "d_head": range(run.record.model.d_head)}
        positive = (signs or {}).get(name)
        if positive is not None:
            coordinates["unit"] = range(positive.shape[-1])
        chosen = (experts or {}).get(name)
        if chosen is not None:
            coordinates["choice"] = range(chosen.shape[-1])
        whole[Site.RESID_FINAL] = (final or {}).get(name, first[:, :, -1])
        described = encode_descriptions(name, run.record.bounds(name), list(whole), coordinates)
        for key, content in described.items():
            put(run.location, key, content)
        bad = dict((quarantined or {}).get(name, {}))
        for index, start in enumerate(range(0, len(first), shard_prompts)):
            stop = min(start + shard_prompts, len(first))
            encoded: dict[str, bytes] = {
                site: encode_shard(site, values[start:stop].astype(np.float32), start, shard_prompts)
                for site, values in whole.items()
            }
            usable = [sample for sample in range(start, stop) if sample not in bad]
            if positive is not None:
                encoded["mlp_positive"] = encode_counts(positive[usable].sum(axis=0, dtype=np.int32), index)
            if chosen is not None:
                encoded["experts"] = encode_experts(chosen[start:stop].astype(np.int16), start, shard_prompts)
            checksums = {str(array): sha256(content) for array, content in encoded.items()}
            own = {sample: why for sample, why in bad.items() if start <= sample < stop}
            commit = Commit(run.id, name, index, start, stop, new_attempt(), checksums, [list(range(start, stop))], own)
            commit_shard(run.location, replace(commit, layers=layers_of(encoded)), encoded)
        texts = [f"prompt {sample}" for sample in range(len(first))]
        table = encode_prompts(texts, [1] * len(first), run.record.bounds(name), bad)
        put(run.location, prompts_key(name), table)
        put(run.location, tokens_key(name), encode_tokens(tokens_of(len(first))))
    consolidate(run)
    list_groups(run, {}, {key: sha256(get(run.location, key) or b"") for key in captured_keys(run)})
    return run
