"""Types: `NewType`s for ids, digests and signatures, so that the type checker catches a swap.

Room: protocol (pure). A `NewType` costs nothing at run time; `codec` enforces its exact length on bytes
that arrive.
"""

from __future__ import annotations

from typing import NewType

PeerId = NewType("PeerId", bytes)  # 32 bytes: Ed25519 public key, also the libp2p identity
Digest = NewType("Digest", bytes)  # 32 bytes: SHA-256 or BLAKE3, as the field says
Signature = NewType("Signature", bytes)  # 64 bytes: Ed25519
HotSignature = NewType("HotSignature", bytes)  # 65 bytes: secp256k1 r | s | v over an EIP-712 digest
Address = NewType("Address", bytes)  # 20 bytes: an account on the EVM chain
RoundId = NewType("RoundId", int)  # height in the finalised chain, from 0
Iteration = NewType("Iteration", int)  # Simplex iteration, from 1; several may pass in one round

FIXED_BYTES: dict[object, int] = {PeerId: 32, Digest: 32, Signature: 64, HotSignature: 65, Address: 20}

NO_DIGEST = Digest(bytes(32))
NO_PEER = PeerId(bytes(32))
NO_ADDRESS = Address(bytes(20))
NO_ITERATION = Iteration(0)  # they start at 1
