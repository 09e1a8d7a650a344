"""How well affine and orthogonal maps predict the output of each sublayer from its input."""

from collections.abc import Iterator

from theodolite.groups.record import N_SAMPLES, PER_BLOCK, Group, Variable, variables

SUBLAYERS = {"attention": "attention", "mlp": "the MLP", "block": "the block"}
"""Attention is from resid_pre to resid_mid, the MLP from resid_mid to the output of the block."""

_MAPS = {
    "affine": "the output of {of} on held-out prompts, for the affine map of its input",
    "orthogonal": "the output of {of} on held-out prompts, for the scaled orthogonal map of its input",
    "identity": "the output of {of} on held-out prompts, for its input plus a constant",
    "step": "the step of {of} (output minus input) on held-out prompts, for the affine map of its input",
    "permuted": "the step of {of} as above, after a random permutation of the steps over the prompts",
}


def _sublayer_variables(sublayer: str, of: str) -> Iterator[Variable]:
    sentences = {name: f"R² of {text.format(of=of)}" for name, text in _MAPS.items()}
    sentences["gain"] = f"R² of the affine map of {of} minus R² of the orthogonal map, on held-out prompts"
    for name, sentence in sentences.items():
        statistic = f"r_squared_{name}_{sublayer}"
        yield Variable(statistic, PER_BLOCK, f"{sentence}.", interval=statistic)
        yield Variable(f"{statistic}_low", PER_BLOCK, f"{sentence}: lower end of its 95 % interval.")
        yield Variable(f"{statistic}_high", PER_BLOCK, f"{sentence}: upper end.")
    singular = f"of the singular values of the affine map of {of} on leading principal directions of its input"
    texts = {
        "leading_share": f"Share of the variance of the input of {of} along its first principal direction.",
        "stretch_low": f"5 % quantile {singular}.",
        "stretch_median": f"Median {singular}.",
        "stretch_high": f"95 % quantile {singular}.",
        "isometry_defect": f"1 - (Σs)²/(k Σs²) {singular}; 0 for a scaled isometry.",
        "isometry_defect_random": f"Expected isometry defect of the identity plus a random matrix, with as many inputs "
        f"and outputs, and with steps as long, as for {of}.",
    }
    yield from variables(PER_BLOCK, **{f"{name}_{sublayer}": text for name, text in texts.items()})
    yield Variable(
        f"dimension_{sublayer}",
        PER_BLOCK,
        f"Number k of the principal directions of the singular values for {of}; 0 without such directions.",
        dtype="int64",
    )


VARIABLES = (
    N_SAMPLES,
    *(variable for sublayer, of in SUBLAYERS.items() for variable in _sublayer_variables(sublayer, of)),
)

GROUP = Group(
    name="basis",
    title="Layers as linear maps",
    version=2,
    variables=VARIABLES,
    tables=("basis",),
    needs=frozenset({"prompts"}),
    options="gram",
    order=6,
)
