"""A verifier and nodes' evidence: one run, one node, one nonce, one policy; everything else is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from nacl.signing import SigningKey

from assay.attestation.devices.software import SoftwareAttester, key_digest
from assay.attestation.evidence import DeviceFamily
from assay.attestation.policy import Claim, Reference, Root
from assay.attestation.reasons import Reason, TrustTier
from assay.attestation.result import AttestationResult, read_token
from assay.node.attestation import binding_of
from assay.participant.store import Store
from assay.protocol.encoding.codec import digest, encode
from assay.protocol.errors import ConfigError, MalformedMessage, OutOfPhase, PeerFault, Unavailable
from assay.protocol.identity import verify
from assay.protocol.messages import Discount, EvidenceSubmission, SignedAppraisal
from assay.protocol.state_transition import advance
from assay.protocol.types import PeerId, RoundId
from assay.testing.members import DOMAIN, RUN_ID, a_digest, a_peer_key, peer
from assay.testing.signed import NODES, a_history, a_manifest, a_spec
from assay.verifier.service.appraiser import RESULTS_KEPT, Appraiser, agreed_policy
from tests.attestation.authorities import a_policy

KEY = SigningKey(b"k" * 32)
CODE = a_digest("guest")
ATTESTER = SoftwareAttester(key=KEY, measurement=CODE)
NOW_S = 1_800_000_000
NODE = peer("nora")
POLICY = a_policy(
    DeviceFamily.SOFTWARE,
    roots=(Root(family=DeviceFamily.SOFTWARE, sha256=key_digest(PeerId(bytes(KEY.verify_key)))),),
    references=(
        Reference(
            name="guest", family=DeviceFamily.SOFTWARE, not_before_s=0, not_after_s=2**40,
            values=(Claim(name="measurement", value=CODE.hex()),),
        ),
    ),
)  # fmt: skip
AUDIT = replace(a_spec().audit, attestation=digest(POLICY), attested_rounds=6, code=CODE)
SPEC = a_spec(audit=AUDIT, rounds=20)


class Rig:
    """An appraiser of vera's with a chain of so many manifests, a clock and everything it said."""

    def __init__(self, folder: Path, collateral: Path | None = None) -> None:
        self.now_s = NOW_S
        self.said: list[SignedAppraisal] = []
        self.charged: list[PeerId] = []
        self.follower: Any = SimpleNamespace(run_state=a_history(audit=AUDIT, rounds=20))
        (folder / "policy").write_bytes(encode(POLICY))
        keys = SimpleNamespace(peer=a_peer_key("vera"))
        self.me: Any = SimpleNamespace(
            spec=SPEC, run_id=RUN_ID, me=peer("vera"), domain=DOMAIN, keys=keys,
            config=SimpleNamespace(attestation=folder / "policy", collateral=collateral),
            store=Store(folder / "store.db"),
        )  # fmt: skip
        self.appraiser = Appraiser(self.me, self.follower, self._say, lambda: self.now_s, self._in_thread)

    async def _in_thread(self, node: PeerId, call: Any, *args: Any) -> Any:
        self.charged.append(node)
        return await trio.to_thread.run_sync(call, *args)

    async def _say(self, word: SignedAppraisal) -> None:
        self.said.append(word)

    def grow(self, count: int = 1, *, is_seen: bool = True) -> Rig:
        """More final manifests, which the appraiser sees become final unless told otherwise."""
        for _ in range(count):
            run_state = self.follower.run_state
            self.follower.run_state = advance(run_state, a_manifest(run_state, NODES))
            if is_seen:
                self.appraiser.remember()
        return self

    def shown(
        self, node: PeerId = NODE, attester: SoftwareAttester = ATTESTER, **changes: Any
    ) -> EvidenceSubmission:
        """What a node's attester makes of the newest nonce, or of a binding changed so."""
        me: Any = SimpleNamespace(spec=SPEC, run_id=RUN_ID, me=node)
        evidence = attester.evidence(replace(binding_of(me, self.follower.run_state), **changes))
        return EvidenceSubmission(
            round=RoundId(int(self.follower.run_state.round) - 1), evidence=encode(evidence)
        )

    def answer(self, shown: EvidenceSubmission, node: PeerId = NODE) -> AttestationResult:
        """The result in the token that comes back."""
        token = trio.run(self.appraiser.answer, node, encode(shown))
        return read_token(token, peer("vera"), DOMAIN)


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path).grow(3)


