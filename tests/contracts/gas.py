"""What each move costs as a transaction: `python -m tests.contracts.gas` writes it into docs/results/gas.md.

Every figure is `gasUsed` of a mined transaction on anvil, so it holds the 21,000 of any transaction,
the calldata, cold storage and refunds. Keys and ids are fixed; what is left to chance are the
contracts' addresses and the time, a few dozen gas by their zero bytes.
"""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from assay.chain.client import UNIT, Sent
from assay.chain.deployment.anvil import Anvil, find_anvil
from assay.chain.proofs.payout_tree import Payout, PayoutTree, payout_tree
from assay.chain.statements import CERT_ECDSA, OPERATOR, Discharge, EpochResult, values
from assay.protocol.offences import offence_id
from tests.contracts.chain_world import BUDGET, Person, World, a_person, view

CONTRACTS = Path(__file__).parents[2] / "contracts"
DOCUMENT = CONTRACTS.parent / "docs" / "results" / "gas.md"
RECORD_BYTES = 272  # of a node with an IPv4 address
RUN_BYTES = (3_508, 98_304)  # of three nodes and four verifiers; the most that is taken
PARTS = 64
ROWS = 256  # a tree of depth 8
BATCH_GOAL = 40_000
CLAIM_GOAL = 92_000
SET_SIZE_OF_QUORUM = {4: 5, 7: 9, 16: 23}  # the smallest set with each quorum


@dataclass(frozen=True)
class Cost:
    """One move, what it took, and what the design asked for."""

    move: str
    gas: int
    goal: int | None = None


def costs(rpc_url: str, bank_key: bytes) -> Iterator[Cost]:
    """Every move of the table, each on a chain on which only its preconditions have happened."""
    yield from _of_stake(World(rpc_url, bank_key, name="stake"))
    yield from _of_the_registry(World(rpc_url, bank_key, name="registry"))
    yield from _of_the_directory(World(rpc_url, bank_key, name="directory"))
    yield from _of_an_appeal(World(rpc_url, bank_key, name="appeal"))
    yield from _of_a_run(World(rpc_url, bank_key, name="run"))
    for count, goal in ((4, 82_000), (7, 105_000), (16, 178_000)):
        size = SET_SIZE_OF_QUORUM[count]
        world = World(rpc_url, bank_key, verifier_count=size, name=f"set of {size}")
        yield Cost(f"post a run's first epoch, {count} signatures", _post(world, 0, _table(world, 0), count))
        yield Cost(f"post an epoch, {count} signatures", _post(world, 1, _table(world, 1), count), goal)


def _of_stake(world: World) -> Iterator[Cost]:
    one, two = world.operators[:2]
    for words in ("first", "again"):
        yield from _paid_in(world, words)
    for person in world.operators:
        _send(world, person, "AssayToken", "approve", world.deployment.address("StakeVault"), 2**255)
    yield Cost("stake, first", _send(world, one, "StakeVault", "stake", OPERATOR, 500 * UNIT))
    yield Cost("stake, again", _send(world, one, "StakeVault", "stake", OPERATOR, 100 * UNIT))
    yield Cost("ask to unstake", _send(world, one, "StakeVault", "requestUnstake", OPERATOR, 200 * UNIT))
    world.advance(world.params.unbonding_s)
    yield Cost("withdraw", _send(world, one, "StakeVault", "withdraw", 1))

    slash_order = world.a_ruling(one, ppm=250_000, offence_id=offence_id(world.run_id, b"offence"))
    opening = (values(slash_order), CERT_ECDSA, world.cert(slash_order))
    until = world.bank.timestamp() + 100 * 86_400
    lot = (OPERATOR, world.run_id, 400 * UNIT, until)
    yield Cost("lock a lot", _send(world, one, "StakeVault", "lock", *lot))
    _send(world, two, "AssayToken", "approve", world.deployment.address("SlashCourt"), 2**255)
    yield Cost("slash: open a case, 3 signatures", _send(world, two, "SlashCourt", "openCase", *opening))
    world.advance(world.params.veto_window_s)
    yield Cost("slash: execute it", _send(world, two, "SlashCourt", "execute", slash_order.offence_id))
    world.advance(world.params.payout_delay_s)
    yield Cost("slash: pay it out", _send(world, two, "SlashCourt", "payOut", slash_order.offence_id))
    yield Cost("collect a reward", _send(world, two, "StakeVault", "collect", slash_order.challenger))

    world.join(two, OPERATOR, 500 * UNIT)
    left = Discharge(deployment_id=slash_order.deployment_id, run_id=world.run_id, account=two.account)
    leave = (world.run_id, two.account, CERT_ECDSA, world.cert(left))
    yield Cost("discharge a lot, 3 signatures", _send(world, one, "SlashCourt", "discharge", *leave))
    said = [world.said(), world.said(value=b"two".ljust(32, b"\0"))]
    told = [part for one in said for part in (values(one), world.signed(one, two.hot))]
    salt = sha256(b"salt").digest()
    offence = world.bank.equivocation_id(two.hot_key, said[0])
    promise = view(world, "SlashCourt", "commitmentOf", world.bystander.account, offence, salt)
    yield Cost(
        "slash: promise a report", _send(world, world.bystander, "SlashCourt", "commitReport", promise)
    )
    yield Cost(
        "slash: equivocation, promised",
        _send(world, world.bystander, "SlashCourt", "reportEquivocation", *told, salt),
    )


