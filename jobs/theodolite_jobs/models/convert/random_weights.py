"""Write a checkpoint with random weights: the untrained twin of a model, a control for its surveys.

The weights are those of the model class in transformers before any training (`_init_weights`). They are drawn in
float32 by torch's CPU generator, and stored in the dtype of the configuration.
"""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from theodolite.errors import ModelError
from theodolite_jobs.models.convert.files import atomic_folder, check_space, create_once, write_index
from theodolite_jobs.models.load import load_config, resolved_dtype
from theodolite_jobs.models.quiet import plain_errors
from theodolite_jobs.stages import counted

RULE = 1
"""Version of the rule that draws the weights. Raise it if a changed rule draws other numbers."""

SEED = 0
"""Seed of torch's CPU generator."""


def create_random(folder: Path, into: Path) -> Path:
    """Write the untrained twin of the model in a folder to `into`, unless `into` exists; return `into`.

    The folder needs no weights. One part of the model (a block, or an embedding) is in memory at a time. `into` appears
    completely or not at all. If several processes of a machine create the same folder, one writes and the others wait.

    Raises:
        ModelError: the disk has too little space, a file cannot be read or written, or the model class leaves a tensor
            without initial values.
        UnsupportedModelError: the configuration describes quantised weights of an unknown format.
    """
    with plain_errors(f"create random weights for {folder}"):
        return create_once(into, lambda: _create(folder, into))


def random_bytes(config: Any) -> int:
    """Return the size of a checkpoint with random weights in bytes; raises ModelError if it cannot be created."""
    with plain_errors(f"build a {config.model_type!r} model from its configuration"):
        return _bytes(_skeleton(config), _dtype(config))


def _create(folder: Path, into: Path) -> None:
    config = load_config(folder)
    from theodolite_jobs.models.convert.quantised import write_small_files  # torch takes seconds to load

    model, dtype = _skeleton(config), _dtype(config)
    check_space(_bytes(model, dtype), into, "the random weights")
    with atomic_folder(into) as staging:
        write_small_files(folder, staging)
        _write_weights(model, dtype, staging)


def _skeleton(config: Any) -> Any:
    """Return the model in float32 on the meta device, of the class that the configuration names, or the base model."""
    import torch
    import transformers

    named = (getattr(transformers, name, None) for name in config.architectures or ())
    classes = [one for one in named if isinstance(one, type) and issubclass(one, transformers.PreTrainedModel)]
    config = copy.deepcopy(config)  # models write into their configuration
    with torch.device("meta"):
        model: Any = classes[0](config) if classes else transformers.AutoModel.from_config(config, dtype=torch.float32)
    return model.to("meta")  # some tensors ignore the context (DiffLlama)


def _dtype(config: Any) -> Any:
    import torch

    return getattr(torch, resolved_dtype(config, "auto"))


def _bytes(model: Any, dtype: Any) -> int:
    return int(sum(parameter.numel() for parameter in model.parameters()) * dtype.itemsize)


class _Part(NamedTuple):
    """A module that is initialised as a whole, or only the parameters of its own if its children are other parts."""

    module: Any
    owner: Any  # the nearest enclosing PreTrainedModel, whose `_init_weights` knows the module
    is_whole: bool


def _parts(module: Any, owner: Any) -> Iterator[_Part]:
    """Yield the parts of a model in the order of transformers' `initialize_weights`: children before their parent.

    Lists of modules that are in no other list are divided, so a part is a block, an embedding, a norm or a head. A
    block stays whole, because `_init_weights` of a module may set parameters of its children (GPT-2).
    """
    import torch
    from transformers import PreTrainedModel

    owner = module if isinstance(module, PreTrainedModel) else owner
    is_list = isinstance(module, torch.nn.ModuleList)
    if not is_list and not any(isinstance(child, torch.nn.ModuleList) for child in module.modules()):
        yield _Part(module, owner, is_whole=True)
        return
    for child in module.children():
        if is_list:
            yield _Part(child, owner, is_whole=True)
        else:
            yield from _parts(child, owner)
    yield _Part(module, owner, is_whole=False)


def _write_weights(model: Any, dtype: Any, folder: Path) -> None:
    """Write the weights of a skeleton to safetensors files, one for each part that has any, and their index."""
    import torch
    from safetensors.torch import save_file

    weight_map: dict[str, str] = {}
    sizes: dict[str, int] = {}
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(SEED)
        parts = list(_parts(model, model))
        for number, part in enumerate(counted(parts, len(parts), "drawing random weights", "parts")):
            tensors = {name: tensor.to(dtype) for name, tensor in _initialised(model, part).items()}
            if tensors:
                file = folder / f"part-{number:05}.safetensors"
                save_file(tensors, file, metadata={"format": "pt"})
                for old in {weight_map[name] for name in tensors if name in weight_map}:  # drawn again
                    (folder / old).unlink()
                weight_map |= dict.fromkeys(tensors, file.name)
                sizes |= {name: tensor.nbytes for name, tensor in tensors.items()}
            part.module.to_empty(device="meta", recurse=part.is_whole)
            for child in part.module.children():
                child.to_empty(device="meta", recurse=False)
    write_index(folder, weight_map, sum(sizes.values()))


def _initialised(model: Any, part: _Part) -> dict[str, Any]:
    """Initialise a part in memory, and return its tensors by their names in a checkpoint, without tied copies.

    Raises:
        ModelError: the model class does not initialise one of the tensors.
    """
    import torch
    from transformers.core_model_loading import revert_weight_conversion

    module = _empty(part.module, part.is_whole)
    children = [] if part.is_whole else list(module.children())
    matrices = {child: child.weight for child in children if getattr(getattr(child, "weight", None), "ndim", 0) > 1}
    versions, state = {child: matrix._version for child, matrix in matrices.items()}, torch.get_rng_state()
    for one in _children_first(module) if part.is_whole else [module]:
        part.owner._initialize_weights(one)
    again = [child for child, matrix in matrices.items() if matrix._version != versions[child]]
    if again:  # T5 draws its embedding again, after all other parts
        for child in again:
            _empty(child, is_whole=True)
        torch.set_rng_state(state)
        module._is_hf_initialized = False
        part.owner._initialize_weights(module)
    # The other parts are on the meta device.
    tensors = {name: tensor for name, tensor in model.state_dict().items() if not tensor.is_meta}
    for name, tensor in tensors.items():
        if not tensor.is_floating_point() or tensor.isnan().any():
            raise ModelError(
                f"model.weights: random, but {type(model).__name__} has no initialisation for {name}; use trained"
            )
    own = {name: tensor for name, tensor in tensors.items() if name not in model.all_tied_weights_keys}
    named: dict[str, Any] = revert_weight_conversion(model, own)
    return {name: tensor.contiguous() for name, tensor in named.items()}


def _empty(module: Any, is_whole: bool) -> Any:
    """Return a module whose tensors are in memory, without values."""
    module.to_empty(device="cpu", recurse=is_whole)
    for tensor in (*module.parameters(is_whole), *module.buffers(is_whole)):
        if tensor.is_floating_point():
            tensor.fill_(float("nan"))
    return module


def _children_first(module: Any) -> Iterator[Any]:
    for child in module.children():
        yield from _children_first(child)
    yield module
