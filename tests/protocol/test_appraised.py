"""Evidence of hardware in the fold: whose word counts, for how long, and how little it can do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from assay.participant.links import check_place
from assay.protocol.errors import MalformedMessage
from assay.protocol.messages import Appraisal, Discount, SignedAppraisal
from assay.protocol.params import PPM
from assay.protocol.permitted import may_appraise
from assay.protocol.state_transition import advance
from assay.protocol.types import NO_DIGEST, Digest, RoundId, Signature
from assay.testing.members import NODES, RUN_ID, VERIFIERS, peer
from assay.testing.run import a_manifest, a_spec, a_start, grow

NODE, OTHER = NODES[:2]
POLICY = {"attestation": Digest(b"p" * 32), "attested_rounds": 6}
BEST = Discount.PROCESSOR_AND_GPU


def attested_history(rounds=2, **audit):
    return grow(a_start(rounds=30, **{**POLICY, **audit}), rounds)


def a_word(run_state, verifier, discount=BEST, node=NODE, **changes):
    word = Appraisal(
        run_id=RUN_ID, round=RoundId(int(run_state.round) - 1), node=node, verifier=verifier,
        discount=discount, evidence=Digest(b"e" * 32), result=Digest(b"r" * 32),
    )  # fmt: skip
    return SignedAppraisal(appraised=replace(word, **changes), signature=Signature(bytes(64)))


def said(run_state, *discounts, node=NODE):
    """The history after a manifest in which the first verifiers grant these discounts."""
    words = [a_word(run_state, v, d, node) for v, d in zip(VERIFIERS, discounts, strict=False)]
    return advance(run_state, replace(a_manifest(run_state), appraised=tuple(words)))


@pytest.mark.parametrize(
    ("granted", "discount"),
    [
        ((), PPM),
        ((BEST, BEST), PPM),  # two of four are no quorum
        ((BEST, BEST, BEST), BEST),
        ((BEST, BEST, Discount.PROCESSOR), Discount.PROCESSOR),
        ((BEST, BEST, BEST, Discount.PROCESSOR), BEST),  # one who grants less costs nothing
        ((BEST, Discount.PROCESSOR, Discount.PROCESSOR, Discount.PROCESSOR), Discount.PROCESSOR),
    ],
)
def test_a_discount_is_what_a_quorum_of_verifiers_grants(granted, discount):
    run_state = said(attested_history(), *granted)

    assert run_state.discount_ppm(NODE) == discount
    assert run_state.discount_ppm(OTHER) == PPM


def test_it_lowers_the_rate_that_the_record_asks_for_and_neither_probation_nor_the_floor():
    run_state = said(attested_history(probation=4, floor_ppm=50_000), BEST, BEST, BEST)

    def rate(clean):
        record = replace(run_state.nodes[NODE], clean=clean)
        return replace(run_state, nodes={**run_state.nodes, NODE: record}).rate_ppm(NODE)

    assert rate(3) == PPM  # on probation nothing is lowered
    assert rate(4) == 400_000 and rate(8) == 200_000
    assert rate(1000) == 50_000


def test_evidence_counts_for_so_many_rounds_and_then_no_more():
    run_state = said(attested_history(), BEST, BEST, BEST)  # the nonce is of round 1
    discounts = {}
    while run_state.round <= 10:
        discounts[int(run_state.round)] = run_state.discount_ppm(NODE)
        run_state = grow(run_state, 1)

    assert discounts == {3: BEST, 4: BEST, 5: BEST, 6: BEST, 7: BEST, 8: PPM, 9: PPM, 10: PPM}
    assert run_state.appraised == {}


def test_another_execution_class_is_another_machine_so_trust_begins_again():
    run_state = said(attested_history(), BEST, BEST, BEST)
    run_state = said(run_state, BEST, BEST, BEST, node=OTHER)
    clean = {n: replace(record, clean=9) for n, record in run_state.nodes.items()}
    run_state = replace(run_state, nodes=clean)
    manifest = a_manifest(run_state)
    moved = tuple(
        replace(one, commit=replace(one.commit, exec_class=Digest(b"c" * 32)))
        if one.commit.node == NODE
        else one
        for one in manifest.commits
    )

    same, other = advance(run_state, manifest), advance(run_state, replace(manifest, commits=moved))

    assert same.nodes[NODE].clean >= 9
    assert other.nodes[NODE].clean <= 1  # what is cleared in this very manifest counts
    assert other.discount_ppm(NODE) == PPM and other.discount_ppm(OTHER) == BEST
    assert other.nodes[OTHER].clean >= 9


def test_a_word_may_come_while_its_evidence_is_young_of_members_and_once():
    run_state = attested_history()
    word = a_word(run_state, VERIFIERS[0]).appraised

    assert may_appraise(run_state, word)
    for wrong in (
        {"run_id": NO_DIGEST},
        {"node": peer("a stranger")},
        {"verifier": peer("a stranger")},
        {"round": run_state.round},  # not final yet
    ):
        assert not may_appraise(run_state, replace(word, **wrong))
    for later in range(6):
        assert may_appraise(grow(run_state, later), word) == (later < 3)  # half of its life
    again = said(run_state, BEST)
    assert not may_appraise(again, word)
    later = replace(word, round=RoundId(int(word.round) + 3))
    assert not may_appraise(grow(again, 2), replace(word, round=RoundId(int(word.round) + 2)))
    assert may_appraise(grow(again, 3), later)  # half of the last one's life is over


def test_without_a_policy_no_word_counts():
    run_state = grow(a_start(), 2)

    assert not may_appraise(run_state, a_word(run_state, VERIFIERS[0]).appraised)


def test_a_manifest_with_a_word_that_may_not_come_or_in_another_order_is_refused():
    run_state = attested_history()
    first, second = (a_word(run_state, v) for v in VERIFIERS[:2])
    check_place(run_state, replace(a_manifest(run_state), appraised=(first, second)))

    stale = a_word(run_state, VERIFIERS[2], round=RoundId(int(run_state.round)))
    for words, match in (
        ((second, first), "appraisals must ascend"),
        ((first, first), "appraisals must ascend"),
        ((stale,), "not admissible now"),
    ):
        with pytest.raises(MalformedMessage, match=match):
            check_place(run_state, replace(a_manifest(run_state), appraised=words))


def test_a_policy_without_rounds_or_rounds_without_a_policy_make_no_run():
    for half in ({"attestation": Digest(b"p" * 32)}, {"attested_rounds": 3}, {"code": Digest(b"c" * 32)}):
        with pytest.raises(ValueError, match="polic"):
            a_spec(**half)
