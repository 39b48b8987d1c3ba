"""Track record: what a run's verifiers say of a node that ended, for verifiers of its account's next runs.

Room: participant (pure; the last section reads and writes files). A quorum of the run's verifier set signs
the EIP-712 statement `TrackRecord`. The folder of the keys keeps the last one; a node shows it with its
application, and a new node of the same account gets it too.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from assay.chain import statements
from assay.chain.commit_statement import evm_address
from assay.chain.statements import MEMBERS_MAX, SIGNATURE_BYTES
from assay.participant.files.armour import from_text, read_text, to_text, write_text
from assay.protocol.encoding.codec import Max
from assay.protocol.errors import ConfigError, MalformedMessage
from assay.protocol.types import Address, Digest

log = logging.getLogger(__name__)
PREFIX = "assay-track-record-1"
FILE = "own.track-record"  # in the folder of the keys
FILE_BYTES_MAX = 16_384
VALID_S = 30 * 86_400  # after the node's last accepted step


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackRecord:
    """How many audits in a row a node had passed in a run, and a quorum's signatures on that."""

    TAG: ClassVar[bytes] = b"assay/track-record/1"
    run_id: Digest
    account: Address
    exec_class: Digest
    clean: int
    heard_s: int  # agreed time of its last accepted step
    certificate: Annotated[bytes, Max(MEMBERS_MAX * SIGNATURE_BYTES)]

    def statement(self, deployment_id: bytes) -> statements.TrackRecord:
        """What the certificate is over."""
        return statements.TrackRecord(
            deployment_id=deployment_id,
            run_id=self.run_id,
            account=evm_address(self.account),
            exec_class=self.exec_class,
            clean=self.clean,
            heard=self.heard_s,
        )


# ---- files


def read_track_record(folder: Path) -> TrackRecord | None:
    """The one that a folder of keys keeps, not checked; None without one, or if it is damaged."""
    path = folder / FILE
    if not path.exists():
        return None
    try:
        return from_text(PREFIX, TrackRecord, read_text(path, "track record", FILE_BYTES_MAX))
    except (MalformedMessage, ConfigError) as error:  # it costs probation, and keeps no node from its run
        log.warning("track record not read", extra={"file": str(path), "reason": str(error)})
        return None


def write_track_record(folder: Path, found: TrackRecord) -> None:
    """Keep it in a folder of keys, unless the kept one says more of the same class and is not too old.

    Raises:
        ConfigError: it cannot be written.
    """
    kept = read_track_record(folder)
    is_like = kept is not None and (kept.account, kept.exec_class) == (found.account, found.exec_class)
    if kept is not None and is_like and kept.clean > found.clean and found.heard_s <= kept.heard_s + VALID_S:
        return
    notes = (f"{found.clean} audits passed in a row in run {found.run_id.hex()}", "shown to later runs")
    write_text(folder / FILE, to_text(PREFIX, found, notes))


def newest_track_record(folders: Iterable[Path], account: Address) -> TrackRecord | None:
    """Of those that folders of keys keep for an account the one of the latest step; None without any."""
    found = [one for one in map(read_track_record, folders) if one is not None and one.account == account]
    return max(found, key=lambda one: one.heard_s, default=None)
