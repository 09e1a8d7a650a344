"""What the parts of a survey cost: measured constants, each with where it was measured."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Forward:
    """The cost of forward passes on a kind of device."""

    operations_per_second: float  # reached with large batches; a pass takes about two operations per weight and token
    launch_seconds: float  # time in which a process launches the kernels of a block for one batch


PEAK_SHARE = 0.45
"""Share of a GPU's matrix peak that large batches reach: 0.46 for 7B and 32B models on an H100, with writing
(benchmarks/capture_gpu.py, 2026-11-27)."""

LAUNCH_SECONDS = 1.6e-3
"""Measured there too, with small batches of the 7B model."""

H100_PEAK = 989e12
"""Dense bfloat16 matrix products a second, from the data sheet; an H200 has the same."""

CPU_CORE = Forward(6e10, 0.0)
"""One core of a server with AVX-512, in float32 (benchmarks/capture.py, 2026-11-23)."""

GPU = Forward(PEAK_SHARE * H100_PEAK, LAUNCH_SECONDS)

WRITE_SECONDS = 4e-9
"""Processor time that writes a byte of activations in float32 (benchmarks/pipeline.py, 2026-11-27)."""

REDUCE_SECONDS = 1e-9
"""Processor time that reduces such a byte to moments (benchmarks/passes.py, 2026-11-23)."""
