"""Payout tree: one epoch's payout table as a Merkle root, and a proof for each payee.

Room: chain (pure). The same tree that EpochSettlement.claim checks with
OpenZeppelin's MerkleProof: leaves are hashed twice, pairs are sorted before they
are hashed, and an odd node rises unchanged to the next level (it is never
paired with itself, so no two tables share a root).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eth_utils.crypto import keccak

from assay.chain.statements import Address

EMPTY_ROOT = bytes(32)
AMOUNT_MAX = 2**128 - 1
WORD_BYTES, ADDRESS_BYTES = 32, 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Payout:
    """One row of the table: `amount` token units to `account`."""

    account: Address
    amount: int


@dataclass(frozen=True, slots=True)
class PayoutTree:
    """All levels of the tree, leaves first; `payouts[index]` is leaf `index`."""

    payouts: tuple[Payout, ...]
    levels: tuple[tuple[bytes, ...], ...]

    @property
    def root(self) -> bytes:
        """32 bytes; all zero for an empty table, which no proof satisfies."""
        return self.levels[-1][0] if self.payouts else EMPTY_ROOT

    @property
    def total(self) -> int:
        """The sum of all rows in token units: what the epoch result signs."""
        return sum(payout.amount for payout in self.payouts)

    def proof(self, index: int) -> tuple[bytes, ...]:
        """The siblings from leaf `index` up to the root.

        Raises:
            IndexError: no such row.
        """
        if not 0 <= index < len(self.payouts):
            raise IndexError(f"row {index} of a table of {len(self.payouts)}")
        siblings = []
        for level in self.levels[:-1]:
            sibling = index ^ 1
            if sibling < len(level):
                siblings.append(level[sibling])
            index //= 2
        return tuple(siblings)


def payout_tree(run_id: bytes, epoch: int, payouts: Sequence[Payout]) -> PayoutTree:
    """Builds the tree of one (run, epoch). The caller fixes the order of rows; it is part of the root.

    Raises:
        ValueError: an amount is negative or above 2^128 - 1.
    """
    for payout in payouts:
        if not 0 <= payout.amount <= AMOUNT_MAX:
            raise ValueError(f"payout of {payout.amount} units to {payout.account}")
    level = tuple(
        leaf(run_id, epoch, index, payout.account, payout.amount) for index, payout in enumerate(payouts)
    )
    levels = [level]
    while len(level) > 1:
        level = tuple(
            _parent(level[at], level[at + 1]) if at + 1 < len(level) else level[at]
            for at in range(0, len(level), 2)
        )
        levels.append(level)
    return PayoutTree(tuple(payouts), tuple(levels))


def leaf(run_id: bytes, epoch: int, index: int, account: str, amount: int) -> bytes:
    """keccak(keccak(abi.encode(runId, epoch, index, account, amount))), 32 bytes.

    Raises:
        ValueError: a number that no EVM word holds, no address, or no run id.
    """
    # Five fixed-size EVM words: packing them by hand takes a third of the general encoder's time.
    encoded = (run_id, _word(epoch), _word(index), _address(account), _word(amount))
    row = b"".join(encoded)
    if len(row) != 5 * WORD_BYTES:
        raise ValueError(f"a run id of {len(run_id)} bytes")
    return keccak(keccak(row))


def _word(number: int) -> bytes:
    if not 0 <= number < 1 << 8 * WORD_BYTES:
        raise ValueError(f"a number of {number.bit_length()} bits does not fit into an unsigned EVM word")
    return number.to_bytes(WORD_BYTES, "big")


def _address(account: str) -> bytes:
    plain = bytes.fromhex(account.removeprefix("0x"))
    if len(plain) != ADDRESS_BYTES:
        raise ValueError(f"{account!r} is not an address")
    return plain.rjust(WORD_BYTES, b"\0")


def root_of_proof(start: bytes, proof: Sequence[bytes]) -> bytes:
    """The root that `proof` leads to from leaf hash `start`; a claim holds when it equals the signed root."""
    node = start
    for sibling in proof:
        node = _parent(node, sibling)
    return node


def _parent(a: bytes, b: bytes) -> bytes:
    return keccak(a + b if a < b else b + a)
