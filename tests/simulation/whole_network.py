"""Whole network: verifiers and nodes as production processes in one thread, from one seed, to a run's end.

Each process is `verifier.service.process.Service` or `node.service.Service` with a real store, real blobs and
real keys; in place of sockets, child processes, clocks and contracts are `streams`, `workers`, `one_thread`
and `contracts`. In some a ledger service takes part. While the storm lasts, processes are killed at any wait
or write and start again from their disks, hosts are cut off and links break; one node lies, or one verifier.
`promises` is asked at every step.

    storm (kills, cuts, breaks) --storm_s--> calm (liars only) --> every honest process has the last manifest
"""

from __future__ import annotations

import contextlib
import logging
import random
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import trio

from assay.chain.commit_statement import evm_address
from assay.chain.state import HotKey
from assay.chain.statements import OPERATOR, VERIFIER, certificate, sign_digest
from assay.devnet.faults import trainer as faulty_trainer
from assay.devnet.faults.behaviours import Behaviour
from assay.devnet.faults.node import FaultyNode
from assay.ledger.settlement.funding import closing_s
from assay.network.blob_store import DiskBlobs
from assay.network.host import PeerAddress
from assay.node import service as node_service
from assay.node.seat import LEAVE
from assay.node.service import Service as Node
from assay.observer.ledger_service import service as ledger_service
from assay.observer.ledger_service.service import LedgerService
from assay.participant.config import Config, Participant
from assay.participant.files.record import OWN_RECORD, Role, SignedRecord, sign_record, write_record
from assay.participant.files.track_record import TrackRecord, write_track_record
from assay.participant.following import pruning
from assay.participant.keys.keyring import Keys
from assay.participant.store import Store
from assay.participant.worker import STARTER
from assay.protocol.agreement.quorum import faults_tolerated
from assay.protocol.errors import AssayError
from assay.protocol.known_answers import drawn_tasks, task_secret
from assay.protocol.messages import LOSS_MICRO_MAX, Proposal
from assay.protocol.params import (
    ACCEPT_PPM_MAX,
    NO_ACCEPT,
    AcceptSpec,
    Member,
    Milestone,
    MoneySpec,
    RunSpec,
    SourceShare,
    Stratum,
    TimingSpec,
    check_spec,
)
from assay.protocol.randomness.drand import NO_DRAND
from assay.protocol.run_state import RunState
from assay.protocol.types import NO_DIGEST, NO_PEER, Digest, PeerId
from assay.testing.members import (
    RUN_ID,
    a_deployment,
    a_digest,
    a_hot_key,
    a_member,
    a_peer_key,
    an_account_key,
    name_of,
    peers,
)
from assay.testing.members import peer as peer_named
from assay.testing.specs import TEXT, a_data_folder, a_money_spec, a_spec, an_audit_spec
from assay.training.data.shards import write_tokens
from assay.verifier.consensus.types import State
from assay.verifier.service import chain_duties, funding_watch, stake_watch, standby
from assay.verifier.service import process as verifier_process
from assay.verifier.service.process import Service as Verifier
from assay.verifier.service.standby import RESIGN
from assay.verifier.service.witness import EVIDENCE as ROLLED_BACK
from tests.simulation import buyer, drand, false_auditors, false_trainers, workers
from tests.simulation.chain_log import BLOCKS_BACK
from tests.simulation.conduct import HEAD_BYTES
from tests.simulation.contracts import FOREVER_S, Contracts
from tests.simulation.disk import HERE, Killed, Power, killing_writes
from tests.simulation.lying_frames import HOARDER, LIES, NODES_LIES, TURNCOAT, Copier, hoard, turncoat
from tests.simulation.money import complaint, paid_twice
from tests.simulation.one_thread import BEGUN_S, now_s, one_thread, run
from tests.simulation.promises import HEARD_S, Promises, Violation
from tests.simulation.streams import Frame, Network, SimulatedHost, open_simulated_host
from tests.simulation.workers import CLASS

if sys.version_info < (3, 11):
    from exceptiongroup import BaseExceptionGroup

World = TypeVar("World", bound="WholeNetwork")
CALM_S_MAX = 600.0  # of virtual time, in which a run ends once the storm is over
FALSE_STEPS = ("random-update", "wrong-data", "no-feedback", *false_trainers.KINDS)
CHEATS = (*FALSE_STEPS, "withhold-opening", "two-commits")
INVENTOR = "inventor"  # of those who else pass all
LYING_VERIFIERS = ("silent", *LIES, *(kind for kind in false_auditors.KINDS if kind != INVENTOR))
COPIER = "copier"  # where there are milestones
# Warnings of every start, and of a proposal that comes when all others have agreed.
EXPECTED = (
    "checks not made",
    "directory not read",
    "waiting: ",
    ": expected round ",
    "not discharged yet",
    "no seat",
    "no track record of this run",
    "no model is on record {'rounds': 'none of",
)
LOG_LINES = 60
SCARCE = -1.0  # of a store's room, from which on it is pruned: always
KNOWN_ANSWER_ROUNDS = 6  # in which each node has one task
LEDGER, BUYER, STATUS = peer_named("ledger"), peer_named("buyer"), "status.jsonl"
REORGANISED_S = 60.0
START_S = 60.0  # in which a newcomer has a seat, so that a run that needs it starts
JOIN_ROUNDS = 5  # more of training, in which newcomers catch up and train
ROTATION_ROUNDS = 8  # more of training, so that the audits of a seat that retires end in it
NODES = 4  # but newcomers
WRONG_S = 4.0  # at most, of a clock: two differ by less than the 10 s that verifiers bear with
DRIFT_PPM, STEP_S = 200.0, 2.0  # of a clock, at most; between two times at which one is set, on average
WORK_S = (0.01, 0.05, 0.1)  # of a worker for a request: all audits of a dispute fit into `collect_ms`


