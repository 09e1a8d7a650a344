"""The curves along depth: cosine between the means of two sets, mean variance and largest variance."""

from collections.abc import Iterator

from theodolite.groups.record import (
    N_SIDES,
    PER_CONTRAST,
    PER_SET,
    STREAM_UNIT,
    Group,
    Variable,
    location_of,
    variables,
)

SAMPLE_SIZES = (16, 32, 64, 128, 256)
"""Numbers of prompts in each set for which the plain cosine is predicted; publications use some of them."""


def _curve_variables(prefix: str, where: str, unit: str) -> Iterator[Variable]:
    cosine = f"{prefix}cosine_of_means"
    yield Variable(
        cosine,
        PER_CONTRAST,
        f"Plain cosine between the means of the two sets{where}; biased towards 0 by sampling noise.",
    )
    yield Variable(
        f"{cosine}_debiased",
        PER_CONTRAST,
        f"Cosine between the means of the two sets{where}, without the bias of sampling noise; NaN where "
        f"noise is larger than the means at this n.",
        interval=cosine,
    )
    for suffix, end in (("low", "Lower"), ("high", "Upper")):
        description = f"{end} end of the 95 % interval of the debiased cosine{where}."
        yield Variable(f"{cosine}_{suffix}", PER_CONTRAST, description)
        description = (
            f"{end} end of the simultaneous 95 % band of the debiased cosine{where} over all sites and layers."
        )
        yield Variable(f"{cosine}_band_{suffix}", PER_CONTRAST, description)
    yield location_of(cosine, "smallest")
    yield Variable(f"{prefix}difference_norm", PER_CONTRAST, f"Norm of the difference of the means{where}.", unit)
    for key, statistic in (("mean", "Mean"), ("max", "Maximum")):
        description = f"{statistic} over features of the variance (n-1) over prompts{where}."
        yield Variable(f"{prefix}variance_{key}", PER_SET, description, f"{unit}²")
    share = f"Share of the variance of all features that the three features with the largest have{where}."
    yield Variable(f"{prefix}variance_top3_share", PER_SET, share)
    index = f"Index of the feature with the largest variance{where}."
    yield Variable(f"{prefix}variance_max_feature", PER_SET, index, dtype="int64")
    yield Variable(f"{prefix}norm_of_mean", PER_SET, f"Norm of the mean{where}.", unit)


VARIABLES = (
    *N_SIDES,
    *_curve_variables("", "", STREAM_UNIT),
    *variables(
        (*PER_CONTRAST, "n_prompts"),
        cosine_of_means_expected="Expected plain cosine between the means of two independent sets of n_prompts other "
        "prompts each.",
        cosine_of_means_expected_low="Lower end of the interval that the plain cosine of such sets falls into with "
        "95 % probability.",
        cosine_of_means_expected_high="Upper end of the interval that the plain cosine of such sets falls into with "
        "95 % probability.",
    ),
    *_curve_variables("on_sphere_", " of activations scaled to norm √d_model", "√d_model sphere"),
)

GROUP = Group(
    name="curves",
    title="Curves",
    version=4,
    variables=VARIABLES,
    tables=("curves",),
    needs=frozenset({"prompts"}),
    per_set=frozenset({"stream"}),
    per_side=frozenset({"stream", "folds"}),
    always=True,
    is_read_whole=False,
    order=1,
)
