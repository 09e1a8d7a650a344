"""Commands that inspect a spec, the schema of specs, a model, or the table of families."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from theodolite_jobs.commands.options import AsJson, ModelId, Revision, SpecPath, print_value, settings_of, spec_of


def check_spec(spec: SpecPath, as_json: AsJson = False) -> None:
    """Check a spec file and its prompts. Each error names the field, the given value and the allowed values.

    The model, prompts on the hub and uploads are not looked up; `theodolite plan` does that.

    For example: theodolite spec check survey.yaml
    """
    from theodolite.store.uploads import with_uploaded_texts
    from theodolite_jobs.prompts.sources import check_pairs, read_prompts

    parsed = spec_of(spec)
    here = [(name, one) for name, one in parsed.prompts.items() if not one.source.startswith(("hub:", "upload:"))]
    sizes = {name: len(read_prompts(name, one, spec.parent)) for name, one in here}
    check_pairs(parsed, sizes)
    digest = with_uploaded_texts(parsed).digest()  # the id of its survey job
    if as_json:
        print(json.dumps({"valid": True, "digest": digest, "prompts": sizes}))
        return
    counts = ", ".join(f"{name} {n}" for name, n in sizes.items())
    read = f"; prompts: {counts}" if counts else ""
    unread = ["the model", *(f"the prompts of {name}" for name in parsed.prompts if name not in sizes)]
    print(
        f"{spec} is a valid survey; digest {digest}{read}; not looked up (`theodolite plan` does): {', '.join(unread)}"
    )


def print_schema() -> None:
    """Print the JSON Schema of specs, with a description of each field.

    For example: theodolite spec schema > survey.schema.json
    """
    from theodolite.spec import SurveySpec

    print(json.dumps(SurveySpec.model_json_schema(), indent=2))


def inspect(
    model: ModelId,
    revision: Revision = None,
    trust_remote_code: Annotated[
        bool,
        typer.Option(
            "--trust-remote-code",
            help="Allow the model's own Python code to run. THEODOLITE_REMOTE_CODE_ALLOWED must list the model.",
        ),
    ] = False,
    adapter: Annotated[
        str | None, typer.Option(help="Adapter of peft, a local folder or a hub id, which is merged into the model.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the family, sizes, norms, kind of positions, biases and sites of a model, without loading its weights.

    For example: theodolite model smollm2-135m-instruct
    """
    import gc

    gc.disable()  # collections during the import of torch take a fifth of the command's time and free nothing

    from theodolite.errors import SpecError
    from theodolite.spec_parts import ModelSpec
    from theodolite_jobs.inspection import inspect_model

    if not model:
        raise SpecError("MODEL: given ''; allowed: a hub id, a folder, a .gguf file or an alias")
    if adapter is not None and (not adapter or trust_remote_code):
        raise SpecError(f"--adapter: given {adapter!r}; allowed: a folder or a hub id, without --trust-remote-code")
    model_spec = ModelSpec(id=model, revision=revision, trust_remote_code=trust_remote_code, adapter=adapter)
    print_value(inspect_model(model_spec, Path(), settings_of()), as_json)


def families(as_json: AsJson = False) -> None:
    """List the model families, and what a survey can do with each: sites, heads, words, parallelism, half precision.

    For example: theodolite families
    """
    from theodolite_jobs.models.supported import COLUMNS, cells, supported_families

    rows = supported_families()
    if as_json:
        print(json.dumps({"items": [asdict(row) for row in rows]}))
        return
    table = [COLUMNS, *map(cells, rows)]
    widths = [max(len(line[column]) for line in table) for column in range(len(COLUMNS) - 1)]
    for line in table:
        aligned = (cell.ljust(width) for cell, width in zip(line, [*widths, 0], strict=True))
        print("  ".join(aligned).rstrip())
