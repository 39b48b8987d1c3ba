"""First records: before its first manifest the chain records nothing for or against anybody."""

from __future__ import annotations

from dataclasses import replace

import pytest

from assay.protocol.params import check_spec
from assay.protocol.run_state import NodeRecord, VerifierRecord
from assay.protocol.types import NO_DIGEST
from assay.testing.members import NODES, VERIFIERS, a_member, name_of
from assay.testing.run import a_spec, a_start


@pytest.mark.parametrize("node", NODES, ids=name_of)
def test_a_node_has_no_step_no_absence_and_no_fault(node):
    record = a_start().nodes[node]

    assert (record.momentum, record.base, record.accepted, record.exec_class) == (NO_DIGEST, 0, 0, NO_DIGEST)
    assert (record.clean, record.missed, record.returns, record.absent_s, record.heard_s) == (0, 0, 0, 0, 0)
    assert record.absent_round == record.fault_round == -1  # before every round
    assert record.is_seated and not record.banned and not record.is_biased
    assert not (record.has_left or record.is_lost or record.is_suspect or record.has_contradicted)


@pytest.mark.parametrize("verifier", VERIFIERS, ids=name_of)
def test_a_verifier_has_judged_nothing_and_has_no_fault(verifier):
    record = a_start().verifiers.get(verifier, VerifierRecord())

    assert (record.judged, record.silent, record.fault_round, record.double_vote) == (0, 0, -1, NO_DIGEST)
    assert not record.is_disqualified


def test_a_fault_in_round_0_counts_like_any_other():
    node = NodeRecord(member=a_member(NODES[0]))

    assert replace(node, fault_round=0).banned and not replace(node, fault_round=0).is_seated
    assert not replace(node, has_left=True).is_seated and not replace(node, has_left=True).banned
    assert VerifierRecord(fault_round=0).is_disqualified


@pytest.mark.parametrize(("f", "least"), [(0, 1), (1, 3), (2, 5)])
def test_a_rule_for_f_byzantine_nodes_needs_more_than_twice_as_many(f, least):
    spec = a_spec(nodes=NODES[:1])
    aggregation = replace(spec.rule.aggregation, f=f)
    spec = replace(spec, rule=replace(spec.rule, aggregation=aggregation), seats=8, start_by_s=10**9)

    check_spec(replace(spec, least_nodes=least + 1))
    if least > 1:
        check_spec(replace(spec, least_nodes=least))
        with pytest.raises(ValueError, match=f"{least - 1} nodes for f = {f}, more than twice"):
            check_spec(replace(spec, least_nodes=least - 1))
