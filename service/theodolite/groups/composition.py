"""Composition of pairs of attention heads."""

from theodolite.groups.record import Group, Variable

VARIABLES = (
    Variable(
        "score",
        ("composition", "layer", "head", "layer_other", "head_other"),
        "‖W_VO W‖ over ‖W_VO‖‖W‖ (Frobenius) of a head and one of a later layer, layer_other, whose W is W_QK for Q, "
        "W_QKᵀ for K, W_VO for V.",
    ),
)

GROUP = Group(
    name="composition",
    title="Composition",
    version=1,
    variables=VARIABLES,
    needs=frozenset({"weights"}),
    options="heads",
    is_analysis=False,
)
