"""How well affine and orthogonal maps predict the output of each sublayer from its input."""

from theodolite.groups.schema import (
    ESTIMATE,
    INTERVAL,
    N_SAMPLES,
    PER_BLOCK,
    SUBLAYERS,
    Group,
    Variable,
    flat,
    variables,
)

MAPS = ("affine", "orthogonal", "identity")
"""Maps of the input: any linear one plus a constant, a scaled orthogonal one plus a constant, a constant alone."""

QUANTILES = (0.05, 0.5, 0.95)
"""Quantiles of the stretches of a map over the leading principal directions of its input."""

_OF_SUBLAYER = (*PER_BLOCK, "sublayer")

VARIABLES = (
    N_SAMPLES,
    Variable(
        "r_squared", (*_OF_SUBLAYER, "map", ESTIMATE), "R² of the output on held-out prompts, for a map of the input."
    ),
    *variables(
        (*_OF_SUBLAYER, ESTIMATE),
        r_squared_gain="R² of the affine map minus R² of the orthogonal map, on held-out prompts.",
        r_squared_step="R² of the step (output minus input) on held-out prompts, for the affine map of the input.",
        r_squared_permuted="R² of the step as above, after a random permutation of the steps over the prompts.",
    ),
    Variable(
        "stretch",
        (*_OF_SUBLAYER, "quantile"),
        "Quantile of the singular values of the affine map on leading principal directions of its input.",
    ),
    *variables(
        _OF_SUBLAYER,
        leading_share="Share of the variance of the input along its first principal direction.",
        isometry_defect="1 - (Σs)²/(k Σs²) of the singular values of the affine map on leading principal directions of "
        "its input; 0 for a scaled isometry.",
        isometry_defect_random="Expected isometry defect of the identity plus a random matrix, with as many inputs and "
        "outputs, and with steps as long.",
    ),
    Variable(
        "dimension",
        _OF_SUBLAYER,
        "Number k of the principal directions of the singular values; 0 without such directions.",
        dtype="int64",
    ),
)

GROUP = Group(
    name="basis",
    title="Layers as linear maps",
    order=90,
    chapter="Geometry",
    variables=VARIABLES,
    labels={"sublayer": SUBLAYERS, "map": MAPS, "quantile": QUANTILES, ESTIMATE: INTERVAL},
    tables=(flat("basis", VARIABLES),),
    needs=frozenset({"prompts"}),
    least_samples=10,
    options="gram",
)
