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

MATCHED, PERMUTED = CONTROLS = ("matched", "permuted")
"""The control directions: random ones of the samples' covariance, and directions of permuted labels. `matched` is
removed with as much variance, or moves states by as many standard deviations along it; along `permuted`, states move as
far as along the contrast's direction. A patch uses no direction, so it has no control."""

LEAST_VARIANCE = 0.8
"""The smallest variance along `matched`, over that along the contrast's direction, with which removals are compared:
removing a direction with little variance changes little."""

LEAST_EFFECTIVE = 5.0
"""The smallest effective number of control directions with which effects are compared."""

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
    signed = name.endswith("log_odds")
    effect = f"{name} times expected_sign" if signed else name
    compared = effect if signed else f"the logarithm of {name}"
    yield from variables(
        dims,
        units,
        **{
            f"{name}_null_mean": f"Mean over control directions of {effect}.",
            f"{name}_null_sd": f"Standard deviation over control directions of {effect}.",
        },
    )
    yield from variables(
        dims,
        **{
            f"{name}_z": f"Difference of {compared} from its mean over control directions, over their standard "
            "deviation; NaN without a test.",
            f"{name}_p": f"Share of control directions with as large {effect}, the contrast's own included; NaN "
            "without a test.",
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
    *_with_ends("intact_log_odds", _POINT, "log-odds without an intervention", "nats"),
    Variable(
        "intact_probability",
        _POINT,
        "Mean over prompts of the probability that the next token is in one of both groups, without an intervention.",
    ),
    *_with_ends(
        "intact_difference",
        ("contrast", "position"),
        "log-odds of positive prompts minus those of negative prompts, without an intervention",
        "nats",
    ),
    Variable(
        "expected_sign",
        _POINT,
        "Sign of the change of the log-odds towards those of the other set; NaN if the interval of intact_difference "
        "contains 0.",
    ),
    *_measured(),
    Variable(
        "half_dose",
        _PLACE,
        "Smallest dose, towards the other set, that changes the mean log-odds by half of intact_difference; NaN if no "
        "dose does.",
        interval="half_dose",
    ),
    *variables(
        _PLACE,
        half_dose_low="Lower end of the 95 % interval of half_dose.",
        half_dose_high="Upper end of the 95 % interval of half_dose; NaN if it is beyond the largest dose.",
    ),
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
    *variables(
        ("contrast", "position", "site", "layer", "control"),
        control_variance="Mean variance along the control directions, over that along the contrast's direction.",
        effective_controls="Effective number of control directions: participation ratio of their Gram matrix.",
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
    version=6,
    variables=VARIABLES,
    tables=(PROMPT_EFFECTS,),
    needs=frozenset({"prompts", "contrasts", "weights"}),
    options="effects",
    on_request=True,
    order=11,
)
