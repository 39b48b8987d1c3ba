"""Proposals: certified results that were posted, and whoever signed two of them for one epoch.

Room: chain (pure). Two results for one epoch with a common signer are evidence for the slash court.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from assay.chain.addresses import Deployment
from assay.chain.statements import SIGNATURE_BYTES, Address, BadSignatureError, EpochResult, signers


@dataclass(frozen=True, slots=True, kw_only=True)
class CertifiedResult:
    """An epoch's result with a quorum's signatures, as the contract expects them."""

    result: EpochResult
    certificate: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DoubleResult:
    """Two different results for one epoch that one account signed, with one hot key or two."""

    signer: Address  # hot key of the first signature
    first: EpochResult
    first_signature: bytes
    second: EpochResult
    second_signature: bytes


def double_results(
    deployment: Deployment, proposals: Sequence[CertifiedResult], account_of: Callable[[Address], Address]
) -> Iterator[DoubleResult]:
    """Two different results for one epoch of a run, for each account that signed such.

    An account that signed more than two of them has one pair for each but its first: whoever posts many does
    not make its readers compare all with all.

    Args:
        deployment: The contracts that all were proposed to.
        proposals: What was proposed, with its certificates.
        account_of: The account of a hot key, replaced or not.
    """
    by_epoch: dict[tuple[bytes, int], list[CertifiedResult]] = {}
    for one in proposals:
        by_epoch.setdefault((one.result.run_id, one.result.epoch), []).append(one)
    for posted in by_epoch.values():
        if all(one.result == posted[0].result for one in posted):
            continue  # nearly always: nobody has to recover the signatures
        firsts: dict[Address, tuple[Address, EpochResult, bytes]] = {}
        for one in posted:
            for signer, signature in _signatures(deployment, one).items():
                own = (signer, one.result, signature)
                first_signer, first, first_signature = firsts.setdefault(account_of(signer), own)
                if first != one.result:
                    yield DoubleResult(
                        signer=first_signer,
                        first=first,
                        first_signature=first_signature,
                        second=one.result,
                        second_signature=signature,
                    )


def _signatures(deployment: Deployment, certified: CertifiedResult) -> dict[Address, bytes]:
    cert = certified.certificate
    try:
        found = signers(deployment.digest(certified.result), cert)
    except (BadSignatureError, ValueError):
        return {}
    return {
        signer: cert[at * SIGNATURE_BYTES : (at + 1) * SIGNATURE_BYTES] for at, signer in enumerate(found)
    }
