"""Check settlement: recomputes one epoch's payout table and compares it with bundle, ledger and contract.

Room: bundle (edge: reads a folder). The certified manifests determine the table; table and digest of the
parameters determine the result that a quorum signed. That the parameters are right is checked by `assay run
verify`, which replays them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from assay.bundle.books import find_books, opened
from assay.chain.addresses import Deployment
from assay.chain.commit_statement import evm_address
from assay.chain.events import ResultFinalized, ResultProposed
from assay.chain.statements import EpochResult, verify_certificate
from assay.ledger.accounts import Account, payable
from assay.ledger.journal.reader import LedgerIntegrityError, read_journal
from assay.ledger.journal.rows import event_of_row
from assay.ledger.journal.tables import TABLES
from assay.ledger.settlement.payouts import Settlement, settle
from assay.ledger.settlement.results import epoch_end, epoch_result, result_digest, run_id_of
from assay.orders.amounts import UNIT, money_text
from assay.participant.config import read_spec
from assay.participant.index import IntegrityError
from assay.participant.links import extend
from assay.protocol.encoding.codec import decode
from assay.protocol.encoding.json_text import parse_json
from assay.protocol.errors import AssayError, ConfigError
from assay.protocol.messages import CertifiedManifest
from assay.protocol.params import RunSpec
from assay.protocol.state_transition import start
from assay.protocol.types import NO_DIGEST, Digest


def check_epoch(what: str) -> Iterator[str]:
    """Check `RUN:EPOCH`; yields one line for each check passed.

    Raises:
        ConfigError: there is no such run or epoch.
        IntegrityError: the bundle differs; LedgerIntegrityError: the ledger does.
    """
    name, _, number = what.rpartition(":")
    if not name or not number.isdecimal() or not number.isascii():
        raise ConfigError(f"{what!r}: expected RUN:EPOCH, such as runs/quickstart:0")
    run, epoch = Path(name), int(number)
    bundle = run / "bundle"
    spec = read_spec(bundle / "spec.cbor")
    if epoch >= spec.epochs:
        raise ConfigError(f"{run} has {spec.epochs} epochs, counted from 0; there is no epoch {epoch}")
    try:
        deployment = Deployment.from_json((bundle / "deployment.json").read_text())
    except OSError as error:
        raise ConfigError(f"{bundle / 'deployment.json'}: cannot be read ({error.strerror})") from None
    table, result, digest = _recomputed(spec, deployment, bundle, epoch)
    yield f"chain: links 0 to {spec.settled_at(epoch)} certified, epoch {epoch} follows from them"
    yield f"table: {len(table.rows)} rows, {money_text(table.total)} {UNIT}, hash {table.table_hash.hex()}"
    yield f"root: {result.root.hex()}"
    yield f"result: {digest.hex()}, signed by a quorum of verifiers"
    yield f"bundle: settlements/epoch-{epoch:03d}.json says the same"
    with opened(find_books(run)) as db:
        _compare_tables(db, table)
        _compare_events(db, result, digest)
        is_booked = _compare_entry(db, table)
    yield "ledger: payout table and contract events say the same"
    if is_booked:
        yield "ledger: the entry that made it payable has the same rows"


def _recomputed(
    spec: RunSpec, deployment: Deployment, bundle: Path, epoch: int
) -> tuple[Settlement, EpochResult, Digest]:
    """This epoch's table and result, recomputed through all results before it."""
    run_state, previous, ended = start(spec, run_id_of(spec)), NO_DIGEST, 0
    states: dict[int, Digest] = {}
    for round_id in range(spec.settled_at(epoch) + 1):
        name = f"bundle/links/{round_id:06d}.cbor"
        try:
            link = decode(CertifiedManifest, (bundle / "links" / f"{round_id:06d}.cbor").read_bytes())
            run_state = extend(run_state, link)
        except (OSError, AssayError) as error:
            raise IntegrityError(f"{name}: {error}") from None
        for signed in link.manifest.commits:
            if signed.commit.state != NO_DIGEST:
                states[round_id] = signed.commit.state
        while ended <= epoch and spec.settled_at(ended) == round_id:
            table = settle(run_state, ended)
            result, previous = _checked(spec, deployment, bundle, table, previous, states)
            ended += 1
    return table, result, previous


