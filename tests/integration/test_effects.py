"""Effects from a spec to the report: restarts and kills of replicas, of Ray or forked, change no bit."""

import shutil
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import xarray as xr
from chaos.processes import capture_without_ray
from support import tiny
from support.damages import interrupt, opened, settings
from support.each import each
from support.ray_cluster import kill_after_the_first_shard
from support.requests import analyse, assert_nothing_to_compute, survey_again
from support.sentences import assert_says
from support.stored import read_table
from support.tiny_sizes import PLAIN
from support.tiny_survey import EFFECTS, spec_of
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer, PersimmonConfig

import theodolite
from theodolite.errors import SpecError, StoreError, UnsupportedModelError
from theodolite.export import suffix
from theodolite.groups.effects.record import LEAST_EFFECTIVE, PROMPT_EFFECTS
from theodolite.metrics import REGISTRY
from theodolite.query.runs import spec_of_results
from theodolite.query.verification import verify
from theodolite.sections.catalogue import section_items
from theodolite.store.manifest import finished_groups
from theodolite.store.objects import keys, put
from theodolite.store.result_reader import read_group
from theodolite.store.tables import table_key
from theodolite_jobs import measure_effects
from theodolite_jobs.cluster import scheduling
from theodolite_jobs.effects import work as effects_work
from theodolite_jobs.progress import Console
from theodolite_jobs.prompts.next_tokens import next_token_groups
from theodolite_jobs.statistics.next_token import log_odds
from theodolite_jobs.survey import survey

pytestmark = pytest.mark.usefixtures("without_figures")

OPTIONS = {"prompts": 10, "layers": [1, 2], "controls": 19}


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(effects_work, "PART_PROMPTS", 4)


def effects_spec(tiny_folder, **changes):
    return spec_of(tiny_folder, **{"analyses": None, "effects": OPTIONS, "heads": {"vectors": 0}, **changes})


def surveyed_into(folder, tiny_folder, **changes):
    """Survey with forked replicas."""
    with capture_without_ray():
        return opened(Path(survey(effects_spec(tiny_folder, **changes), Path(), settings(folder), Console()).url))


@pytest.fixture(scope="module")
def run(tiny_folder, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(effects_work, "PART_PROMPTS", 4)
        return surveyed_into(tmp_path_factory.mktemp("effects"), tiny_folder)


def test_every_number_is_known_and_the_report_describes_it(run):
    effects = read_group(run, "effects").sel(contrast="refusal", position=-1)
    assert effects["n_used"].values.tolist() == [10, 10]
    assert effects["layer"].values.tolist() == [1, 2]
    values = effects.sel(estimate="value")
    for name in ("effect", "dose_effect", "everywhere_effect", "head_effect", "head_direct"):
        assert np.isfinite(values[name]).all(), name
    assert np.isfinite(values["sublayer_effect"].sel(sublayer=["mlp", "block"])).all()
    p = effects["effect_null"].sel(measure="kl", null="p")
    added, is_tested = p.sel(intervention="add"), effects["effective_controls"] >= LEAST_EFFECTIVE
    assert is_tested.sel(control="matched").all()
    assert ((added >= 1 / 20) & (added <= 1)).where(is_tested, np.isnan(added)).all()
    assert np.isnan(p.sel(intervention="patch")).all()
    assert (effects["effect"].sel(estimate="low") <= values["effect"]).all()
    assert float(effects["forward_error"].sel(check="route")) < 5e-5
    (section,) = section_items(run, "effects")
    assert_says(section["title"], "“refusal” … position -1 … 10 matched pairs")
    names = {figure["name"] for figure in section["figures"]}
    assert names >= {"effects.refusal", "effects.refusal.doses", "effects.refusal.parts"}
    assert "nan" not in " ".join([*section["facts"], section["finding"]])


def test_the_table_has_a_row_for_each_prompt_place_and_change(run):
    table = read_table(run.location, table_key(PROMPT_EFFECTS.name))
    assert len(table) == 20 * 2 * (2 + 6)
    assert list(table) == PROMPT_EFFECTS.names
    means = table[table["intervention"] == "remove"].groupby(["set", "layer"])["kl"].mean()
    effects = read_group(run, "effects").sel(contrast="refusal", position=-1, site="resid_pre", intervention="remove")
    for side, name in (("positive", "harmful"), ("negative", "harmless")):
        np.testing.assert_allclose(means[name], effects["effect"].sel(measure="kl", prompt_side=side, estimate="value"))
    own = table[table["dose"].isna() | (table["dose"] == table["set"].map({"harmful": -1.0, "harmless": 1.0}))]
    assert np.isfinite(own["score_change"]).all()
    assert table.drop(own.index)["score_change"].isna().all()
    assert (np.isfinite(table["pair_restored"]) == (table["intervention"] == "patch")).all()


@each("format", ["safetensors", "gguf", "vllm-lens"])
def test_an_exported_vector_in_a_hook_changes_the_log_odds_as_the_table_says(run, tiny_folder, tmp_path, format):
    reader = theodolite.open_run(run.store, run.id)
    file = tmp_path / f"vector.{suffix(format)}"
    with warnings.catch_warnings(action="ignore"):  # random weights give unreliable directions
        found = theodolite.load_vector(reader.export("refusal", layer=2, format=format, output=file))
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder)
    model = AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.float32)
    first, second = next_token_groups(tokenizer, {}).values()
    table = reader.table("prompt_effects").query("layer == 2 and intervention == 'add'")

    def add_to_the_last_token(_block, args, dose):
        state = args[0].clone()
        state[:, -1] += dose * torch.from_numpy(found.added[2])
        return (state, *args[1:])

    def odds(text, *doses):
        ids = tokenizer(text, return_tensors="pt").input_ids
        hooks = [model.model.layers[2].register_forward_pre_hook(partial(add_to_the_last_token, dose=d)) for d in doses]
        with torch.inference_mode():
            logits = model(ids).logits[0, -1].numpy()
        for hook in hooks:
            hook.remove()
        return log_odds(logits, first, second)

    assert len(table) == 20 * 6
    assert table["log_odds"].abs().max() > 0.01
    for name, rows in table.groupby("set"):
        texts = reader.prompts(name)["text"]
        for row in rows[rows["dose"].isin([-2.0, 1.0])].itertuples():
            change = odds(texts[row.sample], row.dose) - odds(texts[row.sample])
            assert change == pytest.approx(row.log_odds, abs=1e-4)


