"""Provision: sets up everything a local network needs before its first process starts.

Room: devnet (edge). Keys for every participant, contracts, stakes, the buyer's funded run, and one folder
with one configuration file per participant. Each step uses the same library calls as separate people on
separate machines.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from assay.chain.addresses import Deployment
from assay.chain.client import Chain
from assay.chain.commit_statement import evm_address
from assay.chain.deployment.anvil import Anvil
from assay.chain.deployment.deploy import LOCALNET, deploy
from assay.chain.statements import OPERATOR, VERIFIER, Delegation, sign, term_of
from assay.devnet.faults.behaviours import HONEST
from assay.node.known_answer import write_known_answers
from assay.orders.amounts import DECIMALS, scaled
from assay.orders.order import Order
from assay.orders.spec import build_spec, order_closing_s
from assay.participant.keyring import Keys, create_keys, release_key
from assay.protocol.commitments import known_answer_proof
from assay.protocol.encoding.codec import digest, encode
from assay.protocol.identity import peer_of
from assay.protocol.params import DataSpec, Member, RunSpec
from assay.protocol.types import NO_DIGEST, Address, Digest, PeerId, RoundId
from assay.training.model.initial import BASE
from assay.verifier.audit.limits import LIMITS
from assay.verifier.service.appraiser import POLICY

GAS_WEI = 10**18
RUN_S_MAX = 30 * 24 * 3600
HOT_KEY_S = 365 * 24 * 3600
FINALITY_S = 15  # a local chain's finalised block is this far behind, on a machine that is busy
BONDS_MAX = 10  # of results and challenges that each participant can have at the same time
CASES_MAX = 10  # for which each participant can put up a bond at the same time
KNOWN_ANSWERS = "known-answers.txt"  # beside the configuration of the node that has the known-answer tasks


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalMember:
    """One participant of a local network."""

    name: str  # node-0, verifier-2, ledger, buyer
    role: str  # node, verifier, ledger, buyer
    folder: Path
    keys: Keys
    port: int
    behaviour: str = HONEST
    attester: Path | None = None  # key of its software attester

    @property
    def config_path(self) -> Path:
        """Its configuration file."""
        return self.folder / "config.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvisionedNetwork:
    """A network that was set up: its members, run and folder."""

    root: Path
    spec: RunSpec
    run_id: Digest
    deployment: Deployment
    seats: tuple[LocalMember, ...]

    def member(self, name: str) -> LocalMember:
        """A participant by name."""
        return next(member for member in self.seats if member.name == name)


def establish(
    order: Order,
    scenario: Mapping[str, str],
    root: Path,
    anvil: Anvil,
    data: DataSpec,
    step: Callable[[str], None],
    base: Digest = NO_DIGEST,
) -> ProvisionedNetwork:
    """Make keys, deploy, stake, fund the run, write everybody's files.

    Args:
        order: What is bought.
        scenario: Behaviours of those that are not honest, by name.
        root: The run's folder; `data/` is already there, with `base.npy` if parameters are imported.
        anvil: Running.
        data: Describes `data/`.
        step: Called with the name of each step as it begins.
        base: State digest of `base.npy`, or zero.

    Raises:
        ConfigError, Unavailable, ChainRefused: with the message of the failed step.
    """
    step("keys")
    seats = _make_seats(order, scenario, root)
    nodes = [member for member in seats if member.role == "node"]
    verifiers = [member for member in seats if member.role == "verifier"]
    buyer = next(member for member in seats if member.role == "buyer")
    ledger_service = next(member for member in seats if member.role == "ledger")

    step("contracts")
    deployer_key = anvil.keys[0]
    close_delay_s = order_closing_s(order) + FINALITY_S
    deployment = deploy(
        anvil.rpc_url,
        deployer_key,
        replace(
            LOCALNET,
            close_delay_s=close_delay_s,
            evidence_window_s=LOCALNET.evidence_window_s + order.verify.absence_s,
            unbonding_s=LOCALNET.unbonding_s + order.verify.absence_s,
        ),
        secrets.token_bytes(32),
        [(evm_address(s.keys.account_address), evm_address(s.keys.hot_address)) for s in verifiers],
    )
    known_answer = next((node for node in reversed(nodes) if node.behaviour == HONEST), nodes[-1])
    known_answers = _known_answers(order, peer_of(known_answer.keys.peer))
    spec = build_spec(
        order,
        deployment_id=Digest(deployment.deployment_id),
        data=data,
        buyer=Address(buyer.keys.account_address),
        treasury=Address(ledger_service.keys.account_address),
        nodes=_members(nodes),
        verifiers=_members(verifiers),
        base=base,
        known_answers=known_answers,
    )

    step("stakes and escrow")
    bank = Chain(anvil.rpc_url, deployment, deployer_key)
    everyone = [evm_address(member.keys.account_address) for member in seats]
    operator_stake = order.lot_units
    verifier_stake = scaled(order.budget.verifier_stake, DECIMALS)
    bonds = BONDS_MAX * LOCALNET.challenge_bond + CASES_MAX * LOCALNET.case_bond
    wealth = max(operator_stake, verifier_stake, order.budget_units()) + bonds
    bank.fund_many(everyone, token_amount=wealth, amount_wei=GAS_WEI)
    now = bank.timestamp()
    run_id = Digest(bank.run_id_of(evm_address(buyer.keys.account_address), digest(spec)))
    until = now + RUN_S_MAX

    def take_member(member: LocalMember) -> None:
        chain = Chain(anvil.rpc_url, deployment, member.keys.account)
        if member.role == "node":
            chain.stake(OPERATOR, operator_stake)
            chain.ensure_lot(OPERATOR, run_id, operator_stake, until)
        else:
            chain.stake(VERIFIER, verifier_stake)
            chain.ensure_lot(VERIFIER, term_of(1), verifier_stake, until)
        _delegate(chain, deployment, member, now + HOT_KEY_S)

    with ThreadPoolExecutor(len(seats)) as pool:
        list(pool.map(take_member, [*nodes, *verifiers]))
    _open_run(
        Chain(anvil.rpc_url, deployment, buyer.keys.account), order, spec, now
    )  # its members' lots are locked

    step("configuration")
    network = ProvisionedNetwork(
        root=root, spec=spec, run_id=run_id, deployment=deployment, seats=tuple(seats)
    )
    if known_answers:
        faults = [known_answer_proof(run_id, known_answers, index) for index in range(len(known_answers))]
        write_known_answers(known_answer.folder / KNOWN_ANSWERS, faults)
    _write_files(network, anvil.rpc_url, order)
    return network


def _known_answers(order: Order, node: PeerId) -> list[tuple[Digest, RoundId, PeerId]]:
    """Known-answer tasks of one node, at rounds that nobody else can know."""
    rounds = secrets.SystemRandom().sample(range(order.run.rounds), order.verify.known_answers)
    return [(Digest(secrets.token_bytes(32)), RoundId(at), node) for at in sorted(rounds)]


def free_ports(count: int) -> list[int]:
    """Distinct TCP ports on loopback that are free now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()


