"""Convert a GGUF file once, into a safetensors folder with de-quantised weights."""

import contextlib
import io
from pathlib import Path

from theodolite.errors import ModelError
from theodolite_jobs.models.convert.files import atomic_folder


def convert_gguf(file: Path, folder: Path) -> Path:
    """Write a GGUF file's weights (float32), configuration and tokenizer to `folder`, unless it exists; return it.

    The folder appears completely or not at all, so two processes may convert at the same time.

    Raises:
        ModelError: the file cannot be read or is of an architecture that transformers does not know.
    """
    if folder.is_dir():
        return folder
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    from theodolite_jobs.models.load import quiet_transformers

    try:
        # The reader draws a progress bar of its own on standard error.
        with atomic_folder(folder) as staging, quiet_transformers(), contextlib.redirect_stderr(io.StringIO()):
            tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
            model = AutoModelForCausalLM.from_pretrained(
                file.parent,
                gguf_file=file.name,
                dtype=torch.float32,
                quantization_config=GgufConfig(dequantize=True),
            )
            tokenizer.save_pretrained(staging)
            model.save_pretrained(staging)
    # The readers of a broken or unknown file raise anything from struct.error to KeyError.
    except Exception as error:
        raise ModelError(f"cannot convert {file} from GGUF: {type(error).__name__}: {error}") from error
    return folder
