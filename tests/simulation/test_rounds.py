"""Whole networks of production processes keep their promises, and each promise is one that can be broken."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from assay.ledger.settlement.payouts import settle
from assay.node.progress import round_line
from assay.node.service import Service as Node
from assay.node.trainer import Trainer
from assay.participant.compute import ComputeWorker
from assay.participant.keys.high_water import HighWater
from assay.participant.store import Store
from assay.protocol.agreement.finality import SETTLED
from assay.protocol.auditing import audits as rules
from assay.protocol.auditing.audits import AuditStatus, FaultKind
from assay.protocol.messages import BlobPiece, Closing, Outcome
from assay.protocol.params import RunSpec
from assay.protocol.randomness.drand import released_s
from assay.protocol.rotation import Rotation
from assay.protocol.run_state import RunState
from assay.protocol.types import NO_DIGEST
from assay.verifier.audit.exact import compare
from assay.verifier.consensus import follow
from assay.verifier.consensus.chain import best_parent
from assay.verifier.consensus.chain import deadline_ms as patience_ms
from assay.verifier.round import commits
from assay.verifier.service.chain_duties import ChainDuties
from assay.verifier.service.driver import Driver
from tests.simulation import whole_network
from tests.simulation.conduct import Conduct
from tests.simulation.disk import HERE
from tests.simulation.promises import Promises, Violation
from tests.simulation.whole_network import Plan, WholeNetwork, planned, simulate

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
COMPARE = "assay.verifier.audit.worker.compare"
CALM = replace(planned(0, faults=False), rounds=2)


def broken(seed: int = 0, network: type[WholeNetwork] = WholeNetwork, **changes: Any) -> str:
    """The promise that a network breaks, in words; empty if it keeps all."""
    try:
        simulate(seed, replace(CALM, **changes), network=network)
    except Violation as violation:
        return str(violation)
    return ""


@pytest.mark.slow
def test_whole_rounds_end_and_every_promise_holds_under_kills_cuts_and_liars():
    """In an interpreter of their own, whose sets have the order in which the seeds were looked at."""
    words = [sys.executable, "-m", "tests.simulation.rounds", "--seeds", "3"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-8000:]


def test_a_calm_network_trains_audits_settles_and_pays():
    world = simulate(1, replace(CALM, rounds=3))
    commits = [len(link.manifest.commits) for link in world.promises.chain.values()]
    assert commits[:3] == [4, 4, 4] and not any(commits[3:])
    rulings = {audit.ruling for audit in world.promises.audits.values()}
    assert rulings == {AuditStatus.PASSED} and not world.promises.unpaid
    assert set(world.contracts.results) == {0, 1} and not world.contracts.cases


def test_the_same_seed_gives_the_same_frames():
    plan = replace(CALM, storm_s=5.0, kills=2, breaks=3)
    first, again, other = (simulate(seed, plan).network.trace.digest() for seed in (3, 3, 4))
    assert first == again != other


def test_a_simulated_process_finds_all_kernels_compiled():
    """What compiles one in a simulation draws from the seed's chance and may die of a write."""
    call = (
        "from tests.simulation.one_thread import one_thread; from assay.training import compiled\n"
        "from tests.simulation.whole_network import planned, simulate\n"
        "with one_thread(0): known = set(compiled._made)\n"
        "simulate(0, planned(0, faults=False)); assert set(compiled._made) == known != set()"
    )
    subprocess.run([sys.executable, "-c", call], cwd=ROOT, check=True)


@pytest.mark.slow
def test_a_lying_node_is_convicted_and_taken_to_court():
    world = simulate(2, replace(CALM, rounds=3, lying_node="random-update"))
    assert AuditStatus.CONFIRMED in {audit.ruling for audit in world.promises.audits.values()}
    assert len(world.contracts.cases) == 1


@pytest.mark.slow
def test_a_network_that_once_stood_still_before_its_last_manifest_was_final_ends():
    """Leaders were given up as they proposed, and nothing closed the run: 14 of 15 manifests were final."""
    plan = Plan(
        rounds=4, lying_node="no-feedback", lying_verifier="never-open", storm_s=30.0, kills=5, cuts=1,
        breaks=16, late_s=15.0, slow=14,
    )  # fmt: skip
    simulate(3, plan)


