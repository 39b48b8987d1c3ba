"""An operator's process on a chain, with programs in place of its nodes: it takes, leaves, and goes on."""

from __future__ import annotations

import json
import socket
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from assay.chain.client import UNIT, Chain
from assay.chain.commit_statement import evm_address
from assay.chain.events import RecordAnnounced
from assay.chain.reader import ChainReader
from assay.chain.statements import OPERATOR
from assay.cli.operator import fleet_config
from assay.fleet import service as tested
from assay.fleet.config import STATE, FleetConfig, read_state
from assay.fleet.plan import Stage
from assay.fleet.service import Fleet
from assay.node.seat import LEAVE
from assay.participant.checks import check_participant
from assay.participant.files.record import OWN_RECORD, Role, write_record
from assay.participant.health import checks_of
from assay.participant.keys.keyring import QUICK
from assay.participant.market.offer import OFFER_SLOT
from assay.participant.market.standing import read_standing
from assay.participant.wallet.delegation import DAY_S, delegate
from assay.protocol.encoding.codec import decode
from assay.protocol.errors import ConfigError, Unavailable
from assay.protocol.market import SignedSeatOffer
from tests.a_network import a_record, keys_of
from tests.cli.market import Market, wallet
from tests.cli.test_operator_market import OURS, SEATS, placed  # noqa: F401 - a fixture

pytestmark = pytest.mark.slow
assert SEATS
NODE = """
echo '{"event": "seat taken"}' >&2
until [ -e "$folder/leave" ]; do sleep 0.05; done
echo '{"event": "ended", "lot": "free from then on"}' >&2
"""


