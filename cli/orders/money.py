"""Order money: a quote, and a buyer's escrow transactions with their effects.

Room: cli (edge). The values are those of orders/price/quoted.py, the rules orders/purchase.py's.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from assay.chain.commit_statement import evm_address
from assay.chain.text.settlement_phase import phase_text
from assay.chain.text.times import span_text, time_text, when_text
from assay.cli.account.spending import account_of, approval, name_payee, sent_text
from assay.cli.progress import progress
from assay.cli.result import Step, done, dry, nothing, told
from assay.orders.amounts import accept_text, bytes_text, money_text, parse_money, token_text
from assay.orders.load import load_order
from assay.orders.order import Order
from assay.orders.place import check_described, check_members, described, new_run
from assay.orders.price.quote import Cost, Quote, quote_of
from assay.orders.price.quoted import Quoted
from assay.orders.purchase import (
    Escrow,
    check_cancel,
    check_found,
    check_lots,
    check_place,
    check_refund,
    check_start,
    check_wallet,
    deadline_after,
    need_escrow,
    place,
    read_escrow,
    to_top_up,
)
from assay.participant.directory.find import announce_run, is_too_large
from assay.participant.files.record import OWN_RECORD, SignedRecord, learn_records, read_record, read_records
from assay.participant.files.run_file import RunFile, write_run_file
from assay.participant.wallet.account import Account
from assay.protocol.encoding.codec import digest
from assay.protocol.errors import ConfigError
from assay.protocol.types import Digest

# ---- the quote


def quote_lines(found: Quoted) -> Iterator[str]:
    """A quote, as text lines."""
    yield f"quote     {found.quote}"
    reserves = f", {found.reserves} in reserve" if found.reserves else ""
    parties = f"{found.nodes} nodes, {found.verifiers} verifiers{reserves}"
    yield f"run       {found.name}: {found.rounds:,} rounds, {parties}"
    yield f"seats     {found.seats}, each with a lot of {token_text(found.lot)}"
    if found.start_within_s:
        yield f"starts    with {found.least_nodes} nodes, within {span_text(found.start_within_s)}, or never"
    yield f"price     {token_text(found.price_per_mtoken)} per 10^6 tokens"
    yield f"at most   {_cost_text(found.at_most)}"
    yield f"expected  {_cost_text(found.expected)}"
    yield f"epochs    {found.epochs:,}, each at most {token_text(found.epoch_cap)}"
    yield f"audits    {found.verification_ppm / 10_000:.2f} % of an honest node's steps are recomputed"
    if found.milestones:
        yield (
            f"accept    {token_text(found.refusable)} of it at most are not owed if the model misses all "
            f"{found.milestones} milestones: nodes, verifiers and fee alike get less"
        )
    yield f"time      {span_text(found.time_s)}, if every round waits for a slow node as long as it may"
    yield f"escrow    {token_text(found.escrow)}; at least {token_text(found.escrow_least)}"
    for line in found.returns:
        yield f"returns   {line}"


def _cost_text(cost: Cost) -> str:
    return (
        f"{cost.tokens:,} tokens, {token_text(cost.gross)}: {money_text(cost.operators)} to operators, "
        f"{money_text(cost.verifiers)} to verifiers, {money_text(cost.fee)} fee"
    )


# ---- the buyer's transactions


def place_steps(
    file: Path, order_file: Path, members: Path | None, expected: str | None, days: int, *, is_dry: bool
) -> Iterator[Step]:
    """Make and open the run of an order, or find it made and open.

    Args:
        file: The buyer's configuration.
        order_file: What was quoted.
        members: Folder of the members' records; not needed where the run file is there already.
        expected: The digest that the quote must have; None for any.
        days: Until the run closes by itself.
        is_dry: Send nothing.

    Raises:
        ConfigError: spec, contracts, order and quote disagree. ChainRefused: the escrow refused.
    """
    order = load_order(order_file)
    quote = quote_of(order)
    name = quote.name.hex()
    if expected is not None and expected.lower() != name:
        raise ConfigError(f"{order_file}: its quote is {name}, expected {expected[:64]!r}")
    account, made = account_of(file), None
    if account.run is None:
        made = _new_run(account, order, members)
        account = replace(account, run=made)
    is_made = made is not None
    found = None if is_made else order
    yield from opened_steps(account, quote, days, found, is_made=is_made, is_dry=is_dry)


def opened_steps(
    account: Account, quote: Quote, days: int, order: Order | None = None, *, is_made: bool, is_dry: bool
) -> Iterator[Step]:
    """Open the account's run with the quoted escrow, or find it open; its file is written if it was made.

    Before it is opened, its data and base are compared with what `order` names, if that is given.
    """
    check_place(account, quote)
    spec = account.spec
    yield told("quote", f"quote     {quote.name.hex()}")
    yield told("run", f"run       {account.run_id.hex()}")
    root = spec.data.root.hex()[:16]
    yield told("data", f"data      {spec.data.tokens:,} tokens, {spec.data.source}, root {root}")
    yield told("fee", f"fee to    {evm_address(spec.money.treasury)}")
    if spec.start_by_s:
        text = f"starts    with {spec.least_nodes} nodes, by {time_text(spec.start_by_s)}, or never"
        yield told("start", text)
    found = read_escrow(account)
    if found is not None:
        check_found(found, quote, spec)
        yield nothing("open", f"already open with {token_text(found.run.budget)}; nothing was sent")
        yield told("deadline", f"deadline  {when_text(found.run.closes_at, found.now)}")
        yield from _announced(account, is_dry=is_dry)
        return
    deadline = deadline_after(account, days, to_midnight=account.keys.signs_by_files)
    check_start(account, deadline)
    check_members(account.chain, spec, deadline)
    for member in (*spec.nodes, *spec.judges):
        text = f"member    {member.peer.hex()[:16]} {evm_address(member.account)}: staked and delegated"
        yield told("member", text)
    check_wallet(account, quote.budget)
    if is_dry or order is not None:
        check_lots(account, quote.lot, deadline)  # first: what lacks most often, and is seen at once
    if order is not None:
        _check_described(account, order)
    if is_dry:
        text = (
            f"would send to RunEscrow {account.deployment.run_escrow}: openRun({digest(spec).hex()},\n"
            f"    {token_text(quote.budget)}, {token_text(quote.epoch_cap)}, {spec.epochs}, {deadline},\n"
            f"    lots of {token_text(quote.lot)} of {len(spec.nodes)} operators)"
        )
        yield dry("open", text, quote.budget)
        yield from approval(account, "RunEscrow", quote.budget)
        yield from _announced(account, is_dry=True)
        return
    if is_made:  # before the money moves: what was paid for must never be lost
        write_run_file(account.config.run, account.run_file)
        text = f"run file  {account.config.run}: every participant needs a copy, and the data"
        yield done("run-file", text)
    opened = place(account, quote, deadline)
    budget = opened.run.budget
    yield done("open", f"opened with {token_text(budget)} in escrow", budget)
    yield told("deadline", f"deadline  {when_text(opened.run.closes_at, opened.now)}")
    yield from _announced(account, is_dry=False)


def _announced(account: Account, *, is_dry: bool) -> Iterator[Step]:
    """Announce the file of a run that is open, unless that was done."""
    if is_too_large(account.run_file):
        yield nothing("announce", "the run file is too large for the directory: send it to every participant")
    elif is_dry:
        where = f"Directory {account.deployment.directory}"
        yield dry("announce", f"would send to {where}: announceRun({account.run_id.hex()}), unless it was")
    else:
        sent = announce_run(account.chain, account.run_file)
        yield done("announce", f"run file in the directory: {sent_text(sent)}", sent=sent)


def _new_run(account: Account, order: Order, members: Path | None) -> RunFile:
    """The run of an order with everybody whose record is in a folder, and the buyer."""
    now_s = int(time.time())
    found = known_records(account, members, now_s)
    with progress("bytes") as tell:
        data, base = described(order, tell)
    return new_run(
        order,
        found,
        deployment_id=Digest(account.deployment.deployment_id),
        data=data,
        base=base,
        buyer_key=account.keys.buyer_key,
        now_s=now_s,
    )


def _check_described(account: Account, order: Order) -> None:
    """`check_described`, of the account's run."""
    try:
        with progress("bytes") as tell:
            check_described(order, account.spec, tell)
    except ConfigError as error:
        raise ConfigError(
            f"{error}\nIf the order is right, remove {account.config.run}, and place it anew with --members: "
            "operators lock other lots"
        ) from None


