"""A challenged result is answered by a quorum's word, counted signature by signature."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio

from assay.chain.commit_statement import evm_address
from assay.chain.statements import Resolution, sign_digest, verify_certificate
from assay.observer.ledger_service.certificates import certified_resolution
from assay.protocol.encoding.codec import encode
from assay.protocol.errors import Unavailable
from assay.protocol.messages import ResolutionSignature
from assay.protocol.types import Digest, HotSignature, PeerId
from tests.builders import RUN_ID, VERIFIERS, a_deployment, a_hot_key, a_member, a_spec

RESULT = Digest(b"r" * 32)
ME: Any = SimpleNamespace(spec=a_spec(), run_id=RUN_ID, deployment=a_deployment())


def the_message(stands: bool, result: Digest = RESULT) -> bytes:
    return ME.deployment.digest(
        Resolution(deployment_id=ME.spec.deployment_id, run_id=RUN_ID, epoch=0, result=result, stands=stands)
    )


class Verifiers:
    """A host on which each verifier says what the test gives it, signed with the key it names."""

    def __init__(self, said: dict[str, tuple[bool, str] | None]) -> None:
        self.said = {a_member(name).peer: word for name, word in said.items()}

    async def request(self, peer: PeerId, method: str, body: bytes, *, timeout_s: float) -> bytes:
        assert method == "sign-resolution"
        word = self.said.get(peer)
        if word is None:
            raise Unavailable("not connected")
        stands, signer = word
        signature = HotSignature(sign_digest(the_message(stands), a_hot_key(signer)))
        return encode(ResolutionSignature(epoch=0, result=RESULT, stands=stands, signature=signature))


def ask(said: dict[str, tuple[bool, str] | None]) -> tuple[bool, bytes]:
    host: Any = Verifiers(said)
    return trio.run(certified_resolution, ME, host, 0)


def test_a_quorum_that_agrees_makes_a_certificate_the_contract_takes() -> None:
    stands, cert = ask({name: (True, name) for name in VERIFIERS[:3]})

    assert stands
    verify_certificate(the_message(True), cert, [evm_address(a_member(name).hot) for name in VERIFIERS])


def test_a_quorum_may_also_say_that_it_does_not_stand() -> None:
    assert ask({name: (False, name) for name in VERIFIERS})[0] is False


def test_one_liar_does_not_change_the_answer() -> None:
    said: dict[str, tuple[bool, str] | None] = {name: (True, name) for name in VERIFIERS}
    assert ask({**said, VERIFIERS[0]: (False, VERIFIERS[0])})[0] is True


@pytest.mark.parametrize(
    "said",
    [
        {VERIFIERS[0]: (True, VERIFIERS[0]), VERIFIERS[1]: (True, VERIFIERS[1])},
        {name: (index % 2 == 0, name) for index, name in enumerate(VERIFIERS)},
        dict.fromkeys(VERIFIERS, (True, VERIFIERS[0])),  # one key signs for all
        {},
    ],
)
def test_without_a_quorum_there_is_no_answer(said: dict[str, tuple[bool, str] | None]) -> None:
    with pytest.raises(Unavailable, match="no quorum"):
        ask(said)
