"""Circuits and trajectories decoded into tokens of the vocabulary; the group has tables only."""

from theodolite.groups.record import Group

GROUP = Group(
    name="words",
    title="Words",
    version=2,
    tables=(
        "head_tokens",
        "noun_keys",
        "noun_values",
        "noun_alignment",
        "bias_tokens",
        "norm_tokens",
        "embedding_sphere",
        "trajectories",
    ),
    needs=frozenset({"weights"}),
    requires=("heads",),
    options="words",
    is_read_whole=False,
    order=9,
)
