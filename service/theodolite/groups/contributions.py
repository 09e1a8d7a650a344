"""What heads, MLPs and the embedding write onto a contrast's direction: shares of the distance of the means."""

from theodolite.groups.record import N_SIDES, STREAM_UNIT, Group, Variable, variables

_POINT = ("contrast", "position")
_LAYER = (*_POINT, "layer")
_HEAD = (*_LAYER, "head")

COMPONENTS = {
    "head": (_HEAD, "the attention head"),
    "mlp": (_LAYER, "the MLP"),
    "embedding": (_POINT, "the input of the first block"),
}
"""The dimensions and the name of each kind of part of the stream after the last block."""


def _shares(name: str, dims: tuple[str, ...], of: str) -> tuple[Variable, ...]:
    texts = {
        "share": f"Share of the distance of the means at resid_final that {of} writes, along their difference; except "
        "in hybrids, all shares add up to 1.",
        "share_permuted": f"Mean over permuted labels of the share that {of} writes.",
        "z": f"The share that {of} writes minus its mean with permuted labels, over their standard deviation.",
        "p_family": f"Share of permutations whose largest z over all heads, MLPs and the embedding is as large as that "
        f"of {of}.",
    }
    return tuple(variables(dims, **{f"{name}_{part}": text for part, text in texts.items()}))


def _totals(name: str, of: str) -> tuple[Variable, ...]:
    texts = {
        "total": f"Sum of the shares of all {of}.",
        "total_permuted": f"Mean over permuted labels of the sum of the shares of all {of}.",
        "total_permuted_sd": f"Standard deviation over permuted labels of the sum of the shares of all {of}.",
        "total_z": f"The sum of the shares of all {of} minus its mean with permuted labels, over their standard "
        "deviation.",
        "total_p": f"Share of permutations whose sum of the shares of all {of} is as far from the mean; two-sided.",
    }
    return tuple(variables(_POINT, **{f"{name}_{part}": text for part, text in texts.items()}))


VARIABLES = (
    *N_SIDES,
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
    *variables(
        _HEAD,
        head_standardised_permuted="Mean over permuted labels of the absolute value of head_standardised.",
        head_standardised_p_family="Share of permutations whose largest z of |head_standardised| over all heads is as "
        "large as that of the head.",
    ),
    Variable(
        "attention_difference",
        _LAYER,
        "Difference of the means of attention's whole output along the contrast's direction after attention.",
        STREAM_UNIT,
    ),
    *(variable for name, (dims, of) in COMPONENTS.items() for variable in _shares(name, dims, of)),
    *_totals("head", "heads"),
    *_totals("mlp", "MLPs"),
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
    version=3,
    variables=VARIABLES,
    needs=frozenset({"prompts", "contrasts", "weights", "head_out"}),
    order=9,
)
