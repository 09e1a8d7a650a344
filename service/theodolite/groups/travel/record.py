"""Steps of attention and MLP through the blocks, what they add to the variance, and growth along depth."""

from theodolite.groups.schema import (
    N_SAMPLES,
    PER_BLOCK,
    STREAM_UNIT,
    SUBLAYERS,
    Column,
    Group,
    Table,
    Variable,
    at_axes,
    flat,
    variables,
)

SUMMARY = ("mean", "std")
"""Mean and standard deviation (n-1) over prompts."""

POINTS = ("pre", "mid", "post")
"""The states of a block: its input, the stream between attention and MLP, its output."""

PATH_SUMMARY = (*SUMMARY, "at_right_angles")
"""Those of a ratio of the path, and its value for steps at right angles."""

PATHS = ("whole", "before_last")
"""The path through all blocks, and the path that ends before the last block."""

VECTOR_PAIRS = ("successive_steps", "block_step_and_input", "attention_step_and_input", "mlp_step_and_input")
"""Two vectors with a cosine: the steps of a block and of the next block; a step and the state at which it starts."""

NULL = ("sd", "p_family")

_OF_PATH = ("set", "position", "summary")
_SQUARED_UNIT = f"{STREAM_UNIT} squared"

VARIABLES = (
    N_SAMPLES,
    Variable(
        "step_norm",
        (*PER_BLOCK, "sublayer", "summary"),
        "Norm of the output of attention or of the MLP, or of the step of a block (output minus input).",
        STREAM_UNIT,
    ),
    Variable(
        "arc",
        (*PER_BLOCK, "sublayer", "summary"),
        "Angle between the state at which a step starts and that state plus the step.",
        "radians",
    ),
    Variable(
        "step_cosine",
        (*PER_BLOCK, "vector_pair", "summary"),
        "Cosine between two steps, or between a step and the state at which it starts; NaN for the steps of attention "
        "and of the MLP alone.",
    ),
    Variable(
        "step_cosine_centred",
        (*PER_BLOCK, "vector_pair"),
        "Cosine between the deviations of two vectors from their means over prompts, summed over prompts; 0 if the "
        "deviations are independent.",
    ),
    Variable(
        "step_cosine_centred_null",
        (*PER_BLOCK, "vector_pair", "null"),
        "The cosine between deviations, against all permutations of the prompts of one of the two vectors; their mean "
        "cosine is 0. p_family is over all blocks and two-sided.",
    ),
    Variable(
        "n_tested",
        ("set", "position"),
        "Number of prompts, the first usable ones, with which cosines are tested.",
        dtype="int64",
    ),
    Variable(
        "step_common_share",
        PER_BLOCK,
        "Squared norm of a block's mean step over the mean squared norm of its step, without the bias of noise; 1 if "
        "all prompts have the same step.",
    ),
    *variables(
        _OF_PATH,
        STREAM_UNIT,
        path_length="Sum over blocks of the norm of the step.",
        displacement="Norm of the difference between the last block's output and the first block's input.",
    ),
    *variables(
        _OF_PATH,
        "radians",
        arc_length="Sum over blocks of the angle between input and output.",
        great_circle="Angle between the last block's output and the first block's input.",
    ),
    *variables(
        ("set", "position", "path", "path_summary"),
        path_ratio="Path length over displacement; 1 for a straight line.",
        arc_ratio="Arc length over the great circle; 1 for a path without turns. At right angles, each arc is at a "
        "right angle to the great circle from the path's first point to where it begins.",
    ),
    Variable(
        "variance",
        (*PER_BLOCK, "point"),
        "Variance (n-1) over prompts of the stream, total over features.",
        _SQUARED_UNIT,
    ),
    Variable(
        "variance_change",
        (*PER_BLOCK, "sublayer", "term"),
        "What a step adds to the variance: its variance (n-1) over prompts, and twice its covariance with the state at "
        "which it starts, total over features.",
        _SQUARED_UNIT,
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

GROWTH = Table(
    "growth",
    "Fits of an exponential and of a power law to norms and variances along depth.",
    (
        Column("quantity", "The array that is fitted: y."),
        *at_axes("set", "site", "position"),
        Column("law", "log_linear: ln y = a + b·t; power_law: ln y = a + b·ln(t - t₀); the depth t is in blocks."),
        Column("intercept", "a.", "1"),
        Column("slope", "b: per block of an exponential, the exponent of a power law.", "1"),
        Column("slope_low", "The lower end of the 95 % interval of b.", "1"),
        Column("slope_high", "The upper end of the 95 % interval of b.", "1"),
        Column("origin", "t₀ of the power law; NaN for an exponential.", "blocks"),
        Column("origin_at_limit", "Whether the origin is at an end of its allowed range."),
        Column("autocorrelation", "The correlation of errors at a distance of one block.", "1"),
        Column("r_squared", "1 - RSS/TSS of ln y; NaN if y is constant.", "1"),
        Column("aic", "-2 ln L + 2·(number of parameters); NaN if y is constant.", "1"),
        Column("n", "The number of depths fitted.", "1"),
        Column(
            "aic_difference", "AIC of the power law minus that of the exponential; NaN with fewer than 11 depths.", "1"
        ),
        Column("aic_difference_low", "The smallest difference if one depth is left out.", "1"),
        Column("aic_difference_high", "The largest difference if one depth is left out.", "1"),
        Column("aic_gain_of_product", "The smaller AIC of both laws minus that of their product.", "1"),
        Column("log_growth", "ln of the last y over the first one.", "1"),
        Column("better_r_squared", "R² of the law with the smaller AIC.", "1"),
        Column(
            "verdict", "exponential or power law, if resid_pre and resid_mid agree by all criteria; else undecided."
        ),
    ),
)

GROUP = Group(
    name="travel",
    title="Travel and growth",
    order=80,
    chapter="Geometry",
    variables=VARIABLES,
    labels={
        "sublayer": SUBLAYERS,
        "summary": SUMMARY,
        "vector_pair": VECTOR_PAIRS,
        "null": NULL,
        "path": PATHS,
        "path_summary": PATH_SUMMARY,
        "point": POINTS,
        "term": ("step_variance", "twice_covariance"),
    },
    tables=(flat("travel", VARIABLES), GROWTH),
    needs=frozenset({"prompts", "resid_pre"}),
    per_set=frozenset({"travel"}),
    requires=("moments", "curves"),
    options="gram",
)