def _checked(
    spec: RunSpec,
    deployment: Deployment,
    bundle: Path,
    table: Settlement,
    previous: Digest,
    states: dict[int, Digest],
) -> tuple[EpochResult, Digest]:
    """The result that follows from a table, if the bundle has the same with a quorum's signatures."""
    name = f"bundle/settlements/epoch-{table.epoch:03d}.json"
    try:
        told: dict[str, Any] = parse_json((bundle / "settlements" / Path(name).name).read_text())
        model = Digest(bytes.fromhex(told["result"]["model_hash"]))
        result = epoch_result(spec, table, model, previous)
        digest = result_digest(deployment, result)
        rows = [
            [row["role"], row["peer"], row["account"], row["amount"]]
            for row in sorted(told["rows"], key=lambda row: int(row["index"]))
        ]
        unpaid = [[one["round"], one["node"], one["reason"]] for one in told["unpaid"]]
        for what, here, there in (
            ("payout rows", _rows(table), rows),
            ("unpaid steps", [[one.round, one.node.hex(), one.reason] for one in table.unpaid], unpaid),
            ("tokens paid", table.tokens_paid, told["tokens_paid"]),
            ("total", table.total, told["result"]["total"]),
            ("table hash", table.table_hash.hex(), told["result"]["table_hash"]),
            ("root", result.root.hex(), told["result"]["root"]),
            ("result before it", previous.hex(), told["result"]["prev_result"]),
            ("result digest", digest.hex(), told["digest"]),
        ):
            if here != there:
                raise IntegrityError(
                    f"{name}: {what}: {_short(there)}, the certified chain gives {_short(here)}"
                )
        state = states.get(epoch_end(spec, table.epoch), model)
        if state != model:
            raise IntegrityError(
                f"{name}: parameters {model.hex()[:16]}, nodes committed to {state.hex()[:16]}"
            )
        hot_keys = [evm_address(member.hot) for member in spec.verifiers]
        verify_certificate(digest, bytes.fromhex(told["certificate"]), hot_keys)
    except IntegrityError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AssayError) as error:
        raise IntegrityError(f"{name}: {error}") from None
    return result, digest


def _compare_tables(db: Connection, table: Settlement) -> None:
    """Compare with the ledger's own copy of the table."""
    asked = {
        name: list(
            db.execute(
                sa.select(TABLES[name]).where(TABLES[name].c.epoch == table.epoch).order_by(TABLES[name].c[1])
            )
        )
        for name in ("settlement", "payout")
    }
    heads = [[one.table_hash, one.root, one.tokens_paid, one.total] for one in asked["settlement"]]
    if heads != [[table.table_hash, table.tree().root, table.tokens_paid, table.total]]:
        raise LedgerIntegrityError(f"ledger: table settlement differs in epoch {table.epoch}")
    for index, one in enumerate(asked["payout"]):
        here = _rows(table)[index : index + 1]
        if one.row_index != index or here != [[one.role, one.peer.hex(), one.account, one.amount]]:
            raise LedgerIntegrityError(
                f"ledger: table payout differs in epoch {table.epoch}, row {one.row_index}"
            )
    if len(asked["payout"]) != len(table.rows):
        raise LedgerIntegrityError(
            f"ledger: table payout has {len(asked['payout'])} rows, {len(table.rows)} expected"
        )
    unpaid = db.execute(
        sa.select(TABLES["unpaid"].c.round, TABLES["unpaid"].c.node, TABLES["unpaid"].c.reason)
        .where(TABLES["unpaid"].c.epoch == table.epoch)
        .order_by(TABLES["unpaid"].c.round, TABLES["unpaid"].c.node)
    )
    if [tuple(row) for row in unpaid] != sorted((one.round, one.node, one.reason) for one in table.unpaid):
        raise LedgerIntegrityError(f"ledger: table unpaid differs in epoch {table.epoch}")


def _compare_events(db: Connection, result: EpochResult, digest: Digest) -> None:
    """Compare with the contract's events for this epoch."""
    events = TABLES["chain_event"]
    kinds = (ResultProposed.__name__, ResultFinalized.__name__)
    rows = db.execute(
        sa.select(events)
        .where(events.c.kind.in_(kinds), events.c.state == "seen")
        .order_by(events.c.block_number, events.c.log_index)
    )
    final: ResultFinalized | None = None
    proposed: dict[bytes, ResultProposed] = {}
    for row in rows:
        try:
            event = event_of_row(row)
        except (ValueError, KeyError, TypeError) as error:
            raise LedgerIntegrityError(
                f"ledger: an event of block {row.block_number} cannot be read ({error})"
            ) from None
        if isinstance(event, ResultProposed) and event.run_id == result.run_id:
            proposed[event.digest] = event
        elif isinstance(event, ResultFinalized) and (event.run_id, event.epoch) == (
            result.run_id,
            result.epoch,
        ):
            final = event
    if final is None or final.digest not in proposed:
        raise LedgerIntegrityError(f"ledger: the contract never made epoch {result.epoch} final")
    claim = proposed[final.digest]
    told = (final.digest, claim.root, claim.table_hash, claim.model_hash, claim.total)
    if told != (digest, result.root, result.table_hash, result.model_hash, result.total):
        raise LedgerIntegrityError(f"ledger: the contract's final result of epoch {result.epoch} is another")


def _compare_entry(db: Connection, table: Settlement) -> bool:
    """Compare with the journal entry that credits the payees; returns whether one was due."""
    expected: dict[Account, int] = {}
    for row in table.rows:
        account = payable(row.role, evm_address(row.account), table.epoch)
        expected[account] = expected.get(account, 0) - row.amount
    booked: dict[Account, int] = {}
    for one in read_journal(db):
        if one.entry.kind == ResultFinalized.__name__ and one.entry.epoch == table.epoch:
            for posting in one.entry.postings:
                if posting.account.kind.value == "payable":
                    booked[posting.account] = booked.get(posting.account, 0) + posting.amount
    if {account: amount for account, amount in booked.items() if amount} != expected:
        raise LedgerIntegrityError(f"ledger: the entry that made epoch {table.epoch} payable has other rows")
    return bool(expected)


def _rows(table: Settlement) -> list[list[Any]]:
    return [[row.role, row.peer.hex(), evm_address(row.account), row.amount] for row in table.rows]


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 100 else text[:100] + "..."
