"""Round: what a verifier collects for the next manifest, and what it lets pass.

Room: verifier (pure). Messages come in as values; the driver holds the updates'
bytes and has checked that they decode. A commit is judged by the rules below, by
every verifier alike, and once more inside a proposal: an honest leader never
proposes what another honest verifier must refuse.

    Submitted --> kept once per node; a different second one is evidence
    Contradicted --> the evidence is pooled: the next manifest bars the node
    Revealed, and words about audits --> pooled until a manifest carries them
    Advanced --> the next round begins empty
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from assay.participant.links import check_place
from assay.protocol import audits
from assay.protocol.audits import Audit, Ruling
from assay.protocol.commitments import check_planted, check_unsealed
from assay.protocol.errors import MalformedMessage, OutOfPhase, PeerFault
from assay.protocol.identity import verify
from assay.protocol.messages import (
    BACKINGS_MAX,
    CONTRADICTIONS_MAX,
    Contradiction,
    Manifest,
    Planted,
    Reveal,
    SignedAppraised,
    SignedBacking,
    SignedCommit,
    SignedVerdict,
    SignedVerdictSeal,
    Unsealed,
    Verdict,
    VerdictSeal,
)
from assay.protocol.state_transition import (
    History,
    StepId,
    advance,
    awaited,
    may_appraise,
    may_back,
    may_contradict,
    may_reveal,
    may_seal,
    next_chain,
)
from assay.protocol.types import Digest, PeerId, RoundId, Signature
from assay.verifier.round import drand as outside
from assay.verifier.round.beacon import check_reveals, pooled, reveals_needed, valid_reveals
from assay.verifier.round.commits import Rules, check_commit, check_contradiction, contradiction

WORDS_PER_VERIFIER = 1024  # seals and verdicts pooled for later rounds, each; 250 and 450 bytes
WORDS_PER_MANIFEST = 110  # of each kind, oldest first; the rest goes into the next one
APPRAISALS_PER_MANIFEST = 32
Word = tuple[RoundId, PeerId, PeerId]  # of a verifier about a step
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Everything a verifier holds for the manifest of `history.round`."""

    rules: Rules
    history: History
    state: Digest  # of the parameters that commits of this round must have used
    opened_ms: int
    commits: Mapping[PeerId, SignedCommit] = field(default_factory=dict)
    reveals: Mapping[PeerId, tuple[Reveal, ...]] = field(default_factory=dict)
    seals: Mapping[Word, SignedVerdictSeal] = field(default_factory=dict)
    verdicts: Mapping[Word, SignedVerdict] = field(default_factory=dict)
    unsealed: Mapping[StepId, Unsealed] = field(default_factory=dict)
    planted: Mapping[StepId, Planted] = field(default_factory=dict)
    contradictions: Mapping[PeerId, Contradiction] = field(default_factory=dict)
    backings: Mapping[tuple[PeerId, PeerId], SignedBacking] = field(default_factory=dict)
    drand: Mapping[int, bytes] = field(default_factory=dict)  # checked signatures, by drand round
    appraised: Mapping[tuple[PeerId, PeerId], SignedAppraised] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Submitted:
    """A commit whose update is held and decodes."""

    signed: SignedCommit


@dataclass(frozen=True, slots=True)
class Revealed:
    """A verifier's share of the beacon."""

    reveal: Reveal


@dataclass(frozen=True, slots=True)
class Bound:
    """A verifier's sealed verdict; its signature is checked here."""

    signed: SignedVerdictSeal


@dataclass(frozen=True, slots=True)
class Judged:
    """A verdict; its signature is checked here."""

    signed: SignedVerdict


@dataclass(frozen=True, slots=True)
class Shown:
    """A node opens the seal of a drawn step, or shows that its fault was planted."""

    word: Unsealed | Planted


@dataclass(frozen=True, slots=True)
class Contradicted:
    """Two commits of one node for one round; both are checked here."""

    pair: Contradiction


@dataclass(frozen=True, slots=True)
class Released:
    """A round of the run's drand network; its signature is checked already."""

    number: int
    signature: bytes


@dataclass(frozen=True, slots=True)
class Valued:
    """A verifier's word on a node's evidence; its signature is checked here."""

    signed: SignedAppraised


@dataclass(frozen=True, slots=True)
class Weighed:
    """A verifier's word on the stake behind a node; its signature is checked here."""

    signed: SignedBacking


@dataclass(frozen=True, slots=True)
class Advanced:
    """A manifest became final and the parameters followed."""

    history: History
    state: Digest
    now_ms: int


@dataclass(frozen=True, slots=True)
class Equivocation:
    """Effect: evidence that we did not have, for the slash court and for all other verifiers."""

    pair: Contradiction


