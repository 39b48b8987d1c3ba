"""Proposals: an attack by a quorum on what readers of the chain learn of the results that it signed.

Room: redteam (pure).
"""

from __future__ import annotations

from dataclasses import replace

from eth_abi.abi import encode
from eth_utils.abi import collapse_if_tuple, event_abi_to_log_topic, function_signature_to_4byte_selector

from assay.chain.events import ResultCertified
from assay.chain.logs import event_of
from assay.chain.proposals import CertifiedResult, double_results
from assay.chain.rpc import artefact
from assay.chain.statements import CERT_ECDSA, EpochResult, certificate, sign_digest, values
from assay.chain.views import view_call
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
    "the contract tells every proposal's certificate in an event",
)
def _posted_by_a_contract(is_defended: bool, seed: int) -> Outcome:
    """A quorum signs two results, and has the second posted by an account that is a contract.

    Undefended, readers find certificates in the transactions that call the settlement.
    """
    first, second = map(_certified, (RESULT, replace(RESULT, root=GUESS)))
    inside = encode(["address", "uint256", "bytes"], [DEPLOYMENT.epoch_settlement, 0, _call(second)])
    hidden = function_signature_to_4byte_selector("execute(address,uint256,bytes)") + inside
    sent = {_call(first): first, hidden: second}
    if is_defended:
        read = [_told(one) for one in sent.values()]
    else:
        read = [one for data, one in sent.items() if data[:4] == _call(one)[:4]]
    found = len(list(double_results(DEPLOYMENT, read, lambda hot_key: hot_key)))
    harm = f"of {len(SIGNERS)} signers of both {found} are found and slashed"
    return one_act(found == len(SIGNERS), found < len(SIGNERS), 0.0, harm)


def _certified(result: EpochResult) -> CertifiedResult:
    """This result with a quorum's certificate."""
    digest = DEPLOYMENT.digest(result)
    signatures = [sign_digest(digest, a_hot_key(name)) for name in SIGNERS]
    return CertifiedResult(result=result, certificate=certificate(digest, signatures))


def _call(one: CertifiedResult) -> bytes:
    """A call that proposes this."""
    return view_call("EpochSettlement", "propose", (values(one.result), CERT_ECDSA, one.certificate))


def _told(one: CertifiedResult) -> CertifiedResult:
    """What a reader has from the contract's log of this proposal."""
    entry = next(e for e in artefact("EpochSettlement")["abi"] if e.get("name") == "ResultCertified")
    plain = [collapse_if_tuple(each) for each in entry["inputs"] if not each["indexed"]]
    event = event_of(
        {
            "topics": [event_abi_to_log_topic(entry), RUN_ID, one.result.epoch.to_bytes(32, "big")],
            "data": encode(plain, [values(one.result), one.certificate]),
            "blockNumber": 1,
            "blockHash": bytes(32),
            "blockTimestamp": 1,
            "transactionHash": bytes(32),
            "logIndex": 0,
        }
    )
    assert isinstance(event, ResultCertified)
    return CertifiedResult(result=event.result, certificate=event.cert)
