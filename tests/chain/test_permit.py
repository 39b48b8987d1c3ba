"""Permits: who can sign one pays by one transaction, for exactly what is paid; all others approve before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from typing import Any

import pytest
from eth_abi.abi import encode
from eth_account import Account
from eth_account.messages import encode_typed_data
from eth_utils.crypto import keccak
from web3.exceptions import ContractLogicError, Web3RPCError

from assay.chain import permit
from assay.chain.calls import read_call
from assay.chain.client import UNIT, Chain, ChainRefused
from assay.chain.permit import PERMIT_S, Permit, permit_digest
from assay.chain.rpc import Rpc
from assay.chain.signing.unsigned import parse_signed
from assay.chain.state import AppealPhase, CasePhase
from assay.chain.statements import OPERATOR, Address, Domain, sign_digest
from assay.protocol.errors import ConfigError, Unavailable
from assay.protocol.offences import offence_id
from tests.contracts.chain_world import Person, World, view

CONTRACTS = ("StakeVault", "RunEscrow", "EpochSettlement", "SlashCourt", "AppealCourt")
APPROVE = keccak(text="approve(address,uint256)")[:4]
PERMIT_AND_CALL = keccak(text="permitAndCall(uint256,uint256,uint8,bytes32,bytes32,bytes)")[:4]


def sent_by(world: World, person: Person, since: int) -> list[Any]:
    """The transactions of an account after a block."""
    eth = world.bank._rpc.web3.eth
    blocks = (eth.get_block(at, True) for at in range(since + 1, eth.block_number + 1))
    return [one for block in blocks for one in block["transactions"] if one["from"] == person.account]  # type: ignore[index]


@contextmanager
def one_transaction(world: World, person: Person) -> Iterator[None]:
    """What is done in it is done by one transaction of this account, and leaves nothing allowed."""
    since = world.bank.block_number()
    yield
    (only,) = sent_by(world, person, since)
    assert bytes(only["input"])[:4] == PERMIT_AND_CALL
    for name in CONTRACTS:
        assert view(world, "AssayToken", "allowance", person.account, world.deployment.address(name)) == 0


def test_every_payment_is_one_transaction(world: World):
    node, buyer, other = world.operators[0], world.buyer, world.bystander
    with one_transaction(world, node):
        world.as_(node).stake(OPERATOR, 500 * UNIT)
    with one_transaction(world, buyer):
        run_id = world.run_id
    with one_transaction(world, buyer):
        world.as_(buyer).top_up(run_id, 7 * UNIT)
    result = world.a_result(world.a_table())
    with one_transaction(world, other):
        world.as_(other).propose(result, world.cert(result))
    with one_transaction(world, buyer):
        world.as_(buyer).challenge(run_id, 0, bytes(32))
    world.delegate(node)
    world.lock(node, 500 * UNIT)
    step = world.said(value=sha256(b"commit").digest())
    case_id = offence_id(world.run_id, b"assay/offence/1" + step.value)
    order = world.a_ruling(node, offence_id=case_id)
    with one_transaction(world, other):
        world.as_(other).open_case(order, world.cert(order))
    with one_transaction(world, node):
        world.as_(node).appeal_case(case_id, 1, [bytes(32)])
    signer = world.verifiers[0]
    with one_transaction(world, signer):
        world.as_(signer).defend_order(case_id, 0, [bytes(32)], step, world.signed(step, node.hot))

    assert world.bank.stake_of(node.account, OPERATOR).active == 500 * UNIT
    assert world.bank.case(case_id).phase is CasePhase.APPEALED
    assert world.bank.appeal(case_id).phase is AppealPhase.OPEN
    (posted,) = world.bank.proposals_of(run_id, 0, world.bank.block_number())
    assert (posted.result, posted.certificate) == (result, world.cert(result))


def test_a_permit_is_for_what_is_paid_and_for_minutes(world: World):
    node, since = world.operators[0], world.bank.block_number()
    world.as_(node).stake(OPERATOR, 200 * UNIT)

    (only,) = sent_by(world, node, since)
    value, deadline = (int.from_bytes(only["input"][at : at + 32], "big") for at in (4, 36))
    assert value == 200 * UNIT
    assert 0 < deadline - world.bank.timestamp() <= PERMIT_S <= 3_600


def test_what_is_allowed_already_takes_no_permit(world: World):
    node = world.operators[0]
    world.raw(node, "AssayToken", "approve", world.deployment.stake_vault, 200 * UNIT)
    since = world.bank.block_number()
    assert not world.as_(node).needs_approval("StakeVault", 200 * UNIT)

    world.as_(node).stake(OPERATOR, 200 * UNIT)

    (only,) = sent_by(world, node, since)
    assert bytes(only["input"])[:4] == keccak(text="stake(uint8,uint256)")[:4]


def test_what_the_contract_refuses_is_told_and_leaves_no_allowance(world: World):
    node, since = world.operators[0], world.bank.block_number()
    with pytest.raises(ChainRefused, match="BelowMinimum"):
        world.as_(node).stake(OPERATOR, 5)
    assert sent_by(world, node, since) == []


def test_who_sends_anothers_permit_first_stops_nobody(world: World, monkeypatch: pytest.MonkeyPatch):
    """Somebody who sees the transaction before it is mined sends the permit in it to the token."""
    node = world.operators[0]
    chain = world.as_(node)
    submit = chain._rpc._offer

    def overtaken(action: str, raw: bytes) -> None:
        data = parse_signed(raw).data
        value, deadline, v = (int.from_bytes(data[at : at + 32], "big") for at in (4, 36, 68))
        given = (node.account, world.deployment.stake_vault, value, deadline, v, data[100:132], data[132:164])
        world.raw(world.bystander, "AssayToken", "permit", *given)
        submit(action, raw)

    monkeypatch.setattr(chain._rpc, "_offer", overtaken)

    chain.stake(OPERATOR, 200 * UNIT)

    assert world.bank.stake_of(node.account, OPERATOR).active == 200 * UNIT
    assert view(world, "AssayToken", "nonces", node.account) == 1


# ---- which tokens


def answering(monkeypatch: pytest.MonkeyPatch, chain: Chain, **answers: bytes | Exception) -> None:
    """The token answers these functions otherwise than the devnet's does."""
    eth = chain._rpc.web3.eth
    own = eth.call
    others = {keccak(text=SIGNATURES[name])[:4]: answer for name, answer in answers.items()}

    def call(question: Any, block: Any = "latest") -> Any:
        answer = others.get(bytes(question["data"])[:4]) if isinstance(question["data"], bytes) else None
        if isinstance(answer, Exception):
            raise answer
        return own(question, block) if answer is None else answer

    monkeypatch.setattr(eth, "call", call)


