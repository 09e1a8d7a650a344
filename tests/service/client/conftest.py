"""Provide a service over a store that all tests of the client only read, and a fake Ray cluster."""

import numpy as np
import pandas as pd
import pytest
from support.analysing import analyse
from support.listening import served
from support.serving import CONTRASTS, RayStandIn, captured_run, surveyed_run

from theodolite.client import Client
from theodolite.groups import GROUPS
from theodolite.store.result_writer import build_group, write_groups
from theodolite.store.tables import encode_table


def shapes(group, coordinates):
    """Return the shape of each array of a group."""
    return {one.name: GROUPS[group].shape(one, coordinates) for one in GROUPS[group].variables}


def add_heads(run):
    """Write heads with some NaN ranks, and tokens of only the first head."""
    rng = np.random.default_rng(3)
    sides = ["qk_query", "qk_key", "ov_read", "ov_write"]
    coordinates = {"circuit": ["qk", "ov"], "offset": [0], "layer": range(4), "head": range(2), "rank": range(3)}
    coordinates |= {"vector": range(2), "d_model": range(8), "side": sides, "projection": ["query", "key"]}
    coordinates |= {"set": ["harmful", "harmless"], "position": [-1], "contrast": ["refusal"]}
    values = {name: rng.uniform(1, 9, shape) for name, shape in shapes("heads", coordinates).items()}
    values["effective_rank"][1, 0, 2, 1] = np.nan
    rows = [
        {"layer": 0, "head": 0, "vector": 0, "place": place, "token": token, "token_id": place, "score": 2.5 - place}
        | {"circuit": "qk", "side": "left", "end": "top", "against": "read"}
        for place, token in enumerate([" <script>", "naïve", "\n"])
    ]
    attributes = {name: {"digest": name[0], "version": GROUPS[name].version} for name in ("heads", "words")}
    heads = build_group("heads", values, coordinates, attributes["heads"])
    nouns = {name: np.full(shape, np.nan) for name, shape in shapes("words", coordinates).items()}
    words = build_group("words", nouns, coordinates, {**attributes["words"], "tables": ["head_tokens"]})
    tables = {"head_tokens": encode_table(pd.DataFrame(rows))}
    write_groups(run, {"heads": heads, "words": words}, tables, {"heads": "h", "words": "w"})


@pytest.fixture(scope="session")
def shelf(tmp_path_factory):
    """A store with `tiny-0` (all results that need no model), `heads-0` (also heads) and `captured-0` (no results)."""
    folder = tmp_path_factory.mktemp("shelf")
    surveyed_run(folder)
    with_heads = captured_run(folder, "heads-0", seed=1)
    analyse(with_heads, CONTRASTS, requested={"separation"})
    add_heads(with_heads)
    captured_run(folder, "captured-0", seed=2)
    return str(folder)


@pytest.fixture(scope="session")
def service(shelf):
    with served(shelf, requests_per_minute=10**9) as url:  # tests send more requests in a minute than people
        client = Client(url)
        yield client
        client.close()


@pytest.fixture
def cluster(monkeypatch):
    """A fake Ray cluster at http://head:8265."""
    stand_in = RayStandIn()
    monkeypatch.setattr("theodolite.submission.ray_jobs.httpx.request", stand_in.request)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "/nonexistent")
    return stand_in
