"""Separation of a contrast's two sets along its direction, on prompts that the direction was not fitted on."""

from theodolite.groups.schema import BAND, ESTIMATE, N_USED, PER_CONTRAST, SIDES, Group, Variable, variables

VARIABLES = (
    N_USED,
    *variables(
        (*PER_CONTRAST, ESTIMATE),
        auroc="Area under the ROC curve of prompts along the direction, the difference of means, cross-validated.",
        accuracy="Share of prompts on their own set's side of the midpoint, cross-validated.",
        paired_accuracy="Share of pairs whose positive prompt lies farther along the direction, cross-validated; NaN "
        "without pairs.",
        fisher_ratio="Unbiased squared distance of the means, over the sum of the variances of both sets; it has no "
        "band.",
    ),
    Variable(
        "auroc_band_limit",
        ("contrast", "position"),
        "Lower end of the simultaneous 95 % band of an AUROC of 1; no AUROC of as many prompts has a higher one.",
    ),
)

SCORES_TABLE, SCALES_TABLE = "prompt_scores", "prompt_score_scales"
"""The held-out score of each prompt at each site and layer, and the spread of the scores there."""

MOST_SCORED = 10_000
"""Maximum number of prompts of a side in SCORES_TABLE, the first ones."""

GROUP = Group(
    name="separation",
    title="Separation",
    order=30,
    variables=VARIABLES,
    labels={"prompt_side": SIDES, ESTIMATE: BAND},
    tables=("separation", SCORES_TABLE, SCALES_TABLE),
    needs=frozenset({"prompts", "contrasts"}),
    per_side=frozenset({"folds"}),
)