Event = Submitted | Revealed | Bound | Judged | Shown | Contradicted | Released | Valued | Weighed | Advanced


def step(state: Round, event: Event) -> tuple[Round, tuple[Equivocation, ...]]:
    """The round with one more message in it.

    Raises:
        PeerFault: the message breaks a rule; state is unchanged.
        OutOfPhase: it belongs to another round.
    """
    match event:
        case Submitted(signed):
            check_commit(state.rules, state.history, state.state, signed)
            known = state.commits.get(signed.commit.node)
            if known is None:
                return replace(state, commits={**state.commits, signed.commit.node: signed}), ()
            # The first word stands; a second, different one is evidence and nothing else.
            if known.commit == signed.commit:
                return state, ()
            return _contradicted(state, contradiction(known, signed))
        case Contradicted(pair):
            check_contradiction(state.rules, state.history, pair)
            return _contradicted(state, pair)
        case Released(number, signature):
            return replace(state, drand=outside.pooled(state.drand, number, signature)), ()
        case Valued(signed_word):
            word = signed_word.appraised
            if not may_appraise(state.history, word):
                raise OutOfPhase(word.verifier, f"Appraised of evidence of round {word.round}")
            verify(word.verifier, state.rules.domain, word, signed_word.signature)
            appraised = {**state.appraised, (word.node, word.verifier): signed_word}
            return replace(state, appraised=appraised), ()
        case Weighed(signed_backing):
            backing = signed_backing.backing
            if not may_back(state.history, backing):
                raise OutOfPhase(backing.verifier, f"Backing of round {backing.round}")
            verify(backing.verifier, state.rules.domain, backing, signed_backing.signature)
            backings = {**state.backings, (backing.node, backing.verifier): signed_backing}
            return replace(state, backings=backings), ()
        case Revealed(reveal):
            if reveal.verifier not in state.history.spec.verifier_peers:
                raise PeerFault(reveal.verifier, "Reveal by a stranger to this run")
            kept = pooled(state.reveals.get(reveal.verifier, ()), reveal, state.history)
            return replace(state, reveals={**state.reveals, reveal.verifier: kept}), ()
        case Bound(signed_seal):
            _check_word(state, signed_seal.seal, signed_seal.signature, state.seals)
            key = _word_of(signed_seal.seal)
            return replace(state, seals={**state.seals, key: signed_seal}), ()
        case Judged(signed_verdict):
            _check_word(state, signed_verdict.verdict, signed_verdict.signature, state.verdicts)
            key = _word_of(signed_verdict.verdict)
            return replace(state, verdicts={**state.verdicts, key: signed_verdict}), ()
        case Shown(word):
            return _shown(state, word), ()
        case Advanced(history, parameters, now_ms):
            return Round(
                rules=state.rules,
                history=history,
                state=parameters,
                opened_ms=now_ms,
                reveals=state.reveals,
                seals={k: v for k, v in state.seals.items() if _is_wanted(history, k)},
                verdicts={k: v for k, v in state.verdicts.items() if _is_wanted(history, k)},
                unsealed={k: v for k, v in state.unsealed.items() if _is_near(history, k)},
                planted={k: v for k, v in state.planted.items() if _is_near(history, k)},
                backings={k: one for k, one in state.backings.items() if may_back(history, one.backing)},
                drand=state.drand,
                contradictions={
                    node: pair for node, pair in state.contradictions.items() if may_contradict(history, pair)
                },
                appraised={
                    k: one for k, one in state.appraised.items() if may_appraise(history, one.appraised)
                },
            ), ()


def missing(state: Round, ancestors: tuple[Manifest, ...] = ()) -> tuple[str, ...]:
    """What a leader still waits for, in words; empty when the manifest can be made."""
    history = base_history(state.history, ancestors)
    lacking = []
    if not ancestors:
        absent = len(set(history.active) - set(state.commits))
        if absent:
            lacking.append(f"{absent} commits")
    if history.round and len(valid_reveals(state.reveals, history)) < len(history.beacon):
        lacking.append("reveals")
    if outside.is_waited_for(history, state.drand):
        lacking.append("drand")
    if any(_lacks_words(state, history, step) for step in awaited(history)):
        lacking.append("verdicts")
    return tuple(lacking)


def may_propose(state: Round, ancestors: tuple[Manifest, ...], now_ms: int, *, follows: bool) -> bool:
    """Whether a leader should propose now: everything is in, or enough is and time is up.

    Args:
        state: What it holds.
        ancestors: Notarised manifests it builds on.
        now_ms: The time.
        follows: No iteration was given up since the parent's; then every share of the beacon is needed.
    """
    lacking = missing(state, ancestors)
    if not lacking:
        return True
    history = base_history(state.history, ancestors)
    shares = len(valid_reveals(state.reveals, history))
    if history.round and shares < reveals_needed(history, follows=follows):
        return False
    if follows and outside.is_waited_for(history, state.drand):
        return False
    has_work = bool(state.commits) or bool(ancestors) or not history.is_training
    return has_work and now_ms >= state.opened_ms + history.spec.timing.collect_ms


