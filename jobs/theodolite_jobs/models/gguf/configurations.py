"""Translate the metadata of a GGUF file into the configuration of transformers, for each architecture.

A value comes from a key or from the shape of a tensor. The values that no file states are constants of the architecture
in llama.cpp, and stand in the architecture's function by name.
"""

from collections.abc import Callable

from theodolite.errors import UnsupportedModelError
from theodolite_jobs.models.gguf import dense, mixtures
from theodolite_jobs.models.gguf.header import Header
from theodolite_jobs.models.gguf.metadata import Metadata
from theodolite_jobs.models.gguf.settings import Values

BUILDERS: dict[str, Callable[[Metadata], Values]] = {
    "llama": dense.llama,
    "qwen2": dense.qwen2,
    "qwen2moe": mixtures.qwen2moe,
    "qwen3": dense.qwen3,
    "qwen3moe": mixtures.qwen3moe,
    "gemma": dense.gemma,
    "gemma2": dense.gemma2,
    "gemma3": dense.gemma3,
    "phi2": dense.phi2,
    "phi3": dense.phi3,
    "starcoder2": dense.starcoder2,
    "stablelm": dense.stablelm,
    "falcon": dense.falcon,
    "gpt2": dense.gpt2,
    "olmo2": dense.olmo2,
    "granite": dense.granite,
    "command-r": dense.command_r,
    "glm4": dense.glm4,
    "deepseek2": mixtures.deepseek2,
    "smollm3": dense.smollm3,
    "lfm2": dense.lfm2,
    "gpt-oss": mixtures.gpt_oss,
}


def configuration(header: Header) -> Values:
    """Return the entries of config.json.

    Raises:
        ModelError: a key is missing, or has a value of another type.
        UnsupportedModelError: the architecture, a key, or a value of a key is not supported.
    """
    metadata = Metadata(header)
    build = BUILDERS.get(metadata.architecture)
    if build is None:
        raise UnsupportedModelError(
            f"{metadata.file} has the architecture {metadata.architecture!r}; supported in GGUF files: "
            f"{', '.join(BUILDERS)}; use the model's safetensors files"
        )
    if header.metadata.get("general.type", "model") != "model":
        raise UnsupportedModelError(
            f"{metadata.file} is of the type {header.metadata['general.type']!r} (general.type) and not a model; use "
            "the file of the model"
        )
    values = build(metadata)
    metadata.require("attention.causal", True)
    metadata.require("pooling_type", 0)
    metadata.check_all_read()
    tokens = ("bos_token_id", "eos_token_id", "padding_token_id")
    bos, eos, pad = (header.metadata.get(f"tokenizer.ggml.{name}") for name in tokens)
    return {**values, "dtype": "float32", "bos_token_id": bos, "eos_token_id": eos, "pad_token_id": pad}
