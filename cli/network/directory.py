"""Directory: announces a participant's record on chain, and lists a network's runs, operators and verifiers.

Room: cli (edge). The lists are participant/directory/listing.py's.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from assay.cli.account.spending import ConfigFile, DryRun, account_of, sent_text
from assay.cli.network.commands import InvitationText, read_given
from assay.cli.result import AsJson, Step, done, dry, nothing, show, stepwise
from assay.orders.config_errors import one_line
from assay.protocol.errors import ConfigError

if TYPE_CHECKING:
    from assay.chain.reader import ChainReader
    from assay.participant.directory.listing import ListedRun, ListedRuns, Stakers

Rpc = Annotated[str | None, typer.Option("--rpc", metavar="URL", help="An endpoint of your own.")]


def add_network_list(app: typer.Typer) -> None:
    """Add announcing and the list of people to `assay network`."""
    app.command()(announce)
    app.command("list")(list_stakers)


def add_run_list(app: typer.Typer) -> None:
    """Add the list of runs to `assay run`."""
    app.command("list")(list_runs)
    app.command("show")(show_run)


@stepwise
def announce(file: ConfigFile, dry_run: DryRun = False) -> Iterator[Step]:
    """Publish your own record on chain, so that others find you where you are now; repeating does nothing.

    Example: assay network announce config.toml
    """
    from assay.chain.commit_statement import evm_address
    from assay.participant.directory.find import announce_record
    from assay.participant.files.record import OWN_RECORD, read_record

    account = account_of(file)
    signed = read_record(account.config.keys / OWN_RECORD, int(time.time()))
    record = signed.record
    if evm_address(record.account) != account.address:
        raise ConfigError(f"the record is of account {evm_address(record.account)}, not {account.address}")
    where = f"{record.peer.hex()[:16]} at {record.host} port {record.port}"
    if dry_run:
        yield dry(
            "announce", f"would send to Directory {account.deployment.directory}: announceRecord({where})"
        )
        return
    sent = announce_record(account.chain, signed)
    if sent.tx_hash is None:
        yield nothing("announce", f"{where} is announced already; nothing was sent")
    else:
        yield done("announce", f"announced {where}: {sent_text(sent)}", sent=sent)


def list_stakers(invitation: InvitationText, rpc: Rpc = None, as_json: AsJson = False) -> None:
    """List a network's verifiers and operators: stake, delegation, and where they say they are.

    Example: assay network list network.txt
    """
    from assay.participant.directory.listing import read_stakers

    found = read_stakers(chain_of(invitation, rpc), int(time.time()))
    show(found, staker_lines(found), as_json=as_json)


def list_runs(
    invitation: InvitationText,
    open_only: Annotated[bool, typer.Option("--open", help="Only runs with a free seat.")] = False,
    rpc: Rpc = None,
    as_json: AsJson = False,
) -> None:
    """List a network's runs, newest first: model, price, seats, escrow, deadline.

    Example: assay run list network.txt --open
    """
    from assay.participant.directory.listing import read_listed

    found = read_listed(chain_of(invitation, rpc), int(time.time()), open_only=open_only)
    show(found, listed_lines(found), as_json=as_json)


def show_run(
    invitation: InvitationText,
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run's id, 64 hexadecimal digits.")],
    rpc: Rpc = None,
    as_json: AsJson = False,
) -> None:
    """Show one run of a network, and who takes part in it.

    Example: assay run show network.txt 6d1f8c0b5a3e49d27c6f8e1b0a9d4c3f2e1d0c9b8a7f6e5d4c3b2a1908f7e6d5
    """
    found = run_shown(invitation, run, rpc)
    show(found, run_lines(found), as_json=as_json)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberShown:
    """Somebody whom the run file names."""

    role: str
    peer: bytes
    account: str
    host: str
    port: int
    explorer: str  # address of one that it says it serves; empty: none


@dataclass(frozen=True, slots=True, kw_only=True)
class RunShown:
    """A run, and who takes part in it from its beginning."""

    run: ListedRun
    as_of: int  # the newest block's time
    members: tuple[MemberShown, ...]


def run_shown(invitation: str, run: str, rpc: str | None) -> RunShown:
    """One run of a network.

    Raises:
        ConfigError: no id, or no such run on this network. Unavailable: the endpoint is gone.
    """
    from assay.chain.commit_statement import evm_address
    from assay.participant.directory.explorers import newest_records
    from assay.participant.directory.listing import read_listed_run
    from assay.participant.files.run_file import read_run_id

    run_id = read_run_id(run)
    if run_id is None:
        raise ConfigError(f"run {run[:80]!a}: expected its id, 64 hexadecimal digits")
    chain = chain_of(invitation, rpc)
    listed, found = read_listed_run(chain, run_id, int(time.time()))
    return RunShown(
        run=listed,
        as_of=chain.timestamp(),
        members=tuple(
            MemberShown(
                role=one.role.name.lower(),
                peer=one.peer,
                account=evm_address(one.account),
                host=one.host,
                port=one.port,
                explorer=one.explorer,
            )
            for one in newest_records(chain, found, int(time.time()))
        ),
    )


def chain_of(invitation: str, rpc: str | None) -> ChainReader:
    """The chain of an invitation, compared with it; through this endpoint, or the one that it names.

    Raises:
        ConfigError: the invitation is damaged, or its chain is another. Unavailable: no endpoint answers.
    """
    from assay.chain.reader import ChainReader
    from assay.participant.files.invitation import check_network

    found = read_given(invitation)
    chain = ChainReader(rpc or found.first_endpoint, found.deployment)
    check_network(found, chain)
    return chain


# ---- for people


def listed_lines(found: ListedRuns) -> Iterator[str]:
    """Runs, a few lines each."""
    for one in found.runs:
        yield from _listed_lines(one, found.as_of)
        yield ""
    yield f"{len(found.runs)} listed of {found.announced} announced; {found.unreadable} could not be read"


def run_lines(found: RunShown) -> Iterator[str]:
    """One run and its members."""
    yield from _listed_lines(found.run, found.as_of)
    yield f"buyer     {found.run.buyer}"
    yield f"data      {found.run.data.hex()}"
    for one in found.members:
        yield f"{one.role:<10}{one.peer.hex()[:16]} {one.account} at {one.host} port {one.port}"
        if one.explorer:
            yield f"          explorer {one.explorer}"


def _listed_lines(one: ListedRun, now: int) -> Iterator[str]:
    from assay.chain.text.times import when_text
    from assay.chain.text.units import money_text, token_text
    from assay.orders.amounts import accept_text

    yield f"run       {one.run_id.hex()}"
    yield f"name      {one_line(one.name)}, {one.state.value}"
    yield f"model     {one.model}; {one.rounds:,} rounds"
    price = f"{token_text(one.price_per_mtoken)} per 10^6 tokens"
    yield f"price     {price}{accept_text(one.accept_ppm)}"
    lot = token_text(one.lot)
    yield f"seats     {one.seats_taken} of {one.seats} taken; a lot of {lot} each"
    if one.continues is not None:
        yield f"continues {one.continues.hex()}"
    if one.start_by_s:
        yield f"starts    with {one.least_nodes} nodes by {when_text(one.start_by_s, now)}, or never"
    yield f"escrow    {token_text(one.budget)}, {money_text(one.free)} free"
    yield f"closes    {when_text(one.closes_at, now)}"


def staker_lines(found: Stakers) -> Iterator[str]:
    """Verifiers and operators, a line or two each."""
    from assay.chain.text.times import when_text
    from assay.chain.text.units import money_text

    for one in found.stakers:
        stakes = {"operator": one.operator_stake, "verifier": one.verifier_stake}
        staked = ", ".join(f"{role} {money_text(stake)}" for role, stake in stakes.items() if stake)
        seat = ", in the verifier set" if one.is_seated else ""
        until = (
            "no hot key"
            if one.delegated_until is None
            else f"delegated until {when_text(one.delegated_until, found.as_of)}"
        )
        yield f"{one.account}  {staked or 'no stake'}{seat}; {until}"
        if one.place is not None:
            place = one.place
            yield f"    {place.role} {place.peer.hex()[:16]} at {place.host} port {place.port}"
            if place.explorer:
                yield f"    explorer {place.explorer}"
    yield f"{len(found.stakers)} listed; {found.announced} accounts with stake announced a record"
