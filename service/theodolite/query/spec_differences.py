"""The options in which the surveys of several runs differ."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from theodolite.query.runs import spec_of_results
from theodolite.store.runs import Run


def spec_differences(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return the options whose values differ between the specs of these runs, in the order of the spec.

    Each has the option's path in the spec as `option`, such as `capture.batch_tokens`, and as `values` its value for
    each run id. A run whose spec lacks the option, such as a prompt set, has no value.
    """
    options = {run.id: dict(_options(spec_of_results(run).model_dump(mode="json"))) for run in runs}
    paths = dict.fromkeys(path for of_run in options.values() for path in of_run)
    found = {path: {run_id: of_run[path] for run_id, of_run in options.items() if path in of_run} for path in paths}
    return [
        {"option": path, "values": values}
        for path, values in found.items()
        if len(values) < len(options) or any(value != next(iter(values.values())) for value in values.values())
    ]


def _options(values: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the path and the value of each option; an empty mapping is a value."""
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield from _options(value, f"{path}{name}.")
        else:
            yield f"{path}{name}", value
