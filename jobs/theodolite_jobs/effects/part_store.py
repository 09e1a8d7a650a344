"""The stored vectors and answers of an analysis of effects, in parts.

They are under `pending/effects.parts/DIGEST/`: for each contrast and position the vectors of its interventions, and the
numbers of each part of its prompts. They remain until the results are written, so a computation that was killed
continues after its last part. Each object names its run, the digest of the group, its contrast, position and range, and
the checksum of its bytes, see `theodolite.store.pieces`.
"""

import io
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from theodolite.errors import StoreError
from theodolite.store.objects import Location, delete, get, keys, put, put_new
from theodolite.store.pieces import content_of, named
from theodolite_jobs.capture.plan import ShardPlan
from theodolite_jobs.effects.work import Arrays, Vectors

PARTS = "pending/effects.parts"
"""The folder of the parts in a run."""


@dataclass(frozen=True)
class PartStore:
    """The parts of one analysis.

    Attributes:
        location: the objects of the run.
        run_id: the run.
        digest: digest of the analysis.
    """

    location: Location
    run_id: str
    digest: str

    def write_vectors(self, label: str, vectors: Vectors) -> None:
        """Store the vectors of a label; every driver of the same digest writes the same bytes."""
        put(self.location, self._key(label, "vectors"), named(self._of_vectors(label), _encode(asdict(vectors))))

    def read_vectors(self, label: str) -> Vectors:
        """Return the stored vectors of a label; raises StoreError if they are missing or damaged."""
        key = self._key(label, "vectors")
        content = content_of(self._of_vectors(label), get(self.location, key))
        if content is None:
            raise StoreError(f"{key} is missing or damaged; run the analysis again")
        arrays = _decode(content)
        layers = tuple(int(layer) for layer in arrays.pop("score_layers"))
        return Vectors(**arrays, score_layers=layers)

    def write_part(self, part: ShardPlan, arrays: Arrays, **facts: Any) -> None:
        """Store the numbers of a part, with facts about their origin; the first writer wins."""
        content = _encode({**arrays, "facts": np.array(json.dumps(facts))})
        put_new(self.location, self._part_key(part), named(self._of_part(part), content))

    def read_part(self, part: ShardPlan) -> dict[str, NDArray[Any]] | None:
        """Return the numbers of a part, and its `facts` as JSON; None if it is missing, damaged or another part."""
        content = content_of(self._of_part(part), get(self.location, self._part_key(part)))
        return None if content is None else _decode(content)

    def drop_part(self, part: ShardPlan) -> None:
        """Remove a damaged part, unless another driver has written it again."""
        key = self._part_key(part)
        if self.read_part(part) is None and get(self.location, key) is not None:
            delete(self.location, [key])

    def drop(self) -> None:
        """Remove all parts and vectors, since the results are written."""
        delete(self.location, keys(self.location, f"{PARTS}/{self.digest}"))

    def _of_vectors(self, label: str) -> dict[str, Any]:
        return {"run_id": self.run_id, "digest": self.digest, "vectors": label}

    def _of_part(self, part: ShardPlan) -> dict[str, Any]:
        place = {"part": part.prompt_set, "index": part.index, "start": part.start, "stop": part.stop}
        return {"run_id": self.run_id, "digest": self.digest, **place}

    def _part_key(self, part: ShardPlan) -> str:
        return self._key(part.prompt_set, f"{part.index:05d}")

    def _key(self, label: str, name: str) -> str:
        return f"{PARTS}/{self.digest}/{label}/{name}.npz"


def _encode(arrays: Mapping[str, object]) -> bytes:
    buffer = io.BytesIO()
    arrays_of: dict[str, Any] = {name: np.asarray(values) for name, values in arrays.items()}
    np.savez(buffer, **arrays_of)
    return buffer.getvalue()


def _decode(content: bytes) -> dict[str, NDArray[Any]]:
    with np.load(io.BytesIO(content), allow_pickle=False) as stored:
        return dict(stored)
