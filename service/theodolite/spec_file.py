"""Read a spec; errors name the field, the given value and the allowed values."""

import json
from collections import Counter
from collections.abc import Hashable
from pathlib import Path
from typing import Any, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from theodolite.errors import SpecError, short
from theodolite.spec import SurveySpec
from theodolite.spec_parts import PATTERNS

_MAX_PROBLEMS = 20
"""Maximum number of problems of a spec in an error message."""

_MAX_BUILT = 1_000
"""Maximum number of problems of which Pydantic builds Python objects."""

_MAX_LINE = 450
"""Maximum length of the line of a problem; a field in it may have any name."""

_MAX_CHARACTERS = 2**20
"""Maximum length of a spec file; the service accepts as much."""

_PROMPT_RULE = "must be a text, or a list of messages: [[{role: …, content: …}]]"

_MAX_VALUES = 100_000
"""Maximum number of values in a spec file; a few lines of YAML with aliases can stand for any number of them."""


def read_spec(path: Path) -> SurveySpec:
    """Return the spec of a YAML or JSON file.

    Raises:
        SpecError: the file cannot be read, is neither YAML nor JSON, or is not a valid survey. The message names each
            invalid field, the given value and the allowed values.
    """
    try:
        with path.open(encoding="utf-8-sig") as file:
            text = file.read(_MAX_CHARACTERS + 1)
    except UnicodeDecodeError as error:
        raise SpecError(f"cannot read the spec {path}: it is no text in UTF-8; a spec is YAML or JSON") from error
    except OSError as error:
        raise SpecError(f"cannot read the spec {path}: {error}") from error
    return parse_spec(parse_text(text, str(path)), str(path))


def parse_text(text: str, origin: str = "the text", yaml_characters: int = _MAX_CHARACTERS) -> dict[str, Any]:
    """Return the mapping in a YAML or JSON text, which may be no spec.

    Args:
        text: the text.
        origin: names the text in error messages.
        yaml_characters: maximum length of YAML; reading it takes about 100 times as long as reading JSON.

    Raises:
        SpecError: the text cannot be read as YAML or JSON, is too long, or holds no mapping.
    """
    if len(text) > _MAX_CHARACTERS:
        raise SpecError(f"{origin} is longer than a spec may be ({_MAX_CHARACTERS:,} characters)")
    try:
        data = _parse_json_or_yaml(text, yaml_characters)
        size = _count(data, {})
    # YAML with a tag such as !!int, but another value, raises errors of many types.
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
        raise SpecError(f"{origin} cannot be read as YAML or JSON: {_in_one_line(error)}") from error
    if size > _MAX_VALUES:
        raise SpecError(f"{origin}: its aliases stand for more than {_MAX_VALUES:,} values, or a value contains itself")
    if not isinstance(data, dict):
        raise SpecError(f"{origin} must hold a mapping with the keys {', '.join(SurveySpec.model_fields)}")
    return data


def parse_spec(data: dict[str, Any], origin: str = "spec") -> SurveySpec:
    """Return the spec of a mapping; raises SpecError as `read_spec` does. `origin` names the source in the message."""
    try:
        return SurveySpec.model_validate(data)
    except ValidationError as error:
        raise SpecError("\n".join([f"{origin} is not a valid survey:", *_lines(error)])) from error


def _lines(error: ValidationError) -> list[str]:
    """Return a line for each of the first problems, and the number of the others."""
    lines: dict[str, None] = {}
    for index, problem in enumerate(first_problems(error)):
        if len(lines) == _MAX_PROBLEMS:
            return [*lines, f"  and {error.error_count() - index} more"]
        lines[_shortened(f"  {_describe(problem)}")] = None
    return list(lines)


def first_problems(error: ValidationError) -> list[Any]:
    """Return the problems of a validation; of thousands, only the first, without the given values.

    Pydantic cannot return a part of them, and makes all other threads wait while it builds them.
    """
    if error.error_count() <= _MAX_BUILT:
        return error.errors(include_url=False)
    text, start, problems = error.json(include_url=False, include_context=False, include_input=False), 1, []
    for _ in range(_MAX_PROBLEMS + 1):
        problem, end = json.JSONDecoder().raw_decode(text, start)
        problems.append(problem)
        start = end + 1  # behind the comma
    return problems


def _shortened(line: str) -> str:
    return line if len(line) <= _MAX_LINE else f"{line[: _MAX_LINE - 1]}…"


