"""Result anchor: an offline proof, as a JSON file, that an epoch's result is final on chain.

Room: chain (pure). The anchor is the proof of the settlement contract's `ResultFinalized` event.
One check is left to its reader: that the chain has a block of this hash.
"""

from __future__ import annotations

from eth_utils.conversions import to_bytes
from eth_utils.crypto import keccak

from assay.chain.addresses import Deployment
from assay.chain.proofs.event_proof import BlockPoint, EventProof, read_event
from assay.chain.statements import EpochResult
from assay.protocol.errors import MalformedMessage

ANCHORS = "anchors"  # folder of a delivery with one file an epoch
FINALIZED = keccak(text="ResultFinalized(bytes32,uint64,bytes32,uint128,uint64)")


def check_result_anchor(proof: EventProof, deployment: Deployment, result: EpochResult) -> BlockPoint:
    """The block in which the settlement contract made this result final.

    Raises:
        MalformedMessage: the proof is invalid or of another event.
    """
    event = read_event(proof)
    contract = to_bytes(hexstr=deployment.epoch_settlement)
    if event.address != contract:
        raise MalformedMessage(
            f"anchor: an event of 0x{event.address.hex()}, expected {deployment.epoch_settlement}"
        )
    if event.topics != (FINALIZED, result.run_id, result.epoch.to_bytes(32, "big")):
        raise MalformedMessage(
            f"anchor: expected the event ResultFinalized of epoch {result.epoch} of this run"
        )
    if event.data[:64] != deployment.digest(result) + result.total.to_bytes(32, "big"):
        raise MalformedMessage(f"anchor: another result of epoch {result.epoch} is final")
    return event.block
