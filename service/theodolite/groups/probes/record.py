"""Probes of a contrast beside the difference of means: how well they separate prompts that they were not fitted on."""

from theodolite.groups.schema import (
    BAND,
    ESTIMATE,
    N_USED,
    NULL_AND_LIMIT,
    PER_CONTRAST,
    SIDES,
    Group,
    Variable,
    flat,
)

PROBES = ("mean_difference", "lda", "logistic")
"""Difference of means, linear discriminants with a shrunk covariance, logistic regression with a chosen ridge."""

TESTED = ("auroc", "accuracy", "paired_accuracy")
"""The measures that permuted labels test."""

BEYOND_WORDS, BEYOND_MEANS = "auroc_beyond_words", "auroc_beyond_means"

MEASURES = (*TESTED, BEYOND_WORDS, BEYOND_MEANS)

FIT = ("cosine", "penalty", "length", "offset")

VARIABLES = (
    N_USED,
    Variable(
        "probe_performance",
        (*PER_CONTRAST, "probe", "measure", ESTIMATE),
        "How well a probe separates held-out prompts: AUROC, accuracy, share of pairs in the right order, and the "
        "AUROC minus that of the prompts' token counts by the best of the three probes, or of the difference of means.",
    ),
    Variable(
        "probe_null",
        (*PER_CONTRAST, "probe", "tested", "null"),
        "What permuted labels give for these measures: 200 permutations, for the logistic probe `probes.draws`.",
    ),
    Variable(
        "probe_fit",
        (*PER_CONTRAST, "probe", "fit"),
        "The probe that is fitted on all prompts. The score of an activation x is the length times x·direction, "
        "minus the offset: in units of the residual stream for the difference of means, else the log of the odds.",
    ),
    Variable(
        "probe_direction",
        (*PER_CONTRAST, "probe", "d_model"),
        "Unit vector along which the probe that is fitted on all prompts reads the stream.",
    ),
)

GROUP = Group(
    name="probes",
    title="Probes",
    order=45,
    chapter="Separation",
    variables=VARIABLES,
    labels={
        "prompt_side": SIDES,
        "probe": PROBES,
        "measure": MEASURES,
        "tested": TESTED,
        "fit": FIT,
        ESTIMATE: BAND,
        "null": NULL_AND_LIMIT,
    },
    absent=(
        {"probe": "mean_difference", "measure": BEYOND_MEANS},
        {"probe": "mean_difference", "fit": "penalty"},
    ),
    tables=(flat("probes", VARIABLES),),
    needs=frozenset({"prompts", "contrasts"}),
    least_samples=10,
    options="probes",
    on_request=True,
)
