"""Sentences of sections, and how their numbers are written."""

import numpy as np
import pandas as pd
import xarray as xr
from support.each import each
from support.sentences import assert_says

from theodolite.groups.heads import sections as heads
from theodolite.groups.words import sections as words
from theodolite.sections.parts import listed, null_text, number, percent


def test_texts_of_several_sets_are_separated_by_semicolons():
    assert listed({"harmful": "3.53", "harmless": "3.55 (n = 4)"}) == "harmful 3.53; harmless 3.55 (n = 4)"
    assert listed({"harmful": "3.53"}) == "harmful 3.53"
    assert listed({}) == ""


@each(
    "value, digits, text",
    [
        (-0.004, 2, "0.00"),
        (-0.006, 2, "-0.01"),
        (-0.0, 0, "0"),
        (0.125, 1, "0.1"),
        (-0.4, 0, "0"),
        (1234.5, 3, "1234.500"),
    ],
)
def test_numbers_that_round_to_0_have_no_sign(value, digits, text):
    assert number(value, digits) == text
    assert percent(value / 100, digits) == f"{text} %"


def test_what_permuted_labels_give_has_no_parentheses():
    null = xr.DataArray([0.5, 0.02, 0.005], {"null": ["mean", "sd", "p_family"]})
    expected = "permuted labels give 0.50 ± 0.02 there, p = 0.005 over all depths"
    assert null_text(null) == expected


@each(
    "distances, has, lacks",
    [
        ([6e-33, 0.27], "By construction", "smallest"),
        ([0.1, 0.27], "final norm: 0.1000 (n = 9 tokens", "smallest"),
        ([0.2, 0.1], "final norm: 0.2000; smallest: 0.1000 (centred)", "By construction"),
    ],
)
def test_a_table_of_embeddings_is_not_compared_with_itself(monkeypatch, distances, has, lacks):
    sphere = pd.DataFrame({"setting": ["original", "centred"], "n": 9, "cosine_distance_mean": distances})
    columns = {"l2_mean": 20.0, "l2_std": 1.0, "cosine_distance_std": 0.1}
    tables = {
        "embedding_sphere": sphere.assign(**columns),
        "norm_tokens": pd.DataFrame(columns=["place", "measure", "end"]),
    }
    labels = {"control": ["permuted"], "null": ["z"]}
    attributes = {"tables": [], "decoded_against": "the table"}
    group = xr.Dataset({"relatedness_null": (tuple(labels), [[np.nan]])}, labels, attributes)
    monkeypatch.setattr(words, "read_group", lambda *_: group)
    monkeypatch.setattr(words, "read_words", lambda _, name: tables[name])
    (section,) = words.sections(None)
    (fact,) = section.facts
    assert has in fact
    assert lacks not in fact


def copying(centred, uncentred):
    """Return copying scores of two layers with two heads each."""
    scores = ("centring", "layer", "head"), np.stack([centred, uncentred])
    labels = {"centring": ["centred", "uncentred"], "layer": range(2), "head": range(2)}
    return xr.Dataset({"copying_score": scores, "copying_score_random_sd": 0.2}, labels)


def test_the_effect_of_centring_on_copying_scores_has_its_heads():
    centred, uncentred = np.array([[0.95, 0.2], [0.6, np.nan]]), np.array([[0.95, -0.1], [-0.3, np.nan]])
    first, second = heads._copying_facts(copying(centred, uncentred))
    assert_says(first, "above 0.9 in 1 of 4 heads … below -0.9 in 0 heads")
    assert_says(second, "2 of 4 heads … other sign … L1H0: -0.30 without … 0.60 with")


def test_heads_without_copying_scores_have_no_sentence():
    assert list(heads._copying_facts(copying(np.full((2, 2), np.nan), np.full((2, 2), np.nan)))) == []


PATH = pd.DataFrame(
    {
        "site": ["resid_pre", "resid_final"],
        "depth": [0, 4],
        "angle_to_final": [80.0, 0.0],
        "angle_to_next": [92.6, 83.2],
        "rank_of_next": [2140, 1],
        "vocabulary_angle_mean": [102.0, 92.0],
        "vocabulary_angle_sd": [5.0, 1.6],
        "angle_to_next_z": [-1.9, -5.5],
    }
)


def test_angles_to_the_next_token_are_compared_with_those_to_all_tokens():
    text = " ".join(words._path_facts(PATH))
    assert_says(text, "first depth: 93° … 102° ± 5.0° (difference -9.4°, z = -1.9)")
    assert_says(text, "last depth: 83° … 92° ± 1.6° (difference -8.8°, z = -5.5)")
    assert "90°" not in text


def test_a_shown_path_stands_beside_all_paths_of_its_sentence():
    """The next token has rank 1 at the end of two paths of three; the last two tokens have other z."""
    paths = [PATH.assign(index=index) for index in range(3)]
    paths[1] = paths[1].assign(rank_of_next=[9, 2], angle_to_next_z=[0.5, -0.4])
    paths[2] = paths[2].assign(angle_to_next_z=[-2.5, -9.0])
    (fact,) = words._other_paths(pd.concat(paths))
    assert_says(fact, "one path of 3 … 2 … 3 paths … rank 1")
    assert_says(fact, "-2.5 to 0.5 … first depth … -9.0 to -0.4 … last")
    (fact,) = words._other_paths(pd.concat(path.assign(angle_to_next_z=np.nan) for path in paths))
    assert_says(fact, "2 … 3 paths")
    assert "first depth" not in fact
    assert list(words._other_paths(paths[0])) == []


def test_angles_without_a_z_have_no_comparison():
    text = " ".join(words._path_facts(PATH.assign(angle_to_next_z=np.nan)))
    assert_says(text, "first depth: 93° … last depth: 83°")
    assert "102°" not in text
    assert "90°" not in text
