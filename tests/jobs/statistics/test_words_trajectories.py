"""Trajectories: angles, coordinates, and the table of a stored run's sentences measured again by hand."""

import numpy as np
import pytest
import torch
from support import tiny
from support.each import each
from support.stored import record_of
from support.tiny_configs import CONFIGS
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

from theodolite.digests import digest_of
from theodolite.sites import Site
from theodolite.spec_parts import SENTENCES
from theodolite.store.activations import encode_shard
from theodolite.store.checksums import sha256
from theodolite.store.commits import commit_shard, new_attempt
from theodolite.store.layout import tokens_key
from theodolite.store.objects import put
from theodolite.store.prompts import encode_tokens
from theodolite.store.records import Commit
from theodolite.store.runs import create_run
from theodolite_jobs.groups.words import formulas_trajectories as words_trajectories
from theodolite_jobs.groups.words.formulas_trajectories import angles, principal_coordinates, vocabulary_angles
from theodolite_jobs.groups.words.trajectories import TARGET, trajectory_table
from theodolite_jobs.models.weights import Weights

WIDTH = 48
CPU = torch.device("cpu")


def draw(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


@each("degrees", [0, 1, 30, 45, 60, 89.9, 90, 120, 179, 180])
@each("lengths", [(1.0, 1.0), (1e-8, 3e5)])
def test_known_angles_are_found_whatever_the_lengths(degrees, lengths):
    turn = np.radians(degrees)
    plane = np.linalg.qr(draw(WIDTH, 2))[0].T
    x, y = lengths[0] * plane[0], lengths[1] * (np.cos(turn) * plane[0] + np.sin(turn) * plane[1])
    np.testing.assert_allclose(angles(x[None], y[None]), [degrees], rtol=1e-13, atol=1e-13)


@each("turn", [1e-3, 1e-7, 1e-10])
def test_angles_near_0_and_180_degrees_are_exact(turn):
    x = np.zeros((1, WIDTH))
    y = np.zeros((1, WIDTH))
    x[0, 0], y[0, :2] = 3.0, [1.0, np.tan(turn)]
    # Unit vectors are rounded to 1e-16 in each component; an arc cosine would find 0 below 1e-8.
    np.testing.assert_allclose(np.radians(angles(x, y)), turn, rtol=1e-12, atol=1e-16)
    np.testing.assert_allclose(180 - angles(-x, y), np.degrees(turn), rtol=1e-12, atol=1e-13)


def test_the_angle_of_equal_directions_is_exactly_zero_and_of_zeros_nan():
    x = draw(5, WIDTH)
    x[3] = 0
    found = angles(x, 4 * x)
    assert (found[[0, 1, 2, 4]] == 0).all()
    assert np.isnan(found[3])


def test_angles_broadcast_many_vectors_against_one():
    x, y = draw(2, 3, WIDTH), draw(1, 3, WIDTH, seed=1)
    cosines = (x * y).sum(-1) / np.linalg.norm(x, axis=-1) / np.linalg.norm(y, axis=-1)
    np.testing.assert_allclose(angles(x, y), np.degrees(np.arccos(cosines)), rtol=1e-12)


@each("block", [1, 7, 64])
def test_angles_to_a_vocabulary_are_those_to_each_row(block, monkeypatch):
    monkeypatch.setattr(words_trajectories, "BLOCK_TOKENS", block)
    table, points = draw(64, WIDTH) + 0.3, draw(5, WIDTH, seed=1)
    table[9], points[3] = 0, 0
    rows = torch.from_numpy(table.astype(np.float32))
    mean, sd = vocabulary_angles(lambda some: rows[some], 61, points)
    known = np.delete(table[:61], 9, axis=0)
    for index in (0, 1, 2, 4):
        each = [angle(points[index], row) for row in known]
        np.testing.assert_allclose([mean[index], sd[index]], [np.mean(each), np.std(each, ddof=1)], rtol=1e-5)
    assert np.isnan([mean[3], sd[3]]).all()


def test_the_angle_to_one_row_has_no_spread():
    mean, sd = vocabulary_angles(lambda some: torch.ones(1, WIDTH)[some], 1, draw(2, WIDTH))
    assert np.isnan([mean, sd]).all()


@each("count", [1, 2, 3, 40])
def test_coordinates_are_along_the_leading_right_vectors_of_the_points(count):
    points = draw(count, WIDTH) * np.geomspace(5, 1, WIDTH)
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    found = principal_coordinates(points)
    directions = np.linalg.svd(points)[2][: min(3, count)]
    for axis, direction in enumerate(directions):
        sign = np.sign(direction[np.abs(direction).argmax()])
        np.testing.assert_allclose(found[:, axis], sign * points @ direction, atol=1e-12)
    assert (found[:, count:] == 0).all()
    assert found.shape == (count, 3)
    assert (np.linalg.norm(found, axis=1) <= 1 + 1e-12).all()


def test_coordinates_of_points_in_three_dimensions_keep_lengths_and_angles():
    inside = draw(20, 3)
    inside /= np.linalg.norm(inside, axis=1, keepdims=True)
    points = inside @ np.linalg.qr(draw(WIDTH, 3, seed=1))[0].T
    found = principal_coordinates(points)
    np.testing.assert_allclose(found @ found.T, points @ points.T, atol=1e-13)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=1e-13)


