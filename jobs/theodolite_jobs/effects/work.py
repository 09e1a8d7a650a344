"""The prompts and questions of an analysis of effects, and the objects that hold them and their answers.

The objects are under `pending/effects.parts/DIGEST/`: for each contrast and position the vectors of its interventions,
and the numbers of each part of its prompts. They remain until the result group is written, so an analysis that was
killed continues after its last part.
"""

import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from theodolite.errors import StoreError
from theodolite.sites import Site
from theodolite.spec import TokenIds
from theodolite.store.objects import Location, delete, get, keys, put, put_new
from theodolite_jobs.capture.plan import SetPlan, ShardPlan

Arrays = dict[str, NDArray[np.float64]]

PART_PROMPTS = 32
"""The number of prompts in a part; even, because pairs are not divided."""

_PARTS = "pending/effects.parts"


@dataclass(frozen=True)
class Question:
    """What to change and to measure; equal for all prompts of a contrast at a position."""

    sites: tuple[Site, ...]  # where states are changed
    layers: tuple[int, ...]
    doses: tuple[float, ...]  # include -1 and 1
    first: tuple[int, ...]  # the first group of next tokens
    second: tuple[int, ...]
    is_paired: bool  # whether a patch gives the pair's state, else the other set's mean state
    has_parts: bool  # whether heads, attention, MLPs and blocks are patched; needs pairs

    @property
    def places(self) -> list[tuple[Site, int]]:
        """The site and the layer of each state that is changed."""
        return [(site, layer) for site in self.sites for layer in self.layers]


@dataclass(frozen=True)
class Vectors:
    """The vectors that interventions use, of float32; places are in the order of `Question.places`.

    Attributes:
        differences: difference of the means, positive minus negative, (place, d_model); 0 where the means are equal.
        means: means of the positive and of the negative set, (2, place, d_model).
        matched: random directions of the samples' covariance, as many standard deviations long as the differences,
            (draw, place, d_model).
        permuted: differences with permuted labels at right angles to the differences, with their length, (draw, place,
            d_model).
        scores: (layer, d_model) vectors whose product with the difference of the means at a block's input is 1.
        score_layers: the layers of these blocks.
    """

    differences: NDArray[np.float32]
    means: NDArray[np.float32]
    matched: NDArray[np.float32]
    permuted: NDArray[np.float32]
    scores: NDArray[np.float32]
    score_layers: tuple[int, ...] = ()


@dataclass(frozen=True)
class EffectsWork:
    """What to measure, by label: each label stands for a contrast at a position.

    Attributes:
        digest: digest of the result group.
        tokens: token ids of the positive and the negative prompt of each pair in turns; they end at the position.
        questions: what to change and to measure.
    """

    digest: str
    tokens: Mapping[str, list[TokenIds]]
    questions: Mapping[str, Question]

    def parts(self, label: str) -> list[ShardPlan]:
        """Return the parts of the prompts of a label, in order."""
        count = len(self.tokens[label])
        starts = range(0, count, PART_PROMPTS)
        ends = [min(start + PART_PROMPTS, count) for start in starts]
        return [
            ShardPlan(label, index, start, stop, (tuple(range(start, stop)),))
            for index, (start, stop) in enumerate(zip(starts, ends, strict=True))
        ]

    def plan(self, label: str) -> SetPlan:
        """Return the plan with which the parity check captures prompts of a label."""
        n_tokens = sum(map(len, self.tokens[label]))
        return SetPlan(label, (-1,), 0, tuple(self.parts(label)), n_tokens, n_tokens)


def write_vectors(location: Location, digest: str, label: str, vectors: Vectors) -> None:
    """Store the vectors of a label; every driver of the same digest writes the same bytes."""
    put(location, f"{_PARTS}/{digest}/{label}/vectors.npz", _encode(asdict(vectors)))


def read_vectors(location: Location, digest: str, label: str) -> Vectors:
    """Return the stored vectors of a label; raises StoreError if they are missing or damaged."""
    key = f"{_PARTS}/{digest}/{label}/vectors.npz"
    arrays = _decode(get(location, key))
    if arrays is None or set(arrays) != {field.name for field in fields(Vectors)}:
        raise StoreError(f"{key} is missing or damaged; run the analysis again")
    layers = tuple(int(layer) for layer in arrays.pop("score_layers"))
    return Vectors(**arrays, score_layers=layers)


def write_part(location: Location, digest: str, part: ShardPlan, arrays: Arrays, **facts: Any) -> None:
    """Store the numbers of a part, with facts about their origin; the first writer wins."""
    content = _encode({**arrays, "facts": np.array(json.dumps(facts))})
    put_new(location, _part_key(digest, part), content)


def read_part(location: Location, digest: str, part: ShardPlan) -> dict[str, NDArray[Any]] | None:
    """Return the numbers of a part, and its `facts` as JSON; None if the part is not stored or is damaged."""
    return _decode(get(location, _part_key(digest, part)))


def drop_part(location: Location, digest: str, part: ShardPlan) -> None:
    """Remove a damaged part."""
    delete(location, [key for key in [_part_key(digest, part)] if get(location, key) is not None])


def drop_parts(location: Location) -> None:
    """Remove all parts and vectors of an analysis whose result group is written."""
    delete(location, keys(location, _PARTS))


def _part_key(digest: str, part: ShardPlan) -> str:
    return f"{_PARTS}/{digest}/{part.prompt_set}/{part.index:05d}.npz"


def _encode(arrays: Mapping[str, object]) -> bytes:
    buffer = io.BytesIO()
    named: dict[str, Any] = {name: np.asarray(values) for name, values in arrays.items()}
    np.savez(buffer, **named)
    return buffer.getvalue()


def _decode(content: bytes | None) -> dict[str, NDArray[Any]] | None:
    """Return the arrays of an object; None if there is no object, or a checksum of the archive is wrong."""
    if content is None:
        return None
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as stored:
            return dict(stored)
    except (zipfile.BadZipFile, ValueError, OSError, EOFError, KeyError):
        return None
