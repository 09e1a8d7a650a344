"""Shape of each set's point cloud, and similarity of layers, from Gram matrices."""

from collections.abc import Iterator

from theodolite.groups.record import (
    N_SAMPLES,
    PER_BLOCK,
    PER_CONTRAST,
    PER_SET,
    STREAM_UNIT,
    Group,
    Variable,
    variables,
)


def _shape_variables(prefix: str, where: str) -> Iterator[Variable]:
    of_layer = {
        "mean_cosine": f"Mean cosine over pairs of prompts{where}; about 0 if directions are uniform on the sphere.",
        "participation_ratio": f"Participation ratio (Σλ)²/Σλ² of the covariance's eigenvalues λ{where}; at most n-1.",
        "effective_rank": f"Effective rank of the covariance: exp of the entropy of λ/Σλ{where}; at most n-1.",
        "intrinsic_dimension": f"TwoNN estimate of the intrinsic dimension{where}.",
    }
    of_two_layers = {
        "linear_cka": f"Plain linear CKA between two layers at the same site{where}; biased upwards.",
        "linear_cka_debiased": f"Linear CKA with unbiased HSIC between two layers at the same site{where}.",
    }
    of_block = {
        "cka_attention": f"Debiased linear CKA between resid_pre and resid_mid of a block{where}.",
        "cka_mlp": f"Debiased linear CKA between resid_mid of a block and the block's output{where}.",
        "cka_block": f"Debiased linear CKA between resid_pre of a block and the block's output{where}.",
        "cka_attention_branch": "Debiased linear CKA between resid_pre of a block and what attention adds to it"
        f"{where}; NaN if neither attn_out nor both ends of the addition were captured.",
        "cka_mlp_branch": "Debiased linear CKA between the MLP's input (resid_mid, or resid_pre without resid_mid) and "
        f"what the MLP adds to the stream{where}; NaN if neither mlp_out nor both ends of the addition were captured.",
        "cka_block_branch": "Debiased linear CKA between resid_pre of a block and what the block adds to it"
        f"{where}; NaN in post-norm blocks, or if one end of the addition was not captured.",
    }
    of_contrast = {"silhouette": f"Mean silhouette of the contrast's two sets{where}."}
    dimensions = (
        (PER_SET, of_layer),
        ((*PER_SET, "layer_other"), of_two_layers),
        (PER_BLOCK, of_block),
        (PER_CONTRAST, of_contrast),
    )
    for dims, descriptions in dimensions:
        yield from variables(dims, **{f"{prefix}{name}": text for name, text in descriptions.items()})


VARIABLES = (
    N_SAMPLES,
    *_shape_variables("", ""),
    *_shape_variables("on_sphere_", " of activations scaled to norm √d_model"),
    *_shape_variables("standardised_", " of features scaled to variance 1"),
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
    *variables(
        PER_SET,
        intrinsic_dimension_gaussian="Mean TwoNN estimate of random rotations of the samples, which keep their number "
        "and covariance.",
        intrinsic_dimension_gaussian_sd="Standard deviation (n-1) of the estimate over these rotations.",
    ),
    Variable("cosine_of_medians", PER_CONTRAST, "Cosine between the two sets' geometric medians."),
    *variables(
        PER_CONTRAST,
        STREAM_UNIT,
        norm_of_mean_positive="Norm of the mean of the positive set's samples (n_samples).",
        norm_of_mean_negative="Norm of the mean of the negative set's samples (n_samples).",
        norm_of_median_positive="Norm of the positive set's geometric median.",
        norm_of_median_negative="Norm of the negative set's geometric median.",
        difference_of_medians="Norm of the difference of the geometric medians.",
    ),
    *(
        Variable(
            f"cosine_{centre}_{side}_difference",
            PER_CONTRAST,
            f"Cosine between the {side} set's {centre} and the difference of {centre}s (positive minus negative).",
        )
        for centre in ("mean", "median")
        for side in ("positive", "negative")
    ),
    *variables(
        PER_BLOCK,
        cka_attention_permuted="Debiased linear CKA between resid_pre of a block and its sum with what attention adds "
        "to other prompts, mean over permutations of the prompts; NaN where cka_attention_branch is.",
        cka_mlp_permuted="Debiased linear CKA between the MLP's input and its sum with what the MLP adds to other "
        "prompts, mean over permutations of the prompts; NaN where cka_mlp_branch is.",
        cka_block_permuted="Debiased linear CKA between resid_pre of a block and its sum with what the block adds to "
        "other prompts, mean over permutations of the prompts; NaN where cka_block_branch is.",
        orthant_occupancy="Share of an MLP's hidden units that are positive before gating.",
        orthant_overlap="Share of an MLP's hidden units with equal signs in two prompts, mean over pairs.",
    ),
)

GROUP = Group(
    name="gram",
    title="Shape and similarity",
    version=3,
    variables=VARIABLES,
    tables=("gram",),
    needs=frozenset({"prompts"}),
    options="gram",
    order=3,
)
