"""Steps of attention and MLP through the blocks, what they add to the variance, and growth along depth."""

from collections.abc import Iterator

from theodolite.groups.record import N_SAMPLES, PER_BLOCK, STREAM_UNIT, Group, Variable, variables

_PER_PATH = ("set", "position")
_SQUARED_UNIT = f"{STREAM_UNIT} squared"
_STEPS = {
    "attn": ("attention", "the block's input"),
    "mlp": ("the MLP", "the stream between attention and MLP"),
    "block": ("the block", "the block's input"),
}
"""Each step: what makes it, and the state at which it starts."""

TESTED_COSINES = {
    "step_cosine_next_centred": "of the steps of a block and of the next block",
    "step_cosine_stream_centred": "of a block's step and of its input",
    "step_cosine_attn_centred": "of attention's step and of its input",
    "step_cosine_mlp_centred": "of the MLP's step and of its input",
}
"""The cosines of deviations that are tested against permuted prompts."""


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
    *_mean_and_spread("path_length", _PER_PATH, "Sum over blocks of the norm of the step", STREAM_UNIT),
    *_mean_and_spread(
        "displacement",
        _PER_PATH,
        "Norm of the difference between the last block's output and the first block's input",
        STREAM_UNIT,
    ),
    *_mean_and_spread("path_ratio", _PER_PATH, "Path length over displacement; 1 for a straight line"),
    *variables(
        PER_BLOCK,
        **{
            name: f"Cosine between the deviations {pair} from their means over prompts, summed over prompts; 0 if the "
            "deviations are independent."
            for name, pair in TESTED_COSINES.items()
        },
        step_common_share="Squared norm of a block's mean step over the mean squared norm of its step, without the "
        "bias of noise; 1 if all prompts have the same step.",
    ),
    Variable(
        "n_tested", _PER_PATH, "Number of prompts, the first usable ones, with which cosines are tested.", dtype="int64"
    ),
    *(
        variable
        for name, pair in TESTED_COSINES.items()
        for variable in variables(
            PER_BLOCK,
            **{
                f"{name}_null_sd": f"Standard deviation of the cosine between the deviations {pair} over all "
                "permutations of the prompts of one of the two; the mean is 0.",
                f"{name}_p_family": f"Family-wise p, over all blocks and two-sided, of the cosine between the "
                f"deviations {pair}, against permutations of the prompts.",
            },
        )
    ),
    *variables(
        _PER_PATH,
        path_ratio_at_right_angles="Path length over displacement, if the steps of all blocks were at right angles.",
        arc_ratio_at_right_angles="Arc length over the great circle, if each arc were at a right angle to "
        "the great circle from the path's first point to where it begins.",
        path_ratio_before_last_at_right_angles="The same as path_ratio_at_right_angles, without the last block.",
        arc_ratio_before_last_at_right_angles="The same as arc_ratio_at_right_angles, without the last block.",
    ),
    *variables(
        PER_BLOCK,
        _SQUARED_UNIT,
        variance_pre="Variance (n-1) over prompts of the block's input, total over features.",
        variance_mid="Variance (n-1) over prompts of the stream between attention and MLP, total over features.",
        variance_post="Variance (n-1) over prompts of the block's output, total over features.",
    ),
    *(
        variable
        for name, (maker, start) in _STEPS.items()
        for variable in variables(
            PER_BLOCK,
            _SQUARED_UNIT,
            **{
                f"variance_step_{name}": f"Variance (n-1) over prompts of the step of {maker}, total over features.",
                f"twice_covariance_{name}": f"Twice the covariance (n-1) over prompts of the step of {maker} with "
                f"{start}, total over features.",
            },
        )
    ),
    *(
        variable
        for name, (maker, start) in _STEPS.items()
        for variable in _mean_and_spread(
            f"arc_{name}", PER_BLOCK, f"Angle between {start} and the same plus the step of {maker}", "radians"
        )
    ),
    *_mean_and_spread("arc_length", _PER_PATH, "Sum over blocks of the angle between input and output", "radians"),
    *_mean_and_spread(
        "great_circle",
        _PER_PATH,
        "Angle between the last block's output and the first block's input",
        "radians",
    ),
    *_mean_and_spread("arc_ratio", _PER_PATH, "Arc length over the great circle; 1 for a path without turns"),
    *_mean_and_spread(
        "path_ratio_before_last",
        _PER_PATH,
        "Path length over displacement, of the path that ends before the last block",
    ),
    *_mean_and_spread(
        "arc_ratio_before_last",
        _PER_PATH,
        "Arc length over the great circle, of the path that ends before the last block",
    ),
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

MIN_R_SQUARED = 0.5
"""Smallest R² of a law that describes a curve. The law with the smaller AIC can have a negative R²."""

VERDICT_POINTS = 11
"""Smallest number of depths at a site for a verdict; the shortest simulated curves have it."""

GROUP = Group(
    name="travel",
    title="Travel and growth",
    version=5,
    variables=VARIABLES,
    tables=("travel", "growth"),
    needs=frozenset({"prompts", "resid_pre"}),
    per_set=frozenset({"travel"}),
    requires=("moments", "curves"),
    options="gram",
    order=5,
)
