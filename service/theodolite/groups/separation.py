"""Separation of a contrast's two sets along its direction, on prompts that the direction was not fitted on."""

from theodolite.groups.record import N_SIDES, PER_CONTRAST, Group, Variable

VARIABLES = (
    *N_SIDES,
    *(
        Variable(
            f"{name}{suffix}", PER_CONTRAST, f"{sentence}, cross-validated{bound}.", interval="" if suffix else name
        )
        for name, sentence in (
            ("auroc", "Area under the ROC curve of prompts along the direction"),
            ("accuracy", "Share of prompts on their own set's side of the midpoint"),
            ("fisher_ratio", "Unbiased squared distance of the means, over the sum of the variances of both sets"),
        )
        for suffix, bound in (("", ""), ("_low", ": lower end of its 95 % interval"), ("_high", ": upper end"))
    ),
)

GROUP = Group(
    name="separation",
    title="Separation",
    version=1,
    variables=VARIABLES,
    tables=("separation",),
    needs=frozenset({"prompts", "contrasts"}),
    per_side=frozenset({"folds"}),
    order=2,
)
