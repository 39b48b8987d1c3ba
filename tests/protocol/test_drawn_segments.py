"""Drawn segments: which segment of inner steps an audit recomputes is one that exists, each as often."""

from __future__ import annotations

import hashlib

from assay.protocol.auditing.draws import opened_segment
from assay.protocol.types import Digest, PeerId

NODE = PeerId(b"n" * 32)


def seed(number: int) -> Digest:
    return Digest(hashlib.sha256(b"%d" % number).digest())


def test_a_step_of_one_gradient_has_segment_0():
    assert {opened_segment(seed(number), NODE, 0) for number in range(20)} == {0}
    assert {opened_segment(seed(number), NODE, 1) for number in range(20)} == {0}


def test_each_segment_is_drawn_as_often_and_no_other():
    drawn = [opened_segment(seed(number), NODE, 3) for number in range(600)]

    assert {*drawn} == {0, 1, 2}
    assert all(150 < drawn.count(segment) < 250 for segment in range(3))


def test_the_segment_is_drawn_by_seed_and_node_alone():
    others = {opened_segment(seed(1), PeerId(bytes([number]) * 32), 1000) for number in range(50)}

    assert len(others) > 40
    first = int.from_bytes(hashlib.sha256(seed(1) + b"S" + NODE + bytes(4)).digest(), "big")
    assert opened_segment(seed(1), NODE, 1000) == first % 1000
