"""Standing: liars lose theirs, honest nodes keep it, colluders decide nothing, and order does not matter."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.protocol.params import BLOCK_SIZE
from assay.protocol.types import PeerId
from assay.simulation.attacks.catalogue import ATTACKS
from assay.simulation.attacks.scene import Scene
from assay.training.codec.wire import Update
from assay.verifier.aggregation.reputation import (
    PAST,
    WINDOW,
    Reputation,
    RoundAgreement,
    admitted,
    observe,
    scores_of,
)

BLOCKS, K, NODES = 4, 16, 8
TRUTH = np.random.default_rng(0).standard_normal((BLOCKS, BLOCK_SIZE)).astype(np.float32)
TRUTH[:, 600:] *= 0.05  # what training is about: some coefficients matter


def a_peer(number: int) -> PeerId:
    return PeerId(number.to_bytes(32, "big"))


def an_honest_update(seed: int) -> Update:
    """The k largest of the truth and a node's own noise: mostly others' than another node's."""
    noisy = TRUTH + np.random.default_rng(seed).standard_normal(TRUTH.shape) * 0.8
    noisy[:, 600:] = 0
    index = np.sort(np.argsort(-np.abs(noisy), axis=1)[:, :K], axis=1)
    sign = np.sign(np.take_along_axis(noisy, index, axis=1)).astype(np.int8)
    return Update(np.arange(BLOCKS), index, sign)


def flipped(update: Update) -> Update:
    return replace(update, value_BK=-update.value_BK)


def honest_round(number: int) -> dict[PeerId, Update]:
    return {a_peer(n): an_honest_update(number * NODES + n) for n in range(NODES)}


def after(rounds: int, lie=lambda number, updates: {}, start: Reputation | None = None) -> Reputation:
    """The standing after some rounds in which `lie` replaces what some nodes send."""
    reputation = start or Reputation()
    for number in range(rounds):
        updates = honest_round(number)
        reputation = observe(reputation, {**updates, **lie(number, updates)}, BLOCKS)
    return reputation


def flip(*liars: int):
    return lambda _, updates: {a_peer(n): flipped(updates[a_peer(n)]) for n in liars}


def attack(name: str, *liars: int):
    """The named attack, by liars who see everything."""

    def lie(number, updates):
        scene = Scene(
            honest=[updates[a_peer(n)] for n in range(NODES) if n not in liars],
            own=[updates[a_peer(n)] for n in liars],
            block_count=BLOCKS,
            k=K,
            seed=number,
            direction_NC=TRUTH,
            round=number,
        )
        return dict(zip((a_peer(n) for n in liars), ATTACKS[name](scene), strict=True))

    return lie


def test_honest_nodes_are_all_heard():
    for rounds in (1, 2, 5, 30):
        assert admitted(after(rounds), f=2) == tuple(a_peer(n) for n in range(NODES))


@pytest.mark.parametrize("name", ["sign-flip", "inner-product", "adaptive", "evasive"])
@pytest.mark.parametrize("liars", [(7,), (0, 5), (1, 3, 6)])
def test_liars_are_not_heard_after_a_few_rounds(name, liars):
    reputation = after(6, attack(name, *liars))

    assert admitted(reputation, f=3) == tuple(a_peer(n) for n in range(NODES) if n not in liars)


def test_a_lie_that_nobody_contradicts_in_its_round_is_found_out_later():
    """The whole point: no rule on one round can tell these from honest nodes."""
    lie = attack("evasive", 6, 7)
    updates = honest_round(0)
    everyone = {**updates, **lie(0, updates)}
    signs = np.zeros((NODES, BLOCKS, BLOCK_SIZE))
    for row, update in enumerate(everyone[a_peer(n)] for n in range(NODES)):
        signs[row][update.blocks_B[:, None], update.index_BK] = update.value_BK
    agreement = np.einsum("nbc,mbc->nm", signs, signs)

    assert agreement[6, :6].min() >= 0
    assert agreement[7, :6].min() >= 0
    assert not {a_peer(6), a_peer(7)} & set(admitted(after(6, lie), f=2))