def test_good_evidence_earns_a_signed_word_and_the_result_is_kept(rig: Rig) -> None:
    result = rig.answer(rig.shown())

    assert result.verdict is TrustTier.AFFIRMING
    (signed,) = rig.said
    word = signed.appraised
    verify(peer("vera"), DOMAIN, word, signed.signature)
    assert (word.node, word.round, word.discount) == (NODE, 2, Discount.PROCESSOR)
    assert (word.result, word.evidence) == (digest(result), result.evidence)
    (kept,) = rig.me.store.values(f"attestation/{NODE.hex()}/").values()
    assert digest(read_token(kept, peer("vera"), DOMAIN)) == word.result


def test_evidence_that_comes_many_times_at_once_is_appraised_once_at_the_nodes_charge(rig: Rig) -> None:
    tokens = []

    async def show(body: bytes) -> None:
        tokens.append(await rig.appraiser.answer(NODE, body))

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(show, encode(rig.shown()))

    trio.run(main)
    assert len(set(tokens)) == len(rig.said) == 1 and rig.charged == [NODE]
    rig.grow()
    rig.answer(rig.shown())
    assert len(rig.said) == 2


def test_a_node_that_shows_evidence_for_ever_takes_four_places(rig: Rig) -> None:
    for _ in range(RESULTS_KEPT + 3):
        rig.answer(rig.shown())
        rig.grow()

    kept = sorted(rig.me.store.values(f"attestation/{NODE.hex()}/"))
    assert len(kept) == RESULTS_KEPT
    assert int(kept[-1].rpartition("/")[2]) == int(rig.follower.run_state.round) - 2  # the newest stay


