"""Results: who is slashed for what, and who is rewarded for having found it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from assay.chain.statements import OPERATOR, VERIFIER
from assay.ledger.settlement.payouts import Settlement
from assay.ledger.settlement.results import (
    ACCUSED,
    accused_round,
    accusers_of,
    epoch_result,
    fault_ruling_of,
    model_record,
    slash_order_of,
    slash_ppm,
)
from assay.protocol.auditing.audits import AuditStatus, Fault, FaultKind
from assay.protocol.messages import Outcome
from assay.protocol.types import NO_DIGEST, Digest
from tests.ledger.a_run import RUN, a_member, a_settlement, a_spec, an_audit, peer, wallet

MATCH, MISMATCH, WITHHELD = Outcome.MATCH, Outcome.MISMATCH, Outcome.WITHHELD
SPEC = a_spec()


def test_the_first_accuser_in_the_chain_is_the_challenger():
    audit = an_audit(
        "node-1", 5, AuditStatus.CONFIRMED, True, v3=MATCH, v2=MISMATCH, v0=WITHHELD, v1=MISMATCH
    )

    order = slash_order_of(SPEC, RUN, audit, a_member("node-1").account)

    assert (order.offender, order.role) == (wallet("node-1"), OPERATOR)
    assert order.challenger == wallet("verifier-2")
    assert order.epoch == 1
    assert order.offence_id == audit.offence_id
    assert accusers_of(audit) == tuple(map(peer, ("verifier-2", "verifier-0", "verifier-1")))


def test_a_node_that_nobody_accused_is_not_slashed():
    audit = an_audit("node-1", 0, AuditStatus.PASSED, v0=MATCH)
    with pytest.raises(ValueError, match="no adverse verdict"):
        slash_order_of(SPEC, RUN, audit, a_member("node-1").account)


@pytest.mark.parametrize(("number", "found"), [(0, 0), (6, 6), (7, None), (2**63, None), (2**64 - 1, None)])
def test_evidence_names_a_round_of_the_run_or_none(number: int, found: int | None):
    evidence = bytes(16) + number.to_bytes(8, "big")

    assert accused_round(ACCUSED + evidence, 7) == found
    assert accused_round(b"another/" + evidence, 7) is None


def test_a_step_is_false_for_the_slash_only_if_more_than_f_verifiers_recomputed_it_so():
    def found(**verdicts: Outcome) -> int:
        return slash_ppm(SPEC, an_audit("node-1", 0, AuditStatus.CONFIRMED, True, **verdicts))

    assert found(v0=MISMATCH, v1=MISMATCH, v2=WITHHELD) == SPEC.money.slash_ppm
    assert found(v0=MISMATCH, v1=WITHHELD, v2=WITHHELD) == SPEC.money.withheld_ppm


def test_the_first_verifier_that_recomputed_rightly_is_the_challenger_of_one_at_fault():
    audit = an_audit("node-1", 4, AuditStatus.DISMISSED, True, v3=MISMATCH, v0=WITHHELD, v2=MATCH, v1=MATCH)
    fault = Fault(audit.verdicts[0], FaultKind.ACCUSED)
    audit = replace(audit, faults=(fault,))

    order = fault_ruling_of(SPEC, RUN, audit, fault)

    assert (order.offender, order.role) == (wallet("verifier-3"), VERIFIER)
    assert order.challenger == wallet("verifier-2")
    assert (order.ppm, order.epoch) == (SPEC.money.verifier_slash_ppm, 1)
    assert order.offence_id == fault.offence_id
    assert accusers_of(audit, fault) == (peer("verifier-2"), peer("verifier-1"))


def test_a_fault_that_no_recomputation_proved_is_not_slashed():
    audit = an_audit("node-1", 0, AuditStatus.DISMISSED, True, v3=MISMATCH, v0=WITHHELD)
    fault = Fault(audit.verdicts[0], FaultKind.ACCUSED)

    with pytest.raises(ValueError, match="winning side"):
        fault_ruling_of(SPEC, RUN, replace(audit, faults=(fault,)), fault)


def a_result(table: Settlement):
    return epoch_result(SPEC, table, model=Digest(b"m" * 32), previous=NO_DIGEST, set_version=1)


def test_only_the_last_epochs_result_makes_a_models_record():
    assert SPEC.epochs == 2
    record = model_record(SPEC, SPEC.ordered, a_result(a_settlement(1)), NO_DIGEST, NO_DIGEST, NO_DIGEST)
    assert record.model_hash == b"m" * 32

    with pytest.raises(ValueError, match="epoch 0, expected the last, 1"):
        model_record(SPEC, SPEC.ordered, a_result(a_settlement(0)), NO_DIGEST, NO_DIGEST, NO_DIGEST)


def test_an_epoch_ends_after_its_last_round_and_the_last_one_with_the_run():
    spec = a_spec(rounds=6, epoch_rounds=4)

    assert [spec.ordered.epoch_end(epoch) for epoch in range(2)] == [4, 6]
