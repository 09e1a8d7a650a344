"""Norm layers: norms before and after, the ellipsoid of outputs, length against direction."""

from theodolite.groups.record import N_SAMPLES, STREAM_UNIT, Group, Variable

_PER_NORM = ("set", "position", "norm")

VARIABLES = (
    N_SAMPLES,
    *(
        Variable(f"{name}_{end}", _PER_NORM, f"{sentence}: {said} over prompts.", unit)
        for name, sentence, unit in (
            ("norm_before", "Euclidean norm of what enters the norm layer", STREAM_UNIT),
            ("normalized_norm", "Euclidean norm of what leaves it, before its scale and bias", "1"),
        )
        for end, said in (("mean", "mean"), ("std", "standard deviation (n-1)"), ("min", "least"), ("max", "largest"))
    ),
    Variable(
        "normalized_norm_expected", _PER_NORM, "Mean over prompts of what that norm should be, with ε in the root."
    ),
    Variable("worst_deviation", _PER_NORM, "Largest relative deviation from it over prompts; no more than rounding."),
    Variable("mean_component_before", _PER_NORM, "Mean over prompts of |1·x|/(√d‖x‖) of what enters."),
    Variable("mean_component_after", _PER_NORM, "The same of what leaves, before scale and bias; 0 of layer norms."),
    Variable(
        "ellipsoid_residual", _PER_NORM, "Largest |‖(y-β)/γ‖/√d - 1|: how far ε takes a prompt off the ellipsoid."
    ),
    Variable(
        "length_variance_share", _PER_NORM, "Share of the variance over prompts that is in length; the rest turns."
    ),
    Variable("relative_spread", _PER_NORM, "Standard deviation over mean of the norm of what enters."),
    Variable("relative_spread_gaussian", _PER_NORM, "The same of a Gaussian of as many dimensions."),
    Variable("relative_spread_squared", _PER_NORM, "Standard deviation over mean of the squared norm of what enters."),
    Variable("relative_spread_squared_gaussian", _PER_NORM, "The same of a Gaussian: √(2/d)."),
    Variable("semi_axes", ("norm", "d_model"), "Semi-axes of the ellipsoid that outputs lie on, the largest first."),
    Variable("scale_radii", ("norm", "d_model"), "√d|γ|, the largest first: the semi-axes of RMS norms alone."),
    Variable("centre", ("norm", "d_model"), "Centre of that ellipsoid, β."),
)

GROUP = Group(
    name="sphere",
    title="Sphere",
    version=1,
    variables=VARIABLES,
    tables=("sphere",),
    needs=frozenset({"weights"}),
    of_sets=frozenset({"stream", "norms"}),
    order=4,
)
