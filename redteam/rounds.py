"""Rounds: what may be slipped past a verifier while a round is collected, proposed and certified.

Room: redteam. Members with real keys; the signatures, beacon proofs and certificates are production's,
and so is the verifier who checks them.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from nacl.signing import SigningKey

import protocol.quorum
import replica.chain
import verifier.commits
import verifier.round
from ledger.deployment import Deployment
from ledger.evidence import check_commit_statement, evm_address, sign_commit
from ledger.settlement import settle
from ledger.statements import address_of
from protocol import vrf
from protocol.codec import digest
from protocol.draws import audit_seed, beacon_input, is_drawn
from protocol.errors import AssayError
from protocol.history import History, advance, start
from protocol.identity import Domain, peer_of, sign
from protocol.messages import (
    Block,
    CertifiedManifest,
    Commit,
    Manifest,
    Reveal,
    SignedCommit,
    SignedVote,
    Vote,
    VoteKind,
)
from protocol.params import PPM, Member, check_spec
from protocol.quorum import assemble
from protocol.types import NO_DIGEST, Address, Iteration, PeerId, RoundId
from redteam.attack import Attack, Outcome, Where, without
from redteam.chain import RUN_ID, a_commit, a_network, a_spec, mark, peers
from replica.chain import extend
from training.data import batch_positions, batch_root
from training.layout import layout_of
from training.momentum import zero_root
from training.wire import Update
from verifier.commits import Rules, check_commit, contradiction
from verifier.round import Equivocation, Round, Submitted, examine, manifest_of, step
from verifier.rules import rule_of

STATE = mark("parameters")


def _key(kind: str, n: int) -> SigningKey:
    return SigningKey(hashlib.sha256(f"redteam {kind} {n}".encode()).digest())


def _keys(kind: str, count: int) -> dict[PeerId, SigningKey]:
    return dict(sorted((peer_of(key), key) for key in (_key(kind, n) for n in range(count))))


NODE_KEYS, VERIFIER_KEYS = _keys("node", 3), _keys("verifier", 4)
NODE = next(iter(NODE_KEYS))


def _hot(peer: PeerId) -> bytes:
    return hashlib.sha256(b"hot" + peer).digest()


def _member(peer: PeerId) -> Member:
    hot = Address(bytes.fromhex(address_of(_hot(peer))[2:]))
    return Member(peer=peer, account=Address(peer[:20]), hot=hot)


def _deployment() -> Deployment:
    names = (
        "token", "stake_vault", "verifier_set", "run_escrow", "epoch_settlement", "slash_court",
        "model_registry",
    )  # fmt: skip
    addresses = {name: evm_address(mark(name)[:20]) for name in names}
    return Deployment(chain_id=31337, deployment_id=mark("deployment"), block=0, **addresses)


@dataclass(slots=True)
class Desk:
    """A verifier's desk in a run of three nodes, after some rounds."""

    history: History

    @property
    def domain(self) -> Domain:
        """What signatures are valid for."""
        return Domain(deployment_id=self.history.spec.deployment_id, run_id=RUN_ID)

    @property
    def rules(self) -> Rules:
        """What never changes."""
        blocks = layout_of(self.history.spec.model).blocks
        zero = zero_root(RUN_ID, self.history.spec.rule, blocks)
        return Rules(deployment=_deployment(), domain=self.domain, zero_momentum=zero, block_count=blocks)

    @property
    def round(self) -> Round:
        """Nothing has come in yet."""
        return Round(rules=self.rules, history=self.history, state=STATE, opened_ms=0)

    def commit(self, peer: PeerId, **changes: Any) -> Commit:
        """What an honest node commits to now."""
        spec, record = self.history.spec, self.history.nodes[peer]
        positions = batch_positions(spec, peer, int(self.history.round))
        honest = a_commit(
            self.history, peer, state=STATE if int(self.history.round) % spec.state_every == 0 else NO_DIGEST,
            batch_root=batch_root(spec, positions),
            momentum_before=record.momentum if record.round >= 0 else self.rules.zero_momentum,
        )  # fmt: skip
        return replace(honest, **changes)

    def signed(self, peer: PeerId, *, key: PeerId | None = None, **changes: Any) -> SignedCommit:
        """The commit with both signatures, or with somebody else's."""
        commit, by = self.commit(peer, **changes), key or peer
        return SignedCommit(
            commit=commit,
            signature=sign(NODE_KEYS[by], self.domain, commit),
            statement=sign_commit(self.history.spec, _deployment(), commit, _hot(by)),
        )

    def reveals(self) -> tuple[Reveal, ...]:
        """Every verifier's share of the beacon of the round before."""
        before = RoundId(int(self.history.round) - 1)
        alpha = beacon_input(self.history.spec.deployment_id, RUN_ID, before, self.history.parent)
        return tuple(
            Reveal(run_id=RUN_ID, round=before, verifier=peer, proof=vrf.prove(bytes(key), alpha))
            for peer, key in VERIFIER_KEYS.items()
        )

    def manifest(self, **changes: Any) -> Manifest:
        """The next one, with no words about audits."""
        empty = a_network()
        empty.history = self.history
        empty.absent = set(NODE_KEYS)
        made = replace(empty.manifest(), seals=(), verdicts=(), unsealed=(), planted=())
        return replace(made, **changes)

    def link(self, manifest: Manifest, signers: int) -> CertifiedManifest:
        """The manifest as a link that so many verifiers signed."""
        block = Block(
            run_id=RUN_ID, iteration=Iteration(int(manifest.round) + 1), round=manifest.round,
            parent=NO_DIGEST, manifest=digest(manifest),
        )  # fmt: skip
        vote = Vote(run_id=RUN_ID, iteration=block.iteration, kind=VoteKind.FINALISE, block=digest(block))
        votes = [
            SignedVote(vote=vote, verifier=peer, signature=sign(key, self.domain, vote))
            for peer, key in list(VERIFIER_KEYS.items())[:signers]
        ]
        return CertifiedManifest(manifest=manifest, block=block, certificate=assemble(votes))

    def passes(self, rounds: int = 1) -> Desk:
        """So many rounds without commits later."""
        for _ in range(rounds):
            reveals = self.reveals() if self.history.round else ()
            self.history = advance(self.history, self.manifest(reveals=reveals))
        return self


