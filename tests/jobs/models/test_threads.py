"""Test that the number of threads changes no bit of a product and of a forward, in the environment of a replica."""

import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest
import torch
from support.each import each
from support.tiny import random_model
from support.tiny_configs import CONFIGS
from transformers import AutoModel

from theodolite_jobs.cluster.replica import REPLICA_ENVIRONMENT
from theodolite_jobs.models.load import wrap
from theodolite_jobs.models.threads import ROWS_OF_A_THREAD, ThreadsForRows, threads_for


def become_replica():
    os.environ.update(REPLICA_ENVIRONMENT)


@pytest.fixture(scope="module")
def replica():
    """A function that calls another one in a process with the environment of a replica, and returns its result."""
    context = get_context("spawn")  # the math library of this process has read its environment
    with ProcessPoolExecutor(1, context, become_replica) as pool:
        yield lambda function, *arguments: pool.submit(function, *arguments).result()


@each("rows, available, used", [(1, 4, 1), (ROWS_OF_A_THREAD, 4, 1), (2 * ROWS_OF_A_THREAD, 4, 2), (1000, 4, 4)])
def test_each_thread_has_enough_rows(rows, available, used):
    before = torch.get_num_threads()
    torch.set_num_threads(available)
    with threads_for(rows):
        assert torch.get_num_threads() == used
    assert torch.get_num_threads() == available
    torch.set_num_threads(before)


def different_products(columns, features):
    """Return the rows and threads with which a product has other bits than with one thread."""
    matrix, different = torch.randn(columns, features), []
    for rows in (1, 2, 3, 4, 8, 16, 31, 64, 100):
        states = torch.randn(rows, features)
        torch.set_num_threads(1)
        expected = torch.nn.functional.linear(states, matrix)
        for threads in (2, 3, 7, 32):
            torch.set_num_threads(threads)
            with ThreadsForRows():
                found = torch.nn.functional.linear(states, matrix), states @ matrix.T, torch.matmul(states, matrix.T)
            if not all(torch.equal(one, expected) for one in found):
                different.append((rows, threads))
    return different


@each("columns", [32, 49, 100, 128, 576, 1000])
@each("features", [64, 896])
def test_a_product_with_a_matrix_has_the_same_bits(replica, columns, features):
    assert replica(different_products, columns, features) == []


def different_forwards(family):
    """Return the shapes of token ids whose forward has other bits with more threads."""
    model, different = wrap(random_model(CONFIGS[family], AutoModel)), []
    for shape in ((1, 2), (1, 3), (2, 8), (3, 11), (4, 30)):
        tokens, outputs = torch.randint(3, 60, shape), []
        for threads in (1, 2, 3, 7):
            torch.set_num_threads(threads)
            with torch.inference_mode():
                outputs.append(model.run(input_ids=tokens)[0])
        if not all(torch.equal(one, outputs[0]) for one in outputs):
            different.append(shape)
    return different


@each("family", ["llama", "mixtral", "qwen3_moe", "gpt_oss", "gpt2", "deepseek_v3"])
def test_a_forward_has_the_same_bits(replica, family):
    assert replica(different_forwards, family) == []
