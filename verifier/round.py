"""Round: what a verifier collects for the next manifest, and what it lets pass.

Room: verifier (pure). Messages come in as values; the driver holds the updates'
bytes and has checked that they decode. A commit is judged by the rules below, by
every verifier alike, and once more inside a proposal: an honest leader never
proposes what another honest verifier must refuse.

    Submitted --> kept once per node; a different second one is evidence
    Revealed, and words about audits --> pooled until a manifest carries them
    Advanced --> the next round begins empty
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from ledger.deployment import Deployment
from ledger.evidence import check_commit_statement
from protocol import audits
from protocol.audits import Audit, Ruling
from protocol.draws import beacon_input
from protocol.errors import AssayError, MalformedMessage, OutOfPhase, PeerFault
from protocol.history import History, StepId, advance, awaited, may_reveal, may_seal, next_chain
from protocol.identity import Domain, verify
from protocol.messages import (
    Manifest,
    Planted,
    Reveal,
    SignedCommit,
    SignedVerdict,
    SignedVerdictSeal,
    Unsealed,
    Verdict,
    VerdictSeal,
)
from protocol.quorum import quorum
from protocol.seals import check_planted, check_unsealed
from protocol.types import NO_DIGEST, Digest, PeerId, RoundId, Signature
from protocol.vrf import verify as verify_vrf
from replica.chain import check_place
from training.contribution import contribution_bytes_max
from training.data import batch_positions, batch_root

WORDS_PER_VERIFIER = 1024  # seals and verdicts pooled for later rounds, each; 250 and 450 bytes
REVEALS_PER_VERIFIER = 4  # pooled: of the last manifest, and of those notarised but not final here
WORDS_PER_MANIFEST = 110  # of each kind, oldest first; the rest goes into the next one
LOSS_MICRO_MAX = 10**9
Word = tuple[RoundId, PeerId, PeerId]  # of a verifier about a step
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What never changes during a run."""

    deployment: Deployment
    domain: Domain
    zero_momentum: Digest  # root of the momentum a node starts with
    block_count: int


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
class Advanced:
    """A manifest became final and the parameters followed."""

    history: History
    state: Digest
    now_ms: int


@dataclass(frozen=True, slots=True)
class Equivocation:
    """Effect: two commits of one node for one round, each signed: evidence for the slash court."""

    first: SignedCommit
    second: SignedCommit


Event = Submitted | Revealed | Bound | Judged | Shown | Advanced


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
            return state, () if known.commit == signed.commit else (Equivocation(known, signed),)
        case Revealed(reveal):
            if reveal.verifier not in state.history.spec.verifier_peers:
                raise PeerFault(reveal.verifier, "Reveal by a stranger to this run")
            kept = _pooled(state, reveal)
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
            ), ()


def check_commit(rules: Rules, history: History, state: Digest, signed: SignedCommit) -> None:
    """Do nothing if the next manifest may carry this commit.

    Raises:
        OutOfPhase: it is for another round or parent.
        PeerFault: which field breaks which rule.
    """
    commit, spec = signed.commit, history.spec

    def need(holds: bool, words: str) -> None:
        if not holds:
            raise PeerFault(commit.node, f"Commit of round {commit.round}: {words}")

    need(commit.run_id == history.run_id, "is of another run")
    if commit.round != history.round or commit.parent != history.parent:
        raise OutOfPhase(commit.node, f"Commit of round {commit.round} during round {history.round}")
    need(commit.node in history.active, "this node may not train")
    expected = state if int(commit.round) % spec.state_every == 0 else NO_DIGEST
    need(
        commit.state == expected,
        f"diverged: used parameters {commit.state.hex()[:8]}, expected {expected.hex()[:8]}",
    )
    positions = batch_positions(spec, commit.node, int(commit.round))
    need(commit.batch_root == batch_root(spec, positions), "trained on another batch than the assigned one")
    need(commit.tokens == spec.tokens_per_step, f"{commit.tokens} tokens, expected {spec.tokens_per_step}")
    need(
        commit.update_bytes <= contribution_bytes_max(spec.rule, rules.block_count),
        f"an update of {commit.update_bytes} bytes",
    )
    record = history.nodes[commit.node]
    begins = record.momentum if commit.base else rules.zero_momentum
    need(commit.base in (0, record.round + 1), f"continues base {commit.base}, not its last accepted step")
    need(commit.momentum_before == begins, "momentum does not continue its last accepted step")
    need(
        len(commit.inner) == spec.rule.segments,
        f"{len(commit.inner)} inner states, expected {spec.rule.segments}",
    )
    need(commit.loss_micro <= LOSS_MICRO_MAX, f"a loss of {commit.loss_micro} millionths")
    verify(commit.node, rules.domain, commit, signed.signature)
    member = next(m for m in spec.nodes if m.peer == commit.node)
    check_commit_statement(spec, rules.deployment, signed, member.hot)