def a_desk(seed: int, **choices: Any) -> Desk:
    """At the start of a run."""
    spec = a_spec(
        seed=seed,
        nodes=tuple(NODE_KEYS),
        verifiers=tuple(VERIFIER_KEYS),
        members=_member,
        rounds=40,
        **choices,
    )
    return Desk(start(spec, RUN_ID))


def _refused(acts: Sequence[Callable[[], object]]) -> int:
    """How many of these raise."""
    count = 0
    for act in acts:
        try:
            act()
        except AssayError:
            count += 1
    return count


def _tally(acts: Sequence[Callable[[], object]], cost: float, harm: str) -> Outcome:
    refused = _refused(acts)
    return Outcome(attempts=len(acts), caught=refused, succeeded=len(acts) - refused, cost=cost, harm=harm)


def _unchecked(is_defended: bool) -> AbstractContextManager[Any]:
    return nullcontext() if is_defended else without(verifier.round, "check_commit", lambda *_: None)


# ---- commits


def _replayed(is_defended: bool, seed: int) -> Outcome:
    desk = a_desk(seed)
    old = desk.signed(NODE)
    elsewhere = replace(old, commit=replace(old.commit, run_id=mark("another run")))
    now = desk.passes().round
    with _unchecked(is_defended):
        return _tally(
            [lambda: step(now, Submitted(old)), lambda: step(now, Submitted(elsewhere))], 0.0, "none: refused"
        )


def _late(is_defended: bool, seed: int) -> Outcome:
    """The beacon of its round is out; it knows whether it is drawn, and commits now."""
    desk = a_desk(seed)
    ready = desk.signed(NODE)
    now = desk.passes(2).round
    with _unchecked(is_defended):
        return _tally([lambda: step(now, Submitted(ready))], 1.0, "none: refused, so unpaid")


def _equivocates(is_defended: bool, seed: int) -> Outcome:
    """One commit for half of the verifiers, another for the rest; undefended, they do not compare."""
    desk = a_desk(seed)
    first, second = desk.signed(NODE), desk.signed(NODE, update=mark("another update"))
    state, _ = step(desk.round, Submitted(first))
    other = state if is_defended else desk.round
    seen, effects = step(other, Submitted(second))
    is_proved = effects == (Equivocation(contradiction(first, second)),)
    if is_proved:
        hot = _member(NODE).hot
        for signed in (first, second):  # what the court recovers from its calldata
            check_commit_statement(desk.history.spec, _deployment(), signed, hot)
        is_proved = NODE not in advance(desk.history, manifest_of(seen, (), NO_DIGEST)).active
    words = "none: barred from the next round on and unpaid from this one; the court takes all its stake"
    return Outcome(attempts=1, caught=is_proved, succeeded=not is_proved, cost=1.0, harm=words)


