"""Real processes: evidence of hardware reaches the chain, and so does a node's contradiction of itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from assay.orders.toml import read_toml
from assay.participant.config import read_spec
from assay.participant.links import extend
from assay.protocol.draws import audit_rate_ppm
from assay.protocol.encoding.codec import decode
from assay.protocol.messages import CertifiedManifest, Discount
from assay.protocol.params import PPM
from assay.protocol.state_transition import RunState, start
from assay.protocol.types import PeerId
from assay.protocol.update_rule import Wire
from tests.e2e.nets import broken_invariants, localnet, need_anvil, slashed, summary_of, write_order

EXAMPLES = Path(__file__).parents[2] / "examples"
pytestmark = pytest.mark.slow


def run_states(bundle: Path, run_id: bytes) -> list[RunState]:
    """The fold before each link of a delivered chain, and after the last."""
    found = [start(read_spec(bundle / "spec.cbor"), run_id)]
    for path in sorted((bundle / "links").iterdir()):
        found.append(extend(found[-1], decode(CertifiedManifest, path.read_bytes())))
    return found


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], list[RunState]]:
    """Two attested nodes, one that is not, and one that commits twice from round 3 on.

    Its rule is a decoded one, so aggregates are signs, and reads old parameters, so nodes work ahead.
    """
    need_anvil()
    folder = tmp_path_factory.mktemp("attested")
    order = write_order(folder, rounds=14, cheat="two-commits@3")
    example = read_toml(EXAMPLES / "attested.toml")["verify"]
    policy, key = (EXAMPLES / "attestation" / name for name in ("software-policy.toml", "software.key"))
    verify = f'attestation = "{policy}"\nattested_rounds = 8\ncode = "{example["code"]}"\n'
    text = order.read_text().replace("[verify]\n", f"[verify]\n{verify}")
    text += '\n[comm]\naggregation = "decoded-trimmed-mean"\nread_lag = 1\n'
    order.write_text(f'{text}\n[run.attesters]\n0 = "{key}"\n1 = "{key}"\n')
    with localnet(folder, order) as process:
        summary = summary_of(process)
        assert process.returncode == 0, summary
    logs = [path.read_text() for path in (folder / "run" / "participants").glob("node-*/trainer.log")]
    assert logs and all('"request": "WorkAhead"' in log for log in logs)
    return summary, run_states(folder / "run" / "bundle", bytes.fromhex(summary["run_id"]))


def test_what_a_quorum_says_of_a_nodes_evidence_lowers_its_rate_past_probation(
    finished: tuple[dict[str, Any], list[RunState]],
) -> None:
    _, chain = finished
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


def test_aggregates_of_signs_train_the_model_and_verify_offline(
    finished: tuple[dict[str, Any], list[RunState]],
) -> None:
    summary, chain = finished

    assert chain[0].spec.rule.aggregation.wire is Wire.SIGNS
    assert summary["loss"]["validation_last"] < summary["loss"]["validation_first"] - 0.1
    assert summary["state_agreement"]


def test_a_node_that_commits_twice_is_out_slashed_and_paid_for_nothing_from_that_round_on(
    finished: tuple[dict[str, Any], list[RunState]],
) -> None:
    summary, chain = finished
    assert broken_invariants(summary) == []
    (liar,) = (node for node in summary["nodes"] if node["behaviour"] == "two-commits")
    record = chain[-1].nodes[PeerId(bytes.fromhex(liar["peer"]))]

    assert (record.banned, record.has_contradicted) == (True, True)
    assert record.fault_round >= 3
    assert slashed(summary) == ["two-commits"]
    honest = [node for node in summary["nodes"] if node["behaviour"] == "honest"]
    share = {node["paid"] / node["accepted"] for node in honest}
    assert max(share) - min(share) < 1  # a rest of a division
    assert liar["paid"] <= record.fault_round * max(share)
