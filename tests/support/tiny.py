"""Tiny random models, one for each family and each kind of block in it, and tokens for them: no downloads."""

import copy
from typing import Any

import torch
from support.tiny_configs import CONFIGS
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
)

from theodolite_jobs.models.families import is_encoder_alone, known_anatomy
from theodolite_jobs.models.text_part import text_part


def model_with_head(family: str) -> Any:
    """Return the tiny model of a family with its language-model head, of the class for masked words in encoders."""
    if is_encoder_alone(CONFIGS[family]):
        return tiny_model(family, auto_class=AutoModelForSeq2SeqLM)
    anatomy = known_anatomy(CONFIGS[family])
    masked = anatomy is not None and not anatomy.causal and type(CONFIGS[family]) in MODEL_FOR_MASKED_LM_MAPPING
    multimodal = type(CONFIGS[family]) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    decoder = AutoModelForImageTextToText if multimodal else AutoModelForCausalLM
    return tiny_model(family, auto_class=AutoModelForMaskedLM if masked else decoder)


def tiny_model(family: str, seed: int = 0, auto_class: Any = AutoModel) -> Any:
    """Return the tiny model of a family; by default the base model, or the text part of a multimodal one."""
    model = random_model(copy.deepcopy(CONFIGS[family]), auto_class, seed)  # models write into their configuration
    # An encoder has no files of its own, so it is in memory with its decoder.
    return text_part(model) if auto_class is AutoModel and not is_encoder_alone(model.config) else model


def class_with_head(config: Any) -> Any:
    """Return the class with a language-model head, which a configuration on the hub names."""
    # Llama4's configuration of text and images is in two of them; its checkpoints have the class of the first.
    kinds = (MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_MASKED_LM_MAPPING)
    for mapping in (MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,) if is_encoder_alone(config) else kinds:
        if type(config) in mapping:
            return mapping[type(config)]
    raise KeyError(type(config))


def random_model(config: Any, auto_class: Any, seed: int = 0) -> Any:
    """Return a model whose biases and norm scales are random too, so that mistakes show."""
    torch.manual_seed(seed)
    model = auto_class.from_config(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1 or "norm" in name:
                parameter.add_(0.3 * torch.randn_like(parameter))
            else:
                parameter.mul_(4)  # as large as trained weights, so that every branch counts
        for module in model.modules():
            if hasattr(module, "SelfAttention"):  # T5
                module.SelfAttention.q.weight.mul_(0.1)  # its scores have no scale
            if hasattr(module, "layer_scalar"):  # a block of Gemma 4, which multiplies the stream
                module.layer_scalar.uniform_(0.5, 1.5)
                module.self_attn.q_norm.weight.mul_(0.25)  # its scores have no other scale
    return model


def random_tokens(lengths: list[int], prefix: int = 0, seed: int = 0) -> list[tuple[int, ...]]:
    """Return prompts of these lengths that begin with the same `prefix` tokens, and differ right after."""
    generator = torch.Generator().manual_seed(seed)

    def draw(count: int) -> list[int]:
        return torch.randint(3, 64, (count,), generator=generator).tolist()

    shared = draw(prefix)
    return [tuple([*shared, 3 + index % 61, *draw(length - prefix - 1)]) for index, length in enumerate(lengths)]
