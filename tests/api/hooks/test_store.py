"""Store: one lease at a time, and a position that only its next entry advances."""

from __future__ import annotations

from pathlib import Path

import pytest

from assay.api.access import AccessStore
from assay.api.hooks.store import LEASE_S, HookExists, HookStore

NOW_S = 1_000_000


@pytest.fixture
def hooks(tmp_path: Path) -> HookStore:
    return HookStore(AccessStore(tmp_path / "access.db"))


def added(hooks: HookStore, run: str = "paper", *, at_s: int = NOW_S, position: int = 3) -> str:
    url = f"https://hooks.example.org/{at_s}"
    return hooks.add(owner="token:1", token=1, run=run, url=url, position=position, now_s=at_s).id


def test_a_lease_is_exclusive_and_ends_by_itself(hooks: HookStore):
    hook = added(hooks)

    first = hooks.claim("paper", 4, NOW_S)
    assert first is not None and first.id == hook
    assert hooks.claim("paper", 4, NOW_S) is None
    assert hooks.waiting(NOW_S) == []
    assert hooks.claim("paper", 4, NOW_S + LEASE_S - 1) is None
    assert hooks.claim("paper", 4, NOW_S + LEASE_S) is not None


def test_only_the_next_entry_advances_a_webhook(hooks: HookStore):
    hook = added(hooks)

    assert [hooks.delivered(hook, number) for number in (3, 5, 4, 4, 5)] == [False, False, True, False, True]
    assert hooks.of("token:1")[0].position == 5  # a worker whose lease has ended moves nothing
    assert not hooks.delivered("0" * 32, 6)


def test_who_waits_longest_is_claimed_first_and_only_for_what_the_log_has(hooks: HookStore):
    late, early = added(hooks), added(hooks, at_s=NOW_S - 5)
    other = added(hooks, "other", at_s=NOW_S - 9, position=8)

    assert hooks.waiting(NOW_S) == [("other", 8), ("paper", 3)]
    assert hooks.claim("paper", 3, NOW_S) is None
    claimed = [hooks.claim("paper", 4, NOW_S) for _ in range(3)]
    assert [one and one.id for one in claimed] == [early, late, None]
    found = hooks.claim("other", 9, NOW_S)
    assert found is not None and found.id == other


def test_one_address_of_a_run_is_registered_once_by_an_owner(hooks: HookStore):
    added(hooks)
    with pytest.raises(HookExists):
        added(hooks)
    url = f"https://hooks.example.org/{NOW_S}"
    hooks.add(owner="token:2", token=2, run="paper", url=url, position=0, now_s=NOW_S)
