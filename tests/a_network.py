"""A network on paper: keys, records, an invitation and a run file of the builders' people; no chain."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from assay.chain.addresses import CONTRACTS, Deployment
from assay.chain.deployment.parameters import LOCALNET
from assay.participant.files.invitation import ContractCode, Invitation
from assay.participant.files.record import Role, SignedRecord, sign_record
from assay.participant.files.run_file import RunFile, run_file_of
from assay.participant.keys.keyring import Keys
from assay.protocol.params import RunSpec
from assay.protocol.types import Address, Digest
from assay.testing.members import a_deployment, a_hot_key, a_peer_key, an_account_key
from assay.testing.signed import NODES, VERIFIERS, a_spec

NOW = 1_700_000_000  # before today, for readers that have a clock


def keys_of(name: str) -> Keys:
    return Keys(peer=a_peer_key(name), account=an_account_key(name), hot=a_hot_key(name))


def a_record(name: str, role: Role = Role.NODE, port: int = 4001, **changes: Any) -> SignedRecord:
    given: dict[str, Any] = {"host": "127.0.0.1", "now_s": NOW, **changes}
    return sign_record(keys_of(name), role, port=port, **given)


def records_of(nodes: Sequence[str] = NODES, verifiers: Sequence[str] = VERIFIERS) -> list[SignedRecord]:
    found = [a_record(name, Role.NODE, 4001 + at) for at, name in enumerate(nodes)]
    return found + [a_record(name, Role.VERIFIER, 5001 + at) for at, name in enumerate(verifiers)]


def an_invitation(deployment: Deployment | None = None, **changes: Any) -> Invitation:
    found = deployment or a_deployment()
    made = Invitation(
        name="paper",
        chain_id=found.chain_id,
        block=found.block,
        block_hash=Digest(hashlib.sha256(b"block").digest()),
        deployment_id=Digest(found.deployment_id),
        contracts=tuple(
            ContractCode(
                address=Address(bytes.fromhex(found.address(name)[2:])),
                code=Digest(hashlib.sha256(name.encode()).digest()),
            )
            for name in CONTRACTS
        ),
        params=LOCALNET,
        endpoints=("http://127.0.0.1:1",),
        verifiers=tuple(a_record(name, Role.VERIFIER) for name in VERIFIERS),
    )
    return replace(made, **changes)


def bought(spec: RunSpec | None = None) -> RunSpec:
    """A spec whose buyer's key we have."""
    return replace(spec or a_spec(), buyer=Address(keys_of("buyer").account_address))


def a_run_file(spec: RunSpec | None = None, extra: Sequence[SignedRecord] = ()) -> RunFile:
    return run_file_of(bought(spec), [*records_of(), *extra], an_account_key("buyer"))
