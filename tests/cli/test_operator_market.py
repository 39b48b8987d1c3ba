"""What an operator's process finds on a chain: open runs that suit it, with no more reading than needed."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from assay.chain.client import UNIT
from assay.chain.events import LotLocked
from assay.chain.reader import ChainReader
from assay.chain.statements import OPERATOR
from assay.fleet.fitness import Machine
from assay.fleet.market import read_account, read_candidates, read_library, read_on_chain
from assay.fleet.plan import DAY_S, Bounds, State
from assay.ledger.settlement.results import run_id_of
from assay.participant.directory.find import announce_run
from assay.participant.directory.listing import Known
from assay.participant.files.run_file import read_run_file
from assay.testing.signed import NODES
from assay.testing.specs import TEXT
from assay.training.data.shards import MANIFEST, write_tokens
from assay.verifier.audit.limits import shipped
from tests.a_network import NOW
from tests.cli.market import Market, wallet

pytestmark = pytest.mark.slow
OURS = "stranger"
SEATS = 5
MACHINE = Machine(flop_per_s=10**10, blob_bytes=10**8)
BOUNDS = Bounds(
    reserve=1, lots_most=10**6 * UNIT, runs_most=2, memory_bytes=10**11, disk_bytes=10**12,
    upload_bytes_s=10**8, days_most=60, hours_least=0, wait_s=86_400, absence_s=0,
    takes_per_day=6, poor_s=1800,
)  # fmt: skip


@pytest.fixture
def placed(market: Market, tmp_path: Path) -> Market:
    """A run with two free seats that is judged by this release's limits, opened and announced."""
    market.order_seats(SEATS)
    market.spec = replace(market.spec, audit=replace(market.spec.audit, limits=shipped().digest()))
    market.run_id = run_id_of(market.spec)
    market.write_run(market.spec)
    market.join_nodes()
    for name in NODES:
        market.lock(name)
    market.open_run()
    announce_run(market.as_("buyer"), read_run_file(market.folder / "run.assay", NOW))
    write_tokens(tmp_path / "sets" / "text", [TEXT])
    return market


def found(market: Market, tmp_path: Path, known: Known | None = None, **changes):
    given = {
        "now_s": market.bank.timestamp(), "known": known or Known(), "machine": MACHINE,
        "library": read_library((tmp_path / "sets",)), "state": State(), "bounds": BOUNDS, **changes,
    }  # fmt: skip
    return read_candidates(market.as_(OURS), **given)


def test_an_open_run_is_found_with_what_it_asks_for_and_pays(placed: Market, tmp_path: Path):
    (one,) = found(placed, tmp_path)
    run = placed.bank.run(placed.run_id)

    assert run is not None
    assert (one.run_id, one.buyer, one.lot, one.deadline) == (
        placed.run_id, wallet("buyer"), run.lot, run.deadline,
    )  # fmt: skip
    assert one.trains_until == run.closes_at - placed.params.close_delay_s
    assert one.fault is None and one.pay > 0 and one.memory_bytes > 0 and one.disk_bytes >= MACHINE.blob_bytes


def test_what_does_not_suit_is_not_found(placed: Market, tmp_path: Path):
    (one,) = found(placed, tmp_path)

    assert found(placed, tmp_path, library={}) == ()
    assert found(placed, tmp_path, machine=replace(MACHINE, flop_per_s=1)) == ()
    assert found(placed, tmp_path, bounds=replace(BOUNDS, reserve=one.pay + 1)) == ()
    assert found(placed, tmp_path, bounds=replace(BOUNDS, days_most=29)) == ()
    assert found(placed, tmp_path, state=State(avoided={one.buyer: 2**40})) == ()


def test_a_run_that_is_full_cancelled_or_ours_already_is_not_found(placed: Market, tmp_path: Path):
    assert len(found(placed, tmp_path)) == 1
    snapshot = placed.rpc("evm_snapshot")
    placed.lock(OURS)  # by hand
    assert found(placed, tmp_path) == ()
    placed.rpc("evm_revert", snapshot)
    snapshot = placed.rpc("evm_snapshot")
    for name in ("buyer", "vera"):
        placed.lock(name)
    assert found(placed, tmp_path) == ()
    placed.rpc("evm_revert", snapshot)
    placed.as_("buyer").request_close(placed.run_id)
    assert found(placed, tmp_path) == ()


