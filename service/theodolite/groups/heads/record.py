"""Attention heads: singular values and vectors of each head's QK and OV circuit."""

from theodolite.groups.schema import NULL_AND_LIMIT, Group, Variable

CIRCUITS = ("qk", "ov")
"""The circuits that all heads have; maps and cards show them."""

ROTARY = "rotary"
"""The third circuit of heads with multi-head latent attention, which has no vectors."""

CENTRING = ("centred", "uncentred")

_CIRCUIT = ("circuit", "offset", "layer", "head")
_ALIGNED = ("contrast", "side", "layer", "head")

VARIABLES = (
    Variable(
        "singular_values",
        (*_CIRCUIT, "rank"),
        "Singular values σ of the circuit, in descending order; ov at offset 0 only.",
    ),
    Variable(
        "coverage_99",
        _CIRCUIT,
        "Number of leading singular values whose sum first exceeds 99 % of Σσ; -1 for a circuit of zeros, and "
        "in a layer without attention.",
        dtype="int64",
    ),
    Variable("effective_rank", _CIRCUIT, "Effective rank: exp of the entropy of σ/Σσ."),
    Variable(
        "effective_rank_random",
        (),
        "Mean effective rank of circuits whose two factors are independent Gaussians. NaN if heads or circuits differ "
        "in it; then the attribute `widths` or `circuits` has the numbers.",
    ),
    Variable("stable_rank", _CIRCUIT, "Stable rank: Σσ² over the largest σ²."),
    Variable(
        "left_vectors",
        (*_CIRCUIT, "vector", "d_model"),
        "Left singular vectors: the directions that a query reads (qk), or that are read from an attended token (ov); "
        "NaN for rotary.",
        dtype="float32",
        by_layer=True,
    ),
    Variable(
        "right_vectors",
        (*_CIRCUIT, "vector", "d_model"),
        "Right singular vectors: the directions that a key reads (qk), or that are written (ov); the "
        "largest component is positive; NaN for rotary.",
        dtype="float32",
        by_layer=True,
    ),
    Variable(
        "copying_score",
        ("layer", "head", "centring"),
        "Σλ/Σ|λ| over the eigenvalues λ of W_E W_OV W_Uᵀ. With W_U centred over the vocabulary, it is near 1 if "
        "tokens, on the whole, raise their own logits relative to the mean logit; uncentred, it contains constants "
        "that the softmax ignores.",
    ),
    Variable(
        "copying_score_random_sd",
        (),
        "Standard deviation of the centred copying score of circuits whose two factors are independent Gaussians; the "
        "mean is 0. NaN if heads differ in width; then the attribute `widths` has the numbers.",
    ),
    Variable(
        "null_dimension",
        ("projection", "layer", "head"),
        "Dimension of the null space of the head's query or key projection; -1 in a layer without attention.",
        dtype="int64",
    ),
    Variable(
        "null_variance",
        ("set", "position", "projection", "layer", "head"),
        "Share of the variance over prompts of attention's input that lies in that null space.",
    ),
    Variable("n_samples", ("set", "position"), "Number of prompts that null_variance uses.", dtype="int64"),
    Variable(
        "direction_alignment",
        _ALIGNED,
        "|dᵀM|/σ₁ for a contrast's direction d; 1 if d is the leading singular vector, about "
        "√(stable_rank/d_model) for a random direction. On the sides that read, d is the difference of the means of "
        "attention's normalised input.",
    ),
    Variable(
        "direction_alignment_null",
        (*_ALIGNED, "null"),
        "direction_alignment with directions of permuted labels, and its tests over all heads of the side.",
    ),
    Variable(
        "vector_cosine",
        (*_ALIGNED, "vector"),
        "Cosine between a contrast's direction and each leading singular vector of the side.",
    ),
)

GROUP = Group(
    name="heads",
    title="Heads",
    order=110,
    chapter="Components",
    variables=VARIABLES,
    labels={"centring": CENTRING, "null": (*NULL_AND_LIMIT, "p_low_family")},
    needs=frozenset({"weights"}),
    options="heads",
)
