"""Attacks: each is a legal message, says the same again for the same seed, and does what it is named for."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from assay.protocol.errors import MalformedMessage
from assay.protocol.params import BLOCK_SIZE, Values
from assay.simulation.attacks import catalogue as attacks
from assay.simulation.attacks.adaptive import (
    FRONT_SHARE,
    SLEEP_ROUNDS,
    adaptive,
    evasive,
    front_runner,
    sleeper,
)
from assay.simulation.attacks.scene import Foresight, Scene
from assay.testing.members import a_digest, peer
from assay.testing.specs import a_rule, a_spec
from assay.training.codec.wire import Update, decode_update, encode_update
from assay.training.layout import Layout
from assay.verifier.aggregation.reputation import Reputation

BLOCKS, K, LIARS = 9, 6, 2
HONEST = tuple(peer(f"honest {n}") for n in range(5))
OWN = tuple(peer(f"liar {n}") for n in range(LIARS))
LAYOUT = Layout(("weight",), ((192, 192),))  # 9 blocks
ATTACKS = [attack for name, attack in attacks.ATTACKS.items() if name != "none"]
BLIND = [attack for attack in ATTACKS if attack not in (adaptive,)]
every_attack = pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)


def an_update(seed: int, *, span: int = 60) -> Update:
    rng = np.random.default_rng(seed)
    blocks = np.flatnonzero(rng.random(BLOCKS) < 0.9)
    index = np.array([np.sort(rng.choice(span, K, replace=False)) for _ in blocks], np.int64)
    return Update(blocks, index, rng.choice(np.array([-1, 1], np.int8), index.shape))


def a_loud_update(seed: int) -> Update:
    """Levels of int8, with a scale per block."""
    quiet = an_update(seed)
    rng = np.random.default_rng(seed)
    mantissa = rng.integers(128, 256, len(quiet.blocks_B))
    level = quiet.value_BK.astype(np.int32) * rng.integers(0, 128, quiet.value_BK.shape, np.int32)
    level[:, 0] = 127
    value = level * mantissa[:, None].astype(np.int32)
    return Update(quiet.blocks_B, quiet.index_BK, value, rng.integers(-30, -20, len(mantissa)), mantissa)


def a_loud_scene(seed: int = 0) -> Scene:
    scene = a_scene(seed)
    return replace(
        scene,
        honest=[a_loud_update(seed + n) for n in range(5)],
        own=[a_loud_update(seed + 100 + n) for n in range(LIARS)],
        foresight=a_foresight(seed, values=Values.INT8),
    )


def a_foresight(seed: int, **choices: object) -> Foresight:
    rng = np.random.default_rng(seed)
    return Foresight(
        run=a_spec(rule=a_rule(k=K, **choices)),
        layout=LAYOUT,
        parent=a_digest("parent"),
        f=LIARS,
        reputation=Reputation(),
        honest=HONEST,
        own=OWN,
        unsent_NC={one: rng.standard_normal((BLOCKS, BLOCK_SIZE), np.float32) for one in (*HONEST, *OWN)},
    )


def a_scene(seed: int = 0) -> Scene:
    direction = np.random.default_rng(seed).standard_normal((BLOCKS, BLOCK_SIZE)).astype(np.float32)
    return Scene(
        honest=[an_update(seed + n) for n in range(5)],
        own=[an_update(seed + 100 + n) for n in range(LIARS)],
        block_count=BLOCKS,
        k=K,
        seed=seed,
        direction_NC=direction,
        foresight=a_foresight(seed),
    )


def dense(update: Update) -> np.ndarray:
    values = np.zeros((BLOCKS, BLOCK_SIZE))
    values[update.blocks_B[:, None], update.index_BK] = update.value_BK
    return values


def honest_sum(scene: Scene) -> np.ndarray:
    return np.sum([dense(update) for update in scene.honest], axis=0)


@every_attack
@pytest.mark.parametrize("seed", range(3))
def test_every_liar_sends_a_legal_update(attack, seed):
    sent = attack(a_scene(seed))

    assert len(sent) == LIARS
    for update in sent:
        raw = encode_update(update, BLOCKS, K)
        again = decode_update(raw, BLOCKS, K)
        assert encode_update(again, BLOCKS, K) == raw
        assert np.array_equal(dense(again), dense(update))


@every_attack
@pytest.mark.parametrize("seed", range(3))
def test_every_liar_sends_a_legal_update_on_a_wire_with_amplitudes(attack, seed):
    sent = attack(a_loud_scene(seed))

    assert len(sent) == LIARS
    for update in sent:
        raw = encode_update(update, BLOCKS, K, Values.INT8)
        again = decode_update(raw, BLOCKS, K, Values.INT8)
        assert encode_update(again, BLOCKS, K, Values.INT8) == raw
        assert np.array_equal(dense(again), dense(update))
        assert np.array_equal(again.exponent_B, update.exponent_B)


def test_the_largest_that_can_be_sent_is_below_sixteen():
    for update in attacks.blow_up(a_loud_scene()):
        loudest = np.abs(update.value_BK).max(axis=1) * 2.0**update.exponent_B

        assert np.all(loudest < 16)
    before = max((np.abs(u.value_BK).max(axis=1) * 2.0**u.exponent_B).max() for u in a_loud_scene().honest)
    assert (
        max(
            (np.abs(u.value_BK).max(axis=1) * 2.0**u.exponent_B).max()
            for u in attacks.blow_up(a_loud_scene())
        )
        > before
    )


@pytest.mark.parametrize("values", [Values.INT8, Values.INT16, Values.E3M0, Values.TWO_BIT, Values.SIGN_MEAN])
def test_no_bytes_decode_to_what_is_not_finite_or_beyond_the_window(values):
    """The attack with NaN and Inf: a random or a largest scale is refused, or is a number below 16."""
    update = attacks.sign_flip(a_loud_scene())[0]
    level = np.sign(update.value_BK).astype(np.int32)
    level[level == 0] = 1
    raw = bytearray(
        encode_update(
            replace(update, value_BK=level * update.mantissa_B[:, None].astype(np.int32)), BLOCKS, K, values
        )
    )
    head = -(-BLOCKS // 8)
    refused = 0
    for high in range(256):
        raw[head + 1] = high
        try:
            again = decode_update(bytes(raw), BLOCKS, K, values)
        except MalformedMessage:
            refused += 1
            continue
        assert np.abs(again.value_BK * 2.0 ** again.exponent_B[:, None]).max() < 16
    assert refused > 100


@every_attack
def test_the_same_scene_gives_the_same_lies_and_stays_as_it_was(attack):
    scene = a_scene(1)

    first = attack(scene)

    assert [u.value_BK.tolist() for u in attack(a_scene(1))] == [u.value_BK.tolist() for u in first]
    for mine, fresh in zip((*scene.honest, *scene.own), (*a_scene(1).honest, *a_scene(1).own), strict=True):
        assert np.array_equal(dense(mine), dense(fresh))


def test_inner_product_points_against_the_honest_mean():
    scene = a_scene(2)

    for update in attacks.inner_product(scene):
        assert (dense(update) * honest_sum(scene)).sum() < 0
        assert np.all(dense(update) * honest_sum(scene) <= 0)


def test_ghosts_meet_no_honest_node():
    scene = a_scene(3)
    crowded = replace(scene, honest=[*scene.honest, attacks.ghost(scene)[0]])  # where ghosts would be

    taken = np.any([dense(update) != 0 for update in crowded.honest], axis=0)
    for update in attacks.ghost(crowded):
        assert not (taken & (dense(update) != 0)).any()


def test_split_liars_share_no_index():
    sent = attacks.split(a_scene(4))

    assert not any(((dense(a) != 0) & (dense(b) != 0)).any() for a, b in combinations(sent, 2))


def test_a_single_block_liar_is_honest_everywhere_else():
    scene = a_scene(5)

    for own, update in zip(scene.own, attacks.single_block(scene), strict=True):
        assert np.array_equal(dense(own)[:-1], dense(update)[:-1])
        assert not np.array_equal(dense(own)[-1], dense(update)[-1])


def test_free_riders_copy_different_nodes_and_mimics_the_same():
    scene = a_scene(6)

    riders, mimics = attacks.free_rider(scene), attacks.mimic(scene)

    assert not np.array_equal(dense(riders[0]), dense(riders[1]))
    assert np.array_equal(dense(mimics[0]), dense(mimics[1]))


def test_an_evasive_liar_contradicts_nobody():
    scene = a_scene(8)
    total = honest_sum(scene)

    for update in evasive(scene):
        mine = dense(update)
        assert np.all((mine * np.sign(total))[total != 0] >= 0)
        assert np.any((mine != 0) & (total != 0))
        lies = (mine != 0) & (total == 0)
        assert np.all(mine[lies] == -np.sign(scene.direction_NC)[lies])


def test_a_front_runner_helps_more_often_than_it_hurts():
    scene = a_scene(9)

    first, second = front_runner(scene)

    along = dense(first) * np.sign(scene.direction_NC)
    assert (along > 0).sum() == round(K * FRONT_SHARE) * len(first.blocks_B)
    assert (along < 0).sum() == (K - round(K * FRONT_SHARE)) * len(first.blocks_B)
    assert not (np.any(dense(first) * dense(second)) or np.any(dense(first) * honest_sum(scene)))


def test_a_sleeper_is_honest_first_and_then_adaptive():
    asleep, awake = a_scene(), replace(a_scene(), round=SLEEP_ROUNDS)

    assert sleeper(asleep) == tuple(asleep.own)
    for mine, lie in zip(sleeper(awake), adaptive(awake), strict=True):
        assert np.array_equal(dense(mine), dense(lie))


def test_flipped_labels_flip_back():
    tokens = np.array([[0, 5, 255]])

    assert attacks.flipped_labels(tokens, 256).tolist() == [[255, 250, 0]]


def test_who_needs_unsaid_coefficients_says_so_on_a_dense_wire():
    with pytest.raises(ValueError, match="too few"):
        evasive(replace(a_scene(), k=BLOCK_SIZE))


def progress(scene: Scene, sent: tuple[Update, ...]) -> float:
    """Inner product of the direction with the mean over senders, honest and liars."""
    everyone = [dense(update) for update in (*scene.honest, *sent)]
    count = np.maximum(np.count_nonzero(everyone, axis=0), 1)
    return float((scene.direction_NC * np.sum(everyone, axis=0) / count).sum())


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("other", BLIND, ids=lambda a: a.__name__)
def test_no_other_attack_costs_the_default_rule_more_progress(other, seed):
    scene = a_scene(seed)

    assert progress(scene, adaptive(scene)) <= progress(scene, other(scene)) + 1e-6


def test_the_adaptive_attack_is_the_optimum_of_a_small_block():
    """Two liars with one vote each, all choices tried."""
    rng = np.random.default_rng(7)
    direction = np.zeros((1, BLOCK_SIZE), np.float32)
    direction[0, :5] = [3, -2.9, 2.5, 0.4, -0.2]
    for _ in range(20):
        honest = [
            Update(np.array([0]), rng.integers(0, 4, (1, 1)), rng.choice(np.array([-1, 1], np.int8), (1, 1)))
            for _ in range(3)
        ]
        scene = Scene(honest=honest, own=honest[:2], block_count=1, k=1, seed=0, direction_NC=direction)

        found = _progress_of(scene, adaptive(scene))

        votes = [
            Update(np.array([0]), np.array([[i]]), np.array([[s]], np.int8))
            for i in range(5)
            for s in (-1, 1)
        ]
        best = min(_progress_of(scene, (a, b)) for a in votes for b in votes)
        assert found == pytest.approx(best)


def _progress_of(scene: Scene, sent: tuple[Update, ...]) -> float:
    total, count = np.zeros(BLOCK_SIZE), np.zeros(BLOCK_SIZE)
    for update in (*scene.honest, *sent):
        total[update.index_BK] += update.value_BK
        count[update.index_BK] += 1
    return float((scene.direction_NC[0] * total / np.maximum(count, 1)).sum())


def test_the_adaptive_attack_asks_for_its_direction():
    with pytest.raises(ValueError, match="direction"):
        adaptive(replace(a_scene(), direction_NC=None))
