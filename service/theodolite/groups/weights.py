"""Directions of the residual stream that the weight matrices write, read and share."""

from theodolite.groups.record import Group, Variable

_LAYERS = ("layer", "layer_other")

VARIABLES = (
    Variable(
        "writing_overlap",
        ("writing_matrix", *_LAYERS),
        "Overlap ‖UᵀV‖²/r of the r leading directions that two layers' matrices write.",
    ),
    Variable(
        "reading_overlap",
        ("reading_matrix", *_LAYERS),
        "Overlap ‖UᵀV‖²/r of the r leading directions that two layers' matrices read.",
    ),
    Variable(
        "writer_reader_overlap",
        ("writing_matrix", "reading_matrix", *_LAYERS),
        "Overlap ‖UᵀV‖²/r of the directions that one layer (layer) writes and a later layer (layer_other) reads; "
        "NaN if layer_other is not later.",
    ),
    Variable("random_overlap", (), "Expected overlap of two random subspaces, r/d_model."),
)

GROUP = Group(name="weights", title="Weights", version=1, variables=VARIABLES, needs=frozenset({"weights"}), order=7)
