"""Stake: `assay stake` adds, locks, releases, unstakes and withdraws stake, and shows its status.

Room: cli (edge). The rules are participant/wallet/stake.py; each command reads the chain, prints what
follows, and makes at most one kind of transaction.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from assay.chain.text.units import parse_money, token_text
from assay.cli.account.spending import ConfigFile, DryRun, account_of, approval, sent_text
from assay.cli.result import AsJson, Step, done, dry, nothing, show, stepwise, told

if TYPE_CHECKING:
    from assay.participant.wallet.account import Account
    from assay.participant.wallet.stake import StakeStatus

stake_app = typer.Typer(no_args_is_help=True, help="Add, remove, withdraw and show your stake.")
Set = Annotated[
    int | None,
    typer.Option("--set", min=1, help="A verifier's term: the verifier set; the current one by default."),
]
Amount = Annotated[str | None, typer.Argument(metavar="[AMOUNT]", help="Tokens, such as 250 or 12.5.")]
TICKET_MAX = 2**64 - 1
Ticket = Annotated[int | None, typer.Option("--ticket", min=1, max=TICKET_MAX, help="Only this ticket.")]


@stake_app.command()
@stepwise
def add(
    file: ConfigFile,
    amount: Amount = None,
    to: Annotated[
        str | None, typer.Option(metavar="AMOUNT", help="Add only what is missing to this amount.")
    ] = None,
    dry_run: DryRun = False,
) -> Iterator[Step]:
    """Add AMOUNT to your stake; or, with --to, only what it lacks, so that repeating it adds nothing.

    Example: assay stake add config.toml --to 1000
    """
    from assay.participant.wallet.stake import read_stake_status, to_add

    units, target = _amount(amount), _amount(to)
    account = account_of(file)
    if target is not None:
        account.chain.check_mined()
    status = read_stake_status(account)
    added = to_add(status, amount=units, to=target)
    active = status.stake.active
    yield told("stake", f"{status.account}, {status.role_name}: {token_text(active)} active", active)
    if not added:
        yield nothing("add", "nothing to add")
        return
    if dry_run:
        vault = account.deployment.stake_vault
        call = f"stake({status.role_name}, {token_text(added)})"
        yield dry("add", f"would send to StakeVault {vault}: {call}", added)
        yield from approval(account, "StakeVault", added)
        return
    sent = account.chain.stake(status.role, added)
    active = account.chain.stake_of(account.address, status.role).active
    text = f"added {token_text(added)}, {token_text(active)} active: {sent_text(sent)}"
    yield done("add", text, added, sent)


@stake_app.command()
@stepwise
def remove(
    file: ConfigFile,
    amount: Amount = None,
    to: Annotated[
        str | None, typer.Option(metavar="AMOUNT", help="Remove only what exceeds this amount.")
    ] = None,
    dry_run: DryRun = False,
) -> Iterator[Step]:
    """Start to unstake AMOUNT; or, with --to, only the excess, so that repeating it removes nothing.

    Example: assay stake remove config.toml 250
    """
    from assay.chain.text.times import span_text, when_text
    from assay.participant.wallet.stake import read_stake_status, to_remove

    units, target = _amount(amount), _amount(to)
    account = account_of(file)
    if target is not None:
        account.chain.check_mined()
    status = read_stake_status(account)
    removed = to_remove(status, amount=units, to=target)
    active = status.stake.active
    yield told("stake", f"{status.account}, {status.role_name}: {token_text(active)} active", active)
    if not removed:
        yield nothing("remove", "nothing to remove")
        return
    if dry_run:
        vault = account.deployment.stake_vault
        call = f"requestUnstake({status.role_name}, {token_text(removed)})"
        yield dry("remove", f"would send to StakeVault {vault}: {call}", removed)
        later = span_text(status.unbonding_s)
        yield told("unbonding", f"it could be withdrawn {later} later; until then it can be slashed")
        return
    number = account.chain.request_unstake(status.role, removed)
    ticket, now = account.chain.ticket(number), account.chain.timestamp()
    text = f"{token_text(removed)} unbonding with ticket {number}; until it is withdrawn it can be slashed"
    yield done("remove", text, removed)
    yield told("unbonding", f"withdraw from {when_text(ticket.ready_at, now)}")


@stake_app.command()
@stepwise
def lock(
    file: ConfigFile,
    amount: Annotated[str, typer.Argument(metavar="AMOUNT", help="What the lot shall hold, in tokens.")],
    days: Annotated[int, typer.Option(help="Bind it for at most this many days.")] = 60,
    set_version: Set = None,
    dry_run: DryRun = False,
) -> Iterator[Step]:
    """Lock AMOUNT of your free stake for your seat in this run, or your term as a verifier: you consent.

    Example: assay stake lock config.toml 500 --days 60
    """
    from assay.chain.text.times import when_text
    from assay.participant.wallet.stake import read_stake_status, to_lock

    account, units = account_of(file), parse_money(amount)
    status = read_stake_status(account, set_version)
    until = to_lock(status, units, days, to_midnight=account.keys.signs_by_files)
    commitment = status.commitment or account.run_id
    what = f"{token_text(units)} for {commitment.hex()[:16]}, until {when_text(until, status.now)}"
    if dry_run:
        yield dry("lock", f"would lock in StakeVault {account.deployment.stake_vault}: {what}", units)
        return
    sent = account.chain.ensure_lot(status.role, commitment, units, until)
    yield done("lock", f"locked {what}: {sent_text(sent)}", units, sent)


@stake_app.command()
@stepwise
def release(file: ConfigFile, set_version: Set = None, dry_run: DryRun = False) -> Iterator[Step]:
    """Make the lot of this run, or of the present term, free stake again, or say from when it can be.

    Of a node that has left its run, send first what its verifiers signed: it need not wait for the run's end.

    Example: assay stake release config.toml
    """
    from assay.chain.statements import OPERATOR
    from assay.participant.wallet.stake import check_release, read_stake_status

    account = account_of(file)
    status = read_stake_status(account, set_version)
    amount, commitment = status.lot.amount, status.commitment
    if commitment is None or not status.lot.until:
        yield nothing("release", "there is no lot to release")
        return
    if status.role == OPERATOR:
        for step in _discharge_steps(account, commitment, is_dry=dry_run):
            yield step
            if not dry_run:
                status = read_stake_status(account)
    if dry_run:
        vault = account.deployment.stake_vault
        yield dry("release", f"would send to StakeVault {vault}: release of {token_text(amount)}", amount)
        return
    check_release(status)
    sent = account.chain.release_lot(account.address, status.role, commitment)
    yield done("release", f"released {token_text(amount)}: {sent_text(sent)}", amount, sent)


@stake_app.command()
@stepwise
def cancel(file: ConfigFile, number: Ticket = None, dry_run: DryRun = False) -> Iterator[Step]:
    """Make what you started to unstake free stake again: every ticket, or one.

    Example: assay stake cancel config.toml --ticket 7
    """
    from assay.participant.wallet.stake import check_own, read_stake_status

    account = account_of(file)
    status = read_stake_status(account)
    chosen = {at: one for at, one in status.tickets.items() if one.amount}
    if number is not None:
        ticket = account.chain.ticket(number)
        check_own(status, number, ticket)
        chosen = {} if ticket.is_spent else {number: ticket}
    if not chosen:
        yield nothing("cancel", "no ticket to cancel; nothing was sent")
    for at, ticket in chosen.items():
        if dry_run:
            call = f"would send to StakeVault {account.deployment.stake_vault}: cancelUnstake({at})"
            yield dry("cancel", f"{call}, worth {token_text(ticket.amount)}", ticket.amount)
            continue
        sent = account.chain.cancel_unstake(at)
        text = f"ticket {at}: {token_text(ticket.amount)} are free stake again: {sent_text(sent)}"
        yield done("cancel", text, ticket.amount, sent)


@stake_app.command()
@stepwise
def withdraw(file: ConfigFile, number: Ticket = None, dry_run: DryRun = False) -> Iterator[Step]:
    """Withdraw every ticket whose unbonding time is over, or one ticket.

    Example: assay stake withdraw config.toml
    """
    from assay.participant.wallet.stake import check_ripe, read_stake_status, ripe, waits_for

    account = account_of(file)
    status = read_stake_status(account)
    if number is None:
        chosen = ripe(status)
        for other, ticket in status.tickets.items():
            if other not in chosen:
                reason = waits_for(status, ticket) if ticket.amount else "worth nothing after a slash"
                yield told("ticket", f"ticket {other}: {token_text(ticket.amount)}, {reason}", ticket.amount)
    else:
        ticket = account.chain.ticket(number)
        check_ripe(status, number, ticket)
        if ticket.is_spent:
            yield nothing("withdraw", f"ticket {number}: withdrawn or cancelled before; nothing was sent")
            return
        chosen = {number: ticket}
    if not chosen:
        yield nothing("withdraw", "nothing to withdraw now")
    for at, ticket in chosen.items():
        if dry_run:
            vault = account.deployment.stake_vault
            text = f"would send to StakeVault {vault}: withdraw({at}), worth {token_text(ticket.amount)}"
            yield dry("withdraw", text, ticket.amount)
            continue
        sent = account.chain.withdraw(at)
        text = f"ticket {at}: {token_text(ticket.amount)} withdrawn to {status.account}: {sent_text(sent)}"
        yield done("withdraw", text, ticket.amount, sent)


@stake_app.command()
@stepwise
def collect(file: ConfigFile, dry_run: DryRun = False) -> Iterator[Step]:
    """Collect this account's rewards from slashes, as challenger or as buyer.

    Example: assay stake collect config.toml
    """
    account = account_of(file)
    waiting = account.chain.rewards_of(account.address)
    if not waiting:
        yield nothing("collect", f"{account.address}: no reward to collect")
    elif dry_run:
        where = f"StakeVault {account.deployment.stake_vault}"
        text = f"would send to {where}: collect({account.address}), worth {token_text(waiting)}"
        yield dry("collect", text, waiting)
    else:
        sent = account.chain.collect()
        text = f"{token_text(waiting)} collected to {account.address}: {sent_text(sent)}"
        yield done("collect", text, waiting, sent)


@stake_app.command("show")
def show_stake(file: ConfigFile, as_json: AsJson = False) -> None:
    """Print active and unbonding stake, tickets, the hot key, and whatever blocks a withdrawal.

    Example: assay stake show config.toml
    """
    from assay.participant.wallet.stake import read_stake_status

    status = read_stake_status(account_of(file))
    show(status, stake_lines(status), as_json=as_json)


def _discharge_steps(account: Account, run_id: bytes, *, is_dry: bool) -> Iterator[Step]:
    """Send the discharge that the node's process has kept, if there is one that would free the lot sooner."""
    from assay.participant.wallet.discharge import is_bound, read_certificate, send_discharge

    folder = account.config.folder
    if is_dry:
        if read_certificate(folder) is not None and is_bound(account.chain, account.address, run_id):
            yield dry("discharge", f"would send to SlashCourt {account.deployment.slash_court}: discharge")
        return
    sent = send_discharge(account.chain, folder, run_id)
    if sent is not None:
        yield done("discharge", f"discharged: {sent_text(sent)}", sent=sent)