def parse_json(text: str | bytes) -> Any:
    """Return the value of strict JSON; raises ValueError for duplicate keys, NaN, infinity and lone surrogates.

    Python's own parser accepts them, but a digest needs an unambiguous value.
    """
    try:
        data = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant)
        json.dumps(data, ensure_ascii=False).encode()
    except RecursionError as error:
        raise ValueError("the JSON is nested too deeply") from error
    return data


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in pairs:
        if key in values:
            raise ValueError(f"the key {key[:60]} is given twice; give it once")
        values[key] = value
    return values


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not valid JSON; use null or a number")


_MERGE = "tag:yaml.org,2002:merge"


class _UniqueKeyLoader(yaml.SafeLoader):
    """A YAML loader that refuses duplicate keys and merge keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        for key, _ in node.value:
            if key.tag == _MERGE:
                raise _refused(key, "merge keys (<<) are not allowed; repeat the values")
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        counts = Counter(key for key in keys if isinstance(key, Hashable))  # the base class refuses the others
        twice = next((key for key, count in counts.items() if count > 1), None)
        if twice is not None:
            last = max(index for index, key in enumerate(keys) if key == twice)
            raise _refused(node.value[last][0], f"{twice} is given twice")
        return super().construct_mapping(node, deep)


def _refused(node: yaml.Node, problem: str) -> yaml.constructor.ConstructorError:
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


def _parse_json_or_yaml(text: str, yaml_characters: int) -> Any:
    try:
        return parse_json(text)  # YAML is almost a superset of JSON; tabs and escaped emoji are exceptions
    except ValueError as error:
        if len(text) > yaml_characters:
            allowed = f"as YAML it has {len(text):,} characters, and {yaml_characters:,} are allowed; write it as JSON"
            raise ValueError(f"{error}; {allowed}") from error
        return yaml.load(text, _UniqueKeyLoader)


def _in_one_line(error: Exception) -> str:
    """Return the message of an error, for YAML with the place, but without the line that it shows."""
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return " ".join(str(error).split())
    return f"line {mark.line + 1}, column {mark.column + 1}: {getattr(error, 'problem', error)}"


def _count(value: Any, known: dict[int, int]) -> int:
    """Return the number of values in a value, those of an alias once for each use; `known` has counts by identity."""
    if not isinstance(value, dict | list):
        return 1
    if id(value) not in known:
        known[id(value)] = _MAX_VALUES + 1  # until it is counted: it may contain itself
        parts = value.values() if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(_count(part, known) for part in parts)
    return known[id(value)]


def _describe(problem: Any) -> str:
    # For unions, Pydantic adds the tried branch to the location, such as `list[int]`, which is not a field.
    parts = [str(part) for part in problem["loc"]]
    field = ".".join(part for part in parts if "[" not in part and not part.startswith("function-")) or "survey"
    message = problem["msg"].removeprefix("Value error, ")
    kind = problem["type"]
    if kind == "missing":
        return f"{field}: is required"
    if "input" not in problem:
        return f"{field}: {message[0].lower()}{message[1:]}"
    if kind == "extra_forbidden":
        return f"{field}: unknown field, given {short(problem['input'])}; allowed: {_allowed_fields(problem['loc'])}"
    if kind == "value_error" and isinstance(problem["input"], dict):
        return message if field == "survey" else f"{field}: {message}"
    if kind == "model_type":
        message = f"must be a mapping of {_allowed_fields((*problem['loc'], ''))}"
    if kind == "dict_type":
        message = "must be a mapping"
    if kind == "string_pattern_mismatch":
        message = PATTERNS[problem["ctx"]["pattern"]]
    given = short(problem["input"])
    if kind == "too_long":
        given = f"{len(problem['input']):,} entries"
        message = f"allowed: at most {problem['ctx']['max_length']:,}"
    if parts[:1] == ["prompts"] and parts[2:3] == ["texts"]:  # errors end up in logs, so they quote no prompt
        given = f"a value of type {type(problem['input']).__name__}"
        message = _PROMPT_RULE if kind == "string_type" else message
    return f"{field}: given {given}; {message[0].lower()}{message[1:]}"


def _allowed_fields(location: tuple[Any, ...]) -> str:
    """Return the allowed fields of the mapping that contains the unknown field at the end of `location`."""
    owner, keys = SurveySpec.model_fields, iter(location[:-1])
    for key in keys:
        if key in owner:
            annotation = owner[key].annotation
            owner = _fields_of(annotation) or owner
            if get_origin(annotation) is dict:
                next(keys, None)  # the name of a set or a contrast
    return ", ".join(owner)


def _fields_of(annotation: Any) -> dict[str, FieldInfo] | None:
    """Return the fields of the Pydantic model in a type such as `dict[Name, PromptSetSpec]` or `DrawSpec | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation.model_fields
    return next((fields for part in get_args(annotation) if (fields := _fields_of(part))), None)
