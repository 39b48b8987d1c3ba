"""Anchored: a run's books held against what its keeper put on chain, by asking it or by the bundle's copy.

Room: bundle (edge: reads files, asks an endpoint). The contract says which account anchored a root; that
the keeper's is the account the run's fee goes to, the spec says.
"""

from __future__ import annotations

from pathlib import Path

from assay.bundle.books import Place, find_books, log_origin, opened, spec_of
from assay.bundle.finished import Anchored
from assay.chain.addresses import Deployment
from assay.chain.commit_statement import evm_address
from assay.ledger.journal.log_store import read_edge, read_notes, read_root
from assay.ledger.journal.reader import LedgerIntegrityError
from assay.ledger.log.audit import audit
from assay.ledger.settlement.results import run_id_of
from assay.participant.index import IntegrityError
from assay.protocol.errors import ConfigError, Unavailable

DEPLOYMENT = "deployment.json"


def chain_line(run: Path, rpc: str, ledger_service: str | None) -> str:
    """That the chain holds a root of these books, and of how many entries.

    Args:
        run: The run.
        rpc: URL of an endpoint of the chain.
        keeper: The keeper's account; by default the one that the run's fee goes to.

    Raises:
        LedgerIntegrityError: the books are not what was anchored, or nothing was though a checkpoint is
            signed.
        ConfigError, Unavailable: the chain is another or away, or the run's papers are not at hand.
    """
    from assay.chain.reader import ChainReader  # web3 costs a second to import; wait until it is needed

    place = find_books(run)
    spec, deployment = spec_of(place), _deployment(place)
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
    return f"anchored: {_compare(place, *found)} by {account} on chain {deployment.chain_id}"


def anchored_line(folder: Path, anchor: Anchored) -> str:
    """That the delivered books hold the root that the bundle says is on chain; offline.

    Raises:
        Altered: they do not.
    """
    try:
        place = find_books(folder)
        with opened(place) as db:
            audit(db, log_origin(place, db), None, ())
        told = _compare(place, anchor.size, anchor.root)
    except (LedgerIntegrityError, ConfigError, Unavailable) as error:
        raise IntegrityError(f"ledger.db: {error}") from None
    block = f"block {anchor.block_number} ({anchor.block_hash.hex()[:16]})"
    asked = "`assay ledger audit --rpc` asks the chain itself"
    return f"anchor: {told} in {block} by {anchor.ledger_service}; {asked}"


def _compare(place: Place, size: int, root: bytes) -> str:
    """Which entries are anchored.

    Raises:
        LedgerIntegrityError: the books have fewer, or another root there.
    """
    with opened(place) as db:
        have = read_edge(db).size
        if size > have:
            raise LedgerIntegrityError(
                f"the books were rolled back: {size} entries are anchored, {have} are here"
            )
        ours = read_root(db, size)
    if ours != root:
        raise LedgerIntegrityError(
            f"root {root.hex()[:16]} of {size} entries is anchored, the books have {ours.hex()[:16]} there"
        )
    return f"{size} of {have} entries, root {root.hex()},"


def _deployment(place: Place) -> Deployment:
    path = (place.spec or Path()).parent / DEPLOYMENT
    try:
        return Deployment.from_json(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error})") from None
