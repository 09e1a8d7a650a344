"""The tokens whose logits the direction of a contrast raises and lowers most, at each depth, by the logit lens."""

from theodolite.groups.schema import N_USED, SIDES, Column, Group, Table, at_axes

ENDS = ("raised", "lowered")
"""The ends of the ranking of all tokens by their change."""

TOKENS = 10
"""Number of tokens at each end."""

VARIABLES = (N_USED,)

TABLES = (
    Table(
        "direction_tokens",
        "The tokens whose logits the difference of a contrast's means raises and lowers most at each depth, read by "
        "the final norm and the unembedding.",
        (
            *at_axes("contrast", "position", "site", "layer"),
            Column("depth", "Half blocks along the stream, from 0.", "half blocks"),
            Column("end", "The tokens with the largest (raised) or the most negative changes (lowered)."),
            Column("place", "The place in the ranking, from 0."),
            Column("token", "The token, with its spaces."),
            Column("token_id", "Its id."),
            Column("change", "The change of the token's logit, minus the mean change over the vocabulary.", "nats"),
            Column(
                "z",
                "The change minus its mean with permuted labels, over their standard deviation; of this token alone. A "
                "search over the vocabulary finds |z| up to the attribute limit by chance.",
                "1",
            ),
        ),
    ),
)

GROUP = Group(
    name="logit_lens",
    title="What a direction says",
    order=145,
    chapter="Words",
    variables=VARIABLES,
    labels={"prompt_side": SIDES},
    tables=TABLES,
    needs=frozenset({"prompts", "contrasts", "weights"}),
)
