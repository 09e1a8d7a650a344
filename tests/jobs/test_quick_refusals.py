"""What can be told from a spec, a configuration or an address is refused before torch, Ray or transformers load."""

import json
import os
import subprocess
import sys

import pytest
from support.gguf_files import tiny_llama, write_gguf

from theodolite.errors import ModelError
from theodolite.settings import Settings
from theodolite.spec_file import parse_spec
from theodolite_jobs.models import source
from theodolite_jobs.prepare import prepare

CONFIG = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_hidden_layers": 2}
SPEC = {"model": {"id": "model"}, "prompts": {"a": {"source": "file:prompts.csv"}}}

# One process runs the commands of all tests, until one of them loads what takes seconds.
MAIN = """
import contextlib, io, json, os, sys
from theodolite_jobs.cli import main
for line in sys.stdin:
    folder, environment, sys.argv[1:] = json.loads(line)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        try:
            main()
        except SystemExit as end:
            code = end.code
    loaded = sorted({"torch", "ray", "transformers", "dask", "datasets", "sklearn"} & set(sys.modules))
    print(json.dumps([code, out.getvalue(), err.getvalue(), loaded]), flush=True)
    if loaded:
        break
"""


def set_quantised(folder):
    settings = {**CONFIG, "quantization_config": {"quant_method": "hqq"}}
    (folder / "model/config.json").write_text(json.dumps(settings))


def set_adapter(folder):
    (folder / "adapter").mkdir()
    (folder / "adapter/adapter_config.json").write_text('{"peft_type": "IA3"}')
    (folder / "adapter/adapter_model.safetensors").write_bytes(b"")
    spec = {**SPEC, "model": {"id": "model", "adapter": "adapter"}}
    (folder / "survey.json").write_text(json.dumps(spec))


def set_conversation(folder):
    row = {"messages": [{"role": "user", "content": "hello"}]}
    (folder / "prompts.jsonl").write_text(json.dumps(row))
    prompts = {"a": {"source": "file:prompts.jsonl", "template": "none"}}
    (folder / "survey.json").write_text(json.dumps({**SPEC, "prompts": prompts}))


REFUSALS = {
    "a wrong field": (lambda folder: (folder / "survey.json").write_text('{"prompt": {}}'), "prompt: unknown field"),
    "no file of prompts": (
        lambda folder: (folder / "prompts.csv").unlink(),
        "prompts.csv cannot be read: it does not exist",
    ),
    "a wrong column": (lambda folder: (folder / "prompts.csv").write_text("x,y\n1,2\n"), "the rows have 2 columns"),
    "no config.json": (lambda folder: (folder / "model/config.json").unlink(), "has no config.json"),
    "a million layers": (
        lambda folder: (folder / "model/config.json").write_text(json.dumps({**CONFIG, "num_hidden_layers": 10**6})),
        "config.json: num_hidden_layers is 1000000; allowed: at most 4,096",
    ),
    "a broken config.json": (lambda folder: (folder / "model/config.json").write_text("{"), "config.json as JSON"),
    "a conversation without a template": (set_conversation, "conversations need template: chat"),
    "another kind of adapter": (set_adapter, 'peft_type is "IA3"; allowed: LORA'),
    "an unknown quantisation": (set_quantised, "quantised with 'hqq'"),
}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "model/model.safetensors").write_bytes(b"")
    (tmp_path / "prompts.csv").write_text("prompt\nhello\n")
    (tmp_path / "survey.json").write_text(json.dumps(SPEC))
    return tmp_path


@pytest.fixture(scope="module")
def commands():
    """The processes that run commands; the last one may still run."""
    processes = []
    yield processes
    for process in processes:
        process.communicate(timeout=300)