@pytest.mark.parametrize(
    "wrong",
    [
        {"node": peer("nils")},
        {"nonce": a_digest("another nonce")},
        {"epoch": 5},
        {"run_id": a_digest("another run")},
        {"deployment_id": a_digest("another deployment")},
        {"code_digest": a_digest("another guest")},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_evidence_about_anything_else_is_answered_and_earns_nothing(rig: Rig, wrong: dict[str, Any]) -> None:
    result = rig.answer(rig.shown(**wrong))

    assert result.verdict is TrustTier.CONTRAINDICATED and Reason.BINDING in result.all_reasons
    assert rig.said == []


@pytest.mark.parametrize(
    "attester",
    [
        SoftwareAttester(key=SigningKey(b"x" * 32), measurement=CODE),
        SoftwareAttester(key=KEY, measurement=a_digest("another guest")),
        SoftwareAttester(key=KEY, measurement=CODE, is_debug=True),
    ],
    ids=["another key", "another measurement", "debug"],
)
def test_an_attester_that_the_policy_does_not_accept_earns_nothing(
    rig: Rig, attester: SoftwareAttester
) -> None:
    assert rig.answer(rig.shown(attester=attester)).verdict is TrustTier.CONTRAINDICATED
    assert rig.said == []


def test_evidence_of_one_node_is_no_evidence_of_another(rig: Rig) -> None:
    relayed = rig.shown(node=peer("nils"))

    assert Reason.BINDING in rig.answer(relayed).all_reasons
    assert rig.said == []


def test_a_device_speaks_for_one_node_until_what_it_said_counts_no_more(rig: Rig) -> None:
    """Else an owner of many nodes would need one machine."""
    other = peer("nils")
    rig.answer(rig.shown())
    first = int(rig.follower.run_state.round) - 1
    rig.appraiser = Appraiser(
        rig.me, rig.follower, rig._say, lambda: rig.now_s, rig._in_thread
    )  # started again
    for _ in range(AUDIT.attested_rounds - 1):
        rig.grow()
        result = rig.answer(rig.shown(other), other)
        assert (result.verdict, result.all_reasons) == (
            TrustTier.CONTRAINDICATED, (Reason.DUPLICATE_DEVICE,)
        )  # fmt: skip
    assert [signed.appraised.node for signed in rig.said] == [NODE]

    rig.grow()
    assert int(rig.follower.run_state.round) == first + AUDIT.attested_rounds + 1
    assert rig.answer(rig.shown(other), other).verdict is TrustTier.AFFIRMING
    assert rig.answer(rig.shown()).all_reasons == (Reason.DUPLICATE_DEVICE,)
    rig.appraiser = Appraiser(rig.me, rig.follower, rig._say, lambda: rig.now_s, rig._in_thread)
    rig.appraiser.remember()
    assert rig.answer(rig.shown()).all_reasons == (Reason.DUPLICATE_DEVICE,)
    assert [signed.appraised.node for signed in rig.said] == [NODE, other]


def test_evidence_that_earns_nothing_keeps_no_other_node_from_showing_the_device(rig: Rig) -> None:
    other = peer("nils")
    assert Reason.BINDING in rig.answer(rig.shown(node=other)).all_reasons

    assert rig.answer(rig.shown(other), other).verdict is TrustTier.AFFIRMING
    rig.grow()
    assert rig.answer(rig.shown(other), other).verdict is TrustTier.AFFIRMING  # its own, once more
    assert [signed.appraised.node for signed in rig.said] == [other, other]


@pytest.mark.parametrize("place", ["processor", "GPU"])
def test_one_device_of_several_is_enough_to_be_another_nodes(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """A machine with GPUs of which one, or the processor, has spoken for another node."""
    other, result = peer("nils"), rig.answer(rig.shown())
    again = rig.appraiser._appraised

    def shares(*asked: Any) -> AttestationResult:
        found = again(*asked)
        new = replace(found.main, ueid=a_digest("a machine of its own"))
        main, gpu = (result.main, new) if place == "processor" else (new, result.main)
        return replace(found, main=main, gpus=(gpu,))

    monkeypatch.setattr(rig.appraiser, "_appraised", shares)

    assert rig.answer(rig.shown(other), other).reasons == (Reason.DUPLICATE_DEVICE,)
    assert [signed.appraised.node for signed in rig.said] == [NODE]


def test_a_kept_result_that_cannot_be_read_keeps_no_verifier_from_starting(rig: Rig) -> None:
    rig.me.store.set_value(f"attestation/{NODE.hex()}/{2:012}", b"damaged")

    assert not Appraiser(rig.me, rig.follower, rig._say, lambda: rig.now_s, rig._in_thread)._devices


def test_evidence_over_an_old_nonce_or_one_not_seen_is_refused(rig: Rig) -> None:
    old = rig.shown()
    rig.grow(3)
    with pytest.raises(OutOfPhase):
        rig.answer(old)
    rig.grow(is_seen=False)
    with pytest.raises(Unavailable, match="not seen to become final here"):
        rig.answer(rig.shown())
    with pytest.raises(OutOfPhase):
        rig.answer(replace(rig.shown(), round=RoundId(2**40)))
    assert rig.said == []


def test_evidence_is_as_old_as_its_nonce_and_too_old_after_what_the_policy_says(rig: Rig) -> None:
    shown = rig.shown()
    rig.now_s += POLICY.evidence_age_max_s + 1

    assert Reason.EVIDENCE_TOO_OLD in rig.answer(shown).all_reasons
    assert rig.said == []


def test_strangers_nonsense_and_missing_collateral_are_errors_in_words(tmp_path: Path) -> None:
    rig = Rig(tmp_path, collateral=tmp_path / "nothing.json").grow(3)
    with pytest.raises(PeerFault, match="no node of this run"):
        rig.answer(rig.shown(), PeerId(b"s" * 32))
    with pytest.raises(MalformedMessage):
        rig.answer(replace(rig.shown(), evidence=b"nonsense"))
    with pytest.raises(Unavailable, match="collateral is not to be had"):
        rig.answer(rig.shown())
    assert rig.said == []


def test_a_verifier_without_the_policy_that_the_run_names_does_not_start(tmp_path: Path) -> None:
    path = tmp_path / "policy"
    with pytest.raises(ConfigError, match="set `attestation`"):
        agreed_policy(SPEC, None)
    with pytest.raises(ConfigError, match="policy"):
        agreed_policy(SPEC, path)
    path.write_bytes(encode(replace(POLICY, name="another")))
    with pytest.raises(ConfigError, match="is not the policy that the run names"):
        agreed_policy(SPEC, path)
    path.write_bytes(encode(POLICY))
    assert agreed_policy(SPEC, path) == POLICY
    assert agreed_policy(a_spec(), None) is None
