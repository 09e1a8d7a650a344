"""Many small cases as one test, in a tenth of the time of as many tests; its report names each case that fails.

All cases of a test share its fixtures, except `tmp_path` and `monkeypatch`.
Use `pytest.mark.parametrize` where a case takes more than a moment, or needs a fixture of its own.
"""

import inspect
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest


def each(names: str, values: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that calls a test with each value, or each tuple of values, for `names` (divided by commas).

    Each case has a folder of its own as `tmp_path`, and a `monkeypatch` that ends with it. Decorators above each other
    give all combinations.
    """
    keys = [name.strip() for name in names.split(",")]
    cases = [dict(zip(keys, value if len(keys) > 1 else (value,), strict=True)) for value in values]

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        inner = getattr(test, "cases", [{}])
        function = getattr(test, "of_one_case", test)
        all_cases = [one | other for one in cases for other in inner]
        wanted = [name for name in inspect.signature(function).parameters if name not in all_cases[0]]

        def run(subtests: pytest.Subtests, **fixtures: Any) -> None:
            for number, case in enumerate(all_cases):
                shown = {name: getattr(value, "__name__", repr(value))[:80] for name, value in case.items()}
                with subtests.test(f"{number}", **shown):
                    _run_case(function, fixtures, case, number)

        fixtures = ["subtests", *(name for name in wanted if name != "monkeypatch")]
        parameters = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in dict.fromkeys(fixtures)]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__name__, run.__doc__, run.__module__ = function.__name__, function.__doc__, function.__module__
        run.cases, run.of_one_case, run.place_as = all_cases, function, function  # type: ignore[attr-defined]
        return run

    return decorate


def together(*checks: Callable[..., None]) -> Callable[..., None]:
    """Return one test of several checks of the same fixture; each gets the fixtures that it names."""
    wanted = dict.fromkeys(name for check in checks for name in inspect.signature(check).parameters)

    def run(check: Callable[..., None], **fixtures: Any) -> None:
        check(**{name: fixtures[name] for name in inspect.signature(check).parameters})

    parameters = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in ("check", *wanted)]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__doc__, run.__module__ = None, checks[0].__module__
    test = each("check", checks)(run)
    test.place_as = checks[0]  # type: ignore[attr-defined]
    return test


def _run_case(function: Callable[..., None], fixtures: dict[str, Any], case: dict[str, Any], number: int) -> None:
    own = dict(fixtures)
    if "tmp_path" in own:
        own["tmp_path"] = Path(own["tmp_path"], str(number))
        own["tmp_path"].mkdir()
    with pytest.MonkeyPatch.context() as patch:
        if "monkeypatch" in inspect.signature(function).parameters:
            own["monkeypatch"] = patch
        function(**own, **case)
