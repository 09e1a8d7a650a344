"""One layer's part of the atlas, against dense (d_model, d_model) matrices made of the stored weights."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from support import tiny
from support.each import each, together
from support.tiny_configs import CONFIGS

from theodolite.errors import ModelError
from theodolite.spec_options import HeadsSpec
from theodolite_jobs.groups.heads.layer import SIDES, Stream, decompose_layer, vocabulary_products
from theodolite_jobs.models.rotary import rotations
from theodolite_jobs.models.weights import Weights
from theodolite_jobs.results.circuits import input_embeddings

CPU = torch.device("cpu")
LAYER = 2
OFFSETS = [0, 3]
# Grouped and rotary with biases; LayerNorm with biases; post-norm; a norm on attention's output; a multiplier on it.
FAMILIES = ["llama", "gpt2", "bert", "gemma2", "granite", "cohere", "modernbert"]
NO_STREAM = Stream(np.empty((0, 48)), np.empty((0, 48)))


def saved(family, folder):
    """Save a family's tiny model with its head, and return its weights on disk."""
    tiny.model_with_head(family).save_pretrained(folder)
    return Weights(folder, CONFIGS[family])


@pytest.fixture(scope="module", params=FAMILIES)
def weights(request, tmp_path_factory):
    return saved(request.param, tmp_path_factory.mktemp(request.param))


@dataclass
class Dense:
    """Matrices of all heads, (head, d_model, d_model) and (head, d_model, d_head), and the norm before them."""

    qk: dict
    ov: np.ndarray
    query: np.ndarray
    key: np.ndarray
    centre: np.ndarray
    scale: np.ndarray
    bias: np.ndarray
    kind: str
    epsilon: float

    def read(self, x):
        """Return what attention reads of a stream."""
        if self.kind == "none":
            return x
        x = x @ self.centre
        return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + self.epsilon) * self.scale + self.bias


def numpy_of(tensor):
    return tensor.double().numpy()


def dense(weights, fold_norm=False):
    """Write one layer's circuits out, from its weights alone."""
    attention, anatomy, d_model = weights.attention(LAYER), weights.anatomy, weights.dimensions.d_model
    group = weights.dimensions.n_heads // weights.dimensions.n_kv_heads
    query = attention.scale * numpy_of(attention.q)
    key = numpy_of(attention.k).repeat(group, 0)
    value, output = numpy_of(attention.v).repeat(group, 0), numpy_of(attention.o)
    if attention.q_norm is not None:  # Cohere's takes out the mean
        centre_head = np.eye(query.shape[-1]) - 1 / query.shape[-1]
        query = query @ centre_head * numpy_of(attention.q_norm)[:, None]
        key = key @ centre_head * numpy_of(attention.k_norm).repeat(group, 0)[:, None]
    mean_taken_out = np.eye(d_model) - 1 / d_model
    if "attention_output" in anatomy.norms and not anatomy.post_norm:
        output = output * weights.norm(LAYER, "attention_output").scale
    if weights.config.model_type == "granite":
        output = output * weights.config.residual_multiplier
    centre, scale, bias, kind, epsilon = np.eye(d_model), np.ones(d_model), np.zeros(d_model), "none", 0.0
    if not anatomy.post_norm:
        norm = weights.norm(LAYER, "attention")
        kind, epsilon, scale, bias = norm.kind, norm.epsilon, norm.scale, norm.bias
        centre = mean_taken_out if kind == "layer" else centre
    if fold_norm:
        query, key, value = (centre @ np.diag(scale) @ matrix for matrix in (query, key, value))
        scale, bias = np.ones(d_model), np.zeros(d_model)
    turned = dict(zip(OFFSETS, rotations(weights.config, anatomy, LAYER, OFFSETS), strict=True))
    qk = {offset: query @ matrix @ key.transpose(0, 2, 1) for offset, matrix in turned.items()}
    return Dense(qk, value @ output, query, key, centre, scale, bias, kind, epsilon)


def directions(count=3, seed=0):
    drawn = np.random.default_rng(seed).normal(size=(count, 48))
    return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