def is_held_up(state: Round, now_ms: int, *, wall_s: int = 0) -> bool:
    """Whether nothing but parts of the beacon keeps a leader that follows from proposing.

    Then waiting longer helps nobody: once this leader's iteration is given up, the next may do without.
    A drand round that is still to come is worth waiting for. wall_s: Unix time, for runs with one.
    """
    if outside.is_coming(state.history, state.drand, wall_s):
        return False
    may_do_without = may_propose(state, (), now_ms, follows=False)
    return may_do_without and not may_propose(state, (), now_ms, follows=True)


def manifest_of(
    state: Round, ancestors: tuple[Manifest, ...], aggregate: Digest, *, wall_s: int = 0
) -> Manifest:
    """The manifest a leader proposes.

    Args:
        state: What it holds.
        ancestors: Notarised manifests it builds on.
        aggregate: Zero where no commit is carried, or the rule refuses.
        wall_s: Unix time, for runs with a drand network.
    """
    history = base_history(state.history, ancestors)
    commits = () if ancestors else tuple(signed for _, signed in sorted(state.commits.items()))
    seals = (
        signed
        for (round_id, node, verifier), signed in sorted(state.seals.items())
        if (audit := history.audits.get((round_id, node))) is not None
        and may_seal(history, audit, verifier)
        and signed.seal.pattern == audit.pattern
    )
    verdicts = (
        signed
        for (round_id, node, _), signed in sorted(state.verdicts.items())
        if (audit := history.audits.get((round_id, node))) is not None
        and may_reveal(history, audit, signed.verdict)
    )
    return Manifest(
        run_id=history.run_id,
        round=history.round,
        parent=history.parent,
        commits=commits,
        reveals=valid_reveals(state.reveals, history) if history.round else (),
        drand=outside.carried(history, state.drand),
        drand_next=outside.next_number(history, wall_s),
        seals=_first(seals),
        verdicts=_first(verdicts),
        unsealed=_first(word for _, word in sorted(state.unsealed.items()) if _may_show(history, word)),
        planted=_first(word for _, word in sorted(state.planted.items()) if _may_show(history, word)),
        contradictions=tuple(
            pair for _, pair in sorted(state.contradictions.items()) if may_contradict(history, pair)
        )[:CONTRADICTIONS_MAX],
        appraised=tuple(
            one for _, one in sorted(state.appraised.items()) if may_appraise(history, one.appraised)
        )[:APPRAISALS_PER_MANIFEST],
        backings=_oldest(state, history),
        excluded=history.excluded,
        aggregate=aggregate,
        chain=next_chain(history.chain, tuple(signed.commit for signed in commits), aggregate),
    )


def examine(
    state: Round,
    ancestors: tuple[Manifest, ...],
    manifest: Manifest,
    *,
    follows: bool = False,
    wall_s: int = 0,
) -> None:
    """Do nothing if this verifier may vote for a proposed manifest, its aggregate aside.

    Args:
        state: What it holds.
        ancestors: Notarised manifests that the proposed one builds on.
        manifest: The proposed one.
        follows: No iteration was given up since the parent's.
        wall_s: Unix time, for runs with a drand network.

    Raises:
        MalformedMessage, PeerFault, OutOfPhase: the rule it breaks.
    """
    history = base_history(state.history, ancestors)
    check_place(history, manifest)
    outside.check_outside(history, manifest, follows=follows, wall_s=wall_s)
    for signed in manifest.commits:
        if ancestors:
            raise MalformedMessage("manifest with commits on a parent that is not final")
        check_commit(state.rules, history, state.state, signed)
    check_reveals(history, manifest, follows=follows)
    for signed_seal in manifest.seals:
        seal = signed_seal.seal
        if seal.run_id != history.run_id:
            raise MalformedMessage("manifest carries a sealed verdict of another run")
        verify(seal.verifier, state.rules.domain, seal, signed_seal.signature)
    for signed_verdict in manifest.verdicts:
        verdict = signed_verdict.verdict
        if verdict.run_id != history.run_id:
            raise MalformedMessage("manifest carries a verdict of another run")
        verify(verdict.verifier, state.rules.domain, verdict, signed_verdict.signature)
    for pair in manifest.contradictions:
        check_contradiction(state.rules, history, pair)
    for signed_backing in manifest.backings:
        backing = signed_backing.backing
        verify(backing.verifier, state.rules.domain, backing, signed_backing.signature)
    for signed_word in manifest.appraised:
        word = signed_word.appraised
        verify(word.verifier, state.rules.domain, word, signed_word.signature)


