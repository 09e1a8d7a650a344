"""Read and write the tables of a set's prompts, one row for each, and of its tokens, one row for each."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from theodolite.spec import TokenIds
from theodolite.store.objects import Location, put, put_new
from theodolite.store.tables import encode_table, read_table


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
    put_new(location, _tokens_key(prompt_set), encode_table(frame))


def read_tokens(location: Location, prompt_set: str) -> list[TokenIds]:
    """Return the token ids of each prompt of a set."""
    frame = read_table(location, _tokens_key(prompt_set))
    ends = np.cumsum(np.bincount(frame["sample"]))[:-1]
    return [tuple(int(token) for token in ids) for ids in np.split(frame["token_id"].to_numpy(), ends)]


def write_prompts(
    location: Location,
    prompt_set: str,
    texts: Sequence[str],
    n_tokens: Sequence[int],
    shard_prompts: int,
    quarantined: Mapping[int, str],
) -> None:
    """Write a row for each prompt; `status` is ok or quarantined, and `error` the reason for quarantine."""
    samples = range(len(texts))
    frame = pd.DataFrame(
        {
            "sample": np.arange(len(texts)),
            "text": list(texts),
            "n_tokens": np.asarray(n_tokens),
            "shard": np.arange(len(texts)) // shard_prompts,
            "status": ["quarantined" if sample in quarantined else "ok" for sample in samples],
            "error": [quarantined.get(sample, "") for sample in samples],
        }
    )
    put(location, prompts_key(prompt_set), encode_table(frame))


def read_prompts(location: Location, prompt_set: str) -> pd.DataFrame:
    """Return the table of a set's prompts."""
    return read_table(location, prompts_key(prompt_set))


def prompts_key(prompt_set: str) -> str:
    """Return the key of a set's table of prompts in the run."""
    return f"prompts/{prompt_set}.parquet"


def _tokens_key(prompt_set: str) -> str:
    return f"prompts/{prompt_set}.tokens.parquet"
