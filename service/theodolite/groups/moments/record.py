"""Moments of the residual stream: count, mean, sum of squared deviations and extremes of each feature."""

from theodolite.groups.schema import PER_SET, STREAM_UNIT, Group, Variable

_PER_FEATURE = (*PER_SET, "d_model")

VARIABLES = (
    Variable("count", ("set", "position"), "Number of prompts that the statistics use.", dtype="int64"),
    Variable("mean", _PER_FEATURE, "Mean over prompts of each feature.", STREAM_UNIT),
    Variable(
        "m2", _PER_FEATURE, "Sum over prompts of squared deviations from the mean, of each feature.", f"{STREAM_UNIT}²"
    ),
    Variable("minimum", _PER_FEATURE, "Minimum over prompts of each feature.", STREAM_UNIT),
    Variable("maximum", _PER_FEATURE, "Maximum over prompts of each feature.", STREAM_UNIT),
    Variable("norm_mean", PER_SET, "Mean over prompts of the Euclidean norm.", STREAM_UNIT),
    Variable("norm_std", PER_SET, "Standard deviation (n-1) over prompts of the Euclidean norm.", STREAM_UNIT),
    Variable(
        "unit_mean_length", PER_SET, "Norm of the mean of the prompts' unit vectors; 1 if all have the same direction."
    ),
)

GROUP = Group(
    name="moments",
    title="Moments",
    order=10,
    variables=VARIABLES,
    needs=frozenset({"prompts"}),
    per_set=frozenset({"stream"}),
    always=True,
    is_requestable=False,
)
