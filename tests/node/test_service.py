"""A node's process: what it asks its trainer for follows from the chain, not from what it remembers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import trio

from assay.network.blob_store import DiskBlobs
from assay.node.messages import TakeStep
from assay.node.service import Service
from assay.protocol.encoding.codec import decode
from assay.protocol.messages import INLINE_UPDATE_BYTES, BlobPiece, Submission
from assay.protocol.types import RoundId
from assay.testing.members import peer
from assay.testing.signed import a_history, a_signed_commit
from assay.testing.specs import a_rule
from assay.training.layout import layout_of
from assay.training.optimiser.momentum_root import zero_root

NORA = peer("nora")


class WorkerProcess:
    """A trainer that answers with what it was asked."""

    async def call(self, request: TakeStep, _answer: Any) -> TakeStep:
        return request


def asked(run_state: Any) -> TakeStep:
    service = SimpleNamespace(me=SimpleNamespace(me=NORA), state_sync=SimpleNamespace(child=WorkerProcess()))
    return trio.run(Service._step, service, run_state)


def test_before_its_first_accepted_step_a_node_starts_afresh():
    assert asked(a_history()).base == 0


def test_a_step_continues_the_last_accepted_one_though_later_ones_had_the_same_root():
    """FedAvg keeps nothing back, so every root is the zero root and says nothing of its round."""
    run_state = a_history(rule=a_rule("fedavg"))
    root = zero_root(run_state.run_id, run_state.spec.rule, layout_of(run_state.spec.model).blocks)
    record = replace(run_state.nodes[NORA], momentum=root, base=5)
    run_state = replace(run_state, round=RoundId(7), nodes={**run_state.nodes, NORA: record})

    request = asked(run_state)

    assert (request.round, request.base, request.base_root) == (7, 5, root)


class Verifier:
    """A host whose one peer is a verifier; it records what comes, in order, and answers nothing."""

    def __init__(self) -> None:
        self.came: list[object] = []

    async def send(self, _to: object, payload: bytes) -> None:
        self.came.append(decode(BlobPiece, payload).piece)

    async def request(self, _to: object, method: str, _body: bytes, *, timeout_s: float) -> bytes:
        self.came.append(method)
        await trio.sleep_forever()
        raise AssertionError


def submitted(folder: Path, update: bytes, *, is_damaged: bool = False) -> list[object]:
    """What a verifier gets when a node submits a commit with this update."""
    blobs, host = DiskBlobs(folder, bytes_max=1 << 20), Verifier()
    signed = a_signed_commit("nora", a_history())
    signed = replace(signed, commit=replace(signed.commit, update=blobs.put(update)))
    if is_damaged:
        (file,) = [one for one in folder.rglob("*") if one.is_file()]
        file.write_bytes(b"?" * len(update))
    inline = update if len(update) <= INLINE_UPDATE_BYTES else b""
    service = SimpleNamespace(me=SimpleNamespace(blobs=blobs), _host=host)
    service._push_update = lambda *given: Service._push_update(service, *given)

    async def main() -> None:
        with trio.move_on_after(0.2):
            await Service._submit(service, peer("vera"), Submission(signed=signed, update=inline))

    trio.run(main)
    return host.came


def test_a_large_update_goes_ahead_of_its_commit_and_a_small_one_with_it(tmp_path):
    large = bytes(range(256)) * 513
    assert len(large) > INLINE_UPDATE_BYTES

    *pieces, last = submitted(tmp_path / "large", large)
    assert b"".join(pieces) == large and last == "submit"
    assert submitted(tmp_path / "small", b"small") == ["submit"]


def test_an_update_that_is_damaged_on_our_disk_is_not_pushed_and_ends_nothing(tmp_path, caplog):
    assert submitted(tmp_path, bytes(INLINE_UPDATE_BYTES + 1), is_damaged=True) == ["submit"]
    assert "update not pushed" in caplog.text
