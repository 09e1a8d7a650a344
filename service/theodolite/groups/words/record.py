"""Circuits and trajectories decoded into tokens of the vocabulary, and statistics of nouns in each head."""

from theodolite.groups.schema import (
    NULL_AND_LIMIT,
    STREAM_UNIT,
    Column,
    Group,
    Table,
    Variable,
    at_axes,
    columns,
    variables,
)

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

_NOUN = (Column("noun", "The noun q."), Column("noun_id", "Its token id."))
_ENDS = Column("end", "The end of the ranking: the largest (top) or the most negative products (bottom).")
_PLACED = (
    Column("place", "The place in the ranking, from 0."),
    Column("token", "The token, with its spaces."),
    Column("token_id", "Its id."),
)
_RANKED = (*_PLACED, Column("score", "The dot product.", "1"))

TABLES = (
    Table(
        "head_tokens",
        "Tokens with the largest and most negative products with each leading singular vector.",
        (
            *at_axes("layer", "head", "vector"),
            *_RANKED,
            Column("circuit", "qk or ov."),
            Column("side", "left or right: of QK the query and the key, of OV what is read and what is written."),
            _ENDS,
            Column("against", "The vocabulary: as attention reads it (read), the embedding, or the unembedding."),
        ),
    ),
    Table(
        "noun_keys",
        "For each noun q, the tokens t with the highest ê_q W_QK ê_tᵀ.",
        (*at_axes("layer", "head"), *_NOUN, *_RANKED),
    ),
    Table(
        "noun_values",
        "For each noun q, the tokens with the largest logits of e_q plus the head's output; head -1 is all heads.",
        (
            *at_axes("layer", "head"),
            *_NOUN,
            *_PLACED,
            Column("score", "The logit.", "1"),
        ),
    ),
    Table(
        "noun_alignment",
        "For each noun q, how its scores as a query agree with its similarities to the other nouns.",
        (
            *at_axes("layer", "head"),
            *_NOUN,
            Column("correlation", "Spearman's correlation between ê_q·ê_k and ê_q W_QK ê_kᵀ over the other k.", "1"),
            *columns(
                nearest_before="The other noun with the largest similarity.",
                nearest_before_id="Its token id.",
                nearest_after="The other noun with the largest score.",
                nearest_after_id="Its token id.",
            ),
            Column("own_rank", "The rank of q itself as a key; 1 is the highest.", "1"),
        ),
    ),
    Table(
        "noun_offsets",
        "How many keys of a noun stay at larger distances; of models with rotary positions.",
        (
            *at_axes("layer", "head"),
            Column("offset", "The query's position minus the key's.", "tokens"),
            Column("share_kept", "The share of the keys at offset 0 that are also among the highest here.", "1"),
            Column("n", "The number of nouns in the mean.", "1"),
        ),
    ),
    Table(
        "noun_scores",
        "All pairs of nouns, in the head with the largest z of relatedness against permuted nouns.",
        (
            *at_axes("layer", "head"),
            *_NOUN,
            *columns(key="The noun k, as a key.", key_id="Its token id."),
            *columns("1", similarity="ê_q·ê_k.", score="ê_q W_QK ê_kᵀ."),
        ),
    ),
    Table(
        "bias_tokens",
        "Tokens with the largest and most negative products with what the biases of queries and keys read.",
        (
            *at_axes("layer", "head"),
            *_RANKED,
            _ENDS,
            Column("side", "Tokens as queries of the key's bias (query), or as keys of the query's bias (key)."),
        ),
    ),
    Table(
        "norm_tokens",
        "Tokens with the largest and smallest embeddings.",
        (
            Column("measure", "norm: ‖w‖; scaled norm: ‖γ⊙w‖; + bias: plus β·w; with γ and β of the final norm."),
            Column("end", "The end of the ranking: the largest (top) or the smallest (bottom)."),
            *_PLACED,
            Column("value", "The measure.", STREAM_UNIT),
        ),
    ),
    Table(
        "embedding_sphere",
        "How near the embeddings are to the sphere of the final norm.",
        (
            Column("setting", "The embeddings: as stored (original), centred, scaled, or both."),
            Column("n", "The number of tokens whose embedding is not 0.", "1"),
            *columns(
                STREAM_UNIT,
                l2_mean="The mean distance to the final norm's output for the stored embedding, before scale and bias.",
                l2_std="The standard deviation of this distance.",
            ),
            *columns(
                "1",
                cosine_distance_mean="The mean of 1 - cosine to this output.",
                cosine_distance_std="The standard deviation of 1 - cosine.",
            ),
        ),
    ),
    Table(
        "trajectories",
        "The state of each token of a sentence but the last, and its next token; site unembedding is that token's row.",
        (
            *columns(sentence="The sentence, from 0.", index="The token of the sentence, from 0."),
            *at_axes("site", "layer"),
            Column("depth", "Half blocks along the stream, from 0; -1 at site unembedding.", "half blocks"),
            *columns(
                token="The token, with its spaces.",
                token_id="Its id.",
                next_token="The next token.",
                next_token_id="Its id.",
            ),
            *columns(
                "degrees",
                angle_to_final="The angle of the state to the same token's resid_final.",
                angle_to_next="The angle of the normed state to the next token's row of the unembedding.",
                vocabulary_angle_mean="The mean of the angles of the normed state to all rows but zeros.",
                vocabulary_angle_sd="The standard deviation of these angles.",
            ),
            Column("angle_to_next_z", "angle_to_next minus the mean, over the standard deviation.", "1"),
            Column(
                "rank_of_next",
                "The rank of the next token among the logits; 1 is the highest, and -1 stands at site unembedding.",
                "1",
            ),
            *columns(
                "1",
                pca_1="The coordinate of the normed unit vector along the first principal axis of the sentence.",
                pca_2="Along the second axis.",
                pca_3="Along the third axis.",
            ),
            Column("next_is_special", "Whether the next token is a special one."),
        ),
    ),
)

GROUP = Group(
    name="words",
    title="Words",
    order=170,
    chapter="Words",
    variables=VARIABLES,
    labels={"control": CONTROLS, "null": NULL_AND_LIMIT},
    tables=TABLES,
    needs=frozenset({"weights"}),
    requires=("heads",),
    options="words",
    on_request=True,
)
