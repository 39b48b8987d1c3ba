"""Stake actions: what an account does with its stake, its hot key, and its place on the list of juries.

Room: api (edge: reads the chain).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from assay.api.actions.action import (
    ROLES,
    Action,
    Nothing,
    NumberGiven,
    Owner,
    Plan,
    RoleGiven,
    TimeGiven,
    checked_address,
    raw,
    short,
)
from assay.api.http.problems import Problem
from assay.api.schemas import AddressText, AmountGiven, Asked, HashGiven
from assay.chain.state import Ticket
from assay.chain.statements import OPERATOR, term_of
from assay.chain.text.times import span_text, time_text, when_text
from assay.chain.text.units import token_text
from assay.participant.wallet.delegation import DAY_S, DAYS_MAX

_NOBODY = "0x" + "00" * 20


class _Stake(Asked):
    role: RoleGiven
    amount: AmountGiven


class _Ticket(Asked):
    ticket: NumberGiven


class _Lot(Asked):
    role: RoleGiven
    run_id: HashGiven | None = None  # of an operator
    set_version: Annotated[int, Field(ge=1, lt=2**32)] | None = None  # of a verifier; the current set's


class _Lock(_Lot):
    amount: AmountGiven
    until: TimeGiven


class _Delegation(Asked):
    hot_key: AddressText
    expiry: TimeGiven
    consent: Annotated[str, Field(pattern=r"^0x[0-9a-fA-F]{130}$")]


class _Payee(Asked):
    payee: AddressText


def _add(owner: Owner, given: _Stake) -> Plan:
    amount = int(given.amount)
    return Plan(
        arguments=(ROLES[given.role], amount),
        summary=f"stake {token_text(amount)} as {given.role}",
        pays=amount,
    )


def _remove(owner: Owner, given: _Stake) -> Plan:
    amount, delay = int(given.amount), span_text(owner.chain.unbonding_delay())
    what = f"{token_text(amount)} as {given.role}"
    return Plan(
        arguments=(ROLES[given.role], amount),
        summary=f"start to leave with {what}; it can be withdrawn {delay} later",
    )


def _withdraw(owner: Owner, given: _Ticket) -> Plan:
    found, now_s = _own_ticket(owner, given), owner.chain.timestamp()
    if found.ready_at > now_s:
        raise Problem(409, f"the ticket can be withdrawn from {when_text(found.ready_at, now_s)}")
    to = owner.named(owner.account)
    return Plan(
        arguments=(given.ticket,),
        summary=f"withdraw the {token_text(found.amount)} of ticket {given.ticket} to {to}",
    )


def _cancel(owner: Owner, given: _Ticket) -> Plan:
    amount = token_text(_own_ticket(owner, given).amount)
    return Plan(
        arguments=(given.ticket,), summary=f"make the {amount} of ticket {given.ticket} free stake again"
    )


def _lock(owner: Owner, given: _Lock) -> Plan:
    (commitment, what), amount = _commitment(owner, given), int(given.amount)
    if given.role == "operator":
        run = owner.chain.run(commitment)
        what += " (nobody has opened it yet)" if run is None else f" of the buyer {run.buyer}"
    return Plan(
        arguments=(ROLES[given.role], commitment, amount, given.until),
        summary=f"lock {token_text(amount)} more of the free stake as {given.role} for {what}, at the "
        f"longest until {time_text(given.until)}: it cannot leave before, and slash orders about this seat "
        "take from it",
    )


def _release(owner: Owner, given: _Lot) -> Plan:
    commitment, what = _commitment(owner, given)
    lot = owner.chain.lot_of(owner.account, ROLES[given.role], commitment)
    if not lot.until:
        raise Problem(404, f"this account has no lot for {what}")
    return Plan(
        arguments=(owner.account, ROLES[given.role], commitment),
        summary=f"make the lot of {token_text(lot.amount)} for {what} free stake again",
    )


def _collect(owner: Owner, given: Nothing) -> Plan:
    amount = owner.chain.rewards_of(owner.account)
    if not amount:
        raise Problem(409, "this account has no shares of slashes and no bonds to collect")
    to = owner.named(owner.account)
    return Plan(
        arguments=(owner.account,), summary=f"collect {token_text(amount)} of slashes and bonds to {to}"
    )


def _delegate(owner: Owner, given: _Delegation) -> Plan:
    hot_key, now_s = checked_address(given.hot_key), owner.chain.timestamp()
    if given.expiry > now_s + DAYS_MAX * DAY_S:
        raise Problem(409, f"a delegation ends within {DAYS_MAX} days from now")
    before = owner.chain.hot_key_of(owner.account)
    instead = "" if before in (hot_key, _NOBODY) else f", instead of {before}, which counts no more"
    over = "; it is over, so verifiers' seats of this account go to reserves" if given.expiry <= now_s else ""
    return Plan(
        arguments=(hot_key, given.expiry, raw(given.consent)),
        summary=f"let the key {hot_key} sign for this account until {time_text(given.expiry)}"
        f"{over}{instead}: whoever holds that key can have this account's whole stake slashed",
    )


def _name_payee(owner: Owner, given: _Payee) -> Plan:
    payee, before = checked_address(given.payee), owner.chain.payee_of(owner.account)
    to = "this account itself" if payee in (owner.account, _NOBODY) else f"the address {payee}"
    return Plan(
        arguments=(payee,),
        summary=f"have ALL that is owed to this account from now on (pay, stake, refunds, bonds) sent to {to}"
        f", no longer to {before}",
    )


def _enlist(owner: Owner, given: Nothing) -> Plan:
    places = owner.chain.places_lacking(owner.account)
    if not places:
        raise Problem(409, "this account is on the list of juries with all entries that its stake allows")
    return Plan(
        arguments=(places,),
        summary=f"put this account on the list of juries with {len(places)} more entries, for its verifier's "
        "stake",
    )


def _own_ticket(owner: Owner, given: _Ticket) -> Ticket:
    found = owner.chain.ticket(given.ticket)
    if found.account != owner.account or found.is_spent:
        raise Problem(404, "this account has no such ticket")
    return found


def _commitment(owner: Owner, given: _Lot) -> tuple[bytes, str]:
    """What a lot is locked for, and how summaries name it."""
    if ROLES[given.role] == OPERATOR:
        if given.run_id is None or given.set_version is not None:
            raise Problem(422, "parameters: an operator's lot is for a run_id")
        return raw(given.run_id), f"the seat in run {short(given.run_id)}"
    if given.run_id is not None:
        raise Problem(422, "parameters: a verifier's lot is for a set_version")
    version = given.set_version or owner.chain.set_version()
    return term_of(version), f"the place in verifier set {version}"


STAKE: Mapping[str, Action] = {
    "stake.add": Action(
        "StakeVault", "stake", _Stake, _add, does="stakes as an operator or a verifier", takes="amount"
    ),
    "stake.remove": Action(
        "StakeVault", "requestUnstake", _Stake, _remove, does="starts to leave with free stake"
    ),
    "stake.cancel": Action(
        "StakeVault", "cancelUnstake", _Ticket, _cancel, does="makes what is leaving free stake again"
    ),
    "stake.withdraw": Action("StakeVault", "withdraw", _Ticket, _withdraw, does="withdraws what has left"),
    "stake.lock": Action(
        "StakeVault",
        "lock",
        _Lock,
        _lock,
        does="locks free stake for a seat in a run, or a place in a verifier set",
    ),
    "stake.release": Action(
        "StakeVault", "release", _Lot, _release, does="makes the account's own lot free stake again"
    ),
    "stake.collect": Action(
        "StakeVault",
        "collect",
        Nothing,
        _collect,
        does="collects the account's shares of slashes, and its bonds of cases and appeals",
    ),
    "key.delegate": Action(
        "StakeVault",
        "delegate",
        _Delegation,
        _delegate,
        does="lets a hot key sign for the account, with that key's consent",
    ),
    "payee.name": Action(
        "RunEscrow",
        "namePayee",
        _Payee,
        _name_payee,
        does="names the address to which all that the account is owed is paid",
    ),
    "jury.enlist": Action(
        "VerifierSet", "enlist", Nothing, _enlist, does="puts the account on the list of juries"
    ),
}
