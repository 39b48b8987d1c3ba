"""Network: `assay network` founds a network, checks an invitation to one, and pays its people out.

Room: cli (edge). The invitation is participant/files/invitation.py's.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from pydantic import BaseModel, ConfigDict, Field

from assay.cli.account.key import Password, password_of
from assay.cli.result import AsJson, Step, done, show, stepwise
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
    as_json: AsJson = False,
) -> None:
    """Deploy the contracts of a new network, and write the invitation to it.

    Example: assay network create network.toml --keys keys --out network.txt
    """
    founded = create_network(file, keys, out, password_file)
    written = f"written to {out}; read the digest aloud to whomever you send it"
    show(founded, [*shown_lines(founded), written], as_json=as_json)


@network_app.command("show")
def show_network(
    invitation: InvitationText,
    rpc: Annotated[str | None, typer.Option(metavar="URL", help="An endpoint of your own.")] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Print only, and ask no chain.")] = False,
    as_json: AsJson = False,
) -> None:
    """Compare an invitation with its chain (code, wiring, parameters, verifiers), and print it.

    Example: assay network show network.txt
    """
    found = compared(invitation, rpc, is_offline=offline)
    show(found, shown_lines(found), as_json=as_json)


@network_app.command()
@stepwise
def fund(
    invitation: InvitationText,
    records: Annotated[list[Path], typer.Argument(metavar="RECORD...", help="Whom to pay.")],
    keys: KeysOption,
    tokens: Annotated[str, typer.Option(metavar="AMOUNT", help="Tokens for each.")] = "0",
    gas: Annotated[float, typer.Option(min=0, max=1000, help="The chain's coins for each.")] = 0,
    password_file: Password = None,
) -> Iterator[Step]:
    """Send tokens and gas from your account to the account of each RECORD.

    Example: assay network fund network.txt card.txt --keys keys --tokens 1000 --gas 1
    """
    from assay.chain.client import Chain
    from assay.chain.commit_statement import evm_address
    from assay.chain.text.units import parse_money
    from assay.participant.files.record import read_record
    from assay.participant.keys.keyring import load_keys

    found, now_s = read_given(invitation), int(time.time())
    accounts = [evm_address(read_record(one, now_s).record.account) for one in records]
    founder = load_keys(keys, password_of(keys, password_file)[0])
    chain = Chain(found.first_endpoint, found.deployment, founder.signer)
    chain.check_deployment()
    units = parse_money(tokens)
    chain.fund_many(accounts, token_amount=units, amount_wei=int(gas * 10**6) * 10**12)
    for account in accounts:
        yield done("fund", f"{account}: {tokens} tokens and {gas:g} coins sent", units)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContractShown:
    """One contract of a network."""

    name: str
    address: str
    code: bytes  # digest


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierShown:
    """One of the first verifiers."""

    peer: bytes
    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkShown:
    """What an invitation says, and what its chain says about it."""

    network: str
    digest: str  # as it is read aloud
    chain_id: int
    deployment_id: bytes
    endpoints: tuple[str, ...]
    contracts: tuple[ContractShown, ...]
    parameters: Mapping[str, int]
    verifiers: tuple[VerifierShown, ...]
    line: str
    compared_at: str | None = None  # the endpoint; None: no chain was asked
    sink: str | None = None  # where burnt tokens go


def create_network(file: Path, keys: Path, out: Path, password_file: Path | None) -> NetworkShown:
    """Found a network, and write its invitation.

    Raises:
        ConfigError: the file, a record or a parameter is wrong, or the invitation's file is there already.
        Unavailable, ChainRefused: of the deployment.
    """
    from assay.chain.deployment.coin import SINK, address_given
    from assay.chain.deployment.parameters import LOCALNET, MAINNET
    from assay.orders.toml import read_tables
    from assay.participant.files.invitation import write_invitation
    from assay.participant.files.record import read_record
    from assay.participant.keys.keyring import load_keys
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
        founder.signer,
        params,
        given.name,
        endpoints,
        verifiers,
        coin=None if given.token.address is None else address_given(given.token.address),
        sink=SINK if given.token.sink is None else address_given(given.token.sink),
    )
    write_invitation(out, made)
    return network_shown(made)


def compared(text: str, rpc: str | None, *, is_offline: bool) -> NetworkShown:
    """An invitation, compared with the chain unless told otherwise.

    Raises:
        ConfigError: it is damaged, or the chain has another network. Unavailable: the endpoint is gone.
    """
    from assay.participant.files.invitation import check_network

    found = read_given(text)
    if is_offline:
        return network_shown(found)
    from assay.chain.reader import ChainReader

    url = rpc or found.first_endpoint
    chain = ChainReader(url, found.deployment)
    check_network(found, chain)
    return replace(network_shown(found), compared_at=url, sink=chain.sinks().pop())


def network_shown(found: Invitation) -> NetworkShown:
    """What an invitation says."""
    from assay.chain.addresses import CONTRACTS
    from assay.chain.commit_statement import evm_address
    from assay.participant.files.invitation import invitation_line, spoken_digest

    return NetworkShown(
        network=found.name,
        digest=spoken_digest(found),
        chain_id=found.chain_id,
        deployment_id=found.deployment_id,
        endpoints=tuple(found.endpoints),
        contracts=tuple(
            ContractShown(name=name, address=evm_address(one.address), code=one.code)
            for name, one in zip(CONTRACTS, found.contracts, strict=True)
        ),
        parameters={field.name: getattr(found.params, field.name) for field in fields(found.params)},
        verifiers=tuple(
            VerifierShown(peer=one.record.peer, host=one.record.host, port=one.record.port)
            for one in found.verifiers
        ),
        line=invitation_line(found),
    )


def shown_lines(found: NetworkShown) -> Iterator[str]:
    """A network, for a person."""
    yield f"network   {found.network}"
    yield f"digest    {found.digest}"
    yield f"chain     {found.chain_id}, deployment {found.deployment_id.hex()}"
    for url in found.endpoints:
        yield f"endpoint  {url}"
    for contract in found.contracts:
        yield f"contract  {contract.name} {contract.address}, code {contract.code.hex()[:16]}"
    for name, value in found.parameters.items():
        yield f"parameter {name} = {value}"
    for verifier in found.verifiers:
        yield f"verifier  {verifier.peer.hex()} at {verifier.host} port {verifier.port}"
    yield f"line      {found.line}"
    if found.compared_at is not None:
        yield f"burnt tokens go to {found.sink}"
        where = f"the chain at {found.compared_at}"
        yield f"{where} has this network: code, wiring, parameters and first verifiers"


def read_given(text: str) -> Invitation:
    """An invitation given as the name of its file, or as its line.

    Raises:
        ConfigError: it cannot be read, or is damaged.
    """
    from assay.participant.files.invitation import PREFIX, parse_invitation, read_invitation

    if text.startswith(f"{PREFIX}."):
        return parse_invitation(text, int(time.time()))
    return read_invitation(Path(text))
