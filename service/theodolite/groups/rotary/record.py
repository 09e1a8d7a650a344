"""Multi-head latent attention: the part of scores that rotates, which the QK circuits of `heads` leave out."""

from theodolite.groups.schema import Group, Variable

_PART = ("offset", "layer", "head")

VARIABLES = (
    Variable(
        "singular_values",
        (*_PART, "rank"),
        "Singular values σ of the rotary part s·W_QR R(δ) W_KRᵀ, in descending order.",
    ),
    Variable(
        "coverage_99",
        _PART,
        "Number of leading singular values whose sum first exceeds 99 % of Σσ; -1 for a part of zeros.",
        dtype="int64",
    ),
    Variable("effective_rank", _PART, "Effective rank: exp of the entropy of σ/Σσ."),
    Variable(
        "effective_rank_random",
        (),
        "Mean effective rank of the rotary part of random Gaussian matrices of the same shapes (W_DQ and W_UQ, if "
        "queries pass through a latent, and W_KR); it is the same at all offsets.",
    ),
    Variable("stable_rank", _PART, "Stable rank: Σσ² over the largest σ²."),
)

GROUP = Group(
    name="rotary",
    title="Rotary part",
    order=120,
    version=1,
    variables=VARIABLES,
    needs=frozenset({"weights"}),
    options="heads",
    is_analysis=False,
)
