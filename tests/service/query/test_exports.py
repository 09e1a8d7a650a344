"""Compare every exported number with the store, and with the activations, in float64."""

import json
from io import BytesIO

import numpy as np
import pytest
from safetensors.numpy import load
from support.each import each
from support.serving import CONTRASTS, draw_sets, stored_group, surveyed_run

from theodolite.errors import SpecError
from theodolite.export import encode_directions

STORED = {
    "difference_norm": ("curves", "difference_norm"),
    "difference_norm_debiased": ("directions", "difference_norm_debiased"),
    "noise_share": ("directions", "noise_share"),
    "reliability": ("directions", "reliability"),
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return surveyed_run(tmp_path_factory.mktemp("store"))


PLACES = [
    (contrast, site, position)
    for contrast, positions in (("refusal", (-2, -1)), ("subject", (-1,)))
    for site in ("resid_pre", "resid_mid")
    for position in positions
]


@each("contrast, site, position", PLACES)
def test_every_exported_number_is_the_stored_number(run, contrast, site, position):
    layers = [2, 0, 3]
    facts = json.loads(encode_directions(run, contrast, site, layers, position, "json"))
    place = {"contrast": contrast, "position": position}
    for name, (group, variable) in STORED.items():
        stored = stored_group(run.store, run.id, group)[variable].sel(place)
        expected = stored.sel(site=site, layer=layers) if "layer" in stored.dims else stored
        expected = expected.sel(space="raw") if "space" in expected.dims else expected
        expected = np.where(np.isnan(expected), None, expected)  # NaN becomes null
        assert facts[name] == expected.tolist(), name
    moments = stored_group(run.store, run.id, "moments")
    for side in ("positive", "negative"):
        at = {"set": CONTRASTS[contrast][side], "site": site, "position": position, "layer": layers}
        assert facts[f"norm_mean_{side}"] == moments["norm_mean"].sel(at).values.tolist()
    assert (facts["layer"], facts["position"], facts["site"]) == (layers, position, site)
    assert {side: facts[side] for side in ("positive", "negative")}.items() < CONTRASTS[contrast].items()
    assert (facts["model_dtype"], facts["revision"]) == (run.record.model.dtype, run.record.model.revision)
    vectors = load(encode_directions(run, contrast, site, layers, position))
    directions = stored_group(run.store, run.id, "directions")["direction"].sel(space="raw").sel(place | {"site": site})
    for layer in layers:
        expected = directions.sel(layer=layer).values
        assert expected.dtype == np.float64
        np.testing.assert_array_equal(vectors[f"direction.{layer}"], expected.astype(np.float32))


@each("contrast, site, position", PLACES)
def test_vector_times_difference_norm_is_the_difference_of_the_means(run, contrast, site, position):
    sets = draw_sets()
    positive, negative = (
        sets[CONTRASTS[contrast][side]][site][:, position].astype(np.float64) for side in ("positive", "negative")
    )
    facts = json.loads(encode_directions(run, contrast, site, position=position, format="json"))
    vectors = load(encode_directions(run, contrast, site, position=position))
    assert (facts["layer"], facts["vector_norm"]) == ([0, 1, 2, 3], 1)
    assert (facts["n_positive"], facts["n_negative"]) == (len(positive), len(negative))
    for layer, norm in enumerate(facts["difference_norm"]):
        difference = positive[:, layer].mean(axis=0) - negative[:, layer].mean(axis=0)
        np.testing.assert_allclose(norm, np.linalg.norm(difference), rtol=1e-12)
        vector = vectors[f"direction.{layer}"].astype(np.float64)
        np.testing.assert_allclose(vector * norm, difference, atol=1e-7 * norm)  # float32
        np.testing.assert_allclose(np.linalg.norm(vector), facts["vector_norm"], rtol=1e-6)
    for side, samples in (("positive", positive), ("negative", negative)):
        norms = np.linalg.norm(samples, axis=-1).mean(axis=0)
        np.testing.assert_allclose(facts[f"norm_mean_{side}"], norms, rtol=1e-12)


def test_several_contrasts_are_stacked_with_the_vectors_and_facts_of_each(run):
    each_alone = {one: load(encode_directions(run, one, "resid_pre", [1, 3])) for one in ("refusal", "subject")}
    stacked = np.load(BytesIO(encode_directions(run, "refusal,subject", "resid_pre", [1, 3], format="npy")))
    expected = [[vectors[f"direction.{layer}"] for layer in (1, 3)] for vectors in each_alone.values()]
    np.testing.assert_array_equal(stacked, expected)
    named = load(encode_directions(run, "refusal,subject", "resid_pre", [1, 3]))
    np.testing.assert_array_equal(named["subject.direction.3"], each_alone["subject"]["direction.3"])
    facts = json.loads(encode_directions(run, "refusal,subject", "resid_pre", [1, 3], format="json"))
    alone = json.loads(encode_directions(run, "subject", "resid_pre", [1, 3], format="json"))
    assert facts["subject"] == alone
    with pytest.raises(SpecError, match="one contrast"):
        encode_directions(run, "refusal,subject", "resid_pre", format="gguf")
    for contrasts, message in (("refusal,nonsense", "nonsense"), ("refusal,refusal", "once"), ("refusal,", "once")):
        with pytest.raises(SpecError, match=message):
            encode_directions(run, contrasts, "resid_pre")
