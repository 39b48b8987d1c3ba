"""Words on stake in the fold: whose count, how often they come, and what they do to a node's audits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from assay.participant.links import check_place
from assay.protocol.errors import MalformedMessage
from assay.protocol.messages import Backing, SignedBacking
from assay.protocol.params import PPM
from assay.protocol.state_transition import BACKING_PAUSE, BACKING_ROUNDS, advance, may_back
from assay.protocol.types import Digest, PeerId, RoundId, Signature
from tests.protocol.chains import NODES, RUN_ID, VERIFIERS, a_history, a_manifest, grow

NODE, OTHER = NODES[:2]


def a_word(history, verifier, is_whole=False, node=NODE, **changes):
    told = {
        "run_id": RUN_ID, "round": RoundId(int(history.round) - 1), "node": node, "verifier": verifier,
        "is_whole": is_whole,
    }  # fmt: skip
    return SignedBacking(backing=Backing(**{**told, **changes}), signature=Signature(bytes(64)))


def carrying(history, *words):
    ordered = sorted(words, key=lambda one: (one.backing.node, one.backing.verifier))
    return replace(a_manifest(history), backings=tuple(ordered))


def said(history, *verifiers, is_whole=False, node=NODE):
    """The history after a manifest in which these verifiers say this of a node."""
    return advance(history, carrying(history, *(a_word(history, v, is_whole, node) for v in verifiers)))


def trusted(**audit):
    """A history in which nodes have audits behind them and are past probation."""
    history = grow(a_history(rounds=400, probation=1, floor_ppm=50_000, **audit), 2)
    nodes = {peer: replace(record, clean=10) for peer, record in history.nodes.items()}
    return replace(history, nodes=nodes)


def test_more_than_f_verifiers_who_saw_stake_leave_put_every_step_of_the_node_under_audit():
    history = trusted()
    low = history.rate_ppm(NODE)
    assert low < PPM

    one = said(history, VERIFIERS[0])
    assert one.is_backed(NODE) and one.rate_ppm(NODE) == low
    two = said(one, VERIFIERS[1])
    assert not two.is_backed(NODE) and two.rate_ppm(NODE) == PPM
    assert two.nodes[NODE].clean == 0
    assert two.is_backed(OTHER) and two.rate_ppm(OTHER) == low
    assert two.nodes[OTHER].clean == 10


def test_stake_that_is_back_ends_it_on_probation():
    history = said(trusted(), *VERIFIERS[:2])
    later = grow(history, BACKING_PAUSE)
    assert later.rate_ppm(NODE) == PPM

    back = said(later, *VERIFIERS[:2], is_whole=True)

    assert back.is_backed(NODE)
    assert back.rate_ppm(NODE) == PPM  # nothing is known of it any more
    assert back.nodes[NODE].clean < 10


def test_a_word_comes_when_something_changed_and_not_too_soon():
    history = trusted()
    assert not may_back(history, a_word(history, VERIFIERS[0], is_whole=True).backing)
    assert may_back(history, a_word(history, VERIFIERS[0]).backing)
    told = said(history, VERIFIERS[0])
    assert not may_back(told, a_word(told, VERIFIERS[0]).backing)
    soon = grow(told, BACKING_PAUSE - 2)
    assert not may_back(soon, a_word(soon, VERIFIERS[0], is_whole=True).backing)
    then = grow(soon, 1)
    assert may_back(then, a_word(then, VERIFIERS[0], is_whole=True).backing)
    assert not may_back(then, a_word(then, VERIFIERS[0]).backing)


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
    history = trusted()
    word = a_word(history, **{"verifier": VERIFIERS[0], **changes})
    with pytest.raises(MalformedMessage, match="which may not come now"):
        check_place(history, carrying(history, word))
    check_place(history, carrying(history, a_word(history, VERIFIERS[0])))


def test_a_word_waits_for_a_manifest_so_long_and_not_longer():
    history = trusted()
    word = a_word(history, VERIFIERS[0]).backing
    assert may_back(grow(history, BACKING_ROUNDS - 1), word)
    assert not may_back(grow(history, BACKING_ROUNDS), word)


def test_words_ascend_and_come_once_each():
    history = trusted()
    words = sorted((a_word(history, v) for v in VERIFIERS[:2]), key=lambda one: one.backing.verifier)
    for wrong in (words[::-1], [words[0], words[0]]):
        with pytest.raises(MalformedMessage, match="must ascend"):
            check_place(history, replace(a_manifest(history), backings=tuple(wrong)))


def test_nothing_is_said_of_a_node_that_is_barred():
    history = trusted()
    barred = replace(history, nodes={**history.nodes, NODE: replace(history.nodes[NODE], fault_round=1)})
    assert not may_back(barred, a_word(barred, VERIFIERS[0]).backing)
