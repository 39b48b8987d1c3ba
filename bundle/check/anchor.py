"""Check anchor: compares a run's books with the log root anchored on chain, online or from the bundle's copy.

Room: bundle (edge: reads files, queries an endpoint). The contract records which account anchored a root; by
the spec, the ledger service's account is the one that receives the run's fee. Offline the anchor is the
buyer's word; what binds delivered books is the checkpoint that a quorum of verifiers cosigned.
"""

from __future__ import annotations

from pathlib import Path

from assay.bundle.books import Place, find_books, log_origin, opened, run_of, spec_of
from assay.bundle.finished import Anchored, LogPoint
from assay.chain.commit_statement import evm_address
from assay.ledger.journal.log_store import read_edge, read_notes, read_root
from assay.ledger.journal.reader import LedgerIntegrityError
from assay.ledger.log.audit import audit
from assay.ledger.settlement.results import run_id_of
from assay.participant.config import read_deployment
from assay.participant.files.index import IntegrityError
from assay.protocol.errors import ConfigError, Unavailable

DEPLOYMENT = "deployment.json"


def chain_line(run: Path, rpc: str, ledger_service: str | None) -> str:
    """Check online that the chain holds a root of these books; returns a line with the entry count.

    Args:
        run: The run.
        rpc: URL of an endpoint of the chain.
        ledger_service: The ledger service's account; by default the one that receives the run's fee.

    Raises:
        LedgerIntegrityError: the books differ from what was anchored, or nothing was anchored though a
            checkpoint is signed.
        ConfigError, Unavailable: another chain, an unreachable one, or the run's inputs are missing.
    """
    from assay.chain.reader import ChainReader  # importing web3 takes a second

    place = find_books(run)
    spec = spec_of(place)
    deployment = read_deployment((place.spec or Path()).parent / DEPLOYMENT)
    chain = ChainReader(rpc, deployment)
    chain.check_deployment()
    account = ledger_service or evm_address(spec.money.treasury)
    found = chain.log_anchor(account, run_id_of(spec))
    if found is None:
        with opened(place) as db:
            signed = read_notes(db, newest=1)
        if signed:
            raise LedgerIntegrityError(
                f"{account} anchored nothing of this run, and signed {signed[0].size} entries"
            )
        return f"anchored: nothing yet by {account}"
    size, root = found
    return f"anchored: {_compare(place, size, root, 'anchored')} by {account} on chain {deployment.chain_id}"


def check_books(folder: Path, point: LogPoint | None, anchor: Anchored | None) -> str:
    """Check offline that the delivered books hold the roots that verifiers cosigned and the buyer states.

    Returns:
        How many of the books' entries are anchored, as text; empty without an anchor.

    Raises:
        IntegrityError: they do not.
    """
    try:
        place = find_books(folder)
        with opened(place) as db:
            audit(db, log_origin(place, db), None, (), run_id=run_of(place)[1])
        if point is not None:
            _compare(place, point.size, point.root, "cosigned by a quorum")
        return "" if anchor is None else _compare(place, anchor.size, anchor.root, "anchored")
    except (LedgerIntegrityError, ConfigError, Unavailable) as error:
        raise IntegrityError(f"ledger.db: {error}") from None


def _compare(place: Place, size: int, root: bytes, how: str) -> str:
    """Compare the books' root with the one of a size, which is anchored or cosigned; returns both, as text.

    Raises:
        LedgerIntegrityError: the books have fewer, or another root there.
    """
    with opened(place) as db:
        have = read_edge(db).size
        if size > have:
            raise LedgerIntegrityError(
                f"the books were rolled back: {size} entries are {how}, {have} are here"
            )
        ours = read_root(db, size)
    if ours != root:
        raise LedgerIntegrityError(
            f"root {root.hex()[:16]} of {size} entries is {how}, the books have {ours.hex()[:16]} there"
        )
    return f"{size} of {have} entries, root {root.hex()},"
