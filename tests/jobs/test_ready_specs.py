"""The ready specs of the models that others published curves of: right as they stand, and planned without a network.

"Offline" is what can be had without the hub: a folder with the model's configuration in its real sizes, AdvBench as a
file, and Alpaca as a file instead of the hub's dataset. Nothing else of a spec is changed. Without a tokenizer the
plan counts characters / 4.
"""

import csv
import json
import shutil
from importlib import resources
from pathlib import Path

import pytest
from support.each import each
from support.finished_runs import model_facts
from typer.testing import CliRunner

from theodolite.query.published import has_same_prompts, published_curves
from theodolite.settings import Settings
from theodolite.spec_file import parse_spec, read_spec
from theodolite_jobs.cli import app
from theodolite_jobs.estimate import plan_survey

FOLDER = Path(str(resources.files("theodolite_jobs"))) / "specs"
OWN = ("demo", "rehearsal")
READY = sorted(path.stem for path in FOLDER.glob("*.yaml") if path.stem not in OWN)

_QWEN2 = {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "vocab_size": 152064, "dtype": "bfloat16"}

# What each model's config.json says of its sizes.
CONFIGURATIONS = {
    "llama-3.2-3b-instruct": {
        "model_type": "llama",
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "num_hidden_layers": 28,
        "num_attention_heads": 24,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
    },
    "mistral-nemo-instruct-2407": {
        "model_type": "mistral",
        "hidden_size": 5120,
        "intermediate_size": 14336,
        "num_hidden_layers": 40,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 131072,
        "max_position_embeddings": 1024000,
        "sliding_window": None,
        "torch_dtype": "bfloat16",
    },
    "qwen-1_8b-chat": {
        "model_type": "qwen",
        "architectures": ["QWenLMHeadModel"],
        "auto_map": {"AutoConfig": "configuration_qwen.QWenConfig"},
        "hidden_size": 2048,
        "intermediate_size": 11008,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "kv_channels": 128,
        "vocab_size": 151936,
        "seq_length": 8192,
        "bf16": True,
    },
    "qwen2.5-32b-instruct": {
        **_QWEN2,
        "hidden_size": 5120,
        "intermediate_size": 27648,
        "num_hidden_layers": 64,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
        "max_position_embeddings": 32768,
    },
    "qwen2.5-7b-instruct": {
        **_QWEN2,
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "max_position_embeddings": 32768,
    },
}

# Published numbers of weights, without the heads that are not tied to the embedding.
PARAMETERS = {
    "llama-3.2-3b-instruct": 3_212_749_824,
    "mistral-nemo-instruct-2407": 12_247_782_400 - 131_072 * 5120,
    "qwen-1_8b-chat": 1_836_828_672 - 151_936 * 2048,
    "qwen2.5-32b-instruct": 32_763_876_352 - 152_064 * 5120,
    "qwen2.5-7b-instruct": 7_615_616_512 - 152_064 * 3584,
}


@pytest.fixture(scope="module")
def prompts(tmp_path_factory) -> Path:
    """AdvBench and Alpaca in small: their columns, and instructions with an input, which the specs leave out."""
    folder = tmp_path_factory.mktemp("prompts")
    with (folder / "harmful_behaviors.csv").open("w", newline="") as file:
        rows = [{"goal": f"goal number {number}", "target": "Sure"} for number in range(100)]
        writer = csv.DictWriter(file, ["goal", "target"])
        writer.writeheader()
        writer.writerows(rows)
    rows = [
        {"instruction": f"instruction {number}", "input": "more" * (number % 2), "output": ""} for number in range(200)
    ]
    (folder / "alpaca.json").write_text(json.dumps(rows))
    return folder


def test_every_model_of_the_published_figures_has_a_spec():
    assert sorted(CONFIGURATIONS) == READY


@each("name", [*OWN, *READY])
def test_a_ready_spec_is_right_beside_its_prompts(name, prompts):
    spec = shutil.copy(FOLDER / f"{name}.yaml", prompts)
    result = CliRunner().invoke(app, ["spec", "check", str(spec)])
    assert result.exit_code == 0, result.exception
    assert "is a valid survey" in result.stdout