@dataclass(eq=False)
class Process(Power):
    """A member and its process: what it has on disk, and whether it runs."""

    name: str = ""
    is_verifier: bool = False
    behaviour: str = "honest"
    folder: Path = Path()
    service: Node | Verifier | LedgerService | buyer.BuyersProcess | None = None
    host: SimulatedHost | None = None
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    kills: int = 0
    has_ended: bool = False

    @property
    def is_honest(self) -> bool:
        """Whether it follows the rules."""
        return self.behaviour == "honest"

    @property
    def run_state(self) -> RunState | None:
        """What it has folded, while it runs."""
        return None if self.service is None or self.is_dead else self.service.follower.run_state

    def die(self) -> None:
        """Nothing that it does from now on counts."""
        self.is_dead = True
        if self.host is not None:
            self.host.is_dead = True
        self.scope.cancel()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a seed brings about."""

    rounds: int
    lying_node: str  # a behaviour, or "honest"
    lying_verifier: str
    storm_s: float
    kills: int
    cuts: int
    breaks: int
    late_s: float  # until the escrow is funded
    topped_s: float = 0.0  # until it is funded to the end
    cancelled_s: float = 0.0  # until its buyer closes it; 0: never
    damages: int = 0  # flipped bits in stored blobs
    resigns_s: float = (
        0.0  # when an honest verifier is asked to give up its seat to a reserve; 0: there is none
    )
    is_revoked: bool = False  # whether nobody asks it: its account ends its delegation
    leaves_s: float = 0.0  # when an honest node is asked to leave; 0: never
    slow: int  # a process whose links are slow
    is_apart: bool = False  # whether of a slow verifier only those with verifiers are
    joins_s: float = 0.0  # when two nodes begin to ask for the one free seat; 0: there is none
    start_s: float = 0.0  # by when one of them must have the seat, or the run lapses; 0: it starts without
    has_drand: bool = False  # whether draws wait for a drand network's rounds
    dark_s: tuple[float, float] = (0.0, 0.0)  # from when until when its servers are down
    most_loss_micro: int = 0  # of the model after each epoch; 0: there are no milestones
    has_sizes: bool = False  # whether nodes choose how many sequences a step takes
    loses: bool = False  # whether the first leader's store is lost as it proposes
    tears: bool = False  # whether only the end of its log is, from any byte on
    clocks: int = 0  # how often a process's clock is set wrong in the storm, or at the start
    drifts: bool = False  # whether clocks run at rates of their own, and are set right and wrong all along
    has_known_answers: bool = False  # whether each node has a step that is false on order
    own: int = 0  # nodes that train on data of their own
    has_passes: bool = False  # whether windows are drawn without replacement
    has_weights: bool = False  # whether the data are two sources with weights
    has_ledger: bool = False  # whether a ledger service settles, and keeps books
    reorgs: int = 0  # of the chain, by up to `BLOCKS_BACK` blocks, while it does
    has_buyer: bool = False  # whether the buyer's process follows it, and its buyer cancels by a command
    has_large_updates: bool = False  # whether two verifiers get each update, and the others ask these for it


def planned(seed: int, *, faults: bool = True) -> Plan:
    """The plan of a seed; without faults everybody is honest and nothing breaks."""
    rng = random.Random(f"plan {seed}")
    if not faults:
        return Plan(
            rounds=3, lying_node="honest", lying_verifier="honest", storm_s=0, kills=0, cuts=0, breaks=0,
            late_s=0, slow=-1,
        )  # fmt: skip
    storm_s = rng.choice((0.0, 0.0, 10.0, 30.0, 60.0))  # without one all audits can be judged
    late_s = rng.choice((0.0, 0.0, 15.0))
    rounds = rng.randint(2, 5)
    resigns_s = late_s + rng.uniform(1, 6) if rng.random() < 0.15 else 0.0
    has_known_answers = random.Random(f"known answers {seed}").random() < 0.25
    rounds = max(rounds, KNOWN_ANSWER_ROUNDS) if has_known_answers else rounds
    joining = random.Random(f"joins {seed}")
    joins_s = joining.uniform(0.1, late_s + 4) if joining.random() < 0.15 else 0.0
    rounds = rounds + JOIN_ROUNDS if joins_s else rounds
    starting = random.Random(f"begins {seed}")
    start_s = joins_s and starting.random() < 0.4 and joins_s + starting.choice((START_S, 1.0))
    asking = random.Random(f"milestones {seed}")
    outside = random.Random(f"drand {seed}")
    has_drand, dark_s = outside.random() < 0.1, sorted(outside.uniform(0, storm_s) for _ in range(2))
    most_loss_micro = asking.choice((1, LOSS_MICRO_MAX - 1)) if asking.random() < 0.25 else 0
    lying_node = rng.choice(("honest", "honest", *CHEATS))
    lying_verifier = rng.choice((*["honest"] * 4, *LYING_VERIFIERS))
    lying_verifier = _liar(lying_verifier, most_loss_micro, asking)
    if lying_node == "withhold-opening" and random.Random(f"half {seed}").random() < 0.5:
        lying_node = "half-open"
    if lying_verifier == "pass-all" and random.Random(f"invents {seed}").random() < 0.5:
        lying_verifier = INVENTOR
    if lying_verifier == "dull" and random.Random(f"hoards {seed}").random() < 0.5:
        lying_verifier = HOARDER
    if lying_verifier == "mute" and random.Random(f"turncoat {seed}").random() < 0.5:
        lying_verifier = TURNCOAT
    bringing, keeping = random.Random(f"own data {seed}"), random.Random(f"bookkeeping {seed}")
    has_ledger = keeping.random() < 0.2 and not has_drand
    reorgs = keeping.choice((0, 1, 4)) * has_ledger
    return Plan(
        own=bringing.randint(1, 4) if bringing.random() < 0.12 else 0,
        has_ledger=has_ledger,
        reorgs=reorgs,
        has_buyer=has_ledger and keeping.random() < 0.7,
        has_passes=random.Random(f"passes {seed}").random() < 0.2,
        has_weights=random.Random(f"weights {seed}").random() < 0.2,
        has_large_updates=lying_verifier == HOARDER or random.Random(f"large {seed}").random() < 0.3,
        has_drand=has_drand,
        dark_s=(dark_s[0], dark_s[1]) if has_drand else (0.0, 0.0),
        most_loss_micro=most_loss_micro,
        has_known_answers=has_known_answers,
        has_sizes=random.Random(f"sizes {seed}").random() < 0.15,
        loses=storm_s > 0 and random.Random(f"loses {seed}").random() < 0.15,
        tears=random.Random(f"tears {seed}").random() < 0.5,
        clocks=8 if random.Random(f"clocks {seed}").random() < 0.2 else 0,
        drifts=random.Random(f"drift {seed}").random() < 0.2 and not has_drand,
        joins_s=joins_s,
        start_s=start_s,
        rounds=rounds + ROTATION_ROUNDS if resigns_s else rounds,
        lying_node=lying_node,
        lying_verifier=lying_verifier,
        storm_s=storm_s,
        kills=rng.randint(0, 6) if storm_s else 0,
        cuts=rng.randint(0, 2) if storm_s else 0,
        breaks=rng.randint(0, 20) if storm_s else 0,
        late_s=late_s,
        slow=rng.randrange(16),
        is_apart=random.Random(f"apart {seed}").random() < 0.5,
        topped_s=rng.choice((0.0, 0.0, 25.0)),
        cancelled_s=late_s + rng.uniform(2, 6) if rng.random() < 0.2 and not resigns_s else 0.0,
        resigns_s=resigns_s,
        is_revoked=random.Random(f"revokes {seed}").random() < 0.4,
        leaves_s=late_s + rng.uniform(1, 6) if rng.random() < 0.15 else 0.0,
        damages=rng.randint(0, 8) if storm_s else 0,
    )


def _liar(behaviour: str, most_loss_micro: int, asking: random.Random) -> str:
    """Half of those that would be honest copy evaluations where there are some."""
    copies = behaviour == "honest" and most_loss_micro > 0 and asking.random() < 0.5
    return COPIER if copies else behaviour


def the_spec(plan: Plan, rng: random.Random) -> RunSpec:
    """A run of a few rounds by four verifiers and four nodes, in which most steps are audited."""
    nodes = peers("node", NODES)
    spec = a_spec(
        rounds=plan.rounds,
        audit=an_audit_spec(
            probation=rng.choice((1, 2, 100)), floor_ppm=500_000, blocks=2, audit_rounds=7, dispute_rounds=4,
            replication_ppm=rng.choice((0, 300_000)), absence_s=120,
            drand=drand.SPEC if plan.has_drand else NO_DRAND,
        ),
        money=_money(plan),
        timing=TimingSpec(
            collect_ms=3000, ready_ms=1000, iteration_ms=12_000 if plan.has_drand else 4000, resend_ms=500
        ),
        nodes=tuple(map(a_member, nodes)), verifiers=tuple(map(a_member, peers("verifier", 4))),
        seats=len(nodes) + bool(plan.joins_s), least_nodes=len(nodes) + bool(plan.start_s),
        start_by_s=int(BEGUN_S + plan.start_s) if plan.start_s else 0,
        reserves=tuple(map(a_member, peers("reserve", 1 if plan.resigns_s else 0))),
    )  # fmt: skip
    if plan.has_sizes:
        local = replace(spec.rule.local, sequences_max=6)
        compute = replace(spec.compute, micro_sequences=2)
        spec = replace(spec, rule=replace(spec.rule, local=local), compute=compute)
        check_spec(spec)
    if plan.own:
        strata = (Stratum(tokens=0, seats=1),) * plan.own
        rest = Stratum(tokens=spec.data.tokens, seats=spec.seats - plan.own)
        spec = replace(spec, data=replace(spec.data, strata=(*strata, rest)))
        check_spec(spec)
    spec = replace(spec, data=replace(spec.data, replaces=not plan.has_passes))
    if plan.has_weights:
        tokens = spec.data.tokens
        shares = (
            SourceShare(tokens=tokens // 3, weight_milli=700),
            SourceShare(tokens=tokens - tokens // 3, weight_milli=300),
        )
        spec = replace(spec, data=replace(spec.data, mixture=shares))
    if plan.has_buyer:
        spec = replace(spec, buyer=a_member(BUYER).account)
    check_spec(spec)
    # One task of a node needs twenty rounds in an order: that would take too long here.
    return replace(spec, audit=replace(spec.audit, known_answer_count=int(plan.has_known_answers)))


def _money(plan: Plan) -> MoneySpec:
    """Its fee is the ledger service's where there is one."""
    money = a_money_spec(epoch_rounds=2, withheld_ppm=400_000, accept=_milestones(plan))
    return replace(money, treasury=a_member(LEDGER).account) if plan.has_ledger else money


