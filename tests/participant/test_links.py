"""One more certified manifest: what fits, and each way in which it does not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.participant.links import check_place, extend
from assay.protocol.auditing.audits import AuditStatus
from assay.protocol.encoding.codec import digest
from assay.protocol.errors import AssayError, MalformedMessage, PeerFault
from assay.protocol.messages import Outcome
from assay.protocol.run_state import next_chain
from assay.protocol.state_transition import advance
from assay.protocol.types import NO_DIGEST, Iteration, RoundId
from assay.testing.members import a_digest, name_of, peer
from assay.testing.messages import a_sketch_opening
from assay.testing.signed import (
    NODES,
    VERIFIERS,
    a_certified,
    a_chain,
    a_commitment,
    a_history,
    a_manifest,
    a_reveal,
    a_signed_commit,
    a_verdict,
)


def later(count, run_state=None):
    """A history so many links on."""
    run_state = run_state or a_history()
    for link in a_chain(run_state, count):
        run_state = extend(run_state, link)
    return run_state


def relinked(run_state, manifest, **changes):
    manifest = replace(manifest, **changes)
    commits = tuple(signed.commit for signed in manifest.commits)
    return replace(manifest, chain=next_chain(run_state.chain, commits, manifest.aggregate))


def test_a_whole_run_can_be_followed_link_by_link_and_not_one_further():
    run_state = a_history()
    links = a_chain(run_state, run_state.spec.ordered.last_round + 1)
    for link in links:
        run_state = extend(run_state, link)

    assert run_state.is_complete
    with pytest.raises(MalformedMessage, match="complete"):
        check_place(run_state, a_manifest(run_state))


def test_extending_is_advancing_once_everything_is_checked():
    run_state = later(2)
    (link,) = a_chain(run_state, 1)

    assert extend(run_state, link) == advance(run_state, link.manifest)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"run_id": a_digest("other run")}, "another run"),
        ({"round": RoundId(1)}, "expected round 2"),
        ({"round": RoundId(3)}, "expected round 2"),
        ({"parent": a_digest("other parent")}, "does not extend"),
        ({"chain": a_digest("other chain")}, "chain digest"),
        ({"aggregate": a_digest("another aggregate")}, "chain digest"),
        ({"aggregate": NO_DIGEST}, "chain digest"),
        ({"commits": ()}, "aggregate of no commits"),
    ],
)
def test_a_manifest_out_of_its_place_is_refused_in_words(changes, words):
    run_state = later(2)

    with pytest.raises(MalformedMessage, match=words):
        check_place(run_state, replace(a_manifest(run_state, NODES), **changes))


def test_commits_ascend_by_node_one_each_and_are_of_this_round():
    run_state = later(1)
    manifest = a_manifest(run_state, NODES)
    first, second, third = manifest.commits
    old = a_signed_commit(NODES[0], a_history())

    for commits, words in [
        ((second, first, third), "ascend by node"),
        ((first, first, second), "ascend by node"),
        ((old, second, third), "another round"),
    ]:
        with pytest.raises(MalformedMessage, match=words):
            check_place(run_state, relinked(run_state, manifest, commits=commits))


def test_only_active_nodes_commit():
    run_state = later(1)
    stranger = a_signed_commit("nora", run_state, node=peer("vera"))
    manifest = relinked(run_state, a_manifest(run_state, NODES), commits=(stranger,))

    with pytest.raises(MalformedMessage, match="may not train"):
        check_place(run_state, manifest)


def test_after_training_a_manifest_carries_no_commits():
    run_state = later(6)
    assert run_state.round == run_state.spec.rounds

    check_place(run_state, a_manifest(run_state))
    with pytest.raises(MalformedMessage, match="may not train"):
        check_place(run_state, a_manifest(run_state, NODES))


def test_reveals_ascend_and_are_of_verifiers():
    run_state = later(1)
    manifest = a_manifest(run_state, NODES)
    backwards = tuple(reversed(manifest.beacon_shares))
    stranger = a_reveal(VERIFIERS[0], run_state, verifier=peer("nora"))

    with pytest.raises(MalformedMessage, match="beacon shares must ascend"):
        check_place(run_state, replace(manifest, beacon_shares=backwards))
    with pytest.raises(MalformedMessage, match="unknown verifier"):
        check_place(run_state, replace(manifest, beacon_shares=(stranger,)))


def test_seals_are_of_those_whose_turn_it_is_and_each_comes_once():
    run_state = later(2)
    manifest = replace(a_manifest(run_state, NODES), commitments=())
    audit = next(iter(run_state.audits.values()))
    on_duty, next_in_line = (a_commitment(a_verdict(name_of(member), audit)) for member in audit.order[:2])

    check_place(run_state, replace(manifest, commitments=(on_duty,)))
    with pytest.raises(MalformedMessage, match="may not commit to a verdict"):
        check_place(run_state, replace(manifest, commitments=(next_in_line,)))
    with pytest.raises(MalformedMessage, match="verdict commitments must ascend"):
        check_place(run_state, replace(manifest, commitments=(on_duty, on_duty)))


def test_a_word_on_a_closed_audit_is_refused():
    run_state = later(5)
    closed = next(audit for audit in run_state.audits.values() if audit.ruling is AuditStatus.PASSED)
    word = a_verdict(name_of(closed.order[1]), closed, Outcome.MISMATCH)

    with pytest.raises(MalformedMessage, match="may not judge"):
        check_place(run_state, replace(a_manifest(run_state, NODES), verdicts=(word,)))
    with pytest.raises(MalformedMessage, match="may not commit to a verdict"):
        check_place(run_state, replace(a_manifest(run_state, NODES), commitments=(a_commitment(word),)))
    with pytest.raises(MalformedMessage, match="wrong time"):
        check_place(
            run_state, replace(a_manifest(run_state, NODES), sketch_openings=(a_sketch_opening(closed),))
        )


# ---- certificates


def test_a_link_needs_a_quorum_of_this_runs_verifiers():
    run_state = later(1)
    manifest = a_manifest(run_state, NODES)

    extend(run_state, a_certified(manifest, signers=VERIFIERS[:3]))
    with pytest.raises(MalformedMessage, match="2 signatures, expected 3"):
        extend(run_state, a_certified(manifest, signers=VERIFIERS[:2]))
    with pytest.raises(MalformedMessage, match="not a verifier"):
        extend(run_state, a_certified(manifest, signers=[*VERIFIERS[:2], "nora"]))


def test_of_a_forgery_the_certificate_is_checked_before_anything_that_it_carries():
    run_state = later(1)
    misplaced = replace(a_manifest(run_state, NODES), parent=a_digest("other parent"))
    forged = a_certified(misplaced, signers=VERIFIERS[:2])

    with pytest.raises(MalformedMessage, match="does not extend"):
        check_place(run_state, misplaced)
    with pytest.raises(MalformedMessage, match="2 signatures, expected 3"):
        extend(run_state, forged)


def test_a_certificate_is_about_this_block_and_no_other():
    run_state = later(1)
    link = a_certified(a_manifest(run_state, NODES))
    other = a_certified(a_manifest(run_state, NODES[:1]))

    with pytest.raises(MalformedMessage, match="not a finalisation of its block"):
        extend(run_state, replace(link, certificate=other.certificate))
    with pytest.raises(MalformedMessage, match="about another manifest"):
        extend(run_state, replace(link, block=other.block))


def test_a_certificate_of_another_iteration_is_refused():
    run_state = later(1)
    link = a_certified(a_manifest(run_state, NODES))
    moved = replace(link.certificate.vote, iteration=Iteration(9))

    with pytest.raises(MalformedMessage, match="another iteration"):
        extend(run_state, replace(link, certificate=replace(link.certificate, vote=moved)))


def test_one_forged_signature_spoils_a_certificate():
    run_state = later(1)
    link = a_certified(a_manifest(run_state, NODES))
    signatures = (link.certificate.signatures[1], *link.certificate.signatures[1:])

    with pytest.raises(PeerFault, match="signature"):
        extend(run_state, replace(link, certificate=replace(link.certificate, signatures=signatures)))


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_one_changed_field_of_a_certified_manifest_never_passes(data):
    run_state = later(4)
    link = a_chain(run_state, 1)[0]
    fields = [
        "commits",
        "beacon_shares",
        "commitments",
        "verdicts",
        "sketch_openings",
        "aggregate",
        "chain",
        "parent",
    ]
    field = data.draw(st.sampled_from(fields))
    value = getattr(link.manifest, field)
    if isinstance(value, bytes):
        changed = bytes([value[0] ^ 1]) + value[1:]
    else:
        drop = data.draw(st.integers(0, len(value) - 1))
        changed = value[:drop] + value[drop + 1 :]

    with pytest.raises(AssayError):
        extend(run_state, replace(link, manifest=replace(link.manifest, **{field: changed})))


def test_the_chain_of_links_names_its_parents():
    first, second = a_chain(a_history(), 2)

    assert second.manifest.parent == digest(first.manifest)
    assert second.block.parent == digest(first.block)
