"""Separation of a contrast's two sets along its direction, on prompts that the direction was not fitted on."""

from collections.abc import Iterator

from theodolite.groups.record import N_SIDES, PER_CONTRAST, Group, Variable, variables


def _with_interval(name: str, sentence: str) -> Iterator[Variable]:
    yield Variable(name, PER_CONTRAST, f"{sentence}, cross-validated.", interval=name)
    ends = {"low": "Lower", "high": "Upper"}
    texts = {f"{name}_{end}": f"{which} end of the 95 % interval of {name}." for end, which in ends.items()}
    yield from variables(PER_CONTRAST, **texts)


def _with_band(name: str, sentence: str) -> Iterator[Variable]:
    yield from _with_interval(name, sentence)
    for end, which in {"low": "Lower", "high": "Upper"}.items():
        description = f"{which} end of the simultaneous 95 % band of {name} over all sites and layers."
        yield Variable(f"{name}_band_{end}", PER_CONTRAST, description)


VARIABLES = (
    *N_SIDES,
    *_with_band("auroc", "Area under the ROC curve of prompts along the direction"),
    *_with_band("accuracy", "Share of prompts on their own set's side of the midpoint"),
    *_with_band(
        "paired_accuracy",
        "Share of pairs whose positive prompt lies farther along the direction; NaN for contrasts without pairs",
    ),
    *_with_interval(
        "fisher_ratio", "Unbiased squared distance of the means, over the sum of the variances of both sets"
    ),
)

GROUP = Group(
    name="separation",
    title="Separation",
    version=2,
    variables=VARIABLES,
    tables=("separation",),
    needs=frozenset({"prompts", "contrasts"}),
    per_side=frozenset({"folds"}),
    order=2,
)
