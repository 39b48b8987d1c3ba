"""One more certified manifest: what fits, and each way in which it does not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.participant.links import check_place, extend
from assay.protocol.audits import Ruling
from assay.protocol.encoding.codec import digest
from assay.protocol.errors import AssayError, MalformedMessage, PeerFault
from assay.protocol.messages import Outcome
from assay.protocol.state_transition import advance, next_chain
from assay.protocol.types import NO_DIGEST, Iteration, RoundId
from tests.builders import (
    NODES,
    VERIFIERS,
    a_certified,
    a_chain,
    a_digest,
    a_history,
    a_manifest,
    a_reveal,
    a_seal,
    a_signed_commit,
    a_verdict,
    an_unsealing,
    name_of,
    peer,
)


def later(count, history=None):
    """A history so many links on."""
    history = history or a_history()
    for link in a_chain(history, count):
        history = extend(history, link)
    return history


def relinked(history, manifest, **changes):
    manifest = replace(manifest, **changes)
    commits = tuple(signed.commit for signed in manifest.commits)
    return replace(manifest, chain=next_chain(history.chain, commits, manifest.aggregate))


def test_a_whole_run_can_be_followed_link_by_link_and_not_one_further():
    history = a_history()
    links = a_chain(history, history.spec.last_round + 1)
    for link in links:
        history = extend(history, link)

    assert history.is_complete
    with pytest.raises(MalformedMessage, match="complete"):
        check_place(history, a_manifest(history))


def test_extending_is_advancing_once_everything_is_checked():
    history = later(2)
    (link,) = a_chain(history, 1)

    assert extend(history, link) == advance(history, link.manifest)


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
    history = later(2)

    with pytest.raises(MalformedMessage, match=words):
        check_place(history, replace(a_manifest(history, NODES), **changes))


def test_commits_ascend_by_node_one_each_and_are_of_this_round():
    history = later(1)
    manifest = a_manifest(history, NODES)
    first, second, third = manifest.commits
    old = a_signed_commit(NODES[0], a_history())

    for commits, words in [
        ((second, first, third), "ascend by node"),
        ((first, first, second), "ascend by node"),
        ((old, second, third), "another round"),
    ]:
        with pytest.raises(MalformedMessage, match=words):
            check_place(history, relinked(history, manifest, commits=commits))


def test_only_active_nodes_commit():
    history = later(1)
    stranger = a_signed_commit("nora", history, node=peer("vera"))
    manifest = relinked(history, a_manifest(history, NODES), commits=(stranger,))

    with pytest.raises(MalformedMessage, match="may not train"):
        check_place(history, manifest)


def test_after_training_a_manifest_carries_no_commits():
    history = later(6)
    assert history.round == history.spec.rounds

    check_place(history, a_manifest(history))
    with pytest.raises(MalformedMessage, match="may not train"):
        check_place(history, a_manifest(history, NODES))


def test_reveals_ascend_and_are_of_verifiers():
    history = later(1)
    manifest = a_manifest(history, NODES)
    backwards = tuple(reversed(manifest.reveals))
    stranger = a_reveal(VERIFIERS[0], history, verifier=peer("nora"))

    with pytest.raises(MalformedMessage, match="reveals must ascend"):
        check_place(history, replace(manifest, reveals=backwards))
    with pytest.raises(MalformedMessage, match="stranger"):
        check_place(history, replace(manifest, reveals=(stranger,)))


def test_seals_are_of_those_whose_turn_it_is_and_each_comes_once():
    history = later(2)
    manifest = replace(a_manifest(history, NODES), seals=())
    audit = next(iter(history.audits.values()))
    on_duty, next_in_line = (a_seal(a_verdict(name_of(member), audit)) for member in audit.order[:2])

    check_place(history, replace(manifest, seals=(on_duty,)))
    with pytest.raises(MalformedMessage, match="may not seal"):
        check_place(history, replace(manifest, seals=(next_in_line,)))
    with pytest.raises(MalformedMessage, match="seals must ascend"):
        check_place(history, replace(manifest, seals=(on_duty, on_duty)))


def test_a_word_on_a_closed_audit_is_refused():
    history = later(5)
    closed = next(audit for audit in history.audits.values() if audit.ruling is Ruling.CLEARED)
    word = a_verdict(name_of(closed.order[1]), closed, Outcome.MISMATCH)

    with pytest.raises(MalformedMessage, match="may not judge"):
        check_place(history, replace(a_manifest(history, NODES), verdicts=(word,)))
    with pytest.raises(MalformedMessage, match="may not seal"):
        check_place(history, replace(a_manifest(history, NODES), seals=(a_seal(word),)))
    with pytest.raises(MalformedMessage, match="wrong time"):
        check_place(history, replace(a_manifest(history, NODES), unsealed=(an_unsealing(closed),)))


# ---- certificates


def test_a_link_needs_a_quorum_of_this_runs_verifiers():
    history = later(1)
    manifest = a_manifest(history, NODES)

    extend(history, a_certified(manifest, signers=VERIFIERS[:3]))
    with pytest.raises(MalformedMessage, match="2 signatures, expected 3"):
        extend(history, a_certified(manifest, signers=VERIFIERS[:2]))
    with pytest.raises(MalformedMessage, match="not a verifier"):
        extend(history, a_certified(manifest, signers=[*VERIFIERS[:2], "nora"]))


def test_a_certificate_is_about_this_block_and_no_other():
    history = later(1)
    link = a_certified(a_manifest(history, NODES))
    other = a_certified(a_manifest(history, NODES[:1]))

    with pytest.raises(MalformedMessage, match="not a finalisation of its block"):
        extend(history, replace(link, certificate=other.certificate))
    with pytest.raises(MalformedMessage, match="about another manifest"):
        extend(history, replace(link, block=other.block))


def test_a_certificate_of_another_iteration_is_refused():
    history = later(1)
    link = a_certified(a_manifest(history, NODES))
    moved = replace(link.certificate.vote, iteration=Iteration(9))

    with pytest.raises(MalformedMessage, match="another iteration"):
        extend(history, replace(link, certificate=replace(link.certificate, vote=moved)))


def test_one_forged_signature_spoils_a_certificate():
    history = later(1)
    link = a_certified(a_manifest(history, NODES))
    signatures = (link.certificate.signatures[1], *link.certificate.signatures[1:])

    with pytest.raises(PeerFault, match="signature"):
        extend(history, replace(link, certificate=replace(link.certificate, signatures=signatures)))


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_one_changed_field_of_a_certified_manifest_never_passes(data):
    history = later(4)
    link = a_chain(history, 1)[0]
    fields = ["commits", "reveals", "seals", "verdicts", "unsealed", "aggregate", "chain", "parent"]
    field = data.draw(st.sampled_from(fields))
    value = getattr(link.manifest, field)
    if isinstance(value, bytes):
        changed = bytes([value[0] ^ 1]) + value[1:]
    else:
        drop = data.draw(st.integers(0, len(value) - 1))
        changed = value[:drop] + value[drop + 1 :]

    with pytest.raises(AssayError):
        extend(history, replace(link, manifest=replace(link.manifest, **{field: changed})))


def test_the_chain_of_links_names_its_parents():
    first, second = a_chain(a_history(), 2)

    assert second.manifest.parent == digest(first.manifest)
    assert second.block.parent == digest(first.block)
