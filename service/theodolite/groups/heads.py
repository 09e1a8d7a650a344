"""Attention heads: singular values and vectors of each head's QK and VO circuit."""

from theodolite.groups.record import Group, Variable

_CIRCUIT = ("circuit", "offset", "layer", "head")
_ALIGNED = ("contrast", "side", "layer", "head")

VARIABLES = (
    Variable("singular_values", (*_CIRCUIT, "rank"), "Singular values, the largest first; vo at offset 0 only."),
    Variable("coverage_99", _CIRCUIT, "First rank at which Σσ so far passes 99 % of the whole.", dtype="int64"),
    Variable("effective_rank", _CIRCUIT, "exp of the entropy of σ/Σσ."),
    Variable("stable_rank", _CIRCUIT, "Σσ² over the largest σ²."),
    Variable(
        "left_vectors",
        (*_CIRCUIT, "vector", "d_model"),
        "Left singular vectors: what a query reads (qk), what is read of an attended token (vo).",
        dtype="float32",
        by_layer=True,
    ),
    Variable(
        "right_vectors",
        (*_CIRCUIT, "vector", "d_model"),
        "Right singular vectors: what a key reads (qk), what is written (vo); the largest component is positive.",
        dtype="float32",
        by_layer=True,
    ),
    Variable("copying_score", ("layer", "head"), "Σλ/Σ|λ| of W_E W_VO W_Uᵀ: 1 where each token raises itself."),
    Variable(
        "null_dimension",
        ("projection", "layer", "head"),
        "Dimensions of the stream that a head's query or key cannot see.",
        dtype="int64",
    ),
    Variable(
        "null_variance",
        ("set", "position", "projection", "layer", "head"),
        "Share of the variance over prompts of what attention reads that lies in those dimensions.",
    ),
    Variable("n_samples", ("set", "position"), "Prompts that null_variance rests on.", dtype="int64"),
    Variable(
        "direction_alignment",
        _ALIGNED,
        "|dᵀM|/σ₁ for a contrast's direction d: 1 where d is the leading singular vector; random is √(stable_rank/d).",
    ),
    Variable(
        "vector_cosine",
        (*_ALIGNED, "vector"),
        "Cosine between a contrast's direction and each leading singular vector of that side.",
    ),
)

GROUP = Group(
    name="heads",
    title="Heads",
    version=1,
    variables=VARIABLES,
    needs=frozenset({"weights"}),
    options="heads",
    is_read_whole=False,
    order=7,
)