def test_nothing_is_left_of_the_parts_and_the_run_is_whole(run):
    assert keys(run.location, "pending/effects.parts") == []
    assert list(verify(run)) == []
    assert spec_of_results(run).effects.layers == [1, 2]
    assert_nothing_to_compute(Path(run.url))


@pytest.mark.nightly
def test_a_killed_replica_of_ray_restarts_and_the_bits_are_the_same(
    ray_with_pretend_gpus, run, tiny_folder, tmp_path, monkeypatch
):
    killed = kill_after_the_first_shard(monkeypatch, measure_effects)
    counted = _counted(run)
    again = survey(effects_spec(tiny_folder), Path(), settings(tmp_path), Console())
    assert killed
    assert _counted(run) - counted == 20, "each prompt counts once"
    xr.testing.assert_identical(read_group(again, "effects"), read_group(run, "effects"))


def _counted(run):
    return REGISTRY.get_sample_value("theodolite_prompts_measured_total", {"model": run.record.model.name})


def test_parts_that_a_killed_driver_left_of_a_finished_group_go(run, tmp_path):
    copy = Path(shutil.copytree(run.url, tmp_path / "runs" / run.id))
    left = f"pending/effects.parts/{finished_groups(run)['effects']}/refusal@-1/vectors.npz"
    put(opened(copy).location, left, b"x")
    analyse(copy)
    assert keys(opened(copy).location, "pending") == []


def test_a_driver_whose_effects_another_one_has_finished_ends_at_once(tiny_folder, tmp_path, monkeypatch):
    given, measure = [], measure_effects.measure_effects
    monkeypatch.setattr(measure_effects, "measure_effects", lambda *inputs: (given.extend(inputs), measure(*inputs)))
    surveyed_into(tmp_path, tiny_folder, analyses=["curves", "effects"], effects=EFFECTS)
    monkeypatch.setattr(scheduling, "PAUSE_SECONDS", 0.01)
    with capture_without_ray(), pytest.raises(StoreError, match="another driver has finished the effects"):
        measure(*given)


@pytest.mark.nightly
def test_an_analysis_that_is_killed_goes_on_after_its_last_part(run, tiny_folder, tmp_path, monkeypatch):
    counts, run_shards = [], measure_effects.run_shards

    def count(workers, tasks, watch):
        counts.append(len(tasks))

        def stop_after_two(part, numbers):
            watch.committed(part, numbers)
            if len(counts) == 1 and part.index >= 1:
                interrupt()

        run_shards(workers, tasks, replace(watch, committed=stop_after_two))

    monkeypatch.setattr(measure_effects, "run_shards", count)
    with pytest.raises(KeyboardInterrupt):
        surveyed_into(tmp_path, tiny_folder, analyses=["curves", "effects"])
    again = opened(next((tmp_path / "runs").iterdir()))
    assert "effects" not in finished_groups(again)
    with capture_without_ray():
        analyse(Path(again.url))
    assert counts[0] == 5
    assert 1 <= counts[1] <= 3
    xr.testing.assert_identical(read_group(opened(Path(again.url)), "effects"), read_group(run, "effects"))


def test_a_survey_without_the_section_keeps_the_effects_that_the_run_has(run, tiny_folder):
    survey_again(Path(run.url), effects_spec(tiny_folder, effects=None))
    assert "effects" in finished_groups(opened(Path(run.url)))
    assert_nothing_to_compute(Path(run.url))


def test_layers_that_the_model_or_the_run_lacks_are_refused(tiny_folder, tmp_path):
    with pytest.raises(Exception, match=r"effects\.layers: this model has no layer 7; it has 0 to 2"):
        surveyed_into(tmp_path, tiny_folder, effects={"layers": [7]})


def test_a_text_of_several_tokens_is_refused_before_anything_is_captured(tiny_folder, tmp_path):
    with pytest.raises(SpecError, match="is 6 tokens of this model"):
        surveyed_into(tmp_path, tiny_folder, effects={"tokens": {"refusal": ["Sorry,"], "answer": ["S"]}})
    assert not (tmp_path / "runs").exists()


def test_an_encoder_is_refused_before_anything_is_captured(tmp_path):
    spec = spec_of(Path("all-minilm-l6-v2"), analyses=["curves", "effects"])
    with pytest.raises(UnsupportedModelError, match="needs a next token, and 'bert' is an encoder; leave effects out"):
        survey(spec, Path(), settings(tmp_path), Console())
    assert not (tmp_path / "runs").exists()


def test_a_family_without_a_record_is_refused_before_anything_is_captured(tmp_path):
    tiny.random_model(PersimmonConfig(**PLAIN), AutoModel).save_pretrained(tmp_path / "model")
    with pytest.raises(UnsupportedModelError, match="tensor names of the family 'persimmon' are not known"):
        survey(effects_spec(tmp_path / "model"), Path(), settings(tmp_path), Console())
    assert not (tmp_path / "runs").exists()
