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
    patterns: tuple[str, ...]  # all patterns of that conversion
    prefixed: bool  # the stored name has the prefix that the base model has inside of a model with a head
    used: bool  # whether the module has the parameters
    shape: tuple[int, ...] | None  # of the parameter, if the tensor becomes it as it is


def rename(module: Any, names: Iterable[str]) -> dict[str, Renamed]:
    """Return what each stored tensor becomes in a module of transformers, which may have no memory for weights."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

    rules = get_model_conversion_mapping(module)
    renamings = [rule for rule in rules if isinstance(rule, WeightRenaming)]
    converters = [rule for rule in rules if isinstance(rule, WeightConverter)]
    rule_of = {pattern: rule for rule in converters for pattern in rule.source_patterns}
    own, prefix = module.state_dict(), module.base_model_prefix
    found = {}
    for name in names:
        inside, _ = rename_source_key(name, renamings, converters)
        full, pattern = rename_source_key(name, renamings, converters, prefix, own)
        if full not in own and name in own:
            inside, full, pattern = name, name, None
        rule = None if pattern is None else rule_of[pattern]
        first, *others = rule.target_patterns if rule else [""]
        parameters = (full, *(full.replace(first, other) for other in others))
        patterns = tuple(rule.source_patterns) if rule else ()
        prefixed = bool(prefix) and inside.startswith(f"{prefix}.") and inside not in own
        shape = tuple(own[full].shape) if full in own and pattern is None else None
        found[name] = Renamed(parameters, pattern, patterns, prefixed, full in own, shape)
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


def experts_amiss(module: Any, renamed: Mapping[str, Renamed]) -> tuple[list[str], list[str]]:
    """Return the tensors that a conversion of several into one lacks, and those of experts that the module lacks."""
    own = module.state_dict()
    missing, surplus = set[str](), set[str]()
    for parameter, names in _joined(renamed).items():
        found = {(renamed[name].pattern, _number(name, renamed[name].pattern)): name for name in names}
        name = names[0]
        for pattern in renamed[name].patterns:
            numbers = range(own[parameter].shape[0]) if "*" in pattern else [None]
            missing |= {
                _spelt(name, renamed[name].pattern, pattern, number)
                for number in numbers
                if (pattern, number) not in found
            }
            surplus |= {other for (one, number), other in found.items() if one == pattern and number not in numbers}
    return sorted(missing), sorted(surplus)


def of_one_shape(renamed: Mapping[str, Renamed]) -> list[list[str]]:
    """Return the groups of tensors that must have one shape: those of experts, and gates with what they gate.

    transformers joins them, so a difference that does not change the sum of their rows would pass.
    """
    groups: defaultdict[tuple[str, str | None], list[str]] = defaultdict(list)
    for parameter, names in _joined(renamed).items():
        for name in names:
            groups[parameter, None if "gate_up" in parameter else renamed[name].pattern].append(name)
    return [sorted(names) for names in groups.values()]


def joined(module: Any, renamed: Mapping[str, Renamed]) -> list[tuple[list[str], int]]:
    """Return the tensors that a conversion joins, with the number of values that they have together."""
    own = module.state_dict()
    return [(names, own[parameter].numel()) for parameter, names in _joined(renamed).items()]


def _joined(renamed: Mapping[str, Renamed]) -> dict[str, list[str]]:
    """Return the tensors that a conversion joins, by the first parameter that they become."""
    by_parameter: defaultdict[str, list[str]] = defaultdict(list)
    for name, one in renamed.items():
        if one.used and (len(one.patterns) > 1 or "*" in str(one.pattern)):
            by_parameter[one.parameters[0]].append(name)
    return dict(by_parameter)


def _number(name: str, pattern: str | None) -> int | None:
    """Return the number of the expert in a name; None if the pattern has no place for one."""
    found = _expression(pattern).search(name)
    return int(found[1]) if found and found.groups() else None


def _spelt(name: str, pattern: str | None, other: str, number: int | None) -> str:
    """Return a tensor's name with the part that a pattern matches as another pattern has it."""
    return _expression(pattern).sub(other.replace("\\", "").replace("*", str(number)), name)


def _expression(pattern: str | None) -> re.Pattern[str]:
    return re.compile(re.escape(str(pattern)).replace(r"\*", r"(\d+)").replace(r"\\", ""))


def aliases(module: Any) -> list[set[str]]:
    """Return the groups of names of a module's state that are one parameter."""
    groups: defaultdict[int, set[str]] = defaultdict(set)
    for name, tensor in module.state_dict(keep_vars=True).items():
        groups[id(tensor)].add(name)
    return list(groups.values())