SIGNATURES = {
    "name": "name()", "version": "version()", "domain": "DOMAIN_SEPARATOR()", "nonces": "nonces(address)",
    "permit": "permit(address,address,uint256,uint256,uint8,bytes32,bytes32)",
}  # fmt: skip
REVERTS = ContractLogicError("execution reverted", "0x")
BROKEN = Web3RPCError("invalid opcode", rpc_response={"error": {"code": -32000, "message": "invalid opcode"}})  # type: ignore[typeddict-item]


def domain_of(world: World, **edits: Any) -> bytes:
    token = {"name": "Assay Local Dollar", "chain_id": 31_337, "verifying_contract": world.deployment.token}
    return Domain(**{**token, **edits}).separator()


@pytest.mark.parametrize(
    "answers",
    [
        {"domain": REVERTS}, {"nonces": REVERTS}, {"domain": BROKEN}, {"domain": b""}, {"nonces": b""},
        {"domain": bytes(32)}, {"name": b""}, {"name": encode(["bytes"], [b"\xff"])}, {"permit": REVERTS},
        {"version": encode(["string"], ["2"])},
    ],
    ids=[
        "no domain", "no nonces", "no function", "answers nothing", "no nonce", "another domain", "no name",
        "no text", "as Dai's", "another version",
    ],
)  # fmt: skip
def test_a_token_that_takes_no_such_permit_is_approved(
    world: World, monkeypatch: pytest.MonkeyPatch, answers: dict[str, bytes | Exception]
):
    node, since = world.operators[0], world.bank.block_number()
    chain = world.as_(node)
    answering(monkeypatch, chain, **answers)
    assert chain.needs_approval("StakeVault", 200 * UNIT)

    chain.stake(OPERATOR, 200 * UNIT)

    approve, stake = sent_by(world, node, since)
    assert bytes(approve["input"]) == APPROVE + encode(
        ["address", "uint256"], [world.deployment.stake_vault, 200 * UNIT]
    )
    assert bytes(stake["input"])[:4] == keccak(text="stake(uint8,uint256)")[:4]
    assert world.bank.stake_of(node.account, OPERATOR).active == 200 * UNIT


