"""A whole run as the keeper and the buyer live it: a real chain, real hosts, and deaths in between."""

from __future__ import annotations

import functools
import json
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import trio
from eth_abi.abi import encode as encode_abi
from eth_utils.crypto import keccak
from nacl.signing import SigningKey

from assay.chain.addresses import Deployment
from assay.chain.client import LOCALNET, Chain, EpochPhase, deploy
from assay.chain.commit_statement import evm_address
from assay.chain.deployment.anvil import Anvil
from assay.chain.events import ModelRegistered
from assay.chain.signing.unsigned import FileSigner
from assay.chain.state import CasePhase
from assay.chain.statements import (
    VERIFIER,
    Delegation,
    Rotation,
    SlashOrder,
    certificate,
    sign_digest,
    term_of,
)
from assay.devnet.machines import free_ports
from assay.ledger.settlement.results import epoch_result, model_record, result_digest
from assay.network.blob_store import DiskBlobs
from assay.network.host import Handler, PeerAddress, open_host
from assay.observer.buyer.service import Buyer
from assay.observer.ledger_service.service import LedgerService
from assay.observer.watchtower import watch
from assay.participant.config import Config, Participant
from assay.participant.keys.keyring import AccountElsewhere, Keys
from assay.participant.store import Store
from assay.participant.wallet import settler
from assay.protocol.encoding.blob import blob_digest
from assay.protocol.encoding.codec import decode, digest, encode
from assay.protocol.errors import NotYet
from assay.protocol.identity import Domain
from assay.protocol.messages import (
    CertifiedManifest,
    ManifestRange,
    ModelRequest,
    ModelSignature,
    ResultSignature,
    StepRequest,
)
from assay.protocol.offences import offence_id
from assay.protocol.params import RunSpec
from assay.protocol.run_state import RunState, next_chain, start
from assay.protocol.state_transition import advance
from assay.protocol.types import NO_ADDRESS, NO_DIGEST, Address, Digest, HotSignature, PeerId
from assay.testing.members import DEPLOYMENT_ID, a_digest, a_hot_key, a_peer_key, an_account_key, name_of
from assay.testing.messages import Signed
from assay.testing.signed import NODES, VERIFIERS, a_certified, a_manifest, a_member, a_spec
from assay.testing.specs import MANIFEST, a_data_folder
from assay.training.data.inventory import inventory
from tests.chain.smart_account import SmartAccount
from tests.network.memory_blobs import MemoryBlobs
from tests.observer.buyer.test_parameters import AGGREGATES, BLOBS, states
from tests.observer.ledger_service.test_bookkeeper import settlements_of

BUDGET = 10**9
UPDATES = {name: f"update of {name}".encode() for name in NODES}


@dataclass
class Run:
    """What everybody knows, and everything that verifiers hold."""

    rpc_url: str
    deployment: Deployment
    spec: RunSpec
    run_id: Digest
    links: list[CertifiedManifest]
    rich: bytes  # the key of an account that has coin and tokens


@pytest.fixture
def contracts_run(anvil_binary: Path, tmp_path: Path):
    """A run whose buyer is a contract: of its keys only the hot key is anywhere, and the spec names it."""
    with Anvil(binary=anvil_binary, state_dir=tmp_path / "chain", block_time_s=1) as anvil:
        yield a_run(anvil, is_contract=True)


@pytest.fixture
def run(anvil_binary: Path, tmp_path: Path):
    with Anvil(binary=anvil_binary, state_dir=tmp_path / "chain", block_time_s=1) as anvil:
        yield a_run(anvil)


