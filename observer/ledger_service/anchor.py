"""Anchor: the newest checkpoint of the books on chain, and books that went back refused by it.

Room: observer (edge: chain and log; blocking, callers run it in a thread). The contract keeps
one size and root for each keeper and run, and only ever takes a larger one (docs/decisions/0001). Who puts
the keeper's disk back cannot put the chain back.

    checkpoint --anchor--> ModelRegistry --log_anchor--> the books hold it, or the keeper stops
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
    """How many entries are anchored by our account, all of them in the books; 0 before the first.

    Raises:
        LedgerRolledBack: the books are not those that were anchored.
        Unavailable: chain or books cannot be read now.
    """
    anchored = chain.log_anchor(chain.address, run_id)
    if anchored is None:
        return 0
    size, root = anchored
    checkpoint_signer.check(Checkpoint(origin=checkpoint_signer.origin, size=size, root=root), "the chain")
    return size


def anchor_newest(chain: Chain, checkpoint_signer: CheckpointSigner, run_id: Digest) -> int:
    """Put the newest checkpoint on chain unless it is there; how many entries are anchored then.

    Raises:
        LedgerRolledBack: something is anchored that the books do not hold.
        Unavailable, ChainRefused: not now; doing it again goes on.
    """
    size, newest = compare_with_anchor(chain, checkpoint_signer, run_id), checkpoint_signer.newest()
    if newest is None or newest.size <= size:
        return size
    told = read_checkpoint(newest.text, checkpoint_signer.origin, newest.signer)
    chain.anchor_log(run_id, told.size, told.root)
    log.info("ledger anchored", extra={"entries": told.size, "root": told.root.hex()[:16]})
    return told.size
