"""Lengths of embeddings and their distances to a norm's sphere, against plain NumPy, for any block size."""

import numpy as np
import pytest
import torch
from support.each import each
from support.nightly import at_night

from theodolite_jobs.groups.words import formulas_embeddings as words_embeddings
from theodolite_jobs.groups.words.formulas_embeddings import embedding_lengths, embedding_sphere
from theodolite_jobs.statistics.norms import Norm

TOKENS, WIDTH = 53, 12


@pytest.fixture(params=[1, 10, 52, *at_night([2, 53, 1000])])
def blocks(request, monkeypatch):
    """Blocks of all sizes: one row, some that leave a rest, all but one, all, more than there are."""
    monkeypatch.setattr(words_embeddings, "BLOCK_TOKENS", request.param)
    return request.param


def draw(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def rows_of(table):
    stored = torch.from_numpy(table.astype(np.float32))
    return lambda some: stored[some]


@each("kind", ["rms", "layer"])
def test_distances_to_the_sphere_are_those_of_plain_numpy(blocks, kind):
    table = (draw(TOKENS, WIDTH) + draw(WIDTH, seed=1)).astype(np.float32)
    norm = Norm(kind, 1e-3, *draw(2, WIDTH, seed=2))
    exact = table.astype(np.float64)
    sphere = exact - exact.mean(axis=1, keepdims=True) if kind == "layer" else exact
    sphere = sphere / np.sqrt((sphere**2).mean(axis=1, keepdims=True) + 1e-3)
    centred = exact - exact.mean(axis=0)
    factor = WIDTH**0.5 / np.linalg.norm(exact, axis=1).mean()
    changed = {
        "original": exact,
        "centred": centred,
        "scaled": exact * factor,
        "centred and scaled": centred * factor,
    }
    found = embedding_sphere(rows_of(table), TOKENS, norm)
    assert [row["setting"] for row in found] == list(changed)
    for row, values in zip(found, changed.values(), strict=True):
        l2 = np.linalg.norm(values - sphere, axis=1)
        cosine = (values * sphere).sum(axis=1) / np.linalg.norm(values, axis=1) / np.linalg.norm(sphere, axis=1)
        assert row["n"] == TOKENS
        np.testing.assert_allclose([row["l2_mean"], row["l2_std"]], [l2.mean(), l2.std(ddof=1)], rtol=1e-12)
        theirs = [(1 - cosine).mean(), (1 - cosine).std(ddof=1)]
        # 1 − cosine has lost its digits where the two are parallel
        ours = [row["cosine_distance_mean"], row["cosine_distance_std"]]
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-15)


def test_rows_of_zeros_have_no_direction_and_are_left_out(blocks):
    table = draw(TOKENS, WIDTH).astype(np.float32)
    table[[0, 20]] = 0
    norm = Norm("rms", 1e-5, np.ones(WIDTH), np.zeros(WIDTH))
    found = {row["setting"]: row for row in embedding_sphere(rows_of(table), TOKENS, norm)}
    kept = np.delete(table, [0, 20], axis=0).astype(np.float64)
    sphere = kept / np.sqrt((kept**2).mean(axis=1, keepdims=True) + 1e-5)
    assert found["original"]["n"] == found["scaled"]["n"] == TOKENS - 2
    np.testing.assert_allclose(found["original"]["l2_mean"], np.linalg.norm(kept - sphere, axis=1).mean(), rtol=1e-12)


def test_rms_distances_of_what_is_only_scaled_are_known():
    """The sphere keeps directions, and all embeddings of one length are put on it by the scale alone."""
    table = draw(TOKENS, WIDTH)
    table /= np.linalg.norm(table, axis=1, keepdims=True)
    norm = Norm("rms", 0.0, np.ones(WIDTH), np.zeros(WIDTH))
    found = {row["setting"]: row for row in embedding_sphere(rows_of(table), TOKENS, norm)}
    assert found["original"]["cosine_distance_mean"] < 1e-12
    assert found["scaled"]["l2_mean"] < 1e-6  # the table is in float32
    np.testing.assert_allclose(found["original"]["l2_mean"], WIDTH**0.5 - 1, rtol=1e-6)


@each("biased", [True, False])
def test_lengths_of_embeddings_are_those_of_plain_numpy(blocks, biased):
    table, (scale, bias) = draw(TOKENS, WIDTH).astype(np.float32), draw(2, WIDTH, seed=1)
    found = embedding_lengths(rows_of(table), TOKENS, Norm("layer", 1e-5, scale, bias if biased else 0 * bias))
    exact = table.astype(np.float64)
    plain, scaled = (np.sqrt((values**2).sum(axis=1)) for values in (exact, exact * scale))
    expected = {"norm": plain, "scaled norm": scaled}
    if biased:
        expected |= {"norm + bias": plain + exact @ bias, "scaled norm + bias": scaled + exact @ bias}
    assert list(found) == list(expected)
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-12, atol=1e-14)