def _oldest(state: Round, history: History) -> tuple[SignedBacking, ...]:
    """Words on stake for a manifest, in its order: those that have waited longest."""
    fit = (item for item in sorted(state.backings.items()) if may_back(history, item[1].backing))
    first = sorted(fit, key=lambda item: item[1].backing.round)[:BACKINGS_MAX]
    return tuple(signed for _, signed in sorted(first, key=lambda item: item[0]))


def base_history(history: History, ancestors: tuple[Manifest, ...]) -> History:
    """The history a manifest on top of these notarised, not yet final manifests extends."""
    for manifest in ancestors:
        # One that does not extend us was overtaken: the chain went on beside it.
        if manifest.round == history.round and manifest.parent == history.parent:
            history = advance(history, manifest)
    return history


def _check_word(
    state: Round,
    word: VerdictSeal | Verdict,
    signature: Signature,
    pool: Mapping[Word, SignedVerdictSeal] | Mapping[Word, SignedVerdict],
) -> None:
    """Do nothing if this is a verifier's word that may be pooled. Its newest stands: it alone can sign it."""
    history, verifier = state.history, word.verifier
    if word.run_id != history.run_id or verifier not in history.spec.verifier_peers:
        raise PeerFault(verifier, f"{type(word).__name__} of another run or by a stranger")
    if not _is_near(history, (word.round, word.node)):
        raise OutOfPhase(verifier, f"{type(word).__name__} on round {word.round} at {history.round}")
    verify(verifier, state.rules.domain, word, signature)
    if _word_of(word) not in pool and sum(key[2] == verifier for key in pool) >= WORDS_PER_VERIFIER:
        raise PeerFault(verifier, f"more than {WORDS_PER_VERIFIER} words waiting")


def _contradicted(state: Round, pair: Contradiction) -> tuple[Round, tuple[Equivocation, ...]]:
    node = pair.first.commit.node
    if node in state.contradictions:
        return state, ()  # one is enough
    return replace(state, contradictions={**state.contradictions, node: pair}), (Equivocation(pair),)


def _shown(state: Round, word: Unsealed | Planted) -> Round:
    history, step = state.history, (word.round, word.node)
    audit = history.audits.get(step)
    if word.run_id != history.run_id or audit is None:
        raise OutOfPhase(word.node, f"{type(word).__name__} of round {word.round}, which is not audited here")
    try:
        if isinstance(word, Unsealed):
            check_unsealed(word, audit.commit, audit.segment)
            return replace(state, unsealed={**state.unsealed, step: word})
        check_planted(word, history.spec.audit.canaries, history.spec.audit.canary_count)
    except MalformedMessage as fault:
        raise PeerFault(word.node, str(fault)) from None
    return replace(state, planted={**state.planted, step: word})


def _may_show(history: History, word: Unsealed | Planted) -> bool:
    audit = history.audits.get((word.round, word.node))
    if audit is None:
        return False
    if isinstance(word, Unsealed):
        return audits.may_unseal(audit, int(history.round))
    return audits.may_plant(history.spec.audit, audit, int(history.round))


def _word_of(word: VerdictSeal | Verdict) -> Word:
    return word.round, word.node, word.verifier


def _first(words: Iterable[T]) -> tuple[T, ...]:
    return tuple(itertools.islice(words, WORDS_PER_MANIFEST))


def _is_near(history: History, step: StepId) -> bool:
    """Whether words about this step can still come, or could if we were a little ahead."""
    return history.round - history.spec.closing_rounds <= step[0] <= history.round + 2


def _is_wanted(history: History, key: Word) -> bool:
    """Whether the chain may still take this verifier's word on this step."""
    audit: Audit | None = history.audits.get((key[0], key[1]))
    if audit is None:
        return _is_near(history, (key[0], key[1]))
    return audit.is_open and not audit.has_judged(key[2])


def _lacks_words(state: Round, history: History, step: StepId) -> bool:
    """Whether a word is not here for which the next manifest is the last chance."""
    audit = history.audits[step]
    seals, verdicts, wants_sketch = audits.awaits(history.spec.audit, audit, int(history.round))
    pooled = ((v, state.seals.get((*step, v))) for v in seals)
    sealed = {v for v, one in pooled if one is not None and one.seal.pattern == audit.pattern}
    if (len(sealed) < len(seals)) if audit.ruling is Ruling.ALARM else (seals and not sealed):
        return True
    held = (state.verdicts.get((*step, v)) for v in verdicts)
    if any(one is None or not may_reveal(history, audit, one.verdict) for one in held):
        return True
    return wants_sketch and step not in state.unsealed