def _paid_in(world: World, words: str) -> Iterator[Cost]:
    """Stake by an approval and a call, and by a permit in the call, as the client sends it."""
    one, two, amount = world.buyer, world.bystander, 500 * UNIT
    vault = world.deployment.address("StakeVault")
    paid = _send(world, one, "AssayToken", "approve", vault, amount)
    paid += _send(world, one, "StakeVault", "stake", OPERATOR, amount)
    yield Cost(f"stake, {words}, approved: two transactions", paid)
    paid = world.as_(two).stake(OPERATOR, amount).gas_used
    yield Cost(f"stake, {words}, permitted: one transaction", paid)


def _of_an_appeal(world: World) -> Iterator[Cost]:
    """Of a program of 4,096 operators: two cuts of 64 parts leave one."""
    accused, signer = world.operators[0], world.verifiers[0]
    world.join(accused, OPERATOR, 500 * UNIT)
    step = world.said(value=sha256(b"commit").digest())
    case_id = offence_id(world.run_id, b"assay/offence/1" + step.value)
    slash_order = world.a_ruling(accused, ppm=250_000, offence_id=case_id)
    for person in (accused, signer):
        _send(world, person, "AssayToken", "approve", world.deployment.address("AppealCourt"), 2**255)
    world.bank.open_case(slash_order, world.cert(slash_order))
    parts = [sha256(b"position %d" % at).digest() for at in range(PARTS)]
    yield Cost("appeal: claim 64 parts", _send(world, accused, "AppealCourt", "appeal", case_id, 4096, parts))
    shown = (values(step), world.signed(step, accused.hot))
    defending = (case_id, 7, parts, *shown)
    yield Cost("appeal: defend an order", _send(world, signer, "AppealCourt", "defend", *defending))
    inner = [*parts[8:], *parts[:8]]
    cutting = (case_id, signer.account, inner)
    yield Cost("appeal: cut a part in 64", _send(world, accused, "AppealCourt", "cut", *cutting))
    yield Cost("appeal: name one of 64", _send(world, signer, "AppealCourt", "choose", case_id, 7, inner))


