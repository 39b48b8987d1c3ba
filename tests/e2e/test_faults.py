"""One network in which two nodes cheat, one falls out of step and one auditor is lazy."""

from __future__ import annotations

import json

import pytest

from assay.bundle.read import read
from assay.ledger.settlement.results import run_id_of
from assay.participant.store import Store
from assay.protocol.encoding.codec import decode
from assay.protocol.identity import Domain
from assay.protocol.identity import verify as check
from assay.protocol.messages import SignedRefusal
from assay.protocol.params import RunSpec
from tests.conftest import Assay
from tests.e2e.conftest import Finished
from tests.e2e.nets import broken_invariants, localnet, need_anvil, slashed, summary_of, write_order

pytestmark = pytest.mark.slow
DIVERGED = 3
FAULTS = (
    f"1=diverge@{DIVERGED}",
    "4=withhold-opening@2",
    "v1=pass-all",
    "v2=honest",
)  # and 3=stale-parameters@2


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    need_anvil()
    folder = tmp_path_factory.mktemp("faulty")
    chosen = [word for fault in FAULTS for word in ("--behave", fault)]
    with localnet(folder, write_order(folder), "--nodes", "6", *chosen) as process:
        return Finished(folder / "run", summary_of(process), process.returncode)


def test_each_way_to_cheat_costs_its_node_stake_and_no_other(faulty: Finished) -> None:
    assert broken_invariants(faulty.summary) == []
    assert slashed(faulty.summary) == ["stale-parameters", "withhold-opening"]


def test_an_auditor_who_recomputes_nothing_loses_stake_and_no_node_does_for_it(
    assay: Assay, faulty: Finished
) -> None:
    lazy = next(one for one in faulty.summary["verifiers"] if one["behaviour"] == "pass-all")
    assert lazy["audits"] > 0
    assert lazy["slashed"] > 0
    assert lazy["paid"] == 0
    assert assay("run", "verify", faulty.run)[0] == 0
    report = json.loads(assay("audit", "report", faulty.run, "--json")[1])
    found = next(one for one in report["verifiers"] if one["behaviour"] == "pass-all")
    assert found["faults"]
    assert all(not one["faults"] for one in report["verifiers"] if one is not found)


def test_a_node_with_a_wrong_bit_is_refused_rebuilds_itself_and_goes_on(faulty: Finished) -> None:
    run, summary = faulty.run, faulty.summary

    assert "parameters diverged: rebuilding them from the chain" in (run / "logs" / "node-1.log").read_text()
    diverged = next(node for node in summary["nodes"] if node["behaviour"] == "diverge")
    assert diverged["slashed"] == 0
    assert diverged["accepted"] < summary["rounds"]
    commits = [signed.commit for link in read(run).links for signed in link.manifest.commits]
    last = max(int(commit.round) for commit in commits if commit.node.hex() == diverged["peer"])
    assert last > DIVERGED
    kept = Store(run / "participants" / "node-1" / "store.db").values("refusal/")
    refusals = [decode(SignedRefusal, body) for body in kept.values()]
    spec = decode(RunSpec, (run / "bundle" / "spec.cbor").read_bytes())
    assert len({signed.refusal.verifier for signed in refusals}) >= 3, "every verifier signs why"
    for signed in refusals:
        domain = Domain(spec.deployment_id, run_id_of(spec))
        check(signed.refusal.verifier, domain, signed.refusal, signed.signature)
        assert "diverged: used parameters" in signed.refusal.reason
