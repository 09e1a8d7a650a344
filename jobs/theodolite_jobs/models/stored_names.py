"""Compare the names of a checkpoint's tensors with the parameters of its model, both ways, before a weight is read.

The model is built from its configuration without memory for weights, and transformers' own rules rename the tensors.
So a tensor is named that transformers would fill with random numbers, or would ignore.
"""

import copy
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from theodolite.errors import ModelError, first_of
from theodolite_jobs.models.anatomy import dimensions_of
from theodolite_jobs.models.families import is_encoder_alone, known_anatomy
from theodolite_jobs.models.next_token_blocks import next_token_names
from theodolite_jobs.models.quantised import dequantised_from
from theodolite_jobs.models.quiet import plain_errors
from theodolite_jobs.models.renaming import Renamed, aliases, experts_amiss, joined, of_one_shape, rename, repeated

if TYPE_CHECKING:  # it loads torch
    from theodolite_jobs.models.tensors import TensorFiles

# Constants that older libraries stored, and a server's scales for its cache.
_CONSTANTS = re.compile(
    r"(inv_freq|position_ids|masked_bias|causal_mask|cos_cached|sin_cached|\battn\.bias|\battention\.bias|\.[kv]_scale)$"
)
_IN_A_BLOCK = re.compile(r"(\blayers?|\bh|\bencoder\.block|layer_groups)\.\d+\.")
_OF_A_LAYER = re.compile(r"layers\\?\.\d")  # a rule of transformers for a block of one published model
_USE = "use the config.json that belongs to these weights"


@dataclass(frozen=True)
class StoredNames:
    """The tensors of a checkpoint by their names, and the parameters that they become."""

    parameter_of: dict[str, str]  # of each tensor that the base model uses
    head_parameter_of: dict[str, str]  # of each other tensor that the model with its head uses
    embedding: frozenset[str]  # the names of the parameter that is the token embedding of the surveyed part
    unembedding: frozenset[str]  # the same of the language-model head; empty if the model's class has none
    inside: str  # the prefix of the parameters of the surveyed part
    missing: list[str]  # parameters that no tensor becomes
    surplus: list[str]  # tensors that belong to the surveyed part, and that the model does not use
    repeated: list[tuple[str, str]]  # pairs of tensors that become the same parameter
    next_token: set[str]  # tensors of blocks for multi-token prediction
    of_one_shape: list[list[str]]  # groups of tensors that are joined and must have one shape
    joined: list[tuple[list[str], int]]  # tensors that are joined, and the number of values that they must have
    shape_of: dict[str, tuple[int, ...]]  # of each used tensor that is not changed

    def check(self, folder: Path) -> None:
        """Raise ModelError, with the first name, for a missing, surplus or repeated tensor."""
        if self.missing:
            raise ModelError(
                f"the weights in {folder} lack {first_of(self.missing, 'tensor')}; download the checkpoint again, or "
                f"{_USE}"
            )
        if self.surplus:
            raise ModelError(
                f"the configuration of the weights in {folder} does not use {first_of(self.surplus, 'tensor')}; {_USE}"
            )
        for one, other in self.repeated:
            raise ModelError(f"the weights in {folder} have one parameter twice, as {one} and as {other}; remove one")

    def check_files(self, files: "TensorFiles") -> None:
        """Raise ModelError as `check`, and for used tensors of another dtype, or of shapes that cannot be joined."""
        self.check(files.folder)
        files.check_plain(self.parameter_of | self.head_parameter_of)
        for name, shape in self.shape_of.items():
            if files.shape(name) != shape:
                raise ModelError(
                    f"the weights in {files.folder} do not fit the configuration: {name} has the shape "
                    f"{files.shape(name)}, expected {shape}; {_USE}"
                )
        for first, *others in self.of_one_shape:
            if other := next((name for name in others if files.shape(name) != files.shape(first)), None):
                raise ModelError(
                    f"the weights in {files.folder} have {first} of shape {files.shape(first)} and {other} of shape "
                    f"{files.shape(other)}, which must be alike; download the checkpoint again"
                )

        for names, size in self.joined:
            if (found := sum(math.prod(files.shape(name)) for name in names)) != size:
                raise ModelError(
                    f"the weights in {files.folder} do not fit the configuration: {names[0]} and {len(names) - 1} "
                    f"tensors that are joined with it have {found} values, expected {size}; {_USE}"
                )

    def check_role(self, folder: Path, role: str, name: str) -> None:
        """Raise ModelError if the model does not use a tensor as its `embedding` or `unembedding`."""
        roles = {"embedding": self.embedding, "unembedding": self.embedding | self.unembedding}
        used = (self.parameter_of | self.head_parameter_of).get(name, "nothing")
        if self.unembedding and used not in roles[role]:
            raise ModelError(
                f"the weights in {folder} have {name}, which would be read as the {role}, but transformers uses it as "
                f"{used}; use a checkpoint that transformers has saved"
            )


