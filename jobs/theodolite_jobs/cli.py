"""The `theodolite` command. Heavy imports happen inside the commands, so that `--help` answers at once."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from theodolite.errors import TheodoliteError

if TYPE_CHECKING:
    from theodolite.settings import Settings
    from theodolite.spec import SurveySpec
    from theodolite.store.runs import Run

app = typer.Typer(
    help="Survey the geometry of a transformer language model: what its residual stream does, layer by layer.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
spec_app = typer.Typer(help="Check a spec, or print the schema of all specs.", no_args_is_help=True)
app.add_typer(spec_app, name="spec")
token_app = typer.Typer(help="Who may ask the service, and submit jobs.", no_args_is_help=True)
app.add_typer(token_app, name="token")
model_app = typer.Typer(help="Say what a model is, before it is loaded.", no_args_is_help=True)
app.add_typer(model_app, name="model")

_INTERRUPTED = 130  # what typer makes of Ctrl-C

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


@app.command()
def survey(
    spec: SpecPath,
    store: Store = None,
    ray: Ray = None,
    dask: Dask = None,
    replicas: Replicas = None,
    gpus_per_replica: Gpus = None,
    as_json: AsJson = False,
) -> None:
    """Capture, analyse and report; go on where a former try stopped.

    For example: theodolite survey demo.yaml --store ./theodolite-store
    """
    from theodolite_jobs.progress import Console
    from theodolite_jobs.survey import survey as run_survey

    settings = _settings(store, ray, dask, replicas, gpus_per_replica)
    run = run_survey(_read_spec(spec), spec.parent, settings, Console())
    _print_outcome(run, as_json)


@app.command()
def capture(
    spec: SpecPath,
    store: Store = None,
    ray: Ray = None,
    replicas: Replicas = None,
    gpus_per_replica: Gpus = None,
    as_json: AsJson = False,
) -> None:
    """Capture activations only; `analyse` computes the statistics later."""
    from theodolite_jobs.progress import Console
    from theodolite_jobs.survey import capture as run_capture

    settings = _settings(store, ray, None, replicas, gpus_per_replica)
    run = run_capture(_read_spec(spec), spec.parent, settings, Console())
    _print_outcome(run, as_json)


@app.command()
def analyse(run: RunId, store: Store = None, dask: Dask = None, as_json: AsJson = False) -> None:
    """Compute what is missing of a captured run's results, and its report."""
    from theodolite.query.runs import last_asked
    from theodolite_jobs.analyses import analyse_run
    from theodolite_jobs.progress import Console

    settings = _settings(store, None, dask)
    opened = _open(run, settings)
    analyse_run(opened, last_asked(opened), None, settings, Console())
    _print_outcome(opened, as_json)


@app.command()
def report(run: RunId, store: Store = None, as_json: AsJson = False) -> None:
    """Write the report of an analysed run again."""
    from theodolite_jobs.report.page import write_report

    opened = _open(run, _settings(store))
    write_report(opened)
    _print_outcome(opened, as_json)


@app.command()
def heads(
    model: ModelId,
    store: Store = None,
    offsets: Annotated[
        str, typer.Option(help="Query position minus key position, several with commas; for rotary positions.")
    ] = "0",
    fold_norm: Annotated[bool, typer.Option("--fold-norm", help="Fold the norm before attention into it.")] = False,
    vectors: Annotated[int, typer.Option(min=0, help="Singular vectors to keep; 0 for the values alone.")] = 20,
    words: Annotated[bool, typer.Option("--words/--no-words", help="Say the vectors in tokens too.")] = True,
    composition: Annotated[
        str | None, typer.Option(metavar="FIRST:LAST", help="Layers whose heads are compared in pairs.")
    ] = None,
    revision: Revision = None,
    dask: Dask = None,
    as_json: AsJson = False,
) -> None:
    """Decompose every attention head's QK and VO circuit from the weight files: no prompts, no GPU, no model loaded.

    For example: theodolite heads smollm2-135m-instruct --offsets 0,1,8
    """
    from theodolite.spec_file import parse_spec
    from theodolite_jobs.progress import Console
    from theodolite_jobs.survey import survey as run_survey

    asked = parse_spec(
        {
            "model": {"id": model, "revision": revision},
            "prompts": {},
            "analyses": None if words else ["heads"],
            "heads": {
                "offsets": offsets.split(","),
                "fold_norm": fold_norm,
                "vectors": vectors,
                "composition": composition.split(":") if composition else None,
            },
        },
        "the command",
    )
    run = run_survey(asked, Path(), _settings(store, None, dask), Console())
    _print_outcome(run, as_json)


@app.command()
def plan(spec: SpecPath, store: Store = None, as_json: AsJson = False) -> None:
    """Say what a survey would cost: prompts, tokens, shards, batches, memory, bytes. Loads no weights."""
    from theodolite_jobs.estimate import plan_survey

    _print(plan_survey(_read_spec(spec), spec.parent, _settings(store)), as_json)