def a_run(anvil: Anvil, *, is_contract: bool = False) -> Run:
    """Contracts, a funded run, and its complete chain of manifests."""
    members = [a_member(name) for name in VERIFIERS]
    seats = [evm_address(member.account) for member in members]
    deployment = deploy(anvil.rpc_url, anvil.keys[0], LOCALNET, DEPLOYMENT_ID, seats)
    buyer, ledger_service = a_member("buyer"), a_member("ledger_service")
    bank = Chain(anvil.rpc_url, deployment, anvil.keys[0])
    bank.fund_many([evm_address(buyer.account)], token_amount=BUDGET, amount_wei=10**18)
    bonds = 10 * LOCALNET.challenge_bond
    settlers = [evm_address(one.account) for one in (ledger_service, a_member("watchtower"))]
    bank.fund_many(settlers, token_amount=bonds, amount_wei=10**18)
    stake = LOCALNET.min_verifier_stake
    bank.fund_many([evm_address(m.account) for m in members], token_amount=stake, amount_wei=10**18)

    def take_seat(name: str) -> None:
        join(Chain(anvil.rpc_url, deployment, an_account_key(name)), name, stake)

    with ThreadPoolExecutor(len(VERIFIERS)) as pool:  # each waits for four blocks, of a second each
        list(pool.map(take_seat, VERIFIERS))
    money = replace(a_spec().money, treasury=Address(ledger_service.account))
    changes = {"state_every": 2, "buyer": Address(buyer.account), "money": money}
    payer = Chain(anvil.rpc_url, deployment, an_account_key("buyer"))
    terms = {"budget": BUDGET, "epoch_cap": BUDGET, "deadline": bank.timestamp() + 3_600}
    if is_contract:
        contract = SmartAccount(bank)
        bank.fund_many([contract.address], token_amount=BUDGET, amount_wei=0)
        bank.fund_many([evm_address(buyer.hot)], token_amount=0, amount_wei=10**18)
        changes |= {"buyer": Address(bytes.fromhex(contract.address[2:])), "buyer_key": buyer.hot}
        signer = FileSigner(account=contract.address, folder=anvil.state_dir / "to-sign")
        payer = Chain(anvil.rpc_url, deployment, signer)
    spec = a_spec(**changes)
    terms["epochs"] = spec.epochs
    for _ in ("approve", "open run") if is_contract else ():
        with pytest.raises(NotYet):
            payer.open_run(digest(spec), **terms)
        contract.make(signer.folder)
    run_id = Digest(payer.open_run(digest(spec), **terms))
    return Run(anvil.rpc_url, deployment, spec, run_id, a_story(start(spec, run_id)), anvil.keys[0])


def join(chain: Chain, name: str, stake: int, version: int = 1) -> None:
    """Stake, and leave for the hot key to sign, without which no run is opened."""
    chain.stake(VERIFIER, stake)
    chain.ensure_lot(VERIFIER, term_of(version), stake, chain.timestamp() + 86_400)
    consent = Delegation(
        deployment_id=chain.deployment.deployment_id,
        account=chain.address,
        hot_key=evm_address(a_member(name).hot),
        expiry=2**40,
    )
    signature = sign_digest(chain.deployment.digest(consent), a_hot_key(name))
    chain.delegate(consent.hot_key, consent.expiry, signature)


def a_story(run_state: RunState) -> list[CertifiedManifest]:
    """All links: each node commits to an update that exists, from the parameters that follow."""
    links: list[CertifiedManifest] = []
    signer = Signed(Domain(run_state.spec.deployment_id, run_state.run_id))
    while not run_state.is_complete:
        at = int(run_state.round)
        manifest = a_manifest(run_state, NODES if run_state.is_training else (), signer=signer)
        aggregate = blob_digest(AGGREGATES[at]) if manifest.commits else NO_DIGEST
        commits = tuple(
            replace(signed, commit=replace(signed.commit, state=state, update=blob_digest(update)))
            for signed in manifest.commits
            for state in [states()[at] if at % 2 == 0 else NO_DIGEST]
            for update in [UPDATES[name_of(signed.commit.node)]]
        )
        chain = next_chain(run_state.chain, tuple(signed.commit for signed in commits), aggregate)
        manifest = replace(manifest, commits=commits, aggregate=aggregate, chain=chain)
        parent = digest(links[-1].block) if links else NO_DIGEST
        links.append(a_certified(manifest, parent, signer=signer))
        run_state = advance(run_state, manifest)
    return links


