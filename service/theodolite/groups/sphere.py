"""Norm layers: norms of inputs and outputs, the ellipsoid of outputs, variance of norm and of direction."""

from theodolite.groups.record import N_SAMPLES, STREAM_UNIT, Group, Variable

_PER_NORM = ("set", "position", "norm")

VARIABLES = (
    N_SAMPLES,
    *(
        Variable(f"{name}_{key}", _PER_NORM, f"{sentence}: {text} over prompts.", unit)
        for name, sentence, unit in (
            ("norm_before", "Euclidean norm of the norm layer's input", STREAM_UNIT),
            ("normalized_norm", "Euclidean norm of its output before scale and bias", "1"),
        )
        for key, text in (("mean", "mean"), ("std", "standard deviation (n-1)"), ("min", "minimum"), ("max", "maximum"))
    ),
    Variable(
        "normalized_norm_expected",
        _PER_NORM,
        "Mean over prompts of √(d·v/(v+ε)), the norm that the output must have before scale and bias; v "
        "is the input's variance.",
    ),
    Variable(
        "worst_deviation",
        _PER_NORM,
        "Maximum over prompts of the relative deviation from normalized_norm_expected; no more than rounding.",
    ),
    Variable("mean_component_before", _PER_NORM, "Mean over prompts of |1·x|/(√d‖x‖) of the input x."),
    Variable(
        "mean_component_after",
        _PER_NORM,
        "Mean over prompts of |1·y|/(√d‖y‖) of the output y before scale and bias; 0 for layer norms.",
    ),
    Variable(
        "ellipsoid_residual",
        _PER_NORM,
        "Maximum over prompts of |‖(y-β)/γ‖/√d - 1| of the output y: its distance from the ellipsoid, caused by ε.",
    ),
    Variable(
        "length_variance_share",
        _PER_NORM,
        "Share of the input's variance over prompts that is variance of its norm; the rest is variance "
        "of its direction.",
    ),
    Variable("relative_spread", _PER_NORM, "Standard deviation over mean of the input's norm."),
    Variable(
        "relative_spread_gaussian",
        _PER_NORM,
        "Standard deviation over mean of the norm of a Gaussian with d_model dimensions.",
    ),
    Variable("relative_spread_squared", _PER_NORM, "Standard deviation over mean of the input's squared norm."),
    Variable(
        "relative_spread_squared_gaussian",
        _PER_NORM,
        "Standard deviation over mean of the squared norm of a Gaussian with d_model dimensions: √(2/d_model).",
    ),
    Variable("semi_axes", ("norm", "d_model"), "Semi-axes of the ellipsoid on which outputs lie, in descending order."),
    Variable(
        "scale_radii", ("norm", "d_model"), "√d|γ|, in descending order: the semi-axes if the norm is an RMS norm."
    ),
    Variable("centre", ("norm", "d_model"), "Centre of the ellipsoid: the norm's bias β."),
)

GROUP = Group(
    name="sphere",
    title="Sphere",
    version=1,
    variables=VARIABLES,
    tables=("sphere",),
    needs=frozenset({"weights"}),
    per_set=frozenset({"stream", "norms"}),
    order=4,
)
