"""Picture: what `assay watch` shows of a run, as one value.

Room: cli (pure). A chronicle folds certified manifests, which all participants keep, into a picture; what
only the chain knows (escrow and stakes) and the ledger service's reports are added to it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass

from assay.bundle.report.progress import PACE_ROUNDS, drafts, left_s, phase_of, round_s, status_of
from assay.ledger.settlement.payouts import settle
from assay.orders.amounts import token_text
from assay.participant.links import extend
from assay.participant.telemetry.round_trips import RoundTrips
from assay.protocol.auditing.audits import Audit, AuditStatus
from assay.protocol.messages import CertifiedManifest
from assay.protocol.params import RunSpec
from assay.protocol.run_state import BORDERLINE_MAX, NodeRecord, RunState, StepId, start
from assay.protocol.types import Digest, PeerId

EVENTS_MAX = 200
PENDING = (AuditStatus.OPEN, AuditStatus.DISPUTED, AuditStatus.OVERDUE)
PASSED = (AuditStatus.PASSED, AuditStatus.DISMISSED)
WORTH_TELLING = (AuditStatus.DISPUTED, AuditStatus.CONFIRMED, AuditStatus.OVERDUE, AuditStatus.LATE)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """One node. status: training, new, away, late, suspect, banned or left."""

    peer: bytes
    status: str
    last_round: int | None  # of its last accepted step
    accepted: int
    clean: int  # audits passed in a row
    is_drawn: bool  # an audit of it is pending
    paid: int  # token units in settled epochs
    earned: int  # token units of accepted steps in later epochs, if nothing is found against them
    stake: int | None = None  # token units; None where the chain was not asked
    round_trip_us: int | None = None  # as the process that keeps the store measured it; None: it did not


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierView:
    """One verifier."""

    peer: bytes
    judged: int  # verdicts in the chain
    is_present: bool  # its beacon share is in the last manifest
    is_disqualified: bool
    paid: int
    stake: int | None = None
    round_trip_us: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditView:
    """One pending audit."""

    round: int
    node: bytes
    status: str
    auditor: bytes  # first in order
    verdicts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MoneyView:
    """What the chain says of the run's money; None where nobody could be asked. Token units."""

    budget: int | None = None
    spent: int | None = None  # paid, or reserved for results
    stakes: Mapping[PeerId, int] | None = None
    note: str = ""  # why something is not known


