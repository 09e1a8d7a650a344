"""Give each layer a module of its own, in a family that runs one block for several layers (ALBERT)."""

import copy
from typing import Any

import torch

from theodolite_jobs.models.anatomy import Anatomy


def unroll(module: Any, anatomy: Anatomy) -> None:
    """Replace a model's blocks by one for each layer, so that hooks run once for each layer.

    The blocks of layers that share their weights have the same parameters, so memory does not grow with the layers.
    """
    if not anatomy.block_of:
        return
    path, _, name = anatomy.blocks.rpartition(".")
    owner, config = module.get_submodule(path), module.config
    stored, n_layers = getattr(owner, name), config.num_hidden_layers
    if len(stored) != n_layers:
        blocks = [_with_same_parameters(stored[anatomy.block_of[layer]], config) for layer in range(n_layers)]
        setattr(owner, name, torch.nn.ModuleList(blocks))
    owner.config = copy.copy(config)  # of the loop over layers alone; the model's own says what the files contain
    owner.config.num_hidden_groups = n_layers


def _with_same_parameters(block: Any, config: Any) -> Any:
    """Return a copy of a block's modules with the block's own parameters and configuration."""
    shared = (config, *block.parameters(), *block.buffers())
    return copy.deepcopy(block, {id(one): one for one in shared})
