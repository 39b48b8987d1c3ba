"""Strangers find runs and each other on chain: what is announced is listed, what is not true is not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from assay.chain.client import UNIT
from assay.chain.events import LotLocked
from assay.chain.reader import ChainReader
from assay.chain.statements import OPERATOR
from assay.cli.network.directory import listed_lines
from assay.participant.directory.listing import ListedRun, ListedRuns, RunPhase
from assay.participant.files.record import OWN_RECORD, Role, write_record
from assay.participant.files.run_file import read_run_file, write_run_file
from assay.protocol.encoding.codec import encode
from assay.testing.signed import NODES, VERIFIERS
from tests.a_network import NOW, a_record
from tests.cli.market import PASSWORD, Market, wallet
from tests.conftest import Assay

pytestmark = pytest.mark.slow
SEATS = 5
NEWCOMER = "stranger"


@pytest.fixture
def placed(assay: Assay, market: Market) -> Market:
    """A run with two free seats, opened and announced."""
    market.order_seats(SEATS)
    market.join_nodes()
    for name in NODES:
        market.lock(name)
    code, out, err = assay("order", "place", market.config_of("buyer"), market.order_file)
    assert (code, "run file in the directory: block" in out) == (0, True), err
    return market


def listed(assay: Assay, market: Market, *options: str) -> dict:
    code, out, err = assay("run", "list", market.invitation(), *options, "--json")
    assert code == 0, err
    return json.loads(out)


def own_record(market: Market, name: str, **changes) -> Path:
    """The configuration of somebody with a record of their own."""
    file = market.config_of(name, network="../invitation.txt")
    role = Role.VERIFIER if name in VERIFIERS else Role.NODE
    write_record(file.parent / "keys" / OWN_RECORD, a_record(name, role, **changes))
    return file


def test_placing_again_announces_nothing_new(assay: Assay, placed: Market):
    before = placed.bank.block_number()
    code, out, _ = assay("order", "place", placed.config_of("buyer"), placed.order_file)

    assert code == 0 and "already open" in out and "already done; nothing was sent" in out
    assert placed.bank.block_number() == before


def test_a_run_that_was_opened_and_not_announced_is_announced_by_placing_again(assay: Assay, market: Market):
    market.join_nodes()
    for name in NODES:
        market.lock(name)
    market.open_run()
    assert listed(assay, market)["runs"] == []
    would = assay("order", "place", market.config_of("buyer"), market.order_file, "--dry-run").out
    assert "announceRun" in would and market.bank.announced_run(market.run_id) is None

    assert assay("order", "place", market.config_of("buyer"), market.order_file)[0] == 0

    assert [one["run_id"] for one in listed(assay, market)["runs"]] == [market.run_id.hex()]


def test_a_run_is_listed_with_its_terms_and_its_seats(assay: Assay, placed: Market):
    (found,) = listed(assay, placed, "--open")["runs"]
    run = placed.bank.run(placed.run_id)

    assert run is not None
    expected = {
        "name": "market", "state": "open", "rounds": 6, "seats": SEATS, "seats_taken": 3, "lot": run.lot,
        "least_nodes": 3, "start_by_s": 0,
    }  # fmt: skip
    assert {name: found[name] for name in expected} == expected
    assert (found["budget"], found["free"], found["deadline"]) == (run.budget, run.free, run.deadline)
    assert found["price_per_mtoken"] == placed.spec.money.price_per_mtoken
    words = assay("run", "list", placed.invitation()).out
    assert f"3 of {SEATS} taken" in words and "1 listed of 1 announced" in words


def test_seats_are_taken_by_whole_lots_and_full_or_cancelled_runs_are_not_open(assay: Assay, placed: Market):
    def lock(name: str, amount: int) -> None:
        chain = placed.as_(name)
        chain.stake(OPERATOR, lot)
        chain.ensure_lot(OPERATOR, placed.run_id, amount, placed.bank.timestamp() + 60 * 86_400)

    lot = placed.bank.run(placed.run_id).lot  # type: ignore[union-attr]
    lock(NEWCOMER, lot - 1)
    assert listed(assay, placed, "--open")["runs"][0]["seats_taken"] == 3
    lock(NEWCOMER, lot)
    assert listed(assay, placed, "--open")["runs"][0]["seats_taken"] == 4
    lock("buyer", lot)
    assert listed(assay, placed, "--open")["runs"] == []
    (full,) = listed(assay, placed)["runs"]
    assert (full["seats_taken"], full["state"]) == (SEATS, "open")
    placed.bank.discharge(wallet(NEWCOMER), placed.run_id, placed.discharge_certificate(NEWCOMER))
    assert listed(assay, placed, "--open")["runs"][0]["seats_taken"] == SEATS - 1

    assay("order", "cancel", placed.config_of("buyer"))
    assert listed(assay, placed)["runs"][0]["state"] == "closing"
    placed.advance(placed.params.close_delay_s)
    assert listed(assay, placed)["runs"][0]["state"] == "closed"


def test_lots_of_other_runs_and_roles_that_an_endpoint_makes_up_take_no_seat(
    assay: Assay, placed: Market, monkeypatch: pytest.MonkeyPatch
):
    made_up = LotLocked(
        block_number=1, block_hash=b"", block_time=1, tx_hash=b"", log_index=0,
        account=wallet(NEWCOMER), role=OPERATOR, commitment=b"\7" * 32, amount=1, until=1,
    )  # fmt: skip
    lots = [made_up, replace(made_up, commitment=placed.run_id)]
    monkeypatch.setattr(ChainReader, "lots_locked", lambda *_: lots)

    assert listed(assay, placed)["runs"][0]["seats_taken"] == 3


def test_a_run_that_waits_for_nodes_says_how_many_and_until_when():
    listed = ListedRun(
        run_id=bytes(32), name="later", state=RunPhase.OPEN, model="gpt 1 x 64, context 32", rounds=6,
        price_per_mtoken=1, accept_ppm=250_000, seats=5, seats_taken=0, least_nodes=4, start_by_s=1_000_060,
        lot=1, budget=1, free=1, deadline=2_000_000, closes_at=2_000_000, buyer=wallet("buyer"),
        data=bytes(32),
    )  # fmt: skip

    def said(one: ListedRun) -> str:
        return "\n".join(listed_lines(ListedRuns(announced=1, unreadable=0, as_of=1_000_000, runs=(one,))))

    assert "starts    with 4 nodes by 1970-01-12 13:47:40 UTC (in 1 min), or never" in said(listed)
    assert "price     0.000001 aUSD per 10^6 tokens; 25 % less in epochs whose milestone" in said(listed)
    assert "milestone" not in said(replace(listed, accept_ppm=0))
    assert "starts" not in said(replace(listed, start_by_s=0))


def test_one_run_is_shown_with_its_members(assay: Assay, placed: Market):
    code, out, err = assay("run", "show", placed.invitation(), placed.run_id.hex(), "--json")
    found = json.loads(out)

    assert code == 0, err
    assert found["run"]["run_id"] == placed.run_id.hex()
    assert {one["account"] for one in found["members"]} == {wallet(name) for name in (*NODES, *VERIFIERS)}
    assert "seats" in assay("run", "show", placed.invitation(), placed.run_id.hex()).out
    for other, words in (("ab" * 32, "not open on this network"), ("ab", "expected its id")):
        code, _, err = assay("run", "show", placed.invitation(), other)
        assert code == 2 and words in err


def test_a_run_file_that_does_not_verify_is_not_listed(assay: Assay, placed: Market):
    body = encode(read_run_file(placed.folder / "run.assay", NOW))
    for lie in (body[:-1], body[:-1] + bytes([body[-1] ^ 1]), b"\x1b[2J"):
        placed.as_("buyer").announce_run(placed.run_id, lie)
        found = listed(assay, placed)
        assert (found["runs"], found["announced"], found["unreadable"]) == ([], 1, 1)
    code, _, err = assay("run", "show", placed.invitation(), placed.run_id.hex())
    assert code == 2 and "in the directory" in err


def test_a_stranger_takes_part_with_an_invitation_and_a_runs_id(assay: Assay, placed: Market, tmp_path: Path):
    placed.invitation()
    file = own_record(placed, NEWCOMER)
    (tmp_path / "a password").write_text(PASSWORD)
    (tmp_path / "a password").chmod(0o600)
    keys = ("--keys", file.parent / "keys", "--password-file", tmp_path / "a password")
    out = tmp_path / "new"
    code, _, err = assay("join", placed.invitation(), *keys, "--out", out, "--run", "run.assay")
    assert code == 2 and "expected a run's id" in err

    code, said, err = assay("join", placed.invitation(), *keys, "--out", out, "--run", placed.run_id.hex())

    assert code == 0, err
    assert "good     run        market" in said and "run.assay" not in said
    saved = out / f"{placed.run_id.hex()}.assay"
    assert read_run_file(saved, NOW) == read_run_file(placed.folder / "run.assay", NOW)
    code, _, err = assay("stake", "add", out / "config.toml", "--to", "1000")
    assert code == 0, err
    code, _, err = assay("stake", "lock", out / "config.toml", placed.bank.run(placed.run_id).lot // UNIT)  # type: ignore[union-attr]
    assert code == 0, err
    assert listed(assay, placed)["runs"][0]["seats_taken"] == 4

    saved.write_text("assay-run-1.")  # a file that is there is not fetched again
    assert assay("stake", "show", out / "config.toml").status == 2
    other = read_run_file(placed.folder / "run.assay", NOW)
    placed.order_seats(SEATS + 1)
    write_run_file(saved, read_run_file(placed.folder / "run.assay", NOW))
    assert other.run_id != placed.run_id
    assert "remove it" in assay("stake", "show", out / "config.toml").err


def test_a_run_that_nobody_announced_is_not_found_by_its_id(assay: Assay, market: Market):
    file = market.config_of(NODES[0], run="cd" * 32)

    code, _, err = assay("stake", "show", file)

    assert code == 2 and "its buyer announced no run file" in err
    assert not list(file.parent.glob("*.assay"))


def test_a_record_is_announced_once_and_anew_after_a_move(assay: Assay, market: Market):
    market.invitation()  # which doctor compares with the chain
    file = own_record(market, NODES[0])
    assert "announceRecord" in assay("network", "announce", file, "--dry-run").out
    assert market.bank.record_blocks([(wallet(NODES[0]), a_record(NODES[0]).record.peer)]) == [0]

    assert "announced" in assay("network", "announce", file).out
    assert "nothing was sent" in assay("network", "announce", file).out
    own_record(market, NODES[0], host="node.example.org", now_s=NOW + 1)
    said = assay("doctor", file).out
    assert "MISSING  directory  it has an older record" in said
    assert "announced" in assay("network", "announce", file).out
    assert "good     directory" in assay("doctor", file).out

    write_record(file.parent / "keys" / OWN_RECORD, a_record(NODES[1]))
    code, _, err = assay("network", "announce", file)
    assert code == 2 and "the record is of account" in err


def test_verifiers_and_operators_are_listed_and_whoever_has_no_stake_is_not(assay: Assay, market: Market):
    market.join_nodes()
    market.invitation()
    for name in (VERIFIERS[0], NODES[0], NEWCOMER):
        assert assay("network", "announce", own_record(market, name)).status == 0
    market.as_(NODES[1]).announce_record(a_record(NODES[0]).record.peer, encode(a_record(NODES[0])))

    code, out, err = assay("network", "list", market.invitation(), "--json")
    assert code == 0, err
    found = {one["account"]: one for one in json.loads(out)["stakers"]}

    assert set(found) == {wallet(name) for name in (*VERIFIERS, NODES[0], NODES[1])}
    node, verifier = found[wallet(NODES[0])], found[wallet(VERIFIERS[0])]
    assert node["place"]["peer"] == a_record(NODES[0]).record.peer.hex()
    assert (node["operator_stake"], node["verifier_stake"], node["is_seated"]) == (100 * UNIT, 0, False)
    assert verifier["is_seated"] and verifier["delegated_until"] == 2**40
    assert verifier["place"]["role"] == "verifier"
    assert found[wallet(VERIFIERS[1])]["place"] is None
    assert found[wallet(NODES[1])]["place"] is None  # it announced another's record
    assert "in the verifier set" in assay("network", "list", market.invitation()).out
