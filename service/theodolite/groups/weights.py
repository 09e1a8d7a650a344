"""Directions of the residual stream that the weight matrices write, read and share."""

from collections.abc import Iterator

from theodolite.groups.record import Group, Variable

_LAYERS = ("layer", "layer_other")
_FOLDED = ", with the scales of norms folded into the matrices"
_NULL = "; of random matrices with the same row lengths, one draw for each matrix"


def _overlap_variables(prefix: str, suffix: str, how: str) -> Iterator[Variable]:
    yield Variable(
        f"{prefix}writing_overlap{suffix}",
        ("writing_matrix", *_LAYERS),
        f"Overlap ‖UᵀV‖²/r of the r leading directions that two layers' matrices write{how}.",
    )
    yield Variable(
        f"{prefix}reading_overlap{suffix}",
        ("reading_matrix", *_LAYERS),
        f"Overlap ‖UᵀV‖²/r of the r leading directions that two layers' matrices read{how}.",
    )
    yield Variable(
        f"{prefix}writer_reader_overlap{suffix}",
        ("writing_matrix", "reading_matrix", *_LAYERS),
        "Overlap ‖UᵀV‖²/r of the directions that one layer (layer) writes and a later layer (layer_other) reads"
        f"{how}; NaN if layer_other is not later.",
    )


VARIABLES = (
    *_overlap_variables("", "", ""),
    *_overlap_variables("folded_", "", _FOLDED),
    *_overlap_variables("", "_null", _NULL),
    *_overlap_variables("folded_", "_null", _FOLDED + _NULL),
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

GROUP = Group(name="weights", title="Weights", version=5, variables=VARIABLES, needs=frozenset({"weights"}), order=7)
"""The result group `weights`: overlaps of the leading directions that the layers' matrices write and read."""
