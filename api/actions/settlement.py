"""Settlement actions: claims, challenges and jurors' answers, and the exits by time that anybody may take.

Room: api (edge: reads the chain and the books).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from assay.api.actions.action import Action, Nothing, NumberGiven, OfEpoch, Owner, Plan, raw, short
from assay.api.actions.orders import opened
from assay.api.config import RUN_NAME
from assay.api.http.problems import Problem
from assay.api.payouts import payouts
from assay.api.schemas import Asked, HashGiven, PayoutAnswer
from assay.chain.state import EpochPhase, EpochState
from assay.chain.text.settlement_phase import phase_text
from assay.chain.text.times import time_text
from assay.chain.text.units import token_text

ROWS_MAX = 16  # of one claim: with the proofs of the largest table still within moves.RAW_BYTES_MAX


class _Claim(Asked):
    """One row, several, or with neither all rows of the signed-in account."""

    run: Annotated[str, Field(pattern=RUN_NAME)]
    epoch: NumberGiven
    index: NumberGiven | None = None
    rows: (
        Annotated[tuple[NumberGiven, ...], Field(min_length=1, max_length=ROWS_MAX, strict=False)] | None
    ) = None


class _Challenge(OfEpoch):
    reason_hash: HashGiven = "0x" + "00" * 32


class _Vote(OfEpoch):
    digest: HashGiven  # of the result that the juror judged
    is_right: bool


def _claim(owner: Owner, given: _Claim) -> Plan:
    served_run = owner.server.catalogue.find(given.run)
    run_id = served_run.spec()[1]
    with served_run.opened() as db:
        rows = _asked_rows(owner, given, payouts(db, run_id, given.epoch).rows)
    due = [row for row in rows if not owner.chain.is_claimed(run_id, given.epoch, row.index)]
    if not due:
        raise Problem(409, "these rows were paid before")
    paid = [
        (row.index, row.account, int(row.amount), [bytes.fromhex(one[2:]) for one in row.proof])
        for row in due[:ROWS_MAX]
    ]
    total = token_text(sum(amount for _, _, amount, _ in paid))
    to = "; ".join(map(owner.named, sorted({account for _, account, _, _ in paid})))
    more = f"; {len(due) - ROWS_MAX} more rows are left for another claim" if len(due) > ROWS_MAX else ""
    return Plan(
        arguments=(run_id, given.epoch, paid),
        summary=f"pay {total} of epoch {given.epoch}, in {len(paid)} rows, to {to}{more}",
    )


def _asked_rows(owner: Owner, given: _Claim, table: list[PayoutAnswer]) -> list[PayoutAnswer]:
    if given.index is not None and given.rows is not None:
        raise Problem(422, "parameters: either index or rows")
    if given.index is None and given.rows is None:
        mine = [row for row in table if row.account == owner.account]
        if not mine:
            raise Problem(404, f"the table of epoch {given.epoch} has no row of this account")
        return mine
    wanted = given.rows or (given.index or 0,)
    if max(wanted) >= len(table):
        raise Problem(404, f"the table of epoch {given.epoch} has {len(table)} rows")
    return [table[index] for index in sorted(set(wanted))]


def _challenge(owner: Owner, given: _Challenge) -> Plan:
    state, now_s = _in(owner, given, EpochPhase.PROPOSED), owner.chain.timestamp()
    if now_s >= state.until:
        raise Problem(409, f"the result could be challenged until {time_text(state.until)}")
    return Plan(
        arguments=(raw(given.run_id), given.epoch, raw(given.reason_hash)),
        summary=f"challenge the result {state.digest.hex()[:8]} of {_named(given)}, which pays "
        f"{token_text(state.total)}, with a bond of {token_text(state.bond)}: ALL of it is lost if a jury "
        "finds the result right, half of it if no jury answers in time",
        pays=state.bond,
    )


def _draw(owner: Owner, given: OfEpoch) -> Plan:
    state = _in(owner, given, EpochPhase.CHALLENGED)
    return _of_epoch(given, f"draw the jury of the challenge, by {state.challenger}, to {_named(given)}")


def _vote(owner: Owner, given: _Vote) -> Plan:
    state = _in(owner, given, EpochPhase.CHALLENGED)
    if state.digest != raw(given.digest):
        raise Problem(409, f"the challenged result is 0x{state.digest.hex()}")
    seats = state.jury.count(owner.account)
    if not seats:
        raise Problem(403, "this account is not on the jury")
    return Plan(
        arguments=(raw(given.run_id), given.epoch, raw(given.digest), given.is_right),
        summary=f"answer for ever as a juror, with {seats} of {len(state.jury)} seats, that the result "
        f"{short(given.digest)} of {_named(given)} is {'right' if given.is_right else 'WRONG'}",
    )


def _lapse(owner: Owner, given: OfEpoch) -> Plan:
    state = _in(owner, given, EpochPhase.CHALLENGED)
    return _of_epoch(
        given,
        f"end the challenge to {_named(given)}, which no jury answered: half of the bond of "
        f"{token_text(state.bond)} returns to {owner.named(state.challenger)}, the rest burns",
    )


def _finalize(owner: Owner, given: OfEpoch) -> Plan:
    state = _in(owner, given, EpochPhase.PROPOSED)
    what = f"the result {state.digest.hex()[:8]} of {_named(given)}, which pays {token_text(state.total)}"
    return _of_epoch(given, f"make {what}, final: nobody can challenge it any more")


def _clear(owner: Owner, given: OfEpoch) -> Plan:
    state = _in(owner, given, EpochPhase.PROPOSED, EpochPhase.CHALLENGED)
    what = f"the result {state.digest.hex()[:8]} of {_named(given)}"
    return _of_epoch(given, f"clear {what}, whose predecessor was rejected; its bonds are free")


def _sweep(owner: Owner, given: OfEpoch) -> Plan:
    state = _in(owner, given, EpochPhase.FINAL)
    rest, buyer = token_text(state.total - state.claimed), opened(owner, given.run_id).buyer
    return _of_epoch(
        given,
        f"return the unclaimed {rest} of {_named(given)} to its buyer, {owner.named(buyer)}: rows that are "
        "not claimed yet, yours too, are never paid then",
    )


def _collect(owner: Owner, given: Nothing) -> Plan:
    amount = owner.chain.bonds_owed(owner.account)
    if not amount:
        raise Problem(409, "this account has no bonds of results and no jurors' fees to collect")
    to = owner.named(owner.account)
    return Plan(arguments=(owner.account,), summary=f"collect {token_text(amount)} of bonds and fees to {to}")


def _in(owner: Owner, given: OfEpoch, *phases: EpochPhase) -> EpochState:
    found = owner.chain.epoch_state(raw(given.run_id), given.epoch)
    if found.phase not in phases:
        raise Problem(409, f"{_named(given)}: {phase_text(found, owner.chain.timestamp())}")
    return found


def _of_epoch(given: OfEpoch, summary: str) -> Plan:
    return Plan(arguments=(raw(given.run_id), given.epoch), summary=summary)


def _named(given: OfEpoch) -> str:
    return f"epoch {given.epoch} of run {short(given.run_id)}"


SETTLEMENT: Mapping[str, Action] = {
    "claim": Action("EpochSettlement", "claim", _Claim, _claim, does="pays rows of an epoch's payout table"),
    "result.challenge": Action(
        "EpochSettlement",
        "challenge",
        _Challenge,
        _challenge,
        does="challenges a result, with a bond",
        takes="bond",
    ),
    "result.finalize": Action("EpochSettlement", "finalize", OfEpoch, _finalize, does="makes a result final"),
    "result.clear": Action(
        "EpochSettlement",
        "clearOrphan",
        OfEpoch,
        _clear,
        does="clears a result whose predecessor was rejected",
    ),
    "result.sweep": Action(
        "EpochSettlement",
        "sweepUnclaimed",
        OfEpoch,
        _sweep,
        does="returns what nobody claimed in time to the buyer",
    ),
    "challenge.draw": Action(
        "EpochSettlement", "drawJury", OfEpoch, _draw, does="draws the jury of a challenge"
    ),
    "challenge.vote": Action(
        "EpochSettlement", "vote", _Vote, _vote, does="answers as a juror of a challenge"
    ),
    "challenge.lapse": Action(
        "EpochSettlement", "timeoutChallenge", OfEpoch, _lapse, does="ends a challenge that no jury answered"
    ),
    "bond.collect": Action(
        "EpochSettlement",
        "collectBond",
        Nothing,
        _collect,
        does="collects the account's bonds of results, and its fees as a juror",
    ),
}
