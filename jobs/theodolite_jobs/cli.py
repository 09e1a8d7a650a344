"""The `theodolite` command.

Commands import what they need when they run: `--help` is fast, and works without the packages of the extras.
"""

import sys

import typer

from theodolite.errors import TheodoliteError
from theodolite_jobs.commands import batch, service, specs, stored, surveys

_INTERRUPTED = 130  # what typer makes of Ctrl-C

app = typer.Typer(
    help="Survey the geometry of a transformer language model: what its residual stream does, layer by layer.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
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
    stored.compare,
    stored.export,
    batch.submit,
    batch.status,
    batch.logs,
    batch.stop,
    service.serve,
):
    app.command()(command)

spec_app = typer.Typer(help="Check a spec, or print the schema of all specs.", no_args_is_help=True)
spec_app.command("check")(specs.check_spec)
spec_app.command("schema")(specs.print_schema)
app.add_typer(spec_app, name="spec")

token_app = typer.Typer(help="Who may ask the service, and submit jobs.", no_args_is_help=True)
token_app.command("create")(service.create_token)
token_app.command("list")(service.list_tokens)
token_app.command("revoke")(service.revoke_token)
app.add_typer(token_app, name="token")

model_app = typer.Typer(help="Say what a model is, before it is loaded.", no_args_is_help=True)
model_app.command("inspect")(specs.inspect)
app.add_typer(model_app, name="model")


def main() -> None:
    """Run the command line; errors of our own and missing packages become one message and an exit code."""
    try:
        app()
    except TheodoliteError as error:
        typer.secho(f"error: {error}", fg="red", err=True)
        sys.exit(error.exit_code)
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
        if end.code == _INTERRUPTED:
            typer.echo("stopped; what was committed stays, run the same command to go on", err=True)
        raise


if __name__ == "__main__":
    main()
