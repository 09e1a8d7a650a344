"""Compute the tensors that an adapter changes, one parameter at a time, in float32.

peft's own layers compute them, so the numbers are those of peft: a layer gets the matrix of the base, merges, and gives
it back. The rest of the model has no memory.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from theodolite.errors import ModelError, UnsupportedModelError
from theodolite_jobs.models.convert.adapter_changes import Change, Changes
from theodolite_jobs.models.convert.adapter_config import TENSORS, AdapterConfig
from theodolite_jobs.models.convert.adapter_fit import ADAPTER, PREFIX, Fitted, as_in_memory
from theodolite_jobs.models.tensors import TensorFiles

# The tasks whose heads are in the adapter and not in the base.
_TASKS_WITH_HEADS = ("SEQ_CLS", "TOKEN_CLS", "QUESTION_ANS")


@dataclass(frozen=True)
class Stored:
    """The tensors of the files in which a parameter is stored."""

    names: dict[str, str]  # as the model class saves them → in these files
    is_whole: bool  # it is stored as it is; else the model class converts it when it loads and saves it


def load_adapter(fitted: Fitted, folder: Path) -> None:
    """Load the adapter's tensors in float32 into a fitted model; raises ModelError if copies in it differ."""
    tensors = {name: tensor.float() for name, tensor in load_file(folder / TENSORS).items()}
    for name in fitted.copies:
        original = _original(name, fitted)
        if original is not None and not torch.equal(tensors[name], tensors[original]):
            raise ModelError(f"the adapter {folder} has other values in {name} than in {original}; they must agree")
    given = as_in_memory(fitted.model, {name: one for name, one in tensors.items() if name not in fitted.copies})
    # peft's own function would move them to the device of the base, which has no memory.
    places = {name: given.pop(stored) for name in fitted.model.state_dict() if (stored := _as_stored(name)) in given}
    if given:
        raise ModelError(f"the adapter {folder} has {sorted(given)[0]}, which has no place in its base")
    fitted.model.load_state_dict(places, strict=False, assign=True)


def _as_stored(name: str) -> str:
    """Return the name in an adapter's file of a tensor in peft's model."""
    name = name.replace(f".modules_to_save.{ADAPTER}.", ".")
    name = name.removesuffix(".weight") if ".lora_magnitude_vector." in name else name
    return f"{name}.".replace(f".{ADAPTER}.", ".")[:-1]


def _original(copy: str, fitted: Fitted) -> str | None:
    """Return the tensor that another one of the adapter repeats; None for the base of a module that is replaced."""
    if ".original_module." in copy:
        return None
    if ".modules_to_save." in copy:
        return copy.replace(".modules_to_save.", ".")
    embedding = fitted.embeddings.input.removesuffix(".weight")
    return f"{PREFIX}{embedding}.token_adapter.{copy.partition('.token_adapter.')[2]}"


class Places:
    """Where the files of the base store the parameters of its class."""

    def __init__(self, fitted: Fitted, files: TensorFiles, settings: AdapterConfig) -> None:
        """Remember the class and the files; nothing is read."""
        self._model, self._files, self._settings = fitted.plain, files, settings
        self._embeddings, self._shapes = fitted.embeddings, fitted.shapes
        prefix = self._model.base_model_prefix
        self._prefix = f"{prefix}." if prefix else ""

    def of(self, change: Change, shape: torch.Size) -> Stored:
        """Return the tensors that store a changed parameter.

        Raises:
            ModelError: the files lack them, or they have other shapes.
            UnsupportedModelError: the change needs the whole parameter, and the files store it in another layout.
        """
        empty = torch.empty(shape, device="meta")
        parts = self.split(change.name, empty)
        is_whole = len(parts) == 1 and next(iter(parts.values())) is empty
        spelt = {name: self._spelt([name, change.name] if is_whole else [name]) for name in parts}
        lacking = next((name for name, found in spelt.items() if found is None), None)
        if lacking is not None and not self._may_lack(change):
            raise ModelError(
                f"the weights in {self._files.folder} lack {lacking}, which the adapter changes; use the base of the "
                "adapter"
            )
        names = {name: found or name for name, found in spelt.items()}
        needs_base = change.value is None and change.base is None and lacking is None
        for name, part in parts.items() if needs_base else ():
            stored = self._files.shape(names[name])
            if stored != tuple(part.shape):
                raise ModelError(
                    f"the weights in {self._files.folder} have {names[name]} with the shape {stored}, and the adapter "
                    f"changes a matrix of the shape {tuple(part.shape)}; use the base of the adapter"
                )
        if not is_whole and change.value is None and not _is_sum(change):
            raise UnsupportedModelError(
                f"the adapter changes {change.name} by more than a sum, and the files store it in parts; merge the "
                "adapter with peft"
            )
        return Stored(names, is_whole)

    def replaced(self, changes: Changes) -> set[str]:
        """Return the tensors of the files that the merge replaces or leaves out; raises as `of`."""
        stored = [self.of(one, self._shapes[name]) for name, one in changes.by_name.items()]
        names = {name for one in stored for name in one.names.values()}
        if self._embeddings.are_tied and self._embeddings.input in changes.by_name and self._embeddings.output:
            head = self._spelt([*self.split(self._embeddings.output, torch.empty(0)), self._embeddings.output])
            names |= {head} if head is not None else set()  # it repeats the embedding, and would be outdated
        return names

    def check_head(self, changes: Changes) -> None:
        """Raise ModelError if the adapter changes tied embeddings, and the files have a head of its own beside them.

        transformers uses such a head in spite of the configuration; the merge takes the embedding for both.
        """
        first, last = self._embeddings.input, self._embeddings.output
        if last is None or not self._embeddings.are_tied or not {first, last} & changes.by_name.keys():
            return
        names = [self._spelt([*self.split(name, torch.empty(0)), name]) for name in (first, last)]
        tensors = [self._files.read(name).float() for name in names if name is not None]
        if len(tensors) == 2 and not torch.equal(*tensors):
            raise ModelError(
                f"config.json in {self._files.folder} ties the embeddings, which the adapter changes, but {names[1]} "
                f"in the files differs from {names[0]}; set tie_word_embeddings to false there, or merge the adapter "
                "with peft"
            )

    def split(self, name: str, tensor: Tensor) -> dict[str, Tensor]:
        """Return a parameter as the class saves it: under its name in files, and possibly as several tensors."""
        from transformers.core_model_loading import revert_weight_conversion

        parts: dict[str, Tensor] = revert_weight_conversion(self._model, {name: tensor})
        return parts

    def _spelt(self, names: list[str]) -> str | None:
        """Return the name in the files, with or without the prefix of the base model; raises ModelError if two fit."""
        spelt = [one for name in names for one in (name, f"{self._prefix}{name}", name.removeprefix(self._prefix))]
        found = [one for one in dict.fromkeys(spelt) if one in self._files.headers]
        if len(found) > 1:
            raise ModelError(f"the weights in {self._files.folder} have both {found[0]} and {found[1]}; keep one")
        return found[0] if found else None

    def _may_lack(self, change: Change) -> bool:
        """Return whether the files may lack a parameter: a tied head, or the head of a task in the adapter."""
        if change.name == self._embeddings.output:
            return self._embeddings.are_tied
        return change.value is not None and self._settings.task_type in _TASKS_WITH_HEADS


