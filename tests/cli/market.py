"""A run that somebody could take part in: real contracts, real keys, and a file for each participant.

Windows are days long and the chain's clock is moved by hand, so no test depends on speed.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from assay.chain.addresses import Deployment
from assay.chain.client import MAINNET, UNIT, Chain, deploy
from assay.chain.commit_statement import evm_address
from assay.chain.providers import Providers
from assay.chain.statements import (
    OPERATOR,
    VERIFIER,
    Address,
    Delegation,
    Discharge,
    SlashOrder,
    address_of,
    certificate,
    sign_digest,
    term_of,
)
from assay.ledger.journal.store import BookStore
from assay.ledger.settlement.payouts import Settlement
from assay.ledger.settlement.results import epoch_result, run_id_of
from assay.observer.ledger_service.bookkeeper import Bookkeeper
from assay.observer.ledger_service.status import StatusFile
from assay.orders.load import load_order
from assay.orders.spec import build_spec
from assay.participant.files.invitation import invitation_of, write_invitation
from assay.participant.files.run_file import run_file_of, write_run_file
from assay.participant.follower import Follower
from assay.participant.keys.keyring import QUICK, write_keys
from assay.participant.keys.private_files import write_private
from assay.participant.store import Store
from assay.protocol import types
from assay.protocol.encoding.codec import digest, encode
from assay.protocol.identity import Domain
from assay.protocol.messages import CertifiedManifest
from assay.protocol.offences import offence_id
from assay.protocol.params import RunSpec
from assay.protocol.run_state import start
from assay.testing.members import a_hot_key, an_account_key
from assay.testing.messages import Signed
from assay.testing.signed import NODES, STATE, VERIFIERS, a_chain, a_member
from assay.testing.specs import TEXT, data_of
from tests.a_network import an_invitation, keys_of, records_of

WINDOWS = replace(MAINNET, min_operator_stake=100 * UNIT, min_verifier_stake=100 * UNIT)
PURSE = 10_000 * UNIT
PASSWORD = "a password of nobody"
ORDER = """
[run]
name = "market"
rounds = 6
nodes = 3
verifiers = 4
[model]
separator = ""
layers = 1
width = 64
heads = 2
context = 16
[[data]]
source = "made up"
licence = "none"
[train]
sequences = 2
[verify]
probation = 2
blocks = 8
replicated = 0
limits = "none"
audit_rounds = 7
dispute_rounds = 4
[budget]
price_per_mtoken = 1_000_000_000_000  # so that what few tokens earn can be seen
epoch_rounds = 3
"""


def wallet(name: str) -> Address:
    return address_of(an_account_key(name))


class Market:
    """Nodes and verifiers of the builders, a buyer and a stranger, all with money and nothing staked."""

    def __init__(self, rpc_url: str, bank_key: bytes, folder: Path) -> None:
        self.rpc_url, self.folder, self.params = rpc_url, folder, WINDOWS
        members = [a_member(name) for name in VERIFIERS]
        self.deployment: Deployment = deploy(
            rpc_url,
            bank_key,
            WINDOWS,
            hashlib.sha256(b"market").digest(),
            [evm_address(member.account) for member in members],
        )
        self.bank = Chain(rpc_url, self.deployment, bank_key)
        everyone = [wallet(name) for name in (*NODES, *VERIFIERS, "buyer", "stranger")]
        self.bank.fund_many(everyone, token_amount=PURSE, amount_wei=10**18)
        for name in VERIFIERS:
            self.join_as_verifier(name)
        self.order_file = folder / "run.toml"
        self.order_file.write_text(ORDER)
        (folder / "made up").write_bytes(TEXT.tobytes())
        self.spec = build_spec(
            load_order(self.order_file),
            deployment_id=types.Digest(self.deployment.deployment_id),
            data=data_of(TEXT),
            buyer=types.Address(bytes.fromhex(wallet("buyer")[2:])),
            treasury=types.Address(bytes.fromhex(wallet("stranger")[2:])),
            nodes=[a_member(name) for name in NODES],
            verifiers=members,
        )
        self.run_id = run_id_of(self.spec)
        self.invite(self.deployment)
        self.write_run(self.spec)
        write_private(folder / "password", f"{PASSWORD}\n".encode())

    def join_as_verifier(self, name: str) -> None:
        """The minimum of stake, and leave for the hot key to sign."""
        chain, least = self.as_(name), WINDOWS.min_verifier_stake
        chain.stake(VERIFIER, least)
        chain.ensure_lot(VERIFIER, term_of(1), least, self.bank.timestamp() + 390 * 86_400)
        self.delegate(name)

    def join_nodes(self) -> None:
        """The minimum of stake for each node, and leave for its hot key to sign."""
        for name in NODES:
            self.as_(name).stake(OPERATOR, WINDOWS.min_operator_stake)
            self.delegate(name)

    def delegate(self, name: str) -> None:
        """Lets the hot key sign for the account."""
        hot, expiry = evm_address(a_member(name).hot), 2**40
        consent = Delegation(
            deployment_id=self.deployment.deployment_id, account=wallet(name), hot_key=hot, expiry=expiry
        )
        signed = sign_digest(self.deployment.digest(consent), a_hot_key(name))
        self.as_(name).delegate(hot, expiry, signed)

    def fresh(self, folder: Path) -> Market:
        """The same market, its files in a folder of their own."""
        found = copy(self)
        for name in ("run.toml", "made up", "network.txt", "run.assay", "password"):
            shutil.copy(self.folder / name, folder / name)
        found.folder, found.order_file = folder, folder / "run.toml"
        return found

    def invite(self, deployment: Deployment) -> None:
        """The invitation that every participant has, to these contracts."""
        write_invitation(self.folder / "network.txt", an_invitation(deployment))

    def invitation(self) -> Path:
        """An invitation that agrees with the chain, and so is checked by every command that needs one."""
        path = self.folder / "invitation.txt"
        verifiers = records_of(nodes=())
        write_invitation(path, invitation_of(self.bank, "market", [self.rpc_url], verifiers))
        return path

    def order_seats(self, seats: int) -> None:
        """From here on the run is one with this many seats, of which its spec names three nodes."""
        self.order_file.write_text(ORDER.replace("nodes = 3", f"nodes = 3\nseats = {seats}"))
        self.spec = replace(self.spec, seats=seats)
        self.run_id = run_id_of(self.spec)
        self.write_run(self.spec)

    def write_run(self, spec: RunSpec) -> None:
        """The run file that every participant has, for this spec."""
        members = [
            signed for signed in records_of() if signed.record.member in (*spec.nodes, *spec.verifiers)
        ]
        write_run_file(self.folder / "run.assay", run_file_of(spec, members, an_account_key("buyer")))

    # ---- people

    def as_(self, name: str) -> Chain:
        return Chain(self.rpc_url, self.deployment, an_account_key(name))

    def config_of(self, name: str, **changes: str) -> Path:
        """The configuration file of a participant, with its keys beside it."""
        folder = self.folder / name
        if not (folder / "keys").exists():
            write_keys(folder / "keys", keys_of(name), PASSWORD, QUICK)
        keys = {
            "keys": "keys", "network": "../network.txt", "run": "../run.assay",
            "password_file": "../password", "rpc_url": self.rpc_url, **changes,
        }  # fmt: skip
        path = folder / "config.toml"
        path.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items()))
        return path

    # ---- time

    def rpc(self, method: str, *arguments: Any) -> Any:
        answer = self.bank._rpc.web3.provider.make_request(method, list(arguments))  # type: ignore[arg-type]
        assert "error" not in answer, answer
        return answer["result"]

    @contextmanager
    def unmined(self, name: str) -> Iterator[None]:
        """Meanwhile a transaction of this participant, from a process that has ended, waits to be mined."""
        self.rpc("evm_setAutomine", False)
        try:
            self.as_(name)._rpc.send("nothing", {"to": wallet(name), "value": 0}, wait=False)
            yield
        finally:
            self.rpc("anvil_mine", "0x1")
            self.rpc("evm_setAutomine", True)

    def advance(self, seconds: int) -> None:
        self.rpc("evm_increaseTime", seconds)
        self.rpc("anvil_mine", "0x4")  # so that the finalised block is not older than the jump

    # ---- the court

    def accuse(self, name: str, *, ppm: int, challenger: str = VERIFIERS[1]) -> bytes:
        """Opens a case against a node's stake; its id."""
        if self.bank.run(self.run_id) is None:
            self.open_run()
        ruling = SlashOrder(
            deployment_id=self.deployment.deployment_id,
            run_id=self.run_id,
            epoch=0,
            offender=wallet(name),
            role=OPERATOR,
            ppm=ppm,
            offence_id=offence_id(self.run_id, b"offence"),
            evidence_hash=bytes(32),
            challenger=wallet(challenger),
        )
        signed = self.deployment.digest(ruling)
        signatures = [sign_digest(signed, a_hot_key(v)) for v in VERIFIERS]
        self.bank.open_case(ruling, certificate(signed, signatures))
        return ruling.offence_id

    # ---- who leaves early

    def discharge_certificate(self, name: str) -> bytes:
        """All verifiers' signatures on the discharge of a node."""
        left = Discharge(
            deployment_id=self.deployment.deployment_id, run_id=self.run_id, account=wallet(name)
        )
        signed = self.deployment.digest(left)
        return certificate(signed, [sign_digest(signed, a_hot_key(v)) for v in VERIFIERS])

    # ---- a run that was trained

    @property
    def spec_hash(self) -> bytes:
        return digest(self.spec)

    def lock(self, name: str, amount: int | None = None) -> None:
        """A node's lot for the run, by default the order's."""
        found = load_order(self.order_file).lot_units if amount is None else amount
        chain = self.as_(name)
        lacking = found - chain.stake_of(chain.address, OPERATOR).free
        if lacking > 0:
            chain.stake(OPERATOR, lacking)
        chain.ensure_lot(OPERATOR, self.run_id, found, self.bank.timestamp() + 390 * 86_400)

    def open_run(self) -> None:
        order = load_order(self.order_file)
        self.as_("buyer").open_run(
            self.spec_hash,
            budget=order.budget_units(),
            epoch_cap=order.epoch_units_max(),
            epochs=self.spec.epochs,
            deadline=self.bank.timestamp() + 30 * 86_400,
            lot=order.lot_units,
        )

    @cached_property
    def links(self) -> list[CertifiedManifest]:
        """The finalised chain of the run: every node in every round, every audit passed."""
        signer = Signed(Domain(self.spec.deployment_id, self.run_id), self.deployment)
        begin = start(self.spec, self.run_id)
        return a_chain(begin, self.spec.ordered.last_round + 1, signer=signer)

    def fill_store(self, name: str, count: int | None = None) -> dict[int, Settlement]:
        """What a participant's process would have kept; the payout tables that follow."""
        (self.folder / name).mkdir(exist_ok=True)
        store = Store(self.folder / name / "store.db")
        for link in self.links[:count]:
            store.add_link(link)
        found = Follower(self.spec, self.run_id, store).settlements
        store.close()
        return found

    def ledger(self, tables: dict[int, Settlement]) -> Path:
        """A run's folder with nothing but books, as far as the chain is now, and spec: a run that goes on."""
        folder = self.folder / "run"
        folder.mkdir(exist_ok=True)
        books = BookStore(folder / "ledger.db", self.run_id, first_block=self.deployment.block)
        ledger_service = Bookkeeper(self.spec, self.run_id, books, StatusFile(folder / "status.jsonl"))
        ledger_service.book_rounds(self.links[ledger_service.next_round :], tables)
        ledger_service.book_blocks(Providers([self.rpc_url], self.deployment), tables)
        books.close()
        (folder / "spec.cbor").write_bytes(encode(self.spec))
        return folder

    def propose(self, tables: dict[int, Settlement], epoch: int) -> None:
        before = self.bank.epoch_state(self.run_id, epoch - 1).digest if epoch else bytes(32)
        result = epoch_result(self.spec, tables[epoch], STATE, types.Digest(before), 1)
        signed = self.deployment.digest(result)
        signatures = [sign_digest(signed, a_hot_key(name)) for name in VERIFIERS]
        self.bank.propose(result, certificate(signed, signatures))

    def settle(self, tables: dict[int, Settlement], epoch: int) -> None:
        self.propose(tables, epoch)
        self.advance(self.params.challenge_window_s)
        self.bank.finalize(self.run_id, epoch)
