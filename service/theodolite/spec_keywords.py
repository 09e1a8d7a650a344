"""A spec from keywords: a survey in one line of Python."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from theodolite.errors import SpecError
from theodolite.spec import SurveySpec
from theodolite.spec_file import parse_spec, read_spec

GivenSpec = Mapping[str, Any] | str | Path | SurveySpec | None
"""A spec as a dictionary, as the path of a YAML or JSON file, or as a parsed one; None if keywords give all of it."""

_CONTRAST = "main"


def spec_of_keywords(given: GivenSpec = None, **keywords: Any) -> tuple[SurveySpec, Path]:
    """Return a spec and the folder of its relative paths, from a spec and from keywords that replace its sections.

    `model` is a mapping, or an id, folder or file as text. `prompts` has a mapping for each set, a source as text, or
    the prompts: a list, or a column of pandas or of `datasets`. `positive` and `negative` are the prompts of two sets
    of these names, with a contrast between them, which is paired with `paired=True`. Other keywords are the other
    sections of a spec.

    Raises:
        SpecError: the result is not a valid survey, or prompts have several columns.
    """
    if isinstance(given, str | Path):
        spec, folder = read_spec(Path(given)).model_dump(mode="json", exclude_unset=True), Path(given).parent
    else:
        spec = given.model_dump(mode="json", exclude_unset=True) if isinstance(given, SurveySpec) else dict(given or {})
        folder = Path()
    sides = {side: keywords.pop(side) for side in ("positive", "negative") if keywords.get(side) is not None}
    is_paired = bool(keywords.pop("paired", False))
    spec |= {name: value for name, value in keywords.items() if value is not None}
    if isinstance(spec.get("model"), str | Path):
        spec["model"] = {"id": str(spec["model"])}
    if len(sides) == 1:
        raise SpecError(f"{next(iter(sides))}: a contrast has two sets; give both positive and negative")
    if sides:
        spec["prompts"] = {**spec.get("prompts", {}), **sides}
        between = {"positive": "positive", "negative": "negative", "paired": is_paired}
        spec["contrasts"] = {**spec.get("contrasts", {}), _CONTRAST: between}
    elif is_paired:
        raise SpecError("paired: only the contrast of positive and negative has it; set it in contrasts")
    prompts = spec.get("prompts", {})
    if isinstance(prompts, Mapping):
        spec["prompts"] = {name: _prompt_set(name, value) for name, value in prompts.items()}
    return parse_spec(spec), folder


def _prompt_set(name: str, given: Any) -> Any:
    """Return the mapping of a prompt set."""
    if isinstance(given, Mapping):
        return given
    if isinstance(given, str):
        return {"source": given}
    columns = getattr(given, "column_names", None)  # of `datasets`
    if columns is None:
        columns = getattr(given, "columns", None)  # of pandas
    if columns is not None:
        raise SpecError(
            f"prompts.{name}: given a table with the columns {', '.join(map(str, columns))}; give one column of it"
        )
    try:
        texts = list(given)
    except TypeError:
        raise SpecError(f"prompts.{name}: given {given!r}; allowed: a list of prompts, a source, a mapping") from None
    return {"source": "inline", "texts": texts}
