"""Every array and table of a run, in one place: name, dimensions, dtype, unit, and one sentence."""

from collections.abc import Iterator
from dataclasses import dataclass

from theodolite.sites import BLOCK_SITES

FORMAT = 1
"""Raised whenever an older Theodolite could no longer read what is written."""

CAPTURE_VERSION = 1
"""Raised whenever a captured number could change; part of every run id."""

RUN_RECORD = "run.json"
COMPLETE = "COMPLETE"
REPORT = "report.html"
ACTIVATIONS = "activations.zarr"
RESULTS = "results.zarr"


@dataclass(frozen=True)
class Variable:
    """One array of a result group, or one kind of array of activations.

    One that is stored `by_layer` is too large to be held whole: it has a chunk for each layer, written as it comes.
    """

    name: str
    dims: tuple[str, ...]
    description: str
    units: str = "1"
    dtype: str = "float64"
    by_layer: bool = False


_STREAM = ("site", "position", "layer")
_SET = ("set", *_STREAM)
_CONTRAST = ("contrast", *_STREAM)
_STREAM_UNIT = "residual stream"

RESID = Variable(
    "resid",
    ("sample", "position", "layer", "d_model"),
    "Residual stream at a site; NaN before a prompt's first token and for quarantined prompts.",
    _STREAM_UNIT,
    "float32",
)
RESID_FINAL = Variable(
    "resid_final",
    ("sample", "position", "d_model"),
    "Residual stream after the last block, before the final norm.",
    _STREAM_UNIT,
    "float32",
)
MLP_POSITIVE = Variable(
    "mlp_positive",
    ("shard", "position", "layer", "unit"),
    "How many of a shard's usable prompts have the MLP's hidden unit positive before gating.",
    "prompts",
    "int32",
)
CAPTURED: dict[str, Variable] = {
    **dict.fromkeys(BLOCK_SITES, RESID),
    RESID_FINAL.name: RESID_FINAL,
    MLP_POSITIVE.name: MLP_POSITIVE,
}
"""What a set's group of activations may hold, by the arrays' names."""


def shard_key(name: str, shard_index: int) -> str:
    """Return the Zarr key of a capture shard of one array inside its set's group."""
    trailing = len(CAPTURED[name].dims) - 1
    return "/".join([name, "c", str(shard_index), *["0"] * trailing])


COORDINATES = {
    "sample": "Index of the prompt in its set.",
    "position": "Token position counted from the end; -1 is the last token.",
    "layer": "0-based index of the block.",
    "layer_other": "0-based index of the block compared with.",
    "d_model": "Feature of the residual stream.",
    "shard": "Index of the shard in its set.",
    "unit": "Hidden unit of the MLP.",
    "set": "Prompt set.",
    "contrast": "Contrast of two prompt sets.",
    "site": "Place in the block.",
    "circuit": "Bilinear map of a head: qk is s·W_Q R W_Kᵀ, vo is W_V W_O.",
    "offset": "Query position minus key position, under rotary positions; vo stands at 0.",
    "head": "Query head.",
    "head_other": "Query head of the other layer.",
    "rank": "Place among the singular values, the largest first.",
    "vector": "Place among the leading singular vectors.",
    "side": "Which side of which circuit meets the direction: qk_query, qk_key and vo_read read, vo_write writes.",
    "projection": "Query or key.",
    "composition": "Which input of the later head: Q, K or V.",
    "norm": "Norm layer, written `0.attention`, `0.mlp`, …, `final`.",
    "norm_kind": "What the norm stands before, or, of `…_output`, after.",
    "norm_layer": "0-based index of the norm's block; -1 of the final norm.",
    "writing_matrix": "Matrix that writes to the stream: o is W_O of all heads, down is W_down of all experts.",
    "reading_matrix": "Matrix that reads the stream: q, k, v of all heads, gate and up of all experts.",
}

MOMENTS = (
    Variable("count", ("set", "position"), "Prompts that the statistics rest on.", dtype="int64"),
    Variable("mean", (*_SET, "d_model"), "Mean over prompts.", _STREAM_UNIT),
    Variable("m2", (*_SET, "d_model"), "Sum of squared deviations from the mean.", f"{_STREAM_UNIT}²"),
    Variable("minimum", (*_SET, "d_model"), "Least value over prompts.", _STREAM_UNIT),
    Variable("maximum", (*_SET, "d_model"), "Largest value over prompts.", _STREAM_UNIT),
    Variable("norm_mean", _SET, "Mean Euclidean norm.", _STREAM_UNIT),
    Variable("norm_std", _SET, "Standard deviation (n-1) of the norm.", _STREAM_UNIT),
    Variable("unit_mean_length", _SET, "Length of the mean of unit vectors; 1 when all point one way."),
)


