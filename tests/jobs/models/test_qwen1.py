"""Qwen1 checkpoints as Qwen2: the same numbers, the same token ids, or a refusal by name."""

import base64
import json
import shutil
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import regex
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from theodolite.errors import ModelError
from theodolite.spec import ModelSpec
from theodolite_jobs.models import source as source_module
from theodolite_jobs.models.anatomy import dimensions_of
from theodolite_jobs.models.convert.qwen1 import convert_qwen1, is_qwen1, qwen2_config
from theodolite_jobs.models.load import load_config, load_model, load_tokenizer
from theodolite_jobs.models.source import ModelSource, fetch, fetch_small_files, resolve_source

Tensors = dict[str, torch.Tensor]

# Every byte is a token, not in the order of bytes. "abc" is b"a" + b"bc": b"bc" has the lower rank, so it is first.
BYTES = [bytes([(7 * index + 3) % 256]) for index in range(256)]
WORDS = """bc ab abc th he the an and a_ _a _t _the _and in ing er ther __ ____ aa aaa é 中"""
JOINED = [word.replace("_", " ").encode() for word in WORDS.split()]
RANKS = {token: rank for rank, token in enumerate([*BYTES, b"\n\n", b"\xe4\xb8", *JOINED])}
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<|extra_{number}|>" for number in range(205))]
SPECIAL_IDS = {token: len(RANKS) + index for index, token in enumerate(SPECIAL)}
PATTERN = regex.compile(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

CONFIG = {
    "architectures": ["QWenLMHeadModel"],
    "auto_map": {
        "AutoConfig": "configuration_qwen.QWenConfig",
        "AutoModelForCausalLM": "modeling_qwen.QWenLMHeadModel",
    },
    "bf16": False,
    "fp16": False,
    "fp32": True,
    "hidden_size": 32,
    "intermediate_size": 96,
    "kv_channels": 8,
    "layer_norm_epsilon": 1e-4,
    "max_position_embeddings": 128,
    "model_type": "qwen",
    "no_bias": True,
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "rotary_emb_base": 500,
    "rotary_pct": 1.0,
    "scale_attn_weights": True,
    "seq_length": 64,
    "tie_word_embeddings": False,
    "tokenizer_class": "QWenTokenizer",
    "use_cache_quantization": False,
    "use_dynamic_ntk": True,
    "use_logn_attn": True,
    "vocab_size": 512,
}


def random_weights() -> Tensors:
    """Return tensors in Qwen1's layout, large enough that every term matters."""
    generator = torch.Generator().manual_seed(0)
    shapes = {"transformer.wte.weight": (512, 32), "transformer.ln_f.weight": (32,), "lm_head.weight": (512, 32)}
    for layer in range(3):
        block = f"transformer.h.{layer}."
        shapes |= {f"{block}ln_1.weight": (32,), f"{block}ln_2.weight": (32,)}
        shapes |= {f"{block}attn.c_attn.weight": (96, 32), f"{block}attn.c_attn.bias": (96,)}
        shapes |= {f"{block}attn.c_proj.weight": (32, 32), f"{block}mlp.c_proj.weight": (32, 48)}
        shapes |= {f"{block}mlp.w1.weight": (48, 32), f"{block}mlp.w2.weight": (48, 32)}
    return {name: torch.randn(shape, generator=generator) * 0.3 for name, shape in shapes.items()}


def write_weights(folder: Path, weights: Tensors) -> None:
    """Write two shards with an index, like those on the hub; one block is in both shards."""
    names = sorted(weights)
    halves = {"model-00001-of-00002.safetensors": names[:13], "model-00002-of-00002.safetensors": names[13:]}
    for file, part in halves.items():
        save_file({name: weights[name] for name in part}, folder / file, metadata={"format": "pt"})
    weight_map = {name: file for file, part in halves.items() for name in part}
    write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": weight_map})


def write_json(file: Path, content: Any) -> None:
    file.write_text(json.dumps(content))


def write_ranks(folder: Path, ranks: dict[bytes, int]) -> None:
    lines = [f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in ranks.items()]
    (folder / "qwen.tiktoken").write_text("".join(lines))


@pytest.fixture(scope="module")
def saved_qwen1(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A chat model with the files of the hub; tests copy it before they change it."""
    folder = tmp_path_factory.mktemp("saved") / "qwen1"
    folder.mkdir()
    write_json(folder / "config.json", CONFIG)
    write_json(folder / "generation_config.json", {"chat_format": "chatml", "eos_token_id": 151643})
    remote = {
        "tokenizer_class": "QWenTokenizer",
        "auto_map": {"AutoTokenizer": ["tokenization_qwen.QWenTokenizer", None]},
    }
    write_json(folder / "tokenizer_config.json", remote)
    for name in ("configuration_qwen", "modeling_qwen", "tokenization_qwen"):
        (folder / f"{name}.py").write_text("raise SystemExit('the own code of the checkpoint was run')")
    write_ranks(folder, RANKS)
    write_weights(folder, random_weights())
    return folder


@pytest.fixture
def folder(saved_qwen1: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved_qwen1, tmp_path / "qwen1"))


@pytest.fixture(scope="module")
def converted(saved_qwen1: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return convert_qwen1(saved_qwen1, tmp_path_factory.mktemp("converted") / "qwen2")


def change_config(folder: Path, **changes: Any) -> None:
    write_json(folder / "config.json", CONFIG | changes)


def only_line(error: pytest.ExceptionInfo[Exception]) -> str:
    message = str(error.value)
    assert "\n" not in message
    assert len(message) < 400
    return message


def refusal(folder: Path) -> str:
    """Return the error of a folder that is not converted; check that no files remain."""
    with pytest.raises(ModelError) as caught:
        convert_qwen1(folder, folder.parent / "cache" / "qwen2")
    assert list((folder.parent / "cache").iterdir()) == []
    return only_line(caught)


# The numbers


def rms_norm(stream: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return stream / (stream.square().mean(-1, keepdim=True) + CONFIG["layer_norm_epsilon"]).sqrt() * scale


def rotated(heads: torch.Tensor) -> torch.Tensor:
    """Turn the pairs (i, i + d_head / 2) of each head by position * base^(-2i / d_head); heads are (token, head, d)."""
    length, _, d_head = heads.shape
    frequencies = CONFIG["rotary_emb_base"] ** (-torch.arange(0, d_head, 2, dtype=torch.float64) / d_head)
    angles = (torch.arange(length, dtype=torch.float64)[:, None] * frequencies)[:, None]
    first, second = heads[..., : d_head // 2], heads[..., d_head // 2 :]
    return torch.cat(
        [first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()], dim=-1
    )


def attention(stream: torch.Tensor, weight: Callable[[str], torch.Tensor]) -> torch.Tensor:
    length = len(stream)
    both = stream @ weight("c_attn.weight").T + weight("c_attn.bias")
    query, key, value = (part.view(length, 4, 8) for part in both.split(32, dim=-1))
    scores = torch.einsum("qhd,khd->hqk", rotated(query), rotated(key)) / 8**0.5
    scores = scores.masked_fill(torch.ones(length, length, dtype=torch.bool).triu(1), -torch.inf)
    mixed = torch.einsum("hqk,khd->qhd", scores.softmax(-1), value).reshape(length, 32)
    return mixed @ weight("c_proj.weight").T


def mlp(stream: torch.Tensor, weight: Callable[[str], torch.Tensor]) -> torch.Tensor:
    gate = stream @ weight("w2.weight").T
    return (stream @ weight("w1.weight").T * (gate * gate.sigmoid())) @ weight("c_proj.weight").T


def qwen1_hidden_states(weights: Tensors, ids: list[int]) -> list[torch.Tensor]:
    """Return the stream before each block and the normed stream after the last, in float64."""
    exact = {name: tensor.double() for name, tensor in weights.items()}
    stream = exact["transformer.wte.weight"][ids]
    states = [stream]
    for layer in range(3):
        block = f"transformer.h.{layer}."
        normed = rms_norm(stream, exact[f"{block}ln_1.weight"])
        stream = stream + attention(normed, lambda name, block=block: exact[f"{block}attn.{name}"])
        normed = rms_norm(stream, exact[f"{block}ln_2.weight"])
        stream = stream + mlp(normed, lambda name, block=block: exact[f"{block}mlp.{name}"])
        states.append(stream)
    return [*states[:-1], rms_norm(stream, exact["transformer.ln_f.weight"])]


def test_hidden_states_equal_those_of_qwen1(converted: Path) -> None:
    ids = torch.randint(0, 512, (64,), generator=torch.Generator().manual_seed(1)).tolist()
    model = load_model(converted)
    assert model.dtype == torch.float32
    with torch.inference_mode():
        got = model.module(torch.tensor([ids]), output_hidden_states=True).hidden_states
    expected = qwen1_hidden_states(random_weights(), ids)
    assert len(got) == len(expected) == 4
    for layer, (state, exact) in enumerate(zip(got, expected, strict=True)):
        error = (state[0].double() - exact).norm(dim=-1) / exact.norm(dim=-1)
        assert error.max() < 1e-5, f"layer {layer}"  # float32 rounding through three blocks


def test_the_index_lists_the_file_of_every_tensor(converted: Path) -> None:
    index = json.loads((converted / "model.safetensors.index.json").read_text())
    shards = {path.name: load_file(path) for path in sorted(converted.glob("*.safetensors"))}
    assert len(shards) == 2
    assert index["weight_map"] == {name: file for file, tensors in shards.items() for name in tensors}
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in random_weights().values())
    head = shards[index["weight_map"]["lm_head.weight"]]["lm_head.weight"]
    torch.testing.assert_close(head, random_weights()["lm_head.weight"], rtol=0, atol=0)


def test_one_file_without_an_index_and_with_derived_tensors(folder: Path, tmp_path: Path) -> None:
    for path in folder.glob("*.safetensors*"):
        path.unlink()
    derived = {"transformer.rotary_emb.inv_freq": torch.ones(4), "transformer.h.0.attn.masked_bias": torch.ones(1)}
    save_file(random_weights() | derived, folder / "model.safetensors")
    into = convert_qwen1(folder, tmp_path / "qwen2")
    assert load_model(into).dimensions.n_layers == 3


def test_weights_keep_their_dtype(folder: Path, tmp_path: Path) -> None:
    write_weights(folder, {name: tensor.bfloat16() for name, tensor in random_weights().items()})
    change_config(folder, fp32=False, bf16=True)
    assert load_model(convert_qwen1(folder, tmp_path / "qwen2")).dtype == torch.bfloat16


# The configuration


def test_sizes_equal_those_of_qwen1(converted: Path) -> None:
    config = load_config(converted)
    assert (config.model_type, config.intermediate_size, config.rms_norm_eps) == ("qwen2", 48, 1e-4)
    assert config.rope_parameters == {"rope_type": "default", "rope_theta": 500.0}
    assert config.tie_word_embeddings is False
    assert config.vocab_size == 512
    # Not max_position_embeddings: beyond seq_length Qwen1 computes different numbers.
    assert dimensions_of(config).as_dict() == {
        "n_layers": 3,
        "d_model": 32,
        "n_heads": 4,
        "n_kv_heads": 4,
        "d_head": 8,
        "context_length": 64,
    }


@pytest.mark.parametrize(
    ("declared", "dtype"),
    [
        ({"torch_dtype": "float16"}, "float16"),
        ({"torch_dtype": "torch.float32", "bf16": True}, "float32"),
        ({"bf16": True}, "bfloat16"),
        ({"fp16": True}, "float16"),
        ({"fp32": True}, "float32"),
        ({}, "bfloat16"),
    ],
)
def test_dtype_is_the_declared_one(declared: dict[str, Any], dtype: str) -> None:
    config = qwen2_config(CONFIG | {"fp32": False} | declared)
    assert str(config.dtype) == f"torch.{dtype}"


def test_missing_settings_have_the_defaults_of_qwen1() -> None:
    required = ("vocab_size", "intermediate_size", "num_hidden_layers", "seq_length")
    config = qwen2_config({name: CONFIG[name] for name in required} | {"hidden_size": 4096, "num_attention_heads": 32})
    assert config.rms_norm_eps == 1e-6
    assert config.rope_parameters["rope_theta"] == 10_000.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"no_bias": False}, "no_bias is False; only Qwen1 models with no_bias True"),
        ({"rotary_pct": 0.5}, "rotary_pct is 0.5; only Qwen1 models with rotary_pct 1.0"),
        ({"scale_attn_weights": False}, "scale_attn_weights is False"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings is True"),
        ({"use_cache_quantization": True}, "use_cache_quantization is True"),
        ({"kv_channels": 16}, "kv_channels is 16, but hidden_size 32 / num_attention_heads 4 is 8"),
        ({"quantization_config": {"bits": 4}}, "its weights are quantised; use the model without Int4 or Int8"),
        ({"visual": {"width": 1664}}, "visual cannot be read as Qwen2: it also reads images"),
    ],
)
def test_a_setting_that_qwen2_does_not_support_is_refused(folder: Path, changes: dict[str, Any], message: str) -> None:
    change_config(folder, **changes)
    assert message in refusal(folder)


@pytest.mark.parametrize("size", ["hidden_size", "seq_length", "num_hidden_layers"])
def test_a_missing_size_is_named(folder: Path, size: str) -> None:
    write_json(folder / "config.json", {name: value for name, value in CONFIG.items() if name != size})
    assert f"a Qwen1 model needs {size}" in refusal(folder)


def test_a_size_of_the_wrong_type_is_an_error_of_one_line(folder: Path) -> None:
    change_config(folder, num_hidden_layers="three")
    assert refusal(folder).startswith(f"cannot convert {folder} from Qwen1: ")


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ('{"model_type": "qwen", "architectures": ["QWenLMHeadModel"]}', True),
        ('{"architectures": ["QWenLMHeadModel"]}', True),
        ('{"auto_map": {"AutoModelForCausalLM": "modeling_qwen.QWenLMHeadModel"}}', True),
        ('{"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}', False),
        ('{"model_type": "qwen2", "architectures": ["QWenLMHeadModel"]}', False),
        ("{}", False),
        ("[]", False),
        ("not JSON", False),
        (None, False),
    ],
)
def test_qwen1_is_recognised_by_its_configuration(tmp_path: Path, config: str | None, expected: bool) -> None:
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    assert is_qwen1(tmp_path) is expected


# Weights that do not fit


def test_an_unknown_tensor_is_named(folder: Path) -> None:
    write_weights(folder, random_weights() | {"transformer.visual.proj": torch.ones(1)})
    assert refusal(folder).endswith("have 1 tensors unknown to Qwen1, such as transformer.visual.proj")


def test_a_missing_tensor_is_named(folder: Path) -> None:
    weights = random_weights()
    del weights["transformer.h.2.mlp.w1.weight"]
    write_weights(folder, weights)
    assert refusal(folder) == f"the weights in {folder} lack 1 tensors, the first is transformer.h.2.mlp.w1.weight"


def test_a_missing_shard_is_named(folder: Path) -> None:
    (folder / "model-00002-of-00002.safetensors").unlink()
    assert "model-00002-of-00002.safetensors" in refusal(folder)


@pytest.mark.parametrize("kept", [0, 100, 0.5, 0.999])
def test_a_truncated_shard_is_an_error_of_one_line(folder: Path, kept: float) -> None:
    shard = folder / "model-00002-of-00002.safetensors"
    content = shard.read_bytes()
    shard.write_bytes(content[: kept if isinstance(kept, int) else int(kept * len(content))])
    assert refusal(folder).startswith(f"cannot convert {folder} from Qwen1: ")


def test_pickled_weights_are_refused(folder: Path) -> None:
    torch.save(random_weights(), folder / "pytorch_model.bin")
    for path in folder.glob("*.safetensors*"):
        path.unlink()
    assert f"{folder} has no .safetensors weights" in refusal(folder)


def test_a_failure_after_the_first_shard_leaves_no_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = []

    def save_one(tensors: Tensors, file: Path, **_: Any) -> None:
        if written:
            raise OSError("no space left on device")
        written.append(file)
        save_file(tensors, file)

    monkeypatch.setattr("safetensors.torch.save_file", save_one)
    assert refusal(folder).endswith("OSError: no space left on device")
    assert len(written) == 1


# The tokenizer


@pytest.fixture(scope="module")
def tokenizer(converted: Path) -> Any:
    return load_tokenizer(converted)


def reference_ids(text: str) -> list[int]:
    """Tokenise as tiktoken documents it: in each word, join the two neighbours whose union has the lowest rank."""
    return [token for piece in pieces(text) for token in piece]


def pieces(text: str) -> Iterator[list[int]]:
    for word in PATTERN.findall(unicodedata.normalize("NFC", text)):
        parts = [bytes([byte]) for byte in word.encode()]
        while True:
            unions = [
                (RANKS[parts[i] + parts[i + 1]], i) for i in range(len(parts) - 1) if parts[i] + parts[i + 1] in RANKS
            ]
            if not unions:
                break
            _, at = min(unions)
            parts = [*parts[:at], parts[at] + parts[at + 1], *parts[at + 2 :]]
        yield [RANKS[part] for part in parts]


@settings(max_examples=200, deadline=None)
@given(st.text(st.sampled_from(list("abctheingr tdé中1'.\n\r\t\xa0\u0301😀")), max_size=40) | st.text(max_size=20))
def test_token_ids_equal_those_of_tiktoken(tokenizer: Any, text: str) -> None:
    ids = tokenizer(text)["input_ids"]
    assert ids == reference_ids(text)
    assert tokenizer.decode(ids) == unicodedata.normalize("NFC", text)


def test_the_merge_with_the_lowest_rank_is_applied_first(tokenizer: Any) -> None:
    abc, a, bc = RANKS[b"abc"], RANKS[b"a"], RANKS[b"bc"]
    assert tokenizer("abc")["input_ids"] == [abc]
    assert tokenizer("aabc")["input_ids"] == [a, abc]
    assert tokenizer("bbc")["input_ids"] == [RANKS[b"b"], bc]
    assert tokenizer("aaaaa")["input_ids"] == [RANKS[b"aa"], RANKS[b"aaa"]]  # with equal ranks, the leftmost first
    assert tokenizer("中e\u0301")["input_ids"] == [RANKS["中".encode()], RANKS["é".encode()]]


def test_special_tokens_follow_the_ranks(tokenizer: Any) -> None:
    assert {token: tokenizer.convert_tokens_to_ids(token) for token in SPECIAL} == SPECIAL_IDS
    assert len(tokenizer) == len(RANKS) + len(SPECIAL)
    ids = tokenizer("<|im_start|>the<|extra_204|>")["input_ids"]
    assert ids == [SPECIAL_IDS["<|im_start|>"], RANKS[b"the"], SPECIAL_IDS["<|extra_204|>"]]


def chat(tokenizer: Any, *messages: tuple[str, str], prompt: bool = True) -> str:
    conversation = [{"role": role, "content": content} for role, content in messages]
    return str(tokenizer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=prompt))


def test_a_chat_starts_with_the_default_system_message(tokenizer: Any) -> None:
    assert chat(tokenizer, ("user", "the  thing\n")) == (
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
        "<|im_start|>user\nthe  thing\n<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_system_message_replaces_the_default(tokenizer: Any) -> None:
    messages = [("system", "Be brief."), ("user", "a"), ("assistant", "b"), ("user", "c")]
    assert chat(tokenizer, *messages, prompt=False) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\na<|im_end|>\n"
        "<|im_start|>assistant\nb<|im_end|>\n<|im_start|>user\nc<|im_end|>\n"
    )


@pytest.mark.parametrize("generation", [None, {"chat_format": "raw"}])
def test_a_base_model_has_no_chat_template(folder: Path, tmp_path: Path, generation: dict[str, str] | None) -> None:
    (folder / "generation_config.json").unlink()
    if generation:
        write_json(folder / "generation_config.json", generation)
    assert load_tokenizer(convert_qwen1(folder, tmp_path / "qwen2", weights=False)).chat_template is None


@pytest.mark.parametrize("file", ["tokenizer_config.json", "chat_template.jinja"])
def test_a_template_of_the_checkpoint_is_used(folder: Path, tmp_path: Path, file: str) -> None:
    text = "{{ messages[0]['content'] }}!"
    content = json.dumps({"chat_template": text}) if file.endswith(".json") else text
    (folder / file).write_text(content)
    own = load_tokenizer(convert_qwen1(folder, tmp_path / "qwen2", weights=False))
    assert chat(own, ("user", "the")) == "the!"


def test_a_fast_tokenizer_is_used_if_the_folder_has_no_ranks(folder: Path, converted: Path, tmp_path: Path) -> None:
    (folder / "qwen.tiktoken").unlink()
    shutil.copy(converted / "tokenizer.json", folder)
    own = load_tokenizer(convert_qwen1(folder, tmp_path / "qwen2", weights=False))
    text = "the <|im_end|>thing"
    assert own(text)["input_ids"] == load_tokenizer(converted)(text)["input_ids"]
    assert chat(own, ("user", "a")).startswith("<|im_start|>system\nYou are a helpful assistant.")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda lines: [*lines, "dGhl"], "line 282 is b'dGhl'; expected a token in base64 and its rank"),
        (lambda lines: ["!!! 0", *lines[1:]], "line 1 is b'!!! 0'; expected a token in base64"),
        (lambda lines: ["dGhl x", *lines[1:]], "line 1 is b'dGhl x'; expected a token in base64"),
        (lambda lines: lines[:-2] + lines[-1:], "the ranks of 280 tokens are not 0 to 279, each once"),
        (lambda lines: ["YWJj 0", *lines[1:256]], "byte 3 is not a token"),
        (lambda lines: [*lines[:256], "dGhl 256"], "token 256 (b'the') cannot be joined from other tokens"),
    ],
)
def test_a_vocabulary_that_cannot_be_converted_is_refused(
    folder: Path, change: Callable[[list[str]], list[str]], message: str
) -> None:
    file = folder / "qwen.tiktoken"
    file.write_text("\n".join(change(file.read_text().splitlines())))
    assert message in refusal(folder)


# Finding and fetching


def resolve(folder: Path) -> ModelSource:
    return resolve_source(ModelSpec(id=str(folder)), Path())


def test_a_folder_is_converted_once_and_its_own_code_never_runs(folder: Path, tmp_path: Path) -> None:
    source, cache = resolve(folder), tmp_path / "cache"
    fetched = fetch(source, cache)
    assert fetched.parent == cache / "qwen1"
    assert fetched.name.startswith(source.revision.removeprefix("sha256:")[:16])
    assert load_model(fetched, trust_remote_code=True).dimensions.n_layers == 3
    assert len(load_tokenizer(fetched, trust_remote_code=True)) == len(RANKS) + len(SPECIAL)
    (fetched / "marker").touch()
    assert (fetch(source, cache) / "marker").exists()
    assert [path.name for path in fetched.parent.iterdir()] == [fetched.name]


def test_planning_needs_no_weights(folder: Path, tmp_path: Path) -> None:
    for path in folder.glob("*.safetensors*"):
        path.unlink()
    files = fetch_small_files(resolve(folder), tmp_path / "cache")
    assert files.name.endswith("-small")
    assert dimensions_of(load_config(files)).context_length == 64
    assert load_tokenizer(files)("the")["input_ids"] == [RANKS[b"the"]]
    assert list(files.glob("*.safetensors*")) == []


def test_planning_needs_the_configuration_only(tmp_path: Path) -> None:
    folder = tmp_path / "qwen1"
    folder.mkdir()
    write_json(folder / "config.json", CONFIG)
    files = fetch_small_files(resolve(folder), tmp_path / "cache")
    assert dimensions_of(load_config(files)).n_layers == 3
    with pytest.raises(ModelError, match="has no tokenizer"):
        load_tokenizer(files)


@pytest.mark.parametrize("read", [fetch, fetch_small_files])
def test_a_model_from_the_hub_is_converted(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Callable[[ModelSource, Path], Path]
) -> None:
    requested: list[str] = []

    def downloaded(_: ModelSource, patterns: list[str]) -> Path:
        requested.extend(patterns)
        return folder

    monkeypatch.setattr(source_module, "_hub_folder", downloaded)
    commit = "0123456789abcdef" * 2 + "01234567"
    files = read(ModelSource("Qwen-1_8B-Chat", "hub", "Qwen/Qwen-1_8B-Chat", commit), tmp_path / "cache")
    assert files.name.startswith("0123456789abcdef-")
    assert load_config(files).model_type == "qwen2"
    assert "*.tiktoken" in requested


def test_fingerprint_covers_the_vocabulary(folder: Path) -> None:
    before = resolve(folder).revision
    with (folder / "qwen.tiktoken").open("a") as file:
        file.write("\n")
    assert resolve(folder).revision != before
