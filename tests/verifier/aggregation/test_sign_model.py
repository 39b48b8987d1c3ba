"""A verifier signs the record of a model only as its own chain, manifest and parameters have it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import trio

from assay.chain.commit_statement import evm_address
from assay.chain.statements import recover
from assay.ledger.settlement.results import epoch_result, model_record, result_digest
from assay.participant.config import Participant
from assay.participant.follower import Follower
from assay.participant.keys.keyring import Keys
from assay.participant.store import Store
from assay.protocol.encoding.codec import decode, digest, encode
from assay.protocol.errors import ConfigError, Unavailable
from assay.protocol.messages import ModelRequest, ModelSignature
from assay.protocol.types import NO_DIGEST, Digest
from assay.testing.members import RUN_ID, a_deployment, a_digest, a_hot_key, a_peer_key, peer
from assay.testing.signed import VERIFIERS, a_chain, a_history, a_member, a_spec
from assay.testing.specs import MANIFEST, a_data_folder
from assay.training.data.inventory import inventory
from assay.training.data.shards import write_tokens
from assay.verifier.service import chain_duties as chain_duties
from assay.verifier.service.chain_duties import ChainDuties
from tests.network.memory_blobs import MemoryBlobs

ME = VERIFIERS[0]


class Place:
    """What of a configuration is asked for."""

    def __init__(self, data):
        self.data = data


class PublicState:
    """In place of a pace: the parameters of every round, by name."""

    async def reach(self, round_id):
        return a_digest(f"parameters of {round_id}")


def a_verifier(tmp_path, spec, data):
    return Participant(
        config=Place(data), keys=Keys(peer=a_peer_key(ME), account=a_hot_key("account"), hot=a_hot_key(ME)),
        spec=spec, run_id=RUN_ID, deployment=a_deployment(), addresses={},
        store=Store(tmp_path / "store.db"), blobs=MemoryBlobs(),
    )  # type: ignore[arg-type]  # fmt: skip


def ask(me, rounds, parent=NO_DIGEST):
    """The answer of duties that do not run."""
    follower = Follower(me.spec, RUN_ID, me.store)
    for link in a_chain(a_history(model=me.spec.model), rounds):
        assert follower.take(link)

    async def main():
        duties = ChainDuties(me, follower, PublicState())
        duties._set_version = 1  # else it is read from the chain
        handler = duties.handlers["sign-model"]
        return await handler(peer("vera"), encode(ModelRequest(parent=parent)))

    return follower, decode(ModelSignature, trio.run(main))


def test_the_record_names_the_last_result_the_inventory_and_the_spec(tmp_path):
    me = a_verifier(tmp_path, a_spec(), a_data_folder(tmp_path / "data"))

    follower, answer = ask(me, me.spec.ordered.last_round + 1)

    previous, result = NO_DIGEST, None
    for epoch in range(me.spec.epochs):
        model = a_digest(f"parameters of {me.spec.ordered.epoch_end(epoch)}")
        result = epoch_result(me.spec, follower.settlements[epoch], model, previous, 1)
        previous = result_digest(me.deployment, result)
    trained_on = inventory(me.spec.data, MANIFEST).sha256()
    record = model_record(me.spec, me.spec.ordered, result, previous, trained_on, NO_DIGEST)
    assert (answer.model_hash, answer.config_hash) == (model, digest(me.spec))
    assert (answer.last_result, answer.data_inventory_hash) == (previous, trained_on)
    assert recover(me.deployment.digest(record), answer.signature) == evm_address(a_member(ME).hot)


def test_nothing_is_signed_before_the_last_epoch_is_ripe(tmp_path):
    me = a_verifier(tmp_path, a_spec(), a_data_folder(tmp_path / "data"))

    with pytest.raises(Unavailable, match="epoch 1 is not ripe"):
        ask(me, me.spec.ordered.settled_at(1))


def test_nothing_is_signed_about_other_data_than_the_runs(tmp_path):
    write_tokens(tmp_path / "data", [np.zeros(40_000, np.uint8)])
    me = a_verifier(tmp_path, a_spec(), tmp_path / "data")

    with pytest.raises(ConfigError, match="the run spec has"):
        ask(me, me.spec.ordered.last_round + 1)


@pytest.mark.parametrize(
    ("base", "on_chain", "is_signed"),
    [
        ("the base", "the base", True),
        ("the base", "another", False),
        ("the base", None, False),
        (None, "the base", False),
        (None, None, False),
    ],
)
def test_a_parent_is_a_record_of_the_model_that_the_run_started_from(
    tmp_path, monkeypatch, base, on_chain, is_signed
):
    class OnChain:
        def model_of(self, record_id):
            assert record_id == a_digest("parent")
            return None if on_chain is None else a_digest(on_chain)

    monkeypatch.setattr(chain_duties, "open_chain", lambda _me: OnChain())
    spec = a_spec()
    spec = replace(spec, model=replace(spec.model, base=NO_DIGEST if base is None else a_digest(base)))
    me = a_verifier(tmp_path, spec, a_data_folder(tmp_path / "data"))

    if is_signed:
        _, answer = ask(me, spec.ordered.last_round + 1, Digest(a_digest("parent")))
        assert answer.config_hash == digest(spec)
    else:
        with pytest.raises(Unavailable, match="not of the model that this run started from"):
            ask(me, spec.ordered.last_round + 1, Digest(a_digest("parent")))
