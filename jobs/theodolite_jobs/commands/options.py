"""Arguments, options and output functions that several commands share."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from theodolite.settings import Settings
    from theodolite.spec import SurveySpec
    from theodolite.store.runs import Run

SpecPath = Annotated[Path, typer.Argument(metavar="SPEC", help="YAML or JSON file that describes the survey.")]
RunId = Annotated[
    str,
    typer.Argument(metavar="RUN", help="Id or unique name of a run; `theodolite run list` lists both."),
]
ModelId = Annotated[
    str, typer.Argument(metavar="MODEL", help="Hub id, local folder, .gguf file, or alias (smollm2-135m-instruct).")
]
Revision = Annotated[
    str | None, typer.Option(help="Branch, tag or commit on the hub. The default is the newest commit on main.")
]
Store = Annotated[
    str | None,
    typer.Option(
        help="Store: a folder, or a file://, s3://, gs:// or az:// URL.",
        show_default="THEODOLITE_STORE, else ./theodolite-store",
    ),
]
Ray = Annotated[
    str | None,
    typer.Option(
        help="Address of a Ray cluster. Default: the value of THEODOLITE_RAY_ADDRESS. If this variable is not set, Ray "
        "starts on this machine."
    ),
]
Dask = Annotated[
    str | None,
    typer.Option(
        help="Address of a Dask scheduler. Default: the value of THEODOLITE_DASK_ADDRESS. If this variable is not set, "
        "threads of this machine compute the statistics."
    ),
]
Replicas = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Number of replicas of the model. Default: the value of THEODOLITE_REPLICAS. If this variable is not set, "
        "as many replicas as fit on the GPUs, or one replica if replicas use no GPU.",
    ),
]
Gpus = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="GPUs of each replica. Default: the value of THEODOLITE_GPUS_PER_REPLICA. If this variable is not set, "
        "each replica uses one GPU in a cluster with GPUs, and no GPU in other clusters.",
    ),
]
Analyses = Annotated[
    str | None,
    typer.Option(
        metavar="NAME,…",
        help="Compute these analyses, separated by commas, instead of those that the spec requests; "
        "`theodolite spec check` lists them.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object, on the last line.")]


def settings_of(**given: Any) -> "Settings":
    """Return the settings of the environment, overridden by the command-line options that are not None."""
    from theodolite.settings import read_settings

    return read_settings(**given)


def spec_of(path: Path, analyses: str | None = None) -> "SurveySpec":
    """Return the spec that a file holds, with other analyses if some are given, separated by commas."""
    from theodolite.spec_file import parse_spec, read_spec

    spec = read_spec(path)
    if analyses is None:
        return spec
    named = [name.strip() for name in analyses.split(",") if name.strip()]
    effects = {} if "effects" in named else {"effects": None}
    return parse_spec({**spec.model_dump(mode="json"), "analyses": named, **effects}, "--analyses")


def run_of(run_id: str, settings: "Settings") -> "Run":
    """Return the run with this id or name in the store."""
    from theodolite.query.runs import run_id_of
    from theodolite.store.runs import open_run

    return open_run(settings.store, run_id_of(settings.store, run_id))


def print_outcome(run: "Run", as_json: bool) -> None:
    """Print the id and report of the run that a command created or changed, and what it found for each contrast."""
    from theodolite.query.runs import run_state
    from theodolite.store.manifest import finished_groups

    if as_json:
        print(json.dumps({"run_id": run.id, "store": run.store, "report": run.report, "state": run_state(run)}))
        return
    print(f"run     {run.id}")
    finished = finished_groups(run)
    if "separation" in finished:
        from theodolite.overview.facts import read_overview
        from theodolite.store.result_reader import read_contrasts

        for contrast in read_contrasts(run, finished):
            print(f"found   {read_overview(run, contrast).sentence}")
    if finished:
        print(f"report  {run.report}")


def print_value(value: dict[str, Any], as_json: bool) -> None:
    """Print a dictionary as YAML, or as JSON for programs."""
    if as_json:
        print(json.dumps(value))
        return
    import yaml

    # No line breaks within a sentence: the terminal wraps it, and grep finds it.
    print(yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=10_000), end="")
