"""The estimated cost of a survey as text."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from theodolite.spec_parts import SENTENCES, Label
from theodolite_jobs.example import marked_text

DEVICES = ("one CPU core", "one H200 GPU")
"""The devices whose seconds are estimated."""

_SET_COLUMNS = ("prompts", "template", "positions", "tokens", "computed_tokens", "shared_prefix", "shards", "batches")

_GPU_COLUMNS = {
    "gpus_per_replica": "GPUs a replica",
    "parallelism": "parallelism",
    "memory_per_gpu_bytes": "memory of each",
    "cores_per_replica": "cores a replica",
    "batch_tokens": "tokens a batch",
    "hours_on_one_node": "hours on a node",
    "dollars_per_million_prompts": "$ a million prompts",
}

_LEAST_HOURS = 0.01


def plan_text(found: Mapping[str, Any]) -> str:
    """Return what `plan_survey` found as text: tables of sets, of the parts of the survey, and of kinds of GPUs."""
    parts = (
        _head(found),
        _sets(found["sets"]),
        list(_prompts(found)),
        cost_lines(found["parts_about"], found["on_request_about"]),
        _on_gpus(found["on_gpus_about"]),
    )
    return "\n\n".join("\n".join(lines) for lines in parts if lines)


def cost_lines(parts: Mapping[str, Any], on_request: Mapping[str, Any]) -> list[str]:
    """Return the lines of a table of the parts of a survey: seconds on a core and on a GPU, and bytes."""
    named = {**parts, **{f"{name} (not requested)": part for name, part in on_request.items()}}
    rows = [
        (name, *(short(part["seconds"].get(device), "s") for device in DEVICES), short(part["bytes"], "B"))
        for name, part in named.items()
    ]
    return _table([("about", *DEVICES, "stored, at most"), *rows])


def short(value: float | None, unit: str) -> str:
    """Return a number with two digits and a unit in steps of 1000, such as `3.1 kB`; empty if there is none."""
    if value is None:
        return ""
    if 0 < value < 1:
        return f"under 1 {unit}"
    prefixes = ("", "k", "M", "G", "T") if unit == "B" else ("",)
    step = min(len(prefixes) - 1, int(math.log10(max(value, 1)) // 3))
    return f"{float(f'{value / 1000**step:.2g}'):,g} {prefixes[step]}{unit}"


def marked_tokens(tokens: Sequence[str], positions: Sequence[Label] | str) -> str:
    """Return the last tokens of a prompt in quotes, those that are measured in ⟦ ⟧."""
    quoted = (json.dumps(token, ensure_ascii=False) for token in tokens)
    measured = (positions == "all" or str(position) in map(str, positions) for position in range(-len(tokens), 0))
    return " ".join(f"⟦{token}⟧" if is_measured else token for token, is_measured in zip(quoted, measured, strict=True))


def _head(found: Mapping[str, Any]) -> list[str]:
    model = dict(found["model"])
    name, parameters, revision = (model.pop(key) for key in ("name", "parameters", "revision"))
    sizes = [f"{key} {_cell(value)}" for key, value in model.items() if value is not None]
    lines = {
        "run": found["run_id"],
        "model": f"{name}, {parameters:,} parameters",
        "revision": str(revision or ""),
        "sizes": ", ".join(sizes),
        "batches": f"{found['batch_tokens']:,} tokens, in shards of {found['shard_prompts']:,} prompts",
        "memory": f"{short(found['replica_memory_bytes'], 'B')} of a replica",
        "weights": short(found.get("random_weights_bytes"), "B"),
        "tokens": f"counted by {found['tokens_counted_by']}",
    }
    warnings = [f"{'warning':8} {text}" for text in found.get("warnings", ())]
    return [f"{key:8} {text}" for key, text in lines.items() if text] + warnings


def _sets(sets: Mapping[str, Mapping[str, Any]]) -> list[str]:
    if not sets:
        return []
    titles = [name.replace("_", " ") for name in _SET_COLUMNS]
    table = [[name, *(_cell(facts[column]) for column in _SET_COLUMNS)] for name, facts in sets.items()]
    others = [
        f"{name}: {key.replace('_', ' ')} {_cell(value)}"
        for name, facts in sets.items()
        for key, value in facts.items()
        if key not in (*_SET_COLUMNS, "last_tokens", "measured")
    ]
    if SENTENCES in sets:
        others.append(f"{SENTENCES}: the texts of `words`, for the paths of their tokens through the layers")
    return [*_table([["set", *titles], *table]), *others]


def _prompts(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield the last tokens of the first prompt of each set, and a whole prompt."""
    shown = {name: facts for name, facts in found["sets"].items() if "last_tokens" in facts}
    if shown:
        yield "the last tokens of the first prompts, the measured ones in ⟦ ⟧"
    for name, facts in shown.items():
        yield f"{name}: {marked_tokens(facts['last_tokens'], facts['positions'])}"
        for one in facts.get("measured", ()):
            yield f"{name}, prompt {one['prompt']}, {one['position']}: {one['text']}"
    if example := found.get("example"):
        yield f"the first prompt of {example['set']}: {marked_text(example['parts'])}"


def _on_gpus(kinds: Mapping[str, Mapping[str, Any]]) -> list[str]:
    rows, too_small = [], []
    for kind, facts in kinds.items():
        if facts["gpus_per_replica"] is None:
            too_small.append(f"{kind}: {facts['why']}")
            continue
        hours = facts["hours_on_one_node"]
        shown = {
            **facts,
            "memory_per_gpu_bytes": short(facts["memory_per_gpu_bytes"], "B"),
            "hours_on_one_node": hours if hours >= _LEAST_HOURS else f"under {_LEAST_HOURS}",
        }
        rows.append([kind, *(_cell(shown[column]) for column in _GPU_COLUMNS)])
    return [*_table([["capture on GPUs, about", *_GPU_COLUMNS.values()], *rows]), *too_small]


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(_cell, value))
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return "" if value is None else str(value)


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table whose first column is aligned on the left, and the others on the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join([first.ljust(widths[0]), *(one.rjust(width) for one, width in zip(rest, widths[1:], strict=True))])
        for first, *rest in rows
    ]
