"""Binding: the report data that ties attestation evidence to one node, run, epoch, code and nonce.

Room: attestation (pure). A report proves nothing about a node unless the bytes that the
device signed name that node. Attester and verifier compute the same two values:

    context     = H("assay/attest/v1", deployment, node, run, epoch, code)
    gpu_nonce   = H("assay/gpu/v1", context, nonce)                                  32 bytes
    report_data = H("assay/report-data/v1", context, H(gpu evidence or "")) | nonce  64 bytes

H is SHA-256 over its arguments, each prefixed with its length as four bytes, big-endian:
no two lists of arguments have equal bytes. GPUs are bound through the guest:
it checks them, and its processor signs the digest of their reports.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from assay.attestation.evidence import Report
from assay.protocol.encoding.codec import encode
from assay.protocol.types import Digest, PeerId


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """Node, run, epoch, code and nonce that evidence must be bound to.

    A nonce is drawn by the verifiers, used once, and unpredictable before
    `nonce_at_s`: evidence over it is younger than that.
    """

    TAG: ClassVar[bytes] = b"assay/attest-binding/1"
    deployment_id: Digest
    node: PeerId
    run_id: Digest
    epoch: int
    code_digest: Digest  # SHA-256 of the guest's code
    nonce: Digest
    nonce_at_s: int  # Unix time at which the nonce was drawn; known to the verifier, not hashed


def context(binding: Binding) -> Digest:
    """The digest of node, deployment, run, epoch and code."""
    return _hash(
        b"assay/attest/v1",
        binding.deployment_id,
        binding.node,
        binding.run_id,
        binding.epoch.to_bytes(8, "big"),
        binding.code_digest,
    )


def gpu_nonce(binding: Binding) -> bytes:
    """The 32-byte nonce for every GPU of the node."""
    return _hash(b"assay/gpu/v1", context(binding), binding.nonce)


def report_data(binding: Binding, gpus: Sequence[Report]) -> bytes:
    """The 64 bytes of report data that the processor signs.

    Args:
        binding: Of the evidence.
        gpus: The GPU reports that the guest has checked, in their order in the evidence.
    """
    reports = b"".join(_prefixed(encode(gpu)) for gpu in gpus)
    head = _hash(b"assay/report-data/v1", context(binding), hashlib.sha256(reports).digest())
    return head + binding.nonce


def _hash(*fields: bytes) -> Digest:
    return Digest(hashlib.sha256(b"".join(map(_prefixed, fields))).digest())


def _prefixed(field: bytes) -> bytes:
    return len(field).to_bytes(4, "big") + field
