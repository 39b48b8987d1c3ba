"""Event proofs of a real local chain: its headers and receipts are made again, to the hash."""

from __future__ import annotations

from dataclasses import replace

import pytest
from eth_utils.crypto import keccak

from assay.chain.client import UNIT
from assay.chain.events import ResultFinalized, Staked
from assay.chain.proofs.event_proof import EventProof, read_event
from assay.chain.proofs.event_prover import prove_event
from assay.chain.proofs.result_anchor import FINALIZED, check_result_anchor
from assay.chain.rpc import artefact
from assay.chain.statements import OPERATOR
from assay.protocol.encoding.json_text import plain, read_plain
from assay.protocol.errors import MalformedMessage, Unavailable
from tests.contracts.chain_world import World


def test_the_event_is_the_contracts_own():
    (event,) = (one for one in artefact("EpochSettlement")["abi"] if one.get("name") == "ResultFinalized")
    assert keccak(text=f"ResultFinalized({','.join(one['type'] for one in event['inputs'])})") == FINALIZED


def test_a_final_result_is_shown_by_its_blocks_hash(world: World):
    result = world.a_result(world.settle())
    (event,) = (e for e in world.bank.events(world.deployment.block) if isinstance(e, ResultFinalized))

    proof = world.bank.prove(event)
    block = check_result_anchor(proof, world.deployment, result)

    assert (block.number, block.hash) == (event.block_number, event.block_hash)
    assert read_plain(EventProof, plain(proof)) == proof
    for changes in ({"epoch": 1}, {"total": result.total + 1}, {"root": bytes(32)}, {"run_id": bytes(32)}):
        with pytest.raises(MalformedMessage, match=r"ResultFinalized|is final"):
            check_result_anchor(proof, world.deployment, replace(result, **changes))
    other = replace(world.deployment, epoch_settlement=world.deployment.run_escrow)
    with pytest.raises(MalformedMessage, match="expected 0x"):
        check_result_anchor(proof, other, result)


def test_an_event_in_a_block_of_many_transactions_is_shown(world: World):
    chains = [world.as_(person) for person in world.operators]
    world.rpc("evm_setAutomine", False)
    try:
        for chain in chains:
            allowed = (world.deployment.stake_vault, 100 * UNIT)
            chain._move("approve", "AssayToken", "approve", *allowed, wait=False)
            chain._move("stake", "StakeVault", "stake", OPERATOR, 100 * UNIT, wait=False)
        world.rpc("evm_mine")
    finally:
        world.rpc("evm_setAutomine", True)
    staked = [e for e in world.bank.events(world.ready_block) if isinstance(e, Staked)]
    assert len(staked) == 3 and len({event.block_hash for event in staked}) == 1
    for event in staked:
        assert read_event(world.bank.prove(event)).block.hash == event.block_hash
    with pytest.raises(Unavailable, match="no event"):
        prove_event(world.bank._rpc, replace(staked[-1], log_index=99))
    with pytest.raises(Unavailable):
        prove_event(world.bank._rpc, replace(staked[-1], block_hash=bytes(32)))
