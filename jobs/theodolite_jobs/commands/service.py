"""Commands for the service and its bearer tokens."""

import json
import os
from typing import Annotated

import typer

from theodolite_jobs.commands.options import AsJson, Store, settings_of


def serve(
    store: Store = None,
    host: Annotated[
        str,
        typer.Option(
            help="Address to listen on. For an address other than loopback, a bearer token must exist in the store."
        ),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on.")] = 8000,
) -> None:
    """Serve the page and the HTTP API of a store.

    To accept survey jobs, set THEODOLITE_JOBS_URL to the dashboard of a Ray cluster, http://HEAD:8265.

    For example: theodolite serve --store ./theodolite-store, then open http://127.0.0.1:8000
    """
    from theodolite.api.serving import serve as run_service

    run_service(settings_of(store=store), host, port)


def mcp(
    store: Store = None,
    service: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Read the runs of a service instead of a store. Its token is the value of THEODOLITE_TOKEN.",
        ),
    ] = None,
    allow_texts: Annotated[
        bool, typer.Option("--allow-texts", help="Give agents the texts of prompts too, also those of harmful ones.")
    ] = False,
) -> None:
    """Give agents read-only tools over the runs of a store, as a server of the Model Context Protocol.

    The server reads standard input and writes standard output; an agent's program starts it. The tools list runs, and
    return overviews, curves, prompts by score, the tokens of a direction, and comparisons, with what limits them.

    For example: theodolite mcp --store ./theodolite-store
    """
    from theodolite.client import Client
    from theodolite.mcp_server import create_server

    token = os.environ.get("THEODOLITE_TOKEN")
    source = settings_of(store=store).store if service is None else Client(service, token)
    create_server(source, allow_texts=allow_texts).run()


def create_token(
    store: Store = None,
    scope: Annotated[
        list[str] | None,
        typer.Option(
            help="Scope of the token: read, submit, admin or activations. Repeat the option for several. "
            "The default is read."
        ),
    ] = None,
    label: Annotated[str, typer.Option(help="Description of the token.")] = "",
    days: Annotated[
        int | None, typer.Option(min=1, help="Days until the token expires. By default it never expires.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Create a bearer token for the service and print it. The store holds only its hash, so copy the token now.

    After you create the first token, the service of this store requires a token for every request for a run or a survey
    job, even on loopback. It requires a token even after you revoke all tokens.

    For example: theodolite token create --scope read --scope submit --label notebook --days 30
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
    typer.echo(f"token {credential.id} with scope {' and '.join(scopes)}; copy it now, it is not shown again", err=True)
    print(token)


def list_tokens(store: Store = None, as_json: AsJson = False) -> None:
    """List the id, scopes, expiry, last use and label of each token. The store does not hold the tokens themselves.

    For the last use, the service stores only the hour, in UTC.

    For example: theodolite token list --store ./theodolite-store
    """
    from theodolite.api.credentials import damaged_credentials, last_uses, list_credentials

    location = settings_of(store=store).store
    credentials, used = list_credentials(location), last_uses(location)
    for key in damaged_credentials(location):
        typer.echo(f"{key}: not a credential, or a damaged one; the service ignores it, so remove it", err=True)
    if as_json:
        shown = ("id", "label", "scopes", "created", "expires")
        items = [{name: getattr(one, name) for name in shown} | {"last_used": used.get(one.id)} for one in credentials]
        print(json.dumps({"items": items}))
        return
    for one in credentials:
        until = f"until {one.expires[:10]}" if one.expires else "no expiry"
        use = f"used {used[one.id][:16].replace('T', ' ')}" if one.id in used else "not used"
        print(f"{one.id}  {','.join(one.scopes)}  {until}  {use}  {one.label}")


def revoke_token(
    token: Annotated[str, typer.Argument(metavar="ID", help="Id of a token, as `theodolite token list` shows it.")],
    store: Store = None,
) -> None:
    """Revoke a token. After at most two seconds, the service rejects it.

    For example: theodolite token revoke 5c1e0f9a --store ./theodolite-store
    """
    from theodolite.api.credentials import revoke_credential
    from theodolite.errors import SpecError

    if not revoke_credential(settings_of(store=store).store, token):
        raise SpecError(
            f"ID: given {token!r}, but the store has no such token; `theodolite token list` lists the tokens"
        )
