"""The prompts and questions of an analysis of effects. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from theodolite.sites import Site
from theodolite.spec import TokenIds
from theodolite_jobs.capture.plan import SetLayout, ShardPlan

Arrays = dict[str, NDArray[np.float64]]

LAST_TOKEN = SetLayout((-1,), 0)
"""The parity check captures the last token of a prompt, whose states are changed."""

PART_PROMPTS = 8
"""The number of prompts in a part; even, because pairs are not divided. Progress is counted in parts."""


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
        digest: digest of the analysis.
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
