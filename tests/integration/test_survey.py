"""The whole job on the real 135M chat model: its numbers are those of plain Hugging Face, and a kill changes none."""

import os
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
import yaml
from support.commands import THEODOLITE, theodolite
from support.damages import assert_same_results
from support.unpadded import unpadded_reference

from theodolite.settings import Settings
from theodolite.spec_file import parse_spec
from theodolite.store.activations import read_positive_counts
from theodolite.store.commits import read_commits
from theodolite.store.prompts import read_prompts, read_tokens
from theodolite.store.result_reader import read_group
from theodolite.store.runs import open_run
from theodolite_jobs.progress import Console
from theodolite_jobs.survey import survey

pytestmark = pytest.mark.usefixtures("forked_replicas", "without_figures")

SPEC = {
    "model": {"id": "smollm2-135m-instruct"},
    "prompts": {
        "harmful": {"source": "builtin:harmful", "limit": 10},
        "harmless": {"source": "builtin:harmless", "limit": 10},
        "nouns": {"source": "builtin:nouns", "limit": 10, "template": "none"},
    },
    "capture": {"shard_prompts": 5, "batch_tokens": 64},
    "contrasts": {"refusal": {"positive": "harmful", "negative": "harmless"}},
    "analyses": ["curves"],
    "words": {"sentences": []},
}


def run_survey(store, **settings):
    return survey(parse_spec(SPEC), Path(), Settings(store=str(store), **settings), Console())


@pytest.fixture(scope="module")
def surveyed(tmp_path_factory):
    return run_survey(tmp_path_factory.mktemp("one"), replicas=1, gpus_per_replica=0)


@pytest.mark.nightly
def test_a_survey_that_is_killed_goes_on_where_it_stopped_and_the_bits_are_the_same(surveyed, tmp_path):
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(SPEC))
    command = [THEODOLITE, "survey", str(tmp_path / "spec.yaml"), "--store", str(tmp_path)]
    first = subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL)
    records = tmp_path / "runs" / surveyed.id / "shards"
    while len(list(records.glob("*/*.json"))) < 2:
        assert first.poll() is None, "the survey ended before it could be killed"
        time.sleep(0.02)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    before = {path: path.read_bytes() for path in records.glob("*/*.json")}
    assert 2 <= len(before) < 6
    again = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True)
    assert '"state": "complete"' in again.stdout.splitlines()[-1]
    assert {path: path.read_bytes() for path in before} == before
    assert_same_results(surveyed, open_run(str(tmp_path), surveyed.id))


@pytest.fixture(scope="module")
def reference(surveyed, chat_model_folder):
    """Every prompt alone, unpadded, through the ordinary model with its head."""
    return unpadded_reference(
        chat_model_folder, {name: read_tokens(surveyed, name) for name in ("harmful", "harmless")}
    )


@pytest.mark.parametrize("site", ["resid_pre", "resid_mid"])
@pytest.mark.parametrize("name", ["harmful", "harmless"])
def test_activations_equal_unpadded_hugging_face(surveyed, reference, name, site):
    with xr.open_zarr(f"{surveyed.url}/activations.zarr", group=name, chunks=None) as dataset:
        ours = dataset[site].sel(position=-1).values
    difference = np.linalg.norm(ours - reference[name][site], axis=-1)
    assert (difference / np.linalg.norm(reference[name][site], axis=-1)).max() <= 5e-5


@pytest.mark.parametrize("name", ["harmful", "harmless"])
def test_positive_units_are_counted_as_in_unpadded_hugging_face(surveyed, reference, name):
    commits = read_commits(surveyed, name)
    assert all(
        set(commit.layers) == set(map(str, surveyed.record.spec.capture.all_sites)) for commit in commits.values()
    )
    counts = sum(read_positive_counts(surveyed, commit) for commit in commits.values())[0]
    positive = (reference[name]["gates"] > 0).sum(axis=0)
    # Rounding turns units that lie within 1e-5 of zero: a few of 450,000 signs.
    assert np.abs(counts - positive).sum() <= 10
    assert 0 <= counts.min() <= counts.max() <= 10


def test_curves_equal_a_float64_reference(surveyed, reference):
    curves = read_group(surveyed, "curves").sel(contrast="refusal", position=-1, space="raw", estimate="value")
    for site in ("resid_pre", "resid_mid"):
        p, q = reference["harmful"][site], reference["harmless"][site]
        a, b = p.mean(axis=0), q.mean(axis=0)
        n = len(p)
        noise = ((p - a) * (q - b)).sum(axis=(0, 2)) / (n - 1) / n
        big_a = (a * a).sum(-1) - p.var(axis=0, ddof=1).sum(-1) / n
        big_b = (b * b).sum(-1) - q.var(axis=0, ddof=1).sum(-1) / n
        at = curves.sel(site=site)
        cosine = (a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)
        np.testing.assert_allclose(at["cosine_of_means"], cosine, atol=1e-4, rtol=0)
        debiased = ((a * b).sum(-1) - noise) / np.sqrt(big_a * big_b)
        np.testing.assert_allclose(at["cosine_of_means_debiased"], debiased, atol=1e-4, rtol=0)
        for name, values in (("harmful", p), ("harmless", q)):
            variance = values.var(axis=0, ddof=1)
            np.testing.assert_allclose(at["variance_mean"].sel(set=name), variance.mean(-1), rtol=1e-4)
            np.testing.assert_allclose(at["variance_max"].sel(set=name), variance.max(-1), rtol=1e-4)


def test_the_shared_last_token_has_no_variance_at_0_pre_and_cosine_one(surveyed):
    start = read_group(surveyed, "curves").sel(site="resid_pre", layer=0, position=-1, estimate="value")
    raw = start.sel(space="raw")
    for name in ("harmful", "harmless"):
        assert raw["variance_mean"].sel(set=name).item() == 0
        assert raw["variance_max"].sel(set=name).item() == 0
    for cosines in (start["cosine_of_means"], raw["cosine_of_means_debiased"]):
        assert (np.abs(cosines - 1) <= 1e-12).all()
    assert raw["variance_mean"].sel(set="nouns").item() > 0


def test_a_run_says_what_it_measured(surveyed):
    record = surveyed.record
    assert record.parity["max_error"] <= 5e-5
    assert record.model.revision.startswith("sha256:")
    assert (record.model.n_layers, record.model.d_model, record.model.n_kv_heads) == (30, 576, 3)
    assert record.sets["harmful"].shared_prefix == 24
    prompts = read_prompts(surveyed, "harmless")
    assert len(prompts) == 10
    assert set(prompts["status"]) == {"ok"}
    assert sum(len(read_commits(surveyed, name)) for name in record.sets) == 6
    assert not Path(surveyed.url, "pending").exists()


def test_one_flipped_byte_is_found_by_the_command_and_the_shard_named(surveyed, tmp_path):
    copy = tmp_path / "store"
    subprocess.run(["cp", "-r", surveyed.store, str(copy)], check=True)
    command = ["run", "verify", surveyed.id, "--store", copy]
    assert theodolite(*command).returncode == 0
    shard = copy / "runs" / surveyed.id / "activations.zarr/harmless/resid_mid/c/1/0/0/0"
    content = bytearray(shard.read_bytes())
    content[1234] ^= 1
    shard.write_bytes(content)
    flipped = theodolite(*command)
    assert flipped.returncode == 1
    assert "harmless/00001" in flipped.stdout
    shard.unlink()
    assert "harmless/00001, resid_mid: is missing" in theodolite(*command).stdout
