"""Read and write the tables of a set's prompts, one row for each, and of its tokens, one row for each."""

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from theodolite.digests import digest_of
from theodolite.errors import RunDamagedError
from theodolite.shard_bounds import ShardBounds
from theodolite.spec import Spans, TokenIds
from theodolite.spec_parts import Label, counted
from theodolite.store.layout import prompts_key, tokens_key
from theodolite.store.manifest import captured_object, listed_checksums
from theodolite.store.runs import Run
from theodolite.store.tables import decode_table, encode_table


def encode_tokens(tokens: Sequence[TokenIds], labels: Sequence[Label] = (), spans: Sequence[Spans] = ()) -> bytes:
    """Return the table of a set's token ids, with a column for each named position that marks its tokens.

    `labels` and `spans` are the positions, and their tokens in each prompt, if positions have names.
    """
    lengths = [len(ids) for ids in tokens]
    frame = pd.DataFrame(
        {
            "sample": np.repeat(np.arange(len(tokens)), lengths),
            "index": np.concatenate([np.arange(length) for length in lengths]),
            "token_id": np.concatenate([np.asarray(ids) for ids in tokens]),
        }
    )
    for index, label in enumerate(labels):
        if counted(label) is None:
            start, stop = np.repeat([of_prompt[index] for of_prompt in spans], lengths, axis=0).T
            frame[_column(label)] = (frame["index"] >= start) & (frame["index"] < stop)
    return encode_table(frame)


def _column(label: Label) -> str:
    return f"at_{label}"


def read_spans(run: Run, prompt_set: str, tokens: Sequence[TokenIds]) -> list[Spans]:
    """Return the tokens of each position of each prompt of a set, whose token ids are given.

    Raises:
        RunDamagedError: the set has named positions, and its table of tokens does not mark them.
    """
    key, labels = tokens_key(prompt_set), run.record.sets[prompt_set].positions
    of_positions: list[list[tuple[int, int]]] = []
    has_names = any(counted(label) is None for label in labels)
    frame = decode_table(captured_object(run, key), key) if has_names else pd.DataFrame()
    for label in labels:
        if (place := counted(label)) is not None:
            of_positions.append([(len(ids) + place, len(ids) + place + 1) for ids in tokens])
            continue
        try:
            index = frame[frame[_column(label)]].groupby("sample")["index"].agg(["min", "max"])
        except KeyError as error:
            raise RunDamagedError(f"the table {key} has no column {error}") from error
        of_positions.append([(int(first), int(last) + 1) for first, last in index.itertuples(index=False)])
    return list(zip(*of_positions, strict=True))


def read_tokens(run: Run, prompt_set: str) -> list[TokenIds]:
    """Return the token ids of each prompt of a set; raises RunDamagedError if they are not those of run.json."""
    key = tokens_key(prompt_set)
    frame = decode_table(captured_object(run, key), key)
    try:
        tokens = tokens_of_rows(frame["sample"].to_numpy(), frame["token_id"].to_numpy())
    except (KeyError, ValueError, IndexError) as error:
        raise RunDamagedError(f"the table {key} has no token ids: {error}") from error
    if digest_of(tokens) != run.record.sets[prompt_set].token_ids_sha256:
        raise RunDamagedError(
            f"{run.id}: {key}: its tokens are not those of run.json; run `theodolite run verify {run.id} --repair`"
        )
    return tokens


def tokens_of_rows(samples: NDArray[np.int64], token_ids: NDArray[np.int64]) -> list[TokenIds]:
    """Return the token ids of each prompt from the columns of the table; raises ValueError if it is another table."""
    if not (samples == np.sort(samples)).all() or not 0 <= samples[0] <= samples[-1] < len(samples):
        raise ValueError("the samples are not in order")
    ends = np.cumsum(np.bincount(samples))[:-1]
    return [tuple(int(token) for token in ids) for ids in np.split(token_ids, ends)]


def encode_prompts(
    texts: Sequence[str], n_tokens: Sequence[int], bounds: ShardBounds, quarantined: Mapping[int, str]
) -> bytes:
    """Return a set's table, a row for each prompt: `status` is ok or quarantined, and `error` the reason."""
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
    return encode_table(frame)


def read_prompts(run: Run, prompt_set: str) -> pd.DataFrame:
    """Return the table of a set's prompts; raises RunDamagedError if its checksum is not that of COMPLETE."""
    key = prompts_key(prompt_set)
    checksum, read = listed_checksums(run).get(key), partial(captured_object, run, key)
    return decode_table(run.cached((key, checksum), read, len) if checksum else read(), key)
