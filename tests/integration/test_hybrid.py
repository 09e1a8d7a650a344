"""A survey of a hybrid, of which two of five blocks have attention heads."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from support.nightly import at_night
from support.sentences import assert_says
from support.tiny_configs import CONFIGS
from support.tiny_survey import EFFECTS, save_model, spec_of

from theodolite.errors import SiteNotFoundError
from theodolite.groups.heads.sections import sections
from theodolite.query.heads import attention_layers, head_atlas, read_head
from theodolite.settings import Settings
from theodolite.store.result_reader import read_group
from theodolite_jobs.progress import Console
from theodolite_jobs.report.heads import head_cards, heads_with_cards
from theodolite_jobs.report.page import render_report
from theodolite_jobs.survey import survey

pytestmark = pytest.mark.usefixtures("forked_replicas", "without_figures")


ALONE = "nemotron_h"  # its blocks are attention, a state space or an MLP


@pytest.fixture(scope="module", params=[ALONE, *at_night(["qwen3_5_text", "granitemoehybrid"])])
def family(request):
    return request.param


@pytest.fixture(scope="module")
def run(family, tmp_path_factory):
    folder = tmp_path_factory.mktemp("hybrid")
    model = save_model(folder / "model", config=CONFIGS[family])
    spec = spec_of(
        model,
        analyses=["curves", "sphere", "weights", "heads", "effects"],
        heads={"vectors": 3, "composition": [0, 4]},
        effects=EFFECTS,
    )
    settings = Settings(store=str(folder / "store"), replicas=1, gpus_per_replica=0)
    return survey(spec, Path(), settings, Console())


def test_heads_are_those_of_the_layers_with_attention(run, family):
    heads = read_group(run, "heads")
    assert attention_layers(heads) == [0, 4]
    # The state after the last block is resid_final, which has no direction; a block that is attention alone ends there.
    tested = heads["direction_alignment_null"].sel(null="p_family", layer=[0] if family == ALONE else [0, 4])
    assert np.isfinite(tested).all()
    for name in ("singular_values", "effective_rank", "direction_alignment_null", "copying_score", "vector_cosine"):
        assert np.isnan(heads[name].sel(layer=[1, 2, 3])).all(), name
    assert (heads["null_dimension"].sel(layer=[1, 2, 3]) == -1).all()
    score = read_group(run, "composition")["score"]
    assert np.isfinite(score.sel(layer=0, layer_other=4)).all()
    assert int(np.isfinite(score).sum()) == 3 * 16
    overlap = read_group(run, "weights")["writing_overlap"].sel(matrices="model", form="stored")
    assert np.isfinite(overlap.sel(writing_matrix="o", layer=[0, 4], layer_other=[0, 4])).all()
    assert int(np.isfinite(overlap.sel(writing_matrix="o")).sum()) == 4
    down = np.isfinite(overlap.sel(writing_matrix="down"))
    assert down.all() if family != ALONE else int(down.sum()) == 4


def test_sentences_count_the_blocks_with_heads(run):
    heads = read_group(run, "heads")
    section = sections(run)[0]
    assert "circuits of 8 attention heads" in section.title
    said = "2 of 5 blocks have attention heads"
    assert_says(section.facts[0], said)
    assert_says(section.finding, said)
    assert_says(section.notes, f"{said} (layers 0, 4)")
    assert not any("nan" in fact for fact in section.facts)
    assert said in render_report(run)
    dimension = int(heads["null_dimension"].sel(layer=[0, 4]).median())
    assert_says(section.facts, f"null space … {dimension} of 48")
    for figure in section.maps:
        figure.draw()


def test_a_head_of_a_layer_without_attention_is_refused(run):
    assert np.isfinite(dataclasses.astuple(read_head(run, 4, 3, "ov"))[4]).all()
    with pytest.raises(SiteNotFoundError, match=r"has no attention heads in layer 2; it has 0, 4"):
        read_head(run, 2, 0)
    assert np.isnan(head_atlas(run, "ov")["leading_singular_value"].sel(layer=2)).all()


def test_only_heads_that_exist_have_cards(run):
    heads = read_group(run, "heads")
    shown = heads_with_cards(heads)
    assert shown == [(layer, head) for layer in (0, 4) for head in range(4)]
    cards = head_cards(run, heads, shown, words=False)
    assert all(np.isfinite(card["values"]).all() for circuit in cards.values() for card in circuit.values())


def test_effects_of_parts_that_are_no_sites_are_missing(run, family):
    effects = read_group(run, "effects")
    assert np.isnan(effects["head_effect"]).all()
    assert np.isnan(effects["sublayer_effect"].sel(sublayer="attention")).all()
    assert np.isfinite(effects["sublayer_effect"].sel(sublayer="mlp")).any() == (family != ALONE)