@app.command()
def runs(store: Store = None, as_json: AsJson = False) -> None:
    """List the runs of a store, newest first."""
    from theodolite.query.runs import summaries

    found = summaries(_settings(store).store)
    if as_json:
        print(json.dumps({"items": found}))
        return
    if not found:
        typer.echo(f"no runs in {_settings(store).store} yet; make one with: theodolite survey SPEC", err=True)
    for item in found:
        sets = ", ".join(f"{name} {size}" for name, size in item["sets"].items())
        print(f"{item['run_id']}  {item['state']}  {item.get('reason', sets)}  {item['created'][:16]}")


@app.command()
def show(run: RunId, store: Store = None, as_json: AsJson = False) -> None:
    """Show what is known of a run: model, prompts, parity, progress, results."""
    from theodolite.query.runs import describe

    known = describe(_open(run, _settings(store)))
    if not as_json:  # dimensions and the spec are for programs
        known["results"] = {name: ", ".join(variables) for name, variables in known["results"].items()}
        known["tables"] = ", ".join(known["tables"])
        del known["spec"]
    _print(known, as_json)


@app.command()
def verify(run: RunId, store: Store = None, as_json: AsJson = False) -> None:
    """Check every stored byte of a run against what was committed; exit 1 and name what is missing or damaged."""
    from theodolite.query.runs import verify as find_damages

    opened = _open(run, _settings(store))
    found = list(find_damages(opened))
    if as_json:
        print(json.dumps({"run_id": opened.id, "whole": not found, "damages": found}))
    else:
        print("\n".join(found) or f"{opened.id} is whole")
    if found:
        raise typer.Exit(1)


