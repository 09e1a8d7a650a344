"""Fit an adapter onto a model without weights, by names and shapes alone, so that every error comes early.

The library peft decides which matrices an adapter changes, and how. peft ignores tensors that are missing or
surplus; here each tensor of the adapter must have its place, and each place its tensor.
"""

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from theodolite.errors import ModelError, UnsupportedModelError, first_of
from theodolite_jobs.models.convert.adapter_config import TENSORS, AdapterConfig, check_tensors, peft_config

PREFIX = "base_model.model."
ADAPTER = "default"
"""peft's name of a single adapter in a model."""

# The names of classes in transformers, by peft's names of tasks.
_TASKS = {
    "CAUSAL_LM": "AutoModelForCausalLM",
    "SEQ_2_SEQ_LM": "AutoModelForSeq2SeqLM",
    "SEQ_CLS": "AutoModelForSequenceClassification",
    "TOKEN_CLS": "AutoModelForTokenClassification",
    "QUESTION_ANS": "AutoModelForQuestionAnswering",
    "FEATURE_EXTRACTION": "AutoModel",
}
_WHOLE_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True)
class Embeddings:
    """The names of the parameters of the token embedding and of the language-model head, if the class has one."""

    input: str
    output: str | None
    are_tied: bool


@dataclass(frozen=True)
class Fitted:
    """A model on the meta device with an adapter that fits it, before any weight is read."""

    model: Any  # peft's model
    plain: Any  # the same without the adapter
    embeddings: Embeddings
    vocabulary: int | None  # the number of tokens, if the adapter has an embedding with another number than the base
    given: Sequence[str]  # the names of the adapter's tensors
    copies: Sequence[str]  # those that repeat others of the adapter

    @property
    def wrapped(self) -> Any:
        """The class of transformers inside peft's model, whose changed modules are peft's layers."""
        return self.model.base_model.model

    @cached_property
    def shapes(self) -> dict[str, torch.Size]:
        """The shapes of the parameters and stored buffers without the adapter, by name."""
        return {name: one.shape for name, one in self.plain.state_dict().items()}


def fit(config: Any, settings: AdapterConfig, folder: Path) -> Fitted:
    """Return the model of a configuration with the adapter in a folder; nothing but headers is read.

    Raises:
        ModelError: the folder has no safetensors weights; or a tensor of the adapter is missing, surplus, or of another
            shape than the base and the settings require.
        UnsupportedModelError: the adapter changes a module of a kind that cannot be merged.
    """
    from peft import get_peft_model, get_peft_model_state_dict

    stored = tensor_shapes(folder)
    if config.model_type == "qwen2" and any(name.startswith(f"{PREFIX}transformer.h.") for name in stored):
        raise UnsupportedModelError(
            f"the adapter {folder} was trained on Qwen1's own code, whose matrices are others than those of the "
            "converted base; merge it with peft and that code, and survey the merged model"
        )
    model, vocabulary = _fitting_skeleton(config, settings, stored)
    embeddings, plain = _embeddings(model), copy.deepcopy(model)
    _check_tokens(settings, model.get_input_embeddings().weight.shape[0])
    wrapped: Any = get_peft_model(model, peft_config(settings), low_cpu_mem_usage=True)
    _check_kinds(wrapped)
    required = get_peft_model_state_dict(wrapped, save_embedding_layers=False)
    both = get_peft_model_state_dict(wrapped, save_embedding_layers=True)
    optional = {name: tensor for name, tensor in both.items() if name not in required}
    _check_experts(folder, plain, stored)
    given = as_in_memory(wrapped, stored)
    _check_converted(settings, stored, given)
    _check_names(folder, given, required, optional, settings.base_model_name_or_path)
    wholes = {f"{PREFIX}{one}" for name in (embeddings.input, embeddings.output) if name for one in spellings(name)}
    copies = [name for name in given if name in optional and name not in wholes]
    return Fitted(wrapped, plain, embeddings, vocabulary, list(given), copies)


