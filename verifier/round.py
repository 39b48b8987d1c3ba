"""Round: what a verifier collects for the next manifest, and what it lets pass.

Room: verifier (pure). Messages come in as values; the driver holds the updates'
bytes and has checked that they decode. A commit is judged by the rules below, by
every verifier alike, and once more inside a proposal: an honest leader never
proposes what another honest verifier must refuse.

    Submitted --> kept once per node; a different second one is evidence
    Revealed, Judged --> pooled until a manifest carries them
    Advanced --> the next round begins empty
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ledger.deployment import Deployment
from ledger.evidence import check_commit_statement
from protocol.draws import beacon_input
from protocol.errors import AssayError, MalformedMessage, OutOfPhase, PeerFault
from protocol.history import History, Ruling, advance, may_judge, next_chain, verdicts_due
from protocol.identity import Domain, verify
from protocol.messages import Manifest, Outcome, Reveal, SignedCommit, SignedVerdict
from protocol.quorum import quorum
from protocol.types import NO_DIGEST, Digest, PeerId, RoundId
from protocol.vrf import verify as verify_vrf
from replica.chain import check_place
from training.contribution import contribution_bytes_max
from training.data import batch_positions, batch_root

VERDICTS_PER_VERIFIER = 1024  # pooled for later rounds; 250 bytes each
REVEALS_PER_VERIFIER = 4  # pooled: of the last manifest, and of those notarised but not final here
VERDICTS_PER_MANIFEST = 256  # oldest first; the rest goes into the next one
LOSS_MICRO_MAX = 10**9


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
    verdicts: Mapping[tuple[RoundId, PeerId, PeerId], SignedVerdict] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Submitted:
    """A commit whose update is held and decodes."""

    signed: SignedCommit


@dataclass(frozen=True, slots=True)
class Revealed:
    """A verifier's share of the beacon."""

    reveal: Reveal


@dataclass(frozen=True, slots=True)
class Judged:
    """A verdict, from anybody; its signature is checked here."""

    signed: SignedVerdict


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


Event = Submitted | Revealed | Judged | Advanced


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
        case Judged(signed_verdict):
            return _judged(state, signed_verdict), ()
        case Advanced(history, parameters, now_ms):
            settled = {
                key: verdict
                for key, verdict in state.verdicts.items()
                if key[0] + history.spec.audit.audit_rounds + history.spec.audit.dispute_rounds
                >= history.round
                and not _is_recorded(history, key)
            }
            return Round(
                rules=state.rules,
                history=history,
                state=parameters,
                opened_ms=now_ms,
                reveals=state.reveals,
                verdicts=settled,
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
    if history.last_commits and len(valid_reveals(state, history)) < len(history.spec.verifiers):
        lacking.append("reveals")
    for due in verdicts_due(history, int(history.round)):
        if not _is_decidable(state, history, due):
            lacking.append("verdicts")
            break
    return tuple(lacking)


def may_propose(state: Round, ancestors: tuple[Manifest, ...], now_ms: int) -> bool:
    """Whether a leader should propose now: everything is in, or enough is and time is up."""
    lacking = missing(state, ancestors)
    if not lacking:
        return True
    history = base_history(state.history, ancestors)
    if history.last_commits and len(valid_reveals(state, history)) < quorum(len(history.spec.verifiers)):
        return False
    has_work = bool(state.commits) or bool(ancestors) or not history.is_training
    return has_work and now_ms >= state.opened_ms + history.spec.timing.collect_ms


def manifest_of(state: Round, ancestors: tuple[Manifest, ...], aggregate: Digest) -> Manifest:
    """The manifest a leader proposes. `aggregate` is zero where no commit is carried, or the rule refuses."""
    history = base_history(state.history, ancestors)
    commits = () if ancestors else tuple(signed for _, signed in sorted(state.commits.items()))
    verdicts = tuple(
        signed
        for (round_id, node, verifier), signed in sorted(state.verdicts.items())
        if (audit := history.audits.get((round_id, node))) is not None
        and may_judge(history, audit, verifier, int(history.round))
    )[:VERDICTS_PER_MANIFEST]
    return Manifest(
        run_id=history.run_id,
        round=history.round,
        parent=history.parent,
        commits=commits,
        reveals=valid_reveals(state, history) if history.last_commits else (),
        verdicts=verdicts,
        aggregate=aggregate,
        chain=next_chain(history.chain, tuple(signed.commit for signed in commits), aggregate),
    )


def examine(state: Round, ancestors: tuple[Manifest, ...], manifest: Manifest) -> None:
    """Do nothing if this verifier may vote for a proposed manifest, its aggregate aside.

    Raises:
        MalformedMessage, PeerFault, OutOfPhase: the rule it breaks.
    """
    history = base_history(state.history, ancestors)
    check_place(history, manifest)
    for signed in manifest.commits:
        if ancestors:
            raise MalformedMessage("manifest with commits on a parent that is not final")
        check_commit(state.rules, history, state.state, signed)
    if history.last_commits:
        alpha = _alpha(history)
        for reveal in manifest.reveals:
            if reveal.run_id != history.run_id or reveal.round != history.round - 1:
                raise MalformedMessage("manifest carries a reveal of another round")
            verify_vrf(reveal.verifier, alpha, reveal.proof)
        if len(manifest.reveals) < quorum(len(history.spec.verifiers)):
            raise MalformedMessage(f"manifest carries {len(manifest.reveals)} reveals, expected a quorum")
    elif manifest.reveals:
        raise MalformedMessage("manifest carries reveals for a round without commits")
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
        for _, reveals in sorted(state.reveals.items())
    )
    return tuple(reveal for reveal in holding if reveal is not None)


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


def _judged(state: Round, signed: SignedVerdict) -> Round:
    verdict, history = signed.verdict, state.history
    if verdict.run_id != history.run_id or verdict.verifier not in history.spec.verifier_peers:
        raise PeerFault(verdict.verifier, "Verdict of another run or by a stranger")
    verify(verdict.verifier, state.rules.domain, verdict, signed.signature)
    key = (verdict.round, verdict.node, verdict.verifier)
    if key in state.verdicts:
        return state
    if sum(other[2] == verdict.verifier for other in state.verdicts) >= VERDICTS_PER_VERIFIER:
        raise PeerFault(verdict.verifier, f"more than {VERDICTS_PER_VERIFIER} verdicts waiting")
    return replace(state, verdicts={**state.verdicts, key: signed})


def _is_recorded(history: History, key: tuple[RoundId, PeerId, PeerId]) -> bool:
    """Whether the chain already carries this verifier's verdict on this step."""
    audit = history.audits.get((key[0], key[1]))
    return audit is not None and any(verdict.verifier == key[2] for verdict in audit.verdicts)


def _is_decidable(state: Round, history: History, due: tuple[RoundId, PeerId]) -> bool:
    """Whether the pooled verdicts close this audit if the next manifest carries them."""
    audit = history.audits[due]
    said = {v.verifier: v.outcome for v in audit.verdicts}
    for (round_id, node, verifier), signed in state.verdicts.items():
        if (round_id, node) == due and may_judge(history, audit, verifier, int(history.round)):
            said[verifier] = signed.verdict.outcome
    if audit.ruling is Ruling.OPEN:
        return bool(said)
    said = {verifier: outcome for verifier, outcome in said.items() if verifier in audit.committee}
    return len(said) >= len(audit.committee) or _adverse(said) >= quorum(len(audit.committee))


def _adverse(said: Mapping[PeerId, Outcome]) -> int:
    return sum(outcome in (Outcome.MISMATCH, Outcome.WITHHELD) for outcome in said.values())
