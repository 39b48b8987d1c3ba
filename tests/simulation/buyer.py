"""Buyer: the process of whoever paid for a run, what it does by hand, and what it must have in the end.

The process is `observer.buyer.service.Buyer`; once it has ended, what it delivers is signed as the command
does. Of the data it has the manifest alone, so that no loss is measured; and no picture is drawn.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import trio

from assay.bundle.read import read
from assay.bundle.verify import verify
from assay.chain.commit_statement import evm_address
from assay.cli.orders import money as order_money
from assay.observer.buyer import parameters
from assay.observer.buyer import service as buyer_service
from assay.observer.buyer.service import Buyer
from assay.participant.config import Participant
from assay.participant.files.index import write_index
from assay.participant.files.run_file import RunFile, run_file_of
from assay.participant.keys import keyring
from assay.participant.wallet.account import Account
from assay.protocol.encoding.blob import blob_digest
from assay.protocol.encoding.codec import decode, digest
from assay.protocol.errors import AssayError
from assay.protocol.messages import CertifiedManifest
from assay.protocol.params import RunSpec
from assay.protocol.types import NO_DIGEST, PeerId
from assay.testing.members import RUN_ID
from assay.training.data.shards import MANIFEST
from tests.simulation.contracts import Contracts
from tests.simulation.promises import Promises

STATUS, DELIVERED, DATA, KEYS = "status.jsonl", "delivered", "data", "keys"


class BuyersProcess(Buyer):
    """`assay buyer run`."""

    def __init__(self, me: Participant) -> None:
        folder = me.config.folder
        super().__init__(me, folder / STATUS, folder / DELIVERED / "bundle")

    async def run(self) -> None:
        """Serve until what is delivered is signed."""
        await super().run()
        await trio.to_thread.run_sync(write_index, self.bundle.parent, self.me.keys.buyer_key)


def bring(data: Path, folder: Path) -> None:
    """Have a buyer's folder hold what it needs of the data."""
    (folder / DATA).mkdir(parents=True, exist_ok=True)
    shutil.copyfile(data / MANIFEST, folder / DATA / MANIFEST)


def cancel(me: Participant, contracts: Contracts) -> None:
    """`assay order cancel`.

    Raises:
        AssayError: not now.
    """
    run: RunFile = run_file_of(me.spec, (), me.keys.buyer_key)
    chain: Any = contracts.client("simulated", me.deployment, me.keys.signer)
    account = Account(config=me.config, keys=me.keys, run=run, deployment=me.deployment, chain=chain)
    with mock.patch.object(order_money, "account_of", return_value=account):
        list(order_money.cancel_steps(me.config.folder, is_dry=False))


@contextmanager
def buying() -> Iterator[None]:
    """While this lasts, a buyer's process is in no hurry to end, nor spends time on what nobody looks at."""
    with ExitStack() as stack:
        stack.enter_context(mock.patch("assay.bundle.write.picture", return_value=b""))
        stack.enter_context(mock.patch.object(keyring.release_key, "__defaults__", (keyring.QUICK,)))
        stack.enter_context(mock.patch.object(buyer_service, "PROOF_S_MAX", 1.0))
        stack.enter_context(mock.patch.object(buyer_service, "MEND_S", 20.0))
        stack.enter_context(mock.patch.object(parameters, "CHECKPOINT_ROUNDS", 1))
        yield


# ---- what it must have


def complaint(
    spec: RunSpec, contracts: Contracts, promises: Promises, folder: Path, liars: set[PeerId]
) -> str:
    """What is wrong with what a buyer has whose process has ended; empty if nothing is."""
    told = [json.loads(line) for line in (folder / STATUS).read_text().splitlines()]
    root = folder / DELIVERED
    return (
        _of_index(root)
        or _of_chain(root / "bundle", promises)
        or _of_payouts(root / "bundle", contracts)
        or _of_report(told, contracts, promises, evm_address(spec.buyer), liars)
        or _of_verification(root)
    )


def _of_index(root: Path) -> str:
    """What was signed is what is there."""
    signed = json.loads((root / "index.json").read_text())["files"]
    there = {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in root.rglob("*") if path.is_file() and path.name != "index.json"
    }  # fmt: skip
    wrong = sorted(name for name in signed.keys() | there.keys() if signed.get(name) != there.get(name))
    return f"the buyer signs other files than it delivers: {wrong}" if wrong else ""


