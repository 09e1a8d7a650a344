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

_SIZE, _TIMES = 768, 5


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
