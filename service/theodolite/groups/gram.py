"""Shape of each set's point cloud, and similarity of layers, from Gram matrices."""

from collections.abc import Iterator

from theodolite.groups.record import N_SAMPLES, PER_BLOCK, PER_CONTRAST, PER_SET, STREAM_UNIT, Group, Variable


def _shape_variables(prefix: str, where: str) -> Iterator[Variable]:
    yield Variable(
        f"{prefix}mean_cosine",
        PER_SET,
        f"Mean cosine over pairs of prompts{where}; about 0 if directions are uniform on the sphere.",
    )
    yield Variable(
        f"{prefix}participation_ratio",
        PER_SET,
        f"Participation ratio (Σλ)²/Σλ² of the covariance's eigenvalues λ{where}; at most n-1.",
    )
    yield Variable(
        f"{prefix}effective_rank",
        PER_SET,
        f"Effective rank of the covariance: exp of the entropy of λ/Σλ{where}; at most n-1.",
    )
    yield Variable(f"{prefix}intrinsic_dimension", PER_SET, f"TwoNN estimate of the intrinsic dimension{where}.")
    yield Variable(
        f"{prefix}linear_cka",
        (*PER_SET, "layer_other"),
        f"Plain linear CKA between two layers at the same site{where}; biased upwards.",
    )
    yield Variable(
        f"{prefix}linear_cka_debiased",
        (*PER_SET, "layer_other"),
        f"Linear CKA with unbiased HSIC between two layers at the same site{where}.",
    )
    yield Variable(f"{prefix}silhouette", PER_CONTRAST, f"Mean silhouette of the contrast's two sets{where}.")


VARIABLES = (
    N_SAMPLES,
    *_shape_variables("", ""),
    *_shape_variables("on_sphere_", " of activations scaled to norm √d_model"),
    *_shape_variables("standardised_", " of features scaled to variance 1"),
    Variable(
        "participation_ratio_gaussian",
        ("set", "position"),
        "Participation ratio of a Gaussian with the same numbers of prompts and features.",
    ),
    Variable(
        "effective_rank_gaussian",
        ("set", "position"),
        "Effective rank of a Gaussian with the same numbers of prompts and features.",
    ),
    Variable(
        "n_coincident",
        PER_SET,
        "Number of prompts that coincide with another; the TwoNN estimate leaves them out.",
        dtype="int64",
    ),
    Variable(
        "n_constant_features",
        PER_SET,
        "Number of features without variance; the standardised statistics leave them out.",
        dtype="int64",
    ),
    Variable("cka_attention", PER_BLOCK, "Debiased linear CKA between resid_pre and resid_mid of a block."),
    Variable("cka_mlp", PER_BLOCK, "Debiased linear CKA between resid_mid of a block and the block's output."),
    Variable("cka_block", PER_BLOCK, "Debiased linear CKA between resid_pre of a block and the block's output."),
    Variable("cosine_of_medians", PER_CONTRAST, "Cosine between the two sets' geometric medians."),
    Variable(
        "norm_of_mean_positive",
        PER_CONTRAST,
        "Norm of the mean of the positive set's samples (n_samples).",
        STREAM_UNIT,
    ),
    Variable(
        "norm_of_mean_negative",
        PER_CONTRAST,
        "Norm of the mean of the negative set's samples (n_samples).",
        STREAM_UNIT,
    ),
    Variable("norm_of_median_positive", PER_CONTRAST, "Norm of the positive set's geometric median.", STREAM_UNIT),
    Variable("norm_of_median_negative", PER_CONTRAST, "Norm of the negative set's geometric median.", STREAM_UNIT),
    Variable("difference_of_medians", PER_CONTRAST, "Norm of the difference of the geometric medians.", STREAM_UNIT),
    *(
        Variable(
            f"cosine_{centre}_{side}_difference",
            PER_CONTRAST,
            f"Cosine between the {side} set's {vectors} (positive minus negative).",
        )
        for centre, vectors in (
            ("mean", "mean and the difference of means"),
            ("median", "median and the difference of medians"),
        )
        for side in ("positive", "negative")
    ),
    Variable("orthant_occupancy", PER_BLOCK, "Share of an MLP's hidden units that are positive before gating."),
    Variable(
        "orthant_overlap", PER_BLOCK, "Share of an MLP's hidden units with equal signs in two prompts, mean over pairs."
    ),
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
