"""The `theodolite` command line.

Commands import their packages when they run, so `--help` is fast and works without the extras.
"""

import sys
from io import TextIOWrapper
from typing import Annotated

import typer

from theodolite.errors import TheodoliteError, one_line
from theodolite.proxies import reach_local_addresses_directly
from theodolite.version import __version__
from theodolite_jobs.commands import batch, service, specs, stored, surveys

_STOPPED = 130, 143  # typer's exit code after Ctrl-C, and that after SIGTERM

app = typer.Typer(
    help="Survey the geometry of a transformer language model's residual stream, layer by layer.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _options(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


for command in (
    surveys.survey,
    surveys.capture,
    surveys.analyse,
    surveys.report,
    surveys.heads,
    surveys.plan,
    stored.runs,
    stored.show,
    stored.verify,
    stored.remove,
    stored.label,
    stored.compare,
    stored.export,
    batch.submit,
    batch.status,
    batch.logs,
    batch.stop,
    service.serve,
):
    app.command()(command)

spec_app = typer.Typer(help="Check a spec, or print the schema of specs.", no_args_is_help=True)
spec_app.command("check")(specs.check_spec)
spec_app.command("schema")(specs.print_schema)
app.add_typer(spec_app, name="spec")

token_app = typer.Typer(help="Create, list and revoke the bearer tokens of the service.", no_args_is_help=True)
token_app.command("create")(service.create_token)
token_app.command("list")(service.list_tokens)
token_app.command("revoke")(service.revoke_token)
app.add_typer(token_app, name="token")

model_app = typer.Typer(help="Inspect a model without loading its weights, or list families.", no_args_is_help=True)
model_app.command("inspect")(specs.inspect)
model_app.command("families")(specs.families)
app.add_typer(model_app, name="model")


def main() -> None:
    """Run the command line; an error, also of a file or a missing package, becomes one message."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a locale without UTF-8 cannot print every character
            stream.reconfigure(errors="backslashreplace")
    reach_local_addresses_directly()
    try:
        app()
    except TheodoliteError as error:
        typer.secho(f"error: {error}", fg="red", err=True)
        sys.exit(error.exit_code)
    except OSError as error:  # of a file that only this command reads or writes, or of the terminal
        typer.secho(f"error: {one_line(error)}", fg="red", err=True)
        sys.exit(TheodoliteError.exit_code)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("theodolite"):
            raise
        extra = "service" if "serve" in sys.argv[1:2] else "jobs"
        message = (
            f"this command needs packages that are not installed ({error}); run: pip install 'theodolite[{extra}]'"
        )
        typer.secho(f"error: {message}", fg="red", err=True)
        sys.exit(TheodoliteError.exit_code)
    except SystemExit as end:
        if end.code in _STOPPED:
            typer.echo("interrupted; committed shards are kept, run the same command to resume", err=True)
        raise


if __name__ == "__main__":
    main()
