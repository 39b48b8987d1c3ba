"""Canary: false steps that were ordered, so that auditors are tested with what they cannot tell from a lie.

Room: node (edge: one file). The run's spec binds the list by a Merkle root before training begins; the
file holds this node's part of it, one `Planted` message in hexadecimal a line.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from assay.protocol.commitments import check_planted
from assay.protocol.encoding.codec import decode, encode
from assay.protocol.errors import ConfigError, MalformedMessage
from assay.protocol.messages import Planted
from assay.protocol.params import RunSpec
from assay.protocol.types import Digest, PeerId

PLANTED_LIE = "wrong-data"  # does the model little harm, and every auditor sees it who looks


def write_canary(path: Path, faults: list[Planted]) -> None:
    """The file of one node."""
    path.write_text("".join(encode(one).hex() + "\n" for one in faults))


def read_canary(path: Path | None, spec: RunSpec, run_id: Digest, node: PeerId) -> Mapping[int, Planted]:
    """The node's planted faults by round; none without a file.

    Raises:
        ConfigError: it cannot be read, or a line is not on the list that the spec binds.
    """
    if path is None:
        return {}
    found = {}
    try:
        for line in path.read_text().split():
            planted = decode(Planted, bytes.fromhex(line))
            check_planted(planted, spec.audit.canaries, spec.audit.canary_count)
            if (planted.run_id, planted.node) != (run_id, node):
                raise MalformedMessage("planted: for another run or node")
            found[int(planted.round)] = planted
    except (OSError, ValueError, MalformedMessage) as error:
        raise ConfigError(f"canary {path}: {error}") from None
    return found
