"""Every array and table of a run, in one place: name, dimensions, dtype, unit, and one sentence."""

from collections.abc import Iterator
from dataclasses import dataclass

from theodolite.sites import Site

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


def resid_variable(site: Site) -> Variable:
    """Return what is stored of a site."""
    return RESID_FINAL if site is Site.RESID_FINAL else RESID


def shard_key(site: Site, shard_index: int) -> str:
    """Return the Zarr key of a capture shard inside its set's group."""
    trailing = len(resid_variable(site).dims) - 1
    return "/".join([site, "c", str(shard_index), *["0"] * trailing])


COORDINATES = {
    "sample": "Index of the prompt in its set.",
    "position": "Token position counted from the end; -1 is the last token.",
    "layer": "0-based index of the block.",
    "layer_other": "0-based index of the block compared with.",
    "d_model": "Feature of the residual stream.",
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

GROUPS: dict[str, tuple[Variable, ...]] = {
    "moments": MOMENTS,
    "curves": CURVES,
    "directions": DIRECTIONS,
    "heads": HEADS,
    "composition": COMPOSITION,
    "words": WORDS,
}
"""Result groups by name."""

STREAM_GROUPS = ("moments", "curves", "directions")
"""The groups that come from activations alone."""
