"""What interventions on the last token change in the distribution of the token that follows it."""

from collections.abc import Iterator

from theodolite.groups.record import Group, Variable, variables
from theodolite.sites import Site

CHANGEABLE = (Site.RESID_PRE, Site.RESID_MID, Site.RESID_POST)
"""The sites at which states can be changed."""

SIDES = ("positive", "negative")
"""The two sets of a contrast; interventions change the states of the prompts of one of them."""

PATCH, REMOVE, ADD = INTERVENTIONS = ("patch", "remove", "add")
"""`patch` gives a state of the other set, `remove` projects the contrast's direction out of the state, and `add` adds
the difference of the means towards the other set."""

RANDOM, MATCHED, PERMUTED = CONTROLS = ("random", "matched", "permuted")
"""The control directions: random ones, random ones with the variance of the contrast's direction, and directions of
permuted labels."""

CONTROLS_OF = {REMOVE: (MATCHED, PERMUTED), ADD: (RANDOM, PERMUTED)}
"""The controls of each intervention; a patch uses no direction, so it has none."""

HEAD, ATTENTION, MLP, BLOCK = PARTS = ("head", "attention", "mlp", "block")
"""The parts whose outputs are patched; `block` is attention and the MLP of a layer together."""

_OUTPUTS = {
    HEAD: "the head's output is",
    ATTENTION: "the output of the block's attention is",
    MLP: "the output of the block's MLP is",
    BLOCK: "the outputs of the block's attention and MLP are",
}

MEASURES = {
    "kl": ("KL divergence of the changed from the intact distribution of the next token", "nats"),
    "log_odds": ("change of the log-odds of the first against the second group of next tokens", "nats"),
}
"""What an intervention is measured by, and its unit."""

_POINT = ("contrast", "position", "prompt_side")
_PLACE = (*_POINT, "site", "layer")
_OF_PLACE = (*_PLACE, "intervention")


def _with_ends(name: str, dims: tuple[str, ...], text: str, units: str) -> Iterator[Variable]:
    yield Variable(name, dims, f"Mean over prompts of the {text}.", units, interval=name)
    yield from variables(
        dims,
        units,
        **{
            f"{name}_low": f"Lower end of the 95 % interval of {name}.",
            f"{name}_high": f"Upper end of the 95 % interval of {name}.",
        },
    )


def _tests(name: str, dims: tuple[str, ...], units: str) -> Iterator[Variable]:
    size = "absolute mean" if name.endswith("log_odds") else "mean"
    yield Variable(f"{name}_control", dims, f"Mean over control directions of the {size} of {name}.", units)
    yield from variables(
        dims,
        **{
            f"{name}_z": f"The logarithm of the {size} of {name} minus the mean of those of the control directions, "
            "over their standard deviation.",
            f"{name}_p": f"Share of control directions with as large a {size} of {name}, the contrast's own included.",
        },
    )


def _measured() -> Iterator[Variable]:
    for name, (text, units) in MEASURES.items():
        yield from _with_ends(name, _OF_PLACE, text, units)
        tested = (*_OF_PLACE, "control")
        yield from _tests(name, tested, units)
        yield Variable(
            f"{name}_p_family",
            tested,
            f"Share of control directions, the contrast's own included, whose largest z of {name} over all sites and "
            "layers is as large as the z at this site and layer.",
        )
        yield from _with_ends(f"dose_{name}", (*_PLACE, "dose"), f"{text}, for doses of the difference", units)
        everywhere = f"{text}, when the direction of each site and layer is removed there"
        yield from _with_ends(f"everywhere_{name}", _POINT, everywhere, units)
        yield from _tests(f"everywhere_{name}", (*_POINT, "control"), units)
        for part in PARTS:
            dims = (*_POINT, "layer", "head") if part == HEAD else (*_POINT, "layer")
            output = _OUTPUTS[part]
            yield from _with_ends(f"{part}_{name}", dims, f"{text}, when {output} patched", units)
            if name == "log_odds":
                yield Variable(
                    f"{part}_direct",
                    dims,
                    f"Mean over prompts of the {text}, when {output} patched, but the change reaches the stream only "
                    "after the last block.",
                    units,
                )


VARIABLES = (
    Variable("n_prompts", _POINT, "Number of prompts that are intervened on.", dtype="int64"),
    Variable("intact_log_odds", _POINT, "Mean over prompts of the log-odds without an intervention.", "nats"),
    *_with_ends(
        "intact_difference",
        ("contrast", "position"),
        "log-odds of positive prompts minus those of negative prompts, without an intervention",
        "nats",
    ),
    *_measured(),
    Variable(
        "restored",
        _PLACE,
        "Mean change of the log-odds by a patch, over the mean difference of the log-odds to the other set; NaN if "
        "this difference has both signs in the bootstrap.",
        interval="restored",
    ),
    *variables(
        _PLACE,
        restored_low="Lower end of the 95 % interval of restored.",
        restored_high="Upper end of the 95 % interval of restored.",
    ),
    *_with_ends(
        "score_change",
        (*_OF_PLACE, "layer_other"),
        "change of the stream at the input of block layer_other along the contrast's direction there, over the "
        "distance of the means there, towards the other set (NaN if the input precedes the change)",
        "1",
    ),
    Variable(
        "direct_correlation",
        _POINT,
        "Correlation over all heads between the direct change of the log-odds and the change by a patch.",
    ),
    Variable(
        "matched_variance",
        ("contrast", "position", "site", "layer"),
        "Mean variance along the `matched` control directions, over the variance along the contrast's direction.",
    ),
    Variable(
        "intact_error",
        ("contrast", "position"),
        "Maximum over prompts of ‖x - y‖/‖y‖ at resid_final between unchanged columns and the plain forward pass.",
    ),
    Variable(
        "route_error",
        ("contrast", "position"),
        "Maximum of ‖x - y‖/‖y‖ at resid_final, and at the output of the final norm, between interventions that cost "
        "one token and the same in forward passes of all tokens, over a sample; NaN if none was compared.",
    ),
)

PROMPT_EFFECTS = "prompt_effects"
"""The table with what each intervention changes for each prompt: KL, the change of the log-odds, the restored share of
the difference of the log-odds to the other prompt of the pair (patches), and the change of the score at the input of
the last captured block (NaN for all doses except -1 of positive and 1 of negative prompts)."""

GROUP = Group(
    name="effects",
    title="Effects",
    version=5,
    variables=VARIABLES,
    tables=(PROMPT_EFFECTS,),
    needs=frozenset({"prompts", "contrasts", "weights"}),
    options="effects",
    on_request=True,
    order=11,
)
