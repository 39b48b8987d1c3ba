"""A directory in memory: what the contract would say, whoever announced it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from assay.chain.commit_statement import evm_address
from assay.chain.reader import NotShown
from assay.chain.statements import Address
from assay.participant.files.record import SignedRecord
from assay.protocol.encoding.codec import encode


@dataclass
class ADirectory:
    """Answers as `ChainReader` does."""

    blocks: dict[tuple[Address, bytes], int] = field(default_factory=dict)
    records: dict[tuple[Address, bytes, int], bytes] = field(default_factory=dict)
    runs: dict[bytes, bytes] = field(default_factory=dict)
    asked: int = 0  # records that were read

    def announce(self, signed: SignedRecord, block: int, body: bytes | None = None) -> None:
        """By the record's account; `body` in place of the record."""
        place = evm_address(signed.record.account), bytes(signed.record.peer)
        self.blocks[place] = block
        self.records[(*place, block)] = encode(signed) if body is None else body

    def record_blocks(self, whose: Sequence[tuple[Address, bytes]]) -> list[int]:
        return [self.blocks.get((account, bytes(peer)), 0) for account, peer in whose]

    def announced_record(self, account: Address, peer: bytes, number: int) -> bytes:
        self.asked += 1
        if (account, bytes(peer), number) not in self.records:
            raise NotShown(f"block {number}")
        return self.records[account, bytes(peer), number]

    def announced_run(self, run_id: bytes) -> bytes | None:
        return self.runs.get(bytes(run_id))
