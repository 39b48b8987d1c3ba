"""Network: `assay network` founds a network, checks an invitation to one, and pays its people out.

Room: cli (edge). The invitation is participant/files/invitation.py's.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from pydantic import BaseModel, ConfigDict, Field

from assay.cli.key import Password, password_of
from assay.cli.spending import show
from assay.protocol.errors import ConfigError

if TYPE_CHECKING:
    from assay.participant.files.invitation import Invitation

network_app = typer.Typer(no_args_is_help=True, help="Found a network, check an invitation, fund members.")
InvitationText = Annotated[str, typer.Argument(metavar="INVITATION", help="A file, or the line itself.")]
KeysOption = Annotated[Path, typer.Option("--keys", metavar="FOLDER", help="The founder's keys.")]
Url = Annotated[str, Field(pattern=r"^https?://[!-~]+$", max_length=256)]


class TokenTable(BaseModel):
    """A network's coin, one that is there already or by default a new token, and where burnt coins go."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    address: str | None = None
    sink: str | None = None


class NetworkFile(BaseModel):
    """The keys of a founder's TOML file; paths are relative to the file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]{0,63}$")]
    rpc_url: Url
    endpoints: tuple[Url, ...] = ()  # at which others reach the chain; by default rpc_url
    verifiers: Annotated[tuple[Path, ...], Field(min_length=1, max_length=16)]  # records of the first ones
    preset: Literal["mainnet", "localnet"] = "mainnet"
    token: TokenTable = Field(default_factory=TokenTable)
    parameters: dict[str, Annotated[int, Field(strict=True, ge=0)]] = Field(default_factory=dict)


@network_app.command()
def create(
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", help="Name, chain, verifiers, parameters.")],
    keys: KeysOption,
    out: Annotated[Path, typer.Option(metavar="INVITATION", help="Where to write it.")] = Path("network.txt"),
    password_file: Password = None,
) -> None:
    """Deploy the contracts of a new network, and write the invitation to it."""
    show(create_lines(file, keys, out, password_file))


@network_app.command("show")
def show_network(
    invitation: InvitationText,
    rpc: Annotated[str | None, typer.Option(metavar="URL", help="An endpoint of your own.")] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Print only, and ask no chain.")] = False,
) -> None:
    """Compare an invitation with its chain (code, wiring, parameters, verifiers), and print it."""
    show(network_lines(invitation, rpc, is_offline=offline))


@network_app.command()
def fund(
    invitation: InvitationText,
    records: Annotated[list[Path], typer.Argument(metavar="RECORD...", help="Whom to pay.")],
    keys: KeysOption,
    tokens: Annotated[str, typer.Option(metavar="AMOUNT", help="Tokens for each.")] = "0",
    gas: Annotated[float, typer.Option(min=0, max=1000, help="The chain's coins for each.")] = 0,
    password_file: Password = None,
) -> None:
    """Send tokens and gas from your account to the account of each RECORD."""
    show(fund_lines(invitation, records, keys, tokens, gas, password_file))


def create_lines(file: Path, keys: Path, out: Path, password_file: Path | None) -> Iterator[str]:
    """Found a network; the last lines are for its people.

    Raises:
        ConfigError: the file, a record or a parameter is wrong, or the invitation's file is there already.
        Unavailable, ChainRefused: of the deployment.
    """
    from assay.chain.deployment.coin import SINK, address_given
    from assay.chain.deployment.parameters import LOCALNET, MAINNET
    from assay.orders.toml import read_tables
    from assay.participant.files.invitation import write_invitation
    from assay.participant.files.record import read_record
    from assay.participant.keyring import load_keys
    from assay.participant.wallet.founding import found_network

    given = read_tables(file, NetworkFile)
    preset = MAINNET if given.preset == "mainnet" else LOCALNET
    unknown = set(given.parameters) - {field.name for field in fields(preset)}
    if unknown:
        raise ConfigError(f"{file}: unknown parameter {sorted(unknown)[0]!a}")
    if out.exists():
        raise ConfigError(f"{out} is there already, and is never overwritten")
    founder = load_keys(keys, password_of(keys, password_file)[0])
    now_s = int(time.time())
    verifiers = [read_record(file.parent / one, now_s) for one in given.verifiers]
    params = replace(preset, **given.parameters)
    endpoints = given.endpoints or (given.rpc_url,)
    made = found_network(
        given.rpc_url,
        founder.account,
        params,
        given.name,
        endpoints,
        verifiers,
        coin=None if given.token.address is None else address_given(given.token.address),
        sink=SINK if given.token.sink is None else address_given(given.token.sink),
    )
    write_invitation(out, made)
    yield from invitation_lines(made)
    yield f"written to {out}; read the digest aloud to whomever you send it"


def network_lines(text: str, rpc: str | None, *, is_offline: bool) -> Iterator[str]:
    """An invitation, compared with the chain unless told otherwise.

    Raises:
        ConfigError: it is damaged, or the chain has another network. Unavailable: the endpoint is gone.
    """
    from assay.participant.files.invitation import check_network

    found = read_given(text)
    yield from invitation_lines(found)
    if not is_offline:
        from assay.chain.reader import ChainReader

        url = rpc or found.first_endpoint
        chain = ChainReader(url, found.deployment)
        check_network(found, chain)
        yield f"burnt tokens go to {chain.sinks().pop()}"
        yield f"the chain at {url} has this network: code, wiring, parameters and first verifiers"


def fund_lines(
    text: str, records: list[Path], keys: Path, tokens: str, gas: float, password_file: Path | None
) -> Iterator[str]:
    """Pay accounts out; one line each.

    Raises:
        ConfigError: a record is damaged, or the amount is none. ChainRefused: the account holds too little.
    """
    from assay.chain.client import Chain
    from assay.chain.commit_statement import evm_address
    from assay.chain.units import parse_money
    from assay.participant.files.record import read_record
    from assay.participant.keyring import load_keys

    found, now_s = read_given(text), int(time.time())
    accounts = [evm_address(read_record(one, now_s).record.account) for one in records]
    founder = load_keys(keys, password_of(keys, password_file)[0])
    chain = Chain(found.first_endpoint, found.deployment, founder.account)
    chain.check_deployment()
    chain.fund_many(accounts, token_amount=parse_money(tokens), amount_wei=int(gas * 10**6) * 10**12)
    for account in accounts:
        yield f"{account}: {tokens} tokens and {gas:g} coins sent"


def invitation_lines(found: Invitation) -> Iterator[str]:
    """What an invitation says."""
    from assay.chain.addresses import CONTRACTS
    from assay.chain.commit_statement import evm_address
    from assay.participant.files.invitation import invitation_line, spoken_digest

    yield f"network   {found.name}"
    yield f"digest    {spoken_digest(found)}"
    yield f"chain     {found.chain_id}, deployment {found.deployment_id.hex()}"
    for url in found.endpoints:
        yield f"endpoint  {url}"
    for name, one in zip(CONTRACTS, found.contracts, strict=True):
        yield f"contract  {name} {evm_address(one.address)}, code {one.code.hex()[:16]}"
    for field in fields(found.params):
        yield f"parameter {field.name} = {getattr(found.params, field.name)}"
    for signed in found.verifiers:
        record = signed.record
        yield f"verifier  {record.peer.hex()} at {record.host} port {record.port}"
    yield f"line      {invitation_line(found)}"


def read_given(text: str) -> Invitation:
    """An invitation given as the name of its file, or as its line.

    Raises:
        ConfigError: it cannot be read, or is damaged.
    """
    from assay.participant.files.invitation import PREFIX, parse_invitation, read_invitation

    if text.startswith(f"{PREFIX}."):
        return parse_invitation(text, int(time.time()))
    return read_invitation(Path(text))
