"""Moments of the residual stream: count, mean, sum of squared deviations and extremes of each feature."""

from theodolite.groups.record import PER_SET, STREAM_UNIT, Group, Variable

VARIABLES = (
    Variable("count", ("set", "position"), "Prompts that the statistics rest on.", dtype="int64"),
    Variable("mean", (*PER_SET, "d_model"), "Mean over prompts.", STREAM_UNIT),
    Variable("m2", (*PER_SET, "d_model"), "Sum of squared deviations from the mean.", f"{STREAM_UNIT}²"),
    Variable("minimum", (*PER_SET, "d_model"), "Least value over prompts.", STREAM_UNIT),
    Variable("maximum", (*PER_SET, "d_model"), "Largest value over prompts.", STREAM_UNIT),
    Variable("norm_mean", PER_SET, "Mean Euclidean norm.", STREAM_UNIT),
    Variable("norm_std", PER_SET, "Standard deviation (n-1) of the norm.", STREAM_UNIT),
    Variable("unit_mean_length", PER_SET, "Length of the mean of unit vectors; 1 when all point one way."),
)

GROUP = Group(
    name="moments",
    title="Moments",
    version=2,
    variables=VARIABLES,
    needs=frozenset({"prompts"}),
    of_sets=frozenset({"stream"}),
    always=True,
    is_analysis=False,
)
