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
    from theodolite.api.credentials import SCOPES, create_credential
    from theodolite.errors import SpecError

    scopes = tuple(dict.fromkeys(scope or ["read"]))
    unknown = [name for name in scopes if name not in SCOPES]
    if unknown:
        raise SpecError(f"--scope: given {unknown[0]!r}; allowed: {', '.join(SCOPES)}")
    token, credential = create_credential(settings_of(store=store).store, scopes, label, days)
    if as_json:
        print(json.dumps({"token": token, "id": credential.id, "scopes": scopes, "expires": credential.expires}))
        return
    typer.echo(f"{credential.id} may {' and '.join(scopes)}; keep it now, it is not shown again", err=True)
    print(token)


def list_tokens(store: Store = None, as_json: AsJson = False) -> None:
    """List the service's tokens: ids, scopes and ends, never the tokens."""
    from theodolite.api.credentials import list_credentials

    credentials = list_credentials(settings_of(store=store).store)
    if as_json:
        shown = ("id", "label", "scopes", "created", "expires")
        print(json.dumps({"items": [{name: getattr(one, name) for name in shown} for one in credentials]}))
        return
    for one in credentials:
        until = f"until {one.expires[:10]}" if one.expires else "for ever"
        print(f"{one.id}  {','.join(one.scopes)}  {until}  {one.label}")


def revoke_token(
    token: Annotated[str, typer.Argument(metavar="ID", help="A token's id, as `theodolite token list` shows it.")],
    store: Store = None,
) -> None:
    """Make a token count no more, within two seconds."""
    from theodolite.api.credentials import revoke_credential
    from theodolite.errors import SpecError

    if not revoke_credential(settings_of(store=store).store, token):
        raise SpecError(f"there is no token {token!r}; `theodolite token list` shows those that there are")