@pytest.mark.slow
def test_a_last_manifest_that_two_verifiers_gave_up_is_closed():
    """In an interpreter of its own: who leads the last iteration follows from the order of sets, too."""
    call = f"from {__name__} import last_manifest_is_closed; last_manifest_is_closed()"
    subprocess.run(
        [sys.executable, "-c", call], cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": "0"}, check=True
    )


def last_manifest_is_closed() -> None:
    """Two clocks tick before the last proposal comes, so that it is notarised there and never final."""

    def deadline_ms(state):
        is_last = state.tip.round == 11 and not best_parent(state)
        return 0 if is_last and HERE.get().name in ("verifier 0", "verifier 1") else patience_ms(state)

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr("assay.verifier.consensus.follow.deadline_ms", deadline_ms)
        monkeypatch.setattr(whole_network, "CALM_S_MAX", 120.0)
        monkeypatch.setattr(Promises, "undisturbed", lambda _promises: None)
        monkeypatch.setattr(Conduct, "voted", lambda *_: "")  # two give up before their time
        last = (simulate(seed, CALM).promises.chain[12] for seed in range(12, 40))
        assert any(link.certificate.vote.iteration == SETTLED for link in last)


@pytest.mark.slow
def test_a_verifier_that_calls_an_honest_step_false_is_found_at_fault_and_taken_to_court():
    world = simulate(1, replace(CALM, lying_verifier="opposite"))
    assert FaultKind.ACCUSED in {one.failing for a in world.promises.audits.values() for one in a.faults}
    assert len(world.contracts.cases) >= 1


@pytest.mark.slow
def test_a_buyer_that_cancels_ends_the_training_and_pays_for_what_was_done():
    world = simulate(1, replace(CALM, rounds=8, cancelled_s=3.0))
    assert 0 < world.promises.trained < 8 and not world.promises.unpaid


@pytest.mark.slow
def test_one_of_two_newcomers_takes_the_free_seat_trains_and_is_paid():
    world = simulate(1, replace(CALM, rounds=6, joins_s=1.0))
    (joined,) = world.promises.joined
    number = max(world.promises.settled)
    assert joined in {row.peer for row in world.promises.settled[number].rows}


@pytest.mark.slow
def test_a_newcomer_begins_with_the_audits_that_it_passed_in_another_run(monkeypatch):
    world = simulate(3, replace(CALM, rounds=6, joins_s=1.0))
    admissions = (one for link in world.promises.chain.values() for one in link.manifest.admissions)
    assert [one.admission.clean for one in admissions] == [2, 2, 2]

    monkeypatch.setattr("assay.protocol.state_transition._carried", lambda *_: (NO_DIGEST, 0))
    assert "audits in a row that nodes passed are" in broken(seed=3, rounds=6, joins_s=1.0)


@pytest.mark.slow
def test_a_seat_whose_account_ends_its_delegation_is_handed_over():
    world = simulate(1, replace(CALM, rounds=12, resigns_s=1.0, is_revoked=True))
    (handed,) = (one for link in world.promises.chain.values() for one in link.manifest.hand_over)
    assert {handed.seat} == set(world.promises.leaving)


@pytest.mark.slow
def test_an_epoch_whose_model_misses_its_milestone_costs_less():
    world = simulate(1, replace(CALM, rounds=3, most_loss_micro=1))
    assert world.promises.settled[0].total == 8 * 32_000 * 7 // 10


# ---- every promise is one that can be broken


@pytest.mark.slow
def test_verifiers_that_forget_what_they_signed_are_found(monkeypatch):
    monkeypatch.setattr(Store, "add_record", lambda _store, _iteration, _body: None)
    monkeypatch.setattr(HighWater, "note", lambda _mark, _iteration, _statement, **_: None)
    plan = {"rounds": 4, "storm_s": 20.0, "kills": 40, "cuts": 3}
    assert any(
        "signed two" in found or "DUMMY and FINALISE" in found or "from us" in found
        for found in (broken(seed, **plan) for seed in range(6, 40))
    )


@pytest.mark.slow
def test_a_leader_whose_store_lost_the_end_of_its_log_keeps_its_word_by_its_high_water_mark(monkeypatch):
    plan = {"rounds": 4, "storm_s": 5.0, "loses": True, "tears": True}
    assert not any(broken(seed, **plan) for seed in (0, 1, 38))
    monkeypatch.setattr(HighWater, "note", lambda _mark, _iteration, _statement, **_: None)
    assert any(
        "signed two" in found or "DUMMY and FINALISE" in found or "from us" in found
        for found in (broken(seed, **plan) for seed in range(38, 60))
    )


