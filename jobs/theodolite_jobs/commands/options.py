"""What several commands take and print."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from theodolite.settings import Settings
    from theodolite.spec import SurveySpec
    from theodolite.store.runs import Run

SpecPath = Annotated[Path, typer.Argument(metavar="SPEC", help="A YAML or JSON file that says what to measure.")]
RunId = Annotated[str, typer.Argument(metavar="RUN", help="A run id, as `theodolite runs` lists them.")]
ModelId = Annotated[str, typer.Argument(metavar="MODEL", help="Hub id, folder, .gguf file, or an alias.")]
Revision = Annotated[str | None, typer.Option(help="Hub revision; by default the newest.")]
Store = Annotated[
    str | None,
    typer.Option(help="Folder or file://, s3://, gs://, az:// URL.", show_default="./theodolite-store"),
]
Ray = Annotated[str | None, typer.Option(help="Address of a Ray cluster; without one, Ray starts on this machine.")]
Dask = Annotated[str | None, typer.Option(help="Address of a Dask scheduler; without one, this machine's threads.")]
Replicas = Annotated[int | None, typer.Option(min=1, help="Copies of the model; by default one for each GPU.")]
Gpus = Annotated[int | None, typer.Option(min=0, help="GPUs that one copy of the model is spread over.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on the last line.")]


def settings_of(**given: Any) -> "Settings":
    """Return the environment's settings, overridden by those that were given on the command line and are not None."""
    from theodolite.settings import read_settings

    return read_settings(**given)


def spec_of(path: Path) -> "SurveySpec":
    """Return the survey that a file asks for."""
    from theodolite.spec_file import read_spec

    return read_spec(path)


def run_of(run_id: str, settings: "Settings") -> "Run":
    """Return a run of the store."""
    from theodolite.store.runs import open_run

    return open_run(settings.store, run_id)


def print_outcome(run: "Run", as_json: bool) -> None:
    """Print which run a command made or changed, and where its report is."""
    from theodolite.query.runs import run_state

    outcome = {"run_id": run.id, "store": run.store, "report": run.report, "state": run_state(run)}
    if as_json:
        print(json.dumps(outcome))
    else:
        print(f"run     {run.id}")
        if outcome["state"] == "complete":
            print(f"report  {run.report}")


def print_value(value: dict[str, Any], as_json: bool) -> None:
    """Print a dictionary, as YAML for people."""
    if as_json:
        print(json.dumps(value))
        return
    import yaml

    # Sentences stay on their line: a terminal wraps them, and grep finds them.
    print(yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=10_000), end="")
