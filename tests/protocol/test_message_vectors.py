"""Frozen bytes of every message: what other code can check its encoder against.

A change here is a change of the protocol: a new tag, a line in docs/protocol.md and
new vectors in the same commit. `python -m tests.protocol.test_message_vectors` writes
the vectors of messages that have none yet; it never changes a frozen one.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from assay.protocol.encoding.codec import decode, digest, encode
from tests.protocol.strategies import KINDS, limits, sample

VECTORS = Path(__file__).parents[1] / "vectors" / "messages.json"
LIMITS = VECTORS.with_name("limits.json")


def vector_of(kind: type[Any]) -> dict[str, str]:
    """The frozen facts of one fixed value."""
    return {
        "tag": kind.TAG.decode(),
        "encoding": encode(sample(kind)).hex(),
        "digest": digest(sample(kind)).hex(),
    }


def frozen() -> dict[str, dict[str, str]]:
    """What is on disk."""
    return json.loads(VECTORS.read_text()) if VECTORS.exists() else {}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_message_still_has_its_frozen_bytes(kind):
    vector = frozen()[kind.__name__]

    assert vector_of(kind) == vector
    assert decode(kind, bytes.fromhex(vector["encoding"])) == sample(kind)


def test_there_is_a_vector_for_every_message_and_for_nothing_else():
    assert set(frozen()) == {kind.__name__ for kind in KINDS}


def test_every_bound_and_every_number_of_an_enumeration_is_the_frozen_one():
    assert limits(KINDS) == json.loads(LIMITS.read_text())


if __name__ == "__main__":
    LIMITS.write_text(json.dumps(limits(KINDS), indent=1) + "\n")
    new = {kind.__name__: vector_of(kind) for kind in KINDS}
    VECTORS.write_text(json.dumps({**new, **frozen()}, indent=1) + "\n")
