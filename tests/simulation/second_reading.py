"""Second reading: what follows from the manifests, computed once more from docs/protocol.md, in another way.

A rule that is broken for everybody is broken in one chain: no process disagrees with another. So what the
processes make of their chain is compared with what this file makes of it: who is asked for a share of the
beacon, which windows a step is over, what is drawn at which rate, in which order and from when on verifiers
judge, by when an audit has ended, which seat is handed over to whom, and what verifiers did that is paid.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction

from assay.protocol.agreement.quorum import faults_tolerated, quorum
from assay.protocol.auditing.audits import Audit, AuditStatus
from assay.protocol.encoding.codec import digest, encode
from assay.protocol.messages import (
    Admission,
    AttendanceKind,
    Closing,
    Commit,
    Manifest,
    Outcome,
    OwnData,
    Score,
    SeatNoticeKind,
    Verdict,
)
from assay.protocol.params import PPM, Milestone, RunSpec
from assay.protocol.permitted import may_commit_verdict
from assay.protocol.randomness.vrf import proof_to_hash
from assay.protocol.run_state import RunState
from assay.protocol.types import NO_DIGEST, Digest, PeerId
from tests.simulation.drand import signature
from tests.simulation.judgement import may_judge, weight

PAUSE_ROUNDS = 16  # 5.1
PAUSE_ROUNDS_MAX = 256
NAMED_S = 120  # 5.1: how far ahead of a manifest the drand round that it names may be
ABSENT_MANIFESTS, READY_ROUNDS = 64, 64  # 4b.3
RETURN_PAUSE_S = 60  # 5.15: after a first return
STRETCH_WINDOWS = 32  # 2a: at most so many are held out in one place
NO_DRAND = bytes(32)  # of a run that names no network, and where a round did not come
LEAVE = AttendanceKind.LEAVE
ACCUSING = (Outcome.MISMATCH, Outcome.WITHHELD, Outcome.BORDERLINE)
UNDECIDED = (AuditStatus.OPEN, AuditStatus.DISPUTED, AuditStatus.OVERDUE)
Step = tuple[int, PeerId]
Drawn = tuple[Digest, int, tuple[PeerId, ...]]  # by what: seed, rate, order of verifiers


class SecondReading:
    """What one run's manifests say so far."""

    def __init__(self, spec: RunSpec, run_id: Digest) -> None:
        self._spec, self._run_id = spec, run_id
        self._peers = spec.verifier_peers
        self._parent, self._time_s = digest(spec), 0
        self._named, self._first_drand = (
            0,
            b"",
        )  # the drand round that the next manifest carries, and the first
        self._chain = hashlib.sha256(b"assay/chain/1" + run_id + digest(spec)).digest()
        self._away: dict[PeerId, int] = {}
        self._missed: dict[PeerId, int] = {}
        self._clean: dict[PeerId, int] = {node.peer: 0 for node in spec.nodes}
        self._classes: dict[PeerId, Digest] = {}  # of the last accepted step; before, of the track record
        self._borderline: dict[PeerId, int] = defaultdict(int)
        self._returns_s: dict[PeerId, list[int]] = {}  # of each node, since it was last on probation
        self._states: dict[PeerId, tuple[int, Digest]] = {}  # base and root after the last accepted step
        self._fresh: tuple[Commit, ...] = ()
        self._undrawn: tuple[Commit, ...] = ()
        self._by_chosen: dict[Step, int] = {}  # steps drawn by a partial beacon: the auditors that each wants
        self._rulings: dict[Step, AuditStatus] = {}
        self._first: dict[Step, int] = {}  # the manifest that carried the first commitment to a verdict
        self._at_fault: set[PeerId] = set()
        self._reports: dict[PeerId, tuple[int, bool]] = {}  # epochs that are funded, and whether it closes
        self.released_s: dict[int, int] = {}  # when the drand rounds were there that manifests carry
        self.rounds = spec.rounds  # of training
        self.has_lapsed = False  # it did not start in time
        self.joined: dict[PeerId, int] = {}  # nodes that the spec does not name, by their first round
        self.left: set[PeerId] = set()
        own = sum(stratum.tokens == 0 for stratum in spec.data.strata)
        self._seats = {node.peer: seat for seat, node in enumerate(spec.nodes)}
        self._brings = sorted(node.peer for node in spec.nodes)[:own]  # data that only they have
        self._own: dict[PeerId, OwnData] = {}  # what binds them
        self._sealed: dict[tuple[int, PeerId], bytes] = {}  # digests of evaluations, by epoch and verifier
        self._scores: dict[tuple[int, PeerId], Score] = {}  # of those that were opened
        self._measured: dict[tuple[int, PeerId], PeerId] = {}  # who held the seat then
        self._holders = {seat: seat for seat in self._peers}
        self._held: set[PeerId] = set()  # reserves
        self._resigned: set[PeerId] = set()
        self._doubting: dict[PeerId, set[PeerId]] = defaultdict(set)  # who says that its stake has left
        self._ready: dict[PeerId, int] = {}  # reserves, and the round of their notice
        self._silent: dict[PeerId, tuple[int, set[PeerId]]] = {}  # manifests without it, their leaders
        self._audits: dict[Step, Audit] = {}  # after the last manifest
        self._shares: dict[int, list[PeerId]] = {}  # of the beacon, by round and whoever held the seat
        self._judges: dict[tuple[Step, Verdict], PeerId] = {}  # who held the seat that judged

    def read(self, manifest: Manifest, after: RunState) -> str:
        """The first thing that differs between this reading of a manifest and the processes'; or nothing."""
        return next(self._differences(manifest, after), "")

    def _differences(self, manifest: Manifest, after: RunState) -> Iterator[str]:
        now = int(manifest.round)
        if manifest.parent != self._parent or manifest.time_s < self._time_s:
            yield "it does not follow its parent in place or time"
        body = b"".join(one.commit.node + one.commit.update for one in manifest.commits)
        count = len(manifest.commits).to_bytes(4, "big")
        self._chain = hashlib.sha256(
            b"assay/chain/1" + self._chain + count + body + manifest.aggregate
        ).digest()
        if self._chain != manifest.chain:
            yield "its chain differs"
        leaving, holder = self._leaving(now)
        out = self._at_fault | self._retiring(leaving)
        if set(manifest.disqualified) != out:
            yield f"disqualified are {manifest.disqualified}, expected {out}"
        handed = {one.seat: one.holder for one in manifest.hand_over}
        free = [seat for seat in leaving if not self._is_bound(seat, now)]
        if handed != dict.fromkeys(free[:1], holder):
            yield f"it hands over {handed}, expected one of {free} to {holder!r}"
        drand = manifest.drand
        if drand and (not self._named or drand != signature(self._named)):
            yield f"it carries {drand.hex()[:8]}, which is not drand round {self._named}"
        spec = self._spec.audit.drand  # whose round 1 is there at its genesis
        if drand:
            self.released_s[now] = spec.genesis_s + (self._named - 1) * spec.period_s
        named_s = spec.genesis_s + (manifest.drand_next - 1) * spec.period_s
        if manifest.drand_next and not manifest.time_s < named_s <= manifest.time_s + NAMED_S:
            yield f"it names a drand round of {named_s} at {manifest.time_s}"
        asked = self._asked(now)
        seed = self._seed(manifest) if now else NO_DIGEST
        drawn = self._drawn(manifest, asked, seed)
        known = set(self._rulings)
        opened = {(int(r), node): a for (r, node), a in after.audits.items() if (int(r), node) not in known}
        if set(opened) != set(drawn):
            yield f"drawn are {sorted(opened)}, expected {sorted(drawn)}"
        for step, audit in opened.items():
            if (audit.seed, audit.rate_ppm, audit.order) != drawn[step]:
                yield f"{step} is drawn by {(audit.seed, audit.rate_ppm, audit.order)}, not {drawn[step]}"
        yield from self._replicated(manifest, after, asked, seed)
        if now:
            self._share(manifest, asked)
        self._hear(manifest, asked if now else ())
        yield from self._evaluated(manifest, now)
        for verdict in (signed.verdict for signed in manifest.verdicts):
            step = int(verdict.round), verdict.node
            self._judges[step, verdict] = self._holders[verdict.verifier]
        self._hand_over(manifest)
        awaited = set(self._asked(now + 1))
        if set(after.beacon) != awaited:
            yield f"asked for shares are {set(after.beacon)}, expected {awaited}"
        yield from self._accepted(manifest, after)
        yield from self._joined(manifest, after)
        yield from self._returned(manifest)
        yield from self._bound(manifest)
        if self._spec.start_by_s and not now:
            yield from self._started(manifest, after)
        self._time_s = manifest.time_s
        for (round_id, node), audit in after.audits.items():
            yield from self._judged((int(round_id), node), audit, now)
        for pair in manifest.contradictions:
            self._clean[pair.first.commit.node] = 0
        clean = {node: record.clean for node, record in after.nodes.items()}
        if clean != self._clean:
            yield f"audits in a row that nodes passed are {clean}, expected {self._clean}"
        returns = {node: record.returns for node, record in after.nodes.items() if record.returns}
        expected = {node: len(times_s) for node, times_s in self._returns_s.items() if times_s}
        if returns != expected:
            yield f"nodes have returned {returns}, expected {expected}"
        self._parent, self._named = digest(manifest), manifest.drand_next
        self._first_drand = self._first_drand or drand
        holders = self._holders.items()
        self._at_fault = {seat for seat, holder in holders if after.verifiers[holder].is_disqualified}
        self._audits = {(int(r), node): audit for (r, node), audit in after.audits.items()}
        yield from self._taken_over(after, now + 1)

    # ---- seats (4b)

    def _leaving(self, now: int) -> tuple[list[PeerId], PeerId | None]:
        """The seats with a cause while a reserve is ready, and the reserve."""
        f = faults_tolerated(len(self._peers))
        unbacked = {one for one, verifiers in self._doubting.items() if len(verifiers) > f}
        fit = [
            one for one, said in self._ready.items()
            if now <= said + READY_ROUNDS and one not in self._resigned | self._held | unbacked
        ]  # fmt: skip
        if not fit or now >= self.rounds:
            return [], None
        absent = {
            seat for seat, (count, leaders) in self._silent.items()
            if count >= ABSENT_MANIFESTS and len(leaders) > f
        }  # fmt: skip
        left = {seat for seat, holder in self._holders.items() if holder in self._resigned | unbacked}
        place = b"assay/reserve/1" + _random(self._first_drand)
        holder = min(fit, key=lambda one: hashlib.sha256(place + one).digest())
        return [seat for seat in self._peers if seat in absent | left | self._at_fault], holder

    def _retiring(self, leaving: list[PeerId]) -> set[PeerId]:
        """The seats not at fault that no step draws."""
        overdue = [audit for audit in self._audits.values() if audit.ruling is AuditStatus.OVERDUE]
        able = [seat for seat in leaving if seat not in self._at_fault]
        able.sort(key=lambda seat: any(_doubted(audit, seat) for audit in overdue))
        f = faults_tolerated(len(self._peers))
        return set(able[: max(f - max(len(self._at_fault) - f, 0), 0)])

    def _is_bound(self, seat: PeerId, now: int) -> bool:
        """Whether an audit may yet find the holder of a seat at fault."""
        for (round_id, _), audit in self._audits.items():
            said = {one.verifier for one in audit.verdicts} | {one.verifier for one in audit.commitments}
            passed = audit.ruling is AuditStatus.PASSED and not audit.is_known_answer
            may_be_shown = self._spec.audit.known_answer_count and passed
            may_be_shown = may_be_shown and now <= round_id + self._spec.audit.audit_rounds
            if audit.ruling is AuditStatus.OVERDUE:
                if _doubted(audit, seat):
                    return True
            elif seat in said and (audit.ruling in UNDECIDED or may_be_shown):
                return True
        return False

    def _hear(self, manifest: Manifest, asked: tuple[PeerId, ...]) -> None:
        """Count the manifests in a row that might have had something of a seat, and had nothing."""
        heard = {one.verifier for one in manifest.beacon_shares}
        heard |= {signed.inclusion_list.verifier for signed in manifest.inclusion_lists}
        heard |= {signed.commitment.verifier for signed in manifest.commitments}
        heard |= {signed.verdict.verifier for signed in manifest.verdicts}
        leader = self._peers[int(manifest.iteration) % len(self._peers)]
        for seat in self._peers:
            count, leaders = self._silent.get(seat, (0, set()))
            if seat in heard:
                self._silent[seat] = 0, set()
            elif manifest.commits or seat in asked:
                self._silent[seat] = count + 1, leaders | {leader}

    def _hand_over(self, manifest: Manifest) -> None:
        for signed in manifest.seat_notices:
            if signed.notice.kind is SeatNoticeKind.READY:
                self._ready[signed.notice.holder] = int(signed.notice.round)
            else:
                self._resigned.add(signed.notice.holder)
        for report in (signed.stake_report for signed in manifest.stake_reports):
            doubting = self._doubting[report.node]
            (doubting.discard if report.is_whole else doubting.add)(report.verifier)
        for one in manifest.hand_over:
            self._holders[one.seat] = one.holder
            for record in (self._silent, self._missed, self._away):
                record.pop(one.seat, None)
            self._sealed = {place: sealed for place, sealed in self._sealed.items() if place[1] != one.seat}
            self._held.add(one.holder)

    # ---- what verifiers did (6)

    def judge(self, step: Step, verdict: Verdict) -> PeerId:
        """Whoever held the seat of this verdict about a step when it was given."""
        return self._judges[step, verdict]

    def holder(self, seat: PeerId) -> PeerId:
        """Whoever holds a seat now."""
        return self._holders[seat]

    def work(self, epoch: int, after: RunState) -> dict[PeerId, int]:
        """The weight of what each holder of a seat did in an epoch; of those at fault, nothing."""
        size = self._spec.money.epoch_rounds
        done: Counter[PeerId] = Counter()
        for number in range(epoch * size, min((epoch + 1) * size, self.rounds)):
            done.update(self._shares.get(number, ()))
        for (round_id, node), audit in after.audits.items():
            if int(round_id) // size == epoch:
                for verdict in (*audit.withheld, *audit.verdicts):
                    done[self.judge((int(round_id), node), verdict)] += weight(audit, verdict)
        for (at, seat), score in self._scores.items():
            if at == epoch and score == self.score(epoch):
                done[self._measured[at, seat]] += self._evaluation_weight()
        faults = {one: after.verifiers[one].fault_round for one in done}
        return {one: did for one, did in done.items() if did and not 0 <= faults[one] < (epoch + 1) * size}

    # ---- the beacon (5.1)

    def _asked(self, now: int) -> tuple[PeerId, ...]:
        present = tuple(peer for peer in self._peers if self._away.get(peer, 0) <= now)
        return present if len(present) >= quorum(len(self._peers)) else self._peers

    def _share(self, manifest: Manifest, asked: tuple[PeerId, ...]) -> None:
        said, now = {one.verifier for one in manifest.beacon_shares}, int(manifest.round)
        self._shares[now - 1] = [self._holders[peer] for peer in asked if peer in said]
        for peer in asked:
            if peer in said:
                self._missed[peer] = 0
                continue
            self._missed[peer] = self._missed.get(peer, 0) + 1
            pause = min(PAUSE_ROUNDS * 2 ** (self._missed[peer] - 1), PAUSE_ROUNDS_MAX)
            self._away[peer] = now + 1 + pause

    def _seed(self, manifest: Manifest) -> Digest:
        before = (int(manifest.round) - 1).to_bytes(8, "big")
        alpha = b"assay/beacon/1" + self._spec.deployment_id + self._run_id + before + manifest.parent
        mixed = b"".join(
            one.verifier + proof_to_hash(one.proof)
            for one in sorted(manifest.beacon_shares, key=lambda one: one.verifier)
        )
        mix = hashlib.sha256(b"assay/vrf-mix/1" + mixed).digest()
        return Digest(hashlib.sha256(b"assay/audit/2" + alpha + mix + _random(manifest.drand)).digest())

    def _is_partial(self, manifest: Manifest, asked: tuple[PeerId, ...]) -> bool:
        lacks_share = not set(asked) <= {one.verifier for one in manifest.beacon_shares}
        return lacks_share or bool(self._named and not manifest.drand)

    # ---- draws (5.2)

    def _drawn(
        self, manifest: Manifest, asked: tuple[PeerId, ...], seed: Digest
    ) -> dict[Step, tuple[object, ...]]:
        """What each step is drawn by: seed, rate, order of verifiers."""
        now = int(manifest.round)
        if self._is_partial(manifest, asked):
            waiting = (*self._undrawn, *self._fresh)
            rules, f = self._spec.audit, (len(self._peers) - 1) // 3
            left = 2 + f * (rules.takeover_rounds + 1)  # manifests that liars may fail, and two
            due = tuple(c for c in self._undrawn if now >= int(c.round) + rules.audit_rounds - left)
            self._by_chosen |= {(int(c.round), c.node): f + 1 for c in due if f}
            self._undrawn = tuple(one for one in waiting if one not in due)
        else:
            lucky = (c for c in self._fresh if _number(seed, b"A", c.node, 0) % PPM < self._rate(c.node))
            due, self._undrawn = (*self._undrawn, *lucky), ()
        self._fresh = tuple(one.commit for one in manifest.commits)
        judges = tuple(seat for seat in self._peers if seat not in manifest.disqualified)
        n = len(self._peers)
        least = n - 2 * faults_tolerated(n) if self._spec.reserves else quorum(n)
        judges = judges if len(judges) >= least else self._peers
        return {(int(c.round), c.node): (seed, self._rate(c.node), _order(seed, c.node, judges)) for c in due}

    def _rate(self, node: PeerId) -> int:
        rules, clean = self._spec.audit, self._clean[node]
        if clean < rules.probation:
            return PPM
        return max(rules.floor_ppm, PPM * rules.probation // clean)

    def _replicated(
        self, manifest: Manifest, after: RunState, asked: tuple[PeerId, ...], seed: Digest
    ) -> Iterator[str]:
        """How many auditors each audit wants, decided by the beacon after the first commitment (5.4)."""
        now = int(manifest.round)
        is_partial = self._is_partial(manifest, asked)
        for (round_id, node), audit in after.audits.items():
            if self._first.get((int(round_id), node)) == now - 1:
                drawn = _number(seed, b"L", node, int(round_id)) % PPM < self._spec.audit.replication_ppm
                wanted = self._by_chosen.get((int(round_id), node), 1 + (is_partial or drawn))
                if audit.auditors_wanted != wanted:
                    yield f"round {round_id} of {node.hex()[:8]} wants {audit.auditors_wanted} auditors"
        for signed in manifest.commitments:
            if signed.commitment.pattern == NO_DIGEST:
                self._first.setdefault((int(signed.commitment.round), signed.commitment.node), now)

    # ---- what counts

    def _accepted(self, manifest: Manifest, after: RunState) -> Iterator[str]:
        now, spec = int(manifest.round), self._spec
        for signed_report in manifest.funding_reports:
            report = signed_report.funding_report
            self._reports[report.verifier] = report.epochs, report.closing is not Closing.NO
        said = sorted((self._reports.get(peer, (0, False))[0] for peer in self._peers), reverse=True)
        funded = said[quorum(len(self._peers)) - 1]
        is_closing = sum(closing for _, closing in self._reports.values()) > faults_tolerated(
            len(self._peers)
        )
        self.has_lapsed |= not now and 0 < spec.start_by_s < manifest.time_s
        self.rounds = 0 if self.has_lapsed else self.rounds
        if is_closing and now < self.rounds:
            self.rounds = now + bool(manifest.commits)  # 4a.4
        if after.training_rounds != self.rounds:
            yield f"it trains for {after.training_rounds} rounds, expected {self.rounds}"
        if manifest.commits and not now // spec.money.epoch_rounds < funded:
            yield "it takes commits of an epoch that is not funded"
        for signed in manifest.commits:
            commit, record = signed.commit, after.nodes[signed.commit.node]
            if (commit.node in self._brings) != (commit.node in self._own):
                yield f"it takes a commit of {commit.node.hex()[:8]}, which is not bound to its data"
            elif commit.batch_root != self._batch_root(commit):
                yield f"it takes a commit of {commit.node.hex()[:8]} over other windows than are drawn for it"
            if commit.seat != (0 if spec.data.replaces else self._seats[commit.node]):
                yield f"it takes a commit of seat {commit.seat}"
            if self.joined.get(commit.node, 0) > now or commit.node in self.left:
                yield f"it takes a commit of {commit.node.hex()[:8]}, which has no seat"
            if record.banned and record.fault_round < now - spec.closing_rounds:
                yield "it takes a commit of a node that is banned"
            if self._classes.setdefault(commit.node, commit.exec_class) != commit.exec_class:
                self._clean[commit.node], self._classes[commit.node] = 0, commit.exec_class  # another machine
            state = self._states.get(commit.node, (0, NO_DIGEST))
            if commit.base and (commit.base, commit.momentum_before) != state:
                yield f"a commit continues {commit.base}, not {state[0]}"
            self._states[commit.node] = now + 1, commit.momentum_after
            if (record.base, record.momentum) != self._states[commit.node]:
                yield "an accepted step is not what its node continues from"

    def _batch_root(self, commit: Commit) -> Digest:
        """The digest of the windows drawn for a step, of those that are not held out (2a, 3)."""
        data, tokens = self._spec.data, self._spec.model.context + 1
        own = self._own.get(commit.node)
        trained: Sequence[int] = [one for one, is_held in enumerate(self._held_out()) if not is_held]
        trained, root = (trained, data.root) if own is None else (range(own.windows), own.root)
        number = self._spec.predecessor.rounds + commit.round  # what was trained before is counted (3.1)
        parts = [(1, trained)] if own else self._parts(trained)
        if not data.replaces:
            return self._sealed_batch(
                root, self._in_turn(commit, number, parts, b"" if own is None else root)
            )
        head = b"assay/batch/1" + self._spec.seed.to_bytes(8, "big") + number.to_bytes(8, "big")
        drawn: dict[int, None] = {}
        for number in itertools.count():
            if len(drawn) * (tokens - 1) >= commit.tokens:
                break
            who = commit.node + (b"" if own is None else own.root)
            chance = hashlib.sha256(head + who + number.to_bytes(8, "big")).digest()
            slots = [windows for weight, windows in parts for _ in range(weight)]
            windows = slots[int.from_bytes(chance[16:], "big") % len(slots)]
            drawn[windows[int.from_bytes(chance[:16], "big") % len(windows)]] = None
        return self._sealed_batch(root, drawn)

    def _parts(self, trained: Sequence[int]) -> list[tuple[int, Sequence[int]]]:
        """Weights of sources and those of these windows that are wholly theirs (2a); all alike without."""
        if not self._spec.data.mixture:
            return [(1, trained)]
        found: list[tuple[int, Sequence[int]]] = []
        tokens, begin = self._spec.model.context + 1, 0
        for one in self._spec.data.mixture:
            end = begin + one.tokens
            inside = [at for at in trained if begin <= at * tokens and (at + 1) * tokens <= end]
            found, begin = [*found, (one.weight_milli, inside)], end
        return found

    def _in_turn(
        self, commit: Commit, number: int, parts: list[tuple[int, Sequence[int]]], own: bytes
    ) -> Iterator[int]:
        """The windows of a step that is drawn without replacement (3.1)."""
        rule, spec = self._spec.rule, self._spec
        steps = number if own else number * spec.seats + self._seats[commit.node]
        first = steps * (rule.local.sequences_max or rule.local.sequences) * rule.local.steps
        seed = spec.seed.to_bytes(8, "big") + own
        slots = [source for source, (weight, _) in enumerate(parts) for _ in range(weight)]
        for draw in range(first, first + commit.tokens // spec.model.context):
            block = draw // len(slots)
            key = b"assay/mixture/1" + seed + block.to_bytes(8, "big")
            *earlier, source = [slots[_shuffled(len(slots), at, key)] for at in range(draw % len(slots) + 1)]
            weight, windows = parts[source]
            before = block * weight + earlier.count(source)
            key = source.to_bytes(8, "big") + (before // len(windows)).to_bytes(8, "big")
            yield windows[_shuffled(len(windows), before % len(windows), b"assay/pass/1" + seed + key)]

    def _sealed_batch(self, root: Digest, windows: Iterable[int]) -> Digest:
        starts = b"".join((one * (self._spec.model.context + 1)).to_bytes(8, "big") for one in windows)
        return Digest(hashlib.sha256(b"assay/batch-root/1" + root + starts).digest())

    def _held_out(self) -> list[bool]:
        """Of each window, whether nobody trains on it (2a)."""
        data, tokens = self._spec.data, self._spec.model.context + 1
        count, held = data.tokens // tokens, data.validation_tokens // tokens
        parts = math.ceil(held / STRETCH_WINDOWS)
        found: list[bool] = []
        for part in range(parts):
            held_here = (part + 1) * held // parts - part * held // parts
            trained_here = (part + 1) * count // parts - len(found) - held_here
            found += [False] * trained_here + [True] * held_here
        return found

    def evaluated(self) -> list[int]:
        """The windows over which a model is measured, evenly spaced among those held out (6a.1)."""
        held = [one for one, is_held in enumerate(self._held_out()) if is_held]
        count = min(self._spec.money.accept.sequences, len(held))
        return [held[number * len(held) // count] for number in range(count)]

    def _joined(self, manifest: Manifest, after: RunState) -> Iterator[str]:
        """Who is seated by it, and whether a quorum let each in and there was a seat (3b.3)."""
        votes: dict[PeerId, list[Admission]] = {}
        for signed in manifest.admissions:
            votes.setdefault(signed.admission.member.peer, []).append(signed.admission)
        for node, found in votes.items():
            if node in self._clean or len({one.verifier for one in found}) != quorum(len(self._peers)):
                yield f"it seats {node.hex()[:8]} by {len(found)} admissions"
            self._clean[node], self._classes[node] = self._carried(found)
            self.joined[node] = int(manifest.round) + 1
        self.left |= {one.attendance.node for one in manifest.attendance if one.attendance.kind is LEAVE}
        held = {self._seats[node] for node in self._clean.keys() - votes if after.nodes[node].is_seated}
        for node, seat in zip(sorted(votes), (n for n in itertools.count() if n not in held), strict=False):
            self._seats[node] = seat
        seated = [node for node in self._clean.keys() - self.left if not after.nodes[node].banned]
        if len(seated) > self._spec.seats:
            yield f"{len(seated)} nodes have {self._spec.seats} seats"

    def _carried(self, votes: Sequence[Admission]) -> tuple[int, Digest]:
        """The most audits elsewhere that more than f verifiers vouch for in one class, and that class."""
        liars, rules = (len(self._peers) - 1) // 3, self._spec.audit
        vouched = [
            (one.clean, one.exec_class)
            for one in votes
            if sum(one.exec_class == other.exec_class and one.clean <= other.clean for other in votes) > liars
        ]
        clean, exec_class = max(vouched, default=(0, NO_DIGEST))
        return min(clean, math.ceil(Fraction(PPM * rules.probation, rules.floor_ppm))), exec_class

    def _returned(self, manifest: Manifest) -> Iterator[str]:
        """Who is back, and whether each return has kept the pause after the one before it (5.15)."""
        for one in (signed.attendance for signed in manifest.attendance):
            if one.kind is AttendanceKind.RETURN:
                times_s = self._returns_s.setdefault(one.node, [])
                if times_s and manifest.time_s < times_s[-1] + RETURN_PAUSE_S * 2 ** (len(times_s) - 1):
                    yield f"{one.node.hex()[:8]} returns at {manifest.time_s}, after {times_s}"
                times_s.append(manifest.time_s)

    def _bound(self, manifest: Manifest) -> Iterator[str]:
        """Who binds itself to data of its own: those that bring some, once, and to enough for a step (2a)."""
        for one in (signed.attendance for signed in manifest.attendance):
            if one.kind is not AttendanceKind.DATA:
                continue
            is_due = one.node in self._brings and one.node not in self._own
            least = self._spec.rule.local.steps * self._spec.rule.local.most_sequences
            if not is_due or not least <= one.own.windows <= 1 << 26:
                yield f"{one.node.hex()[:8]} binds itself to {one.own}"
            self._own[one.node] = one.own

    def _started(self, manifest: Manifest, after: RunState) -> Iterator[str]:
        """Whether the first manifest of a run that waited for nodes starts, lapses or closes it (3b.6)."""
        seated = len(self._clean.keys() - self.left)
        if manifest.commits:
            yield "somebody trains before the run starts"
        if self.has_lapsed and manifest.admissions:
            yield f"{len(manifest.admissions)} are admitted to a run that lapses"
        if not self.has_lapsed and self.rounds and seated < self._spec.least_nodes:
            yield f"the run starts with {seated} nodes of {self._spec.least_nodes}"
        if after.has_lapsed != self.has_lapsed:
            yield f"it {'lapses' if after.has_lapsed else 'starts'} at {manifest.time_s}"

    # ---- milestones (6a)

    def last_commitments(self, epoch: int) -> int:
        """The last manifest that may carry commitments to evaluations of an epoch."""
        return self._settled(epoch) - 2 * ((len(self._peers) - 1) // 3 + 1)

    def _settled(self, epoch: int) -> int:
        return self._end(epoch) - 1 + self._spec.audit.audit_rounds + self._spec.audit.dispute_rounds

    def _evaluated(self, manifest: Manifest, now: int) -> Iterator[str]:
        """What verifiers commit to and open, each once, in its time, the one before the other."""
        asked = {one.epoch for one in self.milestones}
        for commitment in (signed.commitment for signed in manifest.evaluation_commitments):
            place = commitment.epoch, commitment.verifier
            is_due = place[0] in asked and self._end(place[0]) <= now <= self.last_commitments(place[0])
            if place in self._sealed or not is_due:
                yield f"it carries a commitment to an evaluation of epoch {place[0]} twice, early or late"
            self._sealed[place] = commitment.evaluation
        for found in (signed.evaluation for signed in manifest.evaluations):
            place = found.epoch, found.verifier
            is_due = place[0] in asked and self.last_commitments(place[0]) < now <= self._settled(place[0])
            if place in self._scores or not is_due:
                yield f"it carries an evaluation of epoch {place[0]} twice, early or late"
            if self._sealed.get(place) != hashlib.sha256(encode(found)).digest():
                yield f"it carries an evaluation of epoch {place[0]} to which its verifier did not commit"
            self._scores[place] = found.score
            self._measured[place] = self._holders[found.verifier]

    def _evaluation_weight(self) -> int:
        """Of a verdict's 10 as much as its passes are of those of a recomputed gradient or segment."""
        local, accept = self._spec.rule.local, self._spec.money.accept
        steps = local.segment if local.segment else local.steps
        measured = Fraction(accept.sequences + self._spec.choices.items, 3 * steps * local.sequences)
        return math.ceil(10 * measured)

    def score(self, epoch: int) -> Score | None:
        """What more than f verifiers found of the model after an epoch; None if they found nothing."""
        said = Counter(one for (at, _), one in self._scores.items() if at == epoch)
        return next((one for one, count in said.items() if count > (len(self._peers) - 1) // 3), None)

    def has_missed(self, epoch: int) -> bool:
        """Whether the model missed the epoch's milestone."""
        found = self.score(epoch)
        bounds = [one.most_loss_micro for one in self.milestones if one.epoch == epoch]
        return found is not None and any(found.loss_micro > bound for bound in bounds)

    @property
    def milestones(self) -> list[Milestone]:
        """Those of epochs that have all their rounds."""
        every = self._spec.money.accept.milestones
        return [one for one in every if self._end(one.epoch) <= self.rounds]

    def _end(self, epoch: int) -> int:
        return min((epoch + 1) * self._spec.money.epoch_rounds, self._spec.rounds)

    # ---- audits (5.4 to 5.8)

    def _taken_over(self, after: RunState, then: int) -> Iterator[str]:
        """Who may commit to a verdict in the next manifest; a seat that it hands over may not (4b)."""
        leaving = [seat for seat in self._leaving(then)[0] if not self._is_bound(seat, then)][:1]
        for step, audit in self._audits.items():
            if audit.ruling is AuditStatus.OPEN:
                may = {one for one in self._peers if may_commit_verdict(after, audit, one)}
                due = {*may_judge(self._spec.audit, audit, then)} - {*leaving}
                if may != due:
                    yield f"{step} may be judged by {len(may)}, not by {len(due)}"

    def _judged(self, step: Step, audit: Audit, now: int) -> Iterator[str]:
        rules, node = self._spec.audit, step[1]
        before, self._rulings[step] = self._rulings.get(step, AuditStatus.OPEN), audit.ruling
        if audit.ruling is not before:
            is_clean = audit.ruling in (AuditStatus.PASSED, AuditStatus.DISMISSED)
            is_clean = is_clean and not audit.is_known_answer  # who shows a task says that the step is false
            self._clean[node] = {
                AuditStatus.CONFIRMED: 0,
                AuditStatus.OVERDUE: 0,
            }.get(audit.ruling, self._clean[node] + is_clean)
            if audit.ruling is AuditStatus.EXPIRED and (audit.verdicts or audit.dispute_opened_round >= 0):
                self._clean[node] = 0
                unsure = {one.verifier for one in audit.verdicts if one.outcome is Outcome.BORDERLINE}
                self._borderline[node] += 4 if len(unsure) > (len(self._peers) - 1) // 3 else 0
                if self._borderline[node] >= 16:
                    self.left.add(node)
            self._borderline[node] = max(self._borderline[node] - is_clean, 0)
            if is_clean and self._clean[node] >= rules.probation:
                self._returns_s[node] = []
        is_over = now >= step[0] + rules.audit_rounds
        if audit.ruling is AuditStatus.OPEN and is_over:
            yield f"the audit of {step} is still open"
        if audit.ruling is AuditStatus.OPEN and any(one.outcome in ACCUSING for one in audit.verdicts):
            yield f"{step} is accused, and nobody disputes it"
        is_judged = _is_found_true(audit)
        if audit.ruling is AuditStatus.OPEN and is_judged:
            yield f"{step} is found true by all that are wanted, and still open"
        if audit.ruling is AuditStatus.PASSED is not before and not is_over and not is_judged:
            yield f"{step} is passed before all that are wanted found it true"
        shut = {one.verifier for one in audit.commitments} - {one.verifier for one in audit.verdicts}
        is_early = audit.closed_round < audit.dispute_opened_round + rules.dispute_rounds
        if audit.ruling is AuditStatus.DISMISSED and shut and is_early:
            yield f"{step} is cleared while verdicts about it are shut"
        if audit.ruling is AuditStatus.OVERDUE and self._time_s >= audit.due_s:
            yield f"the opening of {step} is overdue, and its time is over"
        if audit.ruling is AuditStatus.DISPUTED and now >= audit.dispute_opened_round + rules.dispute_rounds:
            yield f"the dispute of {step} is still open"
        if audit.ruling is AuditStatus.CONFIRMED and len(audit.adverse) < quorum(len(audit.committee)):
            yield f"{step} is CONFIRMED by {len(audit.adverse)}"


def _shuffled(count: int, index: int, key: bytes) -> int:
    """Where a number goes among those below a count (3.1): six rounds on a grid that is nearly square."""
    rows = math.isqrt(count)
    rows += rows * rows < count
    columns = (count + rows - 1) // rows
    row, column = index // columns, index % columns

    def told(turn: int, half: int) -> int:
        chance = hashlib.sha256(key + turn.to_bytes(1, "big") + half.to_bytes(8, "big")).digest()
        return int.from_bytes(chance[:16], "big")

    for turn in (0, 2, 4):
        row = (row + told(turn, column)) % rows
        column = (column + told(turn + 1, row)) % columns
    index = row * columns + column
    return index if index < count else _shuffled(count, index, key)


def _doubted(audit: Audit, seat: PeerId) -> bool:
    """Whether an overdue audit may yet refute a verdict of this seat: an accusation, or a MATCH of a lie."""
    accusers = [one.verifier for one in audit.verdicts if one.outcome is Outcome.MISMATCH]
    passed = [one.verifier for one in audit.verdicts if one.outcome is Outcome.MATCH]
    return seat in (passed if len(accusers) > faults_tolerated(audit.verifiers) else accusers)


def _is_found_true(audit: Audit) -> bool:
    """Whether as many as are wanted say MATCH, all that committed have spoken, and so has the node (5.6)."""
    said = {one.verifier for one in audit.verdicts} | {*audit.silent}
    matches = sum(one.outcome is Outcome.MATCH for one in audit.verdicts)
    is_enough = matches >= max(audit.auditors_wanted, 1) and {c.verifier for c in audit.commitments} <= said
    return is_enough and audit.sketch is not None


def _random(drand: bytes) -> bytes:
    return hashlib.sha256(drand).digest() if drand else NO_DRAND


def _number(seed: Digest, what: bytes, node: PeerId, draw: int) -> int:
    return int(hashlib.sha256(seed + what + node + draw.to_bytes(4, "big")).hexdigest(), 16)


def _order(seed: Digest, node: PeerId, judges: tuple[PeerId, ...]) -> tuple[PeerId, ...]:
    left, order = sorted(judges), []
    while left:
        order.append(left.pop(_number(seed, b"V", node, len(order)) % len(left)))
    return tuple(order)


def expected_rounds(spec: RunSpec, trained: int, audits: Mapping[Step, Audit]) -> tuple[int, int]:
    """The fewest and most manifests of a run that trained for so many rounds."""
    least = trained + spec.audit.audit_rounds + spec.audit.dispute_rounds
    was_late = any(audit.due_s >= 0 for audit in audits.values())
    return least, (1 << 30 if was_late else least)
