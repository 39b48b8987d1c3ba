"""The typed events and states say exactly what the contracts' interfaces say."""

from __future__ import annotations

import pytest

from assay.chain.addresses import CONTRACTS
from assay.chain.events import EVENTS, OTHER_EVENTS, ChainEvent
from assay.chain.logs import contract_of
from assay.chain.rpc import artefact
from assay.chain.state import (
    AppealState,
    CaseState,
    DefenceState,
    EpochState,
    EscrowState,
    field_names,
    snake,
)

BOOKKEEPING_FREE = {
    "LotDischarged",
    "Reserved",
    "Released",
    "Enlisted",
    "JuryDrawn",
    "Voted",
    "CaseAppealed",
    "CaseResumed",
    "Defended",
    "JuryAsked",
    "AppealJuryDrawn",
    "AppealVoted",
    "DefenceEnded",
    "AppealEnded",
}  # move no money, or follow from another event in the same transaction
PLACE = field_names(ChainEvent)


@pytest.mark.parametrize("kind", [*EVENTS, *OTHER_EVENTS])
def test_an_event_has_the_fields_of_its_contract_in_order(kind: type[ChainEvent]):
    entry = next(
        e for e in artefact(contract_of(kind))["abi"] if e["type"] == "event" and e["name"] == kind.__name__
    )
    assert field_names(kind) == [*PLACE, *(snake(one["name"]) for one in entry["inputs"])]


def test_no_event_of_the_contracts_is_overlooked():
    ours = {(contract_of(kind), kind.__name__) for kind in (*EVENTS, *OTHER_EVENTS)}
    declared = {
        (contract, entry["name"])
        for contract in CONTRACTS
        for entry in artefact(contract)["abi"]
        if entry["type"] == "event" and entry["name"] not in {"EIP712DomainChanged", "Transfer", "Approval"}
    }
    assert {name for _, name in declared - ours} == BOOKKEEPING_FREE


@pytest.mark.parametrize(
    ("kind", "contract", "view"),
    [
        (EscrowState, "RunEscrow", "getRun"),
        (EpochState, "EpochSettlement", "getEpoch"),
        (CaseState, "SlashCourt", "getCase"),
        (AppealState, "AppealCourt", "getAppeal"),
        (DefenceState, "AppealCourt", "getDefence"),
    ],
)
def test_a_state_has_the_fields_of_its_struct_in_order(kind: type, contract: str, view: str):
    entry = next(e for e in artefact(contract)["abi"] if e.get("name") == view)
    told = [snake(one["name"]) for one in entry["outputs"][0]["components"]]
    assert field_names(kind) == ["phase" if name == "state" else name for name in told]