@pytest.mark.slow
def test_clocks_that_drift_and_are_set_while_a_run_lasts_change_nothing_and_are_seen_where_they_do(
    monkeypatch,
):
    assert broken(rounds=8, drifts=True) == ""
    monkeypatch.setattr("assay.verifier.round.examination.AHEAD_S", 1)
    monkeypatch.setattr("assay.verifier.round.examination.AHEAD_SHARE", 1000)
    assert any("was given up" in broken(seed, rounds=8, drifts=True) for seed in range(4))


@pytest.mark.slow
def test_clocks_that_are_seconds_wrong_change_nothing_and_are_seen_where_they_do(monkeypatch):
    assert broken(rounds=3, clocks=8) == ""
    monkeypatch.setattr("assay.verifier.round.examination.AHEAD_S", 1)
    monkeypatch.setattr("assay.verifier.round.examination.AHEAD_SHARE", 1000)
    assert "was given up" in broken(rounds=3, clocks=8)


@pytest.mark.slow
def test_a_node_that_makes_another_commit_after_a_restart_is_found(monkeypatch):
    sound, value = Trainer.step, Store.value

    def step(trainer, round_id, parent, base, base_root, **left):
        record = sound(trainer, round_id, parent, base, base_root, **left)
        return replace(record, commit=replace(record.commit, loss_micro=int(HERE.get().writes)))

    monkeypatch.setattr(Trainer, "step", step)
    monkeypatch.setattr(
        Store, "value", lambda store, name: None if name.startswith("commit/") else value(store, name)
    )
    plan = {"rounds": 3, "storm_s": 8.0, "kills": 6}
    assert any("signed two" in found for found in (broken(seed, **plan) for seed in range(6)))


@pytest.mark.slow
def test_auditors_that_find_everything_true_are_found(monkeypatch):
    monkeypatch.setattr(COMPARE, lambda *a, **k: replace(compare(*a, **k), outcome=Outcome.MATCH))
    assert "a false step of round" in broken(rounds=3, lying_node="random-update")


@pytest.mark.slow
def test_auditors_that_find_everything_false_are_found(monkeypatch):
    monkeypatch.setattr(COMPARE, lambda *a, **k: replace(compare(*a, **k), outcome=Outcome.MISMATCH))
    assert "honest" in broken()


def test_parameters_that_differ_are_found(monkeypatch):
    sound = ComputeWorker.apply

    def apply(worker, round_id, aggregate):
        is_other = HERE.get().name == "verifier 1"
        return sound(worker, round_id, b"" if is_other else aggregate)

    monkeypatch.setattr(ComputeWorker, "apply", apply)
    assert "different parameters" in broken()


@pytest.mark.slow
def test_payouts_that_differ_are_found(monkeypatch):
    def differing(run_state, epoch):
        found = settle(run_state, epoch)
        return replace(found, tokens_paid=1) if HERE.get().name == "node 2" else found

    monkeypatch.setattr("assay.participant.follower.settle", differing)
    assert "different payouts" in broken()


@pytest.mark.slow
def test_an_accuser_that_goes_free_is_found(monkeypatch):
    monkeypatch.setattr("assay.protocol.auditing.audits._with_faults", lambda audit: audit)
    assert "wrong, and the chain finds ()" in broken(lying_verifier="opposite")


@pytest.mark.slow
def test_draws_at_another_rate_are_found(monkeypatch):
    monkeypatch.setattr("assay.protocol.run_state.audit_rate_ppm", lambda *_: 600_000)
    assert "drawn" in broken()


@pytest.mark.slow
def test_a_verifier_that_signs_twice_and_goes_free_is_found(monkeypatch):
    monkeypatch.setattr(Driver, "_show_double_vote", lambda _driver, _pair: None)
    assert "signed twice in round" in broken(lying_verifier="two-voiced")


@pytest.mark.slow
def test_a_run_that_trains_on_though_its_buyer_cancelled_is_found(monkeypatch):
    monkeypatch.setattr("assay.protocol.run_state.closing", lambda *_: Closing.NO)
    assert "it trains for 8 rounds, expected" in broken(rounds=8, cancelled_s=3.0)


