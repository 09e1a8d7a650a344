"""What a spec becomes before a model is loaded: here, which sites it captures."""

import json
from importlib.metadata import version

import pytest
from safetensors.torch import load_file, save_file
from support.adapters import change_settings, save_adapter, save_base
from support.each import each
from support.tiny_configs import CONFIGS

from theodolite.errors import ModelError, PromptError, SiteNotFoundError
from theodolite.settings import Settings
from theodolite.sites import Site
from theodolite.spec import SurveySpec
from theodolite.spec_file import parse_spec
from theodolite.spec_parts import ModelSpec
from theodolite_jobs.models.convert.adapter_config import RULE as MERGE_RULE
from theodolite_jobs.models.source import adapter_facts, on_every_node
from theodolite_jobs.prepare import prepare

PARALLEL = ["gptj", "gpt_neox", "falcon-multi-query", "cohere", "stablelm-parallel", "phi"]

DEFAULT = [Site.RESID_PRE, Site.RESID_MID]


class OneTokenALetter:
    """Stands in for a tokenizer; these models have none."""

    chat_template = None

    def __call__(self, texts, **_):
        return {
            "input_ids": [[ord(letter) % 60 + 3 for letter in text] for text in texts],
            "offset_mapping": [[(index, index + 1) for index in range(len(text))] for text in texts],
        }


def prepared(folder, family, prompts=None, weights=None, more=None, **capture):
    model = folder / family
    model.mkdir(exist_ok=True)
    CONFIGS[family].save_pretrained(model)
    spec = {"model": {"id": str(model)}, "prompts": prompts or {}, "words": {"sentences": []}}
    if weights:
        spec["model"]["weights"] = weights
    if not prompts:
        spec["analyses"] = ["heads"]
    spec |= more or {}
    if capture:
        spec["capture"] = capture
    return prepare(
        parse_spec(spec), folder, Settings(cache=folder / "cache"), lambda _folder, _trusted: OneTokenALetter()
    )


@pytest.fixture
def prompts(tmp_path):
    (tmp_path / "some.txt").write_text("one\nanother\n")
    return {"some": {"source": f"file:{tmp_path / 'some.txt'}", "template": "none"}}


def test_repeated_prompts_are_a_warning_of_the_survey(tmp_path, prompts):
    assert list(prepared(tmp_path, "llama", prompts).warnings) == []
    (tmp_path / "some.txt").write_text("one\nanother\none\n")
    (warning,) = prepared(tmp_path, "llama", prompts).warnings
    assert warning.startswith("prompts.some: 1 of 3 prompts repeat")


CONTEXT = CONFIGS["llama"].max_position_embeddings
LONG = f"b{'a' * CONTEXT}c"


def inline(texts, **settings):
    return {"some": {"source": "inline", "texts": texts, "template": "none", **settings}}


def test_a_long_prompt_is_refused_by_default(tmp_path):
    with pytest.raises(PromptError, match=rf"prompt 1 has {CONTEXT + 2} tokens, more than the model's context"):
        prepared(tmp_path, "llama", inline(["one", LONG]))


@each(
    "rule, texts, counts",
    [
        ("skip", ["one", "two"], {"n_skipped": 1}),
        ("truncate_left", ["one", LONG[2:], "two"], {"n_truncated": 1}),
        ("truncate_right", ["one", LONG[:-2], "two"], {"n_truncated": 1}),
    ],
)
def test_a_run_has_the_prompts_that_fit_and_the_id_of_a_run_of_these(tmp_path, rule, texts, counts):
    found = prepared(tmp_path, "llama", inline(["one", LONG, "two"], too_long=rule))
    same = prepared(tmp_path, "llama", inline(texts))
    assert found.prompts == same.prompts == {"some": texts}
    assert found.tokens == same.tokens
    assert found.run_id == same.run_id
    facts = found.record("eager", {}).sets["some"]
    assert json.loads(facts.model_dump_json()) == {**same.record("eager", {}).sets["some"].model_dump(), **counts}
    assert (facts.n_samples, facts.n_skipped + facts.n_truncated) == (len(texts), 1)
    assert len(found.warnings) == 1
    assert same.warnings == []


