"""How the blocks of some encoders depend on their configuration."""

from dataclasses import replace
from typing import Any

from theodolite.errors import UnsupportedModelError
from theodolite_jobs.models.anatomy import Anatomy


def bert(record: Anatomy, config: Any) -> Anatomy:
    """Return the record of BERT or a relative, if its MLP runs on whole prompts."""
    if config.chunk_size_feed_forward:
        raise UnsupportedModelError(
            "chunk_size_feed_forward runs the MLP on chunks of a prompt; set it to 0 in config.json"
        )
    return record


def albert(record: Anatomy, config: Any) -> Anatomy:
    """Return the record of ALBERT, with the block of each layer."""
    if config.inner_group_num != 1:
        raise UnsupportedModelError(
            f"{config.model_type!r} cannot be surveyed if inner_group_num is not 1, because each layer runs "
            "several blocks; use another model"
        )
    layers, groups = config.num_hidden_layers, config.num_hidden_groups
    return replace(bert(record, config), block_of={layer: int(layer / (layers / groups)) for layer in range(layers)})


def deberta(record: Anatomy, config: Any) -> Anatomy:
    """Return the record of DeBERTa, with its positions."""
    if getattr(config, "conv_kernel_size", 0) > 0:
        raise UnsupportedModelError(
            f"{config.model_type!r} cannot be surveyed with conv_kernel_size: a convolution changes the stream between "
            "its first two blocks; use DeBERTa-v3, which has none"
        )
    if getattr(config, "talking_head", False):
        record = replace(record, no_circuits="its heads exchange their scores (talking_head)")
    if getattr(config, "embedding_size", config.hidden_size) != config.hidden_size:
        record = replace(record, embedding_norm=None)  # it follows a projection of the embeddings
    if not config.relative_attention:
        return replace(record, positions="learned" if config.position_biased_input else "none")
    return replace(record, positions="learned and relative" if config.position_biased_input else "relative")


def after_padding(record: Anatomy, config: Any) -> Anatomy:
    """Return the same for a family whose first position follows the id of padding."""
    return replace(bert(record, config), reserved_positions=config.pad_token_id + 1)


def t5(record: Anatomy, config: Any) -> Anatomy:
    """Return the record of T5's encoder, with the projections of its MLP."""
    if config.is_gated_act or record.files is None:
        return record
    return replace(record, files=replace(record.files, gate=None, up="layer.1.DenseReluDense.wi"))
