"""List what an adapter changes: each parameter of the base, and what becomes of tied embeddings."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from theodolite.errors import ModelError, UnsupportedModelError
from theodolite_jobs.models.convert.adapter_config import AdapterConfig
from theodolite_jobs.models.convert.adapter_fit import ADAPTER, PREFIX, Fitted, spellings


@dataclass(frozen=True)
class Change:
    """A parameter of the base that the adapter changes: one of peft's layers merges it, or a tensor replaces it.

    Tensors are on the meta device until the adapter is loaded. With neither a layer nor a value, the parameter is a
    copy of the token embedding.
    """

    name: str
    layer: Any = None
    attribute: str = "weight"  # of the module inside the layer
    base: Any = None  # the tensor that the layer merges, if the adapter has it too
    value: Any = None
    twin: "Change | None" = None  # of a tied parameter, which must become equal


@dataclass(frozen=True)
class Changes:
    """All changes of an adapter, by the name of the parameter."""

    by_name: Mapping[str, Change]
    unties: bool  # the language-model head is no longer the token embedding

    @property
    def n_matrices(self) -> int:
        """The number of changed matrices, and of stacks of matrices of experts."""
        return sum(_is_matrix(one) for one in self.by_name.values())


def changes_of(fitted: Fitted, settings: AdapterConfig) -> Changes:
    """Return the changes of all parameters, in the order of the model.

    Raises:
        ModelError: the adapter has an embedding of another size than the base, but lacks another part of this size.
        UnsupportedModelError: the adapter changes an embedding that more modules use than the head.
    """
    from peft.tuners.lora.layer import LoraLayer
    from peft.utils.other import ModulesToSaveWrapper, TrainableTokensWrapper

    found: dict[str, Change] = {}
    for path, module in fitted.wrapped.named_modules():
        plain = path.replace(".base_layer", "")
        if isinstance(module, LoraLayer):
            attribute = str(getattr(module, "parameter_name", "weight"))
            found[f"{plain}.{attribute}"] = Change(f"{plain}.{attribute}", module, attribute)
        elif isinstance(module, TrainableTokensWrapper):
            found[f"{plain}.weight"] = Change(f"{plain}.weight", module.token_adapter)
        elif isinstance(module, ModulesToSaveWrapper):
            state = module.modules_to_save[ADAPTER].state_dict()
            found |= {f"{plain}.{name}": Change(f"{plain}.{name}", value=value) for name, value in state.items()}
    own, given = dict(fitted.wrapped.named_parameters(remove_duplicate=False)), set(fitted.given)
    for name in sorted(given):
        plain = name.removeprefix(PREFIX).replace(".base_layer", "")
        if plain.endswith(".bias") and plain in fitted.shapes and plain not in found:
            found[plain] = Change(plain, value=own[name.removeprefix(PREFIX)])
    wholes = {
        name: next((own[one] for one in spellings(name) if f"{PREFIX}{one}" in given and one in own), None)
        for name in (fitted.embeddings.input, fitted.embeddings.output)
        if name
    }
    changes = _with_embeddings(found, wholes, fitted, settings)
    _check_tokens(changes, fitted)
    _check_uses(changes, fitted)
    return changes


def _with_embeddings(
    found: dict[str, Change], wholes: Mapping[str, Any], fitted: Fitted, settings: AdapterConfig
) -> Changes:
    """Add what becomes of the token embedding and of the language-model head.

    If the two are tied and the adapter changes one of them, or each on its own, the other keeps the tensor of the base.
    """
    first, last = fitted.embeddings.input, fitted.embeddings.output
    if last is None or not fitted.embeddings.are_tied:
        for name, whole in wholes.items():
            if whole is not None:
                found[name] = _on(found.get(name), name, whole)
        return Changes(found, unties=False)
    shared = next((whole for whole in wholes.values() if whole is not None), None)
    ours, theirs = found.pop(first, None), found.pop(last, None)
    if ours is None and theirs is None:
        if shared is not None:
            twin = Change(last, value=wholes[last]) if wholes[last] is not None else None
            found[first] = Change(first, value=shared, twin=twin)
        return Changes(found, unties=False)
    if ours is not None and theirs is not None and (settings.ensure_weight_tying or _same_tokens(ours, theirs)):
        found[first] = replace(_on(ours, first, shared), twin=_on(theirs, last, shared))
        return Changes(found, unties=False)
    if ours is not None or shared is not None:
        found[first] = _on(ours, first, shared)
    found[last] = _on(theirs, last, shared)
    return Changes(found, unties=True)


def _on(change: Change | None, name: str, whole: Any) -> Change:
    """Return a change of a parameter whose tensor in the base is that of the adapter, if it has one."""
    if change is None:
        return Change(name, value=whole)
    return change if change.layer is None else replace(change, base=whole)


def _same_tokens(ours: Change, theirs: Change) -> bool:
    """Return whether two tied embeddings take the rows of the same trained tokens."""
    return getattr(theirs.layer, "tied_adapter", None) is not None and theirs.layer.tied_adapter is ours.layer


def _check_tokens(changes: Changes, fitted: Fitted) -> None:
    """Raise ModelError if the adapter has an embedding of another size, but not everything else of this size."""
    embeddings = fitted.embeddings
    names = {embeddings.input} if embeddings.are_tied and not changes.unties else {embeddings.input, embeddings.output}
    for name in sorted(one for one in names if one) if fitted.vocabulary is not None else ():
        change = changes.by_name.get(name)
        if change is None or (change.value is None and change.base is None):
            raise ModelError(
                f"the adapter has an embedding of {fitted.vocabulary} tokens, but no {name} of this size; save it with "
                "peft's option save_embedding_layers=True"
            )


def _check_uses(changes: Changes, fitted: Fitted) -> None:
    """Raise UnsupportedModelError for a change of an embedding that other modules use too, as in T5 and BART.

    peft changes it in one of them alone, and a merged file has one table for all.
    """
    pair = {one for one in (fitted.embeddings.input, fitted.embeddings.output) if one}
    parameters = dict(fitted.plain.named_parameters(remove_duplicate=False))
    table = parameters[fitted.embeddings.input]
    names = {name for name, one in parameters.items() if one is table}
    changed, others = sorted((names | pair) & changes.by_name.keys()), sorted(names - pair)
    if changed and others:
        raise UnsupportedModelError(
            f"the adapter changes the embedding {fitted.embeddings.input} or the head tied to it, and the model also "
            f"uses it as {others[0]}; train an adapter without {changed[0]}"
        )


def _is_matrix(change: Change) -> bool:
    return change.value is None or change.value.ndim > 1