def _curve_variables(prefix: str, where: str, unit: str) -> Iterator[Variable]:
    yield Variable(
        f"{prefix}cosine_of_means",
        _CONTRAST,
        f"Cosine between the two sets' means{where}, as published elsewhere.",
    )
    yield Variable(
        f"{prefix}cosine_of_means_debiased",
        _CONTRAST,
        f"The same{where} without the bias of sampling noise; NaN where the means are not resolved at this n.",
    )
    yield Variable(f"{prefix}cosine_of_means_low", _CONTRAST, f"Lower end of the 95 % interval around it{where}.")
    yield Variable(f"{prefix}cosine_of_means_high", _CONTRAST, f"Upper end of the 95 % interval around it{where}.")
    yield Variable(f"{prefix}difference_norm", _CONTRAST, f"Norm of the difference of the means{where}.", unit)
    yield Variable(f"{prefix}variance_mean", _SET, f"Mean over features of the variance (n-1){where}.", f"{unit}²")
    yield Variable(f"{prefix}variance_max", _SET, f"Largest over features of the variance (n-1){where}.", f"{unit}²")
    yield Variable(
        f"{prefix}variance_max_feature", _SET, f"The feature whose variance is largest{where}.", dtype="int64"
    )
    yield Variable(f"{prefix}norm_of_mean", _SET, f"Norm of the mean{where}.", unit)


CURVES = (
    Variable("n_positive", ("contrast", "position"), "Prompts of the positive set that take part.", dtype="int64"),
    Variable("n_negative", ("contrast", "position"), "Prompts of the negative set that take part.", dtype="int64"),
    *_curve_variables("", "", _STREAM_UNIT),
    *_curve_variables("on_sphere_", " of activations scaled to norm √d_model", "√d_model sphere"),
)

DIRECTIONS = (
    Variable(
        "direction",
        (*_CONTRAST, "d_model"),
        "Unit vector from the negative to the positive set's mean; NaN where the means are equal.",
    ),
    Variable(
        "direction_cosine",
        (*_CONTRAST, "layer_other"),
        "Cosine between the directions of two layers at the same site.",
    ),
)

_CIRCUIT = ("circuit", "offset", "layer", "head")
_ALIGNED = ("contrast", "side", "layer", "head")

HEADS = (
    Variable("singular_values", (*_CIRCUIT, "rank"), "Singular values, the largest first; vo at offset 0 only."),
    Variable("coverage_99", _CIRCUIT, "First rank at which Σσ so far passes 99 % of the whole.", dtype="int64"),
    Variable("effective_rank", _CIRCUIT, "exp of the entropy of σ/Σσ."),
    Variable("stable_rank", _CIRCUIT, "Σσ² over the largest σ²."),
    Variable(
        "left_vectors",
        (*_CIRCUIT, "vector", "d_model"),
        "Left singular vectors: what a query reads (qk), what is read of an attended token (vo).",
        dtype="float32",
        by_layer=True,
    ),
    Variable(
        "right_vectors",
        (*_CIRCUIT, "vector", "d_model"),
        "Right singular vectors: what a key reads (qk), what is written (vo); the largest component is positive.",
        dtype="float32",
        by_layer=True,
    ),
    Variable("copying_score", ("layer", "head"), "Σλ/Σ|λ| of W_E W_VO W_Uᵀ: 1 where each token raises itself."),
    Variable(
        "null_dimension",
        ("projection", "layer", "head"),
        "Dimensions of the stream that a head's query or key cannot see.",
        dtype="int64",
    ),
    Variable(
        "null_variance",
        ("set", "position", "projection", "layer", "head"),
        "Share of the variance over prompts of what attention reads that lies in those dimensions.",
    ),
    Variable("n_samples", ("set", "position"), "Prompts that null_variance rests on.", dtype="int64"),
    Variable(
        "direction_alignment",
        _ALIGNED,
        "|dᵀM|/σ₁ for a contrast's direction d: 1 where d is the leading singular vector; random is √(stable_rank/d).",
    ),
    Variable(
        "vector_cosine",
        (*_ALIGNED, "vector"),
        "Cosine between a contrast's direction and each leading singular vector of that side.",
    ),
)

COMPOSITION = (
    Variable(
        "score",
        ("composition", "layer", "head", "layer_other", "head_other"),
        "‖W_VO W‖ over ‖W_VO‖‖W‖ (Frobenius) of a head and one of a later layer, layer_other, whose W is W_QK for Q, "
        "W_QKᵀ for K, W_VO for V.",
    ),
)

WORDS: tuple[Variable, ...] = ()
"""Words are tables alone; the group says which embeddings they were decoded against."""

