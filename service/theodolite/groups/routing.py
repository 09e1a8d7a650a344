"""Mixtures of experts: the shares of the prompts that use each expert, their differences, and active hidden units."""

from theodolite.groups.record import N_SAMPLES, N_SIDES, Group, Variable, variables

_OF_SET = ("set", "position", "layer", "expert")
_OF_CONTRAST = ("contrast", "position", "layer", "expert")

VARIABLES = (
    N_SAMPLES,
    Variable(
        "expert_share",
        _OF_SET,
        "Share of the set's prompts whose token uses the expert; the sum over experts is the number of experts that a "
        "token uses; NaN in layers without experts.",
        interval="expert_share",
    ),
    *variables(
        _OF_SET,
        expert_share_low="Lower end of the 95 % interval of expert_share.",
        expert_share_high="Upper end of the 95 % interval of expert_share.",
        expert_active_units="Share of the expert's hidden units that are active, mean over the set's prompts whose "
        "token uses the expert; NaN if none does, without resid_mid, and in families whose experts read something else "
        "than the MLP's norm of it.",
    ),
    *N_SIDES,
    Variable(
        "expert_difference",
        _OF_CONTRAST,
        "Share of the positive set's prompts whose token uses the expert, minus that of the negative set's prompts.",
        interval="expert_difference",
    ),
    *variables(
        _OF_CONTRAST,
        expert_difference_low="Lower end of the 95 % interval of expert_difference.",
        expert_difference_high="Upper end of the 95 % interval of expert_difference.",
        expert_difference_null_mean="Mean absolute difference with permuted labels.",
        expert_difference_null_sd="Standard deviation of the absolute difference with permuted labels.",
        expert_difference_z="The absolute difference minus its mean with permuted labels, over the standard deviation; "
        "NaN if every permutation gives the same absolute difference.",
        expert_difference_p="Share of permutations with as large an absolute difference of this expert.",
        expert_difference_p_family="Share of permutations whose largest z of the absolute difference over all layers "
        "and experts is as large as the z of this expert.",
    ),
)

GROUP = Group(
    name="routing",
    title="Experts",
    version=2,
    variables=VARIABLES,
    needs=frozenset({"prompts", "experts"}),
    order=10,
)
