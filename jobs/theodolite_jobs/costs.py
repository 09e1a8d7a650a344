"""What the parts of a survey cost: measured constants, each with where it was measured.

The stored measurements of benchmarks/results are compared with these (tests/jobs/test_costs.py).
"""

from dataclasses import dataclass
from time import perf_counter


@dataclass(frozen=True)
class Forward:
    """The cost of forward passes on a device."""

    peak: float  # operations a second of large matrix products
    share: float  # of the peak, that large batches reach
    launch_seconds: float = 0.0  # time in which a process launches the kernels of a block for one batch

    def seconds(self, operations: float, launches: float) -> float:
        """Return the seconds of forward passes: the kernels of a block are launched while earlier ones compute.

        Args:
            operations: two for each weight of a block and each token, padding included.
            launches: number of blocks that are run, once for each batch.
        """
        return max(operations / (self.peak * self.share), launches * self.launch_seconds)


GPU_SHARE = 0.5
"""Of the peak in the data sheet. Without fused norms it was 0.43 and 0.45 with 7B and 32B models on an H100, and 0.47
with blocks of 7B on an H200; with them 0.52 there (capture-gpu_h100_2026-11-27.json, fusions-gpu_h200_2026-11-29.json).
"""

LAUNCH_SECONDS = 1.6e-3
"""Measured there too, with small batches, on both."""

H100_PEAK = 989e12
"""Dense bfloat16 matrix products a second, from the data sheet; an H200 has the same."""

GPU = Forward(H100_PEAK, GPU_SHARE, LAUNCH_SECONDS)

CPU_SHARE = 0.66
"""0.56 to 0.79 on two cores of a Xeon and of an EPYC (benchmarks/capture.py, 2026-11-23 and 2026-11-29)."""

WRITE_SECONDS = 4e-9
"""Processor time that writes a byte of activations in float32 (benchmarks/pipeline.py, 2026-11-27)."""

REDUCE_SECONDS = 1e-9
"""Processor time that reduces such a byte to moments (benchmarks/passes.py, 2026-11-23)."""

NANOSECONDS: dict[str, dict[str, float]] = {
    "moments": {"activations": 6},
    "curves": {"activations": 10},
    "separation": {"scores": 2500},
    "permutations": {"products": 0.08, "decompositions": 1.2, "draws": 1.3, "places": 25e6},
    "probes": {"products": 0.08, "fits": 120, "refits": 30, "places": 150e6},
    "directions": {"products": 2.5},
    "gram": {"products": 0.2, "decompositions": 1.3, "pairs": 550, "entries": 0.12, "places": 14e6},
    "sphere": {"activations": 15, "products": 0.08, "pairs": 290},
    "travel": {"activations": 125, "products": 0.3},
    "basis": {"products": 0.9, "decompositions": 9, "pairs": 2400, "layers": 35e6},
    "weights": {"products": 0.25, "pairs": 4.5e6},
    "heads": {"vocabulary": 0.05, "factors": 0.3, "draws": 0.5, "samples": 0.27},
    "composition": {"products": 0.06, "pairs": 290e3},
    "contributions": {"products": 0.15, "draws": 85},
    "logit_lens": {"vocabulary": 0.06, "draws": 19, "tokens": 30e3},
    "routing": {"draws": 0.08},
    "effects": {"places": 170e6},
    "words": {"vocabulary": 0.032},
}
"""Processor time of an operation, by analysis and by kind of operation as `analysis_counts` counts them.

Measured on two cores of an EPYC (2026-11-30) in the surveys of analyses_epyc-2-cores_2026-11-30.json, and with random
samples of 64 to 2,048 prompts for the operations of which these have few. The factors of `heads` are those of a 32B
model there (heads_epyc-2-cores_2026-11-21.json), and the activations of `moments` and `curves` those of a Xeon
(statistics_xeon-2-cores_2026-11-23.json), and those of `probes` were measured in the demo, and at two depths with 32 to
256 prompts of each set. `routing` has the rate of products in float64, and was not measured.
"""

START_SECONDS = {
    "moments": 0.1,
    "curves": 0.1,
    "separation": 0.05,
    "sphere": 0.5,
    "travel": 0.6,
    "heads": 0.2,
    "contributions": 0.2,
    "logit_lens": 0.3,
    "effects": 10.0,
    "words": 0.6,
}
"""Time of an analysis that no size changes, measured there; of `effects` until a replica has loaded a small model."""

EFFECTS_SHARE = 0.3
"""Of the peak, with the variants of one prompt at once: 0.28 in the demo on two cores of an EPYC (2026-11-30)."""

ROW_BYTES = {
    "prompt_score_scales": 63,
    "direction_tokens": 23,
    "prompt_effects": 20,
    "head_tokens": 10,
    "noun_keys": 10,
    "noun_values": 10,
    "noun_alignment": 16,
}
"""Bytes of a row of these tables in the demo; flat tables and `prompt_scores` have OTHER_ROW_BYTES (2026-11-30)."""

OTHER_ROW_BYTES = 8

_SIZE, _TIMES = 768, 5


def rounded(value: float) -> float:
    """Return a number with the two digits that an estimate can have."""
    return float(f"{value:.2g}")


def core() -> Forward:
    """Return the cost of forward passes on one core of this machine, whose peak a few products in float32 show."""
    import torch  # it takes seconds to load

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        left, right = torch.ones(_SIZE, _SIZE), torch.ones(_SIZE, _SIZE)
        seconds = []
        for _ in range(_TIMES):
            started = perf_counter()
            torch.mm(left, right)
            seconds.append(perf_counter() - started)
    finally:
        torch.set_num_threads(before)
    return Forward(2.0 * _SIZE**3 / min(seconds), CPU_SHARE)
