"""The command line as a person meets it: what it prints, how it fails, and that nothing half-made is left."""

import json
import signal
import subprocess
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import typer
import yaml
from support.commands import THEODOLITE, theodolite
from support.each import each
from support.stored import store_run
from transformers import Qwen2Config

from theodolite.query.runs import summaries
from theodolite.version import __version__
from theodolite_jobs.cli import app

SPEC = {
    "model": {"id": "smollm2-135m-instruct"},
    "prompts": {"nouns": {"source": "builtin:nouns", "limit": 3}},
    "words": {"sentences": ["To kill two birds"]},
}


def theodolite_alone(*words):
    """Run a command in a process of its own, for one that connects to a cluster."""
    return subprocess.run([THEODOLITE, *map(str, words)], capture_output=True, text=True, check=False)


def written(folder, changes=None, **top):
    """Write a spec with one set changed, or with top-level fields changed."""
    spec = {**SPEC, **top}
    if changes:
        spec = {**spec, "prompts": {"nouns": {**SPEC["prompts"]["nouns"], **changes}}}
    path = folder / "spec.yaml"
    path.write_text(yaml.safe_dump(spec))
    return path


BAD_SPECS = {
    "unknown field": ({"colour": "red"}, None, 2, ["colour", "unknown field"]),
    "unknown builtin": ({}, {"source": "builtin:verbs"}, 2, ["prompts.nouns.source", "verbs", "harmful"]),
    "missing file": ({}, {"source": "file:absent.csv"}, 2, ["prompts.nouns", "absent.csv"]),
    "missing column": ({}, {"column": "goal"}, 2, ["prompts.nouns.column", "'goal'", "prompt"]),
    "empty set": ({}, {"where": {"prompt": "zzz"}}, 2, ["prompts.nouns.where", "none of the 100 rows", "prompt"]),
    "empty prompt": ({}, {"source": "file:empty.json"}, 2, ["prompts.nouns", "prompt 1", "empty"]),
    "too long a prompt": ({}, {"source": "file:long.json"}, 2, ["prompts.nouns", "8192", "context"]),
    "a site the model lacks": (
        {"capture": {"sites": ["resid_mid_sum"]}},
        None,
        2,
        ["no resid_mid_sum", "resid_mid is the sum"],
    ),
    "a layer out of range": ({"capture": {"layers": [0, 30]}}, None, 2, ["capture.layers", "30", "0 to 29"]),
    "an analysis that does not exist": ({"analyses": ["astrology"]}, None, 2, ["analyses", "'astrology'", "curves"]),
    "a position no prompt has": ({}, {"positions": [-9], "template": "none"}, 2, ["prompt 0", "position -9"]),
    "no such model": ({"model": {"id": "no/such/model"}}, None, 1, ["model.id", "no/such/model"]),
    "a broken weight file": ({"model": {"id": "broken.gguf"}}, None, 1, ["broken.gguf", "GGUF"]),
    "remote code": ({"model": {**SPEC["model"], "trust_remote_code": True}}, None, 2, ["trust_remote_code"]),
}


@each("case", BAD_SPECS)
def test_a_bad_spec_is_one_clear_message_and_leaves_no_run(tmp_path, chat_model_folder, case):
    top, changes, code, words = BAD_SPECS[case]
    (tmp_path / "empty.json").write_text('["a", " "]')
    (tmp_path / "long.json").write_text(json.dumps(["word " * 9000]))
    (tmp_path / "broken.gguf").write_bytes(b"GGUF nonsense")
    result = theodolite("survey", written(tmp_path, changes, **top), "--store", tmp_path / "store")
    assert result.returncode == code, result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""
    for word in words:
        assert word in result.stderr
    assert summaries(str(tmp_path / "store")) == []