def handlers_of(run: Run, name: str) -> dict[str, Handler]:
    """What a verifier answers once the run is over."""
    tables = settlements_of(run.links, a_history_of(run))

    async def answer_links(_peer: PeerId, body: bytes) -> bytes:
        return encode(ManifestRange(links=tuple(run.links[decode(StepRequest, body).number :])))

    async def sign_result(_peer: PeerId, body: bytes) -> bytes:
        previous = NO_DIGEST
        for epoch in range(decode(StepRequest, body).number + 1):
            model = states()[min((epoch + 1) * 3, 6)]
            result, before = epoch_result(run.spec, tables[epoch], model, previous, 1), previous
            previous = result_digest(run.deployment, result)
        return encode(
            ResultSignature(
                epoch=result.epoch,
                prev_result=before,
                root=Digest(result.root),
                table_hash=Digest(result.table_hash),
                model_hash=Digest(result.model_hash),
                total=result.total,
                signature=HotSignature(sign_digest(previous, a_hot_key(name))),
            )
        )

    async def sign_model(_peer: PeerId, body: bytes) -> bytes:
        previous = NO_DIGEST
        for epoch in range(run.spec.epochs):
            model = states()[min((epoch + 1) * 3, 6)]
            result = epoch_result(run.spec, tables[epoch], model, previous, 1)
            previous = result_digest(run.deployment, result)
        trained_on = inventory(run.spec.data, MANIFEST).sha256()
        record = model_record(
            run.spec, run.spec.ordered, result, previous, trained_on, decode(ModelRequest, body).parent
        )
        return encode(
            ModelSignature(
                model_hash=Digest(record.model_hash),
                data_inventory_hash=trained_on,
                config_hash=digest(run.spec),
                last_result=previous,
                signature=HotSignature(sign_digest(run.deployment.digest(record), a_hot_key(name))),
            )
        )

    return {"links": answer_links, "sign-result": sign_result, "sign-model": sign_model}


def a_history_of(run: Run) -> Any:
    return start(run.spec, run.run_id)


@asynccontextmanager
async def verifiers(run: Run) -> AsyncIterator[dict[PeerId, PeerAddress]]:
    """Four hosts that hold everything; the last one is never there."""
    blobs = MemoryBlobs()
    for body in [*BLOBS.values(), *UPDATES.values()]:
        blobs.put(body)
    async with AsyncExitStack() as stack:
        found = {}
        for name in VERIFIERS[:3]:
            host = await stack.enter_async_context(
                open_host(
                    seed=bytes(a_peer_key(name)),
                    listen_port=0,
                    network_id=run.run_id.hex()[:16],
                    is_member=lambda _peer: True,
                    handlers=handlers_of(run, name),
                    blobs=blobs,
                )
            )
            found[host.peer] = host.address
        yield found


def account_of(run: Run, name: str) -> bytes | AccountElsewhere:
    """The account's key; of a buyer that is a contract, only its address and a folder for its calls."""
    if name != "buyer" or run.spec.buyer_key == NO_ADDRESS:
        return an_account_key(name)
    return AccountElsewhere(url="file:/nowhere", account=evm_address(run.spec.buyer))


def a_participant(run: Run, name: str, folder: Path, addresses: dict[PeerId, PeerAddress]) -> Participant:
    folder.mkdir(exist_ok=True)
    nowhere = folder / "unused"
    return Participant(
        config=Config(
            keys=folder / "keys",
            password="",
            network=nowhere,
            run=nowhere,
            records=nowhere,
            folder=folder,
            port=0,
            rpc_url=run.rpc_url,
            data=a_data_folder(folder / "data"),
        ),
        keys=Keys(
            peer=SigningKey(name.encode().ljust(32)), account=account_of(run, name), hot=a_hot_key(name)
        ),
        spec=run.spec,
        run_id=run.run_id,
        deployment=run.deployment,
        addresses=addresses,
        store=Store(folder / "store.db"),
        blobs=DiskBlobs(folder / "blobs", bytes_max=1 << 30),
    )


