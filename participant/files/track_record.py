"""Track record: what a run's verifiers say of a node that ended, for verifiers of its account's next runs.

Room: participant (pure; the last section reads and writes files). A quorum of the run's verifier set signs
the EIP-712 statement `TrackRecord`. The folder of the keys keeps the best of each class; a node shows one
with its application, and a new node of the same account gets it too.
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
SUFFIX = ".track-record"  # of files in the folder of the keys, one for each account and class
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


def read_track_records(folder: Path) -> list[TrackRecord]:
    """Those that a folder of keys keeps, not checked, without damaged ones."""
    found = []
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        try:
            found.append(from_text(PREFIX, TrackRecord, read_text(path, "track record", FILE_BYTES_MAX)))
        except (MalformedMessage, ConfigError) as error:  # it costs probation, and keeps no node from its run
            log.warning("track record not read", extra={"file": str(path), "reason": str(error)})
    return found


def write_track_record(folder: Path, found: TrackRecord) -> None:
    """Keep it in a folder of keys, unless the one kept of its class says more and is not too old.

    Raises:
        ConfigError: it cannot be written.
    """
    for kept in read_track_records(folder):
        is_like = (kept.account, kept.exec_class) == (found.account, found.exec_class)
        if is_like and kept.clean > found.clean and found.heard_s <= kept.heard_s + VALID_S:
            return
    notes = (f"{found.clean} audits passed in a row in run {found.run_id.hex()}", "shown to later runs")
    name = f"{found.account.hex()[:8]}-{found.exec_class.hex()[:8]}{SUFFIX}"
    write_text(folder / name, to_text(PREFIX, found, notes))


def best_track_record(folders: Iterable[Path], account: Address) -> TrackRecord | None:
    """What to show of those that folders of keys keep for an account; None without any.

    Of the class of its last step anywhere, for that is the class of its machine, the most audits.
    """
    found = [one for folder in folders for one in read_track_records(folder) if one.account == account]
    last = max(found, key=lambda one: one.heard_s, default=None)
    if last is None:
        return None
    alike = (
        one for one in found
        if one.exec_class == last.exec_class and last.heard_s <= one.heard_s + VALID_S
    )  # fmt: skip
    return max(alike, key=lambda one: (one.clean, one.heard_s))
