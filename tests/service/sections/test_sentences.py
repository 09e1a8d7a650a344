"""Sentences of sections, and the maps that they name."""

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from theodolite.sections import weights, words

WRITERS, READERS = ["o", "down"], ["q", "k", "v", "gate", "up"]


@pytest.mark.parametrize("most", [("o", "k"), ("down", "up"), ("o", "q")])
def test_the_pair_of_matrices_that_shares_most_has_a_map(monkeypatch, most):
    between = xr.DataArray(
        np.full((2, 5, 3, 3), 0.1),
        {"writing_matrix": WRITERS, "reading_matrix": READERS, "layer": range(3), "layer_other": range(3)},
        ["writing_matrix", "reading_matrix", "layer", "layer_other"],
    )
    between.loc[{"writing_matrix": most[0], "reading_matrix": most[1]}] = 0.4
    writing = between.isel(reading_matrix=0, drop=True)
    variables = {"writer_reader_overlap": between, "writing_overlap": writing, "random_overlap": 0.05}
    variables |= {f"folded_{name}": variables[name] * np.nan for name in ("writer_reader_overlap", "writing_overlap")}
    monkeypatch.setattr(weights, "read_group", lambda *_: xr.Dataset(variables, attrs={"rank": 2}))
    (section,) = weights.sections(None)
    (fact,) = (fact for fact in section.facts if "largest mean overlap" in fact)
    assert fact.startswith("Of all 10 combinations")
    assert "40.0 %" in fact
    writer, reader = fact.split(", ")[1].split(" has ")[0].split(" with ")
    assert f"overlap of {writer} with {reader} of later layers" in [one.caption for one in section.maps]
    assert len({one.name for one in section.maps}) == len(section.maps)


@pytest.mark.parametrize(
    ("distances", "has", "lacks"),
    [
        ([6e-33, 0.27], "changes only the length", "smallest"),
        ([0.1, 0.27], "final norm: 0.1000 (n = 9 tokens", "smallest"),
        ([0.2, 0.1], "final norm: 0.2000; smallest: 0.1000 (centred)", "changes only"),
    ],
)
def test_a_table_of_embeddings_is_not_compared_with_itself(monkeypatch, distances, has, lacks):
    sphere = pd.DataFrame({"setting": ["original", "centred"], "n": 9, "cosine_distance_mean": distances})
    columns = {"l2_mean": 20.0, "l2_std": 1.0, "cosine_distance_std": 0.1}
    tables = {
        "embedding_sphere": sphere.assign(**columns),
        "norm_tokens": pd.DataFrame(columns=["place", "measure", "end"]),
    }
    group = xr.Dataset(attrs={"tables": [], "decoded_against": "the table"})
    monkeypatch.setattr(words, "read_group", lambda *_: group)
    monkeypatch.setattr(words, "read_words", lambda _, name: tables[name])
    (section,) = words.sections(None)
    (fact,) = section.facts
    assert has in fact
    assert lacks not in fact
