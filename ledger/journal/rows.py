"""Rows: converts round facts and chain events to rows of the journal's tables, and events back.

Room: ledger (pure). Every row of these tables has an entry of the journal with the hash of it (its
`source`), so that the Merkle log has what the tables say:

    event/...         one chain event, once for each time that it was not orphaned
    round/N           what the manifest of one round brought, by `BROUGHT_IN`
    settlement/N      an epoch's payout table and its unpaid steps
    document/...      an invoice or a credit note
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

import cbor2

from assay.chain.commit_statement import evm_address
from assay.chain.events import EVENTS, ChainEvent, Gifted
from assay.ledger.journal.round_facts import RoundFacts
from assay.ledger.journal.tables import TABLES, written_once
from assay.ledger.settlement.payouts import Settlement
from assay.protocol.agreement.double_votes import double_vote_offence, signer_of
from assay.protocol.auditing.audits import FaultKind
from assay.protocol.encoding.codec import digest
from assay.protocol.types import NO_DIGEST

Place = tuple[bytes, int]  # block hash and log index: identifies an event for ever
Row = dict[str, Any]
# The column with the round whose manifest brought a row; shares of the beacon come with the next round's.
BROUGHT_IN = {
    "audit": TABLES["audit"].c.drawn_round,
    "contradiction": TABLES["contradiction"].c.in_round,
    "contribution": TABLES["contribution"].c.round,
    "fault": TABLES["fault"].c.in_round,
    "reveal": TABLES["reveal"].c.round + 1,
    "round": TABLES["round"].c.round,
    "ruling": TABLES["ruling"].c.closed_round,
    "verdict": TABLES["verdict"].c.in_round,
}
SETTLED_IN = {name: TABLES[name].c.epoch for name in ("payout", "settlement", "unpaid")}
_KINDS: dict[str, type[ChainEvent]] = {kind.__name__: kind for kind in (*EVENTS, Gifted)}
_PLACE = {field.name for field in fields(ChainEvent)}


def place_of(event: ChainEvent) -> Place:
    """An event's position in the chain."""
    return event.block_hash, event.log_index


def event_row(event: ChainEvent) -> Row:
    """Row of an event. Its own fields become JSON, bytes in hexadecimal."""
    own = {field.name: getattr(event, field.name) for field in fields(event) if field.name not in _PLACE}
    own |= {"tx_hash": event.tx_hash, "block_time": event.block_time}
    return {
        "block_hash": event.block_hash,
        "log_index": event.log_index,
        "block_number": event.block_number,
        "kind": type(event).__name__,
        "body": json.dumps({n: v.hex() if isinstance(v, bytes) else v for n, v in own.items()}),
        "state": "seen",
        "turns": 0,
    }


def event_of_row(row: Any) -> ChainEvent:
    """Inverts `event_row`."""
    kind = _KINDS[row.kind]
    own = json.loads(row.body)
    for field in fields(kind):
        if field.type == "bytes" and field.name in own:
            own[field.name] = bytes.fromhex(own[field.name])
    return kind(block_hash=row.block_hash, log_index=row.log_index, block_number=row.block_number, **own)


class Source:
    """The hash of rows: each in its table's order of columns, tables by name and rows by primary key."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256(b"assay/source/1")

    def take(self, name: str, row: Iterable[Any]) -> None:
        """Add a row: the values of its columns that never change."""
        self._hash.update(cbor2.dumps([name, *row], canonical=True))

    @property
    def digest(self) -> bytes:
        """Of the rows so far."""
        return self._hash.digest()


def source_of(rows: Mapping[str, Iterable[Row]]) -> bytes:
    """The hash of rows, by table."""
    made = Source()
    for name, found in sorted(rows.items()):
        table = TABLES[name]
        key = [column.name for column in table.primary_key]
        for row in sorted(found, key=lambda row: [row[column] for column in key]):
            made.take(name, [row[column.name] for column in written_once(table)])
    return made.digest


def rows_of_round(facts: RoundFacts) -> dict[str, list[Row]]:
    """All rows that one final manifest adds, by table; those of a settlement are in `rows_of_settlement`."""
    return {
        "round": [
            {
                "round": facts.round,
                "manifest": facts.manifest,
                "aggregate": facts.aggregate,
                "signatures": facts.signatures,
                "active": facts.active,
            }
        ],
        "contribution": [
            {
                "round": int(commit.round),
                "node": commit.node,
                "epoch": facts.epoch,
                "tokens": commit.tokens,
                "commit_digest": digest(commit),
                "update_digest": commit.update,
                "update_bytes": commit.update_bytes,
                "loss_micro": commit.loss_micro,
            }
            for commit in facts.commits
        ],
        "reveal": [
            {"round": facts.round - 1, "verifier": facts.configuration.key(seat)}
            for seat in facts.beacon_shares
        ],
        "audit": [
            {
                "round": int(audit.round),
                "node": audit.node,
                "drawn_round": facts.round,
                "offence_id": audit.offence_id,
            }
            for audit in facts.drawn
        ],
        "verdict": [
            {
                "round": int(verdict.round),
                "node": verdict.node,
                "verifier": facts.configuration.key(verdict.verifier),
                "outcome": verdict.outcome.name.lower(),
                "in_round": facts.round,
            }
            for verdict in facts.verdicts
        ],
        "ruling": [
            {
                "round": int(audit.round),
                "node": audit.node,
                "ruling": audit.ruling.value,
                "closed_round": audit.closed_round,
            }
            for audit in facts.ruled
        ],
        "fault": [
            {
                "offence_id": fault.offence_id,
                "verifier": facts.configuration.key(fault.verdict.verifier),
                "round": int(audit.round),
                "node": audit.node,
                "failing": fault.failing.name.lower(),
                "verdict_digest": digest(fault.verdict),
                "in_round": facts.round,
            }
            for audit, fault in facts.faults
        ]
        + [
            {
                "offence_id": double_vote_offence(pair.run_id, signer),
                "verifier": signer,
                "round": facts.round,
                "node": NO_DIGEST,
                "failing": FaultKind.DOUBLE_VOTED.name.lower(),
                "verdict_digest": digest(pair),
                "in_round": facts.round,
            }
            for pair in facts.double_votes
            for signer in (signer_of(pair, facts.configuration),)
        ],
        "contradiction": [
            {
                "round": int(pair.first.commit.round),
                "node": pair.first.commit.node,
                "first_digest": digest(pair.first.commit),
                "second_digest": digest(pair.second.commit),
                "in_round": facts.round,
            }
            for pair in facts.contradictions
        ],
    }


def rows_of_settlement(settlement: Settlement) -> dict[str, list[Row]]:
    """The rows of an epoch's payout table, by table."""
    epoch = settlement.epoch
    return {
        "settlement": [
            {
                "epoch": epoch,
                "table_hash": settlement.table_hash,
                "root": settlement.tree().root,
                "tokens_paid": settlement.tokens_paid,
                "total": settlement.total,
            }
        ],
        "payout": [
            {
                "epoch": epoch,
                "row_index": index,
                "role": row.role,
                "peer": row.peer,
                "account": evm_address(row.account),
                "amount": row.amount,
            }
            for index, row in enumerate(settlement.rows)
        ],
        "unpaid": [
            {"round": one.round, "node": one.node, "epoch": epoch, "reason": one.reason.value}
            for one in settlement.unpaid
        ],
    }
