"""What interventions on the last token change in the distribution of the token that follows it."""

from theodolite.groups.schema import (
    ESTIMATE,
    INTERVAL,
    N_USED,
    NULL,
    SUBLAYERS,
    Column,
    Group,
    Table,
    Variable,
    at_axes,
    variables,
)
from theodolite.sites import Site

CHANGEABLE = (Site.RESID_PRE, Site.RESID_MID, Site.RESID_POST)
"""The sites at which states can be changed."""

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

ATTENTION, MLP, BLOCK = SUBLAYERS
"""The parts of a layer whose outputs are patched; `block` is attention and the MLP together."""

HEAD = "head"
"""The smallest part whose output is patched."""

MEASURES = ("kl", "log_odds")
"""What an intervention is measured by."""

_EFFECT = (
    "Mean over prompts of the KL divergence of the changed from the intact distribution of the next token (kl), and of "
    "the change of the log-odds of the first against the second group of next tokens (log_odds)"
)
_OF_HEAD = "when the head's output is patched"
_OF_SUBLAYER = "when the output of the sublayer is patched (of the block: those of attention and the MLP)"
_DIRECT = (
    "Mean over prompts of the change of the log-odds, {}, but the change reaches the stream only after the last block."
)

_NULL = (
    "{0} of control directions, log_odds times expected_sign: mean and standard deviation (sd, both in nats); z, for "
    "kl of the logarithms of {0}; and the share of them with as large a number, the contrast's own included (p). z and "
    "p are NaN without a test."
)

_POINT = ("contrast", "position", "prompt_side")
_PLACE = (*_POINT, "site", "layer")
_MEASURED = (*_POINT, "measure")

VARIABLES = (
    N_USED,
    Variable(
        "intact_log_odds", (*_POINT, ESTIMATE), "Mean over prompts of the log-odds without an intervention.", "nats"
    ),
    Variable(
        "intact_probability",
        _POINT,
        "Mean over prompts of the probability that the next token is in one of both groups, without an intervention.",
    ),
    Variable(
        "intact_difference",
        ("contrast", "position", ESTIMATE),
        "Mean over prompts of the log-odds of positive prompts minus those of negative prompts, without an "
        "intervention.",
        "nats",
    ),
    Variable(
        "expected_sign",
        _POINT,
        "Sign of the change of the log-odds towards those of the other set; NaN if the interval of intact_difference "
        "contains 0.",
    ),
    Variable("effect", (*_MEASURED, "site", "layer", "intervention", ESTIMATE), f"{_EFFECT}.", "nats"),
    Variable(
        "effect_null",
        (*_MEASURED, "site", "layer", "intervention", "control", "null"),
        _NULL.format("effect")
        + " p_family is the share of them, the contrast's own included, whose largest z over all sites and layers is "
        "as large as the z at this site and layer.",
    ),
    Variable(
        "dose_effect",
        (*_MEASURED, "site", "layer", "dose", ESTIMATE),
        f"{_EFFECT}, for doses of the difference.",
        "nats",
    ),
    Variable(
        "everywhere_effect",
        (*_MEASURED, ESTIMATE),
        f"{_EFFECT}, when the direction of each site and layer is removed there.",
        "nats",
    ),
    Variable(
        "everywhere_effect_null",
        (*_MEASURED, "control", "null"),
        _NULL.format("everywhere_effect") + " p_family is NaN.",
    ),
    Variable("head_effect", (*_MEASURED, "layer", "head", ESTIMATE), f"{_EFFECT}, {_OF_HEAD}.", "nats"),
    Variable("sublayer_effect", (*_MEASURED, "layer", "sublayer", ESTIMATE), f"{_EFFECT}, {_OF_SUBLAYER}.", "nats"),
    Variable("head_direct", (*_POINT, "layer", "head"), _DIRECT.format(_OF_HEAD), "nats"),
    Variable("sublayer_direct", (*_POINT, "layer", "sublayer"), _DIRECT.format(_OF_SUBLAYER), "nats"),
    *variables(
        (*_PLACE, ESTIMATE),
        half_dose="Smallest dose, towards the other set, that changes the mean log-odds by half of intact_difference; "
        "NaN if no dose does. The upper end of its interval is NaN if it is beyond the largest dose.",
        restored="Mean change of the log-odds by a patch, over the mean difference of the log-odds to the other set; "
        "NaN if this difference has both signs in the bootstrap.",
    ),
    Variable(
        "score_change",
        (*_PLACE, "intervention", "layer_other", ESTIMATE),
        "Mean over prompts of the change of the stream at the input of block layer_other along the contrast's "
        "direction there, over the distance of the means there, towards the other set (NaN if the input precedes the "
        "change).",
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
        "forward_error",
        ("contrast", "position", "check"),
        "Maximum of ‖x - y‖/‖y‖ at resid_final, of unchanged columns over all prompts; of routes also at the output of "
        "the final norm, over a sample, and NaN if none was compared.",
    ),
)

PROMPT_EFFECTS = Table(
    "prompt_effects",
    "What each intervention changes for each prompt.",
    (
        *at_axes("contrast", "position", "set", "sample", "site", "layer"),
        Column("intervention", "What is done at the site: patch, remove or add."),
        Column("dose", "The multiple of the difference of the means that is added; NaN for other interventions.", "1"),
        Column(
            "kl",
            "KL(intact ‖ changed) of the next token without and with the intervention.",
            "nats",
        ),
        Column("log_odds", "The change of the log-odds of the first against the second group of next tokens.", "nats"),
        Column(
            "pair_restored",
            "The share of the difference of the log-odds to the other prompt of the pair that a patch restores; NaN "
            "for other interventions.",
            "1",
        ),
        Column(
            "score_change",
            "The change of the score at the input of the last captured block, towards the other set, over the distance "
            "of the means there; NaN if this input precedes the change, and for all doses except -1 of positive and 1 "
            "of negative prompts.",
            "1",
        ),
    ),
)

GROUP = Group(
    name="effects",
    title="Effects",
    order=160,
    chapter="Effects",
    variables=VARIABLES,
    labels={"check": ("intact", "route"), "measure": MEASURES, "sublayer": SUBLAYERS, "null": NULL, ESTIMATE: INTERVAL},
    tables=(PROMPT_EFFECTS,),
    needs=frozenset({"prompts", "contrasts", "weights"}),
    least_samples=10,
    options="effects",
    on_request=True,
)