def reports(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "status.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_keeper_and_buyer_finish_a_run_to_the_unit_although_they_die_again_and_again(
    contracts_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run = contracts_run
    monkeypatch.setattr(settler, "CLAIM_FOR_OTHERS_S", 3.0)
    books, goods = tmp_path / "ledger_service", tmp_path / "buyer"

    async def keep(addresses: dict[PeerId, PeerAddress]) -> None:
        await LedgerService(
            a_participant(run, "ledger_service", books, addresses), books / "status.jsonl"
        ).run()

    async def buy(addresses: dict[PeerId, PeerAddress]) -> None:
        me = a_participant(run, "buyer", goods, addresses)
        await Buyer(me, goods / "status.jsonl", tmp_path / "bundle").run()

    async def live(part: Any) -> None:
        for seconds in (2, 3, 5):
            with trio.move_on_after(seconds):
                await part()
        await part()

    async def everybody() -> None:
        async with verifiers(run) as addresses:
            with trio.fail_after(240):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(live, functools.partial(keep, addresses))
                    nursery.start_soon(live, functools.partial(buy, addresses))

    trio.run(everybody)

    kept = reports(books)
    settled = [line for line in kept if line["kind"] == "settled"]
    assert len(settled) == 1
    told = settled[0]["money"]
    assert (settled[0]["trial_balance"], settled[0]["differences"]) == (0, [])
    assert told["funded"] == BUDGET
    assert told["funded"] == told["paid_operators"] + told["paid_verifiers"] + told["fees"] + told["refunded"]
    assert told["paid_operators"] > told["fees"] > 0
    rounds = [line["round"] for line in kept if line["kind"] == "round"]
    assert rounds == list(range(run.spec.ordered.last_round + 1))
    phases = [(line["epoch"], line["phase"]) for line in kept if line["kind"] == "epoch"]
    assert sorted(phases) == [(0, "final"), (0, "proposed"), (1, "final"), (1, "proposed")]

    bought = reports(goods)
    (agreement,) = [line for line in bought if line["kind"] == "agreement"]
    assert (agreement["ok"], agreement["rounds"], agreement["mismatches"]) == (True, 3, [])
    assert bought[-1]["kind"] == "bundle"
    assert bought[-1]["state"] == states()[-1].hex()
    assert [one["kind"] for one in bought if "refund" in one["kind"]] == ["refund-due", "refunded"]
    assert [one["amount"] for one in bought if one["kind"] == "refunded"] == [told["refunded"]]
    certificates = [
        json.loads(path.read_text())["certificate"]
        for path in sorted((tmp_path / "bundle" / "settlements").iterdir())
    ]
    assert [len(bytes.fromhex(one)) for one in certificates] == [3 * 65] * 2
    record = json.loads((tmp_path / "bundle" / "registry" / "record.json").read_text())
    chain = Chain(run.rpc_url, run.deployment, an_account_key("buyer"))
    assert chain.model_of(bytes.fromhex(record["record_id"])) == states()[6]
    on_record = [one for one in chain.events(0) if isinstance(one, ModelRegistered)]
    assert [one.record_id.hex() for one in on_record] == [record["record_id"]]
    assert on_record[0].data_inventory_hash.hex() == record["data_inventory_hash"]


@pytest.mark.slow
def test_a_watchtower_alone_settles_and_ends_a_run_that_has_no_ledger_service(run: Run, tmp_path: Path):
    """It holds no books and no parameters; the model's digest is what a quorum of verifiers signs."""
    account = evm_address(a_member("watchtower").account)
    chain = Chain(run.rpc_url, run.deployment, an_account_key("buyer"))

    def is_over() -> bool:
        now = chain.run(run.run_id)
        return now is not None and now.free == 0 and not now.holds and not chain.bonds_owed(account)

    async def everybody() -> None:
        async with verifiers(run) as addresses:
            me = a_participant(run, "watchtower", tmp_path / "watchtower", addresses)
            with trio.fail_after(120):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(watch, me, 1.0)
                    while not await trio.to_thread.run_sync(is_over):
                        await trio.sleep(1)
                    nursery.cancel_scope.cancel()

    trio.run(everybody)

    phases = [chain.epoch_state(run.run_id, epoch).phase for epoch in range(run.spec.epochs)]
    assert phases == [EpochPhase.FINAL] * run.spec.epochs
    assert chain.token_balance(account) == 10 * LOCALNET.challenge_bond  # every bond came back


@pytest.mark.slow
def test_what_the_last_verifiers_make_up_is_vetoed_by_the_present_ones_who_watch_their_run(
    run: Run, tmp_path: Path
):
    """A bought quorum that has handed over invents two votes of the one of its set that is not bought."""
    present, accused = ("walt", "wanda"), evm_address(a_member(VERIFIERS[3]).account)
    chain = Chain(run.rpc_url, run.deployment, an_account_key("buyer"))
    hand_over(run, present)
    invented = SlashOrder(
        deployment_id=run.spec.deployment_id,
        run_id=run.run_id,
        epoch=0,
        offender=accused,
        role=VERIFIER,
        ppm=LOCALNET.case_ppm_max,
        offence_id=offence_id(run.run_id, b"two votes that nobody cast"),
        evidence_hash=a_digest("nothing"),
        challenger=evm_address(a_member("watchtower").account),
    )
    liar = Chain(run.rpc_url, run.deployment, an_account_key("watchtower"))
    liar.open_case(invented, signed_by(run, VERIFIERS[:3], invented))

    async def everybody() -> None:
        async with verifiers(run) as addresses:
            ports = dict(zip(present, free_ports(len(present)), strict=True))
            for name, port in ports.items():
                at = PeerId(bytes(SigningKey(name.encode().ljust(32)).verify_key))
                addresses[at] = PeerAddress(peer=at, host="127.0.0.1", port=port)
            with trio.fail_after(60):
                async with trio.open_nursery() as nursery:
                    for name, port in ports.items():
                        me = a_participant(run, name, tmp_path / name, addresses)
                        config = replace(me.config, port=port)
                        towers = tuple(peer for peer in addresses if peer not in run.spec.seat_peers)
                        nursery.start_soon(watch, replace(me, config=config, watchtowers=towers), 1.0)
                    while chain.case(invented.offence_id).phase is not CasePhase.VETOED:
                        await trio.sleep(0.5)
                    nursery.cancel_scope.cancel()

    trio.run(everybody)

    assert chain.stake_of(accused, VERIFIER).active == LOCALNET.min_verifier_stake


def hand_over(run: Run, names: tuple[str, ...]) -> None:
    """To a verifier set of others, by a quorum of the present one."""
    bank = Chain(run.rpc_url, run.deployment, an_account_key("buyer"))
    members = sorted((evm_address(a_member(name).account) for name in names), key=lambda one: int(one, 16))
    richer = Chain(run.rpc_url, run.deployment, run.rich)
    richer.fund_many(members, token_amount=2 * LOCALNET.min_verifier_stake, amount_wei=10**18)
    for name in names:
        own = Chain(run.rpc_url, run.deployment, an_account_key(name))
        join(own, name, LOCALNET.min_verifier_stake, version=2)
    handed = Rotation(
        deployment_id=run.spec.deployment_id,
        from_version=1,
        set_hash=keccak(encode_abi(["address[]"], [members])),
        from_epoch=0,
    )
    bank.rotate_verifiers(members, 0, signed_by(run, VERIFIERS[:3], handed))


def signed_by(run: Run, names: Sequence[str], statement: Rotation | SlashOrder) -> bytes:
    """A certificate of these verifiers over whatever they like."""
    message = run.deployment.digest(statement)
    return certificate(message, [sign_digest(message, a_hot_key(name)) for name in names])
