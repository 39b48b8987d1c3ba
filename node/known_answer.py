"""Known-answer tasks: a node's list of deliberately false steps, which test auditors unannounced.

Room: node (edge: one file). The run's spec binds the list by a Merkle root before training begins; the file
holds this node's part of it, one `KnownAnswer` message in hexadecimal a line. An auditor cannot tell such a
step from a lie.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from assay.participant.keys.private_files import write_private
from assay.protocol.auditing.commitments import check_known_answer
from assay.protocol.encoding.codec import decode, encode
from assay.protocol.errors import ConfigError, MalformedMessage
from assay.protocol.messages import KnownAnswer
from assay.protocol.params import RunSpec
from assay.protocol.types import Digest, PeerId


def trained_as(spec: RunSpec, round_id: int) -> int:
    """The round whose sequences a known-answer task takes in place of its own round's.

    Such a step does the model little harm, and every auditor that recomputes it detects it.
    """
    return round_id + spec.rounds


def write_known_answers(path: Path, faults: Sequence[KnownAnswer]) -> None:
    """Write the known-answer file of one node, for nobody else to read.

    Raises:
        ConfigError: the file is there already.
    """
    write_private(path, "".join(encode(one).hex() + "\n" for one in faults).encode())


def read_known_answers(
    path: Path | None, spec: RunSpec, run_id: Digest, node: PeerId
) -> Mapping[int, KnownAnswer]:
    """The node's known-answer tasks by round; none without a file.

    Raises:
        ConfigError: it cannot be read, or a line is not on the list that the spec binds.
    """
    if path is None:
        return {}
    found = {}
    try:
        for line in path.read_text().split():
            known_answers = decode(KnownAnswer, bytes.fromhex(line))
            check_known_answer(known_answers, spec.audit.known_answers, spec.audit.known_answer_count)
            if (known_answers.run_id, known_answers.node) != (run_id, node):
                raise MalformedMessage("known-answer task of another run or node")
            found[int(known_answers.round)] = known_answers
    except (OSError, ValueError, MalformedMessage) as error:
        raise ConfigError(f"known answers {path}: {error}") from None
    return found