_OF_NORM = ("set", "position", "norm")
_N_SAMPLES = Variable("n_samples", ("set", "position"), "Prompts that the statistics rest on.", dtype="int64")

SPHERE = (
    _N_SAMPLES,
    *(
        Variable(f"{name}_{end}", _OF_NORM, f"{sentence}: {said} over prompts.", unit)
        for name, sentence, unit in (
            ("norm_before", "Euclidean norm of what enters the norm layer", _STREAM_UNIT),
            ("normalized_norm", "Euclidean norm of what leaves it, before its scale and bias", "1"),
        )
        for end, said in (("mean", "mean"), ("std", "standard deviation (n-1)"), ("min", "least"), ("max", "largest"))
    ),
    Variable(
        "normalized_norm_expected", _OF_NORM, "Mean over prompts of what that norm should be, with ε in the root."
    ),
    Variable("worst_deviation", _OF_NORM, "Largest relative deviation from it over prompts; no more than rounding."),
    Variable("mean_component_before", _OF_NORM, "Mean over prompts of |1·x|/(√d‖x‖) of what enters."),
    Variable("mean_component_after", _OF_NORM, "The same of what leaves, before scale and bias; 0 of layer norms."),
    Variable("ellipsoid_residual", _OF_NORM, "Largest |‖(y-β)/γ‖/√d - 1|: how far ε takes a prompt off the ellipsoid."),
    Variable(
        "length_variance_share", _OF_NORM, "Share of the variance over prompts that is in length; the rest turns."
    ),
    Variable("relative_spread", _OF_NORM, "Standard deviation over mean of the norm of what enters."),
    Variable("relative_spread_gaussian", _OF_NORM, "The same of a Gaussian of as many dimensions."),
    Variable("relative_spread_squared", _OF_NORM, "Standard deviation over mean of the squared norm of what enters."),
    Variable("relative_spread_squared_gaussian", _OF_NORM, "The same of a Gaussian: √(2/d)."),
    Variable("semi_axes", ("norm", "d_model"), "Semi-axes of the ellipsoid that outputs lie on, the largest first."),
    Variable("scale_radii", ("norm", "d_model"), "√d|γ|, the largest first: the semi-axes of RMS norms alone."),
    Variable("centre", ("norm", "d_model"), "Centre of that ellipsoid, β."),
)

_OF_LAYER = ("set", "position", "layer")


def _mean_and_spread(name: str, dims: tuple[str, ...], sentence: str, unit: str = "1") -> Iterator[Variable]:
    yield Variable(name, dims, f"{sentence}; mean over prompts.", unit)
    yield Variable(f"{name}_std", dims, f"{sentence}; standard deviation (n-1) over prompts.", unit)


TRAVEL = (
    _N_SAMPLES,
    *_mean_and_spread("step_norm_attn", _OF_LAYER, "Norm of what attention adds", _STREAM_UNIT),
    *_mean_and_spread("step_norm_mlp", _OF_LAYER, "Norm of what the MLP adds", _STREAM_UNIT),
    *_mean_and_spread("step_norm_block", _OF_LAYER, "Norm of the whole block's step", _STREAM_UNIT),
    *_mean_and_spread("step_cosine_next", _OF_LAYER, "Cosine between the block's step and the next block's"),
    *_mean_and_spread("step_cosine_stream", _OF_LAYER, "Cosine between the block's step and the stream it enters"),
    *_mean_and_spread("path_length", ("set", "position"), "Sum of the norms of all blocks' steps", _STREAM_UNIT),
    *_mean_and_spread("displacement", ("set", "position"), "Norm of the way from first to last", _STREAM_UNIT),
    *_mean_and_spread("path_ratio", ("set", "position"), "Path length over displacement; 1 is a straight line"),
)

SEPARATION = (
    Variable("n_positive", ("contrast", "position"), "Prompts of the positive set that take part.", dtype="int64"),
    Variable("n_negative", ("contrast", "position"), "Prompts of the negative set that take part.", dtype="int64"),
    *(
        Variable(f"{name}{end}", _CONTRAST, f"{sentence}, cross-validated{said}.")
        for name, sentence in (
            ("auroc", "Area under the ROC curve of prompts along the direction"),
            ("accuracy", "Share of prompts on the right side of the midpoint"),
            ("fisher_ratio", "Squared distance of the means, unbiased, over the sum of both variances"),
        )
        for end, said in (("", ""), ("_low", ": lower end of its 95 % interval"), ("_high", ": upper end"))
    ),
)


