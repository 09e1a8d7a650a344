"""Steps of attention and MLP through the blocks, and growth along depth."""

from collections.abc import Iterator

from theodolite.groups.record import N_SAMPLES, PER_BLOCK, STREAM_UNIT, Group, Variable


def _mean_and_spread(name: str, dims: tuple[str, ...], sentence: str, unit: str = "1") -> Iterator[Variable]:
    yield Variable(name, dims, f"{sentence}; mean over prompts.", unit)
    yield Variable(f"{name}_std", dims, f"{sentence}; standard deviation (n-1) over prompts.", unit)


VARIABLES = (
    N_SAMPLES,
    *_mean_and_spread("step_norm_attn", PER_BLOCK, "Norm of attention's output", STREAM_UNIT),
    *_mean_and_spread("step_norm_mlp", PER_BLOCK, "Norm of the MLP's output", STREAM_UNIT),
    *_mean_and_spread("step_norm_block", PER_BLOCK, "Norm of the step of a block (output minus input)", STREAM_UNIT),
    *_mean_and_spread(
        "step_cosine_next", PER_BLOCK, "Cosine between the step of a block and the step of the next block"
    ),
    *_mean_and_spread("step_cosine_stream", PER_BLOCK, "Cosine between the step of a block and its input"),
    *_mean_and_spread("path_length", ("set", "position"), "Sum over blocks of the norm of the step", STREAM_UNIT),
    *_mean_and_spread(
        "displacement",
        ("set", "position"),
        "Norm of the difference between the last block's output and the first block's input",
        STREAM_UNIT,
    ),
    *_mean_and_spread("path_ratio", ("set", "position"), "Path length over displacement; 1 for a straight line"),
)

AIC_MARGIN = 6.0
"""Of two laws of growth, the one with an AIC that is lower by at least this is preferred.

`benchmarks/growth.py` measures the verdicts on simulated curves: with this margin fewer than 5 % are wrong.
"""

PRODUCT_MARGIN = 2.0
"""A product of both laws is preferred to the better one if its AIC is lower by at least this."""

MIN_LOG_GROWTH = 1.39
"""Smallest change of ln y along depth for the verdict `exponential`: a factor of 4.

Equal steps change y by less, if their origin is further before the first depth than the fits of the power law allow:
the exponent is at most 2, and the distance to the origin less than doubles.
"""

VERDICT_POINTS = 11
"""Smallest number of depths at a site for a verdict; the shortest simulated curves have it."""

GROUP = Group(
    name="travel",
    title="Travel and growth",
    version=2,
    variables=VARIABLES,
    tables=("travel", "growth"),
    needs=frozenset({"prompts", "resid_pre"}),
    per_set=frozenset({"travel"}),
    requires=("moments", "curves"),
    order=5,
)