@each("name", READY)
def test_a_ready_spec_asks_for_what_was_published(name):
    """Its model, position and contrast are those of a published curve, and its prompts are drawn as the source does."""
    spec = read_spec(FOLDER / f"{name}.yaml")
    model = model_facts(spec.model.id.split("/")[-1], CONFIGURATIONS[name]["num_hidden_layers"], "hub", spec.model.id)
    (position,) = spec.capture.positions
    for name_of_contrast, skip, limit in (("refusal", 0, 64), ("refusal-16", 48, 16)):
        contrast = spec.contrasts[name_of_contrast]
        assert contrast.paired is False
        published = published_curves(model, contrast.positive, contrast.negative, position)
        assert {curve.statistic for curve in published} >= {"cosine_of_means", "variance_mean", "variance_max"}
        harmful, harmless = (spec.prompts[side] for side in contrast.sides)
        for prompt_set in (harmful, harmless):
            assert prompt_set.draw is not None
            assert (prompt_set.draw.test_size, prompt_set.draw.random_state) == (0.2, 42)
            assert (prompt_set.skip, prompt_set.limit) == (skip, limit)
        assert harmful.column == "goal"
        assert harmless.where == {"input": ""}
        # Both sets are said in the same words, so that the template's tokens are shared.
        assert harmful.template == harmless.template
        assert harmful.system == harmless.system
        curves = [curve for curve in published if curve.statistic != "difference_norm"]
        assert {has_same_prompts(curve, harmful, harmless) for curve in curves} == {skip == 48}


@pytest.mark.parametrize("name", READY)
def test_a_ready_spec_is_planned_from_a_configuration_alone(name, prompts, tmp_path):
    ready = read_spec(FOLDER / f"{name}.yaml")
    folder = tmp_path / ready.model.id.split("/")[-1]
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIGURATIONS[name]))
    asked = ready.model_dump(mode="json")
    asked["model"]["id"] = str(folder)
    for name_of_set in ("harmless", "harmless-16"):
        asked["prompts"][name_of_set]["source"] = "file:alpaca.json"
    costs = plan_survey(parse_spec(asked), prompts, Settings(cache=tmp_path / "cache"))
    assert costs["model"]["parameters"] == PARAMETERS[name]
    assert costs["model"]["dtype"] == "bfloat16"
    assert costs["model"]["n_layers"] == CONFIGURATIONS[name]["num_hidden_layers"]
    assert {name: planned["prompts"] for name, planned in costs["sets"].items() if name != "sentences"} == {
        "harmful": 64,
        "harmless": 64,
        "harmful-16": 16,
        "harmless-16": 16,
    }
    assert costs["tokens_counted_by"].startswith("characters / 4")
    assert costs["replica_memory_bytes"] > 2 * PARAMETERS[name]
    assert "warnings" not in costs


def test_a_plan_has_the_sizes_of_batches_for_each_kind_of_device(tmp_path):
    name = "qwen2.5-7b-instruct"
    (tmp_path / "config.json").write_text(json.dumps(CONFIGURATIONS[name]))
    (tmp_path / "many.txt").write_text("\n".join(f"{'word ' * (index % 60)}{index}" for index in range(8_000)))
    spec = {"model": {"id": str(tmp_path)}, "prompts": {"many": {"source": "file:many.txt"}}}
    settings = Settings(cache=tmp_path / "cache")
    here, on_gpu = (
        plan_survey(parse_spec(spec), tmp_path, settings.model_copy(update={"gpus_per_replica": gpus}))
        for gpus in (0, 1)
    )
    assert (here["batch_tokens"], here["shard_prompts"]) == (2048, 64)
    assert (on_gpu["batch_tokens"], on_gpu["shard_prompts"]) == (16_384, 1024)
    assert here["run_id"] != on_gpu["run_id"]
    assert here["sets"]["many"]["batches"] > 4 * on_gpu["sets"]["many"]["batches"]
    assert "warnings" not in here
    for plan in (here, on_gpu):
        about = plan["on_gpus_about"]["H100-80GB"]
        assert (about["batch_tokens"], about["shard_prompts"]) == (16_384, 1024)
        assert about["gpu_hours_per_million_prompts"] < 1
        activations = 16384 * (3 * 18944 + 8 * 3584) * 2
        blocks = about["memory_per_gpu_bytes"] - activations
        assert blocks == pytest.approx(2 * PARAMETERS[name] + 4 * 152064 * 3584 + 16 * 233e6, rel=0.01)


def test_without_advbench_the_missing_file_is_named(tmp_path):
    """The first thing that a user meets: the file that the spec's own comment says how to get."""
    spec = FOLDER / "qwen2.5-7b-instruct.yaml"
    (tmp_path / spec.name).write_text(spec.read_text())
    result = CliRunner().invoke(app, ["plan", str(tmp_path / spec.name)])
    assert "prompts.harmful.source: " in str(result.exception)
    assert "harmful_behaviors.csv cannot be read: it does not exist" in str(result.exception)
    assert "advbench/harmful_behaviors.csv" in spec.read_text()
