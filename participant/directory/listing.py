"""Listing: a network's runs, and its operators and verifiers, from the directory and the other contracts.

Room: participant (edge: the chain). Anybody may announce: a run is listed if the escrow has it and its buyer
announced its file; an account, if it has stake. What does not verify is left out. All of it is as the newest
block says, and for people to choose from: a process that acts on it checks for itself.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from assay.chain.commit_statement import evm_address
from assay.chain.events import SETTLED_BLOCKS
from assay.chain.reader import ChainReader, NotShown
from assay.chain.statements import OPERATOR, VERIFIER, Address
from assay.participant.directory.find import announced_run, last_record
from assay.participant.files.run_file import RunFile
from assay.protocol.errors import ConfigError, MalformedMessage, PeerFault
from assay.protocol.types import Digest

if TYPE_CHECKING:
    from assay.chain.state import EscrowState

RUNS_MAX = 128  # looked at, newest first
ACCOUNTS_MAX = 1024  # likewise
LOT_BLOCKS_MAX = 1_000_000  # in which lots are looked for, newest first: 500 questions


class RunPhase(enum.Enum):
    """Where a run's escrow is."""

    OPEN = "open"
    CLOSING = "closing"  # its buyer cancelled it; results are still taken
    CLOSED = "closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedRun:
    """A run as its contracts and its announced file show it; amounts in token units."""

    run_id: bytes
    name: str
    state: RunPhase
    model: str
    rounds: int
    price_per_mtoken: int
    accept_ppm: int  # of it, in epochs with a milestone, owed only if the model reaches it
    seats: int
    seats_taken: int  # accounts with the run's lot; whoever gave a seat up is counted until it is discharged
    least_nodes: int  # without which it does not start
    start_by_s: int  # Unix time by which they must have come, or it never starts; 0 where it waits for nobody
    lot: int
    budget: int
    free: int  # of the budget
    deadline: int
    closes_at: int
    buyer: str
    data: bytes  # root of the data manifest
    continues: bytes | None = None  # the run that it continues, whose last rounds may have stayed unpaid


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedRuns:
    """Runs of a network, newest first."""

    announced: int  # runs in the directory; the newest `RUNS_MAX` were looked at
    unreadable: int  # of these: the file does not verify, or the endpoint does not show it
    as_of: int  # the newest block's time
    runs: tuple[ListedRun, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a participant is, by the last record that its account announced."""

    peer: bytes
    role: str
    host: str
    port: int
    made_at: int
    explorer: str  # address of one that it says it serves; empty: none


@dataclass(frozen=True, slots=True, kw_only=True)
class Staker:
    """An operator or verifier; without a place where its account announced no record that verifies."""

    account: str
    operator_stake: int  # active, token units
    verifier_stake: int
    is_seated: bool  # in the current verifier set
    hot_key: str | None  # the one that it delegated last
    delegated_until: int | None
    place: Place | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stakers:
    """Verifiers of the current set, then others with stake, newest first."""

    announced: int  # accounts in the directory; the newest `ACCOUNTS_MAX` were looked at
    as_of: int
    stakers: tuple[Staker, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRun:
    """A run as its contracts and its announced file show it, with both."""

    listed: ListedRun
    file: RunFile
    escrow: EscrowState


@dataclass(slots=True)
class Known:
    """What was read of a network's runs before, for whoever looks again and again; empty at first.

    A run's file proves itself and never changes, so it is read once. One that does not verify is not read
    again either: its buyer pays for each, and would decide how much a reader reads.
    """

    files: dict[Digest, RunFile | None] = field(default_factory=dict)
    holders: dict[Digest, set[Address]] = field(default_factory=dict)  # of lots, by run
    last_block: int = 0  # up to which these were looked for

    def keep(self, run_ids: set[Digest]) -> None:
        """Forget all other runs."""
        self.files = {one: found for one, found in self.files.items() if one in run_ids}
        self.holders = {one: found for one, found in self.holders.items() if one in run_ids}


def read_listed(chain: ChainReader, now_s: int, *, open_only: bool) -> ListedRuns:
    """The runs of a network.

    Args:
        chain: Of the network.
        now_s: Unix time, to check records with.
        open_only: Leave out runs that take no nodes: all seats taken, closing or closed.

    Raises:
        Unavailable: the endpoint is gone.
    """
    as_of = chain.timestamp()
    total, run_ids = chain.newest_runs(RUNS_MAX)
    found, unreadable = _read_runs(chain, run_ids, as_of, now_s, Known(), open_only=open_only)
    taken = _seats_taken(chain, found, as_of, Known())
    listed = [_listed(run, escrow, taken[run.run_id], as_of) for run, escrow in found]
    return ListedRuns(
        announced=total,
        unreadable=unreadable,
        as_of=as_of,
        runs=tuple(one for one in listed if not open_only or one.seats_taken < one.seats),
    )


def read_open_runs(
    chain: ChainReader, now_s: int, known: Known, wanted: Callable[[RunFile, EscrowState], bool]
) -> list[OpenRun]:
    """The runs with a free seat that `wanted` is true of, newest first, of the newest `RUNS_MAX`.

    Args:
        chain: Of the network.
        now_s: Unix time, to check records with.
        known: From the last time, and for the next.
        wanted: Whether a run's terms are of interest: seats are counted of these alone.

    Raises:
        Unavailable: the endpoint is gone.
    """
    as_of = chain.timestamp()
    _, run_ids = chain.newest_runs(RUNS_MAX)
    known.keep({Digest(one) for one in run_ids})
    found, _ = _read_runs(chain, run_ids, as_of, now_s, known, open_only=True)
    found = [(run, escrow) for run, escrow in found if wanted(run, escrow)]
    taken = _seats_taken(chain, found, as_of, known)
    runs = [
        OpenRun(listed=_listed(run, escrow, taken[run.run_id], as_of), file=run, escrow=escrow)
        for run, escrow in found
    ]
    return [one for one in runs if one.listed.seats_taken < one.listed.seats]


def _read_runs(
    chain: ChainReader, run_ids: list[bytes], as_of: int, now_s: int, known: Known, *, open_only: bool
) -> tuple[list[tuple[RunFile, EscrowState]], int]:
    """The files and escrows of these runs, and how many files do not verify or are not shown."""
    found: list[tuple[RunFile, EscrowState]] = []
    unreadable = 0
    for run_id in map(Digest, run_ids):
        escrow = chain.run(run_id)
        if escrow is None or (open_only and _phase(escrow, as_of) is not RunPhase.OPEN):
            continue
        try:
            if run_id not in known.files:
                known.files[run_id] = announced_run(chain, run_id, now_s)
            run = known.files[run_id]
        except ConfigError:
            run = known.files[run_id] = None
        except NotShown:
            run = None
        if run is None:
            unreadable += 1
        else:
            found.append((run, escrow))
    return found, unreadable


def read_listed_run(chain: ChainReader, run_id: Digest, now_s: int) -> tuple[ListedRun, RunFile]:
    """One run of a network, and its announced file.

    Raises:
        ConfigError: nobody opened it, its buyer announced no file, or none of this run.
        Unavailable: the endpoint is gone.
    """
    escrow = chain.run(run_id)
    run = None if escrow is None else announced_run(chain, run_id, now_s)
    if escrow is None or run is None:
        raise ConfigError(f"run {run_id.hex()}: not open on this network, or its buyer announced no run file")
    as_of = chain.timestamp()
    taken = _seats_taken(chain, [(run, escrow)], as_of, Known())
    return _listed(run, escrow, taken[run_id], as_of), run


def _phase(escrow: EscrowState, as_of: int) -> RunPhase:
    if as_of >= escrow.closes_at:
        return RunPhase.CLOSED
    return RunPhase.CLOSING if escrow.closes_at < escrow.deadline else RunPhase.OPEN


def _seats_taken(
    chain: ChainReader, runs: list[tuple[RunFile, EscrowState]], as_of: int, known: Known
) -> dict[Digest, int]:
    """By run, how many accounts its lot binds to its deadline. Members locked theirs before the run was
    opened; others are looked for since it was announced."""
    holders = {run.run_id: {evm_address(one.account) for one in run.spec.nodes} for run, _ in runs}
    takes_more = {
        run.run_id
        for run, escrow in runs
        if run.spec.seats > len(run.spec.nodes) and _phase(escrow, as_of) is not RunPhase.CLOSED
    }
    _look_for_lots(chain, takes_more, known)
    for run_id in takes_more:
        holders[run_id] |= known.holders[run_id]
    terms = {run.run_id: escrow for run, escrow in runs}

    def is_bound(account: Address, run_id: Digest) -> bool:
        lot = chain.lot_of(account, OPERATOR, run_id)
        return lot.amount >= terms[run_id].lot and lot.until >= terms[run_id].deadline

    return {
        run_id: len(accounts) if run_id not in takes_more else sum(is_bound(one, run_id) for one in accounts)
        for run_id, accounts in holders.items()
    }


def _look_for_lots(chain: ChainReader, run_ids: set[Digest], known: Known) -> None:
    """Bring `known.holders` of these runs up to the newest block; older runs go on where they were."""
    last = chain.block_number()
    fresh, older = run_ids - known.holders.keys(), run_ids & known.holders.keys()
    for some, first in (
        (fresh, min(map(chain.run_block, fresh), default=last)),
        (older, known.last_block - SETTLED_BLOCKS),
    ):
        if some:
            for lot in chain.lots_locked(some, max(first, last - LOT_BLOCKS_MAX, 0), last):
                if lot.role == OPERATOR and lot.commitment in some:
                    known.holders.setdefault(Digest(lot.commitment), set()).add(lot.account)
    for run_id in run_ids:
        known.holders.setdefault(run_id, set())
    known.holders = {one: found for one, found in known.holders.items() if one in run_ids}
    known.last_block = last


def _listed(run: RunFile, escrow: EscrowState, seats_taken: int, as_of: int) -> ListedRun:
    spec, model = run.spec, run.spec.model
    return ListedRun(
        run_id=run.run_id,
        name=spec.name,
        state=_phase(escrow, as_of),
        model=f"{model.family.name.lower()} {model.layers} x {model.width}, context {model.context}",
        rounds=spec.rounds,
        price_per_mtoken=spec.money.price_per_mtoken,
        accept_ppm=spec.money.accept.share_ppm,
        seats=spec.seats,
        seats_taken=seats_taken,
        least_nodes=spec.least_nodes,
        start_by_s=spec.start_by_s,
        lot=escrow.lot,
        budget=escrow.budget,
        free=escrow.free,
        deadline=escrow.deadline,
        closes_at=escrow.closes_at,
        buyer=escrow.buyer,
        data=spec.data.root,
        continues=spec.predecessor.run_id if spec.is_continued else None,
    )


def read_stakers(chain: ChainReader, now_s: int) -> Stakers:
    """The verifiers and operators of a network.

    Args:
        chain: Of the network.
        now_s: Unix time, to check records with.

    Raises:
        Unavailable: the endpoint is gone.
    """
    seated = chain.verifier_set()
    total, announced = chain.newest_stakers(ACCOUNTS_MAX)
    accounts = dict.fromkeys([*seated, *announced])
    return Stakers(
        announced=total,
        as_of=chain.timestamp(),
        stakers=tuple(_stakers(chain, accounts, frozenset(seated), now_s)),
    )


def _stakers(
    chain: ChainReader, accounts: dict[Address, None], seated: frozenset[Address], now_s: int
) -> Iterator[Staker]:
    for account in accounts:
        stakes = [chain.stake_of(account, role).active for role in (OPERATOR, VERIFIER)]
        if account not in seated and not any(stakes):
            continue
        key = chain.hot_key_of(account)
        delegation = chain.hot_key(key)
        yield Staker(
            account=account,
            operator_stake=stakes[0],
            verifier_stake=stakes[1],
            is_seated=account in seated,
            hot_key=None if delegation is None else key,
            delegated_until=None if delegation is None else delegation.expiry,
            place=_place(chain, account, now_s),
        )


def _place(chain: ChainReader, account: Address, now_s: int) -> Place | None:
    try:
        found = last_record(chain, account, now_s)
    except (MalformedMessage, PeerFault, NotShown):
        return None
    if found is None:
        return None
    record = found.record
    return Place(
        peer=record.peer,
        role=record.role.name.lower(),
        host=record.host,
        port=record.port,
        made_at=record.made_at_s,
        explorer=record.explorer,
    )
