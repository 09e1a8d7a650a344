"""A survey of a Gemma 4 whose heads have two widths, and whose last layers use the keys and values of earlier ones."""

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from support.sentences import assert_each_says, assert_says
from support.serving import client_of
from support.tiny_configs import CONFIGS
from support.tiny_survey import save_model, spec_of
from transformers import AutoConfig

import theodolite
from theodolite.errors import SiteNotFoundError, UnsupportedModelError
from theodolite.groups.heads.sections import sections
from theodolite.query.compare import Question, comparison
from theodolite.query.heads import read_head
from theodolite.query.verification import verify
from theodolite.settings import Settings
from theodolite.store.layout import REPORT
from theodolite.store.objects import get
from theodolite.store.result_reader import read_group, read_layer
from theodolite_jobs.groups.heads.formulas import copying_score_sd_of_gaussian_factors
from theodolite_jobs.groups.heads.layer import vocabulary_products
from theodolite_jobs.models.weights import Weights
from theodolite_jobs.progress import Console
from theodolite_jobs.report.heads import head_cards, heads_with_cards
from theodolite_jobs.statistics.factors import effective_rank, effective_rank_of_gaussian_factors, stable_rank
from theodolite_jobs.survey import survey

pytestmark = pytest.mark.usefixtures("forked_replicas")

WIDTHS = [16, 16, 24, 16, 24]
SOURCES = {3: 1, 4: 2}
HEADS = {"vectors": 20, "offsets": [0, 3], "composition": [0, 4]}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    config = copy.deepcopy(CONFIGS["gemma4"].text_config)
    config.vocab_size_per_layer_input = 259  # as many as the tokenizer of `save_model` has
    return save_model(tmp_path_factory.mktemp("model") / "model", config=config)


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    return Settings(store=str(tmp_path_factory.mktemp("store")), replicas=1, gpus_per_replica=0)


@pytest.fixture(scope="module")
def run(model, settings):
    spec = spec_of(model, analyses=["curves", "weights", "heads"], heads=HEADS)
    return survey(spec, Path(), settings, Console())


def test_each_layer_has_the_numbers_of_its_own_width(run):
    heads = read_group(run, "heads")
    assert (heads.sizes["rank"], heads.sizes["vector"]) == (24, 20)
    for layer, width in enumerate(WIDTHS):
        for circuit, offset in (("qk", 0), ("qk", 3), ("ov", 0)):
            at = heads.sel(layer=layer, circuit=circuit, offset=offset)
            values = at["singular_values"].values
            assert np.isnan(values[:, width:]).all()
            own = values[:, :width]
            np.testing.assert_allclose(at["effective_rank"], effective_rank(own), rtol=1e-12)
            np.testing.assert_allclose(at["stable_rank"], stable_rank(own), rtol=1e-12)
            shares = own.cumsum(axis=1) / own.sum(axis=1, keepdims=True)
            assert at["coverage_99"].values.tolist() == ((shares <= 0.99).sum(axis=1) + 1).tolist()
            vectors = read_layer(run, "heads", layer)["left_vectors"].sel(circuit=circuit, offset=offset).values
            assert np.isfinite(vectors[:, :width]).all()
            assert np.isnan(vectors[:, width:]).all()
    assert heads["null_dimension"].sel(projection="key", head=0).values.tolist() == [48 - width for width in WIDTHS]
    tested = heads[["direction_alignment", "direction_alignment_null"]].sel(null=["z", "p_family"])
    assert all(np.isfinite(tested[name].sel(side=["qk_query", "qk_key", "ov_read"])).all() for name in tested)
    assert list(verify(run)) == []


def test_random_circuits_have_the_width_of_each_layer(run):
    heads = read_group(run, "heads")
    assert np.isnan(heads["effective_rank_random"])
    assert np.isnan(heads["copying_score_random_sd"])
    folder = Path(run.record.spec.model.id)
    vocabulary = vocabulary_products(Weights(folder, AutoConfig.from_pretrained(folder)), False, torch.device("cpu"))
    narrow, wide = heads.attrs["widths"]
    assert [(one["width"], one["layers"]) for one in (narrow, wide)] == [(16, [0, 1, 3]), (24, [2, 4])]
    for one in (narrow, wide):
        assert one["effective_rank_random"] == effective_rank_of_gaussian_factors(48, [one["width"]], [one["width"]])
        sd = copying_score_sd_of_gaussian_factors(vocabulary.centred, [one["width"]], [one["width"]])
        assert one["copying_score_random_sd"] == pytest.approx(sd, rel=1e-6)


