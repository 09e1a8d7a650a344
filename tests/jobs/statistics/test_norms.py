"""Norms of arrays equal PyTorch's modules."""

import numpy as np
import torch
from support.each import each

from theodolite_jobs.statistics.norms import Norm, normalised, projected, standardised

WIDTH = 24


def pair(kind, epsilon, seed=0):
    """Return a norm and the module that does the same, in float64."""
    scale, bias = np.random.default_rng(seed).normal(size=(2, WIDTH))
    if kind == "layer":
        module = torch.nn.LayerNorm(WIDTH, eps=epsilon, dtype=torch.float64)
        module.bias.data = torch.from_numpy(bias)
    else:
        module = torch.nn.RMSNorm(WIDTH, eps=epsilon, dtype=torch.float64)
        bias = np.zeros(WIDTH)
    module.weight.data = torch.from_numpy(scale)
    return Norm(kind, epsilon, scale, bias), module.requires_grad_(False)


def stream(*shape, seed=1):
    return np.random.default_rng(seed).normal(size=(*shape, WIDTH)) * 3 + 1


@each("kind", ["rms", "layer"])
@each("epsilon", [1e-12, 1e-5, 1.0])
@each("shape", [(), (5,), (2, 3)])
def test_a_norm_equals_the_module(kind, epsilon, shape):
    norm, module = pair(kind, epsilon)
    x = stream(*shape)
    np.testing.assert_allclose(normalised(x, norm), module(torch.from_numpy(x)).numpy(), rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(normalised(x, norm), standardised(x, norm) * norm.scale + norm.bias, rtol=1e-15)


@each("kind", ["rms", "layer"])
def test_standardised_vectors_lie_on_a_sphere_that_epsilon_shrinks(kind):
    epsilon, x = 0.5, stream(7)
    norm, _ = pair(kind, epsilon)
    spread = x.var(axis=1) if kind == "layer" else (x**2).mean(axis=1)
    lengths = np.linalg.norm(standardised(x, norm), axis=1)
    np.testing.assert_allclose(lengths, np.sqrt(WIDTH * spread / (spread + epsilon)), rtol=1e-14)


def test_only_a_layer_norm_subtracts_the_mean():
    x = stream(7)
    layer, rms = (pair(kind, 1e-5)[0] for kind in ("layer", "rms"))
    projector = np.eye(WIDTH) - 1 / WIDTH
    np.testing.assert_allclose(projected(x, layer), x @ projector, atol=1e-14)
    np.testing.assert_allclose(projected(projected(x, layer), layer), projected(x, layer), atol=1e-15)
    np.testing.assert_array_equal(projected(x, rms), x)


@each("kind", ["rms", "layer"])
def test_zero_gives_the_bias_and_nan_stays_nan(kind):
    norm, _ = pair(kind, 1e-5)
    found = normalised(np.stack([np.zeros(WIDTH), np.full(WIDTH, np.nan)]), norm)
    np.testing.assert_array_equal(found[0], norm.bias)
    assert np.isnan(found[1]).all()
