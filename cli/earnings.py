"""Earnings: what a node was paid for, and for every step it was not, why and by which evidence.

Room: cli (edge: reads the books). Steps, rulings and tables are what the certified
chain made of them; `assay ledger settle --check` computes them again.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from cli.books import find_books, opened
from ledger.log_audit import read_journal
from orders.amounts import UNIT, money_text
from protocol.errors import ConfigError

HALF_SHARE = "its share rounds to nothing"


def earning_lines(run: Path, node: str) -> Iterator[str]:
    """One line per epoch, and the sum.

    Raises:
        ConfigError: no such node.
    """
    with opened(find_books(run)) as db:
        peer = _peer(db, node)
        claimed = _claims(db)
        steps = _ask(
            db,
            "SELECT contribution.epoch, count(*) AS steps, sum(contribution.tokens) AS tokens, "
            "count(unpaid.reason) AS unpaid FROM contribution LEFT JOIN unpaid USING (round, node) "
            "WHERE contribution.node = :node GROUP BY contribution.epoch ORDER BY contribution.epoch",
            node=peer,
        )
        settled = {row.epoch for row in _ask(db, "SELECT epoch FROM settlement")}
        pay = {
            row.epoch: row
            for row in _ask(
                db,
                "SELECT epoch, account, amount FROM payout WHERE role = 'operator' AND peer = :node",
                node=peer,
            )
        }
    yield f"node {peer.hex()}"
    for row in steps:
        counted = f"epoch {row.epoch}: {row.steps} steps accepted, {row.tokens:,} tokens"
        if row.epoch not in settled:
            yield f"{counted}, not settled yet"
            continue
        due = pay.get(row.epoch)
        paid = 0 if due is None else due.amount
        state = ""
        if due is not None:
            got = claimed.get((due.account, row.epoch), 0)
            state = ", claimed" if got >= due.amount else ", to be claimed"
        why = f"; {row.unpaid} unpaid, see --why {row.epoch}" if row.unpaid else ""
        yield f"{counted}, {money_text(paid)} {UNIT}{state}{why}"
    yield f"in all {money_text(sum(row.amount for row in pay.values()))} {UNIT}"


def reason_lines(run: Path, node: str, epoch: int) -> Iterator[str]:
    """Every step of the epoch that was not paid: round, reason, and the digests that show it.

    Raises:
        ConfigError: no such node, or the node has no step in this epoch, or it is not settled.
    """
    with opened(find_books(run)) as db:
        peer = _peer(db, node)
        steps = _ask(
            db,
            "SELECT contribution.round, tokens, commit_digest, update_digest, unpaid.reason, "
            "round.manifest FROM contribution JOIN round USING (round) LEFT JOIN unpaid "
            "ON unpaid.round = contribution.round AND unpaid.node = contribution.node "
            "WHERE contribution.node = :node AND contribution.epoch = :epoch ORDER BY contribution.round",
            node=peer,
            epoch=epoch,
        )
        if not steps:
            raise ConfigError(f"node {peer.hex()[:8]} has no accepted step in epoch {epoch}")
        if not _ask(db, "SELECT epoch FROM settlement WHERE epoch = :epoch", epoch=epoch):
            raise ConfigError(f"epoch {epoch} is not settled yet")
        is_paid = bool(
            _ask(
                db,
                "SELECT 1 FROM payout WHERE role = 'operator' AND peer = :node AND epoch = :epoch",
                node=peer,
                epoch=epoch,
            )
        )
        evidence = {row.round: list(_evidence(db, peer, row.round)) for row in steps}
        fault = _ask(
            db, "SELECT min(round) AS round FROM ruling WHERE node = :node AND ruling = 'upheld'", node=peer
        )[0].round
        upheld = [] if fault is None else list(_evidence(db, peer, fault))
    count = 0
    for row in steps:
        reason = row.reason or (None if is_paid else HALF_SHARE)
        if reason is None:
            continue
        count += 1
        yield f"round {row.round}: {reason} ({row.tokens:,} tokens)"
        yield f"    commit   {row.commit_digest.hex()}"
        yield f"    update   {row.update_digest.hex()}"
        yield f"    manifest {row.manifest.hex()}"
        yield from evidence[row.round]
        if fault is not None and fault != row.round and "fault" in reason:
            yield f"    because of round {fault}:"
            yield from upheld
    yield f"{count} of {len(steps)} steps in epoch {epoch} were not paid"


def _evidence(db: Connection, peer: bytes, round_id: int) -> Iterator[str]:
    """The audit of one step: who found what in which manifest, and how it ended."""
    for audit in _ask(
        db,
        "SELECT offence_id, drawn_round, manifest FROM audit JOIN round ON round.round = drawn_round "
        "WHERE audit.round = :round AND node = :node",
        round=round_id,
        node=peer,
    ):
        yield f"    audit    drawn in round {audit.drawn_round}, offence {audit.offence_id.hex()}"
    for verdict in _ask(
        db,
        "SELECT verifier, outcome, in_round, manifest FROM verdict JOIN round ON round.round = in_round "
        "WHERE verdict.round = :round AND node = :node ORDER BY in_round, verifier",
        round=round_id,
        node=peer,
    ):
        yield (
            f"    verdict  {verdict.outcome} by {verdict.verifier.hex()[:8]} "
            f"in round {verdict.in_round}, manifest {verdict.manifest.hex()}"
        )
    for ruling in _ask(
        db,
        "SELECT ruling, closed_round, manifest FROM ruling JOIN round ON round.round = closed_round "
        "WHERE ruling.round = :round AND node = :node",
        round=round_id,
        node=peer,
    ):
        yield (
            f"    ruling   {ruling.ruling} in round {ruling.closed_round}, manifest {ruling.manifest.hex()}"
        )


def _claims(db: Connection) -> dict[tuple[str, int], int]:
    """What left each operator's payable account by claims, by the journal."""
    claimed: dict[tuple[str, int], int] = {}
    for one in read_journal(db):
        for posting in one.entry.postings:
            account = posting.account
            if one.entry.kind == "Claimed" and account.role == "operator":
                place = (account.owner, account.epoch)
                claimed[place] = claimed.get(place, 0) + posting.amount
    return claimed


def _peer(db: Connection, node: str) -> bytes:
    known: list[bytes] = [
        row.node for row in _ask(db, "SELECT DISTINCT node FROM contribution ORDER BY node")
    ]
    fits = [peer for peer in known if node and peer.hex().startswith(node.lower())]
    if len(fits) != 1:
        names = ", ".join(peer.hex()[:8] for peer in known)
        words = "several nodes begin" if fits else "no node with an accepted step begins"
        raise ConfigError(f"{words} with {node!r}; there are {names or 'none'}")
    return fits[0]


def _ask(db: Connection, question: str, **given: Any) -> list[Any]:
    return list(db.execute(sa.text(question), given))