@pytest.fixture
def config(placed: Market, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FleetConfig:  # noqa: F811
    """Somebody with stake, a delegated hot key, the run's data, and a shell script as node."""
    monkeypatch.setattr(tested, "STRONG", QUICK)
    monkeypatch.setattr(tested, "SOON_S", 0.05)
    chain = placed.as_(OURS)
    chain.stake(OPERATOR, 2_000 * UNIT)
    placed.delegate(OURS)
    file = placed.config_of(OURS, network="../invitation.txt")
    placed.invitation()
    write_record(file.parent / "keys" / OWN_RECORD, a_record(OURS, Role.NODE, port=4321))
    sets = json.dumps(str(tmp_path / "sets"))
    table = f"reserve = 0.000001\nlots = 2_000\nruns = 1\nlook_s = 1\nhours = 0\ntakes = 2\ndata = [{sets}]\n"
    table += "absence_s = 0\n"
    file.write_text(f"{file.read_text()}[operator]\nmemory_gb = 100\ndisk_gb = 100\n{table}")
    found = fleet_config(file)
    found.folder.mkdir(mode=0o700)
    (found.folder / "speed").write_text(f"{10**10}\n")
    return found


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Has this script run in place of every node."""

    def write(script: str) -> None:
        path = tmp_path / "program"
        path.write_text(f'#!/bin/sh\nfolder=$(dirname "$5")\n{script}')  # -m assay.cli.main node run FILE
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setattr("sys.executable", str(path))

    return write


def served(fleet: Fleet, until: Callable[[], bool], then: Callable[[], None] | None = None) -> None:
    """Run a process until this is so; then end it, or do something else and wait for its end."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fleet.run)
            with trio.fail_after(60):
                while not until():
                    await trio.sleep(0.05)
                if then is None:
                    nursery.cancel_scope.cancel()
                else:
                    then()

    trio.run(main)


def stage(config: FleetConfig) -> Stage | None:
    seats = read_state(config.folder).seats
    return seats[0].stage if seats else None


def has_seat(config: FleetConfig) -> bool:
    return any(seat.was_seated for seat in read_state(config.folder).seats)


def lot(market: Market) -> int:
    return market.bank.lot_of(wallet(OURS), OPERATOR, market.run_id).amount


def test_a_run_is_taken_left_when_asked_and_its_lot_released_by_the_next_process(
    placed: Market,  # noqa: F811
    config: FleetConfig,
    program: Callable[[str], None],
):
    program(NODE)
    fleet = Fleet(config)
    served(fleet, lambda: has_seat(config), then=fleet.drain)

    assert stage(config) is Stage.ENDED and lot(placed) > 0
    placed.as_("buyer").request_close(placed.run_id)
    placed.advance(placed.params.close_delay_s + placed.params.evidence_window_s + 1)
    served(Fleet(config), lambda: stage(config) is None)
    assert lot(placed) == 0
    assert placed.run_id.hex() in read_state(config.folder).avoided


def test_a_process_that_was_killed_before_the_lot_was_locked_locks_it_once(
    placed: Market,  # noqa: F811
    config: FleetConfig,
    program: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
):
    program(NODE)

    class KilledError(BaseException):
        pass

    def killed(*_: object) -> None:
        raise KilledError

    with monkeypatch.context() as broken:
        broken.setattr(Chain, "ensure_lot", killed)
        with pytest.raises(BaseException) as ended:
            served(Fleet(config), lambda: False)
    assert "KilledError" in repr(ended.value) and stage(config) is Stage.TAKING and lot(placed) == 0

    for _ in range(2):
        served(Fleet(config), lambda: stage(config) is Stage.RUNNING)
    last = placed.bank.block_number()
    assert len(placed.bank.lots_locked({placed.run_id}, 0, last)) == 1 + 3  # ours, and the named nodes'
    assert len(read_state(config.folder).takes) == 1


def test_a_process_starts_where_the_blocks_that_the_network_was_founded_in_are_gone(
    placed: Market,  # noqa: F811
    config: FleetConfig,
    program: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
):
    program(NODE)

    def gone(*_: object) -> None:
        raise Unavailable("pruned history unavailable")

    monkeypatch.setattr(ChainReader, "check_created", gone)
    monkeypatch.setattr(ChainReader, "block_hash", gone)
    served(Fleet(config), lambda: has_seat(config))
    checks_of(config.base)  # nor does a process's look at itself need them
    with pytest.raises(Unavailable, match="pruned history"):
        list(check_participant(config.base, config.folder))


def test_a_look_that_raises_an_error_ends_neither_the_process_nor_its_nodes(
    placed: Market,  # noqa: F811
    config: FleetConfig,
    program: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    program(NODE)
    fleet, looks = Fleet(config), []

    def broken(*_: object) -> None:
        looks.append(fleet._children.of(placed.run_id).pid)
        raise ZeroDivisionError

    def has_looked_twice() -> bool:
        if has_seat(config):
            monkeypatch.setattr(tested, "read_account", broken)
            monkeypatch.setattr(tested, "RETRY_S", 1.0)
        return len(looks) > 1

    served(fleet, has_looked_twice)
    assert looks[0] is not None and looks[0] == looks[1]
    assert caplog.text.count("nothing is taken or left: a look raised an error") == 1
    assert stage(config) is Stage.RUNNING and lot(placed) > 0


def test_no_lot_is_locked_for_a_run_whose_data_are_damaged_or_whose_port_is_taken(
    placed: Market,  # noqa: F811
    config: FleetConfig,
    program: Callable[[str], None],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
):
    program(NODE)
    (shard,) = (tmp_path / "sets").rglob("*.bin")
    good = shard.read_bytes()
    shard.write_bytes(good[:-1] + b"x")
    served(Fleet(config), lambda: "not done yet" in caplog.text)
    assert "was altered" in str([vars(one).get("reason") for one in caplog.records]) and lot(placed) == 0

    shard.write_bytes(good)
    caplog.clear()
    with socket.create_server(("127.0.0.1", config.ports)):
        served(Fleet(config), lambda: "not done yet" in caplog.text)
    assert "4321" in str([vars(one).get("reason") for one in caplog.records]) and lot(placed) == 0
    served(Fleet(config), lambda: lot(placed) > 0)


def test_while_a_transaction_is_on_its_way_no_lot_is_locked(
    placed: Market,  # noqa: F811
    config: FleetConfig,
    program: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
):
    program(NODE)
    asked: list[int] = []
    monkeypatch.setattr(ChainReader, "in_flight", lambda _: asked.append(1) or 1)  # type: ignore[func-returns-value]
    served(Fleet(config), lambda: len(asked) > 1)

    assert stage(config) is Stage.TAKING and lot(placed) == 0


def standing(market: Market) -> list[int]:
    return [one.offer.seats for one in read_standing(market.bank).offers]


def test_free_seats_are_offered_until_a_run_takes_them_and_no_more_when_the_process_ends(
    placed: Market,  # noqa: F811
    config: FleetConfig,
    program: Callable[[str], None],
):
    program(NODE)
    two = replace(config, offers=True, bounds=replace(config.bounds, runs_most=2))
    fleet = Fleet(two)

    served(fleet, lambda: has_seat(two) and standing(placed) == [1])
    sent = placed.bank.block_number()
    again = Fleet(two)  # after a restart the chain says what was offered
    looks = count_calls(again, "_look")
    served(again, lambda: len(looks) > 2, then=again.drain)

    assert standing(placed) == []
    assert announced_offers(placed, sent) == [0]


def test_an_offer_whose_log_the_endpoint_forgot_is_paid_for_once_and_not_at_every_look(
    placed: Market,  # noqa: F811
    config: FleetConfig,
    program: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
):
    program(NODE)
    before = placed.bank.block_number()
    config = replace(config, offers=True, data=(), bounds=replace(config.bounds, runs_most=3))
    monkeypatch.setattr(tested, "last_offer", lambda *_: None)
    fleet = Fleet(config)
    looks = count_calls(fleet, "_look")
    served(fleet, lambda: len(looks) > 3)

    assert announced_offers(placed, before) == [3]


def test_an_offer_of_before_there_was_stake_is_on_no_list_and_made_again(
    placed: Market,  # noqa: F811
    config: FleetConfig,
    program: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
):
    program(NODE)
    config = replace(config, offers=True, data=())
    served(Fleet(config), lambda: standing(placed) == [1])
    placed.advance(5)
    before = placed.bank.block_number()
    monkeypatch.setattr(ChainReader, "staker_block", lambda *_: 0)
    fleet = Fleet(config)
    looks = count_calls(fleet, "_look")
    served(fleet, lambda: len(looks) > 2)

    assert announced_offers(placed, before) == [1]


def test_a_machine_that_can_take_no_run_offers_nothing(
    placed: Market,  # noqa: F811
    config: FleetConfig,
    program: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
):
    program(NODE)
    config = replace(config, offers=True, data=())
    served(Fleet(config), lambda: standing(placed) == [1])

    monkeypatch.setattr(ChainReader, "is_banned", lambda *_: True)
    before = placed.bank.block_number()
    fleet = Fleet(config)
    looks = count_calls(fleet, "_look")
    served(fleet, lambda: len(looks) > 2)

    assert announced_offers(placed, before) == [0]


def count_calls(of: Fleet, method: str) -> list[int]:
    """Grows by one with each call of a method."""
    calls: list[int] = []
    real = getattr(of, method)

    def counted(*given: object) -> object:
        calls.append(1)
        return real(*given)

    setattr(of, method, counted)
    return calls


def announced_offers(market: Market, after: int) -> list[int]:
    """Seats of each offer that was announced after a block, in the order of the chain."""
    words = (None, f"0x{OFFER_SLOT.hex()}")
    found = market.bank._events_of(RecordAnnounced, words, after + 1, market.bank.block_number())
    return [decode(SignedSeatOffer, one.record).offer.seats for one in found]


def test_nodes_go_on_while_the_chain_is_away(
    placed: Market,  # noqa: F811
    config: FleetConfig,
    program: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
):
    program(NODE)
    served(Fleet(config), lambda: has_seat(config))
    log, before = config.seat_folder(placed.run_id) / "node.log", (config.folder / STATE).read_bytes()
    log.write_text("")

    def away(*_: object) -> None:
        raise Unavailable("the endpoint is away")

    monkeypatch.setattr(ChainReader, "timestamp", away)
    served(Fleet(config), lambda: "seat taken" in log.read_text())

    assert (config.folder / STATE).read_bytes() == before


def test_a_full_disk_ends_no_process_and_nothing_is_decided_until_it_can_be_kept(
    placed: Market,  # noqa: F811
    config: FleetConfig,
    program: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    program(NODE)
    served(Fleet(config), lambda: has_seat(config))
    (config.seat_folder(placed.run_id) / LEAVE).touch()  # by hand: the node ends, and its seat is to move on

    def full(*_: object) -> None:
        raise ConfigError("no space left")

    with monkeypatch.context() as patched:
        patched.setattr(tested, "write_state", full)
        served(Fleet(config), lambda: caplog.text.count("the state cannot be kept") > 1)
        assert stage(config) is Stage.RUNNING
    served(Fleet(config), lambda: stage(config) is Stage.ENDED)


def test_a_delegation_that_ends_soon_is_renewed_and_runs_are_taken(
    config: FleetConfig,
    program: Callable[[str], None],
    placed: Market,  # noqa: F811
    caplog: pytest.LogCaptureFixture,
):
    program(NODE)
    chain, keys = placed.as_(OURS), keys_of(OURS)
    hot, (_, ends) = evm_address(keys.hot_address), delegate(chain, keys, 1, chain.timestamp())

    def renewed_s() -> int:
        found = chain.hot_key(hot)
        assert found is not None
        return found.expiry - ends

    served(Fleet(config), lambda: "no run can be taken" in caplog.text)
    assert not renewed_s()
    config = replace(config, base=replace(config.base, delegation_days=31))
    served(Fleet(config), lambda: has_seat(config))
    assert 29 * DAY_S < renewed_s() <= 31 * DAY_S


def test_a_second_process_of_one_operator_is_refused(config: FleetConfig, program: Callable[[str], None]):
    program(NODE)

    def second() -> None:
        with pytest.raises(ConfigError, match="runs already"):
            trio.run(Fleet(config).run)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Fleet(config).run)
            with trio.fail_after(60):
                while stage(config) is None:
                    await trio.sleep(0.05)
            await trio.to_thread.run_sync(second)
            nursery.cancel_scope.cancel()

    trio.run(main)
