"""Find the parameters that the tensors of a checkpoint become, by the rules with which transformers loads them."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Renamed:
    """What one stored tensor becomes."""

    parameters: tuple[str, ...]  # several for a tensor that is split; names that the module may not have
    pattern: str | None  # the pattern of a conversion that takes more than one tensor, or splits one
    prefixed: bool  # the stored name has the prefix that the base model has inside of a model with a head
    used: bool  # whether the module has the parameters


def rename(module: Any, names: Iterable[str]) -> dict[str, Renamed]:
    """Return what each stored tensor becomes in a module of transformers, which may have no memory for weights."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

    rules = get_model_conversion_mapping(module)
    renamings = [rule for rule in rules if isinstance(rule, WeightRenaming)]
    converters = [rule for rule in rules if isinstance(rule, WeightConverter)]
    targets_of = {pattern: rule.target_patterns for rule in converters for pattern in rule.source_patterns}
    own, prefix = module.state_dict(), module.base_model_prefix
    found = {}
    for name in names:
        inside, _ = rename_source_key(name, renamings, converters)
        full, pattern = rename_source_key(name, renamings, converters, prefix, own)
        if full not in own and name in own:
            inside, full, pattern = name, name, None
        first, *others = targets_of[pattern] if pattern is not None else [""]
        parameters = (full, *(full.replace(first, other) for other in others))
        prefixed = bool(prefix) and inside.startswith(f"{prefix}.") and inside not in own
        found[name] = Renamed(parameters, pattern, prefixed, full in own)
    return found


def repeated(renamed: Mapping[str, Renamed]) -> list[tuple[str, str]]:
    """Return pairs of tensors that become the same parameter, although no conversion takes both."""
    by_parameter: defaultdict[str, list[str]] = defaultdict(list)
    for name, one in renamed.items():
        if one.used:
            by_parameter[one.parameters[0]].append(name)
    pairs = []
    for names in by_parameter.values():
        patterns = {renamed[name].pattern for name in names}
        if len(names) > 1 and None in patterns:
            plain = next(name for name in names if renamed[name].pattern is None)
            pairs.append((plain, next(name for name in names if name != plain)))
    return sorted(pairs)


def incomplete(module: Any, renamed: Mapping[str, Renamed]) -> list[str]:
    """Return the parameters of which a conversion that takes a tensor for each expert does not find all."""
    parts: defaultdict[str, defaultdict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for name, one in renamed.items():
        if one.used and one.pattern is not None and "*" in one.pattern:
            number = re.search(re.escape(one.pattern).replace(r"\*", r"(\d+)").replace(r"\\", ""), name)
            parts[one.parameters[0]][one.pattern].append(int(number[1]) if number else -1)
    own = module.state_dict()
    return sorted(
        parameter
        for parameter, patterns in parts.items()
        if any(sorted(numbers) != list(range(own[parameter].shape[0])) for numbers in patterns.values())
    )


def aliases(module: Any) -> list[set[str]]:
    """Return the groups of names of a module's state that are one parameter."""
    groups: defaultdict[int, set[str]] = defaultdict(set)
    for name, tensor in module.state_dict(keep_vars=True).items():
        groups[id(tensor)].add(name)
    return list(groups.values())