def merged_tensors(
    fitted: Fitted, changes: Changes, places: Places, files: TensorFiles
) -> Iterator[tuple[str, Tensor]]:
    """Yield the name in the files and the merged tensor, in float32, of everything that the adapter changes.

    Raises:
        ModelError: a tensor cannot be read, a merged one has values that are not finite, or two tied ones differ.
    """
    for change in changes.by_name.values():
        stored = places.of(change, fitted.shapes[change.name])
        merged = _merged(fitted, change, stored, places, files)
        if change.twin is not None:
            twin = _merged(fitted, change.twin, stored, places, files)
            if not all(torch.allclose(merged[name], twin[name], rtol=1e-5, atol=1e-7) for name in merged):
                raise ModelError(
                    f"the adapter gives {change.name} and {change.twin.name} other values, and its base and its "
                    "settings tie them; use the adapter_config.json that belongs to it"
                )
        for name, tensor in merged.items():
            if not bool(tensor.isfinite().all()):
                raise ModelError(f"the adapter gives values that are not finite in {name}; it is broken")
            yield name, tensor.contiguous()


def _merged(fitted: Fitted, change: Change, stored: Stored, places: Places, files: TensorFiles) -> dict[str, Tensor]:
    """Return the new tensors of a parameter by their names in the files."""
    if stored.is_whole:
        (name,) = stored.names.values()
        return {name: _whole(fitted, change, name, places, files)}
    if change.value is not None:
        parts = places.split(change.name, change.value.detach().float())
        return {stored.names[name]: part for name, part in parts.items()}
    # The layer adds its matrices to zeros, and the class divides the sum as it divides the parameter.
    parts = places.split(change.name, _by_layer(change, torch.zeros(fitted.shapes[change.name])))
    return {stored.names[name]: files.read(stored.names[name]).float() + part for name, part in parts.items()}


def _whole(fitted: Fitted, change: Change, name: str, places: Places, files: TensorFiles) -> Tensor:
    if change.value is not None:
        value: Tensor = change.value.detach().float().clone()
        return value
    if change.base is not None:
        return _by_layer(change, change.base.detach().float().clone())
    if change.name == fitted.embeddings.output and fitted.embeddings.are_tied:
        # `check_head` has seen that a head in the files is the same.
        embedding = Change(fitted.embeddings.input)
        (name,) = places.of(embedding, fitted.shapes[embedding.name]).names.values()
    base = files.read(name).float()
    return base if change.layer is None else _by_layer(change, base)


def _by_layer(change: Change, base: Tensor) -> Tensor:
    """Return the base's tensor after one of peft's layers has merged the adapter into it."""
    module = change.layer.get_base_layer()
    empty = getattr(module, change.attribute)
    setattr(module, change.attribute, torch.nn.Parameter(base, requires_grad=False))
    with torch.no_grad():
        change.layer.merge()
    merged: Tensor = getattr(module, change.attribute).detach()
    setattr(module, change.attribute, empty)
    return merged


def _is_sum(change: Change) -> bool:
    """Return whether a layer only adds a matrix: no directions as in DoRA, and no rows of tokens."""
    return not getattr(change.layer, "lora_variant", None) and hasattr(change.layer, "scaling")
