"""Statistics of a contrast against those with labels that are permuted between its two sets."""

from collections.abc import Iterator

from theodolite.groups.record import (
    N_SIDES,
    PER_CONTRAST,
    STREAM_UNIT,
    Group,
    Variable,
    location_of,
    variables,
    with_band,
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

LEVEL = 0.05
"""The family-wise error rate of the critical values."""


def _tests(name: str, text: str) -> Iterator[Variable]:
    units = STREAM_UNIT if name == "difference_norm" else "1"
    yield from variables(
        PER_CONTRAST,
        units,
        **{
            f"{name}_null_mean": f"Mean {text} with permuted labels.",
            f"{name}_null_sd": f"Standard deviation of the {text} with permuted labels.",
            f"{name}_critical": f"The {text} is above this value where its family-wise p is at most {LEVEL}.",
        },
    )
    yield from variables(
        PER_CONTRAST,
        **{
            f"{name}_z": f"The {text} minus its mean with permuted labels, over the standard deviation.",
            f"{name}_p": f"Share of permutations with as large a value of the {text} at this site and layer.",
            f"{name}_p_family": f"Share of permutations whose largest z of the {text} over all sites and layers is as "
            "large as the z at this site and layer.",
        },
    )


MEASURED = ("ridge_auroc", "on_sphere_auroc", "norm_auroc")
"""The tested statistics that no other group has, so their values and intervals are here."""

LOCATED = ("auroc", "ridge_auroc", "paired_accuracy")
"""The tested statistics whose largest values the report names."""

OF_TOKENS = {
    "tokens_auroc": "cross-validated AUROC of the prompts' token counts",
    "tokens_ridge_auroc": "cross-validated AUROC of the prompts' token counts by ridge regression",
    "tokens_paired_accuracy": "share of held-out pairs in the right order along the direction of the token counts",
    "tokens_ridge_paired_accuracy": "share of held-out pairs in the right order by ridge regression on the token "
    "counts",
}
"""The statistics of the counts of the prompts' tokens, which no layer of the model has processed."""

BEYOND = {
    "auroc_beyond_words": ("auroc", "tokens_auroc or tokens_ridge_auroc, whichever is larger"),
    "ridge_auroc_beyond_words": ("ridge_auroc", "tokens_auroc or tokens_ridge_auroc, whichever is larger"),
    "paired_accuracy_beyond_words": (
        "paired_accuracy",
        "tokens_paired_accuracy or tokens_ridge_paired_accuracy, whichever is larger",
    ),
    "auroc_beyond_length": ("auroc", "norm_auroc"),
    "ridge_auroc_beyond_length": ("ridge_auroc", "norm_auroc"),
}
"""The statistics of activations that are stored as a difference from a control: statistic and control."""


def _of_tokens(name: str, text: str) -> Iterator[Variable]:
    yield from variables(
        ("contrast", "position"),
        **{
            name: f"The {text}.",
            f"{name}_low": f"Lower end of the 95 % interval of {name}.",
            f"{name}_high": f"Upper end of the 95 % interval of {name}.",
            f"{name}_null_mean": f"Mean {text} with permuted labels.",
            f"{name}_null_sd": f"Standard deviation of the {text} with permuted labels.",
            f"{name}_p": f"Share of permutations with as large a value of the {text}.",
        },
    )


VARIABLES = (
    *N_SIDES,
    Variable(
        "tokens_equal_pairs",
        ("contrast", "position"),
        "Share of held-out pairs whose prompts have equal scores along the direction of the token counts; they count "
        "half in tokens_paired_accuracy.",
    ),
    *(variable for name, text in OF_TOKENS.items() for variable in _of_tokens(name, text)),
    *variables(
        ("contrast", "position"),
        tokens_auroc_is_ridge="1 if tokens_ridge_auroc is larger than tokens_auroc and so the control for words, else "
        "0.",
        tokens_paired_accuracy_is_ridge="1 if tokens_ridge_paired_accuracy is larger than tokens_paired_accuracy and "
        "so the control for words, else 0.",
    ),
    *(variable for name in MEASURED for variable in with_band(name, f"The {TESTED[name]}.")),
    *(location_of(name, "largest") for name in LOCATED),
    Variable(
        "auroc_fit_error",
        PER_CONTRAST,
        "What the fitted directions add to the standard error of auroc, so that the squares of both errors sum to that "
        "of the whole one.",
    ),
    *(
        variable
        for name, (of, control) in BEYOND.items()
        for variable in with_band(name, f"The {TESTED[of]} minus {control}, of the same prompts.")
    ),
    *(variable for name, text in TESTED.items() for variable in _tests(name, text)),
    *variables(
        (*PER_CONTRAST, "layer_other"),
        direction_cosine_null_mean="Mean cosine between the directions of two layers with permuted labels.",
        direction_cosine_null_sd="Standard deviation of the cosine between the directions of two layers with permuted "
        "labels.",
    ),
)

GROUP = Group(
    name="permutations",
    title="Permutation tests",
    version=8,
    variables=VARIABLES,
    tables=("permutations",),
    needs=frozenset({"prompts", "contrasts"}),
)
