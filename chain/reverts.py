"""Reverts: explains the contracts' custom errors in plain text.

Room: chain (pure). Keyed by the error's name, which stays in the
message, because programs and searches look for it.
"""

from __future__ import annotations

from typing import Any

from assay.chain.times import time_text
from assay.chain.units import UNIT, money_text

# {0:money} is an amount, {0:moment} a chain time, {0} anything.
_WORDS = {
    # stake
    "AccountBanned": "the account {0} contradicted itself, lost its stake and can never stake again",
    "AccountFrozen": "a case against this account is open; nothing can be withdrawn until {0:moment}, "
    "or until the case ends",
    "BelowMinimum": "{0:money} would be active; expected nothing, or at least {1:money}",
    "HotKeyTaken": "this hot key belongs to the account {0} for ever",
    "BadConsent": "the hot key's own signature is missing: {0} signed",
    "NotYourTicket": "ticket {0} belongs to another account, or to nobody",
    "TicketSpent": "ticket {0} was withdrawn or cancelled before",
    "TooEarly": "not before {0:moment}",
    "ZeroAmount": "there is nothing to move",
    "UnknownRole": "there is no role {0}",
    # a run's escrow
    "AboveBudget": "the result asks for {0:money}, and the escrow has {1:money} free",
    "AboveEpochCap": "the result asks for {0:money}, and one epoch may cost {1:money}",
    "AlreadyClosing": "the run already closes at {0:moment}",
    "BadRun": "the contract takes no such run: amounts above 0, a deadline between the close delay and "
    "366 days from now, and the current verifiers",
    "EpochOutOfRange": "there is no epoch {0} in a run of {1}",
    "NotClosed": "the run is open until {0:moment}",
    "NothingToRefund": "everything free was returned before",
    "OnlyBuyer": "only the run's buyer may",
    "ResultsPending": "{0} results are neither final nor rejected yet",
    "RunClosed": "the run closed at {0:moment}",
    "RunExists": "this buyer opened this specification before",
    "UnknownRun": "nobody opened this run",
    # settlement
    "AboveTotal": "the row would bring what is paid to {0:money} of {1:money}",
    "AlreadyClaimed": "row {0} was paid before",
    "NotAnOrphan": "the result before it stands",
    "NothingOwed": "no bond waits for the account {0}",
    "PreviousNotFinal": "epoch {0} has to be final first",
    "RejectedBefore": "this result was rejected before",
    "WindowOver": "the window ended at {0:moment}",
    "WrongPrevious": "another result precedes it",
    "WrongProof": "row {0} is not in the table that was settled",
    "WrongSetVersion": "signed for verifier set {0}, the run has set {1}",
    "QuorumNotReached": "{0} signatures, {1} needed",
    # the court
    "AboveCap": "a ruling may take up to {1} ppm of a stake; {0} arrived",
    "AlreadyPunished": "the offence {0} has had its case",
    "CommittedInThisBlock": "the promise to report is of this very block; the report belongs in a later one",
    "DifferentSigners": "one statement is signed by {0}, the other by {1}",
    "NotAContradiction": "the two statements do not contradict each other",
    "NotCommitted": "this account promised no such report; without a promise, report for nothing",
    "UnknownSigner": "the key {0} speaks for no account",
    # money and gas
    "ERC20InsufficientBalance": "the account {0} has {1:money}, and {2:money} are needed",
    "ERC20InsufficientAllowance": "the contract may take {1:money}, and {2:money} are needed",
    "InsufficientFunds": "the account cannot pay the gas: send it some of the chain's own coin",
}


def revert_text(name: str, arguments: tuple[Any, ...]) -> str:
    """Explanation of the error of this name; empty for one that no transaction of ours can cause."""
    if name == "NotEnoughStake":  # two contracts declare this error
        first, second = arguments
        if isinstance(first, int):
            return f"{_money(second)} were asked for, and {_money(first)} are active"
        return f"the stake of {first} is {_money(second)}, less than a verifier needs"
    words = _WORDS.get(name, "")
    try:
        return words.format(*map(_Told, arguments))
    except (IndexError, ValueError, TypeError):  # not our error of this name
        return ""


class _Told:
    """An error argument that formats itself as `money`, as `moment` (chain time) or plainly."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __format__(self, kind: str) -> str:
        value = self._value
        if kind == "money":
            return _money(value)
        if kind == "moment":
            return time_text(value)
        return f"0x{value.hex()}" if isinstance(value, bytes) else str(value)


def _money(units: int) -> str:
    return f"{money_text(units)} {UNIT}"