def _of_the_registry(world: World) -> Iterator[Cost]:
    ledger_service, roots = world.bystander, [sha256(bytes([at])).digest() for at in range(2)]
    for words, size in (("first", 300), ("again", 600)):
        arguments = (world.run_id, size, roots[size // 600])
        yield Cost(
            f"anchor the log, {words}", _send(world, ledger_service, "ModelRegistry", "anchorLog", *arguments)
        )


def _of_the_directory(world: World) -> Iterator[Cost]:
    one, peers = world.operators[0], [sha256(bytes([at])).digest() for at in range(2)]
    world.as_(one).stake(OPERATOR, 500 * UNIT)
    record = random.Random(0).randbytes(RECORD_BYTES)
    for words, peer in (("first", 0), ("again", 0), ("of another peer", 1)):
        cost = _send(world, one, "Directory", "announceRecord", peers[peer], record)
        yield Cost(f"announce a record of {RECORD_BYTES} bytes, {words}", cost)
    for size in RUN_BYTES:
        run_id, body = world.a_run(b"%d" % size), random.Random(0).randbytes(size)
        cost = _send(world, world.buyer, "Directory", "announceRun", run_id, body)
        yield Cost(f"announce a run file of {size:,} bytes", cost)


def _of_a_run(world: World) -> Iterator[Cost]:
    _send(world, world.buyer, "AssayToken", "approve", world.deployment.address("RunEscrow"), 2**255)
    deadline = world.bank.timestamp() + 30 * 86_400
    lot, run_id = 100 * UNIT, world.bank.run_id_of(world.buyer.account, sha256(b"run").digest())
    for operator in world.operators:
        world.as_(operator).stake(OPERATOR, lot)
        world.lock(operator, lot, commitment=run_id)
    seats = sorted((operator.account for operator in world.operators), key=lambda account: int(account, 16))
    terms = (sha256(b"run").digest(), BUDGET, 1_000 * UNIT, 5, deadline, 1, lot, seats)
    yield Cost("open a run, 3 operators", _send(world, world.buyer, "RunEscrow", "openRun", *terms))

    first = _table(world, 0)
    _post(world, 0, first, 3)
    world.advance(world.params.challenge_window_s)
    yield Cost(
        "finalise an epoch", _send(world, world.bystander, "EpochSettlement", "finalize", world.run_id, 0)
    )
    yield Cost("claim, a run's first row, to an empty account", _claim(world, 0, first, 3), CLAIM_GOAL)
    yield Cost("claim, next row, to an empty account", _claim(world, 0, first, 4), CLAIM_GOAL)
    batch = _claim(world, 0, first, *range(32, 64))
    yield Cost("claim 32 rows at once, each, to empty accounts", batch, BATCH_GOAL)
    second = _table(world, 1)
    _post(world, 1, second, 3)
    world.advance(world.params.challenge_window_s)
    world.bank.finalize(world.run_id, 1)
    yield Cost("claim, first of an epoch's 256 rows", _claim(world, 1, second, 3), CLAIM_GOAL)
    yield Cost("claim, next row", _claim(world, 1, second, 4), CLAIM_GOAL)
    yield Cost("claim 32 rows at once, each", _claim(world, 1, second, *range(32, 64)), BATCH_GOAL)


def _table(world: World, epoch: int) -> PayoutTree:
    """256 payees without tokens before their first claim."""
    rows = [Payout(account=a_person(f"payee {at}").account, amount=UNIT + at) for at in range(ROWS)]
    return payout_tree(world.run_id, epoch, rows)


def _post(world: World, epoch: int, tree: PayoutTree, count: int) -> int:
    hashes = {name: sha256(name.encode()).digest() for name in ("table_hash", "model_hash")}
    result: EpochResult = world.a_result(tree, epoch, **hashes)
    arguments = (values(result), CERT_ECDSA, world.cert(result, count))
    settlement = world.deployment.address("EpochSettlement")
    _send(world, world.bystander, "AssayToken", "approve", settlement, 2**255)
    return _send(world, world.bystander, "EpochSettlement", "propose", *arguments)


def _claim(world: World, epoch: int, tree: PayoutTree, *indices: int) -> int:
    """For each row of one transaction."""
    named = [(at, tree.payouts[at]) for at in indices]
    rows = [(at, row.account, row.amount, list(tree.proof(at))) for at, row in named]
    used = _send(world, world.bystander, "EpochSettlement", "claim", world.run_id, epoch, rows)
    return used // len(indices)


def _send(world: World, person: Person, contract: str, function: str, *arguments: Any) -> int:
    sent: Sent = world.as_(person)._move(function, contract, function, *arguments)
    return sent.gas_used


def measure(anvil_binary: Path) -> list[Cost]:
    """All costs, on a chain of their own."""
    with (
        TemporaryDirectory() as folder,
        Anvil(
            binary=anvil_binary, state_dir=Path(folder), block_time_s=None, state_interval_s=3_600
        ) as chain,
    ):
        return list(costs(chain.rpc_url, chain.keys[0]))


def table(found: list[Cost]) -> str:
    """The table as Markdown."""
    lines = ["| move | gas | goal |", "|---|---:|---:|"]
    for one in found:
        goal = "" if one.goal is None else f"{one.goal:,} ({'met' if one.gas <= one.goal else 'missed'})"
        lines.append(f"| {one.move} | {one.gas:,} | {goal} |")
    return "\n".join(lines)


def published() -> dict[str, int]:
    """Move to gas, as the document says."""
    rows = re.findall(r"^\| (.+?) \| ([\d,]+) \|", DOCUMENT.read_text(), re.MULTILINE)
    return {move: int(gas.replace(",", "")) for move, gas in rows}


if __name__ == "__main__":
    made = table(measure(find_anvil(CONTRACTS)))
    before, _, rest = DOCUMENT.read_text().partition("| move |")
    _, _, after = ("| move |" + rest).partition("\n\n")
    DOCUMENT.write_text(f"{before}{made}\n\n{after}")
    sys.stdout.write(made + "\n")