def _make_seats(order: Order, scenario: Mapping[str, str], root: Path) -> list[LocalMember]:
    names = [
        *((f"node-{i}", "node") for i in range(order.run.nodes)),
        *((f"verifier-{i}", "verifier") for i in range(order.run.verifiers)),
        ("ledger", "ledger"),
        ("buyer", "buyer"),
    ]
    ports = free_ports(len(names))
    password = secrets.token_hex(16)
    _write_secret(root / "participants" / "password", password.encode())

    def make(named: tuple[tuple[str, str], int]) -> LocalMember:
        (name, role), port = named
        folder = root / "participants" / name
        attester = order.run.attesters.get(name.removeprefix("node-"))
        if role == "buyer":
            release_key(folder / "keys", password)
        return LocalMember(
            name=name,
            role=role,
            folder=folder,
            keys=create_keys(folder / "keys", password),
            port=port,
            behaviour=scenario.get(name, HONEST),
            attester=None if attester is None else (order.folder / attester).resolve(),
        )

    with ThreadPoolExecutor(2) as pool:  # two at a time: each key costs 64 MiB to encrypt
        return list(pool.map(make, zip(names, ports, strict=True)))


def _members(seats: Sequence[LocalMember]) -> list[Member]:
    return [
        Member(
            peer=peer_of(member.keys.peer),
            account=Address(member.keys.account_address),
            hot=Address(member.keys.hot_address),
        )
        for member in seats
    ]


def _open_run(chain: Chain, order: Order, spec: RunSpec, now: int) -> None:
    chain.open_run(
        digest(spec),
        budget=order.budget_units(),
        epoch_cap=order.epoch_units_max(),
        epochs=spec.epochs,
        deadline=now + RUN_S_MAX,
        lot=order.lot_units,
        operators=[evm_address(member.account) for member in spec.nodes],
    )


def _delegate(chain: Chain, deployment: Deployment, member: LocalMember, expiry: int) -> None:
    hot = evm_address(member.keys.hot_address)
    consent = Delegation(
        deployment_id=deployment.deployment_id,
        account=evm_address(member.keys.account_address),
        hot_key=hot,
        expiry=expiry,
    )
    chain.delegate(hot, expiry, sign(consent, deployment.domain(Delegation), member.keys.hot))


def _write_files(network: ProvisionedNetwork, rpc_url: str, order: Order) -> None:
    root = network.root
    if order.policy is not None:
        (root / POLICY).write_bytes(encode(order.policy))
    if order.limits is not None:
        (root / LIMITS).write_bytes(order.limits.encode())
    (root / "spec.cbor").write_bytes(encode(network.spec))
    (root / "deployment.json").write_text(network.deployment.to_json())
    peers = {peer_of(member.keys.peer).hex(): ["127.0.0.1", member.port] for member in network.seats}
    (root / "peers.json").write_text(json.dumps(peers, indent=1))
    for member in network.seats:
        lines = {
            "name": member.name,
            "folder": ".",
            "password_file": "../password",
            "port": member.port,
            "rpc_url": rpc_url,
            "deployment": "../../deployment.json",
            "spec": "../../spec.cbor",
            "run_id": network.run_id.hex(),
            "data": "../../data",
            "peers": "../../peers.json",
            "threads": 1,  # all share these cores, and only equal classes can be audited
        }
        if network.spec.model.base != NO_DIGEST:
            lines["base"] = f"../../data/{BASE}"
        if member.role in ("verifier", "buyer"):
            lines["ledger_service"] = peer_of(network.member("ledger").keys.peer).hex()
        if order.limits is not None and member.role == "verifier":
            lines["limits"] = f"../../{LIMITS}"
        if order.policy is not None and member.role == "verifier":
            lines["attestation"] = f"../../{POLICY}"
        if order.drand is not None and member.role == "verifier":
            lines["drand"] = list(order.drand.urls)
        if member.attester is not None:
            lines["attester_key"] = str(member.attester)
        if (member.folder / KNOWN_ANSWERS).exists():
            lines["known_answers"] = KNOWN_ANSWERS
        if member.role in ("ledger", "buyer"):
            lines["status"] = "status.jsonl"
        if member.role == "buyer":
            lines["bundle"] = "../../bundle"
        text = "".join(f"{key} = {json.dumps(value)}\n" for key, value in lines.items())
        member.config_path.write_text(text)


def _write_secret(path: Path, body: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "wb") as file:
        file.write(body)
