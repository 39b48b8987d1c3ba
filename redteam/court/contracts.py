"""Contracts: attacks on the smart contracts, run as the contracts' own tests.

Room: redteam (edge: a child process). They need a running chain and Solidity's own reverts, so they are not
written twice: each row names the tests that are the adversary, and runs them. A contract cannot be deployed
without its defence here, so these rows have no undefended half. If the tests or the chain's binary are not
installed, the row is open: an attack that was not tried was not stopped.
"""

from __future__ import annotations

import functools
import re
import subprocess
import sys
from pathlib import Path

from assay.redteam.attack import Attack, Outcome, Where, tallied

ROOT = Path(__file__).parents[2]
_WAIT_S = 900
_LINE = re.compile(r"^(tests/\S+?)(?:\[.*\])? (PASSED|FAILED|SKIPPED|ERROR)", re.MULTILINE)

TESTS = {
    "exit scam: cheat, then withdraw": (
        34, "unbonding outlasts every dispute; leaving stake is slashed too",
        "stake::test_a_slash_reaches_the_lot_of_its_run_and_nothing_else",
        "stake::test_a_deployment_whose_stake_could_escape_a_slash_cannot_exist",
        "court::test_a_case_holds_its_lot_and_ends_by_time",
    ),
    "stolen hot key": (
        33, "a hot key signs and cannot move stake",
        "stake::test_a_hot_key_needs_its_own_consent_and_never_changes_hands",
        "stake::test_nobody_but_the_court_slashes_or_holds_a_lot",
    ),
    "slash oneself for the bounty": (
        28, "the reporter of oneself earns nothing",
        "court::test_reporting_oneself_pays_nothing_and_saves_nothing",
        "court::test_reporting_oneself_before_staking_buys_no_immunity",
        "stake::test_slashed_is_burnt_plus_rewards_to_the_unit",
    ),
    "double claim, another's row": (
        37, "a row is paid once, by its own proof",
        "settlement::test_a_row_is_paid_once",
        "settlement::test_a_proof_pays_its_own_row_only",
        "settlement::test_claims_stop_at_the_signed_total",
    ),
    "forged or repeated certificate": (
        37, "a quorum of distinct members over every field",
        "settlement::test_a_result_needs_a_quorum_of_distinct_members",
        "settlement::test_a_certificate_covers_every_field_of_the_result",
        "settlement::test_yesterdays_signatures_do_not_count_on_a_fresh_chain_with_the_same_addresses",
    ),
    "spend the escrow beside the settlement": (
        37, "only the settlement touches reserved money",
        "settlement::test_only_the_settlement_touches_reserved_money",
        "settlement::test_all_epochs_together_cost_at_most_the_budget",
        "settlement::test_a_buyer_cannot_close_over_the_head_of_work_already_done",
    ),
    "two statements in one slot": (
        3, "the court takes the whole stake on the pair",
        "court::test_two_values_in_one_slot_cost_the_whole_stake_in_every_role_once",
        "court::test_statements_that_do_not_contradict_slash_nobody",
    ),
}  # fmt: skip


def adversaries_of(name: str) -> tuple[str, ...]:
    """The tests that are a row's adversary."""
    paths = (test.split("::") for test in TESTS[name][2:] if isinstance(test, str))
    return tuple(f"tests/contracts/test_{file}.py::{test}" for file, test in paths)


@functools.lru_cache(maxsize=1)
def _verdicts() -> dict[str, set[str]]:
    """Results of every named test's cases, run at once on one chain."""
    wanted = sorted({test for name in TESTS for test in adversaries_of(name)})
    if not (ROOT / "tests" / "contracts").is_dir():
        return {}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-vv", "-p", "no:cacheprovider", "--no-header", *wanted],
        cwd=ROOT,
        capture_output=True, text=True, timeout=_WAIT_S,
    )  # fmt: skip
    return endings(done.stdout)


def endings(forge_output: str) -> dict[str, set[str]]:
    """Results of each test's cases, from pytest's verbose output."""
    found: dict[str, set[str]] = {}
    for test, ended in _LINE.findall(forge_output):
        found.setdefault(test, set()).add(ended)
    return found


def _row(name: str, number: int, defence: str) -> Attack:
    def run(is_defended: bool, seed: int) -> Outcome:
        tests, ended = adversaries_of(name), _verdicts()
        stopped = sum(ended.get(test) == {"PASSED"} for test in tests)
        harm = "none: reverted" if stopped == len(tests) else "not tried, or not stopped"
        return tallied(len(tests), stopped, 0.0, harm)

    return Attack(
        name=name, number=number, where=Where.CONTRACTS, defence=defence, run=run, has_off=False, is_slow=True
    )


CONTRACT_ATTACKS = tuple(_row(name, int(row[0]), str(row[1])) for name, row in TESTS.items())