def test_who_is_left_out_comes_back_once_borne_out_again():
    liar = after(8, flip(7))
    assert a_peer(7) not in admitted(liar, f=2)

    assert a_peer(7) in admitted(after(WINDOW + PAST, start=liar), f=2)


def test_a_newcomer_is_heard_after_half_a_window_and_not_at_once():
    reputation = Reputation()
    since = {}
    for number in range(3 * WINDOW):
        updates = honest_round(number)
        if number < WINDOW:
            del updates[a_peer(7)]
        reputation = observe(reputation, updates, BLOCKS)
        since[number] = a_peer(7) in admitted(reputation, f=2)

    assert not since[WINDOW + 2]
    assert all(since[number] for number in range(2 * WINDOW, 3 * WINDOW))


@pytest.mark.parametrize("f", [1, 2, 3])
def test_no_more_than_f_are_ever_left_out(f):
    assert len(admitted(after(8, flip(0, 1, 2)), f=f)) == NODES - f


@pytest.mark.parametrize("f", [1, 2, 3])
def test_f_colluders_can_neither_smear_an_honest_node_nor_praise_each_other(f):
    """Whatever they say, every score lies between what two honest nodes say of its node."""
    liars = range(NODES - f, NODES)
    said = honest_round(0)
    lied = {**said, **{a_peer(n): flipped(said[a_peer(0)]) for n in liars}}
    smear = {a_peer(n): flipped(said[a_peer(0)]) for n in liars}  # against node 0, for the liars

    reputation = observe(observe(Reputation(), lied, BLOCKS), {**honest_round(1), **smear}, BLOCKS)

    net_NN, scores = reputation.window[-1].net_NN, scores_of(reputation)
    for node in (0, *liars):
        words = [int(net_NN[node, other]) for other in range(NODES - f) if other != node]
        assert min(words) <= scores[a_peer(node)] <= max(words)
    assert net_NN[0, liars[0]] < min(net_NN[0, 1 : NODES - f])
    assert net_NN[liars[0], liars[0]] > max(net_NN[liars[0], : NODES - f])


@settings(deadline=None, max_examples=10)
@given(st.randoms(use_true_random=False))
def test_arrival_order_does_not_matter(shuffler: random.Random):
    first, again = Reputation(), Reputation()
    for number in range(5):
        items = list({**honest_round(number), **flip(3)(number, honest_round(number))}.items())
        first = observe(first, dict(items), BLOCKS)
        shuffler.shuffle(items)
        again = observe(again, dict(items), BLOCKS)

    assert scores_of(first) == scores_of(again)
    assert admitted(first, f=2) == admitted(again, f=2)


MANY = 20  # blocks: more than are compared at a time


def a_random_update(rng: np.random.Generator, k: int) -> Update:
    """Random signs, of some blocks."""
    blocks = np.flatnonzero(rng.random(MANY) < 0.8)
    index = np.sort(rng.random((len(blocks), BLOCK_SIZE)).argsort(axis=1)[:, :k], axis=1)
    return Update(blocks, index, rng.choice(np.array([-1, 1], np.int8), index.shape))


@pytest.mark.parametrize("k", [K, BLOCK_SIZE])
@settings(deadline=None, max_examples=10)
@given(st.integers(0, 2**32), st.integers(2, 4))
def test_nets_are_the_dense_ones(k, seed, nodes):
    rng = np.random.default_rng(seed)
    rounds = [{a_peer(n): a_random_update(rng, k) for n in range(nodes)} for _ in range(4)]
    dense = np.zeros((4, nodes, MANY, BLOCK_SIZE))
    for row, updates in enumerate(rounds):
        for peer, update in updates.items():
            dense[row, int.from_bytes(peer, "big")][update.blocks_B[:, None], update.index_BK] = (
                update.value_BK
            )
    reputation = Reputation()
    for updates in rounds[:3]:
        reputation = observe(reputation, updates, MANY)

    found = observe(reputation, rounds[3], MANY).window[-1].net_NN

    assert np.array_equal(found, np.einsum("nbc,mbc->nm", dense[:3].sum(axis=0), dense[3]))