def _of_chain(bundle: Path, promises: Promises) -> str:
    """The manifests are those that all have, and each blob that one names is there."""
    paths = sorted((bundle / "links").iterdir())
    named: dict[str, set[str]] = {"updates": set(), "aggregates": set()}
    for number, path in enumerate(paths):
        manifest = decode(CertifiedManifest, path.read_bytes()).manifest
        if path.name != f"{number:06d}.cbor" or digest(manifest) != digest(promises.chain[number].manifest):
            return f"the buyer delivers {path.name}, which is not the manifest of round {number}"
        named["updates"] |= {signed.commit.update.hex() for signed in manifest.commits}
        named["aggregates"] |= {manifest.aggregate.hex()} - {NO_DIGEST.hex()}
    if len(paths) < promises.trained or len(paths) > len(promises.chain):
        return f"the buyer delivers {len(paths)} manifests of {len(promises.chain)}"
    for kind, names in named.items():
        there = {path.stem: blob_digest(path.read_bytes()).hex() for path in (bundle / kind).iterdir()}
        if there != {name: name for name in names}:
            return f"the buyer delivers other {kind} than the manifests name"
    return ""


def _of_payouts(bundle: Path, contracts: Contracts) -> str:
    """The settlements are those on chain, with what each account was paid."""
    found = [json.loads(path.read_text()) for path in sorted((bundle / "settlements").iterdir())]
    if [one["epoch"] for one in found] != sorted(contracts.results):
        return f"the buyer delivers {len(found)} settlements of {len(contracts.results)}"
    for one in found:
        posted, rows = contracts.results[one["epoch"]], Counter[str]()
        for row in one["rows"]:
            rows[row["account"]] += row["amount"]
        if rows != contracts.received(one["epoch"]) or posted.digest.hex() not in one["digest"]:
            return f"the buyer delivers a settlement of epoch {one['epoch']} that is not on chain"
    return ""


def _of_report(
    told: list[Mapping[str, Any]], contracts: Contracts, promises: Promises, buyer: str, liars: set[PeerId]
) -> str:
    """Each fact is told once, and is right; what was not earned is the buyer's."""
    twice = [name for name, count in Counter(one["id"] for one in told if "id" in one).items() if count > 1]
    if twice:
        return f"the buyer's process tells twice of {twice}"
    by_kind = {one["kind"]: one for one in told}
    rounds = [one["round"] for one in told if one["kind"] == "round"]
    delivered = by_kind["bundle"]
    if sorted(rounds) != list(range(len(rounds))) or len(rounds) < promises.trained:
        return f"the buyer's process tells of rounds {rounds}, {promises.trained} were trained"
    if by_kind["round"]["state"] != delivered["state"]:
        return f"the buyer's process computes {by_kind['round']}, and delivers {delivered}"
    wrong = {one["who"] for one in by_kind["agreement"]["mismatches"]} - {liar.hex() for liar in liars}
    if wrong:
        return f"the buyer's process has other parameters than {sorted(wrong)}"
    money, shares = (
        by_kind["refunded"],
        sum(contracts.shares(case)["buyer_amount"] for case in contracts.paid_out),
    )
    if money["amount"] != contracts.returned or money["collected"] > contracts.collected[buyer]:
        return f"the buyer's process tells {money}, {contracts.returned} were returned"
    if contracts.collected[buyer] != shares:
        return f"the buyer has {contracts.collected[buyer]} of slashes, its share is {shares}"
    if contracts.results and by_kind["registered"]["record"] is None:
        return "the buyer's model is not on record"
    return ""


def _of_verification(root: Path) -> str:
    """Whoever is given it finds it right."""
    with (
        mock.patch("assay.bundle.read.run_id_of", return_value=RUN_ID),
        mock.patch("assay.bundle.read.check_spec"),  # a run of few rounds may have too many tasks
    ):
        try:
            verify(read(root))
        except AssayError as error:
            return f"what the buyer delivers does not verify: {error}"
    return ""
