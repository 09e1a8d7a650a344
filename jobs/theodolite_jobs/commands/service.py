"""Commands of the service: serve, and the tokens of those who ask it."""

import json
from typing import Annotated

import typer

from theodolite_jobs.commands.options import AsJson, Store, settings_of


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

    run_service(settings_of(store=store), host, port)


def create_token(
    store: Store = None,
    scope: Annotated[list[str] | None, typer.Option(help="read, submit, or both by giving it twice.")] = None,
    label: Annotated[str, typer.Option(help="What it is for.")] = "",
    days: Annotated[int | None, typer.Option(min=1, help="How long it counts; by default for ever.")] = None,
    as_json: AsJson = False,
) -> None:
    """Make a token for the service and print it, which happens only once; the store keeps its hash.

    From the first token on, the service over this store answers nobody without one, not even on loopback; it stays so
    when all are revoked.
    """
    from theodolite.api.credentials import SCOPES
    from theodolite.api.credentials import create_token as make_token
    from theodolite.errors import SpecError

    scopes = tuple(dict.fromkeys(scope or ["read"]))
    unknown = [name for name in scopes if name not in SCOPES]
    if unknown:
        raise SpecError(f"--scope: given {unknown[0]!r}; allowed: {', '.join(SCOPES)}")
    token, record = make_token(settings_of(store=store).store, scopes, label, days)
    if as_json:
        print(json.dumps({"token": token, "id": record.id, "scopes": scopes, "expires": record.expires}))
        return
    typer.echo(f"{record.id} may {' and '.join(scopes)}; keep it now, it is not shown again", err=True)
    print(token)


def list_tokens(store: Store = None, as_json: AsJson = False) -> None:
    """List the service's tokens: ids, scopes and ends, never the tokens."""
    from theodolite.api.credentials import list_tokens as read_tokens

    found = read_tokens(settings_of(store=store).store)
    if as_json:
        kept = ("id", "label", "scopes", "created", "expires")
        print(json.dumps({"items": [{name: getattr(record, name) for name in kept} for record in found]}))
        return
    for record in found:
        until = f"until {record.expires[:10]}" if record.expires else "for ever"
        print(f"{record.id}  {','.join(record.scopes)}  {until}  {record.label}")


def revoke_token(
    token: Annotated[str, typer.Argument(metavar="ID", help="A token's id, as `theodolite token list` shows it.")],
    store: Store = None,
) -> None:
    """Make a token count no more, within two seconds."""
    from theodolite.api.credentials import revoke_token as remove_token
    from theodolite.errors import SpecError

    if not remove_token(settings_of(store=store).store, token):
        raise SpecError(f"there is no token {token!r}; `theodolite token list` shows those that there are")
