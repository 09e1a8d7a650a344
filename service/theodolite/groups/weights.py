"""Directions of the residual stream that the weight matrices write, read and share."""

from theodolite.groups.record import Group, Variable

_PAIRPER_BLOCKS = ("layer", "layer_other")

VARIABLES = (
    Variable(
        "writing_overlap", ("writing_matrix", *_PAIRPER_BLOCKS), "‖UᵀV‖²/r of the r leading directions they write."
    ),
    Variable(
        "reading_overlap", ("reading_matrix", *_PAIRPER_BLOCKS), "‖UᵀV‖²/r of the r leading directions they read."
    ),
    Variable(
        "writer_reader_overlap",
        ("writing_matrix", "reading_matrix", *_PAIRPER_BLOCKS),
        "‖UᵀV‖²/r of what a layer writes and a later one, layer_other, reads; NaN where it is not later.",
    ),
    Variable("random_overlap", (), "r/d: what two random subspaces share."),
)

GROUP = Group(
    name="weights",
    title="Weights",
    version=1,
    variables=VARIABLES,
    needs=frozenset({"weights"}),
    order=6,
)
