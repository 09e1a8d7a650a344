"""What heads, MLPs and the embedding write onto a contrast's direction: shares of the distance of the means."""

from theodolite.groups.schema import N_USED, NULL_AND_LIMIT, SIDES, STREAM_UNIT, Group, Variable

_POINT = ("contrast", "position")
_LAYER = (*_POINT, "layer")
_HEAD = (*_LAYER, "head")

PARTS = ("head", "mlp")
"""Parts of the stream of which a layer can have some."""

VARIABLES = (
    N_USED,
    Variable(
        "head_difference",
        _HEAD,
        "Difference of the means (positive minus negative) of what the head writes onto the contrast's direction "
        "after attention; the sum over heads is attention_difference, but for biases.",
        STREAM_UNIT,
    ),
    Variable(
        "head_standardised",
        _HEAD,
        "head_difference over the standard deviation of what the head writes, pooled over both sets.",
    ),
    Variable(
        "head_standardised_null",
        (*_HEAD, "null"),
        "The absolute value of head_standardised with permuted labels, and its tests over all heads.",
    ),
    Variable(
        "attention_difference",
        _LAYER,
        "Difference of the means of attention's whole output along the contrast's direction after attention.",
        STREAM_UNIT,
    ),
    Variable(
        "head_share",
        _HEAD,
        "Share of the distance of the means at resid_final that the head writes, along their difference; except in "
        "hybrids, head_share, mlp_share and embedding_share add up to 1.",
    ),
    Variable("mlp_share", _LAYER, "Share of this distance that the MLP writes."),
    Variable("embedding_share", _POINT, "Share of this distance that the input of the first block has."),
    Variable(
        "head_share_null",
        (*_HEAD, "null"),
        "head_share with permuted labels, and its tests over all heads, MLPs and the embedding.",
    ),
    Variable("mlp_share_null", (*_LAYER, "null"), "mlp_share with permuted labels, and its tests in this family."),
    Variable(
        "embedding_share_null",
        (*_POINT, "null"),
        "embedding_share with permuted labels, and its tests in this family.",
    ),
    Variable("total", (*_POINT, "part"), "Sum of the shares of all heads, or of all MLPs."),
    Variable(
        "total_null",
        (*_POINT, "part", "null"),
        "The sum of the shares with permuted labels, and its tests; p is two-sided, and there is no family.",
    ),
    Variable("final_difference", _POINT, "Distance of the means of both sets at resid_final.", STREAM_UNIT),
    Variable(
        "decomposition_error",
        _POINT,
        "Maximum over prompts and layers of the norm of attention's output minus the sum over its heads and biases, "
        "over the norm of the stream after attention.",
    ),
)

GROUP = Group(
    name="contributions",
    title="Contributions",
    order=140,
    chapter="Components",
    variables=VARIABLES,
    labels={"prompt_side": SIDES, "part": PARTS, "null": NULL_AND_LIMIT},
    needs=frozenset({"prompts", "contrasts", "weights", "head_out"}),
)