def test_looking_again_reads_no_file_again_and_lots_in_new_blocks_alone(
    placed: Market, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    calls: Counter[str] = Counter()
    asked: list[int] = []
    read, lots = ChainReader.announced_run, ChainReader.lots_locked
    monkeypatch.setattr(
        ChainReader, "announced_run", lambda self, one: calls.update(["file"]) or read(self, one)
    )

    def looked(self: ChainReader, ids: set[bytes], first: int, last: int) -> list[LotLocked]:
        asked.append(first)
        return lots(self, ids, first, last)

    monkeypatch.setattr(ChainReader, "lots_locked", looked)
    known = Known()
    for _ in range(3):
        assert len(found(placed, tmp_path, known)) == 1
    placed.rpc("anvil_mine", "0x100")
    assert len(found(placed, tmp_path, known)) == 1
    for name in ("buyer", "vera"):
        placed.lock(name)
    assert found(placed, tmp_path, known) == ()  # seats that were taken since are seen

    assert calls["file"] == 1
    assert asked[-1] > asked[0] and asked[-1] > placed.bank.block_number() - 300


def test_a_file_that_does_not_verify_is_read_once_and_hides_no_other_run(
    placed: Market, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    read = ChainReader.announced_run
    calls: Counter[bytes] = Counter()
    bad = bytes([7]) * 32
    newest, run = ChainReader.newest_runs, ChainReader.run

    def announced(self: ChainReader, run_id: bytes) -> bytes | None:
        calls[run_id] += 1
        return b"no run file" if run_id == bad else read(self, run_id)

    monkeypatch.setattr(ChainReader, "announced_run", announced)
    monkeypatch.setattr(ChainReader, "newest_runs", lambda self, most: (2, [bad, *newest(self, most)[1]]))
    monkeypatch.setattr(
        ChainReader, "run", lambda self, run_id: run(self, placed.run_id if run_id == bad else run_id)
    )
    known = Known()
    for _ in range(3):
        assert [one.run_id for one in found(placed, tmp_path, known)] == [placed.run_id]

    assert calls[bad] == 1


def test_seats_of_runs_that_do_not_suit_are_not_counted(
    placed: Market, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(ChainReader, "lots_locked", lambda *_: pytest.fail("looked for lots"))

    assert found(placed, tmp_path, library={}) == ()


def test_an_account_takes_no_run_without_stake_or_delegation(placed: Market):
    chain = placed.as_(NODES[0])
    good = read_account(chain, chain.hot_key_of(chain.address))
    assert good.fault is None and good.free_stake == chain.stake_of(chain.address, OPERATOR).free

    ours = placed.as_(OURS)
    assert "its stake is" in (read_account(ours, wallet("nobody")).fault or "")
    assert "not delegated" in (read_account(chain, wallet("nobody")).fault or "")


def test_a_lot_is_said_to_be_free_once_its_run_is_over_and_a_window_has_passed(placed: Market):
    chain = placed.as_(NODES[0])
    now = read_on_chain(chain, placed.run_id)
    assert now.lot > 0 and now.is_open and not now.can_release

    placed.as_("buyer").request_close(placed.run_id)
    assert not read_on_chain(chain, placed.run_id).is_open
    placed.advance(placed.params.close_delay_s + placed.params.evidence_window_s + DAY_S)
    assert read_on_chain(chain, placed.run_id).can_release


def test_a_library_is_data_sets_and_folders_of_them_and_what_is_damaged_is_left_out(tmp_path: Path):
    first = write_tokens(tmp_path / "sets" / "first", [TEXT])
    second = write_tokens(tmp_path / "second", [TEXT[:5000]])
    (tmp_path / "sets" / "third").mkdir()
    (tmp_path / "sets" / "third" / MANIFEST).mkdir()

    library = read_library((tmp_path / "sets", tmp_path / "second", tmp_path / "none"))

    assert library == {first.digest(): tmp_path / "sets" / "first", second.digest(): tmp_path / "second"}
