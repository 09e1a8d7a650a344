"""Circuits and trajectories decoded into tokens of the vocabulary, and statistics of nouns in each head."""

from theodolite.groups.record import Group, variables

_HEADS = ("layer", "head")


def _tests(what: str, draws: str) -> dict[str, str]:
    """Return the descriptions of the variables of a test, by the end of their names."""
    return {
        "null_mean": f"Mean of {what} over {draws}.",
        "null_sd": f"Standard deviation (n-1) of {what} over {draws}.",
        "z": f"{what} minus null_mean, over null_sd.",
        "p": f"Share of the draws ({draws}), the head itself included, with as large a value.",
        "p_family": f"Share of the draws ({draws}), the head itself included, whose largest z over all heads is as "
        "large as this head's z.",
    }


_TESTS = {
    "relatedness_": _tests("relatedness", "permuted nouns"),
    "relatedness_random_": _tests("relatedness", "random matrices with the singular values of W_QK"),
    "own_first_": _tests("own_first", "permuted nouns"),
}

VARIABLES = (
    *variables(
        _HEADS,
        relatedness="Mean over nouns q of Spearman's correlation between ê_q·ê_k and ê_q W_QK ê_kᵀ over the other "
        "nouns k.",
        own_first="Share of nouns whose own key has the largest score among all nouns.",
        own_keys="Share of nouns with a spelling of themselves among their keys in noun_keys.",
        **{prefix + end: text for prefix, ends in _TESTS.items() for end, text in ends.items()},
    ),
)

GROUP = Group(
    name="words",
    title="Words",
    version=2,
    variables=VARIABLES,
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
    is_read_whole=False,
    order=12,
)
