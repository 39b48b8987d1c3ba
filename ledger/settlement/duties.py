"""Duties: what anybody may do next so that a run's contracts reach their end, and when to step in for others.

Room: ledger (pure). `step` compares what the chain holds with what this participant computed; the settler
(participant/wallet/settler.py) reads the chain and carries the effects out. Every effect is one transaction
that anybody may send, but votes, lots and bonds, which are the participant's own.

    result wrong --Challenge--> jury --DrawJury, Vote--> falls, or stands for another window
    result wrong and not felled, run over --Finalize
    no answer in time --TimeOut       predecessor replaced --ClearOrphan       window over --Finalize
    claim period over --Sweep         run over --Refund
    owed to us --CollectBond, CollectReward       owed to the buyer --CollectShare
    two results of one signer --ReportDouble
    a case that the manifests do not imply --Veto     one that they imply --Execute, PayOut, or Expire
    an appeal --Defend, Choose--> one operator --DrawAppealJury, VoteOnDefence--> lost, or the defence fails
    no move in time --LapseDefence     no defence left --ConcludeAppeal
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from assay.chain.proposals import DoubleResult
from assay.chain.state import (
    AppealPhase,
    AppealState,
    CasePhase,
    CaseState,
    DefencePhase,
    DefenceState,
    EpochPhase,
    EpochState,
    EscrowState,
    JuryState,
)
from assay.chain.statements import Address
from assay.protocol.types import NO_DIGEST

RETRY_S = 5  # before an effect that did not come about is repeated
LATE_WINDOW_S = 3_600  # of windows this long, the last quarter is long enough to call a result premature
NEWS_S = 600.0  # in which manifests that we lack come, before nobody can have computed a result


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfEpoch:
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfCase:
    case_id: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfDefence(_OfCase):
    defender: Address


class Propose(_OfEpoch):
    """Have the result of a ripe epoch certified, and put it on chain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Challenge(_OfEpoch):
    """Challenge a result that differs from ours, or that nobody can have computed yet."""

    is_premature: bool = False


class DrawJury(_OfEpoch):
    """Draw the jury of a challenge."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote(_OfEpoch):
    """Answer a challenge as its juror."""

    digest: bytes
    is_right: bool
    is_premature: bool = False


class TimeOut(_OfEpoch):
    """End a challenge that was not answered in time."""


class ClearOrphan(_OfEpoch):
    """Clear a result whose predecessor was replaced, or cannot come back."""


class Finalize(_OfEpoch):
    """Make a result final."""


class Sweep(_OfEpoch):
    """Return what was not claimed in time to the buyer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refund:
    """Return the rest of the escrow to the buyer; the lots of its verifier set wait for it no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """Make a lot free stake again."""

    account: Address
    role: int
    commitment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Enlist:
    """Put our verifier's stake on the list from which juries are drawn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectBond:
    """Collect our bonds and jurors' fees."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectReward:
    """Collect our accuser's fees and the bonds of our cases."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectShare:
    """Pay the buyer's share of slashes out to it: most of them end after its process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportDouble:
    """Report a verifier that signed two results for one epoch."""

    evidence: DoubleResult


class Veto(_OfCase):
    """Have a case vetoed that the manifests do not imply."""


class Execute(_OfCase):
    """Carry out a case that the manifests imply."""


class PayOut(_OfCase):
    """Make the slash of a case final."""


class Expire(_OfCase):
    """End a case that was not carried out in time."""


class Defend(_OfCase):
    """Defend an order that we signed against its appeal, by the first part that is wrong."""


class Choose(_OfCase):
    """Name the first wrong part of what the accused has cut for us."""


class DrawAppealJury(_OfDefence):
    """Draw the jury of a defence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteOnDefence(_OfDefence):
    """Answer as a juror whether the operator that is left leads to `end`."""

    end: bytes
    is_right: bool


class LapseDefence(_OfDefence):
    """End a defence whose next move did not come in time, or whose appeal has ended."""


class ConcludeAppeal(_OfCase):
    """Reverse a case whose appeal no defence succeeded against."""


