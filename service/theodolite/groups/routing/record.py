"""Mixtures of experts: the shares of the prompts that use each expert, their differences, and active hidden units."""

from theodolite.groups.schema import ESTIMATE, INTERVAL, N_SAMPLES, N_USED, NULL, SIDES, Group, Variable

_OF_SET = ("set", "position", "layer", "expert")
_OF_CONTRAST = ("contrast", "position", "layer", "expert")

VARIABLES = (
    N_SAMPLES,
    Variable(
        "expert_share",
        (*_OF_SET, ESTIMATE),
        "Share of the set's prompts whose token uses the expert; the sum over experts is the number of experts that a "
        "token uses; NaN in layers without experts.",
    ),
    Variable(
        "expert_active_units",
        _OF_SET,
        "Share of the expert's hidden units that are active, mean over the set's prompts whose token uses the expert; "
        "NaN if none does, without resid_mid, and in families whose experts read something else than the MLP's norm of "
        "it.",
    ),
    N_USED,
    Variable(
        "expert_difference",
        (*_OF_CONTRAST, ESTIMATE),
        "Share of the positive set's prompts whose token uses the expert, minus that of the negative set's prompts.",
    ),
    Variable(
        "expert_difference_null",
        (*_OF_CONTRAST, "null"),
        "Absolute difference with permuted labels: its mean and standard deviation (sd); the absolute difference with "
        "the real labels minus this mean, over this standard deviation (z; NaN if every permutation gives the same); "
        "the share of permutations with as large an absolute difference of this expert (p), and of those whose largest "
        "z over all layers and experts is as large as the z of this expert (p_family).",
    ),
)

GROUP = Group(
    name="routing",
    title="Experts",
    order=150,
    chapter="Components",
    variables=VARIABLES,
    labels={"prompt_side": SIDES, "null": NULL, ESTIMATE: INTERVAL},
    needs=frozenset({"prompts", "experts"}),
)