def test_messages_count_the_prompts_that_are_left_out(tmp_path):
    texts = [LONG, "one", "two", "one"]
    repeat, _left_out = prepared(tmp_path, "llama", inline(texts, too_long="skip")).warnings
    assert "the first are prompt 1 and prompt 3;" in repeat
    with pytest.raises(PromptError, match="prompt 2 has 2 tokens, so it has no position -3"):
        prepared(tmp_path, "llama", inline([LONG, "one", "no"], too_long="skip"), positions=[-3])
    pair = {"contrasts": {"any": {"positive": "some", "negative": "other", "paired": True}}}
    sets = {**inline([LONG, "b", "c"], too_long="skip"), "other": inline(["a", "b", LONG])["some"]}
    with pytest.raises(PromptError, match=r"prompts\.other: prompt 2 has"):
        prepared(tmp_path, "llama", sets, more=pair)


def test_limit_keep_and_positions_are_of_the_prompts_that_fit(tmp_path):
    texts = ["three", LONG, "two", "o", "four"]
    found = prepared(tmp_path, "llama", inline(texts, too_long="skip", limit=4), keep=2)
    assert found.prompts["some"] == ["three", "two", "o"]
    assert [(shard.start, shard.stop, shard.is_reduced) for shard in found.plans["some"].shards] == [
        (0, 2, False),
        (2, 3, True),
    ]
    prompts = {**inline(texts, too_long="skip"), "path": {**inline(texts, too_long="skip", positions="all")["some"]}}
    assert prepared(tmp_path, "llama", prompts).plans["path"].layout.positions == tuple(range(-5, 0))
    prompts["path"]["too_long"] = "truncate_left"
    assert prepared(tmp_path, "llama", prompts).plans["path"].layout.positions == tuple(range(-CONTEXT, 0))


def test_the_commit_of_a_dataset_is_in_the_record_and_not_in_the_run_id(tmp_path, monkeypatch):
    read = []

    def read_dataset(_name, _dataset, prompt_set):
        read.append(prompt_set.revision)
        return {"row 0": {"text": "one"}, "row 1": {"text": "another"}}

    monkeypatch.setattr("theodolite_jobs.prompts.sources.read_dataset", read_dataset)
    prompts = {"some": {"source": "hub:org/goals", "revision": "a" * 40, "template": "none"}}
    first = prepared(tmp_path, "llama", prompts)
    prompts["some"]["revision"] = "b" * 40
    moved = prepared(tmp_path, "llama", prompts)
    assert read == ["a" * 40, "b" * 40]
    assert first.run_id == moved.run_id == prepared(tmp_path, "llama", inline(["one", "another"])).run_id
    assert first.record("eager", {}).sets["some"].dataset_commit == "a" * 40
    assert moved.record("eager", {}).sets["some"].dataset_commit == "b" * 40


@each("family", PARALLEL)
def test_the_weights_of_parallel_blocks_are_surveyed_without_naming_sites(tmp_path, family):
    assert prepared(tmp_path, family).spec.capture.sites == [Site.RESID_PRE]


@pytest.mark.parametrize("family", PARALLEL)
def test_sites_that_nobody_named_are_those_of_the_default_that_the_model_has(tmp_path, family, prompts):
    found = prepared(tmp_path, family, prompts, positions=[-1])
    assert found.spec.capture.sites == [Site.RESID_PRE]
    record = found.record("eager", {})
    assert json.loads(record.model_dump_json())["spec"]["capture"]["sites"] == ["resid_pre"]


@each("family, text_model", [("qwen2_5_vl", "qwen2_5_vl_text"), ("llava", "llama"), ("llama", None)])
def test_the_record_names_the_text_model_of_a_multimodal_checkpoint(tmp_path, family, text_model):
    facts = prepared(tmp_path, family).record("eager", {}).model
    assert (facts.family, facts.text_model, facts.n_heads) == (family, text_model, 4)


def test_resolved_and_named_sites_give_the_same_run(tmp_path, prompts):
    named = prepared(tmp_path, "gptj", prompts, sites=["resid_pre"])
    assert named.run_id == prepared(tmp_path, "gptj", prompts).run_id


def test_only_a_run_without_resid_final_has_another_run_id(tmp_path, prompts):
    default, named, declined = (
        prepared(tmp_path, "llama", prompts, **capture).run_id for capture in ({}, {"final": True}, {"final": False})
    )
    assert default == named != declined


@pytest.mark.parametrize("sites", [["resid_mid"], ["resid_pre", "resid_mid"]])
def test_a_named_site_that_the_model_lacks_is_refused(tmp_path, prompts, sites):
    with pytest.raises(SiteNotFoundError, match=r"no resid_mid: attention and MLP.*; it has resid_pre, resid_post"):
        prepared(tmp_path, "gptj", prompts, sites=sites)


