"""Norm layers: norms of inputs and outputs, variance of norm and of direction, ellipsoids and their overlap."""

from theodolite.groups.schema import N_SAMPLES, STREAM_UNIT, Group, Variable, flat, variables

_PER_NORM = ("set", "position", "norm")

SUMMARY = ("mean", "std", "min", "max")
"""Mean, standard deviation (n-1), minimum and maximum over prompts."""

STAGES = ("before", "after")

QUANTITIES = ("norm", "squared_norm")

NULL = ("standard_gaussian", "fitted_gaussian")
"""A Gaussian with d_model independent components, and one with the input's own mean and covariance."""

VARIABLES = (
    N_SAMPLES,
    Variable("n_fitted", ("set", "position"), "Number of stored prompts that the fitted Gaussians use.", dtype="int64"),
    Variable(
        "euclidean_norm",
        (*_PER_NORM, "stage", "summary"),
        f"Euclidean norm of the norm layer's input, in units of the {STREAM_UNIT}, and of its output before scale and "
        "bias.",
    ),
    Variable(
        "mean_component",
        (*_PER_NORM, "stage"),
        "Mean over prompts of |1·x|/(√d‖x‖) of the norm layer's input x, and of its output before scale and bias (0 "
        "for layer norms).",
    ),
    *variables(
        _PER_NORM,
        euclidean_norm_expected="Mean over prompts of √(d·v/(v+ε)), the norm that the output must have before scale "
        "and bias; v is the input's variance.",
        worst_deviation="Maximum over prompts of the relative deviation from euclidean_norm_expected; no more than "
        "rounding.",
        ellipsoid_residual="Maximum over prompts of |‖(y-β)/γ‖/√d - 1| of the output y: its distance from the "
        "ellipsoid, caused by ε.",
        length_variance_share="Share of the input's variance over prompts that is variance of its norm; the rest is "
        "variance of its direction.",
    ),
    Variable(
        "relative_spread",
        (*_PER_NORM, "quantity"),
        "Standard deviation over mean of the input's norm or squared norm.",
    ),
    Variable(
        "relative_spread_null",
        (*_PER_NORM, "quantity", "null"),
        "Standard deviation over mean of the norm or squared norm of a Gaussian: a standard one with d_model "
        "dimensions, or one with the input's own mean and covariance over the first n_fitted prompts.",
    ),
    *variables(
        ("norm", "d_model"),
        semi_axes="Semi-axes of the ellipsoid on which outputs lie, in descending order.",
        scale_radii="√d|γ|, in descending order: the semi-axes if the norm is an RMS norm.",
        centre="Centre of the ellipsoid: the norm's bias β.",
        scale="Scale γ of the norm layer.",
        plane_normal="Unit normal of the hyperplane in which a layer norm's outputs lie: 1/γ, scaled to length 1; NaN "
        "for RMS norms, and if a component of γ is 0.",
    ),
    *variables(
        ("norm", "norm_other"),
        scale_cosine="Cosine between the scales γ of two norm layers.",
        scale_correlation="Correlation over features between the scales γ of two norm layers; about 0 with permuted "
        "features.",
        ellipsoid_overlap="Mean over features of the overlap of two ellipsoids' ranges β ± √d|γ|: the length of the "
        "intersection over the length of the union; 1 for equal ellipsoids.",
        ellipsoid_overlap_permuted="The overlap with the features of one of the two norm layers permuted, mean over "
        "permutations.",
        plane_normal_cosine="Absolute cosine between the normals of two norm layers' hyperplanes.",
    ),
)

GROUP = Group(
    name="sphere",
    title="Sphere",
    order=70,
    chapter="Geometry",
    variables=VARIABLES,
    labels={"stage": STAGES, "summary": SUMMARY, "quantity": QUANTITIES, "null": NULL},
    tables=(flat("sphere", VARIABLES),),
    needs=frozenset({"weights"}),
    per_set=frozenset({"stream", "norms"}),
)
