"""Place: a run has exactly the members and the terms of its order."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from assay.chain.commit_statement import evm_address
from assay.chain.state import HotKey
from assay.chain.statements import OPERATOR, VERIFIER, address_of
from assay.orders.load import load_order
from assay.orders.place import check_members, new_run
from assay.orders.spec import data_spec
from assay.participant.files.record import Role
from assay.participant.files.run_file import check_run_file
from assay.protocol.errors import ConfigError
from assay.protocol.types import NO_ADDRESS, NO_DIGEST
from assay.testing.members import an_account_key, peer
from assay.training.data.shards import write_tokens
from tests.a_network import NOW, a_record
from tests.orders.test_quote import SMALL, TEXT

NODES, VERIFIERS = ("ann", "ben", "cleo"), ("vera", "vito", "vlad", "viktor")
RECORDS = [
    *(a_record(name) for name in NODES),
    *(a_record(name, Role.VERIFIER) for name in VERIFIERS),
    a_record("leo", Role.LEDGER),
    a_record("bea", Role.BUYER),
    a_record("walt", Role.WATCHTOWER),
]


def made(records=RECORDS, overrides=None, **changes):
    order = load_order(None, {**SMALL, "run.rounds": 40, **(overrides or {})})
    parts = {
        "deployment_id": NO_DIGEST, "data": data_spec(order, write_tokens(None, [TEXT])), "base": NO_DIGEST,
        "buyer_key": an_account_key("bea"), "now_s": NOW,
    }  # fmt: skip
    return new_run(order, records, **{**parts, **changes})


def test_a_run_has_the_members_of_the_records_and_pays_the_ledger_service_and_the_buyer():
    found = made()
    spec = found.spec

    assert {member.peer for member in spec.nodes} == {*map(peer, NODES)}
    assert {member.peer for member in spec.verifiers} == {*map(peer, VERIFIERS)}
    assert bytes(spec.money.treasury) == RECORDS[7].record.account
    assert bytes(spec.buyer) == RECORDS[8].record.account
    assert len(found.content.records) == len(RECORDS)  # the watchtower's too
    assert (spec.audit.known_answer_count, spec.start_by_s) == (0, 0)


def test_a_key_that_is_not_the_accounts_own_is_named_by_the_spec_and_signs():
    other = an_account_key("the key of a contract")
    found = made(buyer_key=other)

    check_run_file(found, NOW)
    assert evm_address(found.spec.signer) == address_of(other) and found.spec.buyer == made().spec.buyer
    assert made().spec.signer == made().spec.buyer and made().spec.buyer_key == NO_ADDRESS


def test_the_last_verifiers_by_the_order_of_their_records_are_the_reserves():
    more = [a_record(name, Role.VERIFIER) for name in ("rosa", "ruth")]

    spec = made([*RECORDS[:7], *more, *RECORDS[7:]], {"run.reserves": 2}).spec

    assert {member.peer for member in spec.verifiers} == {*map(peer, VERIFIERS)}
    assert spec.reserve_peers == tuple(sorted(map(peer, ("rosa", "ruth"))))
    check_run_file(made([*RECORDS[:7], *more, *RECORDS[7:]], {"run.reserves": 2}), NOW)


@pytest.mark.parametrize(
    ("records", "words"),
    [
        (RECORDS[1:], "2 nodes, the order has 3"),
        ([*RECORDS, a_record("dora")], "4 nodes, the order has 3"),
        ([*RECORDS[:3], *RECORDS[4:]], "3 verifiers, the order has 4"),
        ([*RECORDS[:7], *RECORDS[8:]], "0 ledger services, the order has 1"),
        ([*RECORDS, a_record("lea", Role.LEDGER)], "2 ledger services, the order has 1"),
        ([*RECORDS[:8], *RECORDS[9:]], "0 buyers, the order has 1"),
        ([*RECORDS, a_record("bob", Role.BUYER)], "2 buyers, the order has 1"),
    ],
)
def test_records_of_fewer_or_more_than_the_order_has_are_refused(records, words):
    with pytest.raises(ConfigError, match=words):
        made(records)


def test_a_run_orders_as_many_known_answer_tasks_of_each_node_as_its_order():
    assert made(overrides={"verify.known_answers": 2}).spec.audit.known_answer_count == 2


def test_a_run_that_waits_for_nodes_says_until_when():
    waits = {"run.nodes": 0, "run.least_nodes": 3, "run.start_within_s": 600, "comm.f": 0}

    assert made(RECORDS[3:], waits).spec.start_by_s == NOW + 600


@dataclass
class AChain:
    """Stakes and hot keys of a run's members, each exactly enough."""

    until: int
    poor: str = ""
    banned: str = ""
    undelegated: bytes = b""
    roles: dict[str, int] = field(default_factory=dict)

    def stake_of(self, account, role):
        self.roles[account] = role
        return SimpleNamespace(active=499 if account == self.poor else 500, minimum=500)

    def is_banned(self, account):
        return account == self.banned

    def hot_key(self, hot):
        return None if hot == self.undelegated else HotKey(account=ACCOUNTS[hot], expiry=self.until + 1)


SPEC = made().spec
ACCOUNTS = {evm_address(one.hot): evm_address(one.account) for one in (*SPEC.nodes, *SPEC.verifiers)}


def test_members_with_stake_and_a_hot_key_until_then_are_held_to_their_work():
    chain = AChain(until=NOW)

    check_members(chain, SPEC, NOW)

    roles = dict.fromkeys((evm_address(one.account) for one in SPEC.nodes), OPERATOR)
    assert chain.roles == roles | {evm_address(one.account): VERIFIER for one in SPEC.verifiers}


def test_each_member_that_cannot_be_held_is_named_with_the_reason():
    first, second, third = SPEC.nodes
    chain = AChain(
        until=NOW,
        poor=evm_address(first.account),
        banned=evm_address(second.account),
        undelegated=evm_address(third.hot),
    )
    with pytest.raises(ConfigError) as refused:
        check_members(chain, SPEC, NOW)

    lines = str(refused.value).splitlines()
    assert [line.split(": ", 1)[1] for line in lines] == [
        "its stake is 0.000499 aUSD, at least 0.000500 expected",
        "its account is banned for ever",
        "its hot key is not delegated",
    ]
    with pytest.raises(ConfigError, match="delegation ends"):
        check_members(AChain(until=NOW), SPEC, NOW + 1)
