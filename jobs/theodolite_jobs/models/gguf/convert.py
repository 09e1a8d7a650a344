"""Convert a GGUF file once, into a safetensors folder with dequantised weights in float32."""

import json
import math
from pathlib import Path
from typing import Any

from theodolite_jobs.models.config_sizes import check_sizes
from theodolite_jobs.models.convert.files import atomic_folder, check_space, create_once, write_tensors
from theodolite_jobs.models.gguf.architectures import RULES
from theodolite_jobs.models.gguf.configurations import configuration
from theodolite_jobs.models.gguf.header import Header, read_header
from theodolite_jobs.models.gguf.tensors import check_types
from theodolite_jobs.models.gguf.tokenizer import check_tokenizer, write_tokenizer
from theodolite_jobs.models.gguf.weights import Step, check_weights, steps_of, weights

GGUF_READER = 1
"""Version of the reader of GGUF files. Raise it if it gives other numbers or tokens."""


def convert_gguf(file: Path, folder: Path, *, weights: bool = True) -> Path:
    """Write the weights (float32), configuration and tokenizer of a GGUF file to `folder`, unless it exists; return it.

    Planning needs no `weights`. Two gigabytes of output and some copies of one tensor are in memory at a time. `folder`
    appears completely or not at all. If several processes of a machine convert the same file, one writes and the others
    wait.

    Raises:
        ModelError: the file is damaged or incomplete, or the disk has too little space.
        UnsupportedModelError: the file has an architecture, a setting, a tensor or a tokenizer that is not known.
    """
    return create_once(folder, lambda: _convert(file, folder, weights))


def _convert(file: Path, folder: Path, with_weights: bool) -> None:
    header = read_header(file)
    values, steps = check_gguf(header)
    from transformers import AutoConfig

    from theodolite_jobs.models.quiet import plain_errors

    with plain_errors(f"convert {file} from GGUF"):
        config = AutoConfig.for_model(**values)
        n_weights = check_weights(header, steps, config)
        if with_weights:
            check_space(_bytes(steps), folder, f"the weights of {file.name} in float32")
        with atomic_folder(folder) as staging:
            config.save_pretrained(staging)
            # transformers leaves out values that are its defaults today.
            (staging / "config.json").write_text(
                json.dumps(json.loads((staging / "config.json").read_text()) | values, indent=2), encoding="utf-8"
            )
            write_tokenizer(header, staging)
            if with_weights:
                write_tensors(weights(steps, config), n_weights, staging)


def check_gguf(header: Header) -> tuple[dict[str, Any], list[Step]]:
    """Return the entries of config.json and the steps that compute the weights, from the header alone.

    Raises:
        ModelError: the file lacks a key or a tensor.
        UnsupportedModelError: the file has an architecture, a setting, a tensor or a tokenizer that is not known.
    """
    values = configuration(header)
    check_sizes(values, header.files[0])
    steps = steps_of(header, RULES[values["model_type"]], values)
    check_types(header)
    check_tokenizer(header)
    return values, steps


def _bytes(steps: list[Step]) -> int:
    return sum(4 * math.prod(stored.shape) for step in steps for stored in step.stored)
