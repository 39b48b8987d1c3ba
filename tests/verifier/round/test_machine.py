"""What a verifier collects for the next manifest, and what it lets pass; every signature is real."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.chain.commit_statement import commit_statement, evm_address
from assay.chain.statements import recover
from assay.participant.links import extend
from assay.protocol.audits import Audit, Ruling
from assay.protocol.errors import AssayError, MalformedMessage, OutOfPhase, PeerFault
from assay.protocol.identity import Domain, sign
from assay.protocol.messages import Appraised, Discount, Outcome, Planted, SignedAppraised
from assay.protocol.quorum import faults_tolerated, quorum
from assay.protocol.state_transition import BEACON_PAUSE, advance, next_chain
from assay.protocol.types import NO_DIGEST, RoundId
from assay.training.codec.wire import update_bytes_max
from assay.training.layout import layout_of
from assay.training.optimiser.momentum_root import zero_root
from assay.verifier.round.beacon import REVEALS_PER_VERIFIER, valid_reveals
from assay.verifier.round.commits import LOSS_MICRO_MAX, Rules, check_commit, contradiction
from assay.verifier.round.machine import (
    WORDS_PER_VERIFIER,
    Advanced,
    Bound,
    Contradicted,
    Equivocation,
    Judged,
    Revealed,
    Round,
    Shown,
    Submitted,
    Valued,
    base_history,
    examine,
    is_held_up,
    manifest_of,
    may_propose,
    missing,
    step,
)
from tests.builders import (
    DOMAIN,
    NODES,
    RUN_ID,
    STATE,
    VERIFIERS,
    a_certified,
    a_commit,
    a_deployment,
    a_digest,
    a_member,
    a_peer_key,
    a_reveal,
    a_seal,
    a_signed_commit,
    a_spec,
    a_verdict,
    an_unsealing,
    name_of,
    peer,
    words,
)
from tests.builders import a_history as the_start
from tests.builders import a_manifest as the_next
from tests.specs import a_rule

AGGREGATE = a_digest("aggregate")
BLOCKS = layout_of(a_spec().model).blocks
RULES = Rules(
    deployment=a_deployment(),
    domain=DOMAIN,
    zero_momentum=zero_root(RUN_ID, a_spec().rule, BLOCKS),
    block_count=BLOCKS,
)


def a_round(history=None, opened_ms=0):
    return Round(rules=RULES, history=history or the_start(), state=STATE, opened_ms=opened_ms)


def after(history, *events):
    """A round on this history that has taken these events."""
    state = a_round(history)
    for event in events:
        state, _ = step(state, event)
    return state


def grown(history, count, nodes=NODES, votes=None):
    """So many manifests later; every auditor on duty seals and opens a MATCH, or says what `votes` has."""
    for _ in range(count):
        history = advance(history, the_next(history, nodes, everyone(history) if votes is None else votes))
    return history


def everyone(history, outcome=Outcome.MATCH):
    """Every verifier says this of every open audit, as soon as it may."""
    return {step: dict.fromkeys(VERIFIERS, outcome) for step, a in history.audits.items() if a.is_open}


def words_on(history, votes=None):
    """As events, what may be said for the next manifest."""
    said = words(history, everyone(history) if votes is None else votes)
    return [
        *map(Bound, said["seals"]), *map(Judged, said["verdicts"]), *map(Shown, said["unsealed"])
    ]  # fmt: skip


def everything(history, nodes=NODES, verifiers=VERIFIERS, votes=None):
    """All that may arrive for the next manifest."""
    events = [Submitted(a_signed_commit(name, history)) for name in nodes if peer(name) in history.active]
    if history.round:
        events += [Revealed(a_reveal(name, history)) for name in verifiers]
    return [*events, *words_on(history, votes)]


def refusal(history, signed, state=STATE):
    with pytest.raises(PeerFault) as caught:
        check_commit(RULES, history, state, signed)
    assert caught.value.peer == signed.commit.node
    return str(caught.value)


# ---- commits


def test_a_commit_that_keeps_every_rule_is_taken():
    history = the_start()
    signed = a_signed_commit("nora", history)

    state, effects = step(a_round(history), Submitted(signed))

    assert effects == ()
    assert state.commits == {peer("nora"): signed}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"run_id": a_digest("other run")}, "is of another run"),
        ({"round": RoundId(1)}, "during round 0"),
        ({"parent": a_digest("other parent")}, "during round 0"),
        ({"state": a_digest("other parameters")}, "diverged: used parameters"),
        ({"batch_root": a_digest("other batch")}, "another batch"),
        ({"tokens": a_spec().tokens_per_step + 1}, "tokens, expected"),
        ({"tokens": a_spec().tokens_per_step - 1}, "tokens, expected"),
        ({"update_bytes": update_bytes_max(BLOCKS, 32) + 1}, "an update of"),
        ({"momentum_before": a_digest("other momentum")}, "momentum does not continue"),
        ({"momentum_before": NO_DIGEST}, "momentum does not continue"),
        ({"loss_micro": LOSS_MICRO_MAX + 1}, "a loss of"),
        ({"base": 1}, "continues base 1"),
        ({"inner": (a_digest("a state"),)}, "1 inner states, expected 0"),
    ],
)
def test_a_commit_beside_one_rule_is_refused_and_the_words_name_the_rule(changes, words):
    history = the_start()
    signed = a_signed_commit("nora", history, **changes)
    state = a_round(history)

    with pytest.raises(PeerFault, match=words):
        step(state, Submitted(signed))

    assert not state.commits


@pytest.mark.parametrize(
    "changes",
    [{"update_bytes": update_bytes_max(BLOCKS, 32)}, {"loss_micro": LOSS_MICRO_MAX}, {"loss_micro": 0}],
)
def test_a_commit_at_a_bound_is_taken(changes):
    check_commit(RULES, the_start(), STATE, a_signed_commit("nora", the_start(), **changes))


@pytest.mark.parametrize("changes", [{"round": RoundId(1)}, {"parent": a_digest("other parent")}])
def test_a_commit_of_another_place_is_late_and_nobodys_lie(changes):
    with pytest.raises(OutOfPhase):
        check_commit(RULES, the_start(), STATE, a_signed_commit("nora", the_start(), **changes))


def test_a_stranger_may_not_commit():
    history = the_start()
    stranger = a_signed_commit("nora", history, node=peer("vera"))

    assert "may not train" in refusal(history, stranger)


def test_a_barred_node_may_not_commit_and_the_others_may():
    history = barred_history("mallory")

    assert "may not train" in refusal(history, a_signed_commit("mallory", history))
    check_commit(RULES, history, STATE, a_signed_commit("nora", history))


def test_nobody_may_commit_once_training_is_over():
    history = grown(the_start(), 6)

    assert history.round == 6 == history.spec.rounds
    assert "may not train" in refusal(history, a_signed_commit("nora", history))


def test_the_parameters_are_named_on_every_state_every_th_round_and_on_no_other():
    history = the_start(state_every=2)
    check_commit(RULES, history, STATE, a_signed_commit("nora", history))

    history = grown(history, 1)
    check_commit(RULES, history, STATE, a_signed_commit("nora", history))
    assert a_commit("nora", history).state == NO_DIGEST
    assert "diverged" in refusal(history, a_signed_commit("nora", history, state=STATE))

    history = grown(history, 1)
    check_commit(RULES, history, STATE, a_signed_commit("nora", history))
    assert "diverged" in refusal(history, a_signed_commit("nora", history, state=NO_DIGEST))


def test_momentum_continues_from_the_last_accepted_step_or_from_zero_and_from_nothing_else():
    history = grown(the_start(), 2)
    last = history.nodes[peer("nora")].momentum
    before = a_digest("momentum of nora after 0")
    assert last == a_digest("momentum of nora after 1")

    for base, root in ((2, last), (0, RULES.zero_momentum)):
        check_commit(RULES, history, STATE, a_signed_commit("nora", history, base=base, momentum_before=root))
    for base, root in (
        (2, before),
        (2, a_digest("momentum of nils after 1")),
        (2, NO_DIGEST),
        (2, RULES.zero_momentum),
        (0, last),
    ):
        signed = a_signed_commit("nora", history, base=base, momentum_before=root)
        assert "momentum does not continue" in refusal(history, signed)
    for base in (1, 3):
        assert f"continues base {base}" in refusal(history, a_signed_commit("nora", history, base=base))


@pytest.mark.parametrize(("method", "states"), [("demo", 0), ("sparseloco", 2), ("fedavg", 2)])
def test_a_commit_names_one_inner_state_for_each_segment_of_the_rule(method, states):
    rule = a_rule(method, steps=1 if method == "demo" else 3, segment=2)
    history = the_start(rule=rule)
    rules = replace(RULES, zero_momentum=zero_root(RUN_ID, rule, BLOCKS))
    for count in range(4):
        inner = tuple(a_digest(f"state {number}") for number in range(count))
        signed = a_signed_commit("nora", history, inner=inner)
        if count == states:
            check_commit(rules, history, STATE, signed)
            continue
        with pytest.raises(PeerFault, match=f"{count} inner states, expected {states}"):
            check_commit(rules, history, STATE, signed)


def test_a_commit_signed_by_another_peer_key_is_refused():
    assert "signature" in refusal(the_start(), a_signed_commit("nora", the_start(), peer_key="nils"))


def test_a_statement_signed_by_another_hot_key_is_refused():
    assert "hot key" in refusal(the_start(), a_signed_commit("nora", the_start(), hot_key="nils"))


@pytest.mark.parametrize("statement", [bytes(65), b"\xff" * 65])
def test_a_statement_that_is_no_signature_is_refused(statement):
    signed = replace(a_signed_commit("nora", the_start()), statement=statement)

    assert "statement" in refusal(the_start(), signed)


def test_a_commit_for_another_run_with_the_same_spec_is_not_replayed_here():
    """The domain of the signature names the run, whatever the field says."""
    commit = a_commit("nora", the_start())
    elsewhere = Domain(DOMAIN.deployment_id, a_digest("other run"))
    signed = replace(
        a_signed_commit("nora", the_start()), signature=sign(a_peer_key("nora"), elsewhere, commit)
    )

    assert "signature" in refusal(the_start(), signed)


# ---- two commits


def test_the_same_commit_again_changes_nothing():
    signed = a_signed_commit("mallory", the_start())
    state = after(the_start(), Submitted(signed))

    assert step(state, Submitted(signed)) == (state, ())


def test_two_different_commits_are_evidence_and_the_first_word_stands():
    history = the_start()
    first = a_signed_commit("mallory", history)
    second = a_signed_commit("mallory", history, update=a_digest("another update"))
    state = after(history, Submitted(first))

    later, effects = step(state, Submitted(second))

    pair = contradiction(first, second)
    assert effects == (Equivocation(pair),)
    assert later.commits == state.commits
    assert later.contradictions == {peer("mallory"): pair}


def test_the_evidence_is_two_statements_about_one_slot_that_the_court_recovers_to_the_hot_key():
    history, spec, deployment = the_start(), a_spec(), a_deployment()
    first = a_signed_commit("mallory", history)
    second = a_signed_commit("mallory", history, loss_micro=1)
    state = after(history, Submitted(first))

    ((evidence,),) = step(state, Submitted(second))[1:]

    statements = [
        commit_statement(spec, signed.commit) for signed in (evidence.pair.first, evidence.pair.second)
    ]
    signers = {
        recover(deployment.digest(statement), signed.statement)
        for statement, signed in zip(statements, (evidence.pair.first, evidence.pair.second), strict=True)
    }
    assert signers == {evm_address(a_member("mallory").hot)}
    assert statements[0].value != statements[1].value
    assert replace(statements[0], value=statements[1].value) == statements[1]


def test_evidence_from_another_verifier_bars_the_node_in_the_next_manifest():
    history = the_start()
    pair = contradiction(
        a_signed_commit("mallory", history), a_signed_commit("mallory", history, update=a_digest("another"))
    )
    state, effects = step(a_round(history), Contradicted(pair))
    assert effects == (Equivocation(pair),)
    assert step(state, Contradicted(pair)) == (state, ())  # told again, it is not told on again

    manifest = manifest_of(state, (), NO_DIGEST)
    examine(a_round(history), (), manifest)

    assert manifest.contradictions == (pair,)
    assert peer("mallory") not in advance(history, manifest).active
    later, _ = step(state, Advanced(advance(history, manifest), STATE, 0))
    assert later.contradictions == {}


def test_a_pair_that_the_node_did_not_sign_with_both_keys_is_no_evidence_anywhere():
    history = the_start()
    mine = a_signed_commit("mallory", history)
    for forged in (
        a_signed_commit("mallory", history, peer_key="nora", update=a_digest("another")),
        a_signed_commit("mallory", history, hot_key="nora", update=a_digest("another")),
    ):
        pair = contradiction(mine, forged)
        with pytest.raises((PeerFault, MalformedMessage)):
            step(a_round(history), Contradicted(pair))
        with pytest.raises((PeerFault, MalformedMessage)):
            examine(a_round(history), (), the_next(history, contradictions=(pair,)))
    with pytest.raises(OutOfPhase):
        step(a_round(history), Contradicted(contradiction(mine, mine)))


def test_a_verifiers_word_on_evidence_is_pooled_carried_and_forgotten_and_a_forged_one_is_refused():
    audit = replace(a_spec().audit, attestation=a_digest("policy"), attested_rounds=6)
    history = advance(the_start(audit=audit), the_next(the_start(audit=audit), NODES))
    word = Appraised(
        run_id=RUN_ID, round=RoundId(0), node=peer("nora"), verifier=peer("vera"),
        discount=Discount.PROCESSOR, evidence=a_digest("evidence"), result=a_digest("result"),
    )  # fmt: skip
    signed = SignedAppraised(appraised=word, signature=sign(a_peer_key("vera"), DOMAIN, word))
    forged = replace(signed, signature=sign(a_peer_key("vito"), DOMAIN, word))
    state = after(history, Valued(signed), *everything(history))

    manifest = manifest_of(state, (), NO_DIGEST)

    assert manifest.appraised == (signed,)
    examine(state, (), replace(manifest, aggregate=NO_DIGEST))
    with pytest.raises(PeerFault):
        step(state, Valued(forged))
    with pytest.raises(PeerFault):
        examine(state, (), replace(manifest, appraised=(forged,)))
    with pytest.raises(OutOfPhase):
        step(state, Valued(replace(signed, appraised=replace(word, round=RoundId(1)))))
    later, _ = step(state, Advanced(advance(history, manifest), STATE, 0))
    assert later.appraised == {}


def test_a_forged_second_commit_is_no_evidence():
    history = the_start()
    state = after(history, Submitted(a_signed_commit("nora", history)))
    forged = a_signed_commit("nora", history, loss_micro=1, peer_key="mallory")

    with pytest.raises(PeerFault, match="signature"):
        step(state, Submitted(forged))


# ---- reveals


def test_a_reveal_counts_for_the_last_manifest_if_its_proof_holds():
    history = grown(the_start(), 1)
    good = a_reveal("vera", history)
    wrong_key = a_reveal("vito", history, verifier=peer("viktor"))
    state = after(history, Revealed(good), Revealed(wrong_key))

    assert valid_reveals(state.reveals, history) == (good,)


@pytest.mark.parametrize(
    "changes",
    [{"round": RoundId(1)}, {"run_id": a_digest("other run")}, {"proof": bytes(80)}, {"proof": b""}],
)
def test_a_reveal_of_another_place_or_without_a_proof_does_not_count(changes):
    history = grown(the_start(), 1)
    state = after(history, Revealed(a_reveal("vera", history, **changes)))

    assert valid_reveals(state.reveals, history) == ()


def test_a_stranger_may_not_reveal():
    with pytest.raises(PeerFault, match="stranger"):
        step(a_round(), Revealed(a_reveal("vera", grown(the_start(), 1), verifier=peer("nora"))))


def test_nonsense_in_a_verifiers_name_never_pushes_out_the_reveal_that_counts():
    history = grown(the_start(), 1)
    good = a_reveal("vera", history)
    junk = [a_reveal("vera", history, proof=bytes([i]) * 80) for i in range(3 * REVEALS_PER_VERIFIER)]

    state = after(history, Revealed(good), *(Revealed(one) for one in junk))

    assert valid_reveals(state.reveals, history) == (good,)
    assert len(state.reveals[peer("vera")]) == REVEALS_PER_VERIFIER


def test_a_verifiers_pool_of_reveals_is_bounded():
    history = grown(the_start(), 1)
    junk = [Revealed(a_reveal("vera", history, proof=bytes([i]) * 80)) for i in range(50)]

    state = after(history, *junk)

    assert len(state.reveals[peer("vera")]) == REVEALS_PER_VERIFIER


def test_a_reveal_that_came_before_its_manifest_was_final_counts_after():
    history = the_start()
    manifest = the_next(history, NODES)
    later = advance(history, manifest)
    state = after(history, Revealed(a_reveal("vera", later)))

    state, _ = step(state, Advanced(later, STATE, 7))

    assert valid_reveals(state.reveals, later) == (a_reveal("vera", later),)


# ---- words about audits


def audited(rounds=2):
    """A history with an open audit of nora whose first auditor may seal now, and that audit."""
    history = grown(the_start(), rounds, votes={})
    return history, history.audits[(RoundId(0), peer("nora"))]


def barred_history(name):
    """A history in which a quorum upheld a fault of this node, while training goes on."""
    history = the_start(rounds=20)
    while not history.nodes[peer(name)].barred:
        votes = {
            step: dict.fromkeys(VERIFIERS, Outcome.MISMATCH if step[1] == peer(name) else Outcome.MATCH)
            for step in history.audits
        }
        history = advance(history, the_next(history, NODES, votes))
    return history


def spoken(name, audit, outcome=Outcome.MATCH, **changes):
    """A verdict, and its seal, as events and values."""
    signed = a_verdict(name, audit, outcome, **changes)
    return a_seal(signed, pattern=audit.pattern), signed


@pytest.mark.parametrize(("kind", "which", "pool"), [(Bound, 0, "seals"), (Judged, 1, "verdicts")])
def test_a_word_is_pooled_with_its_signature_checked_and_the_newest_stands(kind, which, pool):
    history, audit = audited()
    first, second = spoken("vera", audit)[which], spoken("vera", audit, Outcome.MISMATCH)[which]

    state = after(history, kind(first))
    assert list(getattr(state, pool).values()) == [first]
    state, _ = step(state, kind(second))
    assert list(getattr(state, pool).values()) == [second]


@pytest.mark.parametrize(("kind", "which"), [(Bound, 0), (Judged, 1)])
def test_a_word_by_a_stranger_of_another_run_or_signed_by_somebody_else_is_refused(kind, which):
    history, audit = audited()
    mine, other = spoken("vera", audit)[which], spoken("vito", audit)[which]

    with pytest.raises(PeerFault, match="stranger"):
        step(a_round(history), kind(spoken("nils", audit)[which]))
    with pytest.raises(PeerFault, match="another run"):
        step(a_round(history), kind(spoken("vera", audit, run_id=a_digest("other run"))[which]))
    with pytest.raises(PeerFault, match="signature"):
        step(a_round(history), kind(replace(mine, signature=other.signature)))


@pytest.mark.parametrize(("kind", "which", "pool"), [(Bound, 0, "seals"), (Judged, 1, "verdicts")])
def test_a_verifier_may_have_only_so_many_words_waiting_and_takes_nobody_elses_room(kind, which, pool):
    history, audit = audited()
    word = spoken("vera", audit)[which]
    full = {(RoundId(i), peer("nora"), peer("vera")): word for i in range(100, 100 + WORDS_PER_VERIFIER)}
    state = replace(a_round(history), **{pool: full})

    with pytest.raises(PeerFault, match="words waiting"):
        step(state, kind(word))
    state, _ = step(state, kind(spoken("vito", audit)[which]))
    assert len(getattr(state, pool)) == WORDS_PER_VERIFIER + 1


def test_a_word_about_another_time_is_late_and_nobodys_lie():
    history, audit = audited()

    for round_id in (50, int(history.round) + 3):
        far = replace(audit, round=RoundId(round_id))
        with pytest.raises(OutOfPhase):
            step(a_round(history), Judged(a_verdict("vera", far)))


def test_a_node_opens_only_the_seal_of_a_step_that_is_audited_and_only_truly():
    history, audit = audited()
    word = an_unsealing(audit)

    assert list(after(history, Shown(word)).unsealed.values()) == [word]
    with pytest.raises(PeerFault, match="do not open"):
        step(a_round(history), Shown(replace(word, salt=a_digest("other"))))
    with pytest.raises(OutOfPhase):
        step(a_round(history), Shown(replace(word, round=RoundId(40))))
    with pytest.raises(PeerFault, match="does not exist"):
        step(
            a_round(history),
            Shown(Planted(run_id=RUN_ID, round=word.round, node=word.node, index=0, salt=word.salt, path=())),
        )


def test_the_next_round_begins_empty_but_for_words_that_may_still_count():
    history, audit = audited(2)
    history = grown(history, 2, votes={(0, audit.node): {name_of(audit.order[0]): Outcome.MATCH}})
    votes = {(0, audit.node): {name_of(audit.order[0]): Outcome.MATCH}}
    waiting = a_verdict(name_of(audit.order[1]), history.audits[(RoundId(1), audit.node)])
    state = after(history, *everything(history, votes=votes), Judged(waiting))
    assert len(state.verdicts) == 2
    later = advance(history, the_next(history, NODES, votes))

    state, effects = step(state, Advanced(later, a_digest("later parameters"), 99))

    assert effects == ()
    assert (state.history, state.state, state.opened_ms) == (later, a_digest("later parameters"), 99)
    assert not state.commits
    assert list(state.verdicts.values()) == [waiting]  # the chain carries the other


def test_words_are_forgotten_once_no_manifest_can_carry_them():
    history, audit = audited()
    state = after(history, Bound(spoken("vera", audit)[0]), Judged(spoken("vera", audit)[1]))
    bare = replace(history, audits={})
    last = int(audit.round) + history.spec.closing_rounds

    kept, _ = step(state, Advanced(replace(bare, round=RoundId(last)), STATE, 0))
    gone, _ = step(state, Advanced(replace(bare, round=RoundId(last + 1)), STATE, 0))

    assert (len(kept.verdicts), len(kept.seals)) == (1, 1)
    assert (len(gone.verdicts), len(gone.seals)) == (0, 0)


# ---- when to propose


def test_a_leader_waits_for_every_active_node():
    history = the_start()
    state = after(history, *(Submitted(a_signed_commit(name, history)) for name in NODES[:2]))

    assert missing(state) == ("1 commits",)
    assert not may_propose(state, (), 0, follows=True)

    state, _ = step(state, Submitted(a_signed_commit(NODES[2], history)))
    assert missing(state) == ()
    assert may_propose(state, (), 0, follows=True)


def test_a_leader_does_not_wait_for_a_barred_node():
    history = barred_history("mallory")
    others = [name for name in NODES if name != "mallory"]

    state = after(history, *everything(history, nodes=others))

    assert missing(state) == ()


def test_after_the_deadline_a_leader_proposes_what_it_has_and_without_a_commit_it_waits():
    history = the_start()
    collect_ms = history.spec.timing.collect_ms
    nothing = a_round(history, opened_ms=50)
    something, _ = step(nothing, Submitted(a_signed_commit("nora", history)))

    assert not may_propose(something, (), 50 + collect_ms - 1, follows=True)
    assert may_propose(something, (), 50 + collect_ms, follows=True)
    assert not may_propose(nothing, (), 50 + 100 * collect_ms, follows=True)


def test_a_leader_waits_for_all_reveals_until_the_deadline_and_for_a_quorum_for_ever():
    history = grown(the_start(), 1, votes={})
    collect_ms = history.spec.timing.collect_ms
    commits = [Submitted(a_signed_commit(name, history)) for name in NODES]
    with_two = after(history, *commits, *(Revealed(a_reveal(name, history)) for name in VERIFIERS[:2]))
    with_three, _ = step(with_two, Revealed(a_reveal(VERIFIERS[2], history)))
    with_four, _ = step(with_three, Revealed(a_reveal(VERIFIERS[3], history)))

    for follows in (True, False):
        assert not may_propose(with_two, (), 100 * collect_ms, follows=follows)
        assert not may_propose(with_three, (), collect_ms - 1, follows=follows)
        assert may_propose(with_four, (), 0, follows=follows)
    # Only after another leader was given up: who follows at once cannot choose whose share counts.
    assert may_propose(with_three, (), collect_ms, follows=False)
    assert not may_propose(with_three, (), 100 * collect_ms, follows=True)
    assert is_held_up(with_three, collect_ms)
    assert not is_held_up(with_three, collect_ms - 1)
    assert not is_held_up(with_two, collect_ms)
    assert not is_held_up(with_four, collect_ms)


def test_a_leader_that_follows_at_once_is_refused_without_every_share_of_the_beacon():
    history = grown(the_start(), 2, votes={})
    whole = the_next(history, NODES)
    part = replace(whole, reveals=whole.reveals[:3])

    examine(a_round(history), (), whole, follows=True)
    examine(a_round(history), (), part, follows=False)
    with pytest.raises(MalformedMessage, match="3 reveals, expected 4"):
        examine(a_round(history), (), part, follows=True)


def test_whose_share_was_missing_is_away_for_a_while_and_then_asked_again():
    history = grown(the_start(rounds=30), 2, votes={})
    absent = peer(VERIFIERS[3])
    without = replace(the_next(history, NODES), reveals=the_next(history, NODES).reveals[:3])
    history = advance(history, without)
    assert absent not in history.beacon

    with pytest.raises(MalformedMessage, match="that was away"):
        examine(a_round(history), (), the_next(history, NODES), follows=True)
    state = after(history, *(Revealed(a_reveal(name, history)) for name in VERIFIERS))
    assert absent not in {reveal.verifier for reveal in valid_reveals(state.reveals, history)}
    for _ in range(BEACON_PAUSE):
        assert absent not in history.beacon
        manifest = the_next(history, NODES)
        history = advance(history, replace(manifest, reveals=manifest.reveals[:3]))
    assert absent in history.beacon
    assert len(history.reveals[int(history.round) - 2]) == 3


def test_too_many_away_are_all_asked_again():
    history = grown(the_start(), 2, votes={})
    manifest = the_next(history, NODES)

    assert set(advance(history, replace(manifest, reveals=manifest.reveals[:2])).beacon) == {
        peer(name) for name in VERIFIERS
    }


def test_reveals_are_due_after_a_round_without_commits_too():
    history = grown(the_start(), 1, nodes=(), votes={})

    state = after(history, *(Submitted(a_signed_commit(name, history)) for name in NODES))

    assert missing(state) == ("reveals",)


def without_words(history):
    return [event for event in everything(history) if isinstance(event, (Submitted, Revealed))]


def test_a_leader_waits_for_one_seal_on_each_audit_whose_last_chance_this_is():
    history = grown(the_start(), 3, votes={})
    audits = [audit for audit in history.audits.values() if audit.round == 0]
    state = after(history, *without_words(history))
    assert history.round == history.spec.audit.audit_rounds - 1

    for audit in audits:  # words on other steps decide nothing about these
        other = history.audits[(RoundId(1), audit.node)]
        state, _ = step(state, Bound(spoken(name_of(audit.order[0]), other)[0]))
    assert missing(state) == ("verdicts",)
    for audit in audits:
        state, _ = step(state, Bound(spoken(name_of(audit.order[1]), audit)[0]))
    assert missing(state) == ()


def test_a_leader_waits_for_sealed_verdicts_and_the_nodes_sketch_at_their_last_chance():
    history = grown(the_start(), 2, votes={})
    first = {step: {name_of(a.order[0]): Outcome.MATCH} for step, a in history.audits.items()}
    history = grown(history, 2, votes=first)
    state = after(history, *without_words(history))
    assert missing(state) == ("verdicts",)

    for audit in (a for a in history.audits.values() if a.round == 0):
        state, _ = step(state, Judged(spoken(name_of(audit.order[0]), audit)[1]))
    assert missing(state) == ("verdicts",)
    for audit in (a for a in history.audits.values() if a.round == 0):
        state, _ = step(state, Shown(an_unsealing(audit)))
    # Round 1's audits have one more chance to be sealed now, and that is waited for too.
    for audit in (a for a in history.audits.values() if a.round == 1):
        state, _ = step(state, Bound(spoken(name_of(audit.order[0]), audit)[0]))
    assert missing(state) == ()


def test_a_verdict_that_does_not_open_its_seal_is_not_what_a_leader_waits_for():
    history = grown(the_start(), 2, votes={})
    step_id = (RoundId(0), peer("nora"))
    auditor = name_of(history.audits[step_id].order[0])
    history = grown(history, 2, votes={step_id: {auditor: Outcome.MATCH}})

    other = spoken(auditor, history.audits[step_id], Outcome.MISMATCH)[1]
    state = after(history, *without_words(history), Judged(other))

    assert manifest_of(state, (), AGGREGATE).verdicts == ()
    assert missing(state) == ("verdicts",)


def test_a_leader_does_not_wait_for_words_that_have_time():
    history = grown(the_start(), 2, votes={})

    assert missing(after(history, *without_words(history))) == ()


def test_a_leader_leaves_out_a_seal_that_was_made_before_the_alarm_and_goes_on_waiting_for_its_verifier():
    step_id = (RoundId(0), peer("nora"))
    history = grown(the_start(), 2, votes={})
    order = [name_of(verifier) for verifier in history.audits[step_id].order]
    early = Bound(spoken(order[1], history.audits[step_id])[0])
    alarm = grown(history, 3, votes={step_id: {order[0]: Outcome.MISMATCH}})
    calm = {step: v for step, v in everyone(alarm).items() if step != step_id}
    history = grown(alarm, 1, votes=calm)
    calm = {step: v for step, v in everyone(history).items() if step != step_id}
    fresh = [Bound(spoken(name, history.audits[step_id])[0]) for name in order[1:]]

    state = after(history, *everything(history, votes=calm), *fresh[1:], early)

    assert order[1] not in {name_of(s.seal.verifier) for s in manifest_of(state, (), AGGREGATE).seals
                            if (s.seal.round, s.seal.node) == step_id}  # fmt: skip
    assert missing(state) == ("verdicts",)
    assert missing(step(state, fresh[0])[0]) == ()


def test_in_a_dispute_the_last_chance_waits_for_the_whole_committee():
    step_id = (RoundId(0), peer("nora"))
    start = grown(the_start(), 2, votes={})
    order = [name_of(verifier) for verifier in start.audits[step_id].order]
    alarm = grown(start, 3, votes={step_id: {order[0]: Outcome.MISMATCH}})
    audit = alarm.audits[step_id]
    assert audit.ruling is Ruling.ALARM
    others = {step: v for step, v in everyone(alarm).items() if step != step_id}
    history = grown(alarm, 1, votes=others)  # one manifest more, in which the committee says nothing
    calm = {step: v for step, v in everyone(history).items() if step != step_id}
    state = after(history, *everything(history, votes=calm))
    assert missing(state) == ("verdicts",)

    for name in order[1:]:
        assert missing(state) == ("verdicts",)
        state, _ = step(state, Bound(spoken(name, history.audits[step_id])[0]))

    assert missing(state) == ()


@pytest.mark.parametrize("verifier_count", [*range(1, 20), 31, 64])
def test_liars_alone_never_uphold_a_fault_however_many_verifiers_there_are(verifier_count):
    """The draw may put every liar first in the order; one honest verifier must still agree."""
    order = tuple(a_digest(f"verifier {i}") for i in range(verifier_count))
    audit = replace(an_audit_of_nothing(), order=order)

    assert quorum(len(audit.committee)) > faults_tolerated(verifier_count)
    assert len(audit.committee) <= max(5, verifier_count // 2 + 1)
    assert len(audit.committee) >= min(5, verifier_count)


# ---- proposing on a parent that is notarised, not final


def test_on_a_parent_that_is_not_final_a_manifest_carries_no_commits_and_waits_for_none():
    history = the_start()
    parent = the_next(history, NODES)
    on_top = base_history(history, (parent,))
    state = after(
        history,
        *(Submitted(a_signed_commit(name, history)) for name in NODES),
        *(Revealed(a_reveal(name, on_top)) for name in VERIFIERS),
    )

    assert missing(state, (parent,)) == ()
    manifest = manifest_of(state, (parent,), NO_DIGEST)

    assert manifest.commits == () and manifest.round == 1 and len(manifest.reveals) == 4
    examine(state, (parent,), manifest)


def test_commits_on_a_parent_that_is_not_final_are_refused():
    history = the_start()
    parent = the_next(history, NODES)
    on_top = base_history(history, (parent,))

    with pytest.raises(MalformedMessage, match="parent that is not final"):
        examine(a_round(history), (parent,), the_next(on_top, NODES))


def test_ancestors_that_are_final_by_now_are_passed_over():
    history = the_start()
    parent = the_next(history, NODES)
    later = advance(history, parent)

    assert base_history(later, (parent,)) == later


def test_ancestors_that_the_final_chain_left_aside_end_no_process():
    """Two blocks were notarised in a row, then another first block became final."""
    history = the_start()
    abandoned = the_next(history, NODES)
    on_top = the_next(advance(history, abandoned))
    final = advance(history, the_next(history, NODES[:1]))

    assert base_history(final, (abandoned, on_top)) == final
    with pytest.raises(MalformedMessage):
        examine(a_round(final), (abandoned, on_top), the_next(advance(advance(history, abandoned), on_top)))


# ---- what an honest leader proposes passes everywhere


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_whatever_an_honest_leader_proposes_another_honest_verifier_accepts(data):
    """Also with liars about: events come in any order, some not at all, some are nonsense."""
    history = the_start(rounds=4)
    for _ in range(data.draw(st.integers(1, 9), "rounds")):
        outcomes = st.sampled_from(list(Outcome))
        lies = [
            kind(word)
            for audit in history.audits.values()
            for name in VERIFIERS
            for kind, word in zip((Bound, Judged), spoken(name, audit, data.draw(outcomes)), strict=True)
        ]
        nonsense = [
            Revealed(replace(a_reveal("vera", grown(the_start(), 1)), round=history.round, proof=bytes(80))),
            Submitted(a_signed_commit("mallory", history, loss_micro=3)),
            Submitted(a_signed_commit("nora", history, tokens=1)),
            Judged(a_verdict("vlad", an_audit_of_nothing())),
        ]
        events = data.draw(st.permutations([*everything(history), *lies, *nonsense]), "order")
        events = events[: data.draw(st.integers(0, len(events)), "arrived")]
        leader = a_round(history)
        for event in events:
            try:
                leader, _ = step(leader, event)
            except (PeerFault, OutOfPhase):
                continue
        if not may_propose(leader, (), 1 << 40, follows=True):
            for event in everything(history):
                leader, _ = step(leader, event)
        manifest = manifest_of(leader, (), AGGREGATE if leader.commits else NO_DIGEST)

        examine(a_round(history), (), manifest)
        if history.round == 0:
            assert extend(history, a_certified(manifest)) == advance(history, manifest)
        history = advance(history, manifest)


def an_audit_of_nothing():
    return Audit(
        round=RoundId(77), node=peer("nora"), commit=a_commit("nora", the_start()), seed=NO_DIGEST, order=()
    )


# ---- what a lying leader proposes


def proposable(rounds_before=4):
    """A manifest with commits, reveals, seals, verdicts and sketches that passes, and its history."""
    history = grown(the_start(), rounds_before)
    leader = after(history, *everything(history))
    manifest = manifest_of(leader, (), AGGREGATE)
    assert manifest.commits and manifest.reveals and manifest.seals
    assert manifest.verdicts and manifest.unsealed
    examine(a_round(history), (), manifest)
    return history, manifest


def relinked(history, manifest, **changes):
    """The manifest with changes and a chain digest that follows from them."""
    manifest = replace(manifest, **changes)
    commits = tuple(signed.commit for signed in manifest.commits)
    return replace(manifest, chain=next_chain(history.chain, commits, manifest.aggregate))


def refused(history, manifest, words):
    with pytest.raises(AssayError, match=words):
        examine(a_round(history), (), manifest)


def test_reordered_or_repeated_commits_are_refused():
    history, manifest = proposable()
    backwards = tuple(reversed(manifest.commits))
    twice = (manifest.commits[0], *manifest.commits)

    refused(history, relinked(history, manifest, commits=backwards), "ascend by node")
    refused(history, relinked(history, manifest, commits=twice), "ascend by node")


def test_a_commit_that_breaks_a_rule_is_refused_inside_a_proposal_too():
    history, manifest = proposable()
    bad = a_signed_commit(name_of(manifest.commits[0].commit.node), history, loss_micro=LOSS_MICRO_MAX + 1)
    forged = replace(manifest.commits[0], signature=manifest.commits[1].signature)

    refused(history, relinked(history, manifest, commits=(bad, *manifest.commits[1:])), "a loss of")
    refused(history, relinked(history, manifest, commits=(forged, *manifest.commits[1:])), "signature")


def test_dropping_a_commit_is_no_lie_that_can_be_seen():
    history, manifest = proposable()

    examine(a_round(history), (), relinked(history, manifest, commits=manifest.commits[1:]))


def test_reveals_are_a_quorum_of_true_ones_of_this_round():
    history, manifest = proposable()
    first, *rest = manifest.reveals
    false = replace(first, proof=rest[0].proof)
    late = replace(first, round=RoundId(1))
    stranger = replace(first, verifier=peer("nora"))

    examine(a_round(history), (), replace(manifest, reveals=manifest.reveals[:3]))
    refused(history, replace(manifest, reveals=manifest.reveals[:2]), "expected 3")
    refused(history, replace(manifest, reveals=()), "expected 3")
    refused(history, replace(manifest, reveals=(false, *rest)), "VRF proof")
    refused(history, replace(manifest, reveals=(late, *rest)), "another round")
    refused(history, replace(manifest, reveals=(first, *manifest.reveals)), "ascend by verifier")
    refused(history, replace(manifest, reveals=tuple(sorted((stranger, *rest), key=str))), "reveal")


def test_reveals_before_the_first_round_are_refused():
    history = the_start()
    manifest = the_next(history, NODES)

    strange = a_reveal("vera", grown(history, 1))
    refused(history, replace(manifest, reveals=(strange,)), "before there is a round")


def test_words_with_a_forged_signature_are_refused():
    history, manifest = proposable()
    seal, verdict = manifest.seals[0], manifest.verdicts[0]

    for changes in (
        {"seals": (replace(seal, signature=manifest.seals[1].signature), *manifest.seals[1:])},
        {"verdicts": (replace(verdict, signature=seal.signature), *manifest.verdicts[1:])},
    ):
        refused(history, replace(manifest, **changes), "signature")


def test_words_of_another_run_are_refused_although_their_verifier_signed_them():
    history, manifest = proposable()
    first = manifest.seals[0]
    audit = history.audits[(first.seal.round, first.seal.node)]
    strange = a_seal(a_verdict(name_of(audit.order[0]), audit), run_id=a_digest("other run"))

    refused(history, replace(manifest, seals=(strange,)), "another run")


def test_a_seal_by_somebody_who_is_not_on_duty_is_refused():
    history, audit = audited()
    manifest = the_next(history, NODES)

    examine(a_round(history), (), replace(manifest, seals=(spoken(name_of(audit.order[0]), audit)[0],)))
    for early in audit.order[1:]:
        refused(history, replace(manifest, seals=(spoken(name_of(early), audit)[0],)), "may not seal")


def test_a_word_on_a_step_that_was_never_drawn_is_refused():
    history, _ = audited()
    manifest = the_next(history, NODES)
    seal, verdict = spoken("vera", an_audit_of_nothing())

    refused(history, replace(manifest, verdicts=(verdict,)), "not audited")
    refused(history, replace(manifest, seals=(seal,)), "not audited")


def test_one_verifier_has_one_verdict_on_a_step():
    history, manifest = proposable()
    first = manifest.verdicts[0]

    refused(history, replace(manifest, verdicts=(first, first)), "verdicts must ascend")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"chain": a_digest("other chain")}, "chain digest"),
        ({"parent": a_digest("other parent")}, "does not extend"),
        ({"round": RoundId(1)}, "expected round 4"),
        ({"run_id": a_digest("other run")}, "another run"),
        ({"aggregate": a_digest("other aggregate")}, "chain digest"),
        ({"aggregate": NO_DIGEST}, "chain digest"),
        ({"commits": ()}, "aggregate of no commits"),
    ],
)
def test_a_manifest_that_does_not_fit_its_place_is_refused(changes, words):
    history, manifest = proposable()

    refused(history, replace(manifest, **changes), words)