def check_names(folder: Path, config: Any, *, is_local: bool = False) -> None:
    """Raise ModelError, with the first name, if the tensors in a folder are not those of its configuration.

    Of files, the dtypes and shapes are checked too. A model that is not `is_local` may lack files of its index: they
    will be downloaded.

    Nothing is checked in a folder without weights and an index, nor of quantised weights and of models with their own
    code: these are checked when the weights are read.
    """
    from theodolite_jobs.models.tensors import TensorFiles, has_files, names_in  # it loads torch

    if _has_own_code(config) or dequantised_from(config) is not None:
        return
    if has_files(folder) or (is_local and any(folder.glob("*.safetensors"))):
        files = TensorFiles(folder)
        compare_names(config, files.headers).check_files(files)
    elif names := names_in(folder):
        compare_names(config, names).check(folder)


def compare_names(config: Any, names: Iterable[str]) -> StoredNames:
    """Return how the names of tensors fit the model of a configuration.

    Raises:
        ModelError: no model can be built from the configuration.
        UnsupportedModelError: the text part of a multimodal model has no module of its own.
    """
    from theodolite_jobs.models.text_part import drop_decoder, text_part  # it loads torch

    config, names = copy.deepcopy(config), set(names)
    if (layers := dimensions_of(config).n_layers) > len(names):  # building so many blocks could take hours
        raise ModelError(f"the configuration states {layers} layers, and the weights have {len(names)} tensors; {_USE}")
    if is_encoder_alone(config):
        drop_decoder(config)
    module, head = _skeletons(config)
    part = text_part(module)
    inside = next(f"{path}." for path, one in module.named_modules() if one is part).lstrip(".")
    next_token = next_token_names(config, names)
    renamed = rename(module, sorted(names - next_token))
    others = {name: one for name, one in renamed.items() if not one.used}
    of_head = {} if head is None else {name: one for name, one in rename(head, others).items() if one.used}
    output = None if head is None else head.get_output_embeddings()
    unembedding = frozenset() if output is None else _names_of(head, output.weight)
    unread, ignored = unread_names(config), _ignored(module)
    missing_experts, surplus_experts = experts_amiss(module, renamed)
    belongs = _belonging(others, renamed, "" if is_encoder_alone(config) else inside, unembedding)
    return StoredNames(
        parameter_of={name: one.parameters[0] for name, one in renamed.items() if one.used},
        head_parameter_of={name: one.parameters[0] for name, one in of_head.items()},
        embedding=_names_of(module, part.get_input_embeddings().weight),
        unembedding=unembedding,
        inside=inside,
        missing=[name for name in _missing(module, renamed) if not unread.match(name)] + missing_experts,
        surplus=surplus_experts
        + [
            name
            for name in belongs
            if name not in of_head
            and not unread.match(name)
            and not any(rule.search(renamed[name].parameters[0]) for rule in ignored)
        ],
        repeated=repeated(renamed),
        next_token=next_token,
        of_one_shape=of_one_shape(renamed),
        joined=joined(module, renamed),
        shape_of={name: one.shape for name, one in (renamed | of_head).items() if one.used and one.shape is not None},
    )