@pytest.mark.slow
def test_a_warning_where_nothing_broke_is_found(monkeypatch):
    sound = ChainDuties.run

    async def run(duties, host):
        logging.getLogger("assay").warning("something is wrong")
        await sound(duties, host)

    monkeypatch.setattr(ChainDuties, "run", run)
    assert "somebody warns" in broken()


@pytest.mark.slow
def test_two_chains_are_found(monkeypatch):
    sound = Promises._folded

    def folded(promises, other):
        link = promises.chain.get(3)
        if link is not None:
            promises.chain[3] = replace(link, manifest=replace(link.manifest, time_s=0))
        sound(promises, other)

    monkeypatch.setattr(Promises, "_folded", folded)
    assert "two manifests are final in round 3" in broken()


@pytest.mark.slow
def test_a_run_that_stands_still_is_found(monkeypatch):
    async def submit(_node, _verifier, _submission, _sent):
        return

    monkeypatch.setattr(Node, "_submit", submit)
    monkeypatch.setattr(whole_network, "CALM_S_MAX", 60.0)
    assert "the run did not end 60.0 s after the storm" in broken()


@pytest.mark.slow
def test_a_convicted_node_that_nobody_prosecutes_is_found(monkeypatch):
    async def prosecute(_duties, _request, _order, _place):
        return

    monkeypatch.setattr(ChainDuties, "_prosecute", prosecute)
    monkeypatch.setattr(whole_network, "CALM_S_MAX", 200.0)
    assert "not in court ['node" in broken(rounds=3, lying_node="random-update")


@pytest.mark.slow
def test_an_epoch_that_is_trained_before_it_is_paid_for_is_found(monkeypatch):
    monkeypatch.setattr(RunSpec, "epoch_price", lambda _spec, _epoch: 1)
    assert "the escrow has no money for its epoch" in broken(rounds=4, topped_s=25.0)


@pytest.mark.slow
def test_a_known_answer_task_that_its_node_may_not_show_is_found(monkeypatch):
    monkeypatch.setattr("assay.protocol.auditing.audits.may_show_known_answer", lambda *_: False)
    assert "an honest node is banned" in broken(rounds=6, has_known_answers=True)


@pytest.mark.slow
def test_a_seat_that_is_not_handed_over_is_found(monkeypatch):
    monkeypatch.setattr(Rotation, "has_cause", lambda *_: False)
    assert "disqualified are ()" in broken(rounds=10, resigns_s=1.0)


@pytest.mark.slow
def test_a_verifier_that_is_paid_too_little_is_found(monkeypatch):
    monkeypatch.setattr("assay.ledger.settlement.payouts.VERDICT_WEIGHT", 5)
    assert "pays" in broken(rounds=6, has_known_answers=True)


@pytest.mark.slow
def test_more_nodes_than_seats_are_found(monkeypatch):
    monkeypatch.setattr(RunState, "free_seats", property(lambda _: 2))
    assert "6 nodes have 5 seats" in broken(seed=1, rounds=8, joins_s=1.0)


@pytest.mark.slow
def test_draws_without_the_drand_round_that_was_named_are_found(monkeypatch):
    monkeypatch.setattr("assay.protocol.state_transition.randomness", lambda _signature: NO_DIGEST)
    assert "drawn" in broken(has_drand=True)


@pytest.mark.slow
def test_an_accusation_that_opens_no_dispute_is_found(monkeypatch):
    monkeypatch.setattr("assay.protocol.auditing.audits.ADVERSE", ())
    plan = {"rounds": 3, "lying_node": "other-message"}
    assert any("is accused, and nobody disputes it" in broken(seed, **plan) for seed in range(4))


@pytest.mark.slow
def test_an_auditor_that_takes_over_a_round_late_is_found(monkeypatch):
    sound = rules.may_commit_verdict
    monkeypatch.setattr(
        rules, "may_commit_verdict", lambda spec, audit, verifier, at: sound(spec, audit, verifier, at - 1)
    )
    assert "may be judged by" in broken()


@pytest.mark.slow
def test_windows_that_overlap_what_is_held_out_are_found(monkeypatch):
    monkeypatch.setattr(RunSpec, "window_tokens", property(lambda spec: spec.model.context))
    # Roots that were kept are of other windows, and those of these are to be kept for nobody.
    monkeypatch.setattr(commits, "_assigned", cache(commits._assigned.__wrapped__))
    assert "over other windows than are drawn for it" in broken()