def known_records(account: Account, members: Path | None, now_s: int) -> list[SignedRecord]:
    """The records in a folder, and the account's own; they are kept for its process."""
    if members is None:
        raise ConfigError("expected --members FOLDER, with the records of nodes, verifiers and ledger")
    own = account.config.keys / OWN_RECORD
    found = read_records(members, now_s)
    if own.exists():
        found |= {one.record.peer: one for one in [read_record(own, now_s)]}
    learn_records(account.config.records, found.values(), now_s)
    return list(found.values())


def status_lines(escrow: Escrow) -> Iterator[str]:
    """A run's terms, and where its money is."""
    run, terms = escrow.run, escrow.terms
    yield f"run       {escrow.run_id.hex()}"
    if terms.continues is not None:
        yield f"continues {terms.continues.hex()}"
    yield f"seats     {terms.seats}, {terms.named} for nodes that the buyer named"
    if terms.start_by_s:
        yield f"starts    with {terms.least_nodes} nodes, by {time_text(terms.start_by_s)}, or never"
    price = f"{token_text(terms.operator_price)} per 10^6 tokens to a node"
    yield f"pays      {price}{accept_text(terms.accept_ppm)}"
    yield f"lot       {token_text(run.lot)}"
    opening = f"{bytes_text(terms.opening_bytes)} to verifiers within {terms.opening_ms / 1000:g} s"
    yield f"openings  up to {opening}; slashed {span_text(terms.absence_s)} later"
    yield f"buyer     {run.buyer}"
    yield f"escrow    {token_text(run.budget)}"
    yield f"reserved  {token_text(run.reserved)} for results that are not claimed yet"
    yield f"paid      {token_text(run.paid)}"
    yield f"returned  {token_text(run.returned)}"
    yield f"free      {token_text(run.free)}"
    yield _closing(escrow)
    for epoch, state in enumerate(escrow.epochs):
        yield f"epoch {epoch}: {phase_text(state, escrow.now)}"
    yield f"as of     {time_text(escrow.now)}, the chain's clock"