def test_amplitudes_count_as_their_signs():
    def loud(updates: dict[PeerId, Update]) -> dict[PeerId, Update]:
        return {
            peer: Update(
                u.blocks_B, u.index_BK, u.value_BK.astype(np.int32) * (1000 + n), np.full(BLOCKS, n - 40)
            )
            for n, (peer, u) in enumerate(updates.items())
        }

    quiet_reputation, loud_reputation = Reputation(), Reputation()
    for number in range(4):
        quiet_reputation = observe(quiet_reputation, honest_round(number), BLOCKS)
        loud_reputation = observe(loud_reputation, loud(honest_round(number)), BLOCKS)

    assert scores_of(quiet_reputation) == scores_of(loud_reputation)


def test_the_state_is_a_function_of_the_last_rounds_alone():
    long = after(WINDOW + PAST + 9)
    short = Reputation()
    for number in range(9, WINDOW + PAST + 9):
        short = observe(short, honest_round(number), BLOCKS)

    assert scores_of(long) == scores_of(short)
    assert (len(long.past), len(long.window)) == (PAST, WINDOW)


def test_without_a_majority_nobody_is_judged():
    with pytest.raises(ValueError, match="no honest majority"):
        admitted(after(2), f=4)


def test_one_node_alone_is_heard():
    reputation = observe(Reputation(), {a_peer(0): an_honest_update(0)}, BLOCKS)

    assert admitted(observe(reputation, {a_peer(0): an_honest_update(1)}, BLOCKS), f=0) == (a_peer(0),)


def test_where_the_median_node_is_contradicted_nobody_is_left_out():
    """Steps that overshoot disagree with the ones before, honest or not: that says nothing about anybody."""
    nets = np.full((4, 4), -8, np.int64)
    nets[0] = -10
    peers = tuple(a_peer(number) for number in range(4))

    assert admitted(Reputation(window=(RoundAgreement(peers, nets),)), f=1) == peers


