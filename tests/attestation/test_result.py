"""A result has one text, one signer, one run; everything else is refused."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nacl.signing import SigningKey

from assay.attestation.evidence import DeviceFamily
from assay.attestation.finding import Debug
from assay.attestation.policy import Claim, TcbStatus
from assay.attestation.reasons import Reason, TrustTier
from assay.attestation.result import (
    PROFILE,
    TOKEN_BYTES_MAX,
    AttestationResult,
    DeviceResult,
    as_eat,
    domain_of,
    read_token,
    write_token,
)
from assay.protocol.errors import AssayError, MalformedMessage, PeerFault
from assay.protocol.identity import Domain, peer_of
from assay.protocol.types import Digest
from tests.attestation.authorities import AT_S, a_binding

KEY = SigningKey(bytes(range(32)))
DOMAIN = domain_of(a_binding())


def a_device(**changed: Any) -> DeviceResult:
    fields: dict[str, Any] = {
        "family": DeviceFamily.SEV_SNP,
        "verdict": TrustTier.WARNING,
        "reasons": (Reason.TCB_TOLERATED,),
        "ueid": Digest(b"U" * 32),
        "debug": Debug.DISABLED,
        "tcb": TcbStatus.SW_HARDENING_NEEDED,
        "advisories": ("INTEL-SA-00289",),
        "claims": (Claim(name="measurement", value="5a" * 48),),
    }
    return DeviceResult(**fields | changed)


def a_result(**changed: Any) -> AttestationResult:
    fields: dict[str, Any] = {
        "binding": a_binding(),
        "verdict": TrustTier.WARNING,
        "reasons": (),
        "main": a_device(),
        "gpus": (a_device(family=DeviceFamily.NVIDIA_CC, debug=Debug.NOT_STATED, ueid=Digest(bytes(32))),),
        "evidence": Digest(b"E" * 32),
        "collateral": Digest(b"L" * 32),
        "policy": Digest(b"P" * 32),
        "at_s": AT_S,
        "expires_s": AT_S + 3600,
    }
    return AttestationResult(**fields | changed)


texts = st.text(max_size=64)
claims = st.dictionaries(texts, st.text(max_size=512), max_size=5).map(
    lambda said: tuple(Claim(name=name, value=said[name]) for name in sorted(said))
)
devices = st.builds(
    a_device,
    family=st.sampled_from(DeviceFamily),
    verdict=st.sampled_from(TrustTier),
    reasons=st.lists(st.sampled_from(Reason), max_size=5).map(tuple),
    ueid=st.binary(min_size=32, max_size=32).map(Digest),
    debug=st.sampled_from(Debug),
    tcb=st.sampled_from(TcbStatus),
    advisories=st.lists(texts, max_size=3).map(tuple),
    claims=claims,
)
results = st.builds(
    a_result,
    verdict=st.sampled_from(TrustTier),
    reasons=st.lists(st.sampled_from(Reason), max_size=5).map(tuple),
    main=devices,
    gpus=st.lists(devices, max_size=16).map(tuple),
    at_s=st.integers(0, 2**63),
)


@given(results)
def test_what_is_read_is_what_was_signed(result):
    assert read_token(write_token(result, KEY), peer_of(KEY), DOMAIN) == result


def test_the_claims_have_the_names_of_the_standard():
    eat = as_eat(a_result())

    assert eat["eat_profile"] == PROFILE
    assert eat["eat_nonce"] == a_binding().nonce.hex()
    assert base64.urlsafe_b64decode(eat["ueid"] + "==") == b"\x01" + b"U" * 32
    assert eat["dbgstat"] == "disabled-since-boot"
    assert eat["measurements"] == [[50, {"measurement": "5a" * 48}]]
    assert (eat["iat"], eat["exp"]) == (AT_S, AT_S + 3600)
    assert set(eat["submods"]) == {"gpu0"}
    assert not {"ueid", "dbgstat"} & set(eat["submods"]["gpu0"])
    assert as_eat(a_result(main=a_device(debug=Debug.ENABLED)))["dbgstat"] == "enabled"


def test_another_signer_or_another_run_is_refused():
    token = write_token(a_result(), KEY)
    stranger = SigningKey(b"s" * 32)

    with pytest.raises(PeerFault, match="did not sign this token"):
        read_token(token, peer_of(stranger), DOMAIN)
    claimed = token.replace(peer_of(KEY).hex(), peer_of(stranger).hex())
    with pytest.raises(PeerFault, match="does not cover"):
        read_token(claimed, peer_of(stranger), DOMAIN)
    for domain in (Domain(Digest(b"x" * 32), DOMAIN.run_id), Domain(DOMAIN.deployment_id, Digest(b"x" * 32))):
        with pytest.raises(PeerFault, match="does not cover"):
            read_token(token, peer_of(KEY), domain)


def _leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(value, dict):
        return [leaf for key, item in value.items() for leaf in _leaves(item, (*path, key))]
    if isinstance(value, list):
        return [leaf for index, item in enumerate(value) for leaf in _leaves(item, (*path, index))]
    return [path]


def test_no_claim_can_be_changed():
    token = write_token(a_result(), KEY)
    paths = _leaves(json.loads(token))
    assert len(paths) > 30

    for path in paths:
        for other in ("00", 1, None, True, "affirming", AT_S + 7200, [], {}, 1.0, -1, 10**400):
            said = json.loads(token)
            place = said
            for step in path[:-1]:
                place = place[step]
            if place[path[-1]] == other and type(place[path[-1]]) is type(other):
                continue
            place[path[-1]] = other
            with pytest.raises(AssayError):
                read_token(json.dumps(said, indent=1) + "\n", peer_of(KEY), DOMAIN)


@pytest.mark.parametrize(
    "respell",
    [
        lambda token: token + "\n",
        lambda token: token.replace("  ", " "),
        lambda token: json.dumps(json.loads(token)),
        lambda token: token.replace('"iat"', '"iat": 0,\n  "iat"'),
        lambda token: token.replace('"iat"', '"new": 0,\n  "iat"'),
        lambda token: token.replace('"signature": "', '"signature": " '),
        lambda token: token.replace(PROFILE, PROFILE.upper()),
        lambda token: token.replace("gpu0", "gpu1"),
        lambda token: token[:-10],
        lambda token: "[" * 100_000,
        lambda token: "",
        lambda token: "{}",
        lambda token: "null",
        lambda token: " " * (TOKEN_BYTES_MAX + 1),
    ],
)
def test_there_is_no_other_spelling(respell):
    with pytest.raises(MalformedMessage, match="token: "):
        read_token(respell(write_token(a_result(), KEY)), peer_of(KEY), DOMAIN)


@given(st.binary(max_size=300) | st.text(max_size=300))
def test_no_bytes_raise_anything_else(text):
    with pytest.raises(MalformedMessage):
        read_token(text, peer_of(KEY), DOMAIN)