def _skeletons(config: Any) -> tuple[Any, Any]:
    """Return the base model, and the model with its language-model head if there is one, without memory for weights."""
    import torch
    from transformers import AutoModel

    anatomy = known_anatomy(config)
    options = dict(anatomy.load_options) if anatomy else {}
    # A configuration of the checkpoint's own class exists only if its code was allowed to run.
    options["trust_remote_code"] = _has_own_code(config)
    with plain_errors(f"build a {config.model_type!r} model from its configuration"), torch.device("meta"):
        kind = _class_with_head(config)
        head = None if kind is None else kind(copy.deepcopy(config))
        return AutoModel.from_config(copy.deepcopy(config), **options), head  # from_config changes its argument


def _has_own_code(config: Any) -> bool:
    return not type(config).__module__.startswith("transformers.")


def _class_with_head(config: Any) -> Any:
    """Return the class that the configuration names if it has a head, else that of a language model, or None."""
    import transformers
    from transformers import AutoModel

    stated = getattr(transformers, str((config.architectures or [""])[0]), None)
    base = AutoModel._model_mapping.get(type(config), None)
    if getattr(stated, "config_class", None) is type(config) and stated is not base:
        return stated
    kinds = ("SEQ_TO_SEQ_CAUSAL_LM", "IMAGE_TEXT_TO_TEXT", "CAUSAL_LM", "MASKED_LM")
    mappings = [getattr(transformers, f"MODEL_FOR_{kind}_MAPPING") for kind in kinds]
    return next((mapping[type(config)] for mapping in mappings if type(config) in mapping), None)


def _names_of(module: Any, parameter: Any) -> frozenset[str]:
    return frozenset(name for name, one in module.named_parameters(remove_duplicate=False) if one is parameter)


def _missing(module: Any, renamed: Mapping[str, Renamed]) -> list[str]:
    """Return the parameters that no tensor becomes; a tied one needs one name."""
    found = {parameter for one in renamed.values() if one.used for parameter in one.parameters}
    groups = [set(group) for group in aliases(module)]
    for one, other in module.all_tied_weights_keys.items():
        tied = [group for group in groups if {one, other} & group]
        groups = [group for group in groups if group not in tied] + [set().union(*tied)]
    return sorted(min(group) for group in groups if not group & found)


def unread_names(config: Any) -> re.Pattern[str]:
    """Return a pattern of names that no site depends on; in files of a model with a head, a prefix comes before."""
    anatomy, names = known_anatomy(config), ["pooler."]  # it reads the last stream, and many checkpoints lack it
    if is_encoder_alone(config):
        names.append("decoder.")
    if anatomy is not None and anatomy.positions == "sinusoidal":
        names.append("encoder.embed_positions.")  # transformers computes the table if the files lack it
    return re.compile(rf"(\w+\.)?({'|'.join(map(re.escape, names))})")


def _ignored(module: Any) -> list[re.Pattern[str]]:
    """Return patterns of parameters that transformers ignores on purpose, without those for one published size.

    A rule of a class that names a layer is for that size; a rule that only the instance has follows from its settings.
    """
    rules = set(module._keys_to_ignore_on_load_unexpected or ())
    of_classes = {rule for one in module.modules() for rule in _rules_of_class(type(one))}
    return [_CONSTANTS, *(re.compile(rule) for rule in rules if rule not in of_classes or not _OF_A_LAYER.search(rule))]


def _rules_of_class(kind: type) -> tuple[str, ...]:
    return tuple(getattr(kind, "_keys_to_ignore_on_load_unexpected", None) or ())


def _belonging(
    others: Iterable[str], renamed: Mapping[str, Renamed], inside: str, unembedding: Iterable[str]
) -> list[str]:
    """Return the tensors that belong to the surveyed part or to the language-model head, and not to another part.

    In files of a model with a head, the tensors of the base model have its prefix, and those of heads do not.
    """
    with_prefix = any(one.used and one.prefixed for one in renamed.values())
    head = tuple(name.removesuffix("weight") for name in unembedding)

    def belongs(name: str) -> bool:
        one = renamed[name]
        full = one.parameters[0]
        if _IN_A_BLOCK.search(full) or (head and full.startswith(head)):
            return True
        local = full.partition(".")[2] if one.prefixed else full
        return (one.prefixed or not with_prefix) and local.startswith(inside)

    return [name for name in others if belongs(name)]
