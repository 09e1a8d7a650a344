"""Composition of pairs of attention heads."""

from theodolite.groups.schema import Group, Variable

VARIABLES = (
    Variable(
        "score",
        ("composition", "layer", "head", "layer_other", "head_other"),
        "‖W_OV W‖ over ‖W_OV‖‖W‖ (Frobenius norms) for a head's W_OV and a head of a later layer, layer_other: W is "
        "its W_QK for q, W_QKᵀ for k, W_OV for v.",
    ),
)

GROUP = Group(
    name="composition",
    title="Composition",
    order=130,
    variables=VARIABLES,
    needs=frozenset({"weights"}),
    options="heads",
    is_requestable=False,
)