def test_pairs_of_unequal_length_are_refused(tmp_path, chat_model_folder):
    prompts = {
        "a": {"source": "builtin:harmful", "limit": 3},
        "b": {"source": "builtin:harmless", "limit": 4},
    }
    contrasts = {"refusal": {"positive": "a", "negative": "b", "paired": True}}
    result = theodolite("plan", written(tmp_path, prompts=prompts, contrasts=contrasts))
    assert result.returncode == 2
    assert "a has 3 prompts and b 4" in result.stderr


def test_a_store_that_cannot_be_written_is_said_first(tmp_path):
    (tmp_path / "file").write_text("")
    result = theodolite("survey", written(tmp_path), "--store", tmp_path / "file")
    assert result.returncode == 1
    assert "store" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("store", ["", "/"])
def test_a_store_that_is_no_place_of_its_own_is_refused(tmp_path, store):
    result = theodolite("run", "list", "--store", store)
    assert (result.returncode, result.stdout) == (2, "")
    assert "store" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_wrong_setting_in_the_environment_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("THEODOLITE_REPLICAS", "zero")
    result = theodolite("run", "list", "--store", tmp_path)
    assert result.returncode == 2
    assert "THEODOLITE_REPLICAS: Input should be a valid integer" in result.stderr
    assert "Traceback" not in result.stderr


def test_an_empty_variable_is_as_one_that_is_not_set(tmp_path, monkeypatch):
    monkeypatch.setenv("THEODOLITE_JOBS_URL", "")
    assert theodolite("run", "list", "--store", tmp_path).returncode == 0


def test_a_list_in_the_environment_is_asked_for_as_json(tmp_path, monkeypatch):
    monkeypatch.setenv("THEODOLITE_HOSTS", "survey.example.org")
    result = theodolite("run", "list", "--store", tmp_path)
    assert result.returncode == 2
    assert "THEODOLITE_HOSTS: must be a JSON list" in result.stderr


def test_a_ray_cluster_that_is_not_there_is_said_at_once(tmp_path, chat_model_folder):
    result = theodolite_alone("survey", written(tmp_path), "--store", tmp_path, "--ray", "127.0.0.1:9")
    assert result.returncode == 1
    assert "cannot reach a Ray cluster at 127.0.0.1:9" in result.stderr


@pytest.mark.nightly
def test_a_dask_cluster_that_is_not_there_is_said(tmp_path):
    values = np.ones((6, 1, 3, 8), np.float32)
    run = store_run(tmp_path, {"bad": {"resid_pre": values}})
    result = theodolite_alone("run", "analyse", run.id, "--store", tmp_path, "--dask", "tcp://127.0.0.1:9")
    assert result.returncode == 1
    assert "cannot reach a Dask scheduler at tcp://127.0.0.1:9" in result.stderr
    assert "Traceback" not in result.stderr


def test_ctrl_c_says_that_nothing_is_lost(tmp_path, chat_model_folder):
    command = [THEODOLITE, "survey", str(written(tmp_path)), "--store", str(tmp_path)]
    # Tests that were started in the background ignore Ctrl-C, and what they start does too.
    as_on_a_terminal = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=as_on_a_terminal)
    assert "reading prompts" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 130
    assert "run the same command to resume" in errors


def test_wrong_usage_exits_with_2():
    assert theodolite_alone("survey").returncode == 2
    assert theodolite("fly").returncode == 2
    assert theodolite("survey", "x.yaml", "--replicas", "0").returncode == 2


@each("command", ["show", "verify", "remove", "label", "report", "analyse"])
def test_a_run_that_is_not_there_is_named(tmp_path, command):
    result = theodolite("run", command, "nobody", "--store", tmp_path)
    assert (result.returncode, result.stdout) == (1, "")
    assert "no run 'nobody'" in result.stderr


def test_the_version_is_printed():
    done = theodolite("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{__version__}\n", "")