def _forked(is_defended: bool, seed: int) -> Outcome:
    """One bit of the parameters is another; undefended, commits do not name theirs."""
    desk = a_desk(seed) if is_defended else Desk(
        start(replace(a_desk(seed).history.spec, state_every=1000), RUN_ID)
    )  # fmt: skip
    desk.passes()
    signed = desk.signed(NODE, state=mark("one bit else")) if is_defended else desk.signed(NODE)
    return _tally(
        [lambda: check_commit(desk.rules, desk.history, STATE, signed)], 1.0, "none: refused as diverged"
    )


def _other_set(is_defended: bool, seed: int) -> Outcome:
    """A leader aggregates another set than its manifest lists: the chain digest binds both."""
    desk = a_desk(seed).passes()
    manifest = desk.manifest(reveals=desk.reveals(), chain=mark("another chain"))
    off = nullcontext() if is_defended else without(verifier.round, "check_place", lambda *_: None)
    with off:
        return _tally([lambda: examine(desk.round, (), manifest, follows=True)], 0.0, "none: no vote")


def _short(is_defended: bool, seed: int) -> Outcome:
    """Five names share one step's work, each with a fifth of its tokens; or another batch than its own."""
    desk = a_desk(seed)
    other = batch_root(desk.history.spec, batch_positions(desk.history.spec, NODE, 30))
    lies: tuple[dict[str, Any], ...] = (
        {"tokens": desk.history.spec.tokens_per_step // 5}, {"batch_root": other}, {"base": 7},
        {"momentum_before": mark("invented")},
    )  # fmt: skip
    with _unchecked(is_defended):
        acts = [partial(step, desk.round, Submitted(desk.signed(NODE, **lie))) for lie in lies]
        return _tally(acts, 0.2, "none: refused")


def _signed_by_another(is_defended: bool, seed: int) -> Outcome:
    desk, thief = a_desk(seed), list(NODE_KEYS)[1]
    stolen = desk.signed(NODE, key=thief)
    honest = desk.signed(NODE)
    half = replace(honest, statement=stolen.statement)  # one key stolen of two
    with ExitStack() as stack:
        if not is_defended:
            stack.enter_context(without(verifier.commits, "verify", lambda *_: None))
            stack.enter_context(without(verifier.commits, "check_commit_statement", lambda *_: None))
        return _tally(
            [lambda: step(desk.round, Submitted(stolen)), lambda: step(desk.round, Submitted(half))], 0.0,
            "none: refused; both keys are needed",
        )  # fmt: skip


# ---- the beacon


def _beacon(is_defended: bool, seed: int) -> Outcome:
    """A leader picks the shares by which a friend's step is not drawn, at a rate of one half."""
    desk, rounds, rate = a_desk(seed), 16, PPM // 2
    drawn, chosen = 0, 0
    off = nullcontext() if is_defended else without(verifier.round, "_reveals_needed", lambda *_, **__: 3)
    refusals = attempts = 0
    with off:
        for _ in range(rounds):
            desk.passes()
            reveals = desk.reveals()
            alpha = beacon_input(
                desk.history.spec.deployment_id, RUN_ID, reveals[0].round, desk.history.parent
            )
            drawn += _is_drawn(alpha, reveals, rate)
            best = next((some for some in _choices(reveals) if not _is_drawn(alpha, some, rate)), reveals)
            if len(best) < len(reveals):
                attempts += 1
                manifest = desk.manifest(reveals=best)
                refused = _refused([partial(examine, desk.round, (), manifest, follows=True)])
                refusals += refused
                best = reveals if refused else best
            chosen += _is_drawn(alpha, best, rate)
    words = f"the friend is drawn in {chosen} of {rounds} rounds, by all shares in {drawn}"
    return Outcome(attempts=attempts, caught=refusals, succeeded=attempts - refusals, cost=0.0, harm=words)


def _is_drawn(alpha: bytes, reveals: tuple[Reveal, ...], rate: int) -> bool:
    return is_drawn(audit_seed(alpha, [(one.verifier, one.proof) for one in reveals]), NODE, rate)


def _choices(reveals: tuple[Reveal, ...]) -> list[tuple[Reveal, ...]]:
    """All of them, then all but one: a quorum of four is three."""
    return [reveals, *itertools.combinations(reveals, len(reveals) - 1)]


def _beacon_after_dummy(is_defended: bool, seed: int) -> Outcome:
    """The same after an iteration that was given up, where a quorum of shares will do."""
    desk = a_desk(seed).passes()
    manifest = desk.manifest(reveals=desk.reveals()[1:])
    taken = not _refused([lambda: examine(desk.round, (), manifest, follows=False)])
    desk.history = advance(desk.history, manifest)
    away = 4 - len(desk.history.beacon)
    words = (
        f"one choice among 5 draws, once in 16 rounds for each share: its verifier is away then ({away} here)"
    )
    return Outcome(attempts=1, caught=0, succeeded=taken, cost=0.0, harm=words)


def _second_proof(is_defended: bool, seed: int) -> Outcome:
    """Another share of the same verifier for the same round, to choose the better of two."""
    desk = a_desk(seed).passes()
    true = desk.reveals()
    alpha = b"something else"
    key = next(iter(VERIFIER_KEYS.values()))
    forged = replace(true[0], proof=vrf.prove(bytes(key), alpha))
    bent = replace(true[0], proof=true[0].proof[:-1] + bytes([true[0].proof[-1] ^ 1]))
    off = nullcontext() if is_defended else without(verifier.round, "verify_vrf", lambda *_: b"")
    with off:
        acts = [
            partial(examine, desk.round, (), desk.manifest(reveals=(one, *true[1:])), follows=True)
            for one in (forged, bent)
        ]
        return _tally(acts, 0.0, "none: one input has one proof")


# ---- certificates


def _rewritten(is_defended: bool, seed: int) -> Outcome:
    """A past that two of four verifiers sign: another manifest in the place of a final one."""
    desk = a_desk(seed)
    fork = desk.link(desk.manifest(aggregate=NO_DIGEST), signers=2)
    off = nullcontext() if is_defended else without(protocol.quorum, "quorum", lambda _count: 2)
    with off:
        return _tally([lambda: extend(desk.history, fork)], 0.0, "none: refused by whoever follows the chain")


def _rolled_back(is_defended: bool, seed: int) -> Outcome:
    desk = a_desk(seed)
    old = desk.link(desk.manifest(), signers=3)
    desk.passes(2)
    off = nullcontext() if is_defended else without(replica.chain, "check_place", lambda *_: None)
    with off, without(replica.chain, "advance", lambda history, _manifest: history):
        return _tally([lambda: extend(desk.history, old)], 0.0, "none: it does not extend the chain")


# ---- many names


def _two_seats(is_defended: bool, seed: int) -> Outcome:
    """One account runs a node and judges it."""
    spec = a_spec(seed=seed)
    own = replace(spec.verifiers[0], account=spec.nodes[0].account)
    both = replace(spec, verifiers=(own, *spec.verifiers[1:]))
    if not is_defended:
        return Outcome(attempts=1, caught=0, succeeded=1, cost=0.0, harm="it judges its own steps")
    try:
        check_spec(both)
    except ValueError:
        return Outcome(attempts=1, caught=1, succeeded=0, cost=0.0, harm="none: the order is refused")
    return Outcome(attempts=1, caught=0, succeeded=1, cost=0.0, harm="it judges its own steps")


def _sybil_pay(is_defended: bool, seed: int) -> Outcome:
    """Ten names in place of one: what a step's work earns."""
    per_step = []
    for names in (3, 12):
        network = a_network(seed=seed, nodes=peers("node", names), rounds=4)
        while int(network.history.round) <= network.history.spec.settled_at(0):
            network.grow()
        found = settle(network.history, 0)
        per_step.append(found.paid("operator") / (4 * names))
    gain = per_step[1] / per_step[0]
    return Outcome(
        attempts=1,
        caught=0,
        succeeded=gain > 1.001,
        cost=1.0,
        harm=f"{gain:.3f} times the pay of a step, each",
    )


def _updates(seed: int, nodes: int, liars: int, loud: int) -> dict[PeerId, Update]:
    """Nodes that agree but for noise, on a wire with amplitudes; liars oppose them, 2^loud times as loud."""
    rng = np.random.default_rng(seed)
    direction = rng.standard_normal((4, 64)) * 100
    index = np.tile(np.arange(64), (4, 1))
    found = {}
    for n in range(nodes):
        is_liar = n >= nodes - liars
        value = np.rint(-direction if is_liar else direction + rng.standard_normal(direction.shape) * 50)
        exponent = np.full(4, -40 + (loud if is_liar else 0), np.int64)
        found[PeerId(bytes([n + 1]) * 32)] = Update(
            np.arange(4), index, (value * 128).astype(np.int32), exponent, np.full(4, 128, np.int64)
        )
    return found


def _progress(updates: dict[PeerId, Update], name: str, f: int) -> float:
    """Cosine of the aggregate with what the first, honest node says."""
    made = rule_of(name, f, bytes(32))(updates, 4)
    dense = np.zeros((4, 4096))
    assert made.exponent_N is not None
    dense[made.block_T, made.index_T] = np.ldexp(
        made.value_T.astype(np.float64), made.exponent_N[made.block_T]
    )
    mine = np.zeros((4, 4096))
    mine[:, :64] = next(iter(updates.values())).value_BK
    return float((dense * mine).sum() / max(float(np.linalg.norm(dense) * np.linalg.norm(mine)), 1e-30))


LOUD_RULES = ("clipping+mean", "trimmed-mean", "clipping+trimmed-mean", "median", "multi-krum")


def _loud(is_defended: bool, seed: int) -> Outcome:
    """Two of eight say the opposite a thousand times as loud; undefended, values count as they came."""
    rules = LOUD_RULES if is_defended else ("mean",)
    found = {name: _progress(_updates(seed, 8, 2, 10), name, 2) for name in rules}
    turned = sum(value <= 0 for value in found.values())
    words = ", ".join(f"{name} {value:.2f}" for name, value in found.items())
    return Outcome(
        attempts=len(rules), caught=0, succeeded=turned, cost=1.0, harm=f"cosine with the honest way: {words}"
    )


def _many(is_defended: bool, seed: int) -> Outcome:
    """Five of eight nodes together, until audits bar them."""
    found = {name: _progress(_updates(seed, 8, 5, 0), name, 2) for name in LOUD_RULES}
    turned = sum(value <= 0 for value in found.values())
    words = "the aggregate turns round in {} of {} rules for the about 7 rounds until audits bar them"
    return Outcome(
        attempts=len(found), caught=0, succeeded=turned, cost=1.0, harm=words.format(turned, len(found))
    )


ROUND_ATTACKS = (
    Attack(name="replay a commit", number=2, where=Where.ROUND, run=_replayed,
           defence="round, parent and run are signed"),
    Attack(name="two commits for one step", number=3, where=Where.ROUND, run=_equivocates,
           defence="the pair of statements is evidence"),
    Attack(name="commit after the beacon", number=18, where=Where.ROUND, run=_late,
           defence="a round takes its own commits only"),
    Attack(name="other parameters", number=32, where=Where.ROUND, run=_forked,
           defence="commits name their parameters"),
    Attack(name="another set in the aggregate", number=32, where=Where.ROUND, run=_other_set,
           defence="the chain digest binds set and aggregate"),
    Attack(name="claims beside the rules (4 ways)", number=15, where=Where.ROUND, run=_short,
           defence="every field of a commit is checked"),
    Attack(name="steal one key of a node", number=33, where=Where.ROUND, run=_signed_by_another,
           defence="two signatures, of two keys"),
    Attack(name="choose the beacon's shares", number=17, where=Where.ROUND, run=_beacon,
           defence="a leader that follows carries every share"),
    Attack(name="choose a share after a given-up iteration", number=17, where=Where.ROUND, has_off=False,
           run=_beacon_after_dummy, defence="none; whose share is missing is away 16 rounds"),
    Attack(name="a second share of the beacon", number=17, where=Where.ROUND, run=_second_proof,
           defence="ECVRF: one proof for one input"),
    Attack(name="rewrite a final round", number=31, where=Where.ROUND, run=_rewritten,
           defence="certificates of a quorum"),
    Attack(name="roll the chain back", number=31, where=Where.ROUND, run=_rolled_back,
           defence="every manifest names the one before"),
    Attack(name="one account as node and verifier", number=15, where=Where.ROUND, run=_two_seats,
           defence="an order with such members is refused"),
    Attack(name="many names for pay", number=15, where=Where.ROUND, run=_sybil_pay, has_off=False,
           defence="pay is by recomputable tokens"),
    Attack(name="two loud liars of eight", number=11, where=Where.ROUND, run=_loud,
           defence="clipping, trimming, medians"),
    Attack(name="five liars of eight nodes", number=15, where=Where.ROUND, run=_many, has_off=False,
           defence="none in the round; audits bar them after it"),
)  # fmt: skip