@pytest.mark.slow
def test_a_step_that_a_leader_clears_by_few_verdicts_is_found(monkeypatch):
    monkeypatch.setattr(rules, "_are_revealed", lambda _audit: True)
    said = (broken(seed, rounds=4, lying_verifier="inventor") for seed in range(9, 11))
    assert any("is cleared while verdicts about it are shut" in one for one in said)


@pytest.mark.slow
def test_an_opening_that_is_overdue_for_longer_than_agreed_is_found(monkeypatch):
    sound = rules._awaited
    monkeypatch.setattr(
        rules, "_awaited", lambda audit, now, at, time_s, **more: sound(audit, now, at, time_s - 1, **more)
    )
    assert "is overdue, and its time is over" in broken(rounds=4, lying_node="withhold-opening")


@pytest.mark.slow
def test_a_leader_that_is_away_and_waited_for_is_found(monkeypatch):
    sound = follow.on_tick
    patient = "assay.verifier.consensus.machine.on_tick"
    monkeypatch.setattr(patient, lambda state, tick, out: sound(state, replace(tick, away=frozenset()), out))
    assert "gives up iteration" in broken(rounds=4, lying_verifier="silent")


@pytest.mark.slow
def test_votes_that_are_never_forgotten_are_found(monkeypatch):
    sound = follow.pruned
    monkeypatch.setattr(follow, "pruned", lambda state: replace(sound(state), votes=state.votes))
    assert "remembers votes of iterations" in broken()


@pytest.mark.slow
def test_results_that_nobody_pushes_are_found(monkeypatch):
    monkeypatch.setattr("assay.verifier.service.delivery.receivers", lambda *_: [])
    assert "pushes nothing of round" in broken()


@pytest.mark.slow
def test_pushes_that_nobody_can_use_are_found(monkeypatch):
    monkeypatch.setattr(
        "assay.participant.pushes.BlobPiece", lambda **part: BlobPiece(**{**part, "offset": 1})
    )
    assert "pushes from byte 1 on" in broken()


@pytest.mark.slow
def test_updates_that_are_deleted_too_early_are_found(monkeypatch):
    monkeypatch.setattr("assay.verifier.service.process.rounds_behind", lambda _spec: 0)
    assert "is deleted in" in broken(rounds=6)


@pytest.mark.slow
def test_steps_that_are_too_large_for_their_time_are_found(monkeypatch):
    most = "assay.node.trainer.step_tokens"
    monkeypatch.setattr(most, lambda spec, *_: spec.most_tokens_per_step)
    assert "for which there is no time" in broken(has_sizes=True)


@pytest.mark.slow
def test_a_step_that_is_found_true_and_stays_open_is_found(monkeypatch):
    sound = rules._closed

    def closed(audit, ruling, now):
        is_early = ruling is AuditStatus.PASSED and now < audit.round + 7
        return audit if is_early else sound(audit, ruling, now)

    monkeypatch.setattr(rules, "_closed", closed)
    assert "is found true by all that are wanted, and still open" in broken()


@pytest.mark.slow
def test_a_draw_that_comes_long_after_its_drand_round_is_found(monkeypatch):
    late = "assay.verifier.service.drand_client.released_s"
    monkeypatch.setattr(late, lambda spec, number: released_s(spec, number) + 2)
    assert "after the drand rounds for which they wait" in broken(has_drand=True)


@pytest.mark.slow
def test_a_node_that_tells_its_operator_of_another_s_step_is_found(monkeypatch):
    other = "tests.simulation.promises.round_line"
    monkeypatch.setattr(other, lambda *given: {**round_line(*given), "step": "accepted"})
    assert "tells its operator of round" in broken()


@pytest.mark.slow
def test_keys_in_an_open_folder_are_found_by_whoever_is_not_told(monkeypatch):
    monkeypatch.setattr("assay.participant.keys.private_files._check_mode", lambda *_: None)
    assert "in a folder that others may enter, and nobody says so" in broken()


@pytest.mark.slow
def test_a_list_of_tasks_that_no_manifest_carries_is_found(monkeypatch):
    monkeypatch.setattr("assay.protocol.membership.SAID_ROUNDS", -1)
    assert "no manifest carries TASKS of" in broken(rounds=6, has_known_answers=True, topped_s=25.0)


@pytest.mark.slow
@pytest.mark.parametrize("own", [1, 4])
def test_nodes_train_on_data_that_only_they_have_and_every_promise_holds(own):
    assert broken(rounds=3, own=own) == ""
