"""A node shows evidence for as long as its seat lasts; what cannot be shown costs a discount, no more."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from assay.attestation.binding import Binding
from assay.attestation.evidence import REPORT_BYTES_MAX, DeviceFamily, Evidence, Report
from assay.node.attestation import keep_attested
from assay.protocol.errors import MalformedMessage
from assay.protocol.run_state import RunState
from assay.protocol.state_transition import advance
from assay.protocol.types import PeerId
from assay.testing.members import RUN_ID, a_digest, peer
from assay.testing.signed import NODES, a_history, a_manifest


class Loud:
    """An attester with more GPUs than fit."""

    family = DeviceFamily.TDX

    def evidence(self, _binding: object) -> Evidence:
        """As large as each part may be."""
        gpu = Report(family=DeviceFamily.NVIDIA_CC, body=bytes(REPORT_BYTES_MAX), certificates=())
        return Evidence(main=Report(family=DeviceFamily.TDX, body=b"quote", certificates=()), gpus=(gpu,) * 8)


def test_evidence_too_long_to_show_is_said_and_ends_no_process(caplog: pytest.LogCaptureFixture) -> None:
    first = a_history()
    run_state = advance(first, a_manifest(first, NODES))

    async def grown(_beyond: int) -> Any:
        return run_state

    me: Any = SimpleNamespace(spec=run_state.spec, run_id=RUN_ID, me=peer("nora"), domain=a_digest("unused"))
    follower: Any = SimpleNamespace(grown=grown, run_state=run_state)
    nobody: Any = None
    with caplog.at_level(logging.ERROR):
        trio.run(keep_attested, me, nobody, follower, Loud())

    assert "evidence is too long to show" in caplog.text


ME = peer("nora")


class Sparing:
    """An attester that says over which nonces it made evidence."""

    family = DeviceFamily.TDX

    def __init__(self) -> None:
        self.nonces: list[bytes] = []

    def evidence(self, binding: Binding) -> Evidence:
        """As short as can be."""
        self.nonces.append(bytes(binding.nonce))
        return Evidence(main=Report(family=DeviceFamily.TDX, body=b"quote", certificates=()), gpus=())


class Deaf:
    """A host whose peers accept nothing."""

    async def request(self, _peer: PeerId, _kind: str, _body: bytes, *, timeout_s: float) -> bytes:
        """Refused."""
        raise MalformedMessage(f"not within {timeout_s} s, and not after")


class Told:
    """A follower that learns these states one after another, and no more."""

    def __init__(self, states: Sequence[RunState]) -> None:
        self.states = states
        self.run_state = states[0]

    async def grown(self, beyond: int) -> RunState:
        """The first with more manifests than that; waits for ever if there is none."""
        while self.run_state.round <= beyond:
            at = int(self.run_state.round) + 1
            if at == len(self.states):
                await trio.sleep_forever()
            self.run_state = self.states[at]
        return self.run_state


def histories() -> list[RunState]:
    """The states of a run before its first manifest, and after each of its first three."""
    states = [a_history()]
    for _ in range(3):
        states.append(advance(states[-1], a_manifest(states[-1], NODES)))
    return states


def attested(states: Sequence[RunState]) -> tuple[list[int], bool]:
    """The rounds of whose states the nonces of our evidence are, and whether more is made later."""
    attester, rounds = Sparing(), {bytes(state.parent): int(state.round) for state in states}
    me: Any = SimpleNamespace(spec=states[0].spec, run_id=RUN_ID, me=ME, domain=a_digest("unused"))
    host: Any = Deaf()
    follower: Any = Told(states)

    async def is_at_work_after_all() -> bool:
        with trio.move_on_after(1) as limit:
            await keep_attested(me, host, follower, attester)
        return limit.cancelled_caught

    goes_on = trio.run(is_at_work_after_all)
    return [rounds[nonce] for nonce in attester.nonces], goes_on


def test_a_newcomer_is_attested_from_its_seat_on() -> None:
    *before, last = histories()
    seatless = [
        replace(state, nodes={node: record for node, record in state.nodes.items() if node != ME})
        for state in before
    ]

    assert attested([*seatless, last]) == ([3], True)


def test_an_overdue_opening_interrupts_attestation_and_does_not_end_it() -> None:
    first, one, two, three = histories()

    assert attested([first, one, replace(two, late=frozenset({ME})), three]) == ([1, 3], True)


@pytest.mark.parametrize("change", [{"has_left": True}, {"fault_round": 1}])
def test_attestation_ends_with_the_seat(change: dict[str, Any]) -> None:
    first, one, two, three = histories()
    without = replace(two, nodes={**two.nodes, ME: replace(two.nodes[ME], **change)})

    assert attested([first, one, without, three]) == ([1], False)
