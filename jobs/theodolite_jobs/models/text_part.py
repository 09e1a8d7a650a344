"""The text model of a multimodal checkpoint: find it, and prove that it computes what the whole model computes.

The surveyed part of a model with a decoder is its encoder.
"""

from typing import Any

import torch

from theodolite.errors import UnsupportedModelError
from theodolite_jobs.models.anatomy import text_config_of
from theodolite_jobs.models.families import is_encoder_alone

_TOKENS = (5, 7, 6, 9, 8, 4)


def text_part(module: Any) -> Any:
    """Return the text part of a multimodal base model, or an encoder without its decoder; else the model itself.

    The text part is the module that transformers names as the decoder, without a language-model head.

    Raises:
        UnsupportedModelError: the text part has no module of its own.
    """
    config = module.config
    if is_encoder_alone(config):
        return module.get_encoder()
    text = text_config_of(config)
    if text is config or config.is_encoder_decoder:
        return module
    part = module.get_decoder().base_model
    part = getattr(part, "model", part)  # that of Llama 4 has a language-model head
    if part.config.model_type != text.model_type:
        raise _refusal(module, "its text model is not one of its modules")
    return part


@torch.inference_mode()
def check_text_part(module: Any) -> None:
    """Raise UnsupportedModelError if the text part of a multimodal model differs from the whole on a prompt of text.

    Some models attend to later tokens, or change the embeddings of tokens, outside of their text part.
    """
    part = text_part(module)
    if part is module or is_encoder_alone(module.config):
        return
    module.eval()
    chosen = module.config._attn_implementation
    module.set_attn_implementation("eager")  # the others need no mask for a whole prompt, so they may ignore it
    ids = torch.tensor([_TOKENS], device=part.get_input_embeddings().weight.device)
    try:
        whole = module(input_ids=ids, output_hidden_states=True, use_cache=False).hidden_states[-1]
    # Each family has its own exception for what it lacks.
    except Exception as error:
        raise _refusal(module, f"it does not run on text alone ({type(error).__name__})") from error
    else:
        alone = part(input_ids=ids, output_hidden_states=True, use_cache=False).hidden_states[-1]
    finally:
        module.set_attn_implementation(chosen)
    distance = (alone - whole).double().norm() / whole.double().norm()
    if distance > 8 * torch.finfo(whole.dtype).eps:
        raise _refusal(module, f"its text model alone differs from the whole model on text, by {distance:.2g}")


def _refusal(module: Any, reason: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{module.config.model_type!r} cannot be surveyed: {reason}; use a checkpoint of a text model alone"
    )


def drop_decoder(config: Any) -> None:
    """Change the configuration of an encoder with a decoder into that of one whose decoder has no blocks."""
    for name in ("num_decoder_layers", "decoder_layers"):
        if hasattr(config, name):
            setattr(config, name, 0)