def _milestones(plan: Plan) -> AcceptSpec:
    epochs = range(-(-plan.rounds // 2)) if plan.most_loss_micro else ()
    asked = tuple(Milestone(epoch=epoch, most_loss_micro=plan.most_loss_micro) for epoch in epochs)
    if not asked:
        return NO_ACCEPT
    share_ppm = 300_000 if plan.most_loss_micro == 1 else ACCEPT_PPM_MAX
    return AcceptSpec(share_ppm=share_ppm, sequences=4, milestones=asked)


@dataclass(eq=False)
class WholeNetwork:
    """One run. `run` returns once every honest process has its last manifest."""

    seed: int
    plan: Plan
    folder: Path
    rng: random.Random = field(init=False)
    clocks: random.Random = field(init=False)
    network: Network = field(init=False)
    promises: Promises = field(init=False)
    processes: dict[PeerId, Process] = field(default_factory=dict)
    newcomers: dict[PeerId, Process] = field(default_factory=dict)
    troubled: set[PeerId] = field(default_factory=set)  # who was killed, or cut off from others
    forgetful: Process | None = None  # whose store was lost, or the end of it
    crashed: dict[Path, bytes] = field(default_factory=dict)  # what of that store was on disk when it died
    warnings: list[str] = field(default_factory=list)
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=LOG_LINES))

    def __post_init__(self) -> None:
        self.rng = random.Random(f"world {self.seed}")
        self.clocks = random.Random(f"clocks of {self.seed}")
        self.spec = self.the_spec()
        a_data_folder(self.folder / "data")
        write_tokens(self.folder / "own", [TEXT[::-1]])
        for kind, plan in (("verifier", self.plan.lying_verifier), ("node", self.plan.lying_node)):
            members = (
                self.spec.verifier_peers if kind == "verifier" else [one.peer for one in self.spec.nodes]
            )
            liar = self.rng.choice(list(members))
            for place, peer in enumerate(members):
                name = f"{kind} {place}"
                self.processes[peer] = Process(
                    rng=random.Random(f"{name} {self.seed}"), name=name, peer=peer,
                    is_verifier=kind == "verifier", behaviour=plan if peer == liar else "honest",
                    folder=self.folder / name, work_s=self.rng.choice(WORK_S),
                )  # fmt: skip
        for place, peer in enumerate(self.spec.reserve_peers):
            name = f"reserve {place}"
            self.processes[peer] = Process(
                rng=random.Random(f"{name} {self.seed}"), name=name, peer=peer, is_verifier=True,
                folder=self.folder / name, work_s=self.rng.choice(WORK_S),
            )  # fmt: skip
        for place, peer in enumerate(peers("newcomer", 2 if self.plan.joins_s else 0)):
            name = f"newcomer {place}"
            self.newcomers[peer] = self.processes[peer] = Process(
                rng=random.Random(f"{name} {self.seed}"), name=name, peer=peer,
                folder=self.folder / name, work_s=self.rng.choice(WORK_S),
            )  # fmt: skip
        if self.plan.has_ledger:
            self.processes[LEDGER] = Process(
                rng=random.Random(f"ledger {self.seed}"), name="ledger", peer=LEDGER,
                folder=self.folder / "ledger",
            )  # fmt: skip
        if self.plan.has_buyer:
            self.processes[BUYER] = Process(
                rng=random.Random(f"buyer {self.seed}"), name="buyer", peer=BUYER,
                folder=self.folder / "buyer",
            )  # fmt: skip
            buyer.bring(self.folder / "data", self.folder / "buyer")
        tasks = {
            one.peer: drawn_tasks(
                task_secret(bytes(_keys(one.peer).peer), RUN_ID), self.spec, RUN_ID, one.peer
            ).shown
            for one in self.processes.values() if not one.is_verifier
        }  # fmt: skip
        self.contracts = Contracts(
            self.spec, funded_s=BEGUN_S + self.plan.late_s, topped_s=BEGUN_S + self.plan.topped_s,
            is_booked=self.plan.has_ledger,
        )  # fmt: skip
        if self.plan.cancelled_s and not self.plan.has_buyer:
            self.contracts.cancelled_s = BEGUN_S + self.plan.cancelled_s
        for member in (*map(a_member, self.newcomers), *self.spec.judges):
            self._delegate(member, FOREVER_S + 1)
        if self.plan.has_ledger:
            self._lock_stakes()
        rates = random.Random(f"rates of clocks of {self.seed}")
        for one in self.processes.values() if self.plan.drifts else ():
            one.drift_ppm = rates.uniform(-DRIFT_PPM, DRIFT_PPM)
        self.copier = Copier()
        self.network = Network(self.rng, self._sent, self._arrived)
        self.network.delay_of = self._delay_s
        self.promises = Promises(
            self.spec,
            honest={one.peer for one in self.processes.values() if one.is_honest},
            false_from={
                one.peer: 1 for one in self.processes.values()
                if one.behaviour in FALSE_STEPS
            },
            tasks=tasks,
            funded_epochs=lambda: self.contracts.funded_epochs,
            troubled=self.troubled,
            holds=self._holds,
        )  # fmt: skip
        self.contracts.tables = self.promises.settled

    def the_spec(self) -> RunSpec:
        """What its members run."""
        return the_spec(self.plan, self.rng)

    def _delay_s(self, one: PeerId, other: PeerId) -> float:
        """Of the frames between two hosts."""
        pair, every = [self.processes[one], self.processes[other]], [*self.processes.values()]
        slow = every[self.plan.slow] if 0 <= self.plan.slow < len(every) else None
        is_among = not self.plan.is_apart or slow is None or not slow.is_verifier
        is_slow = slow in pair and (is_among or all(process.is_verifier for process in pair))
        return 0.15 if is_slow else self.rng.uniform(0.005, 0.06)

    # ---- what production code calls

    def _sent(self, frame: Frame) -> tuple[Frame, ...]:
        """What travels of a frame: a liar says what it likes."""
        one = self.processes[frame.source]
        if one.is_honest:
            self.promises.sent(frame, self._state_of(one))
            if self.plan.loses and self.forgetful is None and Proposal.TAG in frame.body[:HEAD_BYTES]:
                self.forgetful = one
                one.die()
        if one.behaviour == COPIER:
            return self.copier.lie(frame)
        lie = {**LIES, **NODES_LIES, HOARDER: hoard, TURNCOAT: turncoat}.get(one.behaviour)
        return (frame,) if lie is None else lie(frame, list(self.processes).index(frame.target) % 2 == 1)

    def _arrived(self, frame: Frame) -> None:
        one = self.processes[frame.target]
        if one.behaviour == COPIER:
            self.copier.hear(frame)
        state = self._state_of(one) if one.is_honest else None
        if state is not None:
            self.promises.heard(frame, state, life=one.kills)

    def _holds(self, peer: PeerId, blob: Digest) -> bool:
        """Whether an honest verifier has a blob."""
        service = self.processes[peer].service if self.processes[peer].is_honest else None
        return isinstance(service, Verifier) and service.me.blobs.size(blob) is not None

    def _state_of(self, one: Process) -> State | None:
        """What a verifier knows of agreement, while its process runs; it is seen to be there."""
        if not isinstance(one.service, Verifier) or one.is_dead or not hasattr(one.service, "driver"):
            return None
        state = one.service.driver._state
        self.promises.conduct.seen(one.peer, one.kills, state)
        return state

    @contextlib.asynccontextmanager
    async def _open_host(self, **given: Any) -> Any:
        here = HERE.get()
        assert isinstance(here, Process)
        async with open_simulated_host(self.network, **given) as host:
            here.host = host
            yield host

    # ---- processes

    def _participant(self, one: Process) -> Participant:
        is_buyer = one.peer == BUYER
        config = Config(
            keys=one.folder / buyer.KEYS if is_buyer else one.folder, password="",
            network=one.folder / "none", run=one.folder / "none", records=one.folder, folder=one.folder,
            port=1, rpc_url="simulated", data=(one if is_buyer else self).folder / "data",
            drand=(drand.URL,) if self.plan.has_drand else (), own_data=self.folder / "own",
        )  # fmt: skip
        return Participant(
            config=config,
            keys=_keys(one.peer),
            spec=self.spec, run_id=RUN_ID, deployment=a_deployment(),
            addresses={
                peer: PeerAddress(peer=peer, host="127.0.0.1", port=1)
                for peer in self.processes.keys() - self.newcomers.keys() | {one.peer}
            },
            store=Store(one.folder / "store.db"),
            ledger_service=LEDGER if self.plan.has_ledger else None,
            blobs=DiskBlobs(one.folder / "blobs", bytes_max=sys.maxsize if is_buyer else 1 << 26),
        )  # fmt: skip

    def _track_record(self, one: Process, record: SignedRecord) -> TrackRecord:
        """What a newcomer did in another run: enough for the floor, or less, or on another machine."""
        clean, exec_class = random.Random(f"track record {self.seed} {one.name}").choice(
            ((0, CLASS), (2, CLASS), (1000, CLASS), (1000, NO_DIGEST))
        )
        found = TrackRecord(
            run_id=a_digest("another run"), account=record.record.account, exec_class=exec_class,
            clean=clean, heard_s=int(now_s()), certificate=b"",
        )  # fmt: skip
        message = a_deployment().digest(found.statement(self.spec.deployment_id))
        signed = [sign_digest(message, _keys(member.peer).hot) for member in self.spec.judges]
        return replace(found, certificate=certificate(message, signed))

    def _service(
        self, one: Process, me: Participant
    ) -> Node | Verifier | LedgerService | buyer.BuyersProcess:
        if one.peer == BUYER:
            return buyer.BuyersProcess(me)
        if one.peer == LEDGER:
            return LedgerService(me, one.folder / STATUS)
        if one.is_verifier:
            return Verifier(me, false_auditors.runner_of(one.behaviour, self._conspiracy()))
        if one.is_honest or one.behaviour in NODES_LIES:
            return Node(me)
        return FaultyNode(me, Behaviour(one.behaviour, 1))

    def _conspiracy(self) -> false_auditors.Conspiracy:
        liars = (one for one in self.processes.values() if not one.is_verifier and not one.is_honest)
        liar = next(liars, None)
        return false_auditors.Conspiracy(*((NO_PEER, Path()) if liar is None else (liar.peer, liar.folder)))

    async def _live(self, one: Process) -> None:
        """The process of a member, and the next one when it is killed."""
        HERE.set(one)
        STARTER.set(workers.start)
        one.folder.mkdir(mode=0o701, exist_ok=True)
        await trio.sleep(self.rng.uniform(0, 1))
        if one.peer in self.newcomers:
            await trio.sleep(self.plan.joins_s)
            self.promises.coming_s = trio.current_time()
        while not one.has_ended:
            me = None
            one.is_dead, one.scope = False, trio.CancelScope()
            one.told = one.die
            try:
                with one.scope:
                    if one.peer in self.newcomers and not (one.folder / OWN_RECORD).exists():
                        record = sign_record(_keys(one.peer), Role.NODE, "127.0.0.1", 1, int(now_s()))
                        write_record(one.folder / OWN_RECORD, record)
                        write_track_record(one.folder, self._track_record(one, record))
                    me = self._participant(one)
                    one.service = self._service(one, me)
                    await one.service.run()
                    one.has_ended = not one.is_dead
            except BaseException as error:
                others = [fault for fault in _leaves(error) if not isinstance(fault, Killed)]
                one.has_ended = bool(others) and not one.is_dead
                if one.has_ended and one.is_honest:
                    raise
                if not all(isinstance(fault, trio.Cancelled | Exception) for fault in others):
                    raise
            finally:
                if me is not None:
                    if one is self.forgetful and not one.kills:
                        self.crashed = {path: path.read_bytes() for path in one.folder.glob("store.db*")}
                    me.store.close()
                if isinstance(one.service, Verifier):
                    one.service.high_water.close()
                if isinstance(one.service, LedgerService):
                    one.service.bookkeeper.books.close()
                one.service = None
            if one.is_dead:
                one.kills += 1
                self.troubled.add(one.peer)
                self.lines.append(f"{trio.current_time():8.2f} {one.name}: killed")
                if one is self.forgetful and one.kills == 1:
                    self._lose_store(one)
                await trio.sleep(self._down_s(one))

    def _down_s(self, one: Process) -> float:
        """How long a process that was killed stays down."""
        return 0.2 if one is self.forgetful else self.rng.uniform(0.1, 15)

    def _lose_store(self, one: Process) -> None:
        """Leave nothing of a dead process's store, or what its disk had, less the end of the log."""
        for path in one.folder.glob("store.db*"):
            path.unlink()
        for path, body in self.crashed.items() if self.plan.tears else ():
            is_log = path.name.endswith("-wal")
            path.write_bytes(body[: one.rng.randrange(len(body) + 1)] if is_log else body)

    # ---- faults

    async def _storm(self) -> None:
        plan, end_s = self.plan, self.plan.storm_s
        events: list[tuple[float, Callable[[], None]]] = []
        for _ in range(plan.kills):
            events.append((self.rng.uniform(0, end_s), self._kill))
        for _ in range(plan.cuts):
            events.append((self.rng.uniform(0, end_s), self._cut))
        for _ in range(plan.breaks):
            events.append((self.rng.uniform(0, end_s), self._break))
        for _ in range(plan.damages):
            events.append((self.rng.uniform(0, end_s), self._damage))
        for _ in range(plan.clocks):
            events.append((self.clocks.uniform(0, max(end_s, 1.0)), self._set_a_clock))
        for at_s, happen in sorted(events, key=lambda event: event[0]):
            await trio.sleep(at_s - trio.current_time())
            happen()
        await trio.sleep(max(end_s - trio.current_time(), 0))
        self.network.heal()
        for one in self.processes.values():
            one.fuse = 0

    def _lock_stakes(self) -> None:
        """Members have what a slash takes; the escrow closes as soon as they bear with."""
        for node in (*self.spec.nodes, *map(a_member, self.newcomers)):
            self.contracts.stake(OPERATOR, node)
            self._delegate(node, FOREVER_S + 1)
        for member in self.spec.judges:
            self.contracts.stake(VERIFIER, member)
        spec = self.spec
        least_s = closing_s(spec.audit, spec.timing, len(spec.verifiers), spec.money.epoch_rounds)
        self.contracts.close_delay_s = least_s + int(self.plan.storm_s + HEARD_S) * (self.plan.storm_s > 0)

    def _delegate(self, member: Member, until_s: int) -> None:
        """The account of a member lets its hot key sign until then."""
        hot_key = HotKey(account=evm_address(member.account), expiry=until_s)
        self.contracts.hot_keys[evm_address(member.hot)] = hot_key

    async def _ask(self, at_s: float, what: str, peers: Sequence[PeerId]) -> None:
        """Ask one honest member, by a file as its operator does, to give up its seat."""
        if at_s:
            await trio.sleep_until(at_s)
            one = self.rng.choice([self.processes[peer] for peer in peers if self.processes[peer].is_honest])
            if what == RESIGN and self.plan.is_revoked:
                self._delegate(a_member(one.peer), int(now_s()))
            else:
                (one.folder / what).write_bytes(b"")
            self.promises.leaving[one.peer] = len(self.promises.chain)
            self.lines.append(f"{trio.current_time():8.2f} {one.name}: asked to {what}")

    def _kill(self) -> None:
        one = self.rng.choice(list(self.processes.values()))
        if self.rng.random() < 0.5:
            one.fuse = self.rng.randint(1, 40)
        elif not one.is_dead:
            one.die()

    def _cut(self) -> None:
        members = list(self.processes)
        side = frozenset(self.rng.sample(members, self.rng.randint(1, 3)))
        self.troubled |= side
        verifiers = [peer for peer in side if self.processes[peer].is_verifier]
        if len(verifiers) > faults_tolerated(len(self.spec.verifiers)):
            self.troubled.update(one.peer for one in self.processes.values() if not one.is_verifier)
        self.network.partition(side)
        names = ", ".join(sorted(self.processes[peer].name for peer in side))
        self.lines.append(f"{trio.current_time():8.2f} cut: {names}")

        async def heal() -> None:
            await trio.sleep(length_s)
            self.network.heal()
            self.promises.conduct.healed()

        length_s = self.rng.uniform(1, 20)
        self._nursery.start_soon(heal)

    def _damage(self) -> None:
        """Flip one bit in a blob that an honest process has stored."""
        one = self.rng.choice([one for one in self.processes.values() if one.is_honest])
        found = sorted((one.folder / "blobs").glob("*.blob"))
        if not found:
            return
        path = self.rng.choice(found)
        body = bytearray(path.read_bytes())
        body[self.rng.randrange(len(body))] ^= 1 << self.rng.randrange(8)
        path.write_bytes(body)
        self.lines.append(f"{trio.current_time():8.2f} {one.name}: {path.name[:8]} damaged")

    def _set_a_clock(self) -> None:
        """Of one process, seconds before or after the time."""
        one = self.clocks.choice(list(self.processes.values()))
        one.ahead_s = self.clocks.uniform(-WRONG_S, WRONG_S)
        self.lines.append(f"{trio.current_time():8.2f} {one.name}: clock {one.ahead_s:+.2f} s")

    async def _go_back(self) -> None:
        """The chain loses its newest blocks now and then, and has what was in them in others."""
        chances = random.Random(f"reorganisations of {self.seed}")
        for at_s in sorted(chances.uniform(0, REORGANISED_S) for _ in range(self.plan.reorgs)):
            await trio.sleep_until(at_s)
            if self.processes[LEDGER].has_ended:  # its books know of no later blocks
                return
            self.contracts.go_back(chances.randint(1, BLOCKS_BACK))

    async def _cancel(self) -> None:
        """The buyer cancels the run, as often as it takes."""
        await trio.sleep_until(self.plan.cancelled_s)
        while not self.processes[BUYER].has_ended:
            with contextlib.suppress(AssayError):
                buyer.cancel(self._participant(self.processes[BUYER]), self.contracts)
                return
            await trio.sleep(1)

    async def _close(self) -> None:
        """The buyer closes the escrow of a run that never started, if no process does it for it."""
        while not self.promises.has_lapsed:
            await trio.sleep(1)
        self.contracts.cancelled_s = now_s()

    async def _step_clocks(self) -> None:
        """Clocks are set while the run lasts."""
        while True:
            await trio.sleep(self.clocks.uniform(0, 2 * STEP_S))
            self._set_a_clock()

    def _break(self) -> None:
        one, other = self.rng.sample(list(self.processes), 2)
        self.network.drop_link(one, other)

    # ---- the run

    async def main(self) -> None:
        """Let time pass until the run is over.

        Raises:
            Violation: a promise was broken.
        """
        async with trio.open_nursery() as self._nursery:
            self._nursery.start_soon(self.network.run)
            self._nursery.start_soon(self._ask, self.plan.resigns_s, RESIGN, self.spec.verifier_peers)
            self._nursery.start_soon(
                self._ask, self.plan.leaves_s, LEAVE, [one.peer for one in self.spec.nodes]
            )
            for one in self.processes.values():
                if one.behaviour != "silent":
                    self._nursery.start_soon(self._live, one)
            if self.plan.drifts:
                self._nursery.start_soon(self._step_clocks)
            if self.plan.has_ledger:
                self._nursery.start_soon(self._go_back)
            if self.plan.has_ledger and not self.plan.has_buyer:
                self._nursery.start_soon(self._close)
            if self.plan.has_buyer and self.plan.cancelled_s:
                self._nursery.start_soon(self._cancel)
            await self._storm()
            with trio.move_on_after(CALM_S_MAX) as scope:
                while not self._is_over():
                    await trio.sleep(1)
            if scope.cancelled_caught:
                rounds = {
                    one.name: None if one.run_state is None else int(one.run_state.round)
                    for one in self.processes.values()
                }
                lacking = [name_of(one) for one in self.promises.convicted - self._accused()]
                raise Violation(
                    f"the run did not end {CALM_S_MAX} s after the storm: {rounds}, unpaid "
                    f"{sorted(self._unpaid())}, not in court {lacking}"
                )
            self._end()
            self._nursery.cancel_scope.cancel()

    def leading_inventor(self) -> PeerId:
        """The verifier that invents sketches, while its process runs."""
        here = HERE.get()
        return here.peer if isinstance(here, Process) and here.behaviour == INVENTOR else NO_PEER

    def is_dark(self) -> bool:
        """Whether the servers of the drand network are down now."""
        first_s, last_s = self.plan.dark_s
        return first_s <= trio.current_time() < last_s

    def _is_over(self) -> bool:
        """Whether all have all manifests, all pay is claimed, and all that was convicted is in court.

        Raises:
            Violation: a row was paid twice.
        """
        if wrong := paid_twice(self.contracts):
            raise Violation(wrong)
        seatless = self.newcomers.keys() - set(self.promises.joined)
        honest = [one for one in self.processes.values() if one.is_honest and one.peer not in seatless]
        has_all = all(
            one.has_ended or (one.run_state is not None and one.run_state.is_complete) for one in honest
        )
        is_paid = not self._unpaid() and self.promises.convicted <= self._accused()
        observers = [one for peer, one in self.processes.items() if peer in (LEDGER, BUYER)]
        is_paid &= not self.plan.has_buyer or not self.contracts.slashes_left
        return has_all and is_paid and all(one.has_ended for one in observers)

    def _unpaid(self) -> set[tuple[int, str]]:
        """Honest members with a row that is not claimed, by epoch; "all" where it is not final."""
        found = set()
        for epoch in range(self.promises.epochs):
            posted = self.contracts.results.get(epoch)
            if posted is None or not posted.is_final or epoch not in self.promises.settled:
                found.add((epoch, "all"))
                continue
            owed = {bytes(row.account) for row in self.promises.settled[epoch].rows}
            for peer in self.promises.honest:
                account = a_member(peer).account
                if account in owed and evm_address(account) not in posted.paid:
                    found.add((epoch, name_of(peer)))
        return found

    def _accused(self) -> set[PeerId]:
        """Members against whom there is a case."""
        accounts = {evm_address(a_member(peer).account): peer for peer in self.processes}
        return {accounts[order.offender] for order in self.contracts.cases} | self._contradicted()

    def _contradicted(self) -> set[PeerId]:
        """Nodes of which two commits were reported."""
        values = {bytes(one.value) for pair in self.contracts.reported for one in pair}
        liars = {one.peer for one in self.processes.values() if one.behaviour == "two-commits"}
        return liars if values else set()

    def _end(self) -> None:
        """Check what only the end shows."""
        lying = {one.peer for one in self.processes.values() if not one.is_honest}
        weak = (self.troubled | lying | self.promises.leaving.keys()) & set(self.spec.verifier_peers)
        may_lack_judges = len(weak) > faults_tolerated(len(self.spec.verifiers))
        self.promises.ended(
            may_lack_judges=may_lack_judges,
            lives={one.peer: one.kills for one in self.processes.values()},
        )
        self.promises.closed(self.plan.cancelled_s)
        if not any("others may read or change it (mode 0701)" in line for line in self.warnings):
            raise Violation("keys lie in a folder that others may enter, and nobody says so")
        if not lying & set(self.spec.verifier_peers) and not self.plan.storm_s:
            self.promises.undisturbed()
            self._unworried()
        if not self.plan.storm_s and self.plan.lying_node != "two-commits":  # who lacks one comes too late
            self.promises.delivered()
            self.promises.kept()
        if not self.troubled and self.promises.trained > 1:
            liars = {one.peer for one in self.processes.values() if one.behaviour == "two-commits"}
            if not liars <= self.promises.convicted:
                raise Violation("a node signed two commits for each round, and is not convicted")
        if wrong := self._accused() & self.promises.honest:
            raise Violation(f"honest members are in court: {[name_of(one) for one in wrong]}")
        if self.plan.has_ledger:
            folder, is_alone = self.processes[LEDGER].folder, not self.plan.storm_s
            if wrong := complaint(self.contracts, folder, len(self.promises.chain), is_alone=is_alone):
                raise Violation(wrong)
            verifiers = (one.service for one in self.processes.values() if isinstance(one.service, Verifier))
            if any(verifier.me.store.values(ROLLED_BACK) for verifier in verifiers):
                raise Violation("the ledger service signs two histories")
        if self.plan.has_buyer:
            folder = self.processes[BUYER].folder
            if wrong := buyer.complaint(self.spec, self.contracts, self.promises, folder, lying):
                raise Violation(wrong)
        for epoch, found in self.promises.settled.items():
            posted = self.contracts.results[epoch].result
            if (posted.total, posted.root) != (found.total, found.tree().root):
                raise Violation(f"epoch {epoch} pays {posted.total}, expected {found.total}")

    def _unworried(self) -> None:
        """Nothing broke: nobody warns of anything but of the lying node.

        Raises:
            Violation: somebody does.
        """
        liars = {one.peer.hex()[:8] for one in self.processes.values() if not one.is_honest}
        for line in self.warnings:
            if not any(liar in line for liar in liars) and not any(one in line for one in EXPECTED):
                raise Violation(f"nothing broke, and somebody warns: {line}")


