"""Attacks: the updates that Byzantine nodes send, as legal updates, by name.

Room: simulation (pure, seeded). What attackers know and the wire's limits: scene.py. Attacks that know the
rule: adaptive.py; that compute it: searched.py. Names as in byzfl where it has the attack. A value-domain
attack is sent as the k largest coefficients of its update, ties to the lower index.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from assay.protocol.params import BLOCK_SIZE, Values
from assay.simulation.attacks.adaptive import adaptive, evasive, front_runner, sleeper
from assay.simulation.attacks.scene import (
    Scene,
    all_send,
    honest_count,
    honest_moments,
    honest_sum,
    is_live,
    joined,
    strongest,
    update_at,
)
from assay.simulation.attacks.searched import banker, front_banker, optimised_little_is_enough
from assay.training.codec.values import exponent_window
from assay.training.codec.wire import Update
from assay.training.data.mask import visible

Attack = Callable[[Scene], tuple[Update, ...]]
ALIE_DEVIATIONS = 1.5
SINGLE_BLOCK_SHARE = 8  # one block in this many is attacked, at least one


def sign_flip(scene: Scene) -> tuple[Update, ...]:
    """Each attacker sends the opposite of its honest update (Allen-Zhu et al., arXiv:2012.14368)."""
    return tuple(replace(own, value_BK=-own.value_BK) for own in scene.own)


def inner_product(scene: Scene) -> tuple[Update, ...]:
    """All send the opposite of the honest mean (IPM; Xie, Koyejo & Gupta, arXiv:1903.03936)."""
    return all_send(scene, -honest_sum(scene))


def little_is_enough(scene: Scene) -> tuple[Update, ...]:
    """All send the mean less 1.5 deviations (ALIE; Baruch, Baruch & Goldberg, arXiv:1902.06156)."""
    mean, deviation = honest_moments(scene)
    return all_send(scene, mean - ALIE_DEVIATIONS * deviation)


def mimic(scene: Scene) -> tuple[Update, ...]:
    """All copy one honest node, to outvote the others (Karimireddy et al., arXiv:2006.09365)."""
    victim = scene.honest[scene.seed % len(scene.honest)]
    return (victim,) * len(scene.own)


def free_rider(scene: Scene) -> tuple[Update, ...]:
    """Each attacker copies another honest node's update, to be paid without work."""
    return tuple(scene.honest[(scene.seed + i) % len(scene.honest)] for i in range(len(scene.own)))


def gaussian(scene: Scene) -> tuple[Update, ...]:
    """Each attacker sends the k largest of normal noise: uniform indices and signs."""
    rng = np.random.default_rng(scene.seed)
    shape = (scene.block_count, BLOCK_SIZE)
    return tuple(strongest(scene, rng.standard_normal(shape)) for _ in scene.own)


def ghost(scene: Scene) -> tuple[Update, ...]:
    """All send the same random signs on indices that no honest node sends, so nobody contradicts them."""
    noise = np.random.default_rng(scene.seed).standard_normal((scene.block_count, BLOCK_SIZE))
    is_free = honest_count(scene) == 0
    return all_send(scene, np.where(is_free, noise, noise * 1e-6))


def single_block(scene: Scene) -> tuple[Update, ...]:
    """Honest in most blocks, inner-product manipulation in the last eighth: hidden from whole norms."""
    first = scene.block_count - max(1, scene.block_count // SINGLE_BLOCK_SHARE)
    return tuple(joined(own, lie, first) for own, lie in zip(scene.own, inner_product(scene), strict=True))


def split(scene: Scene) -> tuple[Update, ...]:
    """The attackers flip disjoint parts of the k * f largest honest coefficients: no vote is spent twice."""
    total = honest_sum(scene)
    order = np.argsort(-np.abs(total), axis=1, kind="stable")[:, : scene.k * len(scene.own)]
    blocks = np.flatnonzero(is_live(scene))
    updates = []
    for liar in range(len(scene.own)):
        index_BK = order[blocks, liar :: len(scene.own)]
        updates.append(
            update_at(scene, blocks, index_BK, -np.take_along_axis(total[blocks], index_BK, axis=1))
        )
    return tuple(updates)


def label_flip(scene: Scene) -> tuple[Update, ...]:
    """Honest work on `flipped_labels`: the attackers' own updates."""
    return tuple(scene.own)


def flipped_labels(tokens: NDArray[np.int64], vocabulary: int) -> NDArray[np.int64]:
    """Every token mirrored in the vocabulary: the data of a label flip."""
    flipped: NDArray[np.int64] = vocabulary - 1 - visible(tokens)
    return flipped


def blow_up(scene: Scene) -> tuple[Update, ...]:
    """Inner-product manipulation with the largest amplitude of the wire; no effect on a sign wire."""
    highest = exponent_window(Values.INT16)[1]
    return tuple(
        update
        if update.exponent_B is None
        else replace(update, exponent_B=np.full_like(update.exponent_B, highest))
        for update in inner_product(scene)
    )


ATTACKS: Mapping[str, Attack] = {
    "none": lambda scene: tuple(scene.own),
    "sign-flip": sign_flip,
    "inner-product": inner_product,
    "little-is-enough": little_is_enough,
    "mimic": mimic,
    "free-rider": free_rider,
    "gaussian": gaussian,
    "ghost": ghost,
    "single-block": single_block,
    "split": split,
    "label-flip": label_flip,
    "blow-up": blow_up,
    "adaptive": adaptive,
    "evasive": evasive,
    "front-runner": front_runner,
    "sleeper": sleeper,
    "optimised-little-is-enough": optimised_little_is_enough,
    "banker": banker,
    "front-banker": front_banker,
}
FORESEEING = ("front-banker", "banker", "optimised-little-is-enough")  # they need `foresight`
KNOWING = {*FORESEEING, "adaptive", "evasive", "front-runner", "sleeper"}  # they need `direction_NC`