@pytest.mark.parametrize(
    "edits", [{"chain_id": 1}, {"verifying_contract": "0x" + "11" * 20}, {"name": "USD Coin"}]
)
def test_nothing_is_signed_for_another_chain_or_token(
    world: World, monkeypatch: pytest.MonkeyPatch, edits: dict[str, Any]
):
    """An endpoint that says so gets no signature, not even in a question."""
    chain = world.as_(world.operators[0])
    answering(monkeypatch, chain, domain=domain_of(world, **edits))
    monkeypatch.setattr(chain._rpc, "sign_digest", lambda _: pytest.fail("signed"))

    assert chain.needs_approval("StakeVault", UNIT)


def test_a_token_of_another_version_says_so(world: World, monkeypatch: pytest.MonkeyPatch):
    chain, separator = world.as_(world.operators[0]), domain_of(world, version="2")
    answering(monkeypatch, chain, version=encode(["string"], ["2"]), domain=separator, permit=b"")

    assert not chain.needs_approval("StakeVault", UNIT)


def test_a_dry_run_shows_the_endpoint_a_permit_for_nothing(world: World, monkeypatch: pytest.MonkeyPatch):
    chain, asked = world.as_(world.operators[0]), list[bytes]()
    eth = chain._rpc.web3.eth
    own = eth.call

    def call(question: Any, block: Any) -> Any:
        asked.append(question["data"])
        return own(question, block)

    monkeypatch.setattr(eth, "call", call)

    assert not chain.needs_approval("StakeVault", 200 * UNIT)

    selector = keccak(text=SIGNATURES["permit"])[:4]
    (shown,) = [one for one in asked if one[:4] == selector]
    assert int.from_bytes(shown[4 + 64 : 4 + 96], "big") == 0


def test_an_endpoint_that_is_gone_is_no_token_without_permits(world: World, monkeypatch: pytest.MonkeyPatch):
    chain = world.as_(world.operators[0])
    answering(monkeypatch, chain, domain=ConnectionError("gone"))
    with pytest.raises(Unavailable):
        chain.stake(OPERATOR, 200 * UNIT)


def test_a_permit_that_is_late_is_not_sent(world: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(permit, "PERMIT_S", -60)
    assert world.as_(world.operators[0]).needs_approval("StakeVault", UNIT)


# ---- bytes


def test_the_digest_is_what_wallets_sign():
    account = Account.from_key(b"\1" * 32)
    token, spender = Address("0x" + "11" * 20), Address("0x" + "22" * 20)
    domain = Domain(name="USD Coin", version="2", chain_id=1, verifying_contract=token)
    given = Permit(owner=account.address, spender=spender, value=2**256 - 1, nonce=3, deadline=9)
    kinds = ["address owner", "address spender", "uint256 value", "uint256 nonce", "uint256 deadline"]
    typed = encode_typed_data(
        domain_data={"name": "USD Coin", "version": "2", "chainId": 1, "verifyingContract": token},
        message_types={"Permit": [dict(zip(("type", "name"), one.split(), strict=True)) for one in kinds]},
        message_data={
            "owner": account.address,
            "spender": spender,
            "value": 2**256 - 1,
            "nonce": 3,
            "deadline": 9,
        },
    )
    assert sign_digest(permit_digest(given, domain), b"\1" * 32) == account.sign_message(typed).signature


def behind(call: bytes) -> bytes:
    kinds = ["uint256", "uint256", "uint8", "bytes32", "bytes32", "bytes"]
    return PERMIT_AND_CALL + encode(kinds, [1, 2, 27, bytes(32), bytes(32), call])


def test_a_file_to_sign_with_a_call_in_a_call_is_refused(world: World):
    vault = world.deployment.stake_vault
    stake = keccak(text="stake(uint8,uint256)")[:4] + encode(["uint8", "uint256"], [0, 5])
    assert read_call(vault, stake, world.deployment).function == "stake(uint8,uint256)"
    for network in (None, world.deployment):
        with pytest.raises(ConfigError, match="permitAndCall: a call within a call"):
            read_call(vault, behind(stake), network)


def test_a_client_without_a_key_signs_nothing():
    assert Rpc("http://127.0.0.1:1").sign_digest(bytes(32)) is None
