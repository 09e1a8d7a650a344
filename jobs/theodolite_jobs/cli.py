"""The `theodolite` command line.

Commands import their packages when they run, so `--help` is fast and works without the extras.
"""

import sys
from collections.abc import Callable
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


_ALONE: dict[str, Callable[..., None]] = {
    "survey": surveys.survey,
    "plan": surveys.plan,
    "capture": surveys.capture,
    "heads": surveys.heads,
    "serve": service.serve,
    "mcp": service.mcp,
    "model": specs.inspect,
    "families": specs.families,
}
_OF_NOUNS: dict[str, tuple[str, dict[str, Callable[..., None]]]] = {
    "run": (
        "List, show, verify, compare, export or remove the runs of a store.",
        {
            "list": stored.runs,
            "show": stored.show,
            "verify": stored.verify,
            "analyse": surveys.analyse,
            "report": surveys.report,
            "compare": stored.compare,
            "export": stored.export,
            "label": stored.label,
            "remove": stored.remove,
        },
    ),
    "job": (
        "Submit surveys to a Ray cluster, and follow or stop them.",
        {
            "submit": batch.submit,
            "list": batch.list_jobs,
            "show": batch.show_job,
            "logs": batch.logs,
            "stop": batch.stop,
        },
    ),
    "spec": ("Check a spec, or print the schema of specs.", {"check": specs.check_spec, "schema": specs.print_schema}),
    "token": (
        "Create, list and revoke the bearer tokens of the service.",
        {"create": service.create_token, "list": service.list_tokens, "revoke": service.revoke_token},
    ),
}
for name, command in _ALONE.items():
    app.command(name)(command)
for noun, (text, verbs) in _OF_NOUNS.items():
    of_noun = typer.Typer(help=text, no_args_is_help=True)
    for name, command in verbs.items():
        of_noun.command(name)(command)
    app.add_typer(of_noun, name=noun)


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
        extra = {"serve": "service", "mcp": "mcp"}.get("".join(sys.argv[1:2]), "jobs")
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
