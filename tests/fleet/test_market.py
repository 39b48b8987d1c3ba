"""What the chain says of a run decides whether it is ours, and whether its lot is free."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from assay.chain.commit_statement import evm_address
from assay.fleet.market import SETS_MAX, _is_ours, read_library, read_on_chain
from assay.testing.specs import a_spec
from assay.training.data.shards import MANIFEST, MANIFEST_BYTES_MAX

SPEC = a_spec()
NAMED = [evm_address(one.account) for one in SPEC.nodes]


def a_chain(address: str = "0x" + "77" * 20, until: int = 0, **escrow: Any) -> Any:
    return SimpleNamespace(
        address=address,
        lot_of=lambda *_: SimpleNamespace(amount=5, until=until),
        can_release=lambda *_: True,
        run=lambda _run_id: SimpleNamespace(**escrow) if escrow else None,
    )


def a_run() -> Any:
    return SimpleNamespace(spec=SPEC, run_id=b"r" * 32)


@pytest.mark.parametrize("named", NAMED)
def test_a_run_that_names_the_account_is_ours(named: str) -> None:
    assert len(set(NAMED)) > 1
    assert _is_ours(a_chain(named), a_run())


def test_a_run_is_ours_from_the_first_second_of_a_lot_on() -> None:
    assert not _is_ours(a_chain(until=0), a_run())
    assert _is_ours(a_chain(until=1), a_run())


def test_a_lot_that_was_never_locked_is_not_to_be_released() -> None:
    assert not read_on_chain(a_chain(until=0), SPEC.deployment_id).can_release
    assert read_on_chain(a_chain(until=1), SPEC.deployment_id).can_release


@pytest.mark.parametrize(("closes_at", "is_open"), [(9, False), (10, True), (11, True)])
def test_a_run_is_open_unless_it_closes_before_its_deadline(closes_at: int, is_open: bool) -> None:
    found = read_on_chain(a_chain(deadline=10, closes_at=closes_at), SPEC.deployment_id)
    assert (found.is_open, found.lot) == (is_open, 5)
    assert not read_on_chain(a_chain(), SPEC.deployment_id).is_open


def test_the_first_data_sets_of_a_folder_are_known_and_one_that_is_too_large_is_not(tmp_path: Path) -> None:
    for at in range(SETS_MAX + 1):
        (tmp_path / f"set{at:03}").mkdir()
        (tmp_path / f"set{at:03}" / MANIFEST).write_text(str(at))
    large = tmp_path / f"set{SETS_MAX:03}"

    found = read_library((tmp_path,))
    assert len(found) == SETS_MAX and large not in found.values()
    assert list(read_library((large,)).values()) == [large]  # it is named itself
    with open(large / MANIFEST, "r+b") as file:
        file.truncate(MANIFEST_BYTES_MAX)
        assert read_library((large,))
        file.truncate(MANIFEST_BYTES_MAX + 1)
    assert read_library((large,)) == {}
