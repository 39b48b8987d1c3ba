"""Promises: what a whole network may never do, checked at every frame that is sent and every manifest folded.

One chain; nothing signed twice; no honest member banned, slashed or at fault; no false step found true or
paid; what is accepted of honest nodes is paid; equal payouts and parameters everywhere.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import trio
from numpy.typing import NDArray

from assay.ledger.settlement.payouts import Settlement, UnpaidReason
from assay.node.progress import round_line
from assay.participant.follower import Follower
from assay.participant.opening_keeper import OpeningKeeper
from assay.participant.openings import KEPT, KeptOpening
from assay.participant.store import Store
from assay.protocol.agreement.configurations import before_first, number_of
from assay.protocol.auditing.audits import Audit, AuditStatus
from assay.protocol.encoding.codec import decode, decode_any, digest
from assay.protocol.messages import (
    MESSAGES,
    AttendanceKind,
    CertifiedManifest,
    Proposal,
    ResultSignature,
    SignedBlock,
    SignedEvaluation,
    SignedEvaluationCommitment,
    SignedReceipt,
    SignedVerdict,
    SignedVerdictCommitment,
    SignedVote,
    Submission,
    VoteKind,
)
from assay.protocol.params import RunSpec
from assay.protocol.run_state import RunState
from assay.protocol.types import NO_DIGEST, Digest, PeerId
from assay.testing.members import RUN_ID
from assay.testing.specs import TEXT
from assay.training.reference import evaluation
from assay.verifier.consensus.types import State
from tests.simulation.conduct import Conduct
from tests.simulation.disk import HERE
from tests.simulation.judgement import complaint, keepers, owed, proved_wrong
from tests.simulation.one_thread import BEGUN_S
from tests.simulation.second_reading import SecondReading, expected_rounds
from tests.simulation.streams import BLOB, Frame

OPPOSITE = {VoteKind.DUMMY: VoteKind.FINALISE, VoteKind.FINALISE: VoteKind.DUMMY}
HEARD_S = 60.0  # in which more than f verifiers have read the escrow again, whatever the storm does
JOINED_S = 20.0  # in which a newcomer has caught up and has a seat, if one is free and training goes on
BEHIND_ROUNDS = 3  # a newcomer that had caught up when a quorum let it in may be behind again
TOLD_S = 10.0  # in which a manifest carries what a node says of itself
KEPT_ROUNDS = 24  # of whose updates a reputation is made
DRAWN_S = 1.5  # of an empty round, from the release of the drand round that it waits for on
LEFT_ROUNDS = 12  # in which a node that is asked to leave has said so: it looks once a second
RETIRED_ROUNDS = 18  # in which a seat's audits have ended, and it is handed over
CARRIED_ROUNDS = 6  # after which an honest leader has carried what an honest verifier holds


class Violation(AssertionError):
    """Something that the protocol promises did not hold."""

    lines: list[str]


class Promises:
    """What has been seen of one run."""

    def __init__(
        self,
        spec: RunSpec,
        honest: set[PeerId],
        false_from: Mapping[PeerId, int],
        tasks: Mapping[PeerId, Collection[int]],
        funded_epochs: Callable[[], int],
        troubled: Collection[PeerId],
        holds: Callable[[PeerId, Digest], bool],
    ) -> None:
        """
        Args:
            spec: The run.
            honest: The members that follow the rules.
            false_from: The round from which on every step of a node is false.
            tasks: Rounds in which nodes have drawn known-answer tasks; false are those after an announcement.
            funded_epochs: How many epochs the escrow has the money for now.
            troubled: Who was killed or cut off so far: openings of theirs may come too late, and so may their
                word that a step was false on order (5.10).
            holds: Whether an honest verifier has a blob.
        """
        self._holds = holds
        self._tasks, self._funded_epochs, self._troubled = tasks, funded_epochs, troubled
        self._known: set[tuple[int, PeerId]] = set()  # steps that are false on order
        self._spec, self.honest, self._false_from = spec, honest, false_from
        self.nodes = {node.peer for node in spec.nodes} & honest
        self.leaving: dict[PeerId, int] = {}  # who was asked to give up its seat, and in which round
        self.coming_s = 0.0  # when nodes began to ask for a free seat; 0: none does
        self.hand_overs = 0
        self._seen: set[tuple[PeerId, str, bytes]] = set()
        self._present: dict[int, tuple[Collection[PeerId], Collection[PeerId]]] = {}  # seats, nodes, by round
        self._attended: set[tuple[PeerId, AttendanceKind]] = set()  # what nodes said of themselves
        self._held: set[tuple[PeerId, int]] = set()  # honest verifiers that had a round's aggregate in time
        self._signed: dict[tuple[object, ...], Digest] = {}
        self.chain: dict[int, CertifiedManifest] = {}
        self.settled: dict[int, Settlement] = {}
        self._states: dict[str, bytes] = {}
        self.unpaid: Counter[UnpaidReason] = Counter()
        self.audits: dict[tuple[int, PeerId], Audit] = {}
        self.convicted: set[PeerId] = set()  # whom the chain finds at fault
        self._reading = SecondReading(spec, RUN_ID)
        self.conduct = Conduct(spec)
        self.came_s: dict[int, float] = {}  # when each manifest was first known to be final
        self._kept: set[tuple[PeerId, Digest]] = set()  # openings that were kept, by whom
        # Who held a seat while it was to keep the opening of this round's step of a node.
        self._keeping = defaultdict[tuple[int, PeerId, PeerId], set[PeerId]](set)
        self._heard: dict[tuple[object, ...], Digest] = {}  # of liars, by honest verifiers
        self._doubled: dict[tuple[PeerId, PeerId, int], int] = {}  # (who heard it, the liar, in which life)

    @property
    def trained(self) -> int:
        """Rounds of training that are agreed on."""
        return self._reading.rounds

    @property
    def has_lapsed(self) -> bool:
        """Whether it never started."""
        return self._reading.has_lapsed

    @property
    def joined(self) -> Collection[PeerId]:
        """Nodes that have, or had, a seat that the spec does not name."""
        return self._reading.joined

    @property
    def epochs(self) -> int:
        """Of these rounds; the last one may be short."""
        return -(-self.trained // self._spec.money.epoch_rounds)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """While this lasts, all manifests that a process folds and all parameters that it states are seen."""
        fold, set_value, unit_loss = Follower._fold, Store.set_value, evaluation.unit_loss
        fetch = OpeningKeeper.fetch

        def folding(follower: Follower, run_state: Any) -> None:
            fold(follower, run_state)
            self._folded(follower)
            self.conduct.folded(_here(), run_state)

        def setting(store: Store, name: str, body: bytes) -> None:
            if name.startswith("state/"):
                self._same(self._states, name, body, "parameters")
            elif name.startswith("receipt/"):
                self._received(decode(SignedReceipt, body))
            elif name.startswith(KEPT):
                self._kept.add((_here(), decode(KeptOpening, body).opening))
            set_value(store, name, body)

        async def fetching(keeper: OpeningKeeper, host: Any, audit: Audit, *more: Any) -> None:
            self._fetched(_here(), audit)
            await fetch(keeper, host, audit, *more)

        def measuring(*model: Any, **more: Any) -> Any:
            self._measured(model[2])
            return unit_loss(*model, **more)

        def telling(run_state: RunState, node: PeerId, *more: Any) -> Any:
            line = round_line(run_state, node, *more)
            self._told(line, node)
            return line

        with (
            mock.patch("assay.node.progress.round_line", telling),
            mock.patch.object(Follower, "_fold", folding),
            mock.patch.object(Store, "set_value", setting),
            mock.patch.object(evaluation, "unit_loss", measuring),
            mock.patch.object(OpeningKeeper, "fetch", fetching),
        ):
            yield

    # ---- what is signed

    def sent(self, frame: Frame, state: State | None) -> None:
        """An honest process sends something; as a verifier in this state."""
        if wrong := self.conduct.pushed(frame):
            raise Violation(wrong)
        key = (frame.source, frame.method, frame.body)
        if frame.method == BLOB or frame.error or not frame.body or key in self._seen:
            return
        self._seen.add(key)
        if frame.method == "submit" and not frame.answers:
            commit = decode_any({Submission.TAG: Submission}, frame.body).signed.commit
            self._once(("commit", frame.source, int(commit.round)), digest(commit))
            if wrong := self.conduct.sized(commit):
                raise Violation(wrong)
        elif frame.method == "sign-result" and frame.answers:
            result = decode_any({ResultSignature.TAG: ResultSignature}, frame.body)
            self._once(("result", frame.source, result.epoch), digest(result))
        elif not frame.method:
            message = decode_any(MESSAGES, frame.body)
            self._said(frame.source, message)
            if isinstance(message, SignedVote) and state is not None:
                wrong = self.conduct.voted(frame.source, message, state)
            if wrong:
                raise Violation(wrong)

    def _said(self, by: PeerId, message: Any) -> None:
        match message:
            case SignedVote(vote=vote) if message.verifier == by and vote.iteration:
                self._once(("vote", by, vote.iteration, vote.kind), vote.block)
                other = OPPOSITE.get(vote.kind)
                if ("vote", by, vote.iteration, other) in self._signed:
                    raise Violation(f"DUMMY and FINALISE by {by.hex()[:8]} in iteration {vote.iteration}")
            case Proposal(block=block, proposer=signer) | SignedBlock(block=block, verifier=signer) if (
                signer == by
            ):
                self._once(("block", by, block.iteration), digest(block))
            case SignedVerdictCommitment(commitment=one):
                self._once(("bound", by, int(one.round), one.node, one.pattern), one.verdict)
            case SignedVerdict(verdict=one):
                bound = {
                    value for (kind, *what), value in self._signed.items()
                    if kind == "bound" and what[:3] == [by, int(one.round), one.node]
                }  # fmt: skip
                if digest(one) not in bound:
                    raise Violation(f"{by.hex()[:8]} reveals a verdict that it did not commit to: {one}")
            case SignedEvaluationCommitment(commitment=one):
                self._once(("sealed", by, one.epoch), one.evaluation)
            case SignedEvaluation(evaluation=one):
                self._once(("sealed", by, one.epoch), digest(one))
                if self._reading.last_commitments(one.epoch) not in self.chain:
                    raise Violation(f"{by.hex()[:8]} shows its score while others may still commit: {one}")

    def heard(self, frame: Frame, state: State, *, life: int) -> None:
        """An honest verifier hears something, in this state and the how-manieth process of its disk."""
        if frame.method or frame.source in self.honest:
            return
        message = decode_any(MESSAGES, frame.body)
        match message:
            case SignedVote(verifier=signer, vote=vote) if vote.iteration == state.iteration:
                kind, said = vote.kind.name, digest(vote)
                opposite = OPPOSITE.get(vote.kind)
            case Proposal(proposer=signer, block=block) if block.iteration == state.iteration:
                kind, said, opposite = "block", digest(block), None
            case _:
                return
        place = (frame.target, life, signer, int(state.iteration))
        is_other = self._heard.setdefault((*place, kind), said) != said
        is_other |= opposite is not None and (*place, opposite.name) in self._heard
        if is_other:
            self._doubled.setdefault((frame.target, signer, life), int(state.tip.round))

    def _once(self, what: tuple[object, ...], said: Digest) -> None:
        if self._signed.setdefault(what, said) != said:
            raise Violation(f"an honest process signed two of {what}")

    def _received(self, signed: SignedReceipt) -> None:
        """An honest node keeps a receipt: of a commit that it sent."""
        receipt = signed.receipt
        sent = self._signed.get(("commit", receipt.node, int(receipt.round)))
        if receipt.node in self.honest and receipt.commit != sent:
            raise Violation(f"{receipt.node.hex()[:8]} keeps a receipt of {receipt.commit.hex()[:8]}")

    def _told(self, line: Mapping[str, Any], node: PeerId) -> None:
        """A node tells its operator of a round."""
        commits = {signed.commit.node for signed in self.chain[line["round"]].manifest.commits}
        if node in self.honest and (node in commits) != (line["step"] == "accepted"):
            raise Violation(f"{node.hex()[:8]} tells its operator of round {line['round']}: {line}")

    def _fetched(self, by: PeerId, audit: Audit) -> None:
        """A verifier fetches the opening of an ended audit, to keep it."""
        is_seat = by in self.honest and by in self._spec.seat_peers  # a buyer keeps them all
        if is_seat and by not in map(self._reading.holder, self._keepers(audit)[1]):
            raise Violation(f"{by.hex()[:8]} fetches an opening of {audit.node.hex()[:8]} that others keep")

    def _keepers(self, audit: Audit) -> tuple[Digest, set[PeerId]]:
        """The opening of an ended audit that is kept, and the seats whose holders keep it."""
        return keepers(audit, (len(self._spec.verifiers) - 1) // 3)

    def _measured(self, tokens: NDArray[np.int64]) -> None:
        """A verifier measures the model over these sequences."""
        size = self._spec.model.context + 1
        windows = [TEXT[one * size : (one + 1) * size].tolist() for one in self._reading.evaluated()]
        if any(row not in windows for row in tokens.tolist()):
            raise Violation("the model is measured over other windows than those held out for it")

    # ---- what is agreed

    def _folded(self, follower: Follower) -> None:
        run_state = follower.run_state
        number = int(run_state.round) - 1
        link = next(iter(follower._store.links(number, 1)))
        is_new = number not in self.chain
        known = self.chain.setdefault(number, link)
        if digest(known.manifest) != digest(link.manifest):
            raise Violation(f"two manifests are final in round {number}")
        if is_new:
            self._read(number, link, run_state)
        aggregate = link.manifest.aggregate
        if number in self._present and aggregate != NO_DIGEST and self._holds(_here(), aggregate):
            self._held.add((_here(), number))
        for epoch, found in follower.settlements.items():
            if epoch not in self.settled:
                self._pay(run_state, found)
            self._same(self.settled, epoch, found, "payouts")

    def _read(self, number: int, link: CertifiedManifest, run_state: RunState) -> None:
        """A manifest is known to be final for the first time."""
        self.came_s[number] = trio.current_time()
        if link.manifest.commits and number // self._spec.money.epoch_rounds >= self._funded_epochs():
            raise Violation(f"round {number} is trained, and the escrow has no money for its epoch")
        self._present[number + 1] = run_state.beacon, run_state.active
        self.hand_overs = run_state.rotation.configuration.number
        for one in (signed.attendance for signed in link.manifest.attendance):
            self._attended.add((one.node, one.kind))
            if one.kind is AttendanceKind.TASKS:
                self._known |= {(at, one.node) for at in self._tasks[one.node] if at > number}
        if difference := self._reading.read(link.manifest, run_state):
            raise Violation(f"manifest {number}: {difference}")
        for node, record in run_state.nodes.items():
            may_leave = node in self.leaving and not record.banned
            if node in self.honest and not record.is_seated and not may_leave:
                raise Violation(f"an honest node is banned in round {number}: {node.hex()[:8]} {record}")
        self.convicted |= {node for node, record in run_state.nodes.items() if record.banned}
        self.convicted |= {one for one, record in run_state.verifiers.items() if record.is_disqualified}
        if at_fault := self.convicted & self.honest:
            raise Violation(f"honest members are at fault: {_names(at_fault)}")
        for (round_id, node), audit in run_state.audits.items():
            self.audits[int(round_id), node] = audit
            for seat in self._keepers(audit)[1] if audit.has_ended else ():
                self._keeping[audit.round, node, seat].add(self._reading.holder(seat))
            self._judge(audit, {one for one, record in run_state.verifiers.items() if record.is_disqualified})

    def _judge(self, audit: Audit, at_fault: set[PeerId]) -> None:
        step = int(audit.round), audit.node
        place = f"step of round {audit.round} by {audit.node.hex()[:8]}"
        if self._is_false(*step):
            is_found_true = audit.ruling is AuditStatus.PASSED and complaint(
                audit, is_false=True, honest=self.honest
            )
            if is_found_true or audit.ruling is AuditStatus.DISMISSED:
                raise Violation(f"a false {place} is {audit.ruling.name}")
        elif audit.is_known_answer:
            raise Violation(f"a {place} is a known-answer task, and nobody ordered one")
        elif audit.node in self.honest and audit.ruling is AuditStatus.CONFIRMED:
            raise Violation(f"an honest {place} is CONFIRMED as false")
        wrong = proved_wrong(audit, (len(self._spec.verifiers) - 1) // 3)
        if wrong != {one.verdict.verifier for one in audit.faults}:
            raise Violation(f"the {place} proves {_names(wrong)} wrong, and the chain finds {audit.faults}")
        if not {self._reading.judge(step, one.verdict) for one in audit.faults} <= at_fault:
            raise Violation(f"the {place} proves {_names(wrong)} wrong, and {_names(at_fault)} are at fault")

    def _pay(self, run_state: RunState, found: Settlement) -> None:
        """An epoch is settled: what it costs, and who has what of it."""
        unpaid = {(one.round, one.node) for one in found.unpaid}
        tokens: dict[PeerId, int] = {}
        first = found.epoch * self._spec.money.epoch_rounds
        for number in range(first, min(first + self._spec.money.epoch_rounds, max(self.chain) + 1)):
            for signed in self.chain[number].manifest.commits:
                node, record = signed.commit.node, run_state.nodes[signed.commit.node]
                if (number, node) not in unpaid:
                    tokens[node] = tokens.get(node, 0) + signed.commit.tokens
                    if record.banned and record.fault_round <= number:
                        raise Violation(
                            f"a step of round {number} is paid, from after {node.hex()[:8]}'s fault"
                        )
        work, has_missed = self._reading.work(found.epoch, run_state), self._reading.has_missed(found.epoch)
        expected = owed(self._spec, tokens, work, has_missed=has_missed)
        operators, verifiers = (
            {row.peer: row.amount for row in found.rows if row.role == role}
            for role in ("operator", "verifier")
        )
        if (found.total, operators, verifiers) != expected:
            raise Violation(
                f"epoch {found.epoch} pays {found.total}, {operators} and {verifiers}, expected {expected}"
            )
        for row in found.rows:
            fault = run_state.verifiers[row.peer].fault_round if row.role == "verifier" else -1
            if 0 <= fault < first + self._spec.money.epoch_rounds:
                raise Violation(f"epoch {found.epoch} pays {row.peer.hex()[:8]}, which is at fault")

    def _is_false(self, round_id: int, node: PeerId) -> bool:
        return round_id >= self._false_from.get(node, 1 << 60) or (round_id, node) in self._known

    def _same(self, known: dict[Any, Any], key: Any, value: Any, what: str) -> None:
        if known.setdefault(key, value) != value:
            raise Violation(f"processes have different {what}: {key}")

    # ---- the end

    def ended(self, *, may_lack_judges: bool, lives: Mapping[PeerId, int]) -> None:
        """The run is over: its last manifest is everywhere.

        Args:
            may_lack_judges: More verifiers lied, were killed or cut off than are tolerated.
            lives: How often each process was killed.
        """
        for (listener, liar, life), round_id in self._doubled.items():
            is_late = round_id + CARRIED_ROUNDS > max(self.chain)
            if not is_late and lives[listener] == life and liar not in self.convicted:
                raise Violation(f"{liar.hex()[:8]} signed twice in round {round_id}, and is not convicted")
        least, most = expected_rounds(self._spec, self.trained, self.audits)
        if not least <= len(self.chain) <= most:
            raise Violation(f"the run has {len(self.chain)} manifests, expected {least} to {most}")
        epochs = set(range(self.epochs))
        if set(self.settled) != epochs:
            raise Violation(f"settled are epochs {sorted(self.settled)} of {sorted(epochs)}")
        unpaid = {
            (one.round, one.node): one.reason for epoch in self.settled.values() for one in epoch.unpaid
        }
        self.unpaid.update(unpaid.values())
        for (round_id, node), reason in unpaid.items():
            # Who was away when more than its auditors asked for the opening may be accused of withholding it.
            is_late = reason in (UnpaidReason.LATE, UnpaidReason.ACCUSED) and node in self._troubled
            is_lost = reason in (UnpaidReason.UNJUDGED, UnpaidReason.ACCUSED) and may_lack_judges
            is_known = reason is UnpaidReason.KNOWN_ANSWER and (round_id, node) in self._known
            if node in self.honest and not is_late and not is_lost and not is_known:
                raise Violation(f"{node.hex()[:8]}: its honest step of {round_id} is unpaid: {reason.value}")
        for (round_id, node), audit in self.audits.items():
            is_false = self._is_false(round_id, node)
            if may_lack_judges or not (is_false or node in self.honest) or node in self._troubled:
                continue
            is_known = (round_id, node) in self._known
            if is_known and node not in self.honest:
                continue  # it may show that it is one, or not
            last = round_id + self._spec.audit.audit_rounds if is_known else None
            if reason := complaint(audit, is_false=is_false, honest=self.honest, last=last):
                raise Violation(f"{reason}: round {round_id} of {node.hex()[:8]}, {audit}")
            if is_false and (round_id, node) not in unpaid and audit.ruling is not AuditStatus.PASSED:
                raise Violation(f"a false step of round {round_id} was drawn and is paid")

    def closed(self, cancelled_s: float) -> None:
        """The buyer closed the escrow at this time, or never (0).

        Raises:
            Violation: training went on for long, or ended with nobody asking for it.
        """
        trained = {number for number, link in self.chain.items() if link.manifest.commits}
        if not cancelled_s and not self._reading.has_lapsed and self.trained != self._spec.rounds:
            raise Violation(f"{self.trained} of {self._spec.rounds} rounds, and nobody closed it")
        late = [number for number in trained if cancelled_s and self.came_s[number] > cancelled_s + HEARD_S]
        if len(late) > 1 or (trained and max(trained) >= self.trained):
            raise Violation(f"closed at {cancelled_s}, and still trained in rounds {late}")

    def kept(self) -> None:
        """Nothing broke: the updates of the last rounds are there, of which a restart makes reputations anew.

        Raises:
            Violation: some are not.
        """
        f, last = (len(self._spec.verifiers) - 1) // 3, max(self.chain)
        for number in range(max(last - KEPT_ROUNDS, 0), last + 1):
            for commit in (signed.commit for signed in self.chain[number].manifest.commits):
                if sum(self._holds(peer, commit.update) for peer in self.honest) <= f:
                    raise Violation(
                        f"{commit.node.hex()[:8]}'s update of round {number} is deleted in {last}"
                    )

    def delivered(self) -> None:
        """Nothing broke: who held what came of a round pushed it to the nodes that it serves then (3.8).

        Raises:
            Violation: it was not.
        """
        for by, number in self._held:
            serving, active = self._present[number]
            for place, node in enumerate(sorted(active)):
                seat = sorted(serving)[(place + number) % len(serving)]
                aggregate = self.chain[number].manifest.aggregate
                is_there = node in {one.commit.node for one in self.chain[number].manifest.commits}
                is_there &= node in self.honest  # the process of one that is banned ends
                is_ours = self._reading.holder(seat) == by and is_there
                if is_ours and not self.conduct.has_served(by, node, aggregate):
                    raise Violation(f"{_names([by])} pushes nothing of round {number} to {_names([node])}")

    def undisturbed(self) -> None:
        """Nobody but nodes lied and nothing broke: no iteration was given up, and no honest commit was lost.

        Raises:
            Violation: one of these was.
        """
        expected, joined, seats = 1, self._reading.joined, self._spec.verifier_peers
        taken: dict[PeerId, int] = {}  # seats that changed hands, whose holders may pass while they lag (3.9)
        for number, link in self.chain.items():
            for given_up in range(expected, link.block.iteration):
                if number - taken.get(seats[given_up % len(seats)], -BEHIND_ROUNDS) >= BEHIND_ROUNDS:
                    raise Violation(f"iteration {given_up}, before round {number}'s, was given up")
            taken |= {change.seat: number for change in link.manifest.hand_over}
            begins = before_first(number_of(link.block.iteration) + 1) + 1
            expected = begins if link.manifest.hand_over else link.block.iteration + 1
            seated = self.nodes | {node for node, first in joined.items() if first + BEHIND_ROUNDS <= number}
            lost = seated - set(self.leaving) - {signed.commit.node for signed in link.manifest.commits}
            if not number:  # they bind themselves to their data first
                lost -= set(self._spec.bringing_nodes)
            is_waiting = not number and self._spec.start_by_s > 0  # nobody may train in it
            if number < self.trained and lost and not is_waiting:
                raise Violation(f"round {number} has no commits of {_names(lost)}")
        for audit in self.audits.values():
            # Where the last manifest ends an audit, all may be settled already, and nothing is kept any more.
            is_disputable = audit.has_ended and audit.closed_round < max(self.chain)
            kept, seats = self._keepers(audit) if is_disputable else (NO_DIGEST, set())
            for seat in seats:  # who takes one once an epoch is settled keeps nothing of it
                holders = self._keeping[audit.round, audit.node, seat]
                if holders <= self.honest and not any((one, kept) in self._kept for one in holders):
                    raise Violation(f"{_names(holders)} never kept the opening of {audit.node.hex()[:8]}")
        drand, released_s = self._spec.audit.drand, self._reading.released_s
        waits_s = [self.came_s[n] + BEGUN_S - at for n, at in released_s.items()]
        if drand.is_used and min(waits_s, default=0) > DRAWN_S:
            raise Violation(f"draws come {waits_s} s after the drand rounds for which they wait")
        for milestone in self._reading.milestones:
            if self._reading.score(milestone.epoch) is None:
                raise Violation(f"no score is agreed after epoch {milestone.epoch}")
        trains_s = self.came_s.get(self.trained - 1, 0.0)
        if self.coming_s and not joined and trains_s > self.coming_s + JOINED_S:
            raise Violation(
                f"a seat is free, nodes ask for it from {self.coming_s} on to {trains_s}, none joins"
            )
        own = set(self._spec.bringing_nodes)  # who trains on data of its own takes no tasks
        ordered = self.nodes - own if self._spec.audit.known_answer_count else ()
        due_s = [(node, AttendanceKind.TASKS, 0.0) for node in ordered]
        due_s += [
            (node, AttendanceKind.LEAVE, self.came_s[asked])
            for node, asked in self.leaving.items() if node in self.nodes and asked in self.came_s
        ]  # fmt: skip
        for node, kind, since_s in due_s:
            if trains_s > since_s + TOLD_S and (node, kind) not in self._attended:
                raise Violation(f"no manifest carries {kind.name} of {node.hex()[:8]}, due since {since_s} s")
        for peer, asked in self.leaving.items():
            trained = {
                n for n, link in self.chain.items() if peer in {c.commit.node for c in link.manifest.commits}
            }
            if peer in self.nodes and max(trained, default=0) > asked + LEFT_ROUNDS:
                raise Violation(f"{peer.hex()[:8]} leaves in round {asked}, and trains in {max(trained)}")
            if peer not in self.nodes and asked + RETIRED_ROUNDS < self.trained and not self.hand_overs:
                raise Violation(f"{peer.hex()[:8]} resigned in round {asked}, and holds its seat")


def _here() -> PeerId:
    """Whose process runs now."""
    here = HERE.get()
    assert here is not None
    return here.peer


def _names(peers: Collection[PeerId]) -> str:
    return f"[{', '.join(sorted(one.hex()[:8] for one in peers))}]"
