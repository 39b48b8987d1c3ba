"""One network: three nodes cheat, one falls out of step, an auditor is lazy, and two nodes show evidence.

Its rule is a decoded one, so aggregates are signs, and reads old parameters, so nodes work ahead. Clocks
differ.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from assay.bundle.read import read
from assay.ledger.settlement.results import run_id_of
from assay.orders.toml import read_toml
from assay.participant.store import Store
from assay.protocol.auditing.draws import audit_rate_ppm
from assay.protocol.encoding.codec import decode
from assay.protocol.identity import Domain
from assay.protocol.identity import verify as check
from assay.protocol.messages import Discount, SignedRefusal
from assay.protocol.params import PPM, RunSpec
from assay.protocol.run_state import RunState
from assay.protocol.types import PeerId
from assay.protocol.update_rule import Wire
from tests.conftest import Assay
from tests.e2e.conftest import SCENARIOS, Finished
from tests.e2e.nets import need_anvil, slashed, write_order
from tests.wan.campaign import play
from tests.wan.scenario import read as read_scenario

EXAMPLES = Path(__file__).parents[2] / "examples"
pytestmark = pytest.mark.slow
DIVERGED, EQUIVOCATED = 3, 3  # rounds in the scenario
CHEATS = ["stale-parameters", "two-commits", "withhold-opening"]


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Nodes 0 and 2 are attested."""
    need_anvil()
    folder, scenario = tmp_path_factory.mktemp("faulty"), read_scenario(SCENARIOS / "liars.toml")
    order = write_order(folder, rounds=scenario.rounds)
    example = read_toml(EXAMPLES / "attested.toml")["verify"]
    named = ("software-policy.toml", "software.key", "software-2.key")
    policy, key, another = (EXAMPLES / "attestation" / name for name in named)
    verify = f'attestation = "{policy}"\nattested_rounds = 8\ncode = "{example["code"]}"\n'
    text = order.read_text().replace("[verify]\n", f"[verify]\n{verify}")
    # With one of four that recomputes nothing every other verdict is needed, also of the slowest machine.
    text = text.replace("dispute_rounds = 4", "dispute_rounds = 8")
    text += '\n[comm]\naggregation = "decoded-trimmed-mean"\nread_lag = 1\n'
    order.write_text(f'{text}\n[run.attesters]\n0 = "{key}"\n2 = "{another}"\n')
    played = play(scenario, folder, order)
    return Finished(played.run, played.summary, played.status)


@pytest.fixture(scope="module")
def chain(faulty: Finished) -> tuple[RunState, ...]:
    """The fold before each link of the delivered chain, and after the last."""
    return tuple(read(faulty.run).run_states)


def test_each_way_to_cheat_costs_its_node_stake_and_no_other(faulty: Finished) -> None:
    assert faulty.broken_promises() == []
    assert slashed(faulty.summary) == CHEATS


def test_an_auditor_who_recomputes_nothing_loses_stake_and_no_node_does_for_it(
    assay: Assay, faulty: Finished
) -> None:
    lazy = next(one for one in faulty.summary["verifiers"] if one["behaviour"] == "pass-all")
    assert lazy["audits"] > 0
    assert lazy["slashed"] > 0
    assert lazy["paid"] == 0
    report = json.loads(assay("audit", "report", faulty.run, "--json")[1])["auditors"]
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


def test_what_a_quorum_says_of_a_nodes_evidence_lowers_its_rate_past_probation(
    faulty: Finished, chain: tuple[RunState, ...]
) -> None:
    discounts = {
        node.peer: {run_state.discount_ppm(node.peer) for run_state in chain} for node in chain[0].spec.nodes
    }
    attested = [peer for peer, seen in discounts.items() if Discount.PROCESSOR in seen]

    assert len(attested) == 2
    assert all(seen == {PPM} for peer, seen in discounts.items() if peer not in attested)
    for run_state in chain:
        for peer in attested:
            clean = run_state.nodes[peer].clean
            full = audit_rate_ppm(run_state.spec.audit, clean)
            assert run_state.rate_ppm(peer) <= full
            if clean < run_state.spec.audit.probation:
                assert run_state.rate_ppm(peer) == PPM
    assert any(run_state.rate_ppm(peer) < PPM for run_state in chain for peer in attested)


def test_nodes_that_read_old_parameters_work_ahead(faulty: Finished) -> None:
    logs = [path.read_text() for path in (faulty.run / "participants").glob("node-*/trainer.log")]
    assert logs and all('"request": "WorkAhead"' in log for log in logs)


def test_aggregates_of_signs_train_the_model_and_verify_offline(
    faulty: Finished, chain: tuple[RunState, ...]
) -> None:
    summary = faulty.summary

    assert chain[0].spec.rule.aggregation.wire is Wire.SIGNS
    assert summary["loss"]["validation_last"] < summary["loss"]["validation_first"] - 0.1
    assert summary["state_agreement"]


def test_a_node_that_commits_twice_is_out_slashed_and_paid_for_nothing_from_that_round_on(
    faulty: Finished, chain: tuple[RunState, ...]
) -> None:
    summary = faulty.summary
    (liar,) = (node for node in summary["nodes"] if node["behaviour"] == "two-commits")
    record = chain[-1].nodes[PeerId(bytes.fromhex(liar["peer"]))]

    assert (record.banned, record.has_contradicted) == (True, True)
    assert record.fault_round >= EQUIVOCATED
    step = (
        2 * 32 * 900_000_000 * 87 // 10**8
    )  # sequences, context, price of 10^6 tokens, the operators' share
    assert max(node["paid"] / node["accepted"] for node in summary["nodes"]) <= step
    assert liar["paid"] <= record.fault_round * step
