"""Reverts: explains the contracts' custom errors in plain text.

Room: chain (pure). Keyed by the error's name, which stays in the
message, because programs and searches look for it.
"""

from __future__ import annotations

from typing import Any

from assay.chain.text.times import time_text
from assay.chain.text.units import token_text

# By an error's name. {0:money} is an amount, {0:moment} a chain time, {0} anything.
TEXTS = {
    # stake
    "AccountBanned": "the account {0} equivocated, was slashed and can never stake again",
    "BelowMinimum": "{0:money} would be active; expected nothing, or at least {1:money}",
    "HotKeyTaken": "this hot key is bound to the account {0} for ever",
    "BadConsent": "the delegation is signed by {0}, expected the hot key's signature",
    "NotEnoughStake": "{1:money} were asked for, but only {0:money} are free",
    "NotStaked": "the account {0} has not locked a verifier's lot for this term and so long, or its hot key "
    "is not delegated",
    "BadUntil": "a lot is locked for 400 days at most, and never for less than before; {0:moment} arrived",
    "LotHeld": "{0} cases about this lot are open",
    "NotBound": "the lot is bound to nothing any more, since {0:moment}",
    "NoLot": "the account {0} has not locked the lot that this needs",
    "NotYourTicket": "ticket {0} belongs to another account, or to nobody",
    "TicketSpent": "ticket {0} was withdrawn or cancelled before",
    "TooEarly": "not before {0:moment}",
    "ZeroAmount": "the amount is 0",
    "UnknownRole": "there is no role {0}",
    # a run's escrow
    "AboveBudget": "the result pays {0:money}, but the escrow has only {1:money} free",
    "AboveEpochCap": "the result pays {0:money}, but one epoch may cost only {1:money}",
    "AlreadyClosing": "the run already closes at {0:moment}",
    "BadRun": "the escrow refuses this run; expected amounts above 0, a deadline between the close delay and "
    "366 days from now, the current verifiers, the vault's minimum as lot at least, and "
    "ascending operators",
    "EpochOutOfRange": "there is no epoch {0} in a run of {1}",
    "NotClosed": "the run is open until {0:moment}",
    "NothingToRefund": "everything unspent was returned before",
    "BadLength": "{0} bytes to announce, expected 1 to {1}",
    "OnlyBuyer": "only the run's buyer may do this",
    "ResultsPending": "{0} results are neither final nor rejected yet",
    "RunClosed": "the run closed at {0:moment}",
    "RunExists": "this buyer opened this specification before",
    "UnknownRun": "no run of this id was opened",
    # settlement
    "AboveTotal": "with this row {0:money} would be paid, the result's total is {1:money}",
    "NothingToClaim": "all these rows were paid before",
    "NotAnOrphan": "its predecessor was not rejected",
    "NothingOwed": "the account {0} has no bond to collect",
    "PreviousNotFinal": "epoch {0} has to be final first",
    "AlreadyVoted": "the juror {0} has voted",
    "JuryIsDrawn": "the jury of this challenge is drawn",
    "NoJury": "there are only {0} jurors who did not sign the result: time decides",
    "NotAJuror": "the account {0} is not on this jury",
    "TooEarlyToDraw": "the jury can be drawn from block {0} on",
    "WrongResult": "the vote is about the result {0}, the challenged one is {1}",
    "WindowOver": "the window ended at {0:moment}",
    "WrongPrevious": "it names another predecessor than the chain's",
    "WrongProof": "row {0} is not in the table that was settled",
    "WrongSetVersion": "signed for verifier set {0}, the run has set {1}",
    "QuorumNotReached": "{0} signatures, {1} needed",
    # the court
    "AboveCap": "slash orders may still take {1} ppm of this lot in these 30 days; {0} arrived",
    "AlreadyPunished": "the offence {0} has a case already",
    "OffenceOfAnotherRun": "{0} is no offence of the run {1}: its first 12 bytes are not the run's",
    "CommittedInThisBlock": "the report's commitment is in the same block; send the report in a later block",
    "DifferentSigners": "one statement is signed by {0}, the other by {1}",
    "NotAContradiction": "the two statements do not contradict each other",
    "NotCommitted": "this account committed to no such report; without a commitment there is no reward",
    "UnknownSigner": "no account delegated to the key {0}",
    # appeals
    "AlreadyAppealed": "the case {0} was appealed before",
    "BadCut": "{0} parts, expected {1}",
    "BadOperators": "a program of {0} operators, expected 1 to 262144",
    "DefencesPlay": "{0} defences have not ended yet",
    "NotASigner": "the account {0} did not sign this order",
    "NotTheAccused": "the account {0} is not accused of a step in this case",
    "NotTheStep": "the case {0} is not about the step of this statement",
    "OnlyAppeals": "only the appeal court may do this",
    "OtherPositions": "positions {0}, expected {1}",
    "WrongPhase": "this is not the defence's next move (phase {0})",
    # money and gas
    "ERC20InsufficientBalance": "the account {0} has {1:money}, but {2:money} are needed",
    "ERC20InsufficientAllowance": "the contract may take {1:money}, but {2:money} are needed",
    "InsufficientFunds": "the account cannot pay the gas: send it some of the chain's own coin",
}


def revert_text(name: str, arguments: tuple[Any, ...]) -> str:
    """Explanation of the error of this name; empty for one that no transaction of ours can cause."""
    text = TEXTS.get(name, "")
    try:
        return text.format(*map(_Argument, arguments))
    except (IndexError, ValueError, TypeError):  # not our error of this name
        return ""


class _Argument:
    """An error argument that formats itself as `money`, as `moment` (chain time) or plainly."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __format__(self, kind: str) -> str:
        value = self._value
        if kind == "money":
            return token_text(value)
        if kind == "moment":
            return time_text(value)
        return f"0x{value.hex()}" if isinstance(value, bytes) else str(value)
