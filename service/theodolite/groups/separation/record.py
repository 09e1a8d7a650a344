"""Separation of a contrast's two sets along its direction, on prompts that the direction was not fitted on."""

from theodolite.groups.schema import (
    BAND,
    ESTIMATE,
    N_USED,
    PER_CONTRAST,
    SIDES,
    STREAM_UNIT,
    Column,
    Group,
    Table,
    Variable,
    at_axes,
    columns,
    flat,
    variables,
)

VARIABLES = (
    N_USED,
    *variables(
        (*PER_CONTRAST, ESTIMATE),
        auroc="Area under the ROC curve of prompts along the direction, the difference of means, cross-validated.",
        accuracy="Share of prompts on their own set's side of the midpoint, cross-validated.",
        paired_accuracy="Paired accuracy: share of held-out pairs in the right order (the positive prompt lies farther "
        "along the direction); NaN without pairs.",
        fisher_ratio="Unbiased squared distance of the means, over the sum of the variances of both sets; it has no "
        "band.",
    ),
    Variable(
        "auroc_band_limit",
        ("contrast", "position"),
        "Lower end of the simultaneous 95 % band of an AUROC of 1; no AUROC of as many prompts has a higher one.",
    ),
)

LEAST_PROMPTS = 6
"""Five in each set, one in each fold, have 2⁵ labels, each as far apart as its exchange: the smallest p is 1/16."""

MOST_EQUAL_PAIRS = 0.5
"""With a larger share of pairs with equal token scores, token counts are a weak control for words."""

MOST_SCORED = 10_000
"""Maximum number of prompts of a side in `prompt_scores`, the first ones."""

PLACE = ("contrast", "position", "site", "layer")
"""The columns that say where a score is."""

SCORES = Table(
    "prompt_scores",
    "The held-out score of each prompt at each site and layer.",
    (
        *at_axes(*PLACE),
        Column("score", "The signed distance to the middle of both means, along their difference.", STREAM_UNIT),
        Column("side", "The side of the contrast: positive or negative."),
        *at_axes("set", "sample"),
    ),
)

SCALES = Table(
    "prompt_score_scales",
    "The spread of the scores at each site and layer.",
    (
        *at_axes(*PLACE),
        *columns(
            STREAM_UNIT,
            deviation="The standard deviation of the scores, pooled over both sides.",
            low_positive="The 5 % quantile of the positive scores.",
            high_positive="The 95 % quantile of the positive scores.",
            low_negative="The 5 % quantile of the negative scores.",
            high_negative="The 95 % quantile of the negative scores.",
        ),
    ),
)

GROUP = Group(
    name="separation",
    title="Separation",
    order=15,
    chapter="Separation",
    variables=VARIABLES,
    labels={"prompt_side": SIDES, ESTIMATE: BAND},
    tables=(flat("separation", VARIABLES), SCORES, SCALES),
    needs=frozenset({"prompts", "contrasts"}),
    least_samples=10,
    per_side=frozenset({"folds"}),
)