def samples(seed=0, count=30):
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(count, 48)) * np.geomspace(1, 8, 48) + rng.normal(size=48)).astype(np.float32)


def leading(matrices, count):
    """Return left and right vectors of (head, d_model, d_model) by a dense SVD, signed by the right one's largest."""
    u, _, vt = np.linalg.svd(matrices)
    left, right = u[:, :, :count].transpose(0, 2, 1), vt[:, :count]
    sign = np.sign(np.take_along_axis(right, np.abs(right).argmax(-1)[..., None], -1))
    return left * sign, right * sign


@each("fold_norm", [False, True])
def test_values_and_vectors_are_those_of_the_dense_matrices(weights, fold_norm):
    found = decompose_layer(
        weights, LAYER, HeadsSpec(offsets=[3], fold_norm=fold_norm, vectors=4), NO_STREAM, (0, 0), None
    )
    whole, d_head = dense(weights, fold_norm), weights.dimensions.d_head
    assert found["singular_values"].shape == (2, 2, 4, d_head)
    assert found["left_vectors"].shape == found["right_vectors"].shape == (2, 2, 4, 4, 48)
    places = {(0, 0): whole.qk[0], (0, 1): whole.qk[3], (1, 0): whole.ov}
    for at, matrices in places.items():
        values = np.linalg.svd(matrices, compute_uv=False)[:, :d_head]
        assert (np.abs(found["singular_values"][at] - values) <= 1e-12 * values[:, :1]).all()
        for name, expected in zip(("left_vectors", "right_vectors"), leading(matrices, 4), strict=True):
            np.testing.assert_allclose(found[name][at], expected, atol=1e-6)  # stored in float32
    for name in ("singular_values", "left_vectors", "right_vectors"):
        assert np.isnan(found[name][1, 1]).all()  # values and outputs know no offset
        assert np.isfinite(found[name][0]).all()
    assert np.isnan(found["copying_score"]).all()


@each("fold_norm", [False, True])
def test_alignments_equal_those_of_the_dense_matrices(weights, fold_norm):
    read, written = directions(seed=1), directions(seed=2)
    read[1] = np.nan
    heads = HeadsSpec(offsets=OFFSETS, fold_norm=fold_norm, vectors=3)
    found = decompose_layer(weights, LAYER, heads, Stream(read, written), (0, 0), None)
    whole = dense(weights, fold_norm)
    seen = read @ whole.centre * whole.scale  # the linear part of the norm; its bias does not apply to directions
    seen /= np.linalg.norm(seen, axis=1, keepdims=True)
    matrices = {
        "qk_query": whole.qk[0],
        "qk_key": whole.qk[0].transpose(0, 2, 1),
        "ov_read": whole.ov,
        "ov_write": whole.ov.transpose(0, 2, 1),
    }
    assert tuple(matrices) == SIDES
    assert found["direction_alignment"].shape == (3, 4, 4)
    for index, (side, matrix) in enumerate(matrices.items()):
        meets = written if side == "ov_write" else seen
        first = np.linalg.norm(matrix, 2, axis=(1, 2))
        alignment = np.linalg.norm(np.einsum("cd,hde->che", meets, matrix), axis=-1) / first
        np.testing.assert_allclose(found["direction_alignment"][:, index], alignment, rtol=1e-11)
        circuit = whole.qk[0] if side.startswith("qk") else whole.ov
        vectors = leading(circuit, 3)[0 if side in ("qk_query", "ov_read") else 1]
        cosines = np.einsum("cd,hvd->chv", meets, vectors)
        np.testing.assert_allclose(found["vector_cosine"][:, index], cosines, atol=1e-10)
    for name in ("direction_alignment", "vector_cosine"):
        assert np.isnan(found[name][1, :3]).all()
        assert np.isfinite(found[name][1, 3]).all()
    assert (found["direction_alignment"][[0, 2]] < 1).all()


