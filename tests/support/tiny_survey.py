"""A survey of a tiny random model with a tokenizer of its own: all stages run in seconds."""

import copy
from pathlib import Path
from typing import Any

from support import tiny
from support.tiny_sizes import GROUPED
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, LlamaConfig, PreTrainedTokenizerFast

from theodolite.spec import SurveySpec
from theodolite.spec_file import parse_spec
from theodolite_jobs.models.families import is_encoder_alone

EFFECTS = {"prompts": 10, "layers": [1], "controls": 19}
"""The smallest effects of interventions that a survey of ten prompts in each set can have."""

_SPECIAL = ["<pad>", "<s>", "</s>"]


def save_model(folder: Path, seed: int = 0, config: Any = None) -> Path:
    """Write a tiny model, by default a Llama, whose tokens are the bytes of a text; return its folder."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([*_SPECIAL, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    pad, begin, end = _SPECIAL
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=pad, bos_token=begin, eos_token=end)
    fast.save_pretrained(folder)
    config = copy.deepcopy(config or LlamaConfig(**GROUPED))
    config.vocab_size = len(vocabulary)
    auto = AutoModelForSeq2SeqLM if is_encoder_alone(config) else AutoModelForCausalLM
    tiny.random_model(config, auto, seed).save_pretrained(folder)
    return folder


def spec_of(model: Path, **changes: Any) -> SurveySpec:
    """Return the spec of a survey of two sets of ten prompts in shards of three, with a contrast."""
    return parse_spec(
        {
            "model": {"id": str(model)},
            "prompts": {
                name: {"source": f"builtin:{name}", "limit": 10, "template": "none"} for name in ("harmful", "harmless")
            },
            "capture": {"shard_prompts": 3, "batch_tokens": 200},
            "contrasts": {"refusal": {"positive": "harmful", "negative": "harmless"}},
            "analyses": ["curves", "gram", "travel", "heads", *(["effects"] if changes.get("effects") else [])],
            "words": {"sentences": []},
            **changes,
        }
    )
