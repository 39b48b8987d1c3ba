"""Market: reads from the chain which runs could be taken, and what became of those that were.

Room: fleet (edge: the chain, folders of data). The work of a look is bounded, whatever strangers announce:
the newest runs that `assay run list` shows, each one's file read once, and seats counted only of runs whose
terms suit this machine.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from assay.chain.client import Chain
from assay.chain.commit_statement import evm_address
from assay.chain.reader import ChainReader
from assay.chain.state import EscrowState
from assay.chain.statements import OPERATOR, Address
from assay.fleet.fitness import (
    Machine,
    disk_bytes,
    escrow_fault,
    funded_hours,
    is_lapsed,
    spec_fault,
    upload_bytes_s,
)
from assay.fleet.plan import DAY_S, Bounds, Candidate, State, refusal
from assay.participant.directory.listing import Known, OpenRun, read_open_runs
from assay.participant.files.run_file import RunFile
from assay.participant.market.work import hourly_pay, memory_bytes, step_pay_micro
from assay.participant.wallet.delegation import delegation_fault
from assay.protocol.types import Digest
from assay.training.data.shards import MANIFEST, MANIFEST_BYTES_MAX

SETS_MAX = 256  # data sets of one folder
DELEGATED_S = DAY_S  # for which the hot key must still be able to sign, when a run is taken


@dataclass(frozen=True, slots=True, kw_only=True)
class OnChain:
    """What the chain says of one of our runs."""

    lot: int
    can_release: bool
    is_open: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """What the chain says of the operator's account."""

    free_stake: int
    fault: str | None  # why it can take no run


def read_library(folders: tuple[Path, ...]) -> dict[Digest, Path]:
    """The data sets in these folders, or that these are, by the digest of their manifest.

    Whoever uses one checks its shards. What cannot be read is left out.
    """
    found = {}
    for folder in folders:
        sets = [folder] if (folder / MANIFEST).is_file() else sorted(folder.glob(f"*/{MANIFEST}"))[:SETS_MAX]
        for one in sets:
            path = one if one.name == MANIFEST else one / MANIFEST
            try:
                stat = path.stat()
                if stat.st_size <= MANIFEST_BYTES_MAX:
                    found[_manifest_digest(path, stat.st_mtime_ns, stat.st_size)] = path.parent
            except OSError:
                continue
    return found


@functools.lru_cache(maxsize=SETS_MAX)
def _manifest_digest(path: Path, _changed_ns: int, _size: int) -> Digest:
    return Digest(hashlib.sha256(path.read_bytes()).digest())


def read_candidates(
    chain: Chain,
    now_s: int,
    known: Known,
    machine: Machine,
    library: Mapping[Digest, Path],
    state: State,
    bounds: Bounds,
) -> tuple[Candidate, ...]:
    """The open runs with a free seat that this machine could take.

    Args:
        chain: Of the network.
        now_s: Unix time.
        known: What was read of runs before.
        machine: This one.
        library: Data sets that are here, by the digest of their manifest.
        state: What was taken.
        bounds: The operator's.

    Raises:
        Unavailable: the endpoint is gone.
    """

    def suits(run: RunFile, escrow: EscrowState) -> bool:
        if run.spec.data.manifest not in library:
            return False
        one = _candidate(chain, run, escrow, machine, library)
        return refusal(one, state, now_s, bounds) is None and not _is_ours(chain, run)

    def is_on_time(one: OpenRun) -> bool:
        return not is_lapsed(one.file.spec, one.listed.seats_taken, now_s)

    found = read_open_runs(chain, now_s, known, suits)
    return tuple(
        _candidate(chain, one.file, one.escrow, machine, library) for one in found if is_on_time(one)
    )


def _is_ours(chain: Chain, run: RunFile) -> bool:
    """Whether the account has a lot or a place in a run, which somebody took for it by hand."""
    is_named = any(evm_address(one.account) == chain.address for one in run.spec.nodes)
    return is_named or chain.lot_of(chain.address, OPERATOR, run.run_id).until > 0


def _candidate(
    chain: ChainReader, run: RunFile, escrow: EscrowState, machine: Machine, library: Mapping[Digest, Path]
) -> Candidate:
    spec = run.spec
    pay = hourly_pay(spec, machine.flop_per_s)
    fault = spec_fault(spec, chain.deployment.deployment_id, library.get(spec.data.manifest), machine)
    return Candidate(
        run_id=run.run_id,
        name=spec.name,
        buyer=escrow.buyer,
        pay=pay,
        step_pay_micro=step_pay_micro(spec),
        funded_hours=funded_hours(spec, escrow, pay),
        lot=escrow.lot,
        deadline=escrow.deadline,
        trains_until=escrow.closes_at - chain.close_delay(),
        start_by_s=spec.start_by_s,
        absence_s=spec.audit.absence_s,
        memory_bytes=memory_bytes(spec, machine.replicas, is_checkpointing=machine.is_checkpointing),
        disk_bytes=disk_bytes(spec, machine),
        upload_bytes_s=upload_bytes_s(spec, machine),
        fault=fault or escrow_fault(spec, escrow, chain.verifier_set(escrow.set_version)),
    )


def read_account(chain: Chain, hot_address: Address) -> Account:
    """Free stake, and whether the account can take a run.

    Raises:
        Unavailable: the endpoint is gone.
    """
    stake = chain.stake_of(chain.address, OPERATOR)
    fault = delegation_fault(chain.hot_key(hot_address), chain.address, chain.timestamp() + DELEGATED_S)
    if chain.is_banned(chain.address):
        fault = "its account is banned for ever"
    elif stake.active < stake.minimum:
        fault = f"its stake is {stake.active}, at least {stake.minimum} expected"
    return Account(free_stake=stake.free, fault=fault)


def read_on_chain(chain: Chain, run_id: Digest) -> OnChain:
    """One of our runs.

    Raises:
        Unavailable: the endpoint is gone.
    """
    lot, escrow = chain.lot_of(chain.address, OPERATOR, run_id), chain.run(run_id)
    return OnChain(
        lot=lot.amount,
        can_release=lot.until > 0 and chain.can_release(chain.address, OPERATOR, run_id),
        is_open=escrow is not None and escrow.closes_at >= escrow.deadline,
    )