def test_a_nan_point_has_nan_coordinates_and_does_not_affect_others():
    points = draw(20, WIDTH)
    whole = principal_coordinates(points)
    found = principal_coordinates(np.insert(points, 4, np.nan, axis=0))
    assert np.isnan(found[4]).all()
    np.testing.assert_allclose(np.delete(found, 4, axis=0), whole, atol=1e-12)


TOKENS = [(5, 9, 33, 60), (7,), (12, 4), (8, 8, 21), (3, 2, 1)]  # one of one token; the fourth could not be captured
KNOWN = 61  # the tokenizer knows fewer tokens than there are rows
SITES = ("resid_pre", "resid_mid")
LAYERS = [0, 2, 4]


def store_sentences(folder, states, tokens):
    """Write a run whose only set is the sentences, which is captured though no spec names it."""
    record = record_of({"made_up": states}, shard_prompts=2)
    facts = record.model.model_copy(update={"n_layers": 5})
    sets = {SENTENCES: record.sets["made_up"].model_copy(update={"token_ids_sha256": digest_of(tokens)})}
    record = record.model_copy(update={"model": facts, "sets": sets, "layers": LAYERS})
    run = create_run(str(folder), record)
    whole = {Site(site): values for site, values in states.items()}
    whole[Site.RESID_FINAL] = states["resid_pre"][:, :, -1]
    for index, start in enumerate(range(0, len(tokens), 2)):
        samples = range(start, min(start + 2, len(tokens)))
        encoded = {site: encode_shard(site, values[start : start + 2], start, 2) for site, values in whole.items()}
        checksums = {str(site): sha256(content) for site, content in encoded.items()}
        bad = {sample: "not finite" for sample in samples if sample == 3}
        commit = Commit(run.id, SENTENCES, index, start, samples.stop, new_attempt(), checksums, [list(samples)], bad)
        commit_shard(run.location, commit, encoded)
    put(run.location, tokens_key(SENTENCES), encode_tokens(tokens))
    return run


def made_up_states(tokens):
    """Return states by site, (sample, position, layer, d_model), which are not known before a first token."""
    longest = max(map(len, tokens))
    shape = (len(tokens), longest, len(LAYERS), WIDTH)
    states = {site: draw(*shape, seed=seed).astype(np.float32) for seed, site in enumerate(SITES)}
    for sample, ids in enumerate(tokens):
        for of_site in states.values():
            of_site[sample, : longest - len(ids)] = np.nan
    return states


@pytest.fixture(params=["llama", "gemma2", "gpt2", "bert"])
def captured(request, tmp_path):
    """Return made-up states of a run's sentences, the run, and the weights they are decoded with."""
    head = AutoModelForMaskedLM if request.param == "bert" else AutoModelForCausalLM
    tiny.tiny_model(request.param, auto_class=head).save_pretrained(tmp_path / "model")
    states = made_up_states(TOKENS)
    weights = Weights(tmp_path / "model", CONFIGS[request.param])
    return states, store_sentences(tmp_path / "store", states, TOKENS), weights


def decoded(x, weights):
    """Apply the norm before the vocabulary, where there is one."""
    norm = weights.final_norm()
    if norm is None:
        return x
    x = x - x.mean() if norm.kind == "layer" else x
    return x / np.sqrt(np.square(x).mean() + norm.epsilon) * norm.scale + norm.bias