def topup_steps(file: Path, amount: str | None, to: str | None, *, is_dry: bool) -> Iterator[Step]:
    """Add to the escrow.

    Raises:
        ConfigError: no amount, more than the account holds, or the run is closed. ChainRefused.
        NotYet: with `to`, a transaction of the account is not mined yet.
    """
    units, target = (None if text is None else parse_money(text) for text in (amount, to))
    account = account_of(file)
    if target is not None:
        account.chain.check_mined()
    escrow = need_escrow(account)
    added = to_top_up(escrow, amount=units, to=target)
    if not added:
        yield nothing("top-up", f"nothing to add: the escrow has {token_text(escrow.run.budget)}")
        return
    check_wallet(account, added)
    if is_dry:
        where = f"RunEscrow {account.deployment.run_escrow}"
        yield dry(
            "top-up", f"would send to {where}: topUp({account.run_id.hex()}, {token_text(added)})", added
        )
        yield from approval(account, "RunEscrow", added)
        return
    sent = account.chain.top_up(account.run_id, added)
    budget = need_escrow(account).run.budget
    text = f"added {token_text(added)}, {token_text(budget)} in escrow: {sent_text(sent)}"
    yield done("top-up", text, added, sent)


def cancel_steps(file: Path, *, is_dry: bool) -> Iterator[Step]:
    """Ask to stop, and say what is still paid.

    Raises:
        ConfigError: nobody opened the run, or this account is not its buyer. ChainRefused.
    """
    account = account_of(file)
    escrow = need_escrow(account)
    if not check_cancel(account, escrow):
        yield nothing("close", f"nothing was sent: {_closing(escrow)}")
    elif is_dry:
        delay = span_text(account.chain.close_delay())
        where = f"RunEscrow {account.deployment.run_escrow}"
        yield dry("close", f"would send to {where}: requestClose({account.run_id.hex()})")
        yield told("closing", f"the run would close {delay} later")
        return
    else:
        sent = account.chain.request_close(account.run_id)
        escrow = need_escrow(account)
        yield done("close", f"{_closing(escrow)}: {sent_text(sent)}", sent=sent)
    if not escrow.is_closed:
        text = "until then results for finished work are accepted and paid; later proposals are not"
        yield told("closing", text)
        free = escrow.run.free
        yield told("free", f"then `assay order refund` returns the rest, now {token_text(free)}", free)


def refund_steps(file: Path, to: str | None = None, *, is_dry: bool) -> Iterator[Step]:
    """Return to the buyer, or to the address that it names with `to`, what is free.

    Raises:
        ConfigError: nobody opened the run. NotYet: until when. ChainRefused.
    """
    account = account_of(file)
    escrow = need_escrow(account)
    if to is not None:
        if account.address != escrow.run.buyer:
            raise ConfigError(f"only the buyer {escrow.run.buyer} names where its money goes")
        yield from name_payee(account, to, is_dry=is_dry)
    if not check_refund(escrow):
        yield nothing("refund", f"nothing to return: {token_text(escrow.run.returned)} were returned before")
    elif is_dry:
        where = f"RunEscrow {account.deployment.run_escrow}"
        free = escrow.run.free
        text = f"would send to {where}: refund({account.run_id.hex()}), {token_text(free)} to the buyer"
        yield dry("refund", text, free)
    else:
        sent = account.chain.refund(account.run_id)
        payee = account.chain.payee_of(escrow.run.buyer)
        free = escrow.run.free
        yield done("refund", f"{token_text(free)} returned to {payee}: {sent_text(sent)}", free, sent)
    if escrow.run.reserved:
        reserved = escrow.run.reserved
        text = f"{token_text(reserved)} wait to be claimed; what nobody claims in time returns too"
        yield told("reserved", text, reserved)


def _closing(escrow: Escrow) -> str:
    """When the run ends, or ended."""
    run = escrow.run
    when = when_text(run.closes_at, escrow.now)
    if escrow.is_closed:
        return f"closed    {when}"
    return f"closing   {when}" if run.closes_at < run.deadline else f"deadline  {when}"