def test_every_command_explains_itself():
    command, nouns, overview = typer.main.get_command(app), [], theodolite("--help").stdout
    for name, one in command.commands.items():
        nouns += [(name, verb) for verb in getattr(one, "commands", ())]
        assert name in overview
        assert "--help" in theodolite(name, "--help").stdout
    assert {noun for noun, _ in nouns} == {"run", "job", "spec", "token"}
    assert all("For example: theodolite" in theodolite(*words, "--help").stdout for words in nouns)


def test_plan_says_what_it_would_cost_and_loads_no_weights(tmp_path, chat_model_folder):
    costs = json.loads(theodolite("plan", written(tmp_path), "--json").stdout.splitlines()[-1])
    assert costs["sets"]["nouns"]["prompts"] == 3
    assert costs["model"]["parameters"] == 134_515_008
    assert costs["sets"]["sentences"]["tokens"] == 4
    assert costs["stored_bytes_at_most"] == ((3 + 4) * (30 * 2 + 1) * 576 + 30 * 1536) * 4
    assert theodolite("plan", written(tmp_path)).stdout.startswith("run      smollm2-135m-instruct-")


def test_plan_guesses_tokens_where_only_a_configuration_is_there_and_says_so(tmp_path):
    Qwen2Config(num_hidden_layers=3, hidden_size=32, intermediate_size=64, vocab_size=100).save_pretrained(
        tmp_path / "m"
    )
    prompts = {"nouns": {"source": "builtin:nouns", "limit": 2, "template": "none"}}
    result = theodolite("plan", written(tmp_path, model={"id": "m"}, prompts=prompts), "--json")
    costs = json.loads(result.stdout.splitlines()[-1])
    assert costs["sets"]["nouns"]["tokens"] == 2  # "time" and "year"
    assert costs["tokens_counted_by"].startswith("characters / 4")


def test_schema_and_check_speak_json(tmp_path):
    schema = json.loads(theodolite("spec", "schema").stdout)
    assert "capture" in schema["properties"]
    assert json.loads(theodolite("spec", "check", written(tmp_path), "--json").stdout)["valid"]


def test_runs_show_and_analyse_over_a_captured_run(tmp_path):
    values = np.random.default_rng(0).normal(size=(6, 1, 3, 8)).astype(np.float32) + 1
    arrays = {"bad": {"resid_pre": values}, "good": {"resid_pre": values + 0.1}}
    contrasts = {"refusal": {"positive": "bad", "negative": "good", "paired": True}}
    run = store_run(tmp_path, arrays, contrasts=contrasts)
    listed = json.loads(theodolite("run", "list", "--json", "--store", tmp_path).stdout)
    assert [(item["run_id"], item["state"]) for item in listed["items"]] == [("tiny-0", "captured")]
    assert theodolite("run", "verify", run.id, "--store", tmp_path).returncode == 1
    outcome = json.loads(theodolite("run", "analyse", run.id, "--json", "--store", tmp_path).stdout.splitlines()[-1])
    assert outcome == {"run_id": "tiny-0", "store": str(tmp_path), "report": run.report, "state": "complete"}
    assert Path(run.report).read_text().startswith("<!doctype html>")
    shown = json.loads(theodolite("run", "show", run.id, "--json", "--store", tmp_path).stdout)
    assert shown["results"]["curves"]["cosine_of_means"] == ["contrast", "site", "position", "layer", "space"]
    assert "tiny-0  complete  bad 6, good 6" in theodolite("run", "list", "--store", tmp_path).stdout
    Path(run.report).unlink()
    assert theodolite("run", "report", run.id, "--store", tmp_path).returncode == 0
    assert Path(run.report).is_file()
    assert (
        theodolite("run", "verify", run.id, "--store", tmp_path).stdout == "tiny-0: no object is missing or damaged\n"
    )
    Path(run.report).unlink()
    theodolite("run", "label", run.id, "--name", "mine", "--store", tmp_path)
    for options in ([], ["--repair"]):
        verified = theodolite("run", "verify", "mine", *options, "--store", tmp_path)
        assert verified.stdout.splitlines()[-1] == "tiny-0: no object is missing or damaged"
