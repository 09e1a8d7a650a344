"""Read and write the tables of a set's prompts, one row for each, and of its tokens, one row for each."""

from collections.abc import Mapping, Sequence
from contextlib import suppress

import numpy as np
import pandas as pd

from theodolite.errors import RunDamagedError
from theodolite.shard_bounds import ShardBounds
from theodolite.spec import TokenIds, digest_of
from theodolite.store.layout import prompts_key, tokens_key
from theodolite.store.manifest import captured_object
from theodolite.store.objects import Location, put, put_new
from theodolite.store.runs import Run
from theodolite.store.tables import decode_table, encode_table


def write_tokens(location: Location, prompt_set: str, tokens: Sequence[TokenIds]) -> None:
    """Write the token ids of a set unless they exist; a resumed survey reads the existing ones."""
    lengths = [len(ids) for ids in tokens]
    frame = pd.DataFrame(
        {
            "sample": np.repeat(np.arange(len(tokens)), lengths),
            "index": np.concatenate([np.arange(length) for length in lengths]),
            "token_id": np.concatenate([np.asarray(ids) for ids in tokens]),
        }
    )
    put_new(location, tokens_key(prompt_set), encode_table(frame))


def read_tokens(run: Run, prompt_set: str) -> list[TokenIds]:
    """Return the token ids of each prompt of a set; raises RunDamagedError if they are not those of run.json."""
    key = tokens_key(prompt_set)
    frame = decode_table(captured_object(run, key), key)
    tokens: list[TokenIds] = []
    with suppress(KeyError, ValueError, TypeError):  # other columns or values than `write_tokens` writes
        ends = np.cumsum(np.bincount(frame["sample"]))[:-1]
        tokens = [tuple(int(token) for token in ids) for ids in np.split(frame["token_id"].to_numpy(), ends)]
    if digest_of(tokens) != run.record.sets[prompt_set].token_ids_sha256:
        raise RunDamagedError(
            f"{run.id}: {key}: its tokens are not those of run.json; run `theodolite verify {run.id} --repair`"
        )
    return tokens


def write_prompts(
    location: Location,
    prompt_set: str,
    texts: Sequence[str],
    n_tokens: Sequence[int],
    bounds: ShardBounds,
    quarantined: Mapping[int, str],
) -> None:
    """Write a row for each prompt; `status` is ok or quarantined, and `error` the reason for quarantine."""
    samples = range(len(texts))
    frame = pd.DataFrame(
        {
            "sample": np.arange(len(texts)),
            "text": list(texts),
            "n_tokens": np.asarray(n_tokens),
            "shard": [bounds.index_of(sample) for sample in samples],
            "status": ["quarantined" if sample in quarantined else "ok" for sample in samples],
            "error": [quarantined.get(sample, "") for sample in samples],
        }
    )
    put(location, prompts_key(prompt_set), encode_table(frame))


def read_prompts(run: Run, prompt_set: str) -> pd.DataFrame:
    """Return the table of a set's prompts; raises RunDamagedError if its checksum is not that of COMPLETE."""
    return decode_table(captured_object(run, prompts_key(prompt_set)), prompts_key(prompt_set))
