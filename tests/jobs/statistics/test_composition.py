"""Q-, K- and V-composition, against Frobenius norms of dense (d_model, d_model) matrices."""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support import tiny
from support.each import each
from support.tiny_configs import CONFIGS

from theodolite_jobs.groups.composition.formulas import KINDS, composition
from theodolite_jobs.models.weights import Weights
from theodolite_jobs.results.circuits import read_circuits
from theodolite_jobs.statistics.factors import Circuits
from theodolite_jobs.statistics.norms import Norm

HEADS, WIDTH, GROUPS = 4, 24, np.array([0, 0, 1, 1])


def circuits(seed, rank=3):
    """Made-up circuits of four heads in two groups; here even offset 0 turns, so that it shows which way."""
    rng = np.random.default_rng(seed)
    query, output = rng.normal(size=(2, HEADS, WIDTH, rank))
    key, value = rng.normal(size=(2, 2, WIDTH, rank))
    return Circuits(
        query=query,
        key=key,
        value=value,
        output=output,
        written=output * rng.normal(size=(WIDTH, 1)),
        kv_head_of=GROUPS,
        rotations={0: rng.normal(size=(rank, rank)), 5: rng.normal(size=(rank, rank))},
        query_bias=None,
        key_bias=None,
        value_bias=None,
        output_bias=None,
        input_norm=Norm("rms", 1e-5, rng.normal(size=WIDTH), np.zeros(WIDTH)),
        source_norm=None,
        output_norm=None,
        output_scale=1.0,
    )


def dense(one):
    """Return W_QK at offset 0 and W_OV of all heads, (head, d_model, d_model)."""
    query, key, value, written = (
        getattr(one, name).astype(np.float64) for name in ("query", "key", "value", "written")
    )
    key, value = key[one.kv_head_of], value[one.kv_head_of]
    return query @ one.rotations[0] @ key.transpose(0, 2, 1), value @ written.transpose(0, 2, 1)


def scores(writer, reader):
    """Write the three kinds out, head by head."""
    (_, writes), (qk, ov) = dense(writer), dense(reader)
    read_by = {"q": qk, "k": qk.transpose(0, 2, 1), "v": ov}
    assert tuple(read_by) == KINDS
    return np.array(
        [
            [[np.linalg.norm(a @ b) / (np.linalg.norm(a) * np.linalg.norm(b)) for b in matrices] for a in writes]
            for matrices in read_by.values()
        ]
    )


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6))
def test_composition_equals_that_of_dense_matrices(seed):
    writer, reader = circuits(seed), circuits(seed + 1)
    found = composition(writer, reader)
    assert found.shape == (3, HEADS, HEADS)
    np.testing.assert_allclose(found, scores(writer, reader), rtol=1e-12)


@each("fold_norm", [False, True])
@each("family", ["llama", "llama-yarn", "gpt2", "gemma2", "granite", "qwen3", "cohere", "bert"])
def test_composition_of_a_models_layers_equals_that_of_dense_matrices(tmp_path, family, fold_norm):
    tiny.tiny_model(family).save_pretrained(tmp_path)
    weights = Weights(tmp_path, CONFIGS[family])
    writer, reader = (read_circuits(weights, layer, fold_norm=fold_norm) for layer in (1, 3))
    found = composition(writer, reader)
    np.testing.assert_allclose(found, scores(writer, reader), rtol=1e-11)
    assert (found > 0).all()
    assert (found <= 1).all()


def test_reading_the_written_subspace_scores_highest_and_reading_its_complement_scores_zero():
    basis = np.linalg.qr(np.random.default_rng(0).normal(size=(WIDTH, WIDTH)))[0]
    writer, reader = circuits(0), circuits(1)
    written = np.stack([basis[:, :1] @ np.ones((1, 3))] * HEADS)  # all write along one direction
    query = np.stack([basis[:, at : at + 1] @ np.ones((1, 3)) for at in range(HEADS)])  # the first head reads it
    found = composition(replace(writer, written=written), replace(reader, query=query))
    np.testing.assert_allclose(found[0, :, 0], 1, rtol=1e-12)
    np.testing.assert_allclose(found[0, :, 1:], 0, atol=1e-12)


def test_random_heads_have_about_one_over_root_d_model():
    writer, reader = circuits(0), circuits(1)
    assert abs(composition(writer, reader).mean() * WIDTH**0.5 - 1) < 0.3  # 48 draws of rank three


@each("side", ["writer", "reader"])
def test_composition_with_a_head_of_zeros_is_nan(side):
    writer, reader = circuits(0), circuits(1)
    whole = composition(writer, reader)
    (writer.written if side == "writer" else reader.query)[1] = 0
    found = composition(writer, reader)
    nothing = np.zeros_like(found, dtype=bool)
    if side == "writer":
        nothing[:, 1] = True
    else:
        nothing[:2, :, 1] = True  # V-composition asks for no query
    assert np.isnan(found[nothing]).all()
    np.testing.assert_allclose(found[~nothing], whole[~nothing], rtol=1e-12)