def missing(state: Round, ancestors: tuple[Manifest, ...] = ()) -> tuple[str, ...]:
    """What a leader still waits for, in words; empty when the manifest can be made."""
    history = base_history(state.history, ancestors)
    lacking = []
    if not ancestors:
        absent = len(set(history.active) - set(state.commits))
        if absent:
            lacking.append(f"{absent} commits")
    if history.round and len(valid_reveals(state, history)) < len(history.beacon):
        lacking.append("reveals")
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
    if history.round and len(valid_reveals(state, history)) < _reveals_needed(history, follows=follows):
        return False
    has_work = bool(state.commits) or bool(ancestors) or not history.is_training
    return has_work and now_ms >= state.opened_ms + history.spec.timing.collect_ms


def is_held_up(state: Round, now_ms: int) -> bool:
    """Whether nothing but shares of the beacon keeps a leader that follows from proposing.

    Then waiting longer helps nobody: once this leader's iteration is given up, the next may do without.
    """
    may_do_without = may_propose(state, (), now_ms, follows=False)
    return may_do_without and not may_propose(state, (), now_ms, follows=True)


def manifest_of(state: Round, ancestors: tuple[Manifest, ...], aggregate: Digest) -> Manifest:
    """The manifest a leader proposes. `aggregate` is zero where no commit is carried, or the rule refuses."""
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
        reveals=valid_reveals(state, history) if history.round else (),
        seals=_first(seals),
        verdicts=_first(verdicts),
        unsealed=_first(word for _, word in sorted(state.unsealed.items()) if _may_show(history, word)),
        planted=_first(word for _, word in sorted(state.planted.items()) if _may_show(history, word)),
        excluded=history.excluded,
        aggregate=aggregate,
        chain=next_chain(history.chain, tuple(signed.commit for signed in commits), aggregate),
    )


def examine(
    state: Round, ancestors: tuple[Manifest, ...], manifest: Manifest, *, follows: bool = False
) -> None:
    """Do nothing if this verifier may vote for a proposed manifest, its aggregate aside.

    Args:
        state: What it holds.
        ancestors: Notarised manifests that the proposed one builds on.
        manifest: The proposed one.
        follows: No iteration was given up since the parent's.

    Raises:
        MalformedMessage, PeerFault, OutOfPhase: the rule it breaks.
    """
    history = base_history(state.history, ancestors)
    check_place(history, manifest)
    for signed in manifest.commits:
        if ancestors:
            raise MalformedMessage("manifest with commits on a parent that is not final")
        check_commit(state.rules, history, state.state, signed)
    if history.round:
        alpha = _alpha(history)
        for reveal in manifest.reveals:
            if reveal.run_id != history.run_id or reveal.round != history.round - 1:
                raise MalformedMessage("manifest carries a reveal of another round")
            verify_vrf(reveal.verifier, alpha, reveal.proof)
        if not {reveal.verifier for reveal in manifest.reveals} <= set(history.beacon):
            raise MalformedMessage("manifest carries a reveal of a verifier that was away")
        need = _reveals_needed(history, follows=follows)
        if len(manifest.reveals) < need:
            raise MalformedMessage(f"manifest carries {len(manifest.reveals)} reveals, expected {need}")
    elif manifest.reveals:
        raise MalformedMessage("manifest carries reveals before there is a round to reveal for")
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


def base_history(history: History, ancestors: tuple[Manifest, ...]) -> History:
    """The history a manifest on top of these notarised, not yet final manifests extends."""
    for manifest in ancestors:
        # One that does not extend us was overtaken: the chain went on beside it.
        if manifest.round == history.round and manifest.parent == history.parent:
            history = advance(history, manifest)
    return history


def valid_reveals(state: Round, history: History) -> tuple[Reveal, ...]:
    """Pooled reveals that hold for the last manifest of `history`, ascending by verifier."""
    holding = (
        next((reveal for reveal in reveals if _reveal_holds(history, reveal)), None)
        for verifier, reveals in sorted(state.reveals.items())
        if verifier in history.beacon
    )
    return tuple(reveal for reveal in holding if reveal is not None)


def _reveals_needed(history: History, *, follows: bool) -> int:
    """All shares where the parent's leader is followed at once, else a quorum: a leader chooses none."""
    return len(history.beacon) if follows else quorum(len(history.spec.verifiers))


def _pooled(state: Round, reveal: Reveal) -> tuple[Reveal, ...]:
    """A verifier's pool with one more reveal: the newest, and never without the one that holds now.

    Anybody can send nonsense in a verifier's name; it must not push the true word out.
    """
    known = state.reveals.get(reveal.verifier, ())
    newest = (*(other for other in known if other != reveal), reveal)[-REVEALS_PER_VERIFIER:]
    true = next((other for other in known if _reveal_holds(state.history, other)), None)
    return newest if true is None or true in newest else (true, *newest[1:])


def _reveal_holds(history: History, reveal: Reveal) -> bool:
    is_due = reveal.run_id == history.run_id and reveal.round == history.round - 1
    return is_due and _vrf_holds(reveal.verifier, _alpha(history), reveal.proof)


@functools.lru_cache(maxsize=1024)  # leaders ask at every tick; a check takes a millisecond
def _vrf_holds(verifier: PeerId, alpha: bytes, proof: bytes) -> bool:
    try:
        verify_vrf(verifier, alpha, proof)
    except AssayError:
        return False
    return True


def _alpha(history: History) -> bytes:
    return beacon_input(
        history.spec.deployment_id, history.run_id, RoundId(int(history.round) - 1), history.parent
    )


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