def test_while_everybody_contradicts_everybody_all_are_heard():
    """Steps that overshoot: then what the others say next proves nothing against a node."""
    reputation = Reputation()
    for number in range(4):
        updates = honest_round(number)
        overshot = {peer: flipped(update) for peer, update in updates.items()}
        reputation = observe(reputation, overshot if number % 2 else updates, BLOCKS, past=1)

    assert sorted(scores_of(reputation).values())[NODES // 2] < 0
    assert len(admitted(reputation, f=3)) == NODES


OTHER_TRUTH = -TRUTH
MINORITY = (5, 6, 7)


def a_round_of_two_strata(number: int, minority: tuple[int, ...]) -> dict[PeerId, Update]:
    """A round in which some nodes' data want the opposite of what the others' want."""
    updates = honest_round(number)
    return {**updates, **{a_peer(n): flipped(updates[a_peer(n)]) for n in minority}}


def after_two_strata(minority: tuple[int, ...], lie=lambda number, updates: {}) -> Reputation:
    reputation = Reputation()
    for number in range(10):
        updates = a_round_of_two_strata(number, minority)
        reputation = observe(reputation, {**updates, **lie(number, updates)}, BLOCKS)
    return reputation


def by_number(minority: tuple[int, ...]):
    return lambda peer: int(int.from_bytes(peer, "big") in minority)


def test_honest_nodes_whose_data_contradict_the_others_are_heard_if_these_are_known_to_differ():
    reputation = after_two_strata(MINORITY)

    assert not {a_peer(n) for n in MINORITY} <= set(admitted(reputation, f=1))
    assert len(admitted(reputation, f=1, stratum_of=by_number(MINORITY))) == NODES


@pytest.mark.parametrize("liar", [0, 7])
def test_a_liar_is_found_by_those_who_share_its_data(liar):
    reputation = after_two_strata(MINORITY, flip(liar))
    heard = admitted(reputation, f=1, stratum_of=by_number(MINORITY))

    assert heard == tuple(a_peer(n) for n in range(NODES) if n != liar)


def a_reputation_of(nets: list[list[int]]) -> Reputation:
    peers = tuple(a_peer(number) for number in range(len(nets)))
    return Reputation(window=(RoundAgreement(peers, np.array(nets, np.int64)),))


@pytest.mark.parametrize(("contradicted", "is_heard"), [(-15, True), (-16, False)])
def test_in_a_small_stratum_a_node_may_be_contradicted_half_again_as_much_as_others_are_confirmed(
    contradicted, is_heard
):
    """Nodes 0 to 4 share their data; node 5 has its own."""
    nets = [[10] * 6 for _ in range(6)]
    nets[5] = [contradicted] * 6

    heard = admitted(a_reputation_of(nets), f=1, stratum_of=by_number((5,)))
    assert (a_peer(5) in heard) is is_heard
    assert a_peer(5) not in admitted(a_reputation_of(nets), f=1)


def test_two_liars_of_a_stratum_of_three_do_not_silence_the_honest_node_there():
    nets = [[10] * 8 for _ in range(8)]
    nets[5] = [-10] * 5 + [0, -40, -40]  # honest: data of its own, and liars who contradict it
    nets[6] = nets[7] = [-40] * 6 + [40, 40]  # who confirm each other
    reputation = a_reputation_of(nets)

    inside = scores_of(reputation, [a_peer(n) for n in MINORITY])
    assert inside[a_peer(5)] < 0 < min(inside[a_peer(6)], inside[a_peer(7)])
    heard = admitted(reputation, f=2, stratum_of=by_number(MINORITY))
    assert heard == tuple(a_peer(n) for n in range(6))


@pytest.mark.parametrize(("sharing", "is_heard"), [(4, True), (5, False)])
def test_liars_who_share_a_stratum_do_not_say_what_is_typical_of_nodes_that_are_alone(sharing, is_heard):
    """Nodes 0 to `sharing` - 1 have one stratum, the first two of them lie; the others have one each."""
    nets = [[-4] * 8 for _ in range(8)]
    for row in range(sharing):
        nets[row] = [1] * 8  # so little that whoever is contradicted would be left out

    heard = admitted(a_reputation_of(nets), f=2, stratum_of=lambda peer: max(peer[-1] - sharing + 1, 0))
    assert (len(heard) == 8) is is_heard


def test_where_every_node_has_data_of_its_own_nobody_can_be_judged():
    nets = [[-10 * row] * 4 for row in range(4)]
    assert len(admitted(a_reputation_of(nets), f=1, stratum_of=lambda peer: peer[-1])) == 4


def test_no_more_than_f_of_all_strata_together_are_left_out():
    reputation = after_two_strata(MINORITY, flip(0, 7))
    assert len(admitted(reputation, f=1, stratum_of=by_number(MINORITY))) == NODES - 1


def a_reputation(scores: list[int]) -> Reputation:
    """Nodes of these scores: every other node says the same of each."""
    peers = tuple(a_peer(n) for n in range(len(scores)))
    return Reputation(
        window=(RoundAgreement(peers, np.repeat(np.array(scores)[:, None], len(scores), axis=1)),)
    )


@pytest.mark.parametrize(
    ("scores", "out"),
    [
        ([100, 100, 100, 50, 50], []),
        ([100, 100, 100, 49, 49], [3, 4]),
        ([100, 100, 100, 49, -900], [3, 4]),
        ([-100, -100, -100, -200, -200], []),
        ([-100, -100, -100, -201, -9000], [3, 4]),
        ([300, -10, -10, -20, -9000], [4]),
        ([0, 0, 0, 0, 0], []),
        ([5, 0, 0, 0, -1], [4]),
        ([100, 100, 10, 1, 1], [3, 4]),
        ([100, 100, 40, 30, 20], []),
        ([100, 49, 49, 49, 100], []),
    ],
)
def test_half_the_medians_score_is_enough_and_less_is_not(scores, out):
    """And where the median node is contradicted too, twice as much as it is still borne."""
    found = admitted(a_reputation(scores), f=2)

    assert [n for n in range(5) if a_peer(n) not in found] == out