def angle(x, y):
    cosine = x @ y / np.linalg.norm(x) / np.linalg.norm(y)
    return np.degrees(np.arccos(np.clip(cosine, -1, 1)))  # of a vector with itself it may round past 1


def test_the_table_measures_each_token_at_each_site_and_layer(captured):
    states, run, weights = captured
    frame = trajectory_table(run, weights, KNOWN, CPU)
    unembedding = weights.unembedding().double().numpy()
    final = states["resid_pre"][:, :, -1].astype(np.float64)  # as the stored run has it
    table = frame.set_index(["sentence", "index", "site", "layer"]).sort_index()
    expected_rows = 0
    for sentence in (0, 2, 4):
        ids = TOKENS[sentence]
        for index in range(len(ids) - 1):
            at = index - len(ids)  # sentences end where the stored positions do
            ends, target = final[sentence, at], unembedding[ids[index + 1]]
            points = [
                (site, layer, 2 * layer + step, states[site][sentence, at, column].astype(np.float64))
                for step, site in enumerate(SITES)
                for column, layer in enumerate(LAYERS)
            ]
            for site, layer, depth, x in [*points, ("resid_final", 4, 10, ends)]:
                row = table.loc[(sentence, index, site, layer)]
                seen = decoded(x, weights)
                scores = unembedding[:KNOWN] @ seen
                rank = (scores > scores[ids[index + 1]]).sum() + 1
                assert (row["token_id"], row["next_token_id"]) == (ids[index], ids[index + 1])
                assert (row["depth"], row["rank_of_next"]) == (depth, rank)
                np.testing.assert_allclose(row["angle_to_final"], angle(x, ends), atol=1e-5)
                np.testing.assert_allclose(row["angle_to_next"], angle(seen, target), rtol=1e-6)
                each = [angle(seen, other) for other in unembedding[:KNOWN] if other.any()]
                np.testing.assert_allclose(row["vocabulary_angle_mean"], np.mean(each), rtol=1e-5)
                np.testing.assert_allclose(row["vocabulary_angle_sd"], np.std(each, ddof=1), rtol=1e-5)
                z = (angle(seen, target) - np.mean(each)) / np.std(each, ddof=1)
                np.testing.assert_allclose(row["angle_to_next_z"], z, atol=1e-4)
                expected_rows += 1
            row = table.loc[(sentence, index, TARGET, -1)]
            assert (row["depth"], row["rank_of_next"], row["next_token_id"]) == (-1, -1, ids[index + 1])
            assert np.isnan([row["angle_to_final"], row["angle_to_next_z"]]).all()
            expected_rows += 1
    assert len(frame) == expected_rows  # and none of a sentence of one token, or of one that could not be captured
    assert (table.xs("resid_final", level="site")["angle_to_final"] == 0).all()


def test_coordinates_of_a_sentence_are_those_of_its_states_and_targets_together(captured):
    states, run, weights = captured
    frame = trajectory_table(run, weights, KNOWN, CPU)
    coordinates = ["pca_1", "pca_2", "pca_3"]
    for sentence, rows in frame.groupby("sentence"):
        points = []
        for row in rows.itertuples():
            ids, at = TOKENS[sentence], row.index - len(TOKENS[sentence])
            if row.site == TARGET:
                point = weights.unembedding().double().numpy()[ids[row.index + 1]]
            elif row.site == "resid_final":
                point = decoded(states["resid_pre"][sentence, at, -1].astype(np.float64), weights)
            else:
                point = decoded(states[row.site][sentence, at, LAYERS.index(row.layer)].astype(np.float64), weights)
            points.append(point / np.linalg.norm(point))
        points = np.array(points)
        leading = np.linalg.svd(points)[2][:3]
        leading *= np.sign(np.take_along_axis(leading, np.abs(leading).argmax(axis=1)[:, None], axis=1))
        np.testing.assert_allclose(rows[coordinates], points @ leading.T, atol=1e-6)


def test_sentences_of_one_token_have_no_trajectories(tmp_path):
    tiny.tiny_model("gpt2").save_pretrained(tmp_path / "model")
    tokens = [(4,), (9,), (4,)]
    run = store_sentences(tmp_path / "store", made_up_states(tokens), tokens)
    assert len(trajectory_table(run, Weights(tmp_path / "model", CONFIGS["gpt2"]), KNOWN, CPU)) == 0
