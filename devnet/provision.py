"""Provision: sets up everything a local network needs before its first process starts.

Room: devnet (edge). Keys for every participant, contracts, stakes, the buyer's funded run, and one folder
with one configuration file per participant. Each step uses the same library calls as separate people on
separate machines.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from assay.chain.client import Chain
from assay.chain.commit_statement import evm_address
from assay.chain.deployment.anvil import Anvil
from assay.chain.deployment.parameters import LOCALNET
from assay.chain.statements import OPERATOR, VERIFIER, term_of
from assay.devnet.faults.behaviours import HONEST
from assay.devnet.machines import Machines
from assay.orders.amounts import DECIMALS, scaled
from assay.orders.order import Order
from assay.orders.place import check_members, new_run
from assay.orders.spec import order_closing_s
from assay.participant.files.invitation import write_invitation
from assay.participant.files.record import OWN_RECORD, Role, SignedRecord, sign_record, write_record
from assay.participant.files.run_file import write_run_file
from assay.participant.keys.keyring import QUICK, Keys, create_keys, release_key
from assay.participant.keys.private_files import write_private
from assay.participant.wallet.delegation import DAYS_MAX, delegate
from assay.participant.wallet.founding import found_network
from assay.protocol.encoding.codec import digest, encode
from assay.protocol.params import DataSpec, RunSpec
from assay.protocol.types import NO_DIGEST, Digest
from assay.training.data.batches import read_tokens
from assay.training.data.mask import visible
from assay.training.data.shards import write_tokens
from assay.verifier.audit.limits import LIMITS
from assay.verifier.service.appraiser import POLICY

GAS_WEI = 10**18
RUN_S_MAX = 30 * 24 * 3600
FINALITY_S = 15  # a local chain's finalised block is this far behind, on a machine that is busy
BONDS_MAX = 10  # of results and challenges that each participant can have at the same time
CASES_MAX = 10  # for which each participant can put up a bond at the same time
NETWORK, RUN = "network.txt", "run.assay"
OWN_DATA = "own-data"  # in a node's folder


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalMember:
    """One participant of a local network."""

    name: str  # node-0, verifier-2, ledger, buyer
    role: str  # node, verifier, ledger, buyer
    folder: Path
    keys: Keys
    record: SignedRecord
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
    machines: Machines,
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
        machines: Where the participants listen.
        base: State digest of `base.npy`, or zero.

    Raises:
        ConfigError, Unavailable, ChainRefused: with the message of the failed step.
    """
    step("keys")
    seats = _make_seats(order, scenario, root, machines)
    nodes = [member for member in seats if member.role == "node"]
    applicants = nodes[order.run.nodes :]
    verifiers = [member for member in seats if member.role == "verifier"]
    buyer = next(member for member in seats if member.role == "buyer")

    step("contracts")
    close_delay_s = order_closing_s(order) + FINALITY_S
    invitation = found_network(
        anvil.rpc_url,
        anvil.keys[0],
        replace(
            LOCALNET,
            # The close delay may pass at once, which is to leave time for claims.
            claim_period_s=LOCALNET.claim_period_s + close_delay_s,
            close_delay_s=close_delay_s,
            evidence_window_s=LOCALNET.evidence_window_s + 2 * order.verify.absence_s,
            unbonding_s=LOCALNET.unbonding_s + 2 * order.verify.absence_s,
        ),
        order.run.name,
        [anvil.rpc_url],
        [member.record for member in verifiers],
    )
    write_invitation(root / NETWORK, invitation)
    deployment = invitation.deployment
    made = new_run(
        order,
        [member.record for member in seats if member not in applicants],
        deployment_id=invitation.deployment_id,
        data=data,
        base=base,
        buyer_key=buyer.keys.account_key,
        now_s=int(time.time()),
    )
    spec = made.spec
    write_run_file(root / RUN, made)

    step("stakes and escrow")
    bank = Chain(anvil.rpc_url, deployment, anvil.keys[0])
    everyone = [evm_address(member.keys.account_address) for member in seats]
    operator_stake = order.lot_units
    verifier_stake = scaled(order.budget.verifier_stake, DECIMALS)
    bonds = BONDS_MAX * LOCALNET.challenge_bond + CASES_MAX * LOCALNET.case_bond
    wealth = max(operator_stake, verifier_stake, order.budget_units()) + bonds
    bank.fund_many(everyone, token_amount=wealth, amount_wei=GAS_WEI)
    now = bank.timestamp()
    until = now + RUN_S_MAX

    def take_member(member: LocalMember) -> None:
        chain = Chain(anvil.rpc_url, deployment, member.keys.signer)
        if member.role == "node":
            chain.stake(OPERATOR, operator_stake)
            chain.ensure_lot(OPERATOR, made.run_id, operator_stake, until)
        else:
            chain.stake(VERIFIER, verifier_stake)
            chain.ensure_lot(VERIFIER, term_of(1), verifier_stake, until)
        delegate(chain, member.keys, DAYS_MAX, now)

    with ThreadPoolExecutor(len(seats)) as pool:
        list(pool.map(take_member, [*nodes, *verifiers]))
    check_members(bank, spec, until)
    Chain(anvil.rpc_url, deployment, buyer.keys.signer).open_run(
        digest(spec),
        budget=order.budget_units(),
        epoch_cap=order.epoch_units_max(),
        epochs=spec.epochs,
        deadline=until,
        lot=order.lot_units,
        operators=[evm_address(member.account) for member in spec.nodes],
    )

    step("configuration")
    network = ProvisionedNetwork(root=root, spec=spec, run_id=made.run_id, seats=tuple(seats))
    _write_files(network, order)
    _write_own_data(network)
    return network


