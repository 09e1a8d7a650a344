"""Shape of each set's point cloud, and similarity of layers, from Gram matrices."""

from theodolite.groups.schema import (
    N_SAMPLES,
    PER_BLOCK,
    PER_CONTRAST,
    PER_SET,
    SIDES,
    STREAM_UNIT,
    SUBLAYERS,
    Group,
    Variable,
    flat,
    variables,
)

SPACES = ("raw", "sphere", "standardised")
"""Activations as they are, scaled to norm √d_model, or with each feature scaled to variance 1."""

OUTPUTS = ("output", "branch")
"""The stream after a sublayer, and what the sublayer adds to the stream."""

CENTRES = ("mean", "median")
"""The mean and the geometric median of a set."""

VARIABLES = (
    N_SAMPLES,
    *variables(
        (*PER_SET, "space"),
        mean_cosine="Mean cosine over pairs of prompts; about 0 if directions are uniform on the sphere.",
        participation_ratio="Participation ratio (Σλ)²/Σλ² of the covariance's eigenvalues λ; at most n-1.",
        effective_rank="Effective rank of the covariance: exp of the entropy of λ/Σλ; at most n-1.",
        intrinsic_dimension="TwoNN dimension: an estimate of the intrinsic dimension.",
    ),
    *variables(
        (*PER_SET, "layer_other", "space"),
        linear_cka="Plain linear CKA between two layers at the same site; biased upwards.",
        linear_cka_debiased="Linear CKA with unbiased HSIC between two layers at the same site.",
    ),
    Variable(
        "sublayer_cka",
        (*PER_BLOCK, "sublayer", "output", "space"),
        "Debiased linear CKA between the input of a sublayer and the stream after it (output), or what it adds to the "
        "stream (branch); the input of the MLP is resid_mid, or for its branch resid_pre without resid_mid; NaN where "
        "one was not captured, unless a branch is the difference of captured streams (not in post-norm blocks).",
    ),
    Variable(
        "sublayer_cka_permuted",
        (*PER_BLOCK, "sublayer"),
        "Debiased linear CKA between the input of a sublayer and its sum with what the sublayer adds to other prompts, "
        "mean over permutations of the prompts; NaN where sublayer_cka of the branch is.",
    ),
    Variable("silhouette", (*PER_CONTRAST, "space"), "Mean silhouette of the contrast's two sets."),
    *variables(
        ("set", "position"),
        participation_ratio_gaussian="Participation ratio of a Gaussian with the same numbers of prompts and features.",
        effective_rank_gaussian="Effective rank of a Gaussian with the same numbers of prompts and features.",
    ),
    *variables(
        PER_SET,
        dtype="int64",
        n_coincident="Number of prompts that coincide with another; the TwoNN estimate leaves them out.",
        n_constant_features="Number of features without variance; the standardised statistics leave them out.",
    ),
    Variable(
        "intrinsic_dimension_null",
        (*PER_SET, "null"),
        "Mean and standard deviation (n-1) of the TwoNN estimate over random rotations of the samples, which keep "
        "their number and covariance.",
    ),
    Variable("cosine_of_medians", PER_CONTRAST, "Cosine between the two sets' geometric medians."),
    Variable(
        "difference_of_medians", PER_CONTRAST, "Norm of the difference of the geometric medians.", units=STREAM_UNIT
    ),
    Variable(
        "norm_of_centre",
        (*PER_CONTRAST, "centre", "prompt_side"),
        "Norm of the mean or the geometric median of one set's samples (n_samples).",
        units=STREAM_UNIT,
    ),
    Variable(
        "cosine_with_difference",
        (*PER_CONTRAST, "centre", "prompt_side"),
        "Cosine between one set's mean or geometric median and the difference of both sets' (positive minus negative).",
    ),
    *variables(
        PER_BLOCK,
        orthant_occupancy="Share of an MLP's hidden units that are positive before gating.",
        orthant_overlap="Share of an MLP's hidden units with equal signs in two prompts, mean over pairs.",
    ),
)

GROUP = Group(
    name="gram",
    title="Shape and similarity",
    order=60,
    chapter="Geometry",
    variables=VARIABLES,
    labels={
        "space": SPACES,
        "sublayer": SUBLAYERS,
        "output": OUTPUTS,
        "null": ("mean", "sd"),
        "centre": CENTRES,
        "prompt_side": SIDES,
    },
    tables=(flat("gram", VARIABLES),),
    needs=frozenset({"prompts"}),
    least_samples=4,
    options="gram",
)
