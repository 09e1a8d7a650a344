"""Read a model's config.json, and refuse sizes that no model has before anything is built from them.

A model is built layer by layer, also without memory for its weights: a million layers take hours, and the lists that
transformers makes of their kinds fill the memory. The limits are several times above those of the largest models.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from theodolite.errors import ModelError, short
from theodolite_jobs.models.convert.files import read_json

_MOST_VALUES = 2**18
"""The most values in a configuration; lists of modules that are not quantised have tens of thousands."""

_DEEPEST = 32
"""The most objects and lists inside each other; those of transformers have six."""

_MOST_LAYERS, _MOST_EXPERTS = 2**12, 2**15

_LIMITS = (
    (re.compile(r"(layers?|blocks|depth|stages|networks|hidden_groups|group_num|attention_types)$"), _MOST_LAYERS),
    (re.compile(r"experts$"), _MOST_EXPERTS),
    (re.compile(r"(position_embeddings|n_positions|n_ctx)$"), 2**27),
    (re.compile(r"(vocab_size|^n_words|^n_token)$"), 2**24),
    (re.compile(r"(hidden_size|intermediate_size|_dim|^d_\w+|^n_(embd|inner)|rank|heads?|width)$"), 2**20),
)
"""The largest number by its name, the first that matches; families have many names for layers and widths."""

_MOST_EXPERTS_OF_ALL_LAYERS = 2**20

_LARGEST = 10**31
"""The largest other number; transformers writes 10^30 for a length without a limit."""

_TEXT_SIZES = ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size")
"""The names that the configurations of all families have for the sizes of the text part."""

_SHOWN = 100  # characters of a key in a message

_USE = "use the config.json that belongs to the weights"


def read_config(folder: Path) -> dict[str, Any]:
    """Return the object in a model's config.json, or {} without the file; raises ModelError as `check_sizes` does."""
    file = folder / "config.json"
    raw = read_json(file)
    check_sizes(raw, file)
    return raw


def check_sizes(values: Mapping[str, Any], file: Path) -> None:
    """Raise ModelError for the first size of a configuration, also of its parts, that is larger than any model's.

    Args:
        values: the entries of config.json.
        file: the file that states them, for the message.
    """
    for n_values, (key, value, depth) in enumerate(walk(values)):
        if n_values >= _MOST_VALUES:
            raise ModelError(f"{file} has more than {_MOST_VALUES:,} values, which no model has; {_USE}")
        if depth > _DEEPEST:
            raise ModelError(
                f"{file}: {_shown(key)} has more than {_DEEPEST} objects or lists inside each other; {_USE}"
            )
        if isinstance(value, int | float) and abs(value) > (most := _most(key)) and abs(value) != float("inf"):
            raise ModelError(f"{file}: {_shown(key)} is {short(value)}; allowed: at most {most:,}; {_USE}")
    for _, value, _ in walk(values):
        if isinstance(value, Mapping):
            _check_experts(value, file)


def check_text_sizes(text: Any, file: Path) -> None:
    """Raise ModelError if a size of the text part's configuration is no whole number, or not possible.

    Some families count a list or a text for the number of layers, and transformers takes true for 1.
    """
    for name in _TEXT_SIZES:
        value, most = getattr(text, name, None), _most(name)
        if value is not None and not (type(value) is int and 1 <= value <= most):
            raise ModelError(f"{file}: {name} is {short(value)}; allowed: a whole number from 1 to {most:,}; {_USE}")


def walk(values: Mapping[str, Any]) -> Iterator[tuple[str, Any, int]]:
    """Yield each value inside an object, and the object itself, with the path of its key and its depth."""
    pending: list[tuple[str, Any, int]] = [("", values, 0)]
    while pending:
        key, value, depth = pending.pop()
        yield key, value, depth
        if isinstance(value, Mapping):
            pending += [(f"{key}.{name}".lstrip("."), one, depth + 1) for name, one in value.items()]
        elif isinstance(value, list | tuple):
            pending += [(key, one, depth + 1) for one in value]


def _most(key: str) -> int:
    name = key.rpartition(".")[2]
    return next((most for names, most in _LIMITS if names.search(name)), _LARGEST)


def _shown(key: str) -> str:
    return key if len(key) <= _SHOWN else f"{key[:_SHOWN]}…"


def _check_experts(part: Mapping[str, Any], file: Path) -> None:
    """Raise ModelError if the experts of all layers together are more than any model has."""
    counts = [(_most(name), value) for name, value in part.items() if type(value) is int]
    layers = max((count for most, count in counts if most == _MOST_LAYERS), default=0)
    experts = max((count for most, count in counts if most == _MOST_EXPERTS), default=0)
    if layers * experts > _MOST_EXPERTS_OF_ALL_LAYERS:
        raise ModelError(
            f"{file} states {layers} layers of {experts} experts; allowed: at most {_MOST_EXPERTS_OF_ALL_LAYERS:,} "
            f"experts together; {_USE}"
        )