def alignments_of_draws_are_those_of_single_directions(weights):
    draws = [np.stack([directions(seed=seed), directions(seed=seed + 1)]) for seed in (1, 3)]
    stream = Stream(draws[0][:, 0], draws[1][:, 0], read_draws=draws[0], written_draws=draws[1])
    found = decompose_layer(weights, LAYER, HeadsSpec(vectors=2), stream, (0, 0), None)
    np.testing.assert_allclose(found["alignment_draws"][:, :, 0], found["direction_alignment"], rtol=1e-11)
    for draw in range(draws[0].shape[1]):
        one = Stream(draws[0][:, draw], draws[1][:, draw])
        alone = decompose_layer(weights, LAYER, HeadsSpec(vectors=2), one, (0, 0), None)["direction_alignment"]
        np.testing.assert_allclose(found["alignment_draws"][:, :, draw], alone, rtol=1e-11)


def a_direction_that_is_a_leading_vector_has_an_alignment_of_one(weights):
    whole = dense(weights)
    left, right = leading(whole.ov, 1)
    ours = np.linalg.pinv(whole.centre @ np.diag(whole.scale)).T @ left[1, 0]  # becomes the vector as it is read
    seen = ours @ whole.centre * whole.scale
    stream = Stream(ours[None] / np.linalg.norm(ours), right[1])
    found = decompose_layer(weights, LAYER, HeadsSpec(vectors=1), stream, (0, 0), None)
    cosine = abs(left[1, 0] @ seen) / np.linalg.norm(seen)  # LayerNorm takes out what of it lies along the mean
    np.testing.assert_allclose(np.abs(found["vector_cosine"][0, 2:, 1, 0]), [cosine, 1], atol=1e-12)
    np.testing.assert_allclose(found["direction_alignment"][0, 3, 1], 1, rtol=1e-12)
    if whole.kind != "layer":
        np.testing.assert_allclose(found["direction_alignment"][0, 2, 1], 1, rtol=1e-12)


@each("fold_norm", [False, True])
def test_null_spaces_are_those_of_the_dense_projections(weights, fold_norm):
    places = {(0, 1): samples(0), (1, 0): samples(1, count=7)}
    stream = Stream(np.empty((0, 48)), np.empty((0, 48)), places)
    found = decompose_layer(weights, LAYER, HeadsSpec(fold_norm=fold_norm, vectors=0), stream, (2, 2), None)
    whole = dense(weights, fold_norm)
    assert found["null_variance"].shape == (2, 2, 2, 4)
    for at in np.ndindex(2, 2):
        if at not in places:
            assert np.isnan(found["null_variance"][at]).all()
            continue
        read = whole.read(places[at].astype(np.float64))
        for index, factor in enumerate((whole.query, whole.key)):
            for head, matrix in enumerate(factor):
                projector = np.eye(48) - matrix @ np.linalg.pinv(matrix)
                share = (read @ projector).var(axis=0).sum() / read.var(axis=0).sum()
                np.testing.assert_allclose(found["null_variance"][(*at, index, head)], share, rtol=1e-10)
                assert found["null_dimension"][index, head] == 48 - np.linalg.matrix_rank(matrix)


def equal_samples_have_nan_null_variance(weights):
    """As at a template's token, which all prompts share."""
    same = np.tile(samples()[:1], (7, 1))
    stream = Stream(np.empty((0, 48)), np.empty((0, 48)), {(0, 0): same})
    found = decompose_layer(weights, LAYER, HeadsSpec(vectors=0), stream, (1, 1), None)
    assert np.isnan(found["null_variance"]).all()


def tables(weights, fold_norm):
    """Return what attention reads of each token, and the unembedding, in float64."""
    embedding, unembedding = numpy_of(weights.embedding()), numpy_of(weights.unembedding())
    if not fold_norm:
        return embedding, unembedding
    final = weights.final_norm()
    if final is not None:
        unembedding = unembedding * final.scale
        unembedding = unembedding - unembedding.mean(axis=1, keepdims=True) * (final.kind == "layer")
    if weights.anatomy.post_norm:
        return embedding, unembedding
    stream = numpy_of(input_embeddings(weights)(slice(None)))
    norm = weights.norm(LAYER, "attention")
    centred = stream - stream.mean(axis=1, keepdims=True) if norm.kind == "layer" else stream
    return centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + norm.epsilon), unembedding


