"""Proposals: reads a certified result, and each signature on it, out of a proposal's transaction.

Room: chain (pure). Two results for one epoch with a common signer are evidence for the slash court.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from eth_abi.abi import decode
from eth_abi.exceptions import DecodingError
from eth_utils.abi import collapse_if_tuple, function_abi_to_4byte_selector

from assay.chain.addresses import Deployment
from assay.chain.rpc import artefact
from assay.chain.state import field_names
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


def certified_result_of(data: bytes) -> CertifiedResult | None:
    """The arguments of `EpochSettlement.propose` in a transaction's data; None for any other call.

    Who pays the bond by a permit calls `permitAndCall`, in which the proposal is.
    """
    permitted = _arguments("permitAndCall", data)
    arguments = _arguments("propose", data if permitted is None else permitted[-1])
    if arguments is None:
        return None
    values, _, certificate = arguments
    result = EpochResult(**dict(zip(field_names(EpochResult), values, strict=True)))
    return CertifiedResult(result=result, certificate=bytes(certificate))


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


def _arguments(function: str, data: bytes) -> tuple[Any, ...] | None:
    """Of a call of this function of the settlement; None if the data are no such call."""
    selector, kinds = _entry(function)
    try:
        return decode(kinds, data[4:]) if data[:4] == selector else None
    except DecodingError:
        return None


@cache
def _entry(function: str) -> tuple[bytes, list[str]]:
    entry = next(one for one in artefact("EpochSettlement")["abi"] if one.get("name") == function)
    return bytes(function_abi_to_4byte_selector(entry)), [collapse_if_tuple(one) for one in entry["inputs"]]
