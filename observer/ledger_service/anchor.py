"""Anchor: puts the newest ledger checkpoint on chain, and detects rolled-back books by it.

Room: observer (edge: chain and log; blocking, callers run it in a thread). The contract keeps one size and
root for each ledger account and run, and accepts only larger sizes (docs/decisions/0001). Restoring an old
disk does not roll back the chain.

    checkpoint --anchor--> ModelRegistry --log_anchor--> the books hold it, or the service stops
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from assay.ledger.log.note import Checkpoint, read_checkpoint
from assay.ledger.log.signer import CheckpointSigner
from assay.protocol.types import Digest

if TYPE_CHECKING:
    from assay.chain.client import Chain

log = logging.getLogger(__name__)


def compare_with_anchor(chain: Chain, checkpoint_signer: CheckpointSigner, run_id: Digest) -> int:
    """Entries anchored by our account, all of which are in the books; 0 before the first anchor.

    Raises:
        LedgerRolledBack: the books differ from what was anchored.
        Unavailable: chain or books cannot be read now.
    """
    anchored = chain.log_anchor(chain.address, run_id)
    if anchored is None:
        return 0
    size, root = anchored
    checkpoint_signer.check(Checkpoint(origin=checkpoint_signer.origin, size=size, root=root), "the chain")
    return size


def anchor_newest(chain: Chain, checkpoint_signer: CheckpointSigner, run_id: Digest) -> int:
    """Put the newest checkpoint on chain unless it is there; returns the anchored entry count.

    Raises:
        LedgerRolledBack: an anchored root is not in the books.
        Unavailable, ChainRefused: not possible now; a repeated call resumes.
    """
    size, newest = compare_with_anchor(chain, checkpoint_signer, run_id), checkpoint_signer.newest()
    if newest is None or newest.size <= size:
        return size
    checkpoint = read_checkpoint(newest.text, checkpoint_signer.origin, newest.signer)
    chain.anchor_log(run_id, checkpoint.size, checkpoint.root)
    log.info("ledger anchored", extra={"entries": checkpoint.size, "root": checkpoint.root.hex()[:16]})
    return checkpoint.size
