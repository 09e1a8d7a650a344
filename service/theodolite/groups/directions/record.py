"""Unit vectors from the negative to the positive mean of each contrast, their reliability, and their cosines."""

from theodolite.groups.schema import N_USED, PER_CONTRAST, SIDES, SPACES, STREAM_UNIT, Group, Variable

VARIABLES = (
    N_USED,
    Variable(
        "direction",
        (*PER_CONTRAST, "space", "d_model"),
        "Unit vector from the mean of the negative set to the mean of the positive set; NaN where they are equal.",
    ),
    Variable(
        "on_sphere_direction_cosine",
        PER_CONTRAST,
        "Cosine between the directions of both spaces.",
    ),
    Variable(
        "direction_cosine",
        (*PER_CONTRAST, "layer_other"),
        "Cosine between the directions of two layers at the same site.",
    ),
    Variable(
        "contrast_cosine",
        ("contrast", "contrast_other", "site", "position", "layer"),
        "Cosine between the directions of two contrasts at the same site, position and layer.",
    ),
    Variable(
        "noise_share",
        PER_CONTRAST,
        "Share of the squared distance of the means that sampling noise is expected to add; it can exceed 1.",
    ),
    Variable(
        "difference_norm_debiased",
        PER_CONTRAST,
        "Distance of the means without the expected noise; NaN where the noise share is 1 or more.",
        STREAM_UNIT,
    ),
    Variable(
        "split_half_cosine",
        PER_CONTRAST,
        "Mean cosine between the directions of two disjoint halves of the prompts, each of two of the five folds.",
    ),
    Variable(
        "reliability",
        PER_CONTRAST,
        "Expected cosine between this direction and that of as many other prompts (Spearman-Brown from "
        "split_half_cosine); 0 where the halves do not agree.",
    ),
)


GROUP = Group(
    name="directions",
    title="Directions",
    order=50,
    chapter="Separation",
    version=2,
    variables=VARIABLES,
    labels={"prompt_side": SIDES, "space": SPACES},
    needs=frozenset({"prompts", "contrasts"}),
    per_side=frozenset({"stream", "folds"}),
    always=True,
    is_requestable=False,
)