@app.command()
def compare(
    runs: Annotated[list[str], typer.Argument(metavar="RUN", help="Run ids, as `theodolite runs` lists them.")],
    statistic: Annotated[
        str, typer.Option(metavar="NAME", help="Any statistic along depth, such as auroc or variance_mean.")
    ] = "cosine_of_means_debiased",
    contrast: Annotated[str | None, typer.Option(help="Which contrast; needed where a run has several.")] = None,
    prompt_set: Annotated[
        str | None, typer.Option("--set", help="Which prompt set, for a statistic of one such as variance_mean.")
    ] = None,
    site: Annotated[str | None, typer.Option(help="One site; by default resid_pre and resid_mid.")] = None,
    position: Annotated[int | None, typer.Option(help="Token position; by default each run's last.")] = None,
    bound: Annotated[
        float,
        typer.Option(
            min=0.5,
            max=1,
            help="AUROC that the lower end of the interval must reach for the sets to count as separated.",
        ),
    ] = 0.95,
    output: Annotated[Path, typer.Option(help="Where the page is written.")] = Path("comparison.html"),
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Draw a statistic of several runs on relative depth, and say where their sets' cosine is least and they separate.

    For example: theodolite compare RUN RUN --statistic auroc
    """
    from theodolite.query.compare import Question, milestones, records
    from theodolite_jobs.report.comparison import said, write_comparison

    opened = [_open(run, _settings(store)) for run in dict.fromkeys(runs)]
    question = Question(statistic, contrast, prompt_set, site, position)
    write_comparison(opened, question, bound, output)
    table = milestones(opened, question, bound)
    if as_json:
        print(json.dumps({"page": str(output), "statistic": statistic, "bound": bound, "items": records(table)}))
        return
    for row in said(table):
        print(f"{row['run']}  least cosine: {row['least cosine']}  separates: {row['separates']}")
    print(f"page  {output}")


@app.command()
def export(
    run: RunId,
    contrast: Annotated[str, typer.Option(help="Whose direction.")],
    site: Annotated[str, typer.Option(help="A site of the blocks, such as resid_pre.")] = "resid_pre",
    layer: Annotated[
        list[int] | None, typer.Option(help="A 0-based block; several by giving it again; none is all.")
    ] = None,
    position: Annotated[int | None, typer.Option(help="Token position; by default the last one measured.")] = None,
    format: Annotated[
        str, typer.Option(help="safetensors, npy, or gguf: a control vector of llama.cpp.")
    ] = "safetensors",
    output: Annotated[
        Path | None, typer.Option(help="Where it is written; by default here, under the run's name.")
    ] = None,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Take a contrast's direction to other tools: a unit vector, positive minus negative, with what it is of.

    For example: theodolite export RUN --contrast refusal --layer 15 --format npy
    """
    from theodolite.export import export_direction
    from theodolite.reading import open_run

    reader = open_run(_settings(store).store, run)
    place = export_direction(reader, contrast, site, layer or (), position, format, output)
    print(json.dumps({"file": str(place)}) if as_json else place)


@app.command()
def serve(
    store: Store = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; any but loopback needs a token first.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on.")] = 8000,
) -> None:
    """Serve the page and the API over a store; surveys are submitted to the Ray cluster of THEODOLITE_JOBS_URL.

    For example: theodolite serve --store ./theodolite-store, and open http://127.0.0.1:8000
    """
    from theodolite.api.serving import serve as run_service

    run_service(_settings(store), host, port)


@token_app.command("create")
def create_token(
    store: Store = None,
    scope: Annotated[list[str] | None, typer.Option(help="read, submit, or both by giving it twice.")] = None,
    label: Annotated[str, typer.Option(help="What it is for.")] = "",
    days: Annotated[int | None, typer.Option(min=1, help="How long it counts; by default for ever.")] = None,
    as_json: AsJson = False,
) -> None:
    """Make a token for the service and print it, which happens only once; the store keeps its hash."""
    from theodolite.errors import SpecError
    from theodolite.store.tokens import SCOPES
    from theodolite.store.tokens import create_token as make_token

    scopes = tuple(dict.fromkeys(scope or ["read"]))
    unknown = [name for name in scopes if name not in SCOPES]
    if unknown:
        raise SpecError(f"--scope: given {unknown[0]!r}; allowed: {', '.join(SCOPES)}")
    token, record = make_token(_settings(store).store, scopes, label, days)
    if as_json:
        print(json.dumps({"token": token, "id": record.id, "scopes": scopes, "expires": record.expires}))
        return
    typer.echo(f"{record.id} may {' and '.join(scopes)}; keep it now, it is not shown again", err=True)
    print(token)


@token_app.command("list")
def list_tokens(store: Store = None, as_json: AsJson = False) -> None:
    """List the service's tokens: ids, scopes and ends, never the tokens."""
    from theodolite.store.tokens import list_tokens as read_tokens

    found = read_tokens(_settings(store).store)
    if as_json:
        kept = ("id", "label", "scopes", "created", "expires")
        print(json.dumps({"items": [{name: getattr(record, name) for name in kept} for record in found]}))
        return
    for record in found:
        until = f"until {record.expires[:10]}" if record.expires else "for ever"
        print(f"{record.id}  {','.join(record.scopes)}  {until}  {record.label}")


@token_app.command("revoke")
def revoke_token(
    token: Annotated[str, typer.Argument(metavar="ID", help="A token's id, as `theodolite token list` shows it.")],
    store: Store = None,
) -> None:
    """Make a token count no more, within two seconds."""
    from theodolite.errors import SpecError
    from theodolite.store.tokens import revoke_token as remove_token

    if not remove_token(_settings(store).store, token):
        raise SpecError(f"there is no token {token!r}; `theodolite token list` shows those that there are")


@spec_app.command("check")
def check_spec(spec: SpecPath, as_json: AsJson = False) -> None:
    """Check a spec file; every problem names its field, what was given and what is allowed."""
    checked = _read_spec(spec)
    if as_json:
        print(json.dumps({"valid": True, "digest": checked.digest()}))
    else:
        print(f"{spec} is a valid survey; digest {checked.digest()}")


@spec_app.command("schema")
def print_schema() -> None:
    """Print the JSON Schema of specs, with a description of every field."""
    from theodolite.spec import SurveySpec

    print(json.dumps(SurveySpec.model_json_schema(), indent=2))


@model_app.command("inspect")
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
    _print(inspect_model(asked, Path(), _settings(None)), as_json)


def main() -> None:
    """Run the command line; errors of our own become one message and an exit code."""
    try:
        app()
    except TheodoliteError as error:
        typer.secho(f"error: {error}", fg="red", err=True)
        sys.exit(error.exit_code)
    except SystemExit as end:
        if end.code == _INTERRUPTED:
            typer.echo("stopped; what was committed stays, run the same command to go on", err=True)
        raise


def _settings(
    store: str | None,
    ray: str | None = None,
    dask: str | None = None,
    replicas: int | None = None,
    gpus_per_replica: int | None = None,
) -> "Settings":
    """Return the environment's settings, overridden by what was given on the command line."""
    from pydantic import ValidationError
    from pydantic_settings import SettingsError

    from theodolite.errors import SpecError
    from theodolite.settings import Settings

    given = {
        "store": store,
        "ray_address": ray,
        "dask_address": dask,
        "replicas": replicas,
        "gpus_per_replica": gpus_per_replica,
    }
    try:
        return Settings(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]
    except (ValidationError, SettingsError) as error:
        raise SpecError(f"a setting (an option, or a THEODOLITE_… variable) is wrong: {error}") from error


def _read_spec(path: Path) -> "SurveySpec":
    from theodolite.spec_file import read_spec

    return read_spec(path)


def _open(run_id: str, settings: "Settings") -> "Run":
    from theodolite.store.runs import open_run

    return open_run(settings.store, run_id)


def _print_outcome(run: "Run", as_json: bool) -> None:
    from theodolite.query.runs import run_state

    outcome = {"run_id": run.id, "store": run.store, "report": run.report, "state": run_state(run)}
    if as_json:
        print(json.dumps(outcome))
    else:
        print(f"run     {run.id}")
        if outcome["state"] == "complete":
            print(f"report  {run.report}")


def _print(value: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(value))
        return
    import yaml

    # Sentences stay on their line: a terminal wraps them, and grep finds them.
    print(yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=10_000), end="")
