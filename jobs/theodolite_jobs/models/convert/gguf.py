"""Convert a GGUF file once, into a safetensors folder with de-quantised weights."""

import contextlib
import io
from pathlib import Path

from theodolite.errors import UnsupportedModelError
from theodolite_jobs.models.convert.files import atomic_folder
from theodolite_jobs.models.convert.gguf_header import check_header, quantised_types
from theodolite_jobs.models.families import is_encoder_alone
from theodolite_jobs.models.load import plain_errors


def convert_gguf(file: Path, folder: Path) -> Path:
    """Write a GGUF file's weights (float32), configuration and tokenizer to `folder`, unless it exists; return it.

    The folder appears completely or not at all, so two processes may convert at the same time.

    Raises:
        ModelError: the file cannot be read or is of an architecture that transformers does not know.
        UnsupportedModelError: transformers does not dequantise a type of its tensors.
    """
    if folder.is_dir():
        return folder
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GgufConfig
    from transformers.integrations.gguf.dequant import GGML_NAME

    options = {"gguf_file": file.name, "dtype": torch.float32, "quantization_config": GgufConfig(dequantize=True)}
    # The reader draws a progress bar of its own on standard error.
    silent = contextlib.redirect_stderr(io.StringIO())
    with plain_errors(f"convert {file} from GGUF"), atomic_folder(folder) as staging, silent:
        check_header(file)
        if is_encoder_alone(AutoConfig.from_pretrained(file.parent, gguf_file=file.name)):
            raise UnsupportedModelError(
                f"{file} has an encoder and a decoder; such a model is not read from GGUF, use its safetensors files"
            )
        if unknown := sorted(set(quantised_types(file)) - set(GGML_NAME.values())):
            raise UnsupportedModelError(
                f"{file} has weights in {', '.join(unknown)}, which transformers does not dequantise; use a file whose "
                f"weights are {', '.join(GGML_NAME.values())} or not quantised"
            )
        AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(staging)
        AutoModelForCausalLM.from_pretrained(file.parent, **options).save_pretrained(staging)
    return folder