@pytest.fixture
def refusal(folder, commands):
    """Run a command that is refused before heavy imports, and return its message."""

    def run(*arguments, **variables):
        environment = {**os.environ, "THEODOLITE_STORE": str(folder / "store"), "HF_HUB_OFFLINE": "1", **variables}
        if not commands or commands[-1].poll() is not None:
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            commands.append(subprocess.Popen([sys.executable, "-c", MAIN], text=True, env=environment, **pipes))
        print(json.dumps([str(folder), environment, arguments]), file=commands[-1].stdin, flush=True)
        code, output, message, loaded = json.loads(commands[-1].stdout.readline())
        assert (output, loaded) == ("", []), message
        assert code in (1, 2), message
        assert "Traceback" not in message
        return message

    return run


@pytest.mark.parametrize("command", ["survey", "plan"])
@pytest.mark.parametrize("case", REFUSALS)
def test_a_wrong_file_is_refused_before_heavy_imports(folder, refusal, case, command):
    break_it, message = REFUSALS[case]
    break_it(folder)
    assert message in refusal(command, "survey.json")


@pytest.mark.parametrize("command", [("model",), ("heads",)], ids=" ".join)
def test_a_gguf_file_that_lacks_a_tensor_is_refused_before_heavy_imports(folder, refusal, command):
    write_gguf(tiny_llama(), folder / "tiny.gguf", without="blk.1.ffn_up.weight")
    assert "lacks the tensor blk.1.ffn_up.weight" in refusal(*command, "tiny.gguf")


@pytest.mark.parametrize("command", [("model",), ("heads",)], ids=" ".join)
@pytest.mark.parametrize("case", ["no config.json", "a broken config.json", "an unknown quantisation"])
def test_a_wrong_model_folder_is_refused_before_heavy_imports(folder, refusal, case, command):
    break_it, message = REFUSALS[case]
    break_it(folder)
    assert message in refusal(*command, "model")


def test_a_mistyped_alias_is_refused_before_heavy_imports(refusal):
    for command in (("model", "smollm2-135m-instrct"), ("heads", "smollm2-135m-instrct")):
        assert "did you mean smollm2-135m-instruct?" in refusal(*command)


def test_a_folder_without_weights_is_refused_before_heavy_imports(folder, refusal):
    (folder / "model/model.safetensors").unlink()
    assert "has no .safetensors weights" in refusal("survey", "survey.json")


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"THEODOLITE_RAY_ADDRESS": "127.0.0.1:1"}, "cannot reach a Ray cluster at 127.0.0.1:1"),
        ({"THEODOLITE_DASK_ADDRESS": "tcp://127.0.0.1:1"}, "cannot reach a Dask scheduler at tcp://127.0.0.1:1"),
        ({"THEODOLITE_STORE": "s3://bucket/x"}, "cannot write to the store s3://bucket/x: no server listens there"),
        ({"THEODOLITE_STORE": "prompts.csv"}, "prompts.csv"),
    ],
)
def test_a_cluster_or_store_that_cannot_be_reached_is_refused_before_heavy_imports(refusal, variables, message):
    keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_ALLOW_HTTP": "true"}
    assert message in refusal("survey", "survey.json", AWS_ENDPOINT_URL="http://127.0.0.1:1", **keys, **variables)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({**CONFIG, "model_type": "martian"}, "transformers does not know its model_type 'martian'; similar: marian"),
        ({**CONFIG, "model_type": ["llama"]}, "transformers does not know its model_type .*; "),
        ({"hidden_size": 64}, "it has no model_type; add the family's name"),
    ],
)
def test_an_unknown_family_is_refused_before_the_weights_are_read(folder, monkeypatch, config, message):
    monkeypatch.setattr(source, "_fingerprint", pytest.fail)
    (folder / "model/config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=message):
        prepare(parse_spec(SPEC), folder, Settings(store=str(folder / "store")))


@pytest.mark.parametrize("store", ["s3:/bucket", "s4://bucket/x"])
def test_a_mistyped_store_is_refused_by_the_plan(refusal, store):
    allowed = "allowed: a folder, file:///FOLDER, s3://BUCKET/PATH"
    assert f"cannot open the store {store}; {allowed}" in refusal("plan", "survey.json", "--store", store)
