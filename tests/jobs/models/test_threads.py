"""Test that the number of threads changes no bit of a product and of a forward."""

import pytest
import torch
from support.tiny import random_model
from support.tiny_configs import CONFIGS
from transformers import AutoModel

from theodolite_jobs.models.load import wrap
from theodolite_jobs.models.threads import ROWS_OF_A_THREAD, ThreadsForRows, threads_for


@pytest.fixture(autouse=True)
def threads_as_before():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("rows", "available", "used"), [(1, 4, 1), (ROWS_OF_A_THREAD, 4, 1), (2 * ROWS_OF_A_THREAD, 4, 2), (1000, 4, 4)]
)
def test_each_thread_has_enough_rows(rows, available, used):
    torch.set_num_threads(available)
    with threads_for(rows):
        assert torch.get_num_threads() == used
    assert torch.get_num_threads() == available


@pytest.mark.parametrize("columns", [32, 49, 100, 128, 576, 1000])
@pytest.mark.parametrize("features", [64, 896])
def test_a_product_with_a_matrix_has_the_same_bits(columns, features):
    matrix = torch.randn(columns, features)
    for rows in (1, 2, 3, 4, 8, 16, 31, 64, 100):
        states = torch.randn(rows, features)
        torch.set_num_threads(1)
        expected = torch.nn.functional.linear(states, matrix)
        for threads in (2, 3, 7, 32):
            torch.set_num_threads(threads)
            with ThreadsForRows():
                found = torch.nn.functional.linear(states, matrix), states @ matrix.T, torch.matmul(states, matrix.T)
            assert all(torch.equal(one, expected) for one in found), (rows, threads)


@pytest.mark.parametrize("family", ["llama", "mixtral", "qwen3_moe", "gpt_oss", "gpt2", "deepseek_v3"])
def test_a_forward_has_the_same_bits(family):
    model = wrap(random_model(CONFIGS[family], AutoModel))
    for shape in ((1, 2), (1, 3), (2, 8), (3, 11), (4, 30)):
        tokens = torch.randint(3, 60, shape)
        outputs = []
        for threads in (1, 2, 3, 7):
            torch.set_num_threads(threads)
            with torch.inference_mode():
                outputs.append(model.run(input_ids=tokens)[0])
        assert all(torch.equal(one, outputs[0]) for one in outputs), shape
