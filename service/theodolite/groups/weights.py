"""Directions of the residual stream that the weight matrices write, read and share."""

from collections.abc import Iterator

from theodolite.groups.record import Group, Variable

_LAYERS = ("layer", "layer_other")
_FOLDED = ", with the scales of norms folded into the matrices"


def _overlap_variables(prefix: str, where: str) -> Iterator[Variable]:
    yield Variable(
        f"{prefix}writing_overlap",
        ("writing_matrix", *_LAYERS),
        f"Overlap ‖UᵀV‖²/r of the r leading directions that two layers' matrices write{where}.",
    )
    yield Variable(
        f"{prefix}reading_overlap",
        ("reading_matrix", *_LAYERS),
        f"Overlap ‖UᵀV‖²/r of the r leading directions that two layers' matrices read{where}.",
    )
    yield Variable(
        f"{prefix}writer_reader_overlap",
        ("writing_matrix", "reading_matrix", *_LAYERS),
        "Overlap ‖UᵀV‖²/r of the directions that one layer (layer) writes and a later layer (layer_other) reads"
        f"{where}; NaN if layer_other is not later.",
    )


VARIABLES = (
    *_overlap_variables("", ""),
    *_overlap_variables("folded_", _FOLDED),
    Variable("random_overlap", (), "Expected overlap of two random subspaces, r/d_model."),
    Variable("random_overlap_sd", (), "Standard deviation of the overlap of two random subspaces."),
)

GROUP = Group(name="weights", title="Weights", version=3, variables=VARIABLES, needs=frozenset({"weights"}), order=7)
