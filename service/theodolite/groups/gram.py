"""Shape of each set's point cloud, and similarity of layers, from Gram matrices."""

from collections.abc import Iterator

from theodolite.groups.record import N_SAMPLES, PER_BLOCK, PER_CONTRAST, PER_SET, STREAM_UNIT, Group, Variable


def _shape_variables(prefix: str, where: str) -> Iterator[Variable]:
    yield Variable(f"{prefix}mean_cosine", PER_SET, f"Mean cosine between two prompts{where}; 0 in all directions.")
    yield Variable(f"{prefix}participation_ratio", PER_SET, f"(Σλ)²/Σλ² of the covariance{where}; at most n-1.")
    yield Variable(
        f"{prefix}effective_rank", PER_SET, f"exp of the entropy of λ/Σλ of the covariance{where}; at most n-1."
    )
    yield Variable(f"{prefix}intrinsic_dimension", PER_SET, f"TwoNN estimate of the dimension{where}.")
    yield Variable(
        f"{prefix}linear_cka",
        (*PER_SET, "layer_other"),
        f"Linear CKA between two layers at the same site{where}; biased up.",
    )
    yield Variable(f"{prefix}linear_cka_debiased", (*PER_SET, "layer_other"), f"The same by unbiased HSIC{where}.")
    yield Variable(f"{prefix}silhouette", PER_CONTRAST, f"Mean silhouette of the contrast's two sets{where}.")


VARIABLES = (
    N_SAMPLES,
    *_shape_variables("", ""),
    *_shape_variables("on_sphere_", " of activations scaled to norm √d_model"),
    *_shape_variables("standardised_", " of features scaled to variance 1"),
    Variable(
        "participation_ratio_gaussian", ("set", "position"), "That of a Gaussian of as many prompts and features."
    ),
    Variable("effective_rank_gaussian", ("set", "position"), "That of a Gaussian of as many prompts and features."),
    Variable(
        "n_coincident", PER_SET, "Prompts that coincide with another, left out of the TwoNN estimate.", dtype="int64"
    ),
    Variable(
        "n_constant_features", PER_SET, "Features without variance, left out where they are scaled.", dtype="int64"
    ),
    Variable("cka_attention", PER_BLOCK, "Debiased linear CKA from resid_pre to resid_mid of a block."),
    Variable("cka_mlp", PER_BLOCK, "Debiased linear CKA from resid_mid of a block to what leaves it."),
    Variable("cka_block", PER_BLOCK, "Debiased linear CKA from resid_pre of a block to what leaves it."),
    Variable("cosine_of_medians", PER_CONTRAST, "Cosine between the two sets' geometric medians."),
    Variable("norm_of_mean_positive", PER_CONTRAST, "Norm of the mean of the positive set's n_samples.", STREAM_UNIT),
    Variable("norm_of_mean_negative", PER_CONTRAST, "Norm of the mean of the negative set's n_samples.", STREAM_UNIT),
    Variable("norm_of_median_positive", PER_CONTRAST, "Norm of the positive set's geometric median.", STREAM_UNIT),
    Variable("norm_of_median_negative", PER_CONTRAST, "Norm of the negative set's geometric median.", STREAM_UNIT),
    Variable("difference_of_medians", PER_CONTRAST, "Norm of the difference of the geometric medians.", STREAM_UNIT),
    *(
        Variable(
            f"cosine_{centre}_{side}_difference",
            PER_CONTRAST,
            f"Cosine between the {side} set's {said} and theirs, positive minus negative.",
        )
        for centre, said in (
            ("mean", "mean and the difference of means"),
            ("median", "median and the difference of medians"),
        )
        for side in ("positive", "negative")
    ),
    Variable("orthant_occupancy", PER_BLOCK, "Share of an MLP's hidden units that are positive before gating."),
    Variable("orthant_overlap", PER_BLOCK, "Share of hidden units whose sign two prompts share, mean over pairs."),
)

GROUP = Group(
    name="gram",
    title="Shape and similarity",
    version=1,
    variables=VARIABLES,
    tables=("gram",),
    needs=frozenset({"prompts"}),
    options="gram",
    order=3,
)
