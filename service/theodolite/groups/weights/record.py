"""Directions of the residual stream that the weight matrices write, read and share."""

from theodolite.groups.schema import Group, Variable

FORMS = ("stored", "folded")
"""The matrices as stored, and with the scales of norms folded into them."""

MATRICES = ("model", "random")
"""The matrices of the model, and random ones with the same row lengths, one draw for each matrix."""

_LAYERS = ("layer", "layer_other")

VARIABLES = (
    Variable(
        "writing_overlap",
        ("matrices", "form", "writing_matrix", *_LAYERS),
        "Overlap ‖UᵀV‖²/r of the r leading directions that two layers' matrices write.",
    ),
    Variable(
        "reading_overlap",
        ("matrices", "form", "reading_matrix", *_LAYERS),
        "Overlap ‖UᵀV‖²/r of the r leading directions that two layers' matrices read.",
    ),
    Variable(
        "writer_reader_overlap",
        ("matrices", "form", "writing_matrix", "reading_matrix", *_LAYERS),
        "Overlap ‖UᵀV‖²/r of the directions that one layer (layer) writes and a later layer (layer_other) reads; NaN "
        "if layer_other is not later.",
    ),
    Variable(
        "expert_overlap",
        ("mlp_matrix", "layer", "expert_or_shared", "expert_or_shared_other"),
        "Overlap ‖UᵀV‖²/r of the r leading directions that two experts of a layer write (down) or read (gate, up); NaN "
        "in layers without experts.",
    ),
    Variable(
        "expert_overlap_null",
        ("mlp_matrix", "layer"),
        "Mean of this overlap over the 6 pairs of 4 random matrices with the row lengths of 4 routed experts.",
    ),
    Variable("random_overlap", ("null",), "Overlap of two random subspaces: mean r/d_model, and standard deviation."),
)

GROUP = Group(
    name="weights",
    title="Weights",
    order=148,
    chapter="Components",
    variables=VARIABLES,
    labels={"matrices": MATRICES, "form": FORMS, "null": ("mean", "sd")},
    needs=frozenset({"weights"}),
)
"""The analysis `weights`: overlaps of the leading directions that the layers' matrices write and read."""