def _check_experts(folder: Path, plain: Any, stored: Mapping[str, Tensor]) -> None:
    """Raise ModelError unless experts that become a stack have the numbers from 0 on, each with the same tensors.

    peft stacks them in their order, whatever their numbers; the comparison of shapes then counts them.
    """
    own, numbers = _names(plain), dict[str, set[int]]()
    single = [re.fullmatch(r"(.+\.experts)\.(\d+)\.(.+)", name) for name in stored if _stem(name) not in own]
    found = [one for one in single if one]
    for one in found:
        numbers.setdefault(one[1], set()).add(int(one[2]))
    kinds = {one[3] for one in found}
    wanted = {f"{of}.{i}.{kind}" for of, some in numbers.items() for i in range(len(some)) for kind in kinds}
    if missing := sorted(wanted - stored.keys()):
        raise ModelError(
            f"{folder / TENSORS} lacks {missing[0]}, and has other tensors of these experts; use an adapter of all "
            "experts, with their numbers from 0 on"
        )


def _check_converted(settings: AdapterConfig, stored: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> None:
    """Raise UnsupportedModelError for settings that peft loses or applies wrongly when it renames tensors."""
    renamed = sorted(stored.keys() - given.keys())
    for setting in ("use_rslora", "alpha_pattern", "rank_pattern") if renamed else ():
        if getattr(settings, setting):
            raise UnsupportedModelError(
                f"adapter_config.json sets {setting}, and {renamed[0]} has a name from before transformers 5, for "
                "which peft computes other scales; merge the adapter with the older library, and survey the merged "
                "model"
            )


def as_in_memory(model: Any, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return an adapter's tensors as peft's model has them: an adapter of single experts becomes one of their stack."""
    from peft.utils.transformers_weight_conversion import convert_peft_adapter_state_dict_for_transformers

    config = model.peft_config[ADAPTER]
    converted: dict[str, Tensor] = convert_peft_adapter_state_dict_for_transformers(
        model, config, dict(tensors), ADAPTER
    )
    return converted


def tensor_shapes(folder: Path) -> dict[str, Tensor]:
    """Return the adapter's tensors on the meta device: names, shapes and dtypes; raises ModelError."""
    file = folder / TENSORS
    check_tensors(folder)
    found_shapes: dict[str, Tensor] = {}
    try:
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 - it is no dictionary
                part = opened.get_slice(name)
                if part.get_dtype() not in _WHOLE_DTYPES:
                    raise ModelError(
                        f"{file}: {name} is stored as {part.get_dtype()}; allowed: {', '.join(_WHOLE_DTYPES)}"
                    )
                found_shapes[name] = torch.empty(part.get_shape(), device="meta")
    except (SafetensorError, OSError) as error:
        raise ModelError(f"cannot read {file}: {error}; it is corrupt or truncated; download it again") from error
    strange = sorted(name for name in found_shapes if not name.startswith(PREFIX))
    if strange or not found_shapes:
        what = f"{strange[0]}, which does not begin with {PREFIX}" if strange else "no tensor"
        raise ModelError(f"{file} has {what}; use an adapter that peft has saved")
    return found_shapes


def _fitting_skeleton(config: Any, settings: AdapterConfig, stored: Mapping[str, Tensor]) -> tuple[Any, int | None]:
    """Return the model on the meta device whose modules the adapter names, and its number of tokens if it is another.

    Adapters are trained on the class of their task. If no class has all their modules, the first one is returned, and
    the comparison of names and shapes says which one is missing.
    """
    models = list(_skeletons(_with_labels(config, stored), settings))
    if not models:
        raise UnsupportedModelError(
            f"no class of transformers for {config.model_type!r} is known to take an adapter; merge it with peft"
        )
    stems = {_stem(name) for name in stored}
    model = next((one for one in models if stems <= _names(one)), models[0])
    rows = _rows(_embeddings(model), stored)
    if rows is None or rows == config.get_text_config().vocab_size:
        return model, None
    resized = copy.deepcopy(config)
    resized.get_text_config().vocab_size = rows
    return _empty(type(model), resized), rows


def _skeletons(config: Any, settings: AdapterConfig) -> Iterator[Any]:
    import transformers

    named = [_TASKS.get(settings.task_type or ""), *(config.architectures or ()), "AutoModel"]
    for name in dict.fromkeys(one for one in named if one):
        one = getattr(transformers, name, None)
        mapping = getattr(one, "_model_mapping", None)
        if mapping is not None:
            one = mapping.get(type(config), None)
        if isinstance(one, type) and issubclass(one, transformers.PreTrainedModel):
            # Some classes for text alone cannot take the configuration of a model of text and images.
            with suppress(AttributeError):
                yield _empty(one, config)


def _with_labels(config: Any, stored: Mapping[str, Tensor]) -> Any:
    """Return the configuration with as many labels as a head for classification in the adapter has rows."""
    names = (f"{PREFIX}{head}.weight" for head in ("score", "classifier", "classifier.out_proj"))
    rows = next((stored[name].shape[0] for name in names if name in stored and stored[name].ndim == 2), None)
    if rows is None:
        return config
    labelled = copy.deepcopy(config)
    labelled.num_labels = rows
    return labelled


def _empty(model_class: Any, config: Any) -> Any:
    """Return a model of a class on the meta device, in float32."""
    with torch.device("meta"):
        return model_class(copy.deepcopy(config)).to("meta")


def _names(model: Any) -> set[str]:
    return {name for name, _ in model.named_modules()} | {name for name, _ in model.named_parameters()}


def _stem(name: str) -> str:
    """Return the module of the base to which a tensor of an adapter belongs."""
    module = re.split(r"\.(?:lora_|token_adapter\.|modules_to_save\.|original_module\.)", name.removeprefix(PREFIX))[0]
    return module.replace(".base_layer", "").removesuffix(".weight").removesuffix(".bias")


def _rows(embeddings: Embeddings, stored: Mapping[str, Tensor]) -> int | None:
    """Return the number of tokens of a whole embedding in an adapter; None if it has none."""
    names = [embeddings.input, *([embeddings.output] if embeddings.output and embeddings.are_tied else [])]
    spelt = (f"{PREFIX}{one}" for name in names for one in spellings(name))
    found = next((stored[name] for name in spelt if name in stored), None)
    return found.shape[0] if found is not None and found.ndim else None


def spellings(name: str) -> list[str]:
    """Return the names under which peft stores a whole matrix of the base."""
    module, _, parameter = name.rpartition(".")
    return [name, f"{module}.base_layer.{parameter}", f"{module}.token_adapter.base_layer.{parameter}"]


def _embeddings(model: Any) -> Embeddings:
    names = {id(module): name for name, module in model.named_modules()}
    first, last = model.get_input_embeddings(), model.get_output_embeddings()
    has_head = isinstance(last, torch.nn.Linear) and id(last) in names
    output = f"{names[id(last)]}.weight" if has_head else None
    return Embeddings(f"{names[id(first)]}.weight", output, has_head and last.weight is first.weight)


def _check_tokens(settings: AdapterConfig, n_tokens: int) -> None:
    chosen = settings.trainable_token_indices
    lists = chosen.values() if isinstance(chosen, dict) else [chosen or []]
    for tokens in lists:
        beyond = [token for token in tokens if token >= n_tokens]
        if beyond or len(set(tokens)) < len(tokens):
            what = f"{beyond[0]}, but the embedding has {n_tokens} tokens" if beyond else "a token twice"
            raise ModelError(f"adapter_config.json: trainable_token_indices names {what}")


def _check_kinds(model: Any) -> None:
    """Raise UnsupportedModelError if the adapter changes another module than a matrix, an embedding or a parameter."""
    from peft.tuners.lora.layer import Embedding, Linear, LoraLayer, ParamWrapper

    for name, module in model.base_model.model.named_modules():
        if isinstance(module, LoraLayer) and type(module) not in (Embedding, Linear, ParamWrapper):
            kind = type(module.get_base_layer()).__name__
            raise UnsupportedModelError(
                f"the adapter changes {name}, which is of the kind {kind}; allowed: linear layers, embeddings and "
                "parameters of experts"
            )


def _check_names(
    folder: Path,
    given: Mapping[str, Tensor],
    required: Mapping[str, Tensor],
    optional: Mapping[str, Tensor],
    base: str | None,
) -> None:
    """Raise ModelError for the first tensor that is missing, surplus or of another shape; `base` is what it names."""
    use = f"use the base that it names, {base!r}, and its own files" if base else "use its own base and files"
    if missing := sorted(required.keys() - given.keys()):
        raise ModelError(
            f"the adapter {folder} lacks {first_of(missing, 'tensor')}, which its adapter_config.json requires on "
            f"this base; {use}"
        )
    if surplus := sorted(given.keys() - required.keys() - optional.keys()):
        raise ModelError(
            f"the adapter {folder} has {first_of(surplus, 'tensor')}, for which its settings and this base have "
            f"no place; {use}"
        )
    for name, tensor in sorted(given.items()):
        wanted = (required if name in required else optional)[name].shape
        if tensor.shape != wanted:
            raise ModelError(
                f"the adapter {folder}: {name} has the shape {tuple(tensor.shape)}, and its rank and this base require "
                f"{tuple(wanted)}; {use}"
            )