def _shape_variables(prefix: str, where: str) -> Iterator[Variable]:
    yield Variable(f"{prefix}mean_cosine", _SET, f"Mean cosine between two prompts{where}; 0 in all directions.")
    yield Variable(f"{prefix}participation_ratio", _SET, f"(Σλ)²/Σλ² of the covariance{where}; at most n-1.")
    yield Variable(
        f"{prefix}effective_rank", _SET, f"exp of the entropy of λ/Σλ of the covariance{where}; at most n-1."
    )
    yield Variable(f"{prefix}intrinsic_dimension", _SET, f"TwoNN estimate of the dimension{where}.")
    yield Variable(
        f"{prefix}linear_cka",
        (*_SET, "layer_other"),
        f"Linear CKA between two layers at the same site{where}; biased up.",
    )
    yield Variable(f"{prefix}linear_cka_debiased", (*_SET, "layer_other"), f"The same by unbiased HSIC{where}.")
    yield Variable(f"{prefix}silhouette", _CONTRAST, f"Mean silhouette of the contrast's two sets{where}.")


GRAM = (
    _N_SAMPLES,
    *_shape_variables("", ""),
    *_shape_variables("on_sphere_", " of activations scaled to norm √d_model"),
    *_shape_variables("standardised_", " of features scaled to variance 1"),
    Variable(
        "participation_ratio_gaussian", ("set", "position"), "That of a Gaussian of as many prompts and features."
    ),
    Variable("effective_rank_gaussian", ("set", "position"), "That of a Gaussian of as many prompts and features."),
    Variable(
        "n_coincident", _SET, "Prompts that coincide with another, left out of the TwoNN estimate.", dtype="int64"
    ),
    Variable("n_constant_features", _SET, "Features without variance, left out where they are scaled.", dtype="int64"),
    Variable("cka_attention", _OF_LAYER, "Debiased linear CKA from resid_pre to resid_mid of a block."),
    Variable("cka_mlp", _OF_LAYER, "Debiased linear CKA from resid_mid of a block to what leaves it."),
    Variable("cka_block", _OF_LAYER, "Debiased linear CKA from resid_pre of a block to what leaves it."),
    Variable("cosine_of_medians", _CONTRAST, "Cosine between the two sets' geometric medians."),
    Variable("norm_of_mean_positive", _CONTRAST, "Norm of the mean of the positive set's n_samples.", _STREAM_UNIT),
    Variable("norm_of_mean_negative", _CONTRAST, "Norm of the mean of the negative set's n_samples.", _STREAM_UNIT),
    Variable("norm_of_median_positive", _CONTRAST, "Norm of the positive set's geometric median.", _STREAM_UNIT),
    Variable("norm_of_median_negative", _CONTRAST, "Norm of the negative set's geometric median.", _STREAM_UNIT),
    Variable("difference_of_medians", _CONTRAST, "Norm of the difference of the geometric medians.", _STREAM_UNIT),
    *(
        Variable(
            f"cosine_{centre}_{side}_difference",
            _CONTRAST,
            f"Cosine between the {side} set's {said} and theirs, positive minus negative.",
        )
        for centre, said in (
            ("mean", "mean and the difference of means"),
            ("median", "median and the difference of medians"),
        )
        for side in ("positive", "negative")
    ),
    Variable("orthant_occupancy", _OF_LAYER, "Share of an MLP's hidden units that are positive before gating."),
    Variable("orthant_overlap", _OF_LAYER, "Share of hidden units whose sign two prompts share, mean over pairs."),
)

_PAIR_OF_LAYERS = ("layer", "layer_other")

WEIGHTS = (
    Variable(
        "writing_overlap", ("writing_matrix", *_PAIR_OF_LAYERS), "‖UᵀV‖²/r of the r leading directions they write."
    ),
    Variable(
        "reading_overlap", ("reading_matrix", *_PAIR_OF_LAYERS), "‖UᵀV‖²/r of the r leading directions they read."
    ),
    Variable(
        "writer_reader_overlap",
        ("writing_matrix", "reading_matrix", *_PAIR_OF_LAYERS),
        "‖UᵀV‖²/r of what a layer writes and a later one, layer_other, reads; NaN where it is not later.",
    ),
    Variable("random_overlap", (), "r/d: what two random subspaces share."),
)

GROUPS: dict[str, tuple[Variable, ...]] = {
    "moments": MOMENTS,
    "curves": CURVES,
    "directions": DIRECTIONS,
    "sphere": SPHERE,
    "travel": TRAVEL,
    "separation": SEPARATION,
    "gram": GRAM,
    "weights": WEIGHTS,
    "heads": HEADS,
    "composition": COMPOSITION,
    "words": WORDS,
}
"""Result groups by name."""


def table_owner(table: str) -> str:
    """Return the result group that a table belongs to."""
    if table in GROUPS:
        return table
    return "travel" if table == "growth" else "words"
