"""API commands: serve a ledger over HTTP, and issue tokens for it.

Room: cli (edge: reads a TOML file, listens). The keys of the file are api/config.py's.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from assay.cli.result import AsJson, done, show, show_steps
from assay.protocol.errors import ConfigError

if TYPE_CHECKING:
    from assay.api.access import Token

api_app = typer.Typer(no_args_is_help=True, help="Serve a run's books and money moves over HTTP.")
token_app = typer.Typer(no_args_is_help=True, help="Create, list and revoke the API tokens of a server.")
api_app.add_typer(token_app, name="token")
File = Annotated[Path, typer.Argument(metavar="FILE.toml", help="The server's configuration.")]


@api_app.command()
def serve(
    file: File,
    tethered: Annotated[bool, typer.Option("--tethered", hidden=True)] = False,
) -> None:
    """Serve the HTTP API until stopped.

    Example: assay api serve api.toml
    """
    from assay.api.serve import run_server

    run_server(file, is_tethered=tethered)


@dataclass(frozen=True, slots=True)
class MadeToken:
    """A new token, with its secret."""

    secret: str
    token: Token


@dataclass(frozen=True, slots=True)
class Tokens:
    """Every token of a server."""

    tokens: tuple[Token, ...]


@token_app.command()
def create(
    file: File,
    name: Annotated[str, typer.Option(help="Name of the token: its purpose.")],
    scope: Annotated[list[str], typer.Option(help="Scope: read, invoice, quote, move or hook; repeatable.")],
    account: Annotated[
        str | None, typer.Option(help="Account, 0x..., whose money the token may move.")
    ] = None,
    spend_limit: Annotated[str, typer.Option(help="Sum of tokens that all moves with it may spend.")] = "0",
    days: Annotated[int, typer.Option(help="Days until the token expires.")] = 30,
    as_json: AsJson = False,
) -> None:
    """Create an API token and print it; it cannot be shown again.

    Example: assay api token create api.toml --name bookkeeping --scope read
    """
    from assay.api.serve import open_access
    from assay.chain.deployment.coin import address_given
    from assay.chain.text.units import parse_money

    secret, made = open_access(file).create_token(
        name,
        account=None if account is None else address_given(account),
        scopes=frozenset(scope),
        spend_limit=parse_money(spend_limit),
        now_s=int(time.time()),
        days=days,
    )
    typer.echo(f"token {made.id} until {_day(made.expires_s)}; it is not stored, so write it down:", err=True)
    show(MadeToken(secret, made), [secret], as_json=as_json)


@token_app.command("list")
def list_tokens(file: File, as_json: AsJson = False) -> None:
    """List all API tokens: scopes, account, amount spent, spend limit and expiry.

    Example: assay api token list api.toml
    """
    from assay.api.serve import open_access

    found = Tokens(tuple(open_access(file).tokens()))
    show(found, map(_token_line, found.tokens), as_json=as_json)


@token_app.command()
def revoke(
    file: File,
    token: Annotated[int, typer.Argument(help="Number of the token, as `list` prints it.")],
    as_json: AsJson = False,
) -> None:
    """Revoke an API token now.

    Example: assay api token revoke api.toml 1
    """
    from assay.api.serve import open_access

    if not open_access(file).revoke(token, int(time.time())):
        raise ConfigError(f"there is no token {token}")
    show_steps([done("revoke", f"token {token} is revoked")], as_json=as_json)


def _token_line(one: Token) -> str:
    from assay.chain.text.units import money_text, token_text

    ended = f"revoked {_day(one.revoked_s)}" if one.revoked_s else f"until {_day(one.expires_s)}"
    spent = f"{money_text(one.spent)} of {token_text(one.spend_limit)}"
    scopes = ",".join(sorted(one.scopes))
    return f"{one.id}  {one.name}  {scopes}  {one.account or '-'}  {spent}  {ended}"


def _day(unix_s: int) -> str:
    return datetime.fromtimestamp(unix_s, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
