"""Check that the blocks of a checkpoint have the tensors that other blocks of their kind have."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from theodolite.errors import ModelError

# The suffixes of trained tensors; constants that older libraries stored have other suffixes.
_TRAINED = (".weight", ".bias", ".gamma", ".beta", ".sinks", ".q_bias", ".v_bias", "_proj", "_proj_bias")


def tensors_by_block(names: Iterable[str], prefix: str, n_layers: int) -> dict[int, set[str]]:
    """Return the names of each block's trained tensors, without the prefix of all blocks and the block's number."""
    blocks: dict[int, set[str]] = {layer: set() for layer in range(n_layers)}
    for name in names:
        number, _, rest = name.removeprefix(prefix).partition(".")
        if name.startswith(prefix) and number.isdecimal() and int(number) in blocks and rest.endswith(_TRAINED):
            blocks[int(number)].add(rest)
    return blocks


def trained_of(module: str, blocks: Mapping[int, set[str]]) -> set[str]:
    """Return the names of a module's trained tensors in any block."""
    return {f"{module}{kind}" for kind in _TRAINED if any(f"{module}{kind}" in one for one in blocks.values())}


def check_alike(folder: Path, prefix: str, blocks: Mapping[int, set[str]], kind_of: Callable[[int], Any]) -> None:
    """Raise ModelError if a block lacks a tensor that another of its kind has: a missing norm would seem to be absent.

    Args:
        folder: the folder of the files, for the message.
        prefix: the prefix of the names of all blocks.
        blocks: the names of each block's tensors.
        kind_of: returns what tells blocks with other modules apart.
    """
    kinds: dict[Any, list[int]] = {}
    for layer in blocks:
        kinds.setdefault(kind_of(layer), []).append(layer)
    for kind in kinds.values():
        all_names = set().union(*(blocks[layer] for layer in kind))
        for layer in kind:
            if missing := sorted(all_names - blocks[layer]):
                raise ModelError(
                    f"the weights in {folder} lack the tensor {prefix}{layer}.{missing[0]}, which other blocks have"
                )
