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
    flat,
)

SCORED_BY = ("ridge", "on_sphere", "norm")
"""The scores whose AUROC no other group has, so its values and intervals are here."""

TESTED = (
    *("auroc", "ridge_auroc", "accuracy", "paired_accuracy"),
    *("difference_norm", "silhouette", "on_sphere_auroc", "norm_auroc"),
)
"""The statistics that permuted labels test."""

HELD_OUT = ("auroc", "ridge_auroc", "paired_accuracy")
"""The tested statistics of held-out prompts: the report names their largest values, and compares them with controls."""

MEASURES = ("auroc", "paired_accuracy")
CLASSIFIERS = ("means", "ridge")
"""How token counts separate the sets: by these statistics, of a difference of means and of ridge regression."""

CONTROLS = ("words", "length")

_POINT = ("contrast", "position")

VARIABLES = (
    N_USED,
    Variable(
        "tokens",
        (*_POINT, "measure", "classifier", ESTIMATE),
        "Cross-validated AUROC of the prompts' token counts, which no layer has processed, and the share of held-out "
        "pairs that they put in the right order; without a band.",
    ),
    Variable("tokens_null", (*_POINT, "measure", "classifier", "null"), "What permuted labels give for tokens."),
    Variable(
        "tokens_equal_pairs",
        _POINT,
        "Share of held-out pairs whose prompts have equal scores along the direction of the token counts; they count "
        "half in the paired accuracy of tokens.",
    ),
    Variable(
        "tokens_is_ridge",
        (*_POINT, "measure"),
        "1 if tokens is larger by ridge regression, which is then the control for words, else 0.",
    ),
    Variable(
        "score_auroc",
        (*PER_CONTRAST, "scored_by", ESTIMATE),
        "Cross-validated AUROC by ridge regression (ridge), and by difference of means of activations scaled to norm "
        "√d_model (on_sphere); AUROC of the norm of the activations (norm), or 1 minus it if that is larger.",
    ),
    Variable(
        "beyond",
        (*PER_CONTRAST, "held_out", "control", ESTIMATE),
        "Statistic of held-out prompts minus that of a control of the same prompts: of their token counts by the "
        "better classifier (words), or the AUROC of their norm (length).",
    ),
    Variable("location", (*PER_CONTRAST, "held_out"), AT_EXTREME.format("largest")),
    Variable(
        "auroc_fit_error",
        PER_CONTRAST,
        "What the fitted directions add to the standard error of auroc, so that the squares of both errors sum to that "
        "of the whole one.",
    ),
    Variable(
        "tested_null",
        (*PER_CONTRAST, "tested", "null"),
        f"What permuted labels give for each tested statistic; mean, sd and critical of difference_norm are in units "
        f"of the {STREAM_UNIT}.",
    ),
    Variable(
        "direction_cosine_null",
        (*PER_CONTRAST, "layer_other", "null"),
        "What permuted labels give for the cosine between the directions of two layers: mean and sd.",
    ),
    Variable(
        "contrast_cosine_null",
        ("contrast", "contrast_other", "site", "position", "layer", "null"),
        "What independent permutations of the labels of two contrasts give for the cosine between their directions: "
        "mean, sd and z; NaN if the contrasts share a set, which alone makes their directions similar.",
    ),
)

GROUP = Group(
    name="permutations",
    title="Permutation tests",
    order=40,
    version=3,
    variables=VARIABLES,
    labels={
        "prompt_side": SIDES,
        "tested": TESTED,
        "held_out": HELD_OUT,
        "scored_by": SCORED_BY,
        "measure": MEASURES,
        "classifier": CLASSIFIERS,
        "control": CONTROLS,
        ESTIMATE: BAND,
        "null": NULL_AND_LIMIT,
    },
    absent=({"held_out": "paired_accuracy", "control": "length"},),
    tables=(flat("permutations", VARIABLES),),
    needs=frozenset({"prompts", "contrasts"}),
)