def score_of(matrix):
    eigenvalues = np.linalg.eigvals(matrix)
    return eigenvalues.sum().real / np.abs(eigenvalues).sum()


@each("fold_norm", [False, True])
def test_copying_scores_are_those_of_the_whole_vocabulary(weights, fold_norm):
    heads = HeadsSpec(vectors=1, fold_norm=fold_norm)
    found = decompose_layer(weights, LAYER, heads, NO_STREAM, (0, 0), vocabulary_products(weights, fold_norm, CPU))
    embedding, unembedding = tables(weights, fold_norm)
    whole = dense(weights, fold_norm).ov
    outputs = (unembedding - unembedding.mean(0), unembedding)
    scores = [[score_of(embedding @ matrix @ output.T) for output in outputs] for matrix in whole]
    # The vocabulary's product is summed in float32.
    np.testing.assert_allclose(found["copying_score"], scores, atol=2e-5)


def test_a_constant_added_to_all_logits_changes_only_the_uncentred_score(tmp_path):
    """The softmax ignores it, and it is added when the same vector is added to all rows of W_U."""
    plain = saved("llama", tmp_path / "plain")

    def shift(tensors):
        tensors["lm_head.weight"] += 5 * torch.randn(48, generator=torch.Generator().manual_seed(0))

    shifted = rewritten("llama", tmp_path / "shifted", shift)
    before, after = (atlas_of(weights)["copying_score"] for weights in (plain, shifted))
    np.testing.assert_allclose(after[:, 0], before[:, 0], atol=2e-5)
    assert np.abs(after - before)[:, 1].max() > 0.1


@each("block", [1, 7, 64, 8192])
def test_the_vocabulary_products_do_not_depend_on_the_block_size(weights, block):
    embedding, unembedding = numpy_of(weights.embedding()), numpy_of(weights.unembedding())
    whole = (unembedding - unembedding.mean(axis=0)).T @ embedding, unembedding.T @ embedding
    for found, expected in zip(vocabulary_products(weights, False, CPU, block), whole, strict=True):
        assert np.linalg.norm(found - expected) <= 2e-6 * np.linalg.norm(expected)  # blocks are multiplied in float32


def test_the_vocabulary_products_are_none_without_a_head_or_with_projected_embeddings(tmp_path):
    assert vocabulary_products(saved("opt-post-norm", tmp_path / "projected"), False, CPU) is None
    tiny.tiny_model("qwen2").save_pretrained(tmp_path / "headless")
    assert vocabulary_products(Weights(tmp_path / "headless", CONFIGS["qwen2"]), False, CPU) is None


def rewritten(family, folder, change):
    """Save a family's tiny model, change its tensors, and return its weights."""
    saved(family, folder)
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return Weights(folder, CONFIGS[family])


def atlas_of(weights, layer=LAYER):
    return decompose_layer(
        weights, layer, HeadsSpec(vectors=2), NO_STREAM, (0, 0), vocabulary_products(weights, False, CPU)
    )


@each("value", [torch.nan, torch.inf])
@each(
    "projection, row, head", [("q", 33, 2), ("k", 17, 1), ("v", 0, 0), ("o", 20, 1)]
)  # heads are 16 wide: rows of q, k and v and, here, columns of o
def test_a_weight_that_is_not_finite_is_named_by_layer_projection_and_head(tmp_path, value, projection, row, head):
    def change(tensors):
        stored = tensors[f"model.layers.2.self_attn.{projection}_proj.weight"]
        (stored.T if projection == "o" else stored)[row, 5] = value

    weights = rewritten("llama", tmp_path, change)
    name = {"q": "query", "k": "key", "v": "value", "o": "output"}[projection]
    whose = "key-value head" if projection in "kv" else "head"
    with pytest.raises(ModelError, match=f"layer 2, {name} projection: {whose} {head} has a weight that is not finite"):
        atlas_of(weights)
    assert np.isfinite(atlas_of(weights, 1)["singular_values"][0]).all()


