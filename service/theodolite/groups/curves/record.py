"""The curves along depth: cosine between the means of two sets, mean variance and largest variance."""

from theodolite.groups.schema import (
    AT_EXTREME,
    BAND,
    ESTIMATE,
    N_USED,
    PER_CONTRAST,
    PER_SET,
    SIDES,
    SPACES,
    STREAM_UNIT,
    Group,
    Variable,
    flat,
    variables,
)

SAMPLE_SIZES = (16, 32, 64, 128, 256)
"""Numbers of prompts in each set for which the plain cosine is predicted; publications use some of them."""

_OF_CONTRAST, _OF_SET = (*PER_CONTRAST, "space"), (*PER_SET, "space")

VARIABLES = (
    N_USED,
    Variable(
        "cosine_of_means_debiased",
        (*_OF_CONTRAST, ESTIMATE),
        "Cosine between the means of the two sets, without the bias of sampling noise; NaN where noise is larger than "
        "the means at this n.",
    ),
    *variables(
        _OF_CONTRAST,
        cosine_of_means="Plain cosine between the means of the two sets; biased towards 0 by sampling noise.",
        cosine_of_means_debiased_location=AT_EXTREME.format("smallest"),
    ),
    Variable("difference_norm", _OF_CONTRAST, "Norm of the difference of the means.", STREAM_UNIT),
    *variables(
        _OF_SET,
        f"{STREAM_UNIT}²",
        variance_mean="Mean over features of the variance (n-1) over prompts.",
        variance_max="Maximum over features of the variance (n-1) over prompts.",
    ),
    *variables(
        _OF_SET,
        variance_top3_share="Top-3 share of the variance: the part that the three largest features have.",
    ),
    Variable("variance_max_feature", _OF_SET, "Index of the feature with the largest variance.", dtype="int64"),
    Variable("norm_of_mean", _OF_SET, "Norm of the mean.", STREAM_UNIT),
    Variable(
        "cosine_of_means_expected",
        (*PER_CONTRAST, "n_prompts", ESTIMATE),
        "Expected plain cosine between the means of two independent sets of n_prompts other prompts each; the cosine "
        "of such sets falls into the interval with 95 % probability. It has no band.",
    ),
)

GROUP = Group(
    name="curves",
    title="Curves",
    order=20,
    chapter="Separation",
    variables=VARIABLES,
    labels={"prompt_side": SIDES, "space": SPACES, "n_prompts": SAMPLE_SIZES, ESTIMATE: BAND},
    tables=(flat("curves", VARIABLES),),
    needs=frozenset({"prompts"}),
    per_set=frozenset({"stream"}),
    per_side=frozenset({"stream", "folds"}),
    always=True,
)
