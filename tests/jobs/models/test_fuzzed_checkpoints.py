"""Seeded mutations of config.json, the index and the headers: one line that names the mistake, or the same numbers."""

import json
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.each import each
from support.errors import only_line
from transformers import LlamaForCausalLM

from theodolite.errors import TheodoliteError
from theodolite_jobs.models.load import load_config, load_model
from theodolite_jobs.models.weights import Weights

INDEX = "model.safetensors.index.json"
IDS = torch.tensor([[5, 6, 7, 9, 3]])
# Settings that no file contradicts, such as the epsilon of norms, change numbers, and are not here.
STRUCTURE = [
    *("architectures", "model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "head_dim", "vocab_size", "attention_bias", "mlp_bias", "tie_word_embeddings", "dtype"),
]
VALUES = (None, "", "zork", -1, 0, 1, 2, 3, 7, 10**6, 1.5, True, False, [], ["Zork"], {}, {"a": 1}, float("nan"))


@pytest.fixture(scope="module")
def original(saved_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, torch.Tensor, torch.Tensor]:
    """Return a sharded checkpoint, its last stream, and the queries of a layer."""
    folder = tmp_path_factory.mktemp("sharded")
    LlamaForCausalLM.from_pretrained(saved_llama).save_pretrained(folder, max_shard_size="6KB")
    return folder, *numbers(folder)


@torch.inference_mode()
def numbers(folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    stream = load_model(folder, dtype="float32").run(input_ids=IDS).last_hidden_state
    return stream, Weights(folder, load_config(folder)).attention(1).q


def change_config(folder: Path, draw: random.Random) -> str:
    raw = json.loads((folder / "config.json").read_text())
    key = draw.choice(STRUCTURE)
    if draw.random() < 0.2:
        raw.pop(key, None)
    else:
        raw[key] = draw.choice(VALUES)
    (folder / "config.json").write_text(json.dumps(raw))
    return f"{key}: {raw.get(key, 'gone')!r}"


def change_index(folder: Path, draw: random.Random) -> str:
    content = json.loads((folder / INDEX).read_text())
    listed = content["weight_map"]
    name, files = draw.choice(sorted(listed)), sorted(set(listed.values()))
    action = draw.randrange(6)
    if action == 0:
        listed[name] = draw.choice(files)
    elif action == 1:
        del listed[name]
    elif action == 2:
        listed[f"{name}.more"] = draw.choice(files)
    elif action == 3:
        listed[name] = draw.choice(["gone.safetensors", "", "../x.safetensors", None, 3])
    elif action == 4:
        content = draw.choice([[], {}, {"weight_map": []}, {"weight_map": {}}, {"weight_map": None}, None])
    else:
        text = (folder / INDEX).read_text()
        (folder / INDEX).write_text(text[: draw.randrange(len(text))])
        return "cut"
    (folder / INDEX).write_text(json.dumps(content))
    return f"{action} {name}"


def change_header(folder: Path, draw: random.Random) -> str:
    path = draw.choice(sorted(folder.glob("*.safetensors")))
    content = path.read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + size])
    name = draw.choice(sorted(set(header) - {"__metadata__"}))
    one = header[name]
    action = draw.randrange(6)
    if action == 0:
        header[f"{name}.renamed"] = header.pop(name)
    elif action == 1:
        del header[name]
    elif action == 2:
        one["shape"] = [*one["shape"][:-1], draw.choice([0, 1, one["shape"][-1] + 1, 2**40])]
    elif action == 3:
        one["dtype"] = draw.choice(["F16", "I32", "F64", "ZORK", "F8_E4M3"])
    elif action == 4:
        one["data_offsets"] = [one["data_offsets"][0] + draw.choice([4, -4, 2**33]), one["data_offsets"][1]]
    else:
        one["shape"] = one["shape"][::-1] if len(set(one["shape"])) > 1 else [*one["shape"], 1]
    again = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(again)) + again + content[8 + size :])
    return f"{action} {name}"


CHANGES: list[Callable[[Path, random.Random], str]] = [change_config, change_index, change_header]


@each("change", CHANGES)
@each("seed", range(30))
def test_a_mutation_is_named_or_changes_no_number(
    original: tuple[Path, torch.Tensor, torch.Tensor], tmp_path: Path, change: Callable[..., str], seed: int
) -> None:
    folder, stream, queries = original
    copy = Path(shutil.copytree(folder, tmp_path / "model"))
    done = change(copy, random.Random(seed))
    found, refused = None, ""
    try:
        found = numbers(copy)
    except TheodoliteError as error:
        refused = str(error)
    if found is None:
        assert refused
        assert "\n" not in refused
        assert len(refused) < 600, done
        return
    torch.testing.assert_close(found[0], stream, msg=done)
    torch.testing.assert_close(found[1], queries, msg=done)


def edited(folder: Path, **settings: Any) -> Path:
    raw = json.loads((folder / "config.json").read_text()) | settings
    (folder / "config.json").write_text(json.dumps({key: one for key, one in raw.items() if one is not None}))
    return folder


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"model_type": "zork"}, "zork"),
        ({"dtype": "float99"}, "float99"),
        ({"torch_dtype": "float99", "dtype": None}, "float99"),
        ({"num_hidden_layers": 2}, "the first is model.layers.2."),
        ({"num_hidden_layers": 4}, "lack"),
        ({"num_hidden_layers": 4000}, "states 4000 layers, and the weights have 30 tensors; use the config.json"),
    ],
)
def test_a_wrong_setting_is_named(folder: Path, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(TheodoliteError) as caught:
        load_model(edited(folder, **settings))
    assert words in only_line(caught)


def test_a_head_of_its_own_is_read_although_the_configuration_ties_it(folder: Path) -> None:
    """Transformers does not tie a head that differs from the embedding either."""
    weights = Weights(edited(folder, tie_word_embeddings=True), load_config(folder))
    assert not weights.tied
    theirs = LlamaForCausalLM.from_pretrained(folder).lm_head.weight
    assert torch.equal(weights.unembedding(), theirs)


def test_a_model_without_architectures_loads(folder: Path) -> None:
    assert load_model(edited(folder, architectures=None)).dimensions.n_layers == 3
