"""Nodes train as much as they have time for: each is paid for that, and a claim of more is slashed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from assay.bundle.read import read
from tests.conftest import Assay
from tests.e2e.conftest import SCENARIOS, Finished
from tests.e2e.nets import need_anvil, slashed, write_order
from tests.wan.campaign import play
from tests.wan.scenario import read as read_scenario

pytestmark = pytest.mark.slow
LEAST, MOST, CHEAT_ROUND = 2, 8, 2  # the scenario says who cheats


@pytest.fixture(scope="module")
def sized(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Node 1 takes three seconds longer, all that it may; node 3 claims too much; the others are fast."""
    need_anvil()
    folder, scenario = tmp_path_factory.mktemp("sized"), read_scenario(SCENARIOS / "chain.toml")
    train = f"sequences_max = {MOST}\n[compute]\nmicro_sequences = {LEAST}\n"
    order = write_order(folder, rounds=scenario.rounds, train=train)
    order.write_text(order.read_text().replace("collect_s = 8", "collect_s = 6"))
    played = play(scenario, folder, order)
    assert not played.missed
    return Finished(played.run, played.summary, played.status)


@pytest.fixture(scope="module")
def trained(sized: Finished) -> dict[str, list[int]]:
    """Tokens of each node's accepted steps, by peer, in the order of their rounds."""
    found: dict[str, list[int]] = {node["peer"]: [] for node in sized.summary["nodes"]}
    for link in read(sized.run).links:
        for signed in link.manifest.commits:
            found[signed.commit.node.hex()].append(signed.commit.tokens)
    return found


def test_every_promise_holds_whatever_befalls_chain_disks_and_files(sized: Finished) -> None:
    assert sized.broken_promises() == []
    assert sized.status == 0


def test_fast_nodes_train_more_and_a_slow_one_no_less_than_the_least(
    sized: Finished, trained: dict[str, list[int]]
) -> None:
    spec = read(sized.run).spec
    assert (spec.tokens_per_step, spec.most_tokens_per_step) == (LEAST * 32, MOST * 32)
    slow = trained[sized.peer("slow")]
    fast = [trained[one["peer"]] for one in sized.summary["nodes"] if one["behaviour"] == "honest"]

    assert set(slow) == {spec.tokens_per_step} and len(slow) >= 8
    for one in fast:
        assert one[0] == spec.tokens_per_step  # it had measured nothing
        assert Counter(one)[spec.most_tokens_per_step] >= 5


def test_each_is_paid_in_proportion_to_the_tokens_that_it_trained(
    sized: Finished, trained: dict[str, list[int]]
) -> None:
    spec = read(sized.run).spec
    paid = {one["peer"]: one["paid"] for one in sized.summary["nodes"] if not one["slashed"]}

    for peer, amount in paid.items():
        due = sum(trained[peer]) * spec.money.operator_price / 10**6
        assert abs(amount - due) <= 2 * spec.epochs  # rounding, of each epoch
    assert max(paid.values()) > 2 * paid[sized.peer("slow")]


def test_a_large_step_is_repeated_and_proved_in_its_own_size(
    assay: Assay, sized: Finished, trained: dict[str, list[int]], tmp_path: Path
) -> None:
    node, path = sized.peer("honest"), tmp_path / "receipt.json"
    number = len(trained[node]) - 1  # it missed no round

    repeated = assay("audit", "replay", f"{sized.run}:{number}:{node}")
    made = assay("receipt", "make", sized.run, str(number), node[:8], "--out", path)
    proved = assay("receipt", "verify", path)

    assert repeated.status == 0 and f"{MOST} sequences" in repeated.out and "MATCH" in repeated.out
    assert (made.status, proved.status) == (0, 0), made.err + proved.err
    assert f"{MOST * 32} tokens" in proved.out


def test_who_claims_more_than_it_trained_is_slashed_and_nobody_else(
    sized: Finished, trained: dict[str, list[int]]
) -> None:
    cheat = next(one for one in sized.summary["nodes"] if one["slashed"])

    assert slashed(sized.summary) == ["claims-more"]
    assert trained[cheat["peer"]][CHEAT_ROUND] == MOST * 32
    assert cheat["paid"] == 0
