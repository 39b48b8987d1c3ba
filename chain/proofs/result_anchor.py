"""Result anchor: an offline proof, as a JSON file, that an epoch's result is final on chain.

Room: chain (pure). The anchor is the proof of the settlement contract's `ResultFinalized` event.
One check is left to its reader: that the chain has a block of this hash.
"""

from __future__ import annotations

from typing import Any

from eth_utils.conversions import to_bytes
from eth_utils.crypto import keccak

from assay.chain.addresses import Deployment
from assay.chain.proofs.event_proof import NODES_MAX, BlockPoint, EventProof, read_event
from assay.chain.statements import EpochResult
from assay.protocol.errors import MalformedMessage

ANCHORS = "anchors"  # folder of a delivery with one file an epoch
FINALIZED = keccak(text="ResultFinalized(bytes32,uint64,bytes32,uint128,uint64)")
_FIELDS = ("header", "index", "nodes", "log")


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


def read_anchor_json(given: Any) -> EventProof:
    """The proof in a JSON value, as `plain` writes it.

    Raises:
        ValueError: it is not an anchor.
    """
    if not isinstance(given, dict) or set(given) != set(_FIELDS):
        raise ValueError(f"an anchor has the fields {', '.join(_FIELDS)}")
    index, log, nodes = given["index"], given["log"], given["nodes"]
    if any(type(one) is not int or not 0 <= one < 1 << 32 for one in (index, log)):
        raise ValueError("an anchor's index and log are whole numbers")
    if not isinstance(nodes, list) or len(nodes) > NODES_MAX:
        raise ValueError(f"an anchor has a list of at most {NODES_MAX} nodes")
    texts = [given["header"], *nodes]
    if any(not isinstance(one, str) or bytes.fromhex(one).hex() != one for one in texts):
        raise ValueError("an anchor's bytes are lower-case hexadecimal")
    header, *rest = (bytes.fromhex(one) for one in texts)
    return EventProof(header=header, index=index, nodes=tuple(rest), log=log)
