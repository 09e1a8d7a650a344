"""Circuits and trajectories decoded into tokens of the vocabulary, and statistics of nouns in each head."""

from theodolite.groups.schema import NULL_AND_LIMIT, Group, Variable, variables

_HEADS = ("layer", "head")

CONTROLS = ("permuted", "random")
"""What the relatedness of a head is compared with: permuted nouns, and random matrices with its singular values."""

VARIABLES = (
    *variables(
        _HEADS,
        relatedness="Mean over nouns q of Spearman's correlation between ê_q·ê_k and ê_q W_QK ê_kᵀ over the other "
        "nouns k.",
        own_first="Share of nouns whose own key has the largest score among all nouns.",
        own_keys="Share of nouns with a spelling of themselves among their keys in noun_keys.",
    ),
    Variable(
        "relatedness_null",
        (*_HEADS, "control", "null"),
        "relatedness of permuted nouns, or of random matrices with the singular values of W_QK (random), and its tests "
        "over all heads.",
    ),
    Variable("own_first_null", (*_HEADS, "null"), "own_first of permuted nouns, and its tests over all heads."),
)

GROUP = Group(
    name="words",
    title="Words",
    order=170,
    variables=VARIABLES,
    labels={"control": CONTROLS, "null": NULL_AND_LIMIT},
    tables=(
        "head_tokens",
        "noun_keys",
        "noun_values",
        "noun_alignment",
        "noun_offsets",
        "noun_scores",
        "bias_tokens",
        "norm_tokens",
        "embedding_sphere",
        "trajectories",
    ),
    needs=frozenset({"weights"}),
    requires=("heads",),
    options="words",
)