def _keys(peer: PeerId) -> Keys:
    name = name_of(peer)
    return Keys(peer=a_peer_key(name), account=an_account_key(name), hot=a_hot_key(name))


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from _leaves(one)
    else:
        yield error


class _Lines(logging.Handler):
    """Keeps the newest lines of all processes' logs, for whoever looks at a violation."""

    def __init__(self, lines: deque[str], warnings: list[str]) -> None:
        super().__init__(logging.DEBUG)
        self._lines, self._warnings = lines, warnings
        self._known = set(vars(logging.makeLogRecord({})))

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one."""
        here = HERE.get()
        name = here.name if isinstance(here, Process) else "?"
        fields = {key: value for key, value in vars(record).items() if key not in self._known}
        with contextlib.suppress(RuntimeError):
            line = f"{trio.current_time():8.2f} {name}: {record.getMessage()} {fields}"
            self._lines.append(line)
            if isinstance(here, Process) and here.is_honest and record.levelno >= logging.WARNING:
                self._warnings.append(line)


@contextmanager
def _listening(lines: deque[str], warnings: list[str], level: int) -> Iterator[None]:
    root, handler = logging.getLogger("assay"), _Lines(lines, warnings)
    before, spread = root.level, root.propagate
    root.addHandler(handler)
    root.setLevel(level)
    root.propagate = False
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(before)
        root.propagate = spread


def simulate(
    seed: int,
    plan: Plan | None = None,
    level: int = logging.WARNING,
    network: Callable[[int, Plan, Path], World] = WholeNetwork,  # type: ignore[assignment]
) -> World:
    """Run one network to its end, of this kind.

    Raises:
        Violation: a promise was broken; its notes are the newest lines of the processes' logs.
    """
    place = Path("/dev/shm")
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(dir=place if place.is_dir() else None))
        stack.enter_context(one_thread(seed))
        stack.enter_context(workers.arithmetic())
        stack.enter_context(killing_writes())
        stack.enter_context(mock.patch.dict(faulty_trainer.KINDS, false_trainers.KINDS))
        world = network(seed, plan or planned(seed), Path(folder))
        stack.enter_context(_listening(world.lines, world.warnings, level))
        stack.enter_context(mock.patch("assay.chain.client.Chain", world.contracts.client))
        stack.enter_context(mock.patch("assay.network.host.open_host", world._open_host))
        stack.enter_context(mock.patch.object(ledger_service, "Providers", world.contracts.log.read_by))
        stack.enter_context(mock.patch.object(verifier_process, "TICK_S", 0.25))
        # A ledger service posts one result after another, and has to be done by then.
        patience_s = 10.0 if world.plan.has_ledger else 5.0
        stack.enter_context(mock.patch.object(chain_duties, "SETTLE_S", patience_s))
        stack.enter_context(mock.patch.object(funding_watch, "POLL_S", 0.5))
        stack.enter_context(mock.patch.object(pruning, "FULL_SHARE", SCARCE))
        stack.enter_context(mock.patch.object(pruning, "PRUNE_S", 1.0))
        if world.plan.has_large_updates:
            stack.enter_context(mock.patch.object(node_service, "INLINE_UPDATE_BYTES", 0))
        stack.enter_context(mock.patch.object(standby, "REPEAT_S", 0.5))
        stack.enter_context(mock.patch.object(stake_watch, "POLL_S", 2.0))
        stack.enter_context(buyer.buying())
        stack.enter_context(drand.published(world.is_dark))
        stack.enter_context(false_auditors.few_verdicts(world.leading_inventor))
        stack.enter_context(world.promises.watching())
        try:
            run(world.main)
        except BaseException as error:
            broken = next((one for one in _leaves(error) if isinstance(one, Violation)), None)
            if broken is None and isinstance(error, KeyboardInterrupt):
                raise
            found = broken or Violation(f"a process ended: {list(_leaves(error))!r}")
            found.lines = list(world.lines)
            raise found from error
    return world
