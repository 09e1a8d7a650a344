"""The device of a process, and the same results on a GPU as on the CPU."""

import numpy as np
import pytest
import torch
from support import tiny
from support.each import each
from support.tiny_configs import CONFIGS
from transformers import AutoModelForCausalLM

from theodolite_jobs.groups.heads.layer import vocabulary_products
from theodolite_jobs.groups.words.formulas import (
    Request,
    augmented,
    on_device,
    standardisation,
    standardised_rows,
    token_ranks,
    top_tokens,
    with_bias,
)
from theodolite_jobs.groups.words.layer import READ_VECTORS, Decoding, layer_words
from theodolite_jobs.models.weights import Weights
from theodolite_jobs.results.circuits import input_embeddings, input_norm
from theodolite_jobs.results.devices import available_device
from theodolite_jobs.statistics.norms import Norm

CPU = torch.device("cpu")
N_TOKENS, WIDTH = 10_000, 576
TOLERANCE = 1e-5  # of |vector|·|row|, for products in float32 that are summed in another order


@pytest.fixture
def cuda():
    if not torch.cuda.is_available():
        pytest.skip("this machine has no CUDA device")
    return available_device()


@each("has_gpu, kind", [(True, "cuda"), (False, "cpu")])
def test_a_process_uses_the_gpu_that_it_sees(monkeypatch, has_gpu, kind):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    assert available_device().type == kind


def test_products_have_the_precision_of_float32_although_the_environment_allows_tf32():
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")  # as TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1 of NVIDIA's containers does
    try:
        available_device()
        assert torch.get_float32_matmul_precision() == "highest"
        assert not torch.backends.cuda.matmul.allow_tf32
    finally:
        torch.set_float32_matmul_precision(before)


def draw(*shape, seed):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def table_and_vectors():
    """Return a table, a bias of each token, and more vectors than are multiplied at once."""
    table = torch.from_numpy(draw(N_TOKENS, WIDTH, seed=0))
    return (lambda some: table[some]), torch.from_numpy(draw(N_TOKENS, seed=1)), draw(1_100, WIDTH, seed=2)


@pytest.mark.gpu
@pytest.mark.parametrize("end", ["top", "bottom"])
def test_a_gpu_lists_tokens_whose_scores_are_those_of_the_cpu(cuda, end):
    rows, bias, vectors = table_and_vectors()
    rows, vectors = with_bias(rows, bias), augmented(vectors.astype(np.float64), bias)
    (found,) = top_tokens(on_device(rows, cuda), N_TOKENS, [Request(vectors, (end,))], 20, cuda)
    table = rows(slice(None)).double().numpy()
    scores = vectors @ table.T
    allowed = TOLERANCE * np.linalg.norm(vectors, axis=1, keepdims=True) * np.linalg.norm(table, axis=1).max()
    ordered = np.sort(scores if end == "bottom" else -scores, axis=1)[:, :20] * (1 if end == "bottom" else -1)
    # At each place is a token that has, but for the tolerance, the score of the token at this place of an exact list.
    assert (np.abs(np.take_along_axis(scores, found[end].ids, axis=1) - ordered) <= allowed).all()
    assert (np.abs(found[end].scores - ordered) <= allowed).all()
    assert all(len(set(row)) == 20 for row in found[end].ids.tolist())


@pytest.mark.gpu
def test_a_gpu_ranks_tokens_as_the_cpu_but_for_scores_within_the_tolerance(cuda):
    rows, _, vectors = table_and_vectors()
    tokens = np.random.default_rng(3).integers(0, N_TOKENS, size=len(vectors))
    ranks = token_ranks(on_device(rows, cuda), N_TOKENS, vectors, tokens, cuda)
    table = rows(slice(None)).double().numpy()
    scores = vectors.astype(np.float64) @ table.T
    own = scores[np.arange(len(vectors)), tokens][:, None]
    allowed = TOLERANCE * np.linalg.norm(vectors, axis=1, keepdims=True) * np.linalg.norm(table, axis=1).max()
    assert (ranks >= (scores > own + allowed).sum(axis=1) + 1).all()
    assert (ranks <= (scores > own - allowed).sum(axis=1)).all()  # which counts the token itself


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["rms", "layer"])
def test_standardised_rows_are_equal_on_both_devices(cuda, kind):
    rows, _, _ = table_and_vectors()
    by = standardisation(rows, N_TOKENS, Norm(kind, 1e-5, np.ones(WIDTH), np.zeros(WIDTH)))
    on_cpu, on_gpu = (standardised_rows(on_device(rows, device), by, device)(slice(None)) for device in (CPU, cuda))
    torch.testing.assert_close(on_gpu.cpu(), on_cpu, rtol=0, atol=0)


@pytest.mark.gpu
@pytest.mark.parametrize("family", ["llama", "gpt2"])  # untied with RMSNorm; tied with LayerNorm and biases
def test_a_gpu_decodes_a_layer_as_the_cpu(cuda, tmp_path, family):
    tiny.tiny_model(family, auto_class=AutoModelForCausalLM).save_pretrained(tmp_path)
    weights = Weights(tmp_path, CONFIGS[family])
    rows, nouns = input_embeddings(weights), np.array([7, 11, 23])
    decoding = Decoding(
        count=5,
        n_tokens=61,
        nouns=nouns,
        noun_embeddings=rows(slice(None)).double().numpy()[nouns],
        fold_norm=False,
        tied=bool(weights.config.tie_word_embeddings),
        standardisation=standardisation(rows, 61, input_norm(weights, 0)),
    )
    vectors = {name: draw(4, 3, 48, seed=0) for name in (*READ_VECTORS, "ov right")}
    on_cpu, on_gpu = (layer_words(weights, 2, decoding, vectors, device) for device in (CPU, cuda))
    assert list(on_gpu) == list(on_cpu)
    for name, frame in on_gpu.items():
        assert list(frame.columns) == list(on_cpu[name].columns)
        for column in {"score", "correlation"} & set(frame.columns):
            np.testing.assert_allclose(frame[column], on_cpu[name][column], rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.gpu
def test_a_gpu_sums_the_vocabulary_product_as_the_cpu(cuda, tmp_path):
    tiny.tiny_model("gpt2", auto_class=AutoModelForCausalLM).save_pretrained(tmp_path)
    weights = Weights(tmp_path, CONFIGS["gpt2"])
    on_cpu, on_gpu = (vocabulary_products(weights, False, device).centred for device in (CPU, cuda))
    assert np.linalg.norm(on_gpu - on_cpu) <= TOLERANCE * np.linalg.norm(on_cpu)
