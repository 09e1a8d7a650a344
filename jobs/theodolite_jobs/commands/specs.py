"""Commands that only look: at a spec, at the schema of all specs, at a model."""

import json
from pathlib import Path
from typing import Annotated

import typer

from theodolite_jobs.commands.options import AsJson, ModelId, Revision, SpecPath, print_value, settings_of, spec_of


def check_spec(spec: SpecPath, as_json: AsJson = False) -> None:
    """Check a spec file; every problem names its field, what was given and what is allowed."""
    checked = spec_of(spec)
    if as_json:
        print(json.dumps({"valid": True, "digest": checked.digest()}))
    else:
        print(f"{spec} is a valid survey; digest {checked.digest()}")


def print_schema() -> None:
    """Print the JSON Schema of specs, with a description of every field."""
    from theodolite.spec import SurveySpec

    print(json.dumps(SurveySpec.model_json_schema(), indent=2))


def inspect(
    model: ModelId,
    revision: Revision = None,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run the model's own code, where the deployment allows it.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Say a model's family, sizes, norms, positions, biases and sites, and what it lacks. Loads no weights.

    For example: theodolite model inspect smollm2-135m-instruct
    """
    import gc

    gc.disable()  # looking through what importing torch made, which stays, takes a fifth of the time

    from theodolite.errors import SpecError
    from theodolite.spec import ModelSpec
    from theodolite_jobs.inspection import inspect_model

    if not model:
        raise SpecError("MODEL is empty: give a hub id, a folder, a .gguf file or an alias")
    asked = ModelSpec(id=model, revision=revision, trust_remote_code=trust_remote_code)
    print_value(inspect_model(asked, Path(), settings_of()), as_json)
