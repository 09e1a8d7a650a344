"""Reading a spec, and saying what is wrong with it: which field, what was given, what is allowed."""

import json
from pathlib import Path
from typing import Any, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from theodolite.errors import SpecError
from theodolite.spec import SurveySpec

_PROBLEMS = 20
"""Problems of a spec that are named; whoever has more mends some first."""


def read_spec(path: Path) -> SurveySpec:
    """Read a YAML or JSON spec file.

    Raises:
        SpecError: the file cannot be read, is not YAML, or is not a valid survey; the message names each field,
            what was given and what is allowed.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"cannot read the spec {path}: {error}") from error
    try:
        data = _parse_json_or_yaml(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise SpecError(f"{path} is neither YAML nor JSON: {error}") from error
    if not isinstance(data, dict):
        raise SpecError(f"{path} must hold a mapping with the keys {', '.join(SurveySpec.model_fields)}")
    return parse_spec(data, str(path))


def parse_spec(data: dict[str, Any], origin: str = "spec") -> SurveySpec:
    """Check a survey that was read from anywhere; raises SpecError as `read_spec` does."""
    try:
        return SurveySpec.model_validate(data)
    except ValidationError as error:
        lines = list(dict.fromkeys(f"  {_describe(problem)}" for problem in error.errors(include_url=False)))
        more = [f"  and {len(lines) - _PROBLEMS} more"] if len(lines) > _PROBLEMS else []
        raise SpecError("\n".join([f"{origin} is not a valid survey:", *lines[:_PROBLEMS], *more])) from error


def parse_json(text: str | bytes) -> Any:
    """Return what JSON says, where it says one thing; raises ValueError where it does not.

    Python's reader takes the last of a key given twice, NaN, and halves of characters; a digest of those is none.
    """
    try:
        data = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant)
        json.dumps(data, ensure_ascii=False).encode()
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    return data


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"{key[:60]} is given twice")
        found[key] = value
    return found


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


class _UniqueKeyLoader(yaml.SafeLoader):
    """YAML in which a key given twice is a mistake, and not the last one's victory."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        twice = {str(key) for key in keys if keys.count(key) > 1}
        if twice:
            raise yaml.constructor.ConstructorError(
                None, None, f"{', '.join(sorted(twice))} is given twice", node.start_mark
            )
        return super().construct_mapping(node, deep)


def _parse_json_or_yaml(text: str) -> Any:
    try:
        return parse_json(text)  # YAML is nearly a superset of JSON, but not for tabs and escaped emoji
    except ValueError:
        return yaml.load(text, _UniqueKeyLoader)


def _describe(problem: Any) -> str:
    # Pydantic adds the branch of a union that it tried, such as `list[int]`, which is nobody's field.
    parts = [str(part) for part in problem["loc"]]
    field = ".".join(part for part in parts if "[" not in part and not part.startswith("function-")) or "survey"
    message = problem["msg"].removeprefix("Value error, ")
    kind = problem["type"]
    if kind == "missing":
        return f"{field}: is required"
    if kind == "extra_forbidden":
        return f"{field}: unknown field, given {_short(problem['input'])}; allowed: {_allowed_fields(problem['loc'])}"
    if kind == "value_error" and isinstance(problem["input"], dict):
        return message if field == "survey" else f"{field}: {message}"
    if kind == "model_type":
        message = f"must be a mapping of {_allowed_fields((*problem['loc'], ''))}"
    if kind == "dict_type":
        message = "must be a mapping"
    if kind == "string_pattern_mismatch":
        message = f"must match {problem['ctx']['pattern']}"
    return f"{field}: given {_short(problem['input'])}; {message[0].lower()}{message[1:]}"


def _allowed_fields(location: tuple[Any, ...]) -> str:
    """Return the fields of the part of a spec that an unknown field stands in, the last of `location`."""
    owner, keys = SurveySpec.model_fields, iter(location[:-1])
    for key in keys:
        if key in owner:
            annotation = owner[key].annotation
            owner = _fields_of(annotation) or owner
            if get_origin(annotation) is dict:
                next(keys, None)  # the name of a set or a contrast
    return ", ".join(owner)


def _fields_of(annotation: Any) -> dict[str, FieldInfo] | None:
    """Return the fields of the model in a type such as `dict[Name, PromptSetSpec]` or `DrawSpec | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation.model_fields
    return next((fields for part in get_args(annotation) if (fields := _fields_of(part))), None)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
