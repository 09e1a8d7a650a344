"""Directions of the residual stream that the weight matrices write, read and share."""

from theodolite.groups.schema import Group, Variable

FORMS = ("stored", "folded")
"""The matrices as stored, and with the scales of norms folded into them."""

_LAYERS = ("layer", "layer_other")
_WRITING = ("form", "writing_matrix", *_LAYERS)
_READING = ("form", "reading_matrix", *_LAYERS)
_BETWEEN = ("form", "writing_matrix", "reading_matrix", *_LAYERS)

VARIABLES = (
    Variable(
        "writing_overlap",
        _WRITING,
        "Overlap ‖UᵀV‖²/r of the r leading directions that two layers' matrices write.",
    ),
    Variable(
        "reading_overlap",
        _READING,
        "Overlap ‖UᵀV‖²/r of the r leading directions that two layers' matrices read.",
    ),
    Variable(
        "writer_reader_overlap",
        _BETWEEN,
        "Overlap ‖UᵀV‖²/r of the directions that one layer (layer) writes and a later layer (layer_other) reads; NaN "
        "if layer_other is not later.",
    ),
    Variable(
        "writing_overlap_null",
        _WRITING,
        "writing_overlap of random matrices with the same row lengths, one draw for each matrix.",
    ),
    Variable("reading_overlap_null", _READING, "reading_overlap of these random matrices."),
    Variable("writer_reader_overlap_null", _BETWEEN, "writer_reader_overlap of these random matrices."),
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
    Variable("random_overlap", (), "Expected overlap of two random subspaces, r/d_model."),
    Variable("random_overlap_sd", (), "Standard deviation of the overlap of two random subspaces."),
)

GROUP = Group(
    name="weights",
    title="Weights",
    order=100,
    version=5,
    variables=VARIABLES,
    labels={"form": FORMS},
    needs=frozenset({"weights"}),
)
"""The result group `weights`: overlaps of the leading directions that the layers' matrices write and read."""
