"""Step receipts: a run without drand names no round of it, and what others did is not in a node's audit."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from assay.bundle.receipts.step import _about, check_receipt, make_receipt
from assay.ledger.settlement.results import run_id_of
from assay.protocol.identity import Domain
from assay.protocol.types import NO_DIGEST, PeerId, RoundId
from assay.testing import run as runs
from assay.testing import signed
from assay.testing.members import peer
from assay.testing.messages import Signed
from assay.testing.signed import VERIFIERS, a_spec
from tests.bundle.receipts import test_step as receipts


def test_a_draw_without_drand_names_no_round_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = a_spec()
    run = run_id_of(spec)
    whole = signed.a_manifest
    monkeypatch.setattr(signed, "a_manifest", lambda *args, drand, drand_next, **rest: whole(*args, **rest))
    chain = receipts.a_whole_chain(signer=Signed(Domain(spec.deployment_id, run)), spec=spec)

    found = check_receipt(make_receipt(spec, run, receipts.DEPLOYMENT, *chain, 1, peer("nora")).encode())

    assert (found.shares, found.drand) == (len(VERIFIERS), 0)


def test_a_nodes_audit_follows_from_the_contradictions_of_that_node_alone() -> None:
    def a_pair(node: PeerId) -> Any:
        return SimpleNamespace(first=SimpleNamespace(commit=SimpleNamespace(node=node)))

    pairs = [a_pair(peer(name)) for name in ("mallory", "nora", "nils")]
    manifest = runs.an_empty_manifest(receipts.RUN, RoundId(3), NO_DIGEST, contradictions=tuple(pairs))

    assert _about(manifest, peer("nora"), 0).contradictions == (pairs[1],)
    assert _about(manifest, peer("vera"), 0).contradictions == ()