def test_named_sites_are_not_checked_where_no_prompt_is_captured(tmp_path):
    assert prepared(tmp_path, "gptj", sites=["resid_mid"]).spec.capture.sites == [Site.RESID_MID]


def test_a_model_with_both_default_sites_keeps_its_spec_and_its_run(tmp_path, prompts):
    unnamed = prepared(tmp_path, "llama", prompts)
    assert unnamed.spec.capture.sites == DEFAULT
    assert "sites" not in unnamed.spec.capture.model_fields_set
    assert unnamed.run_id == prepared(tmp_path, "llama", prompts, sites=["resid_mid", "resid_pre"]).run_id


def test_a_spec_that_travels_as_json_still_does_not_name_sites():
    spec = parse_spec({"model": {"id": "x"}, "prompts": {}, "capture": {"layers": [1]}})
    travelled = SurveySpec.model_validate_json(spec.model_dump_json(exclude_unset=True))
    assert travelled.capture.model_fields_set == {"layers"}
    assert travelled.digest() == spec.digest()


def adapted(folder, prompts, **model):
    base = save_base("llama", folder / "base", tie_word_embeddings=False) if not (folder / "base").exists() else None
    adapter = folder / "lora"
    if base is not None:
        save_adapter(base, adapter, target_modules=["q_proj"])
    spec = {"model": {"id": "lora", **model}, "prompts": prompts, "words": {"sentences": []}}
    settings = Settings(cache=folder / "cache")
    return prepare(parse_spec(spec), folder, settings, lambda _folder, _trusted: OneTokenALetter())


def test_base_and_adapter_are_in_the_digest_and_in_run_json(tmp_path, prompts):
    found = adapted(tmp_path, prompts)
    both = adapted(tmp_path, prompts, id="base", adapter="lora")
    plain = adapted(tmp_path, prompts, id="base")
    assert found.run_id.startswith("base-lora-")
    assert found.digest == both.digest != plain.digest
    facts = found.record("sdpa", {}).model
    assert facts.adapter == adapter_facts(found.source, found.config)
    assert (facts.adapter.name, facts.adapter.ranks, facts.adapter.matrices) == (
        "lora",
        (4, 4),
        found.dimensions.n_layers,
    )
    assert found.record("sdpa", {}).versions["adapter_merge"] == f"rule{MERGE_RULE}"
    assert found.record("sdpa", {}).versions["peft"] == version("peft")
    assert plain.record("sdpa", {}).model.adapter is None
    assert on_every_node(found.spec.model, found.source, found.folder) == ModelSpec(
        id=str(tmp_path / "base"), adapter=str(tmp_path / "lora")
    )
    (note,) = found.notes
    assert note.startswith(
        f"the adapter lora (LoRA of rank 4, {facts.adapter.matrices} matrices changed) is merged into"
    )


def test_another_adapter_is_another_run(tmp_path, prompts):
    before = adapted(tmp_path, prompts).run_id
    change_settings(tmp_path / "lora", lora_alpha=7)
    assert adapted(tmp_path, prompts).run_id != before


def test_the_base_of_an_adapter_that_has_another_name_is_a_warning(tmp_path, prompts):
    adapted(tmp_path, prompts)
    change_settings(tmp_path / "lora", base_model_name_or_path="org/other")
    _, warning = adapted(tmp_path, prompts, id="base", adapter="lora").notes
    assert "names 'org/other' as its base" in warning


def test_an_adapter_that_does_not_fit_is_refused_before_weights_are_read(tmp_path, prompts):
    adapted(tmp_path, prompts)
    (tmp_path / "base" / "model.safetensors").write_bytes(b"")
    change_settings(tmp_path / "lora", r=5)
    with pytest.raises(ModelError, match=r"lora_A\.weight has the shape \(4, 48\), and its rank and this base require"):
        adapted(tmp_path, prompts)


def test_a_tensor_that_the_files_lack_is_named_before_weights_are_read(tmp_path, prompts):
    tensors = load_file(save_base("llama", tmp_path / "llama") / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, tmp_path / "llama" / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=r"lack the tensor layers\.1\.mlp\.up_proj\.weight"):
        prepared(tmp_path, "llama", prompts)
