"""Words on stake in the fold: whose count, how often they come, and what they do to a node's audits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from assay.participant.links import check_place
from assay.protocol.errors import MalformedMessage
from assay.protocol.messages import SignedStakeReport, StakeReport
from assay.protocol.params import PPM
from assay.protocol.permitted import STAKE_REPORT_PAUSE, STAKE_REPORT_ROUNDS, may_report_stake
from assay.protocol.state_transition import advance
from assay.protocol.types import Digest, PeerId, RoundId, Signature
from assay.testing.members import NODES, RUN_ID, VERIFIERS
from assay.testing.run import a_manifest, a_start, grow

NODE, OTHER = NODES[:2]


def a_word(run_state, verifier, is_whole=False, node=NODE, **changes):
    told = {
        "run_id": RUN_ID, "round": RoundId(int(run_state.round) - 1), "node": node, "verifier": verifier,
        "is_whole": is_whole,
    }  # fmt: skip
    return SignedStakeReport(stake_report=StakeReport(**{**told, **changes}), signature=Signature(bytes(64)))


def carrying(run_state, *words):
    ordered = sorted(words, key=lambda one: (one.stake_report.node, one.stake_report.verifier))
    return replace(a_manifest(run_state), stake_reports=tuple(ordered))


def said(run_state, *verifiers, is_whole=False, node=NODE):
    """The history after a manifest in which these verifiers say this of a node."""
    return advance(run_state, carrying(run_state, *(a_word(run_state, v, is_whole, node) for v in verifiers)))


def trusted(**audit):
    """A history in which nodes have audits behind them and are past probation."""
    run_state = grow(a_start(rounds=400, probation=1, floor_ppm=50_000, **audit), 2)
    nodes = {peer: replace(record, clean=10) for peer, record in run_state.nodes.items()}
    return replace(run_state, nodes=nodes)


def test_more_than_f_verifiers_who_saw_stake_leave_put_every_step_of_the_node_under_audit():
    run_state = trusted()
    low = run_state.rate_ppm(NODE)
    assert low < PPM

    one = said(run_state, VERIFIERS[0])
    assert one.has_whole_stake(NODE) and one.rate_ppm(NODE) == low
    two = said(one, VERIFIERS[1])
    assert not two.has_whole_stake(NODE) and two.rate_ppm(NODE) == PPM
    assert two.nodes[NODE].clean == 0
    assert two.has_whole_stake(OTHER) and two.rate_ppm(OTHER) == low
    assert two.nodes[OTHER].clean == 10


def test_stake_that_is_back_ends_it_on_probation():
    run_state = said(trusted(), *VERIFIERS[:2])
    later = grow(run_state, STAKE_REPORT_PAUSE)
    assert later.rate_ppm(NODE) == PPM

    back = said(later, *VERIFIERS[:2], is_whole=True)

    assert back.has_whole_stake(NODE)
    assert back.rate_ppm(NODE) == PPM  # nothing is known of it any more
    assert back.nodes[NODE].clean < 10


def test_a_word_comes_when_something_changed_and_not_too_soon():
    run_state = trusted()
    assert not may_report_stake(run_state, a_word(run_state, VERIFIERS[0], is_whole=True).stake_report)
    assert may_report_stake(run_state, a_word(run_state, VERIFIERS[0]).stake_report)
    told = said(run_state, VERIFIERS[0])
    assert not may_report_stake(told, a_word(told, VERIFIERS[0]).stake_report)
    soon = grow(told, STAKE_REPORT_PAUSE - 2)
    assert not may_report_stake(soon, a_word(soon, VERIFIERS[0], is_whole=True).stake_report)
    then = grow(soon, 1)
    assert may_report_stake(then, a_word(then, VERIFIERS[0], is_whole=True).stake_report)
    assert not may_report_stake(then, a_word(then, VERIFIERS[0]).stake_report)


@pytest.mark.parametrize(
    "changes",
    [
        {"run_id": Digest(b"o" * 32)},
        {"verifier": PeerId(b"s" * 32)},
        {"verifier": NODES[0]},
        {"node": PeerId(b"s" * 32)},
        {"node": VERIFIERS[0]},
        {"round": RoundId(2)},
        {"round": RoundId(99)},
    ],
)
def test_a_word_of_a_stranger_or_on_a_stranger_or_of_another_time_is_refused(changes):
    run_state = trusted()
    word = a_word(run_state, **{"verifier": VERIFIERS[0], **changes})
    with pytest.raises(MalformedMessage, match="not admissible now"):
        check_place(run_state, carrying(run_state, word))
    check_place(run_state, carrying(run_state, a_word(run_state, VERIFIERS[0])))


def test_a_word_waits_for_a_manifest_so_long_and_not_longer():
    run_state = trusted()
    word = a_word(run_state, VERIFIERS[0]).stake_report
    assert may_report_stake(grow(run_state, STAKE_REPORT_ROUNDS - 1), word)
    assert not may_report_stake(grow(run_state, STAKE_REPORT_ROUNDS), word)


def test_words_ascend_and_come_once_each():
    run_state = trusted()
    words = sorted((a_word(run_state, v) for v in VERIFIERS[:2]), key=lambda one: one.stake_report.verifier)
    for wrong in (words[::-1], [words[0], words[0]]):
        with pytest.raises(MalformedMessage, match="must ascend"):
            check_place(run_state, replace(a_manifest(run_state), stake_reports=tuple(wrong)))


def test_nothing_is_said_of_a_node_that_is_barred():
    run_state = trusted()
    banned = replace(
        run_state, nodes={**run_state.nodes, NODE: replace(run_state.nodes[NODE], fault_round=1)}
    )
    assert not may_report_stake(banned, a_word(banned, VERIFIERS[0]).stake_report)