def _make_seats(
    order: Order, scenario: Mapping[str, str], root: Path, machines: Machines
) -> list[LocalMember]:
    names = [
        *((f"node-{i}", "node") for i in range(order.seats)),
        *((f"verifier-{i}", "verifier") for i in range(order.run.verifiers + order.run.reserves)),
        ("ledger", "ledger"),
        ("buyer", "buyer"),
    ]
    addresses = machines.addresses([name for name, _ in names])
    password = secrets.token_hex(16)
    (root / "participants").mkdir(parents=True, exist_ok=True)
    write_private(root / "participants" / "password", password.encode())

    def make(named: tuple[str, str]) -> LocalMember:
        name, role = named
        host, port = addresses[name]
        folder = root / "participants" / name
        attester = order.run.attesters.get(name.removeprefix("node-"))
        keys = create_keys(folder / "keys", password, QUICK)
        if role == "buyer":
            release_key(folder / "keys", password, QUICK)
        record = sign_record(keys, Role[role.upper()], host, port, int(time.time()))
        write_record(folder / "keys" / OWN_RECORD, record)
        return LocalMember(
            name=name,
            role=role,
            folder=folder,
            keys=keys,
            record=record,
            behaviour=scenario.get(name, HONEST),
            attester=None if attester is None else (order.folder / attester).resolve(),
        )

    return [make(named) for named in names]


def _write_files(network: ProvisionedNetwork, order: Order) -> None:
    root = network.root
    if order.policy is not None:
        (root / POLICY).write_bytes(encode(order.policy))
    if order.limits is not None:
        (root / LIMITS).write_bytes(order.limits.encode())
    for member in network.seats:
        lines: dict[str, object] = {
            "keys": "keys",
            "network": f"../../{NETWORK}",
            "run": f"../../{RUN}",
            "password_file": "../password",
            "data": "../../data",
        }
        if order.limits is not None and member.role == "verifier":
            lines["limits"] = f"../../{LIMITS}"
        if order.policy is not None and member.role == "verifier":
            lines["attestation"] = f"../../{POLICY}"
        if order.drand is not None and member.role == "verifier":
            lines["drand"] = list(order.drand.urls)
        if member.attester is not None:
            lines["attester_key"] = str(member.attester)
        if member.role in ("ledger", "buyer"):
            lines["status"] = "status.jsonl"
        if network.spec.brings_data(member.record.record.peer):
            lines["own_data"] = OWN_DATA
        if member.role == "buyer":
            lines["bundle"] = "../../bundle"
        text = "".join(f"{key} = {json.dumps(value)}\n" for key, value in lines.items())
        member.config_path.write_text(text)


def _write_own_data(network: ProvisionedNetwork) -> None:
    """Data for the nodes that bring some: here a part of the run's tokens for each."""
    data = network.spec.data
    bringing = [one for one in network.seats if network.spec.brings_data(one.record.record.peer)]
    if not bringing:
        return
    tokens = read_tokens(network.root / "data", data)
    size = len(tokens) // len(bringing)
    for number, member in enumerate(bringing):
        part = visible(tokens[number * size : (number + 1) * size])
        write_tokens(member.folder / OWN_DATA, [part], vocabulary=data.vocabulary, tokenizer=data.tokenizer)