@dataclass(frozen=True, slots=True, kw_only=True)
class EventView:
    """Something that happened."""

    round: int
    text: str
    is_alarm: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A run at one moment, for all of its people, or for one of them (`me`)."""

    run_id: bytes
    me: bytes | None
    round: int  # manifests that are final
    rounds: int  # of training
    epoch: int
    epochs: int
    state: str  # waiting, training, closing or over
    losses: tuple[float, ...]  # of each training round, nats a token
    drawn: int
    passed: int
    failed: int
    audits: tuple[AuditView, ...]
    nodes: tuple[NodeView, ...]
    verifiers: tuple[VerifierView, ...]
    paid: int  # to me, or to all operators and verifiers; settled epochs, token units
    earned: int  # likewise, in epochs that are not settled yet
    run_s: int  # agreed time from the first manifest to the last
    round_s: float | None  # of the latest rounds
    left_s: int | None  # until training is over
    budget: int | None
    spent: int
    stake: int | None  # mine, or all
    round_trip_us: int | None  # median of the peers that the process is connected to, as it measured them
    longest_round_trip_us: int | None
    note: str
    events: tuple[EventView, ...]  # newest last

    @property
    def paid_an_hour(self) -> int | None:
        """Pay and earnings for each hour of the run, in token units."""
        return (self.paid + self.earned) * 3600 // self.run_s if self.run_s else None


class Chronicle:
    """A run's manifests, folded one after another."""

    def __init__(self, spec: RunSpec, run_id: Digest) -> None:
        self.state: RunState = start(spec, run_id)
        self._losses: list[float] = []
        self._times: deque[int] = deque(maxlen=PACE_ROUNDS + 1)
        self._began_s: int | None = None
        self._last_round: dict[PeerId, int] = {}
        self._present: frozenset[PeerId] = frozenset()
        self._counts: Counter[str] = Counter()
        self._paid: Counter[PeerId] = Counter()
        self._spent = 0
        self._settled = 0  # epochs
        self._events: deque[EventView] = deque(maxlen=EVENTS_MAX)

    def add(self, certified: CertifiedManifest) -> None:
        """The next manifest.

        Raises:
            MalformedMessage, PeerFault: it is invalid.
        """
        before, manifest = self.state, certified.manifest
        self.state = after = extend(before, certified)
        commits = [signed.commit for signed in manifest.commits]
        if commits:
            self._losses.append(sum(one.loss_micro for one in commits) / len(commits) / 10**6)
            self._last_round |= {one.node: int(one.round) for one in commits}
        self._began_s = manifest.time_s if self._began_s is None else self._began_s
        self._times.append(manifest.time_s)
        self._present = frozenset(share.verifier for share in manifest.beacon_shares)
        for step, audit in after.audits.items():
            self._audited(step, before.audits.get(step), audit)
        for peer, record in after.nodes.items():
            self._moved(peer, before.nodes.get(peer), record)
        if after.training_rounds < before.training_rounds:
            self.tell(f"the run closes early, after {after.training_rounds:,} rounds", is_alarm=True)
        ripe = after.calendar.ripe_at(int(after.round) - 1)
        if ripe is not None:
            table = settle(after, ripe)
            self._paid.update({row.peer: row.amount for row in table.rows if row.role != "fee"})
            self._spent += table.total
            self._settled = ripe + 1
            self.tell(f"epoch {ripe} settled: {token_text(table.total)}")

    def tell(self, text: str, *, is_alarm: bool = False) -> None:
        """Note an event at the last manifest."""
        self._events.append(EventView(round=int(self.state.round) - 1, text=text, is_alarm=is_alarm))

    def picture(self, me: PeerId | None, money: MoneyView, trips: RoundTrips | None = None) -> Picture:
        """The run as it is now.

        Args:
            me: Whose pay and stake are summed; None for everybody's.
            money: What the chain says.
            trips: What the process that keeps the store measured.
        """
        state, calendar = self.state, self.state.calendar
        done = int(state.round)
        us: Mapping[PeerId, int] = {} if trips is None else trips.us
        nodes, verifiers = self._nodes(money, us), self._verifiers(money, us)
        everybody: tuple[NodeView | VerifierView, ...] = (*nodes, *verifiers)
        mine = [one for one in everybody if me is None or one.peer == me]
        stakes = [one.stake for one in mine if one.stake is not None]
        times_s = tuple(self._times)
        return Picture(
            run_id=state.run_id,
            me=me,
            round=done,
            rounds=calendar.rounds,
            epoch=min(calendar.epoch_of(done), calendar.epochs - 1),
            epochs=calendar.epochs,
            state=phase_of(state),
            losses=tuple(self._losses),
            drawn=self._counts["drawn"],
            passed=self._counts["passed"],
            failed=self._counts["failed"],
            audits=tuple(_view(one) for one in state.audits.values() if one.ruling in PENDING),
            nodes=nodes,
            verifiers=verifiers,
            paid=sum(one.paid for one in mine),
            earned=sum(one.earned for one in mine if isinstance(one, NodeView)),
            run_s=0 if self._began_s is None else self._times[-1] - self._began_s,
            round_s=round_s(times_s),
            left_s=left_s(state, times_s),
            budget=money.budget,
            spent=max(self._spent, money.spent or 0),  # a table that follows may not be posted yet
            stake=sum(stakes) if stakes else None,
            round_trip_us=None if trips is None else trips.median_us,
            longest_round_trip_us=max(us.values(), default=None),
            note=money.note,
            events=tuple(self._events),
        )

    def _audited(self, step: StepId, before: Audit | None, after: Audit) -> None:
        if before is None:
            self._counts["drawn"] += 1
        if before is not None and before.ruling is after.ruling:
            return
        if after.ruling in PASSED:
            self._counts["passed"] += 1
        if after.ruling is AuditStatus.CONFIRMED:
            self._counts["failed"] += 1
        if after.ruling in WORTH_TELLING:
            is_alarm = after.ruling is AuditStatus.CONFIRMED
            text = f"audit of node {step[1].hex()[:8]}, round {step[0]}: {after.ruling.value}"
            self.tell(text, is_alarm=is_alarm)

    def _moved(self, peer: PeerId, before: NodeRecord | None, after: NodeRecord) -> None:
        name = f"node {peer.hex()[:8]}"
        if before is None:
            self.tell(f"{name} joined")
            return
        if after.banned and not before.banned:
            self.tell(f"{name} is banned: a fault is proven", is_alarm=True)
        if after.has_left and not before.has_left:
            self.tell(f"{name} lost its seat" if after.borderline >= BORDERLINE_MAX else f"{name} left")
        if after.returns > before.returns:
            self.tell(f"{name} is back")

    def _nodes(self, money: MoneyView, us: Mapping[PeerId, int]) -> tuple[NodeView, ...]:
        state = self.state
        earned: Counter[PeerId] = Counter()
        for table in drafts(state, self._settled).values():
            earned.update({row.peer: row.amount for row in table.rows if row.role == "operator"})
        drawn = {one.node for one in state.audits.values() if one.ruling in PENDING}
        return tuple(
            NodeView(
                peer=peer,
                status=status_of(state, record, self._last_round.get(peer)),
                last_round=self._last_round.get(peer),
                accepted=record.accepted,
                clean=record.clean,
                is_drawn=peer in drawn,
                paid=self._paid[peer],
                earned=earned[peer],
                stake=(money.stakes or {}).get(peer),
                round_trip_us=us.get(peer),
            )
            for peer, record in state.nodes.items()
        )

    def _verifiers(self, money: MoneyView, us: Mapping[PeerId, int]) -> tuple[VerifierView, ...]:
        return tuple(
            VerifierView(
                peer=peer,
                judged=record.judged,
                is_present=peer in self._present,
                is_disqualified=record.is_disqualified,
                paid=self._paid[peer],
                stake=(money.stakes or {}).get(peer),
                round_trip_us=us.get(peer),
            )
            for peer, record in self.state.verifiers.items()
        )


def _view(audit: Audit) -> AuditView:
    return AuditView(
        round=int(audit.round),
        node=audit.node,
        status=audit.ruling.value,
        auditor=audit.order[0] if audit.order else b"",
        verdicts=len(audit.verdicts),
    )
