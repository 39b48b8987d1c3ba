"""Builders: small, whole and valid things for tests to begin with."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import numpy as np
from nacl.signing import SigningKey

from ledger.deployment import Deployment
from ledger.evidence import evm_address
from ledger.statements import address_of
from protocol.identity import peer_of
from protocol.params import (
    PPM,
    AuditSpec,
    DataSpec,
    DemoSpec,
    Member,
    ModelSpec,
    MoneySpec,
    RunSpec,
    TimingSpec,
    check_spec,
)
from protocol.types import Address, Digest
from training.data import data_root

DEPLOYMENT_ID = Digest(hashlib.sha256(b"deployment").digest())
RUN_ID = Digest(hashlib.sha256(b"run").digest())
TEXT = np.frombuffer(hashlib.shake_256(b"text").digest(40_000), np.uint8) % 64 + 32


def a_peer_key(name: str) -> SigningKey:
    return SigningKey(hashlib.sha256(b"peer" + name.encode()).digest())


def a_hot_key(name: str) -> bytes:
    return hashlib.sha256(b"hot" + name.encode()).digest()


def a_member(name: str) -> Member:
    account = hashlib.sha256(b"account" + name.encode()).digest()
    return Member(
        peer=peer_of(a_peer_key(name)),
        account=Address(bytes.fromhex(address_of(account)[2:])),
        hot=Address(bytes.fromhex(address_of(a_hot_key(name))[2:])),
    )


def by_peer(names: list[str]) -> list[str]:
    """Names in the order of their peers: the order of members."""
    return sorted(names, key=lambda name: peer_of(a_peer_key(name)))


NODES = by_peer(["nora", "nils", "mallory"])
VERIFIERS = by_peer(["vera", "viktor", "vito", "vlad"])


def a_deployment() -> Deployment:
    addresses = {
        name: evm_address(hashlib.sha256(name.encode()).digest()[:20])
        for name in (
            "token", "stake_vault", "verifier_set", "run_escrow",
            "epoch_settlement", "slash_court", "model_registry",
        )
    }  # fmt: skip
    return Deployment(chain_id=31337, deployment_id=DEPLOYMENT_ID, block=0, **addresses)


def a_spec(**changes: Any) -> RunSpec:
    spec = RunSpec(
        deployment_id=DEPLOYMENT_ID,
        name="tiny",
        seed=7,
        rounds=6,
        state_every=1,
        model=ModelSpec(vocabulary=256, layers=1, width=64, heads=2, context=16),
        data=DataSpec(
            root=data_root(TEXT), tokens=len(TEXT), validation_tokens=2000, source="made up", licence="none"
        ),
        rule=DemoSpec(
            k=32, beta_micro=950_000, clip_micro=PPM, lr_nano=2_000_000, lr_floor_ppm=100_000,
            warmup_rounds=2, sequences=2,
        ),
        audit=AuditSpec(
            probation=2, floor_ppm=200_000, blocks=8, turn_rounds=1, audit_rounds=4, dispute_rounds=3
        ),
        money=MoneySpec(
            price_per_mtoken=10**9, operators_ppm=870_000, verifiers_ppm=80_000,
            treasury=Address(bytes(19) + b"\x07"), slash_ppm=500_000, epoch_rounds=3,
        ),
        timing=TimingSpec(collect_ms=5000, ready_ms=1000, iteration_ms=10_000, resend_ms=500),
        buyer=Address(bytes(19) + b"\x09"),
        nodes=tuple(a_member(name) for name in NODES),
        verifiers=tuple(a_member(name) for name in VERIFIERS),
    )  # fmt: skip
    spec = replace(spec, **changes)
    check_spec(spec)
    return spec
