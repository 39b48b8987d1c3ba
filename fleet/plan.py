"""Plan: which runs an operator's machine takes, keeps and leaves.

Room: fleet (pure). `step` gets what was observed of chain, processes and files, and the time; what should be
done goes out as actions, which service.py performs. Every action may be repeated: a seat moves on only when
what the action was for has been observed, so a supervisor that is killed in between goes on from its state.

    open run --taken--> TAKING --lot and folder there--> RUNNING --pays too little, or the operator--> LEAVING
                           |                                |                                             |
                           '----> ENDED <-- its process ended, no seat came, or nothing can be disputed --'
                                    '--lot released--> forgotten

What keeps a buyer's bait from costing more than the operator allows: what is promised counts only without
milestones and as far as the escrow holds it, lots have a sum and a time, takings have a number a day, a run
is taken once and waits for nodes for a bounded time, and a buyer whose run ended early or paid less than it
promised is avoided for a day. A run that slashes whoever is cut off for a moment is not taken.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from assay.chain.text.times import time_text
from assay.protocol.types import Digest

HOUR_S, DAY_S = 3_600, 86_400
TAKE_S = 600  # in which a lot is locked, or the run is given up
SEAT_S = 900  # in which the verifiers of a run that has started have given a seat, or it is given up
SLACK_PPM = 100_000  # a run is poor from this far below the reserve on, and no longer from the reserve on
RETRY_S = 3_600  # after which a run whose lot was not locked may be taken again
FORGET_S = 120  # from the end of what never had a seat: a lot may have been on its way until then
PPM = 10**6


class Stage(enum.Enum):
    """Where a seat is."""

    TAKING = "taking"
    RUNNING = "running"
    LEAVING = "leaving"
    ENDED = "ended"  # it has no process; its lot may still be bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What an operator allows; amounts in token units."""

    reserve: int  # least pay per hour
    lots_most: int  # sum of lots, those of ended runs that are still bound included
    runs_most: int  # at once
    memory_bytes: int
    disk_bytes: int
    upload_bytes_s: int  # of all runs together
    days_most: int  # for which a lot may be bound: until a run's deadline
    hours_least: int  # of pay that a run's escrow holds for each of its seats, and has time for
    wait_s: int  # for which a run may still wait for nodes when it is taken
    absence_s: int  # that a run gives an overdue opening, at least, before its node is slashed
    takes_per_day: int
    poor_s: int  # for which a run may pay too little before it is left


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """An open run with a free seat, and what it asks for and promises; amounts in token units."""

    run_id: Digest
    name: str
    buyer: str
    pay: int  # an hour, by what this machine computes; without what depends on milestones
    step_pay_micro: int  # for an accepted step of the smallest size, 10^-6 token unit
    funded_hours: int  # for which the escrow holds this pay for every seat
    lot: int
    deadline: int
    trains_until: int  # Unix time, from which on its verifiers only close it
    start_by_s: int  # 0: it waits for no nodes
    absence_s: int  # for which an opening may be overdue
    memory_bytes: int
    disk_bytes: int
    upload_bytes_s: int  # past probation, in the mean
    fault: str | None  # why this machine cannot serve it


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What was observed of one of our runs."""

    is_ready: bool = False  # its folder is complete
    lot: int = 0  # on chain
    can_discharge: bool = False  # verifiers signed that the lot is bound to nothing; the chain does not know
    can_release: bool = False  # nothing about the lot can be disputed any more
    is_open: bool = True  # nobody has ended the run
    is_seated: bool = False
    has_process: bool = False  # it runs now
    is_done: bool = False  # its process ended, and need not run again
    fault: str | None = None  # its process cannot run before somebody mends this
    closed_by: str | None = None  # who ended the run early, as its chain of manifests says
    pay: int | None = None  # an hour, measured; None: not for long enough


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What `step` decides by."""

    candidates: tuple[Candidate, ...]
    observed: Mapping[Digest, Observed]  # of every seat of the state
    free_stake: int
    fault: str | None = None  # why the account can take no run at all
    is_draining: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """A run that was taken."""

    run_id: Digest
    name: str
    buyer: str
    number: int  # of its port; no two seats with a process have the same
    stage: Stage
    since: int  # of the stage, Unix time
    why: str  # it is in this stage
    taken_at: int
    pay: int  # an hour, token units: measured, or before that as promised
    is_measured: bool
    step_pay_micro: int
    poor_since: int  # 0: it pays enough
    was_seated: bool  # verifiers gave it one: from then on it owes openings, and its process is kept up
    lot: int  # the run's; of a seat that has ended what is still locked
    deadline: int
    start_by_s: int
    memory_bytes: int
    disk_bytes: int
    upload_bytes_s: int

    @property
    def has_process(self) -> bool:
        """Whether its process is to run."""
        return self.stage in (Stage.RUNNING, Stage.LEAVING)

    @property
    def holds_machine(self) -> bool:
        """Whether memory, disk and a port are its."""
        return self.stage is not Stage.ENDED


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What has to survive a restart."""

    seats: tuple[Seat, ...] = ()
    takes: tuple[int, ...] = ()  # Unix times, of the last day
    avoided: Mapping[str, int] = field(default_factory=dict)  # runs and buyers, until this time

    def seat(self, run_id: Digest) -> Seat | None:
        """The seat in this run, if there is one."""
        return next((one for one in self.seats if one.run_id == run_id), None)


class Do(enum.Enum):
    """What is done for a seat."""

    TAKE = "take"  # write its folder, lock its lot
    LEAVE = "leave"  # ask its process to give the seat up
    DISCHARGE = "discharge"  # send what its verifiers signed, so that its lot's last window begins
    RELEASE = "release"  # make its lot free stake
    FORGET = "forget"  # delete what its process kept


@dataclass(frozen=True, slots=True)
class Action:
    """One thing to do; what is done already stays as it is."""

    do: Do
    run_id: Digest


def step(state: State, view: View, now: int, bounds: Bounds) -> tuple[State, tuple[Action, ...]]:
    """The next state, which is kept before anything is done, and what to do.

    Processes are not among the actions: those of `Seat.has_process` are kept up.

    Args:
        state: As it was kept.
        view: What is so now.
        now: Unix time, by the chain's clock.
        bounds: The operator's.
    """
    seats, avoided = [], {name: until for name, until in state.avoided.items() if until > now}
    actions = []
    for seat in state.seats:
        observed = view.observed[seat.run_id]
        moved = _moved(_measured(seat, observed), observed, view, now, bounds)
        if moved.stage is Stage.ENDED and _is_over(moved, observed, now):
            actions.append(Action(Do.FORGET, seat.run_id))
            continue
        if moved.stage is not seat.stage and moved.stage is not Stage.RUNNING:
            avoided |= dict(_to_avoid(moved, seat.stage, observed, view, now))
        seats.append(moved)
    takes = tuple(one for one in state.takes if one > now - DAY_S)
    found = State(seats=tuple(seats), takes=takes, avoided=avoided)
    if not view.is_draining and view.fault is None:
        found = _with_taken(found, view, now, bounds)
    actions += [one for seat in found.seats for one in _actions(seat, view.observed.get(seat.run_id))]
    return found, tuple(actions)


# ---- a seat that was taken


def _measured(seat: Seat, observed: Observed) -> Seat:
    seat = replace(seat, was_seated=seat.was_seated or observed.is_seated)
    if observed.pay is not None:
        seat = replace(seat, pay=observed.pay, is_measured=True)
    return seat


def _moved(seat: Seat, observed: Observed, view: View, now: int, bounds: Bounds) -> Seat:
    """The seat in the stage that follows from what was observed."""

    def to(stage: Stage, why: str) -> Seat:
        return replace(seat, stage=stage, since=now, why=why)

    match seat.stage:
        case Stage.TAKING:
            if observed.is_ready and observed.lot >= seat.lot:
                return to(Stage.RUNNING, "its lot is locked")
            if view.is_draining:
                return to(Stage.ENDED, "not taken: the operator ends")
            if not observed.is_open:
                return to(Stage.ENDED, "not taken: the run was ended")
            if now > seat.since + TAKE_S:
                return to(Stage.ENDED, "not taken: its lot could not be locked")
        case Stage.RUNNING | Stage.LEAVING if observed.is_done:
            ended = "its work is done" if observed.closed_by is None else f"closed by {observed.closed_by}"
            return to(Stage.ENDED, ended)
        case Stage.RUNNING | Stage.LEAVING if observed.can_release:
            return to(Stage.ENDED, "the run is over, and nothing about it can be disputed")
        case Stage.RUNNING | Stage.LEAVING if not seat.was_seated and _gives_up(seat, observed, view, now):
            return to(Stage.ENDED, observed.fault or "no seat was given")
        case Stage.RUNNING:
            if view.is_draining:
                return to(Stage.LEAVING, "the operator ends")
            seat = _poor_or_not(seat, now, bounds)
            if seat.poor_since and now >= seat.poor_since + bounds.poor_s:
                return to(Stage.LEAVING, "it pays less than the reserve")
        case Stage.ENDED:
            return replace(seat, lot=observed.lot)
    return seat


def _gives_up(seat: Seat, observed: Observed, view: View, now: int) -> bool:
    """Whether the process of a seat that was never given is not waited for any longer."""
    patience = max(seat.since, seat.start_by_s) + SEAT_S
    return view.is_draining or observed.fault is not None or now > patience


def _poor_or_not(seat: Seat, now: int, bounds: Bounds) -> Seat:
    if not seat.is_measured or seat.pay >= bounds.reserve:
        return replace(seat, poor_since=0)
    is_poor = seat.pay * PPM < bounds.reserve * (PPM - SLACK_PPM)
    return replace(seat, poor_since=seat.poor_since or now) if is_poor else seat


def _is_over(seat: Seat, observed: Observed, now: int) -> bool:
    if observed.lot or observed.has_process:
        return False
    return seat.was_seated or now >= seat.since + FORGET_S


def _to_avoid(
    seat: Seat, before: Stage, observed: Observed, view: View, now: int
) -> Iterator[tuple[str, int]]:
    """Whom not to work for, and until when, of a seat that leaves this stage."""
    if before is Stage.TAKING:
        yield seat.run_id.hex(), now + RETRY_S
        return
    yield seat.run_id.hex(), max(seat.deadline, now + DAY_S)  # a key and an account get one seat in a run
    has_waited = not (seat.was_seated or view.is_draining or observed.fault)
    if seat.poor_since or observed.closed_by is not None or has_waited:
        yield seat.buyer, now + DAY_S


def _actions(seat: Seat, observed: Observed | None) -> Iterator[Action]:
    match seat.stage:
        case Stage.TAKING:
            yield Action(Do.TAKE, seat.run_id)
        case Stage.LEAVING:
            yield Action(Do.LEAVE, seat.run_id)
        case Stage.ENDED if observed is not None and observed.lot:
            if observed.can_discharge:
                yield Action(Do.DISCHARGE, seat.run_id)
            if observed.can_release:
                yield Action(Do.RELEASE, seat.run_id)


# ---- a run that may be taken


def refusal(one: Candidate, state: State, now: int, bounds: Bounds) -> str | None:
    """Why a run is not taken, whatever is free; None if it may be."""
    if one.fault is not None:
        return one.fault
    if one.pay < bounds.reserve:
        return "pays less than the reserve"
    if one.funded_hours < bounds.hours_least:
        return "its escrow holds too few hours of pay"
    if one.trains_until <= max(now, one.start_by_s) + bounds.hours_least * HOUR_S:
        return "closes before it has paid for so many hours"
    if one.deadline > now + bounds.days_most * DAY_S:
        return "binds its lot for too long"
    if one.start_by_s > now + bounds.wait_s:
        until, most = time_text(one.start_by_s), time_text(now + bounds.wait_s)
        return f"waits for nodes until {until}, at most {most} expected"
    if one.absence_s < bounds.absence_s:
        return f"slashes once an opening is {one.absence_s} s overdue, at least {bounds.absence_s} s expected"
    if one.lot > bounds.lots_most:
        return "asks for too large a lot"
    if one.upload_bytes_s > bounds.upload_bytes_s:
        return "uploads more than this machine's line may carry"
    if state.seat(one.run_id) is not None or one.run_id.hex() in state.avoided:
        return "was taken before"
    if one.buyer in state.avoided:
        return "its buyer is avoided for a day"
    return None


def _with_taken(state: State, view: View, now: int, bounds: Bounds) -> State:
    """The state with the best runs that fit."""
    for one in sorted(view.candidates, key=lambda one: (-one.pay, one.run_id)):
        if refusal(one, state, now, bounds) is None and _fits(one, state, view, bounds):
            taken = _seat_of(one, state, now)
            state = replace(state, seats=(*state.seats, taken), takes=(*state.takes, now))
    return state


def _fits(one: Candidate, state: State, view: View, bounds: Bounds) -> bool:
    holders = [seat for seat in state.seats if seat.holds_machine]
    locked = sum(seat.lot for seat in state.seats)
    unlocked = sum(_lacking(seat, view.observed.get(seat.run_id)) for seat in holders)
    return (
        len(state.takes) < bounds.takes_per_day
        and len(holders) < bounds.runs_most
        and sum(seat.memory_bytes for seat in holders) + one.memory_bytes <= bounds.memory_bytes
        and sum(seat.disk_bytes for seat in holders) + one.disk_bytes <= bounds.disk_bytes
        and sum(seat.upload_bytes_s for seat in holders) + one.upload_bytes_s <= bounds.upload_bytes_s
        and locked + one.lot <= bounds.lots_most
        and unlocked + one.lot <= view.free_stake
    )


def _lacking(seat: Seat, observed: Observed | None) -> int:
    """What of a seat's lot is still free stake, and promised."""
    return max(seat.lot - (0 if observed is None else observed.lot), 0) if seat.stage is Stage.TAKING else 0


def _seat_of(one: Candidate, state: State, now: int) -> Seat:
    used = {seat.number for seat in state.seats if seat.holds_machine}
    return Seat(
        run_id=one.run_id,
        name=one.name,
        buyer=one.buyer,
        number=next(number for number in range(len(used) + 1) if number not in used),
        stage=Stage.TAKING,
        since=now,
        why="it pays best of those that fit",
        taken_at=now,
        pay=one.pay,
        is_measured=False,
        step_pay_micro=one.step_pay_micro,
        poor_since=0,
        was_seated=False,
        lot=one.lot,
        deadline=one.deadline,
        start_by_s=one.start_by_s,
        memory_bytes=one.memory_bytes,
        disk_bytes=one.disk_bytes,
        upload_bytes_s=one.upload_bytes_s,
    )
