"""Proposals: an attack by a quorum on what readers of the chain learn of the results that it signed.

Room: redteam (pure).
"""

from __future__ import annotations

from dataclasses import replace

from eth_abi.abi import encode
from eth_utils.abi import (
    collapse_if_tuple,
    function_abi_to_4byte_selector,
    function_signature_to_4byte_selector,
)

from assay.chain.proposals import CertifiedResult, certified_result_of, double_results
from assay.chain.rpc import artefact
from assay.chain.state import field_names
from assay.chain.statements import EpochResult, address_of, sign_digest
from assay.protocol.types import NO_DIGEST
from assay.redteam.attack import Attacks, Outcome, Where
from assay.redteam.members import GUESS, one_act
from assay.testing.members import RUN_ID, a_deployment, a_hot_key

PROPOSAL_ATTACKS = Attacks(Where.CONTRACTS)
SIGNERS = ("ann", "bob", "cid")  # a quorum of four
DEPLOYMENT = a_deployment()
RESULT = EpochResult(
    deployment_id=DEPLOYMENT.deployment_id, run_id=RUN_ID, epoch=0, set_version=1, prev_result=NO_DIGEST,
    root=NO_DIGEST, table_hash=NO_DIGEST, model_hash=NO_DIGEST, total=1,
)  # fmt: skip


@PROPOSAL_ATTACKS.attack(
    "two results of an epoch, one posted by a contract",
    26,
    "none: certificates are read from transactions to the settlement",
    has_off=False,
)
def _posted_by_a_contract(is_defended: bool, seed: int) -> Outcome:
    """A quorum signs two results, and has the second posted by an account that is a contract."""
    first, second = (_call(result) for result in (RESULT, replace(RESULT, root=GUESS)))
    inside = encode(["address", "uint256", "bytes"], [DEPLOYMENT.epoch_settlement, 0, second])
    hidden = function_signature_to_4byte_selector("execute(address,uint256,bytes)") + inside
    posted, found = (len(_signers([first, other])) for other in (second, hidden))
    harm = f"of {posted} signers of both {found} are found and slashed; a challenge fells the false result"
    return one_act(found == posted, found < posted, 0.0, harm)


def _call(result: EpochResult) -> bytes:
    """A proposal of this result with a quorum's certificate."""
    keys = sorted(map(a_hot_key, SIGNERS), key=lambda key: int(address_of(key), 16))
    certificate = b"".join(sign_digest(DEPLOYMENT.digest(result), key) for key in keys)
    entry = next(one for one in artefact("EpochSettlement")["abi"] if one.get("name") == "propose")
    values = [tuple(getattr(result, name) for name in field_names(EpochResult)), 1, certificate]
    return function_abi_to_4byte_selector(entry) + encode(
        [collapse_if_tuple(one) for one in entry["inputs"]], values
    )


def _signers(calls: list[bytes]) -> list[str]:
    """Who is found to have signed two results, by these transactions."""
    read: list[CertifiedResult] = [one for one in map(certified_result_of, calls) if one is not None]
    return [found.signer for found in double_results(DEPLOYMENT, read, lambda hot_key: hot_key)]
