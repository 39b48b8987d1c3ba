"""Draws: frozen, unbiased enough, and the same for everybody."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.protocol.auditing.draws import (
    OPENED_LEAST,
    audit_rate_ppm,
    audit_seed,
    auditors,
    beacon_input,
    is_drawn,
    is_replicated,
    opened_blocks,
    opened_count,
    wide_share_ppm,
)
from assay.protocol.errors import MalformedMessage
from assay.protocol.params import PPM
from assay.protocol.randomness.vrf import prove
from assay.protocol.types import Digest, PeerId, RoundId
from assay.testing.run import a_spec

NODES = tuple(sorted(PeerId(hashlib.sha256(b"node %d" % n).digest()) for n in range(3)))
VERIFIERS = tuple(sorted(PeerId(hashlib.sha256(b"verifier %d" % n).digest()) for n in range(4)))
VECTORS = Path(__file__).parents[1] / "vectors" / "draws.json"
ALPHA = beacon_input(Digest(b"d" * 32), Digest(b"r" * 32), RoundId(7), Digest(b"m" * 32))
PROOFS = tuple((v, prove(hashlib.sha256(v).digest(), ALPHA)) for v in VERIFIERS)
SEED = audit_seed(ALPHA, PROOFS)
AUDIT = a_spec(blocks=8).audit
FLOOR = AUDIT.floor_ppm
WIDE = a_spec(blocks=8, wide_ppm=PPM, wide_blocks=20).audit
MANY = a_spec(blocks=64).audit
SOME_WIDE = a_spec(blocks=64, wide_ppm=PPM // 2, wide_blocks=90).audit


def vectors() -> dict:
    return {
        "alpha": ALPHA.hex(),
        "seed": SEED.hex(),
        "seed_without_reveals": audit_seed(ALPHA, ()).hex(),
        "seed_with_drand": audit_seed(ALPHA, PROOFS, drand=Digest(b"o" * 32)).hex(),
        "drawn_at_half": [is_drawn(SEED, node, PPM // 2) for node in NODES],
        "auditors": [[v.hex() for v in auditors(SEED, node, VERIFIERS)] for node in NODES],
        "opened_blocks": [opened_blocks(SEED, node, AUDIT, FLOOR, 213, range(100, 213)) for node in NODES],
        "opened_in_a_wide_audit": [
            opened_blocks(SEED, node, WIDE, FLOOR, 213, range(100, 213)) for node in NODES
        ],
        "opened_at_rates": {
            str(rate): [opened_blocks(SEED, node, SOME_WIDE, rate, 213, range(100, 213)) for node in NODES]
            for rate in (FLOOR, 300_000, PPM)
        },
    }


def test_draws_are_the_frozen_ones():
    assert json.loads(json.dumps(vectors())) == json.loads(VECTORS.read_text())


def test_a_seed_depends_on_every_reveal_and_not_on_the_order_they_came_in():
    assert audit_seed(ALPHA, PROOFS[::-1]) == SEED
    assert len({audit_seed(ALPHA, PROOFS[:n]) for n in range(5)}) == 5
    assert audit_seed(ALPHA + b"!", PROOFS) != SEED
    assert audit_seed(ALPHA, PROOFS, drand=Digest(b"o" * 32)) != SEED


def test_a_reveal_that_is_no_proof_is_refused():
    with pytest.raises(MalformedMessage):
        audit_seed(ALPHA, [(VERIFIERS[0], b"x" * 80)])


@pytest.mark.parametrize(
    ("clean", "rate"),
    [
        (0, PPM),
        (3, PPM),
        (4, PPM),
        (5, 800_000),
        (8, 500_000),
        (19, 210_526),
        (20, 200_000),
        (10**9, 200_000),
    ],
)
def test_the_rate_is_one_on_probation_then_falls_and_never_under_the_floor(clean, rate):
    audit = a_spec(probation=4, floor_ppm=200_000).audit

    assert audit_rate_ppm(audit, clean) == rate


def test_a_discount_counts_from_the_first_audit_after_probation_and_may_be_all():
    audit = a_spec(probation=4, floor_ppm=50_000).audit

    assert [audit_rate_ppm(audit, clean, 600_000) for clean in (3, 4, 8)] == [PPM, 600_000, 300_000]
    assert audit_rate_ppm(audit, 4, 0) == 50_000
    with pytest.raises(ValueError, match="a discount of -1 millionths"):
        audit_rate_ppm(audit, 4, -1)


@pytest.mark.parametrize("rate", [0, 1, 200_000, 500_000, PPM])
def test_nodes_are_drawn_as_often_as_the_rate_says(rate):
    seeds = [Digest(hashlib.sha256(b"%d" % n).digest()) for n in range(4000)]

    share = sum(is_drawn(seed, NODES[0], rate) for seed in seeds) / len(seeds)

    assert abs(share - rate / PPM) < 0.03  # over five standard deviations
    if rate in (0, PPM):
        assert share == rate / PPM


def test_two_steps_of_one_node_are_replicated_apart_under_one_seed():
    drawn = [is_replicated(SEED, NODES[0], round_id, 500_000) for round_id in range(40)]

    assert 10 < sum(drawn) < 30  # three standard deviations of a fair coin


def test_every_verifier_is_first_equally_often():
    first = [
        auditors(Digest(hashlib.sha256(b"%d" % n).digest()), NODES[0], VERIFIERS)[0] for n in range(2000)
    ]

    assert all(400 < first.count(verifier) < 600 for verifier in VERIFIERS)


@given(st.binary(min_size=32, max_size=32), st.permutations(VERIFIERS))
def test_auditors_are_all_verifiers_once_whatever_order_they_are_given_in(seed, verifiers):
    order = auditors(Digest(seed), NODES[0], verifiers)

    assert sorted(order) == list(VERIFIERS)
    assert order == auditors(Digest(seed), NODES[0], VERIFIERS)


@given(
    st.binary(min_size=32, max_size=32),
    st.integers(1, 300).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1)))),
    st.integers(1, 64),
)
def test_as_many_blocks_are_opened_as_the_rules_say_each_once_and_ascending(seed, blocks, wanted):
    count, live = blocks
    chosen = opened_blocks(Digest(seed), NODES[0], a_spec(blocks=wanted).audit, FLOOR, count, sorted(live))

    assert len(chosen) == min(wanted, count)
    assert list(chosen) == sorted(set(chosen))
    assert all(0 <= block < count for block in chosen)
    uniform = min(wanted, count) // 2
    assert len(set(chosen) & live) >= min(len(live), min(wanted, count) - uniform) - uniform


def test_half_of_the_opened_blocks_lie_where_something_was_sent():
    live = range(90, 100)  # a tenth of all blocks
    hits = [
        sum(
            b >= 90
            for b in opened_blocks(
                Digest(hashlib.sha256(b"%d" % n).digest()), NODES[0], AUDIT, FLOOR, 100, live
            )
        )
        for n in range(200)
    ]

    assert all(hit >= 4 for hit in hits)


@given(st.integers(1, 4096), st.integers(1, PPM), st.integers(0, PPM), st.data())
def test_a_block_is_opened_as_probably_at_every_rate_and_none_more_often_than_rounding_makes_it(
    blocks, floor_ppm, wide_ppm, data
):
    rate_ppm = data.draw(st.integers(floor_ppm, PPM))
    audit = replace(AUDIT, blocks=blocks, floor_ppm=floor_ppm, wide_ppm=wide_ppm)

    count, share_ppm = opened_count(audit, rate_ppm), wide_share_ppm(audit, rate_ppm)

    assert blocks * floor_ppm <= count * rate_ppm
    assert count == min(OPENED_LEAST, blocks) or (count - 1) * rate_ppm < blocks * floor_ppm
    assert count >= min(OPENED_LEAST, blocks)
    assert wide_ppm * floor_ppm <= share_ppm * rate_ppm < wide_ppm * floor_ppm + rate_ppm
    assert (opened_count(audit, floor_ppm), wide_share_ppm(audit, floor_ppm)) == (blocks, wide_ppm)


def test_the_count_and_the_share_of_wide_ones_follow_the_rate_at_which_a_node_is_audited():
    audit = replace(MANY, wide_ppm=400_000, wide_blocks=90)  # the floor is a fifth
    seeds = [Digest(hashlib.sha256(b"%d" % n).digest()) for n in range(400)]
    for rate_ppm, usual, wide in ((FLOOR, 64, 160), (2 * FLOOR, 32, 80), (PPM, 13, 32)):
        counts = [len(opened_blocks(seed, NODES[0], audit, rate_ppm, 213, range(50))) for seed in seeds]
        assert set(counts) == {usual, 90}
        assert abs(counts.count(90) - wide) < 30  # three standard deviations


def test_a_wide_audit_opens_its_own_count_and_comes_at_its_own_rate():
    audit = replace(AUDIT, wide_ppm=250_000, wide_blocks=90)
    counts = [
        len(opened_blocks(Digest(hashlib.sha256(b"%d" % n).digest()), NODES[0], audit, FLOOR, 213, range(50)))
        for n in range(400)
    ]

    assert set(counts) == {8, 90}
    assert 70 <= counts.count(90) <= 130  # 100 expected, deviation 8.7


def test_where_a_wide_audit_may_open_more_than_there_are_it_opens_every_block():
    audit = replace(AUDIT, wide_ppm=PPM, wide_blocks=214)

    assert opened_blocks(SEED, NODES[0], audit, FLOOR, 213, ()) == tuple(range(213))


def test_nodes_and_seeds_draw_apart():
    other = PeerId(bytes(32))

    assert opened_blocks(SEED, NODES[0], AUDIT, FLOOR, 213, ()) != opened_blocks(
        SEED, other, AUDIT, FLOOR, 213, ()
    )
    assert opened_blocks(SEED, other, AUDIT, FLOOR, 213, ()) != opened_blocks(
        Digest(bytes(32)), other, AUDIT, FLOOR, 213, ()
    )


if __name__ == "__main__":
    VECTORS.write_text(json.dumps(vectors(), indent=1) + "\n")


@pytest.mark.parametrize("node", NODES)
def test_a_step_is_drawn_if_its_number_is_below_the_rate_and_not_if_it_is_equal(node):
    def number(what: bytes, draw: int) -> int:
        drawn = hashlib.sha256(SEED + what + node + draw.to_bytes(4, "big")).digest()
        return int.from_bytes(drawn, "big") % PPM

    audited, replicated = number(b"A", 0), number(b"L", 7)
    assert [is_drawn(SEED, node, audited + above) for above in (0, 1)] == [False, True]
    assert [is_replicated(SEED, node, 7, replicated + above) for above in (0, 1)] == [False, True]