def stake_lines(status: StakeStatus) -> Iterator[str]:
    """A stake status, one line for each field."""
    from assay.chain.text.times import time_text, when_text
    from assay.participant.wallet.delegation import delegation_text
    from assay.participant.wallet.stake import waits_for

    stake, now = status.stake, status.now
    yield f"account   {status.account}, {status.role_name}"
    yield f"active    {token_text(stake.active)}, least {token_text(stake.minimum)}" + (
        "" if stake.active >= stake.minimum else ": NOT enough to take part"
    )
    if status.lot.until:
        bound = when_text(status.lot.until, now)
        yield f"lot       {token_text(status.lot.amount)} for this run or term, until {bound}"
        yield f"release   from {when_text(status.release_at, now)}" + (
            f", once {status.lot.cases} cases about it have ended" if status.lot.cases else ""
        )
    yield f"free      {token_text(stake.free)}"
    yield f"unbonding {token_text(stake.unbonding)}"
    for number, ticket in status.tickets.items():
        is_ripe = ticket.ready_at <= now
        when = "can be withdrawn now" if is_ripe else waits_for(status, ticket)
        yield f"ticket    {number}: {token_text(ticket.amount)}, {when}"
    yield f"wallet    {token_text(status.wallet)}"
    if status.rewards:
        yield f"rewards   {token_text(status.rewards)} from slashes, see `assay stake collect`"
    if status.is_banned:
        yield "banned    for ever: this account equivocated"
    delegation = delegation_text(status.hot_address, status.hot, status.account, now)
    yield f"hot key   {delegation}"
    yield f"as of     {time_text(now)}, the chain's clock"


def _amount(text: str | None) -> int | None:
    return None if text is None else parse_money(text)
