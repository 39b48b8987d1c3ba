"""Attacks that compute the rule: what they foresee is what verifiers find, and what they send does most."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from assay.protocol.params import BLOCK_SIZE
from assay.simulation.attacks import searched
from assay.simulation.attacks.adaptive import adaptive
from assay.simulation.attacks.catalogue import little_is_enough
from assay.simulation.attacks.scene import Foresight, Scene, joined
from assay.simulation.attacks.searched import (
    SHARES,
    banker,
    front_banker,
    heard,
    optimised_little_is_enough,
    progress,
    scores_later,
    scores_now,
)
from assay.testing.members import a_digest, peer
from assay.testing.specs import a_rule, a_spec
from assay.training.codec.wire import Update
from assay.training.layout import Layout
from assay.verifier.aggregation.combine import combine
from assay.verifier.aggregation.reputation import Reputation, admitted, scores_of

BLOCKS, K, LIARS, SPAN = 9, 12, 2, 200
HONEST = tuple(peer(f"honest {n}") for n in range(5))
OWN = tuple(peer(f"liar {n}") for n in range(LIARS))
LAYOUT = Layout(("weight",), ((192, 192),))
RUN = a_spec(rule=a_rule(k=K))


def an_update(seed: int, direction_NC: np.ndarray) -> Update:
    """Places among the first few, with three of four signs along the direction."""
    rng = np.random.default_rng(seed)
    index = np.sort(np.argsort(rng.random((BLOCKS, SPAN)), axis=1)[:, :K], axis=1)
    wrong = np.where(rng.random(index.shape) < 0.25, -1, 1)
    sign = np.sign(np.take_along_axis(direction_NC, index, axis=1)) * wrong
    return Update(np.arange(BLOCKS), index, sign.astype(np.int8))


def a_scene(number: int, reputation: Reputation, *, seed: int = 0) -> Scene:
    """A round of training whose direction stays the same."""
    rng = np.random.default_rng(seed)
    direction = rng.standard_normal((BLOCKS, BLOCK_SIZE)).astype(np.float32)
    direction[:, SPAN:] *= 0.01
    first = 1000 * (100 * seed + number)
    foresight = Foresight(
        run=RUN,
        layout=LAYOUT,
        parent=a_digest(number),
        f=LIARS,
        reputation=reputation,
        honest=HONEST,
        own=OWN,
        unsent_NC={
            one: direction + rng.standard_normal(direction.shape, np.float32) for one in (*HONEST, *OWN)
        },
    )
    return Scene(
        honest=[an_update(first + n, direction) for n in range(len(HONEST))],
        own=[an_update(first + 100 + n, direction) for n in range(LIARS)],
        block_count=BLOCKS,
        k=K,
        seed=number,
        direction_NC=direction,
        round=number,
        foresight=foresight,
    )


def rounds(attack, count: int) -> Iterator[tuple[Scene, tuple[Update, ...], Reputation]]:
    """Each round's scene, what the attackers send, and the reputation that a verifier has after it."""
    reputation = Reputation()
    for number in range(count):
        scene = a_scene(number, reputation)
        sent = attack(scene)
        updates = dict(zip((*HONEST, *OWN), (*scene.honest, *sent), strict=True))
        reputation = combine(RUN, LAYOUT, a_digest(number), LIARS, reputation, updates).reputation
        yield scene, sent, reputation


def test_optimised_little_is_enough_does_more_than_at_fixed_deviations():
    more = 0.0
    for seed in range(4):
        scene = a_scene(0, Reputation(), seed=seed)

        searched_for, plain, honest = progress(
            scene, [optimised_little_is_enough(scene), little_is_enough(scene), scene.own]
        )

        assert searched_for <= plain < honest
        more += plain - searched_for
    assert more > 0


def test_optimised_little_is_enough_looks_for_either_sign(monkeypatch):
    scene = a_scene(0, Reputation())
    mirrored = replace(scene, direction_NC=-scene.direction_NC)
    best = [progress(one, [optimised_little_is_enough(one)])[0] for one in (scene, mirrored)]
    monkeypatch.setattr(searched, "DEVIATIONS", tuple(z for z in searched.DEVIATIONS if z > 0))
    half = [progress(one, [optimised_little_is_enough(one)])[0] for one in (scene, mirrored)]

    assert all(both <= one for both, one in zip(best, half, strict=True))
    assert best != half


def test_progress_is_that_of_the_rule_which_leaves_out_whom_it_does_not_hear():
    *_, (scene, sent, _) = rounds(adaptive, 14)
    assert not any(heard(scene, scores_now(scene, sent)))

    lies, flipped = progress(scene, [sent, [replace(one, value_BK=-one.value_BK) for one in sent]])

    assert lies == flipped


@pytest.mark.parametrize("attack", [banker, front_banker])
def test_the_scores_that_a_banker_foresees_are_those_that_verifiers_find(attack):
    for scene, sent, reputation in rounds(attack, 20):
        foreseen = scores_now(scene, sent)

        assert scores_of(foreseen) == scores_of(reputation)
        counted = admitted(reputation, f=LIARS)
        assert heard(scene, foreseen) == tuple(one in counted for one in OWN)


def test_a_banker_lies_in_the_most_blocks_that_leave_it_heard():
    lied = 0
    for scene, sent, _ in rounds(banker, 20):
        lies = adaptive(scene)
        is_heard = heard(scene, scores_now(scene, scene.own))
        for liar, update in enumerate(sent):
            shares = [share for share in SHARES if is_same(update, told(scene, lies, share)[liar])]
            if not is_heard[liar]:
                continue
            lied += bool(shares)
            tries = [told(scene, lies, share) for share in SHARES]
            stays = [heard(scene, later)[liar] for later in scores_later(scene, tries)]
            assert shares == [share for share, stay in zip(SHARES, stays, strict=True) if stay][-1:]
    assert lied > 5


def test_a_banker_whom_nobody_hears_is_honest_until_it_is_heard_again():
    def liar_first(scene: Scene) -> tuple[Update, ...]:
        return adaptive(scene) if scene.round < 8 else banker(scene)

    unheard = 0
    for scene, sent, _ in rounds(liar_first, 30):
        is_heard = heard(scene, scores_now(scene, scene.own))
        for liar in range(LIARS if scene.round >= 8 else 0):
            assert is_heard[liar] or is_same(sent[liar], scene.own[liar])
            unheard += not is_heard[liar]
    assert 0 < unheard < 2 * 22


def test_a_banker_is_heard_more_often_than_whoever_lies_always():
    def heard_in(attack) -> int:
        return sum(sum(heard(scene, scores_now(scene, sent))) for scene, sent, _ in rounds(attack, 30))

    assert heard_in(adaptive) < heard_in(banker) / 2


@pytest.mark.parametrize("attack", [banker, front_banker, optimised_little_is_enough])
def test_an_attack_asks_for_what_it_computes_with(attack):
    with pytest.raises(ValueError, match="verifiers compute with"):
        attack(replace(a_scene(0, Reputation()), foresight=None))


def told(scene: Scene, lies: tuple[Update, ...], share: float) -> list[Update]:
    first = BLOCKS - round(BLOCKS * share)
    return [joined(own, lie, first) for own, lie in zip(scene.own, lies, strict=True)]


def is_same(one: Update, other: Update) -> bool:
    return np.array_equal(one.index_BK, other.index_BK) and np.array_equal(one.value_BK, other.value_BK)
