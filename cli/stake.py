"""Stake: `assay stake` adds, locks, releases, unstakes and withdraws stake, and shows its status.

Room: cli (edge). The rules are participant/wallet/stake.py; each command reads the chain, prints what
follows, and makes at most one kind of transaction.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from assay.cli.spending import ConfigFile, DryRun, account_of, sent_text, show

stake_app = typer.Typer(no_args_is_help=True, help="Add, remove, withdraw and show your stake.")
Set = Annotated[
    int | None,
    typer.Option("--set", min=1, help="A verifier's term: the verifier set; the current one by default."),
]
Amount = Annotated[str | None, typer.Argument(metavar="[AMOUNT]", help="Tokens, such as 250 or 12.5.")]
TICKET_MAX = 2**64 - 1


@stake_app.command()
def add(
    file: ConfigFile,
    amount: Amount = None,
    to: Annotated[
        str | None, typer.Option(metavar="AMOUNT", help="Add only what is missing to this amount.")
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Add AMOUNT to your stake; or, with --to, only what it lacks, so that repeating it adds nothing."""
    show(add_lines(file, amount, to, is_dry=dry_run))


@stake_app.command()
def remove(
    file: ConfigFile,
    amount: Amount = None,
    to: Annotated[
        str | None, typer.Option(metavar="AMOUNT", help="Remove only what exceeds this amount.")
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Start to unstake AMOUNT; or, with --to, only the excess, so that repeating it removes nothing."""
    show(remove_lines(file, amount, to, is_dry=dry_run))


@stake_app.command()
def lock(
    file: ConfigFile,
    amount: Annotated[str, typer.Argument(metavar="AMOUNT", help="What the lot shall hold, in tokens.")],
    days: Annotated[int, typer.Option(help="Bind it for at most so many days.")] = 60,
    set_version: Set = None,
    dry_run: DryRun = False,
) -> None:
    """Lock AMOUNT of your free stake for your seat in this run, or your term as a verifier: you consent."""
    show(lock_lines(file, amount, days, set_version, is_dry=dry_run))


@stake_app.command()
def release(file: ConfigFile, set_version: Set = None, dry_run: DryRun = False) -> None:
    """Make the lot of this run, or of the present term, free stake again."""
    show(release_lines(file, set_version, is_dry=dry_run))


@stake_app.command()
def withdraw(
    file: ConfigFile,
    ticket: Annotated[
        int | None, typer.Option(min=1, max=TICKET_MAX, help="Withdraw only this ticket.")
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Withdraw every ticket whose unbonding time is over, or one ticket."""
    show(withdraw_lines(file, ticket, is_dry=dry_run))


@stake_app.command()
def collect(file: ConfigFile, dry_run: DryRun = False) -> None:
    """Collect this account's rewards from slashes, as challenger or as buyer."""
    show(collect_lines(file, is_dry=dry_run))


@stake_app.command("show")
def show_stake(file: ConfigFile) -> None:
    """Print active and unbonding stake, tickets, the hot key, and whatever blocks a withdrawal."""
    show(stake_lines(file))


def add_lines(file: Path, amount: str | None, to: str | None, *, is_dry: bool) -> Iterator[str]:
    """Add stake; one line for the effect, one for the transaction.

    Raises:
        ConfigError: no amount, or one that the vault would refuse. ChainRefused: it refused.
    """
    from assay.participant.wallet.stake import read_stake_status, to_add

    units, target = _amount(amount), _amount(to)
    account = account_of(file)
    status = read_stake_status(account)
    added = to_add(status, amount=units, to=target)
    active = status.stake.active
    yield f"{status.account}, {status.role_name}: {_money(active)} active"
    if not added:
        yield "nothing to add"
        return
    if is_dry:
        vault = account.deployment.stake_vault
        yield f"would send to StakeVault {vault}: stake({status.role_name}, {_money(added)})"
        yield f"and before it, to the token: approve(StakeVault, {_money(added)})"
        return
    sent = account.chain.stake(status.role, added)
    yield f"added {_money(added)}, {_money(active + added)} active: {sent_text(sent)}"


def remove_lines(file: Path, amount: str | None, to: str | None, *, is_dry: bool) -> Iterator[str]:
    """Start to unstake; the last line names the ticket and when it can be withdrawn.

    Raises:
        ConfigError: no amount, or one that the vault would refuse. ChainRefused: it refused.
    """
    from assay.chain.times import span_text, when_text
    from assay.participant.wallet.stake import read_stake_status, to_remove

    units, target = _amount(amount), _amount(to)
    account = account_of(file)
    status = read_stake_status(account)
    removed = to_remove(status, amount=units, to=target)
    yield f"{status.account}, {status.role_name}: {_money(status.stake.active)} active"
    if not removed:
        yield "nothing to remove"
        return
    if is_dry:
        vault = account.deployment.stake_vault
        yield f"would send to StakeVault {vault}: requestUnstake({status.role_name}, {_money(removed)})"
        yield f"it could be withdrawn {span_text(status.unbonding_s)} later; until then it can be slashed"
        return
    number = account.chain.request_unstake(status.role, removed)
    ticket, now = account.chain.ticket(number), account.chain.timestamp()
    yield f"{_money(removed)} unbonding with ticket {number}; until it is withdrawn it can be slashed"
    yield f"withdraw from {when_text(ticket.ready_at, now)}"


def lock_lines(file: Path, amount: str, days: int, set_version: int | None, *, is_dry: bool) -> Iterator[str]:
    """Lock a lot; repeating it with the same amount locks no more.

    Raises:
        ConfigError: more than is free, or too long. ChainRefused: the vault refused.
    """
    from assay.chain.times import when_text
    from assay.chain.units import parse_money
    from assay.participant.wallet.stake import read_stake_status, to_lock

    account, units = account_of(file), parse_money(amount)
    status = read_stake_status(account, set_version)
    until, commitment = to_lock(status, units, days), status.commitment or account.run_id
    what = f"{_money(units)} for {commitment.hex()[:16]}, until {when_text(until, status.now)}"
    if is_dry:
        yield f"would lock in StakeVault {account.deployment.stake_vault}: {what}"
        return
    sent = account.chain.ensure_lot(status.role, commitment, units, until)
    yield f"locked {what}: {sent_text(sent)}"


def release_lines(file: Path, set_version: int | None, *, is_dry: bool) -> Iterator[str]:
    """Release the lot of this run, or of the present term.

    Raises:
        ChainRefused: it can still be disputed.
    """
    from assay.participant.wallet.stake import read_stake_status

    account = account_of(file)
    status = read_stake_status(account, set_version)
    if status.commitment is None or not status.lot.until:
        yield "there is no lot to release"
    elif is_dry:
        vault = account.deployment.stake_vault
        yield f"would send to StakeVault {vault}: release of {_money(status.lot.amount)}"
    else:
        sent = account.chain.release_lot(account.address, status.role, status.commitment)
        yield f"released {_money(status.lot.amount)}: {sent_text(sent)}"


def withdraw_lines(file: Path, number: int | None, *, is_dry: bool) -> Iterator[str]:
    """Withdraw; one line per ticket.

    Raises:
        ConfigError: the ticket is not ours. Unavailable: it is not ready. ChainRefused: the vault refused.
    """
    from assay.participant.wallet.stake import check_ticket, read_stake_status, ripe, waits_for

    account = account_of(file)
    status = read_stake_status(account)
    if number is None:
        chosen = ripe(status)
        for other, ticket in status.tickets.items():
            if other not in chosen:
                reason = waits_for(status, ticket) if ticket.amount else "worth nothing after a slash"
                yield f"ticket {other}: {_money(ticket.amount)}, {reason}"
    else:
        ticket = account.chain.ticket(number)
        check_ticket(status, number, ticket)
        if ticket.is_spent:
            yield f"ticket {number}: withdrawn or cancelled before; nothing was sent"
            return
        chosen = {number: ticket}
    if not chosen:
        yield "nothing to withdraw now"
    for at, ticket in chosen.items():
        if is_dry:
            vault = account.deployment.stake_vault
            yield f"would send to StakeVault {vault}: withdraw({at}), worth {_money(ticket.amount)}"
            continue
        sent = account.chain.withdraw(at)
        yield f"ticket {at}: {_money(ticket.amount)} withdrawn to {status.account}: {sent_text(sent)}"


def collect_lines(file: Path, *, is_dry: bool) -> Iterator[str]:
    """Collect slash rewards; a repeated call finds nothing to collect.

    Raises:
        ChainRefused: the vault refused.
    """
    account = account_of(file)
    waiting = account.chain.rewards_of(account.address)
    if not waiting:
        yield f"{account.address}: no reward to collect"
    elif is_dry:
        where = f"StakeVault {account.deployment.stake_vault}"
        yield f"would send to {where}: collect({account.address}), worth {_money(waiting)}"
    else:
        yield f"{_money(waiting)} collected to {account.address}: {sent_text(account.chain.collect())}"


def stake_lines(file: Path) -> Iterator[str]:
    """The fields of `read_stake_status`, one line each."""
    from assay.chain.times import time_text, when_text
    from assay.participant.wallet.delegation import delegation_text
    from assay.participant.wallet.stake import read_stake_status, waits_for

    status = read_stake_status(account_of(file))
    stake, now = status.stake, status.now
    yield f"account   {status.account}, {status.role_name}"
    yield f"active    {_money(stake.active)}, least {_money(stake.minimum)}" + (
        "" if stake.active >= stake.minimum else ": NOT enough to take part"
    )
    if status.lot.until:
        bound = when_text(status.lot.until, now)
        yield f"lot       {_money(status.lot.amount)} for this run or term, until {bound}"
    yield f"free      {_money(stake.free)}"
    yield f"unbonding {_money(stake.unbonding)}"
    for number, ticket in status.tickets.items():
        is_ripe = ticket.ready_at <= now
        when = "can be withdrawn now" if is_ripe else waits_for(status, ticket)
        yield f"ticket    {number}: {_money(ticket.amount)}, {when}"
    yield f"wallet    {_money(status.wallet)}"
    if status.rewards:
        yield f"rewards   {_money(status.rewards)} from slashes, see `assay stake collect`"
    if status.is_banned:
        yield "banned    for ever: this account equivocated"
    delegation = delegation_text(status.hot_address, status.hot, status.account, now)
    yield f"hot key   {delegation}"
    yield f"as of     {time_text(now)}, the chain's clock"


def _amount(text: str | None) -> int | None:
    from assay.chain.units import parse_money

    return None if text is None else parse_money(text)


def _money(units: int) -> str:
    from assay.chain.units import UNIT, money_text

    return f"{money_text(units)} {UNIT}"
