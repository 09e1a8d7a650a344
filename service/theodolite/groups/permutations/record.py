"""Statistics of a contrast against those with labels that are permuted between its two sets."""

from theodolite.groups.schema import (
    AT_EXTREME,
    BAND,
    ESTIMATE,
    N_USED,
    NULL_AND_LIMIT,
    PER_CONTRAST,
    SIDES,
    STREAM_UNIT,
    Group,
    Variable,
    variables,
)

TESTED = {
    "auroc": "cross-validated AUROC",
    "ridge_auroc": "cross-validated AUROC by ridge regression",
    "accuracy": "cross-validated accuracy",
    "paired_accuracy": "share of held-out pairs in the right order",
    "difference_norm": "distance of the means",
    "silhouette": "mean silhouette of the two sets",
    "on_sphere_auroc": "cross-validated AUROC of activations scaled to norm √d_model",
    "norm_auroc": "AUROC of the norm of the activations, or 1 minus it if that is larger",
}
"""The tested statistics, with their names in descriptions."""


MEASURED = ("ridge_auroc", "on_sphere_auroc", "norm_auroc")
"""The tested statistics that no other group has, so their values and intervals are here."""

LOCATED = ("auroc", "ridge_auroc", "paired_accuracy")
"""The tested statistics whose largest values the report names."""

BEYOND_WORDS = {
    "auroc_beyond_words": "auroc",
    "ridge_auroc_beyond_words": "ridge_auroc",
    "paired_accuracy_beyond_words": "paired_accuracy",
}
BEYOND_LENGTH = {"auroc_beyond_length": "auroc", "ridge_auroc_beyond_length": "ridge_auroc"}
"""The statistics of activations that are stored as a difference from a control."""

_NULL = "What permuted labels give for the {}."
_WORDS = "minus that of the token counts by the better classifier, of the same prompts."
_LENGTH = "minus norm_auroc, of the same prompts."
_POINT = ("contrast", "position")

VARIABLES = (
    N_USED,
    *variables(
        (*_POINT, ESTIMATE),
        tokens_auroc="The cross-validated AUROC of the prompts' token counts, which no layer has processed; it has no "
        "band, like the following ones.",
        tokens_ridge_auroc="The cross-validated AUROC of the prompts' token counts by ridge regression.",
        tokens_paired_accuracy="The share of held-out pairs in the right order along the direction of token counts.",
        tokens_ridge_paired_accuracy="The share of held-out pairs in the right order by ridge regression on the token "
        "counts.",
    ),
    *variables(
        (*_POINT, "null"),
        tokens_auroc_null=_NULL.format("AUROC of the token counts"),
        tokens_ridge_auroc_null=_NULL.format("AUROC of the token counts by ridge regression"),
        tokens_paired_accuracy_null=_NULL.format("share of pairs by token counts"),
        tokens_ridge_paired_accuracy_null=_NULL.format("share of pairs by ridge regression on token counts"),
    ),
    *variables(
        _POINT,
        tokens_equal_pairs="Share of held-out pairs whose prompts have equal scores along the direction of the token "
        "counts; they count half in tokens_paired_accuracy.",
        tokens_auroc_is_ridge="1 if tokens_ridge_auroc is larger than tokens_auroc and so the control for words, else "
        "0.",
        tokens_paired_accuracy_is_ridge="1 if tokens_ridge_paired_accuracy is larger than tokens_paired_accuracy and "
        "so the control for words, else 0.",
    ),
    *variables(
        (*PER_CONTRAST, ESTIMATE),
        ridge_auroc=f"The {TESTED['ridge_auroc']}.",
        on_sphere_auroc=f"The {TESTED['on_sphere_auroc']}.",
        norm_auroc=f"The {TESTED['norm_auroc']}.",
        auroc_beyond_words=f"The AUROC {_WORDS}",
        ridge_auroc_beyond_words=f"The AUROC by ridge regression {_WORDS}",
        paired_accuracy_beyond_words=f"The share of held-out pairs in the right order {_WORDS}",
        auroc_beyond_length=f"The AUROC {_LENGTH}",
        ridge_auroc_beyond_length=f"The AUROC by ridge regression {_LENGTH}",
    ),
    *variables(
        PER_CONTRAST,
        auroc_location=AT_EXTREME.format("largest"),
        ridge_auroc_location=AT_EXTREME.format("largest"),
        paired_accuracy_location=AT_EXTREME.format("largest"),
        auroc_fit_error="What the fitted directions add to the standard error of auroc, so that the squares of both "
        "errors sum to that of the whole one.",
    ),
    *variables(
        (*PER_CONTRAST, "null"),
        auroc_null=_NULL.format(TESTED["auroc"]),
        ridge_auroc_null=_NULL.format(TESTED["ridge_auroc"]),
        accuracy_null=_NULL.format(TESTED["accuracy"]),
        paired_accuracy_null=_NULL.format(TESTED["paired_accuracy"]),
        silhouette_null=_NULL.format(TESTED["silhouette"]),
        on_sphere_auroc_null=_NULL.format(TESTED["on_sphere_auroc"]),
        norm_auroc_null=_NULL.format(TESTED["norm_auroc"]),
    ),
    Variable(
        "difference_norm_null",
        (*PER_CONTRAST, "null"),
        "What permuted labels give for the distance of the means; z, p and p_family have no unit.",
        STREAM_UNIT,
    ),
    Variable(
        "direction_cosine_null",
        (*PER_CONTRAST, "layer_other", "null"),
        "What permuted labels give for the cosine between the directions of two layers: mean and sd.",
    ),
)

GROUP = Group(
    name="permutations",
    title="Permutation tests",
    order=40,
    version=8,
    variables=VARIABLES,
    labels={"prompt_side": SIDES, ESTIMATE: BAND, "null": NULL_AND_LIMIT},
    tables=("permutations",),
    needs=frozenset({"prompts", "contrasts"}),
)
