"""The unit vector from the negative to the positive mean of each contrast, and cosines between layers."""

from theodolite.groups.record import PER_CONTRAST, Group, Variable

VARIABLES = (
    Variable(
        "direction",
        (*PER_CONTRAST, "d_model"),
        "Unit vector from the mean of the negative set to the mean of the positive set; NaN where they are equal.",
    ),
    Variable(
        "direction_cosine",
        (*PER_CONTRAST, "layer_other"),
        "Cosine between the directions of two layers at the same site.",
    ),
)

GROUP = Group(
    name="directions",
    title="Directions",
    version=2,
    variables=VARIABLES,
    needs=frozenset({"prompts"}),
    per_side=frozenset({"stream"}),
    always=True,
    is_analysis=False,
    is_read_whole=False,
)