def test_a_fused_projection_that_is_not_finite_is_named_by_its_part(tmp_path):
    def change(tensors):
        tensors["transformer.h.2.attn.c_attn.weight"][3, 2 * 48 + 25] = torch.nan  # V's third head of 12

    with pytest.raises(ModelError, match="layer 2, value projection: key-value head 2 has a weight that is not finite"):
        atlas_of(rewritten("gpt2", tmp_path, change))


def test_an_embedding_that_is_not_finite_is_refused(tmp_path):
    def change(tensors):
        tensors["model.embed_tokens.weight"][7, 5] = torch.nan

    with pytest.raises(ModelError, match="finite"):
        atlas_of(rewritten("llama", tmp_path, change))


@each("name", ["q_proj", "k_proj", "v_proj", "o_proj"])
def test_a_projection_that_is_missing_is_named(tmp_path, name):
    tensor = f"model.layers.2.self_attn.{name}.weight"
    with pytest.raises(ModelError, match=f"lack the tensor {tensor}"):
        atlas_of(rewritten("llama", tmp_path, lambda tensors: tensors.pop(tensor)))


def test_a_norm_that_is_not_finite_is_refused(tmp_path):
    def change(tensors):
        tensors["model.layers.2.input_layernorm.weight"][3] = torch.nan

    weights = rewritten("llama", tmp_path, change)
    with pytest.raises(ModelError, match=r"layers\.2\.input_layernorm has a weight that is not finite"):
        decompose_layer(weights, LAYER, HeadsSpec(vectors=2), Stream(directions(1), directions(1)), (0, 0), None)


@each(
    "family, tensor",
    [
        ("llama", "model.layers.2.input_layernorm.weight"),
        ("llama", "model.layers.2.self_attn.k_proj.bias"),
        ("gemma2", "model.layers.2.post_attention_layernorm.weight"),
        ("qwen3", "model.layers.2.self_attn.q_norm.weight"),
        ("gpt2", "transformer.h.2.ln_1.bias"),
    ],
)
def test_a_norm_or_bias_missing_in_one_layer_is_an_error(tmp_path, family, tensor):
    """OLMo's norms have no scale at all; one layer without is a damaged file."""
    with pytest.raises(ModelError, match=tensor):
        atlas_of(rewritten(family, tmp_path, lambda tensors: tensors.pop(tensor)))


@each("projection", ["q", "v", "o"])
def test_only_a_head_of_zeros_has_nan_alignment(tmp_path, projection):
    def change(tensors):
        stored = tensors[f"model.layers.2.self_attn.{projection}_proj.weight"]
        (stored.T if projection == "o" else stored)[16:32] = 0

    stream = Stream(directions(1), directions(1), {(0, 0): samples()})
    weights = rewritten("llama", tmp_path, change)
    found = decompose_layer(
        weights, LAYER, HeadsSpec(vectors=2), stream, (1, 1), vocabulary_products(weights, False, CPU)
    )
    circuit, sides = (0, slice(2)) if projection == "q" else (1, slice(2, 4))
    zeros = {"q": [1], "v": [2, 3], "o": [1]}[projection]  # a value serves two heads
    rest = [head for head in range(4) if head not in zeros]
    alignment = found["direction_alignment"][0, sides]
    assert (found["singular_values"][circuit, 0, zeros] == 0).all()
    assert np.isnan(alignment[:, zeros]).all()
    assert np.isfinite(alignment[:, rest]).all()
    if projection == "q":
        assert found["null_dimension"][0].tolist() == [32, 48, 32, 32]
        assert found["null_variance"][0, 0, 0, 1] == 1
    else:
        assert np.isnan(found["copying_score"]).tolist() == [[head in zeros] * 2 for head in range(4)]


test_directions_and_samples_meet_the_circuits = together(
    alignments_of_draws_are_those_of_single_directions,
    a_direction_that_is_a_leading_vector_has_an_alignment_of_one,
    equal_samples_have_nan_null_variance,
)