def test_the_keys_of_a_layer_without_its_own_are_compared_with_what_they_read(run):
    heads = read_group(run, "heads")
    assert heads.attrs["keys_of"] == {"3": 1, "4": 2}
    of_keys = heads["null_variance"].sel(projection="key")
    for layer, source in SOURCES.items():
        np.testing.assert_array_equal(of_keys.sel(layer=layer), of_keys.sel(layer=source))
        assert (of_keys.sel(layer=layer) != heads["null_variance"].sel(projection="query", layer=layer)).all()
    score = np.isfinite(read_group(run, "composition")["score"]).all(("head", "head_other"))
    assert score.sel(composition="q", layer_other=4).values.tolist() == [True] * 4 + [False]
    for kind in "kv":
        assert score.sel(composition=kind, layer_other=3).values.tolist() == [True] + [False] * 4
        assert score.sel(composition=kind, layer_other=4).values.tolist() == [True] * 2 + [False] * 3


def test_sentences_state_each_width(run):
    section, composition = sections(run)
    ranks = section.facts[0]
    assert_says(ranks, "3 layers with heads of width 16, of at most 16: QK … random weights have")
    assert_says(ranks, "2 layers with heads of width 24, of at most 24: QK … random weights have")
    scores = next(fact for fact in section.facts if "copying score" in fact)
    assert_says(scores, "3 layers with heads of width 16 and 0 ±")
    spaces = [fact for fact in section.facts if "null space" in fact]
    assert_each_says(spaces, "32 of 48", "24 of 48")
    assert not any("nan" in fact for fact in section.facts)
    for part in ("16 (layers 0, 1, 3) and 24 (layers 2, 4)", "layer 3 are those of layer 1", "values are normalised"):
        assert_says(section.notes, part)
    assert_says(composition.notes[0], "K- and V-composition … is missing")
    assert not any("nan" in fact for fact in composition.facts)
    for figure in (*section.maps, *composition.maps):
        figure.draw()


def test_reader_service_and_report_have_the_spectrum_of_each_head(run, settings):
    client = client_of(settings.store)
    for layer, width in enumerate(WIDTHS):
        ours = read_head(run, layer, 3, "ov")
        assert len(ours.singular_values) == width
        assert np.isfinite(ours.singular_values).all()
        card = client.get(f"/v1/runs/{run.id}/heads/{layer}/3", params={"circuit": "ov"}).json()
        assert card["singular_values"] == ours.singular_values.tolist()
        assert card["effective_rank"] == ours.effective_rank
        opened = theodolite.open_run(settings.store, run.id).head(layer, 3, "ov")
        np.testing.assert_array_equal(opened.singular_values, ours.singular_values)
    atlas = theodolite.open_run(settings.store, run.id).heads("ov")
    assert np.isnan(atlas["copying_score_random_sd"])
    assert np.isfinite(atlas["effective_rank"]).all()
    heads = read_group(run, "heads")
    shown = heads_with_cards(heads)
    assert len(shown) == 20
    cards = head_cards(run, heads, shown, words=False)
    lengths = [len(cards[circuit][f"L{layer}H0"]["values"]) for circuit in ("qk", "ov") for layer in range(5)]
    assert lengths == [*WIDTHS, *WIDTHS]
    report = get(run.location, REPORT).decode()
    assert "keys and values of layer 4 are those of layer 2" in report
    assert run.record.model.head_widths == tuple(WIDTHS)
    assert "<dd>4 (2 in layer 0)</dd>" in report
    assert "<dd>16 or 24, by layer</dd>" in report
    table = comparison([run], Question("effective_rank@circuit=qk"))
    assert table["d_head"].tolist() == WIDTHS
    with pytest.raises(SiteNotFoundError, match="OV does not depend on the offset"):
        read_head(run, 0, 0, "ov", 3)


def test_what_heads_of_several_widths_do_not_have_is_refused_with_the_reason(model, settings):
    spec = spec_of(model, analyses=["heads", "words"])
    with pytest.raises(
        UnsupportedModelError, match="words of 'gemma4_text' cannot be computed: a norm divides the value"
    ):
        survey(spec, Path(), settings, Console())
    capture = {"sites": ["resid_pre", "resid_mid", "head_out"]}
    with pytest.raises(SiteNotFoundError, match="no head_out: the heads of its layers have several widths"):
        survey(spec_of(model, analyses=["heads", "contributions"], capture=capture), Path(), settings, Console())
