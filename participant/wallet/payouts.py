"""Payouts: claims rows of payout tables by hand, for any account.

Room: participant (edge: the chain). A table is used only if its root and its sum are
those settled on chain: nothing is sent before all tables are compared. A
claim pays the account that the row names, whoever sends it, and only once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from assay.chain.client import Chain, ChainReader
from assay.chain.proofs.payout_tree import PayoutTree
from assay.chain.state import EpochPhase, EpochState
from assay.chain.statements import Address
from assay.chain.text.settlement_phase import is_ready
from assay.ledger.settlement.payouts import Settlement, settle
from assay.participant.links import extend
from assay.participant.store import read_link_bodies
from assay.protocol.encoding.codec import decode
from assay.protocol.errors import AssayError, ConfigError
from assay.protocol.messages import CertifiedManifest
from assay.protocol.params import RunSpec
from assay.protocol.run_state import start
from assay.protocol.types import Digest

SETTLED = (EpochPhase.FINAL, EpochPhase.SWEPT)


class WrongTable(AssayError):
    """A local payout table differs from the one settled on chain; nothing was sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One epoch's payout table, with each row's role."""

    tree: PayoutTree
    roles: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimable:
    """One row that pays an account. Amounts in token units."""

    index: int
    role: str
    amount: int
    is_claimed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochPay:
    """One epoch's payouts to an account, and the epoch's settlement state on chain."""

    epoch: int
    state: EpochState
    now: int
    rows: tuple[Claimable, ...] | None  # None: no local table yet
    is_other: bool = False  # the result proposed on chain is of another table than the local one

    @property
    def due(self) -> tuple[Claimable, ...]:
        """The rows that can be claimed now."""
        if self.state.phase is not EpochPhase.FINAL:
            return ()
        return tuple(row for row in self.rows or () if not row.is_claimed)


def table_of(settlement: Settlement) -> Table:
    """The table of a settlement, for claims."""
    return Table(tree=settlement.tree(), roles=tuple(row.role for row in settlement.rows))


def read_pay(
    chain: ChainReader, run_id: bytes, tables: Mapping[int, Table], account: Address, epochs: Iterable[int]
) -> list[EpochPay]:
    """An account's payouts in these epochs.

    Raises:
        WrongTable: a table differs from the one settled on chain.
        Unavailable: the endpoint is gone.
    """
    now, found = chain.timestamp(), []
    for epoch in epochs:
        state, table = chain.epoch_state(run_id, epoch), tables.get(epoch)
        rows: tuple[Claimable, ...] | None = None
        if table is not None:
            if state.phase in SETTLED:
                check_table(epoch, table, state)
            rows = tuple(
                Claimable(
                    index=index,
                    role=table.roles[index],
                    amount=payout.amount,
                    is_claimed=state.phase in SETTLED and chain.is_claimed(run_id, epoch, index),
                )
                for index, payout in enumerate(table.tree.payouts)
                if payout.account == account
            )
        is_other = state.phase is not EpochPhase.NONE and table is not None and not _is_same(table, state)
        found.append(EpochPay(epoch=epoch, state=state, now=now, rows=rows, is_other=is_other))
    return found


def check_table(epoch: int, table: Table, state: EpochState) -> None:
    """Do nothing if this is the table settled on chain.

    Raises:
        WrongTable: its root or its sum differs.
    """
    if not _is_same(table, state):
        raise WrongTable(
            f"epoch {epoch}: the table here has root {table.tree.root.hex()[:16]} and pays "
            f"{table.tree.total} units, on chain are root {state.root.hex()[:16]} and {state.total}; "
            "nothing was sent"
        )


def _is_same(table: Table, state: EpochState) -> bool:
    return (table.tree.root, table.tree.total) == (state.root, state.total)


def is_finalizable(pay: EpochPay) -> bool:
    """Whether the epoch's result is of the local table and can be finalised once its predecessor is."""
    return pay.rows is not None and not pay.is_other and is_ready(pay.state, pay.now)


def finalize_ready(chain: Chain, run_id: bytes, pays: Iterable[EpochPay]) -> list[int]:
    """Finalise, in order, every result that can be; returns their epochs.

    A result without an equal local table is left alone.

    Raises:
        ChainRefused, Unavailable: one failed; those before it succeeded.
    """
    done = []
    for pay in pays:
        if is_finalizable(pay):
            chain.finalize(run_id, pay.epoch)
            done.append(pay.epoch)
        elif pay.state.phase not in SETTLED:
            break  # later epochs cannot be final before this one
    return done


def tables_in_store(path: Path, spec: RunSpec, run_id: Digest) -> dict[int, Table]:
    """The table of every final epoch, recomputed from a participant's store.

    The file is only read: its process may keep writing. Every signature is checked again.

    Raises:
        ConfigError: there is no store.
        AssayError: it is damaged, or a certified manifest in it is invalid.
    """
    if not path.is_file():
        raise ConfigError(f"{path}: this participant keeps no chain yet; name a run's folder instead")
    run_state, found = start(spec, run_id), {}
    for body in read_link_bodies(path):
        run_state = extend(run_state, decode(CertifiedManifest, body))
        ripe = run_state.calendar.ripe_at(int(run_state.round) - 1)
        if ripe is not None:
            found[ripe] = table_of(settle(run_state, ripe))
    return found
