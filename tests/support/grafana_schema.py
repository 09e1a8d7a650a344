"""Grafana's schema, as its SDK carries it. Grafana ignores what it does not know: a misspelt key shows nothing."""

import json
import warnings
from collections.abc import Iterator
from enum import Enum
from typing import Any, Union, get_args, get_origin, get_type_hints

from beartype import BeartypeConf
from beartype.door import is_bearable

with warnings.catch_warnings():
    # The SDK prefers the schema's second version; dashboards in files are of the first.
    warnings.simplefilter("ignore", DeprecationWarning)
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins
    from grafana_foundation_sdk.cog.runtime import panelcfg_config
    from grafana_foundation_sdk.models import units
    from grafana_foundation_sdk.models.dashboard import Dashboard

register_default_plugins()

_UNITS = {unit for unit in vars(units).values() if isinstance(unit, str)}
_WHOLE_IS_NUMBER = BeartypeConf(is_pep484_tower=True)


def mistakes(dashboard: dict[str, Any]) -> Iterator[str]:
    """Yield what Grafana does not know: types of panels, units, keys that its model drops, values outside a choice."""
    for panel in dashboard["panels"]:
        if panel["type"] != "row" and panelcfg_config(panel["type"]) is None:
            yield f"no panel has the type {panel['type']}"
        unit = panel.get("fieldConfig", {}).get("defaults", {}).get("unit", "none")
        if unit not in _UNITS and not unit.startswith("suffix:"):
            yield f"{unit} is no unit"
    yield from _of_object(Dashboard, dashboard, "dashboard")


def _of_object(kind: Any, given: dict[str, Any], place: str) -> Iterator[str]:
    known = kind.from_json(given)
    yield from _dropped(given, json.loads(json.dumps(known, cls=JSONEncoder)), place)
    yield from _of_attributes(known, place)


def _dropped(given: Any, kept: Any, place: str) -> Iterator[str]:
    if isinstance(given, dict) and isinstance(kept, dict):
        yield from (f"{place}.{key} is not known" for key in given.keys() - kept.keys())
        for key in given.keys() & kept.keys():
            yield from _dropped(given[key], kept[key], f"{place}.{key}")
    elif isinstance(given, list) and isinstance(kept, list):
        for index, (one, other) in enumerate(zip(given, kept, strict=True)):
            yield from _dropped(one, other, f"{place}[{index}]")


def _of_attributes(known: Any, place: str) -> Iterator[str]:
    for name, kind in get_type_hints(type(known)).items():
        yield from _of_value(_choices(kind), getattr(known, name), f"{place}.{name}")


def _of_value(kinds: tuple[Any, ...], value: Any, place: str) -> Iterator[str]:
    if isinstance(value, list):
        of_items = tuple(choice for kind in kinds for item in get_args(kind) for choice in _choices(item))
        for index, item in enumerate(value):
            yield from _of_value(of_items, item, f"{place}[{index}]")
    elif hasattr(value, "to_json"):
        yield from _of_attributes(value, place)
    elif isinstance(value, dict) and (models := [kind for kind in kinds if hasattr(kind, "from_json")]):
        yield from _of_object(models[0], value, place)  # the SDK left it as it was
    elif not any(_is_one(kind, value) for kind in kinds):
        yield f"{place} cannot be {value!r}"


def _choices(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) is Union else (kind,)


def _is_one(kind: Any, value: Any) -> bool:
    if isinstance(kind, type) and issubclass(kind, Enum):
        return value in {member.value for member in kind}
    return is_bearable(value, kind, conf=_WHOLE_IS_NUMBER)