Effect = (
    Propose | Challenge | DrawJury | Vote | TimeOut | ClearOrphan | Finalize | Sweep | Refund
    | Release | Enlist | CollectBond | CollectReward | CollectShare | ReportDouble | Veto | Execute
    | PayOut | Expire | Defend | Choose | DrawAppealJury | VoteOnDefence | LapseDefence | ConcludeAppeal
)  # fmt: skip
OUR_OWN = (  # these wait for nobody else
    Challenge, DrawJury, Vote, Enlist, CollectBond, CollectReward,
    Defend, Choose, DrawAppealJury, VoteOnDefence,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochView:
    """One epoch on chain, and our opinion of it."""

    epoch: int
    state: EpochState
    is_ripe: bool  # we have computed its payout table
    is_right: bool | None  # whether the posted result is ours; None where we cannot say


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseView:
    """One case against a member of the run, and whether our manifests imply it as it is."""

    case_id: bytes
    state: CaseState
    is_implied: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DefenceView:
    """One member's defence of an appealed order, and our opinion of the operator that is left."""

    defender: Address
    state: DefenceState
    jury: JuryState
    is_right: bool | None = None  # None where we cannot say


@dataclass(frozen=True, slots=True, kw_only=True)
class AppealView:
    """The appeal of one case. may_defend: we signed its order, and know the step's trace."""

    case_id: bytes
    state: AppealState
    defences: tuple[DefenceView, ...]
    may_defend: bool = False
    may_judge: bool = False  # as a juror, from evidence that may still come


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The contracts of one run at one time."""

    at_s: float  # by our clock
    now: int  # by the chain's
    block: int
    me: Address
    challenge_window_s: int
    resolve_window_s: int
    escrow: EscrowState | None
    epochs: tuple[EpochView, ...]  # from 0 on, without gaps
    cases: tuple[CaseView, ...] = ()
    appeals: tuple[AppealView, ...] = ()
    draw_delay: int = 0  # blocks from a defence's last move to its jury
    vote_window_s: int = 0  # in which that jury answers
    doubles: tuple[DoubleResult, ...] = ()  # not punished yet
    bonds_owed: int = 0
    rewards_owed: int = 0
    share_owed: int = 0  # to the buyer
    entries_lacking: int = 0
    free_lots: tuple[Release, ...] = ()  # that can be released now


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """Since when each effect has been wanted, and when it was tried last."""

    patience_s: float  # for which others are expected to do what anybody may do
    since: Mapping[Effect, float] = field(default_factory=dict)
    tried: Mapping[Effect, float] = field(default_factory=dict)


def step(watch: Watch, look: Look) -> tuple[Watch, tuple[Effect, ...]]:
    """What to do now. An effect is wanted as long as the chain needs it, and is due after the patience.

    What would lapse within the patience is done at once: a case whose time to be executed ends, a result that
    counts only if it is posted before the escrow closes. The patience with results that are not posted is
    one, not one for each epoch.
    """
    closing: set[Effect] = {
        Execute(case_id=view.case_id)
        for view in look.cases
        if view.state.execute_by - look.now <= watch.patience_s
    }
    if look.escrow is not None and look.escrow.closes_at - look.now <= watch.patience_s:
        closing |= {Propose(epoch=view.epoch) for view in look.epochs}
    wanted = (*_results(look), *_cases(look), *_appeals(look), *_doubles(look), *_ends(look))
    unposted_s = min((at for one, at in watch.since.items() if isinstance(one, Propose)), default=look.at_s)
    since = {
        effect: watch.since.get(effect, unposted_s if isinstance(effect, Propose) else look.at_s)
        for effect in wanted
    }
    tried = {effect: at for effect, at in watch.tried.items() if effect in since}
    due = tuple(
        effect
        for effect in since
        if look.at_s - since[effect] >= (0 if effect in closing else _patience_s(watch, effect))
        and look.at_s - tried.get(effect, look.at_s - RETRY_S) >= RETRY_S
    )
    return replace(watch, since=since, tried={**tried, **dict.fromkeys(due, look.at_s)}), due


def is_premature(effect: Effect) -> bool:
    """Whether it may be done only if nobody has newer manifests than we."""
    return isinstance(effect, Challenge | Vote) and effect.is_premature


def _patience_s(watch: Watch, effect: Effect) -> float:
    if is_premature(effect):
        return NEWS_S
    return 0 if isinstance(effect, OUR_OWN) else watch.patience_s


def is_settled(look: Look) -> bool:
    """Whether every epoch in view is final."""
    return all(view.state.phase >= EpochPhase.FINAL for view in look.epochs)


def _results(look: Look) -> Iterator[Effect]:
    previous: bytes = NO_DIGEST
    is_final, may_propose = True, _is_open(look)
    for view in look.epochs:
        state, epoch = view.state, view.epoch
        is_orphan = epoch > 0 and state.phase is not EpochPhase.NONE and state.prev_result != previous
        match state.phase:
            case EpochPhase.NONE:
                if view.is_ripe and may_propose:
                    yield Propose(epoch=epoch)
                may_propose = False  # a result names the one before
            case EpochPhase.PROPOSED | EpochPhase.CHALLENGED if is_orphan:
                # While its predecessor can be proposed again, as the same bytes, it is not lost.
                if previous != NO_DIGEST or not _is_open(look):
                    yield ClearOrphan(epoch=epoch)
            case EpochPhase.PROPOSED if look.now < state.until:
                # What is ripe and cannot be judged, as where a disk is full, may be right.
                is_premature = not view.is_ripe and _is_late(look, state, look.challenge_window_s)
                if view.is_right is False or (view.is_right is None and is_premature):
                    yield Challenge(epoch=epoch, is_premature=view.is_right is None)
            case EpochPhase.PROPOSED:
                # A wrong one that nobody felled is its author's to finish, until the rest waits for it.
                if is_final and (view.is_right is not False or not _is_open(look)):
                    yield Finalize(epoch=epoch)
            case EpochPhase.CHALLENGED if look.now >= state.until:
                yield TimeOut(epoch=epoch)
            case EpochPhase.CHALLENGED if state.draw_from:
                if look.block >= state.draw_from:
                    yield DrawJury(epoch=epoch)
            case EpochPhase.CHALLENGED if _may_vote(look.me, state):
                # What nobody can have computed is wrong: else its challenger loses by silence, ever more.
                is_premature = not view.is_ripe and _is_late(look, state, look.resolve_window_s)
                if view.is_right is not None or is_premature:
                    yield Vote(
                        epoch=epoch, digest=state.digest, is_right=bool(view.is_right),
                        is_premature=view.is_right is None,
                    )  # fmt: skip
            case EpochPhase.FINAL:
                if look.now >= state.until and state.claimed < state.total:
                    yield Sweep(epoch=epoch)
        may_propose = may_propose and view.is_right is not False  # nobody honest signs what follows
        is_final = is_final and state.phase >= EpochPhase.FINAL
        previous = state.digest


def _is_open(look: Look) -> bool:
    return look.escrow is not None and look.now < look.escrow.closes_at


def _is_late(look: Look, state: EpochState, window: int) -> bool:
    """Whether a window is about to end on a result that we cannot judge: our own manifests end before it.

    They may be behind all the same, as after a day in which we were away.
    """
    return window >= LATE_WINDOW_S and 4 * (state.until - look.now) < window


def _may_vote(me: Address, state: EpochState) -> bool:
    return any(who == me and not state.voted >> seat & 1 for seat, who in enumerate(state.jury))


def _cases(look: Look) -> Iterator[Effect]:
    for view in look.cases:
        state = view.state
        match state.phase:
            case CasePhase.OPEN | CasePhase.EXECUTED if not view.is_implied:
                until = state.payable_at if state.phase is CasePhase.EXECUTED else state.execute_by
                yield Veto(case_id=view.case_id) if look.now < until else _end_of(view)
            case CasePhase.OPEN if look.now >= state.execute_by:
                yield Expire(case_id=view.case_id)
            case CasePhase.OPEN if look.now >= state.veto_ends_at:
                yield Execute(case_id=view.case_id)
            case CasePhase.EXECUTED if look.now >= state.payable_at:
                yield PayOut(case_id=view.case_id)


def _appeals(look: Look) -> Iterator[Effect]:
    for view in look.appeals:
        is_open = view.state.phase is AppealPhase.OPEN
        for one in view.defences:
            if one.state.phase not in (DefencePhase.NONE, DefencePhase.ENDED):
                yield from _defence(look, view, one, is_open=is_open)
        if not is_open:
            continue
        if look.now < view.state.answer_by:
            is_ours = any(
                one.defender == look.me and one.state.phase is not DefencePhase.NONE for one in view.defences
            )
            if view.may_defend and not is_ours:
                yield Defend(case_id=view.case_id)
        elif not view.state.playing:
            yield ConcludeAppeal(case_id=view.case_id)


def _defence(look: Look, view: AppealView, one: DefenceView, *, is_open: bool) -> Iterator[Effect]:
    """The next move of a defence that has not ended."""
    state, case_id, defender = one.state, view.case_id, one.defender
    if not is_open or look.now >= state.until:
        yield LapseDefence(case_id=case_id, defender=defender)
    elif state.phase is DefencePhase.CHOOSE:
        if one.defender == look.me and view.may_defend:
            yield Choose(case_id=view.case_id)
    elif state.phase is DefencePhase.JURY and not one.jury.seats:
        if look.block >= state.asked + look.draw_delay:
            yield DrawAppealJury(case_id=case_id, defender=defender)
    elif state.phase is DefencePhase.JURY:
        voted = one.jury.right | one.jury.wrong
        is_juror = any(who == look.me and not voted >> seat & 1 for seat, who in enumerate(one.jury.seats))
        # The accused has to show the operator: what is not shown in three quarters of the time is wrong.
        is_late = 4 * (state.until - look.now) < look.vote_window_s
        if is_juror and (one.is_right is not None or (view.may_judge and is_late)):
            yield VoteOnDefence(
                case_id=case_id, defender=defender, end=state.end, is_right=bool(one.is_right)
            )


def _doubles(look: Look) -> Iterator[Effect]:
    yield from (ReportDouble(evidence=evidence) for evidence in look.doubles)


def _end_of(view: CaseView) -> Effect:
    """A case that was not vetoed in time ends all the same: nobody's bond or stake waits for ever."""
    is_executed = view.state.phase is CasePhase.EXECUTED
    return PayOut(case_id=view.case_id) if is_executed else Expire(case_id=view.case_id)


def _ends(look: Look) -> Iterator[Effect]:
    escrow = look.escrow
    is_over = escrow is not None and look.now >= escrow.closes_at and not escrow.pending
    if escrow is not None and is_over and (escrow.free or escrow.holds):
        yield Refund()
    yield from look.free_lots
    if look.bonds_owed:
        yield CollectBond()
    if look.rewards_owed:
        yield CollectReward()
    if look.share_owed:
        yield CollectShare()
    if look.entries_lacking > 0:
        yield Enlist()
