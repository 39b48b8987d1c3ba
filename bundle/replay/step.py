"""Replay step: recomputes one step of a finished run, for anybody who has the run's folder.

Room: bundle (edge: reads a folder, holds torch). All inputs of a step are public: parameters from the
aggregates, the batch from the spec, the draw from the beacon. Only the node's private state is not. So:

    an opening is available     -> the audit itself, bit for bit                             proof
      (the node's own records, or what verifiers keep of a drawn step: participant/openings.py)
    else, by the steps before   -> its private state recomputed, step after step             proof
    else                        -> agreement of the message with the step's own gradient     evidence

A proof holds in the node's execution class only; in any other, distances are evidence. A known-answer task is
false on order: where an audit or the node's list shows that a step is one, it is made with its own sequences.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from assay.bundle.follow import read_any
from assay.bundle.read import Delivered, find_node, local_nodes
from assay.bundle.report.audits import final_audits
from assay.node.steps import StepFiles
from assay.participant.files.index import IntegrityError
from assay.participant.openings import named_opening
from assay.protocol.auditing.audits import Audit, AuditStatus
from assay.protocol.auditing.commitments import check_sketch_opening
from assay.protocol.auditing.draws import (
    auditors,
    is_drawn,
    opened_blocks,
    opened_segment,
)
from assay.protocol.encoding.codec import digest
from assay.protocol.errors import AssayError, ConfigError, Diverged, MalformedMessage
from assay.protocol.known_answers import false_rounds, trained_as
from assay.protocol.messages import Commit, Outcome, OwnData
from assay.protocol.params import PPM
from assay.protocol.state_transition import beacon_of, judges_of
from assay.protocol.types import NO_DIGEST, Digest, PeerId
from assay.training.codec.contribution import decode_contribution
from assay.training.codec.wire import Update
from assay.training.data.batches import batch_positions, batch_root
from assay.training.execution.execution_class import execution_class
from assay.training.model.initial import BASE
from assay.training.model.loss import use_threads
from assay.training.optimiser.node_state import start_private
from assay.training.optimiser.outer import public_digest
from assay.verifier.audit.limits import LIMITS, agreed_limits
from assay.verifier.audit.messages import Finding
from assay.verifier.audit.remake import Remake, lineage
from assay.verifier.audit.worker import RecomputeWorker


@dataclass(slots=True, kw_only=True)
class Replayed:
    """Result of a replay. verdict: None if there is only evidence."""

    commit: Commit
    faults: list[str] = field(default_factory=list)  # inconsistencies that follow from public data alone
    positions: tuple[int, ...] = ()
    theta: Digest = NO_DIGEST
    rate_ppm: int = 0
    is_drawn: bool = False
    order: tuple[PeerId, ...] = ()
    blocks: tuple[int, ...] = ()
    segment: int = 0
    drawn_by: Digest = NO_DIGEST
    audit: Audit | None = None
    is_same_class: bool = True
    is_task: bool = False  # a known-answer task, by its audit or by the list that its node has shown
    lacks_list: bool = False  # the node announced known-answer tasks, and its list is not here
    found: Finding | None = None
    is_own: bool = False  # whether its node trains on data that only it has
    opening: str = ""  # where it was, or why there is none
    is_behind: bool = False  # whether the private state before it is not what its earlier steps lead to
    remade: str = ""  # how far the private state could be recomputed
    first_false: int | None = None  # round of an earlier step of the node that this one rests on
    agreement: tuple[float, float] | None = None  # share of equal signs, cosine
    others: float | None = None  # mean share of equal signs of the other nodes' messages
    verdict: Outcome | None = None

    @property
    def is_ok(self) -> bool:
        """Whether nothing was found against the step, or against one that it rests on."""
        return not self.faults and self.verdict is not Outcome.MISMATCH and not self.is_behind


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayReport:
    """The figures of a replay. verdict: None if there is only evidence."""

    is_ok: bool  # nothing was found against the step, or against one that it rests on
    verdict: str | None
    round: int
    node: PeerId
    commit: Digest
    is_drawn: bool
    rate_ppm: int
    ruling: str | None  # the chain's, if the step was audited
    is_same_class: bool
    is_task: bool  # false on order, as its node or an audit has shown
    distance_ppb: int | None  # of the gradient's norm; None without an opening
    equal_signs: float | None  # share of the sent signs that are the gradient's own
    cosine: float | None
    first_false: int | None  # round of an earlier false step of the node that this one rests on
    faults: tuple[str, ...]

    @classmethod
    def of(cls, done: Replayed) -> ReplayReport:
        """The report of a replay."""
        share, cosine = done.agreement or (None, None)
        return cls(
            is_ok=done.is_ok,
            verdict=None if done.verdict is None else done.verdict.name,
            round=done.commit.round,
            node=done.commit.node,
            commit=digest(done.commit),
            is_drawn=done.is_drawn,
            rate_ppm=done.rate_ppm,
            ruling=None if done.audit is None else done.audit.ruling.value,
            is_same_class=done.is_same_class,
            is_task=done.is_task,
            distance_ppb=None if done.found is None else done.found.distance_ppb,
            equal_signs=share,
            cosine=cosine,
            first_false=done.first_false,
            faults=tuple(done.faults),
        )


def parse_step(text: str) -> tuple[Path, int, str]:
    """`RUN:ROUND:NODE`.

    Raises:
        ConfigError: it is not that.
    """
    parts = text.rsplit(":", 2)
    if len(parts) != 3 or not (parts[1].isascii() and parts[1].isdigit()) or not parts[0]:
        raise ConfigError(f"{text!r}: expected RUN:ROUND:NODE, such as runs/quickstart:7:3fa1c2d0")
    return Path(parts[0]), int(parts[1]), parts[2]


def replay(
    run: Path,
    round_id: int,
    node: str,
    *,
    use_opening: bool = True,
    from_start: bool = False,
    threads: int = 1,
    on_round: Callable[[int, int], None] = lambda _done, _of: None,
) -> Replayed:
    """Recompute one accepted step.

    Args:
        run: The folder of a finished run, or of a participant in one that goes on.
        round_id: Of the step.
        node: The beginning of the node's peer id.
        use_opening: Look for the node's own record of the step.
        from_start: Without an opening, recompute the steps that lead to the node's private state before it;
            where that is not the committed one, all since its last fresh start, to find the first false one.
        threads: The participants' thread count: part of the execution class.
        on_round: Called with how many rounds it has followed the parameters for, and how many there are.

    Raises:
        ConfigError: no such run, step or data.
        IntegrityError: the run's chain or blobs are invalid.
    """
    delivered = read_any(run)
    peer = find_node(delivered.run_states[-1].nodes, node)
    return replay_of(
        delivered, peer, round_id,
        use_opening=use_opening, from_start=from_start, threads=threads, on_round=on_round,
    )  # fmt: skip


def replay_of(
    delivered: Delivered,
    peer: PeerId,
    round_id: int,
    *,
    use_opening: bool = True,
    from_start: bool = False,
    threads: int = 1,
    on_round: Callable[[int, int], None] = lambda _done, _of: None,
) -> Replayed:
    """Recompute one accepted step of a run that was read; see `replay`."""
    replayed = partial(
        _replayed, delivered, peer, round_id, on_round,
        use_opening=use_opening, from_start=from_start, threads=threads,
    )  # fmt: skip
    done = replayed()
    return replayed(since_fresh=True) if done.is_behind and done.first_false is None else done


def _replayed(
    delivered: Delivered,
    peer: PeerId,
    round_id: int,
    on_round: Callable[[int, int], None],
    *,
    use_opening: bool,
    from_start: bool,
    threads: int,
    since_fresh: bool = False,
) -> Replayed:
    """The step recomputed once. `since_fresh`: by all steps since the node's last fresh start."""
    spec, held = delivered.spec, delivered.held
    commits = _commits_of(delivered, peer)
    if round_id not in commits:
        there = f"{len(commits)} from {min(commits)} to {max(commits)}" if commits else "none"
        raise ConfigError(f"no accepted step of node {peer.hex()[:8]} in round {round_id}; there are {there}")
    if round_id + 1 == len(delivered.links):
        raise ConfigError(f"round {round_id} is the newest: the next manifest decides whether it is audited")
    commit, is_own = commits[round_id], spec.brings_data(peer)
    if is_own and from_start:
        raise ConfigError(
            f"node {peer.hex()[:8]} trains on data that only it has: nobody else can make its steps again"
        )
    use_threads(threads)
    with tempfile.TemporaryDirectory() as scratch:
        base = (delivered.bundle if not delivered.is_followed else delivered.data) / BASE
        limits = (held.limits if held is not None else None) or delivered.root / LIMITS
        recompute_worker = RecomputeWorker(
            spec=spec,
            data=delivered.data,
            folder=Path(scratch),
            base=base if base.is_file() else None,
            limits=agreed_limits(spec, limits if limits.is_file() else None),
        )
        done = Replayed(commit=commit, is_own=is_own)
        done.is_same_class = commit.exec_class == execution_class(spec.compute)
        tasks = _tasks_of(delivered, peer)
        announced = delivered.run_states[-1].nodes[peer].tasks != NO_DIGEST
        done.is_task, done.lacks_list = round_id in tasks, announced and delivered.task_list(peer) is None
        rule = None if since_fresh else spec.rule
        rounds = {int(one.round) for one in lineage(commit, commits.get, rule, tasks)}
        began = commits[min(rounds)].base
        remake = Remake(recompute_worker.parameters, recompute_worker.batch, recompute_worker.gradient, began)
        is_remade = not is_own and (from_start or len(rounds) == 1)
        for number in range(round_id + 1):
            if is_remade and number in rounds:
                is_compared = not began or number == round_id
                remake.step(commits[number], is_task=number in tasks, is_compared=is_compared)
            if number < round_id:
                recompute_worker.parameters.apply(number, delivered.aggregate(number))
            on_round(number + 1, round_id + 1)
        update = delivered.update(commit)
        _check_public(done, delivered, recompute_worker, update)
        _redraw(done, delivered, recompute_worker, update)
        _judge(done, delivered, recompute_worker, update, use_opening=use_opening)
        if done.found is None and is_remade:
            done.remade, done.verdict = _remade(done, remake, round_id, is_fresh=not began)
        if not is_own:
            _compare_signs(done, delivered, recompute_worker, remake)
    return done


def replay_lines(done: Replayed) -> Iterator[str]:
    """The result of a replay as lines for a person."""
    commit, found = done.commit, done.found
    yield f"step        round {commit.round} of node {commit.node.hex()}, commit {digest(commit).hex()[:16]}"
    shown = ", ".join(map(str, done.positions[:6])) + (", ..." if len(done.positions) > 6 else "")
    yield f"batch       {len(done.positions)} sequences, tokens {shown}; root {commit.batch_root.hex()[:8]}"
    state = "as committed" if commit.state != NO_DIGEST else "not in this round's commit"
    yield f"parameters  state {done.theta.hex()[:16]}, replayed from the aggregates, {state}"
    yield (
        f"roots       {commit.momentum_before.hex()[:16]} -> {commit.momentum_after.hex()[:16]}, continues "
        f"{'a fresh state' if not commit.base else f'round {commit.base - 1}'}"
    )
    drawn = "drawn" if done.is_drawn else "not drawn"
    order = ", ".join(peer.hex()[:8] for peer in done.order)
    yield f"draw        {drawn} at a rate of {done.rate_ppm / PPM:.1%}; auditors in order {order}"
    if done.audit is not None:
        verdicts = ", ".join(
            f"{v.outcome.name} by {v.verifier.hex()[:8]} ({_distance(v.distance_ppb)} at block {v.block})"
            for v in done.audit.verdicts
        )
        yield f"the chain   {done.audit.ruling.value.upper()}: {verdicts or 'no verdict'}"
    yield f"opening     {done.opening}"
    if done.is_task:
        yield "task        a known-answer task, false on order: made again with the sequences ordered of it"
    elif done.lacks_list:
        yield "task        perhaps: the node announced known-answer tasks, and its list is not here"
    if found is not None:
        limit = "0, bit for bit" if done.is_same_class else "the run's, for another execution class"
        far = _distance(found.distance_ppb)
        yield f"distance    {far} of the gradient's norm, most in block {found.block}; limit {limit}"
    if done.remade:
        yield f"remade      {done.remade}"
    if done.agreement is not None:
        share, cosine = done.agreement
        beside = (
            "" if done.others is None else f"; other nodes' messages against this gradient: {done.others:.1%}"
        )
        yield f"evidence    {share:.1%} of sent signs are the gradient's own, cosine {cosine:+.3f}{beside}"
    for fault in done.faults:
        yield f"FAULT       {fault}"
    yield f"verdict     {_verdict_words(done)}"


def _verdict_words(done: Replayed) -> str:
    if done.faults:
        return "the step is not what the spec assigns, by public data alone"
    if done.first_false is not None:
        return f"it rests on a false step: that of round {done.first_false}"
    if done.verdict is None:
        if done.is_own:
            return "none: what opens it shows data that only its node has, and stays with its auditors"
        return "none: evidence, and no proof either way (no opening here; try --from-start)"
    if done.verdict is Outcome.INCONCLUSIVE:
        return (
            "INCONCLUSIVE: another execution class than this machine's; the figures above are evidence only"
        )
    how = "the opened blocks" if done.found is not None else "the whole private state, made again"
    by = "bit for bit" if done.is_same_class else "by the run's limits for another execution class"
    return f"{done.verdict.name}: {how}, {by}"


def _distance(ppb: int) -> str:
    return f"{ppb / 1e9:.2e}" if ppb else "0"


# ---- from public data alone


def _commits_of(delivered: Delivered, peer: PeerId) -> dict[int, Commit]:
    """A node's commits by round.

    Raises:
        IntegrityError: no step of the run counts for as many tokens as one of them.
    """
    found = {
        int(signed.commit.round): signed.commit
        for link in delivered.links
        for signed in link.manifest.commits
        if signed.commit.node == peer
    }
    for number, commit in found.items():
        try:
            delivered.spec.step_sequences(commit.tokens)
        except ValueError as fault:
            raise IntegrityError(f"commit of round {number} of {peer.hex()[:8]}: {fault}") from None
    return found


def _tasks_of(delivered: Delivered, peer: PeerId) -> frozenset[int]:
    """The rounds in which a node's steps were known-answer tasks, as far as audits or its list show them."""
    audits = final_audits(delivered.run_states).values()
    drawn = {int(one.round) for one in audits if one.node == peer and one.ruling is AuditStatus.KNOWN_ANSWER}
    shown = delivered.task_list(peer)
    if shown is None:
        return frozenset(drawn)
    first = delivered.run_states[-1].nodes[peer].tasks_from
    return false_rounds(shown.secret, delivered.spec, first) | drawn


def _check_public(
    done: Replayed, delivered: Delivered, recompute_worker: RecomputeWorker, update: bytes
) -> None:
    """Batch, state and message, against the spec."""
    spec, commit = delivered.spec, done.commit
    done.theta = public_digest(recompute_worker.parameters.public)
    if commit.state not in (NO_DIGEST, done.theta):
        done.faults.append(
            f"state {commit.state.hex()[:16]} committed, the aggregates lead to {done.theta.hex()[:16]}"
        )
    own = _own_of(delivered, commit)
    seat = delivered.run_states[-1].drawing_seat(commit.node)
    done.positions = batch_positions(spec, commit.node, int(commit.round), commit.tokens, own, seat)
    root = batch_root(spec, done.positions, own)
    if commit.batch_root != root:
        done.faults.append(
            f"batch root {commit.batch_root.hex()[:16]} committed, the spec assigns {root.hex()[:16]}"
        )
    try:
        decode_contribution(spec, recompute_worker.parameters.layout, int(commit.round), update)
    except MalformedMessage as error:
        done.faults.append(str(error))


def _redraw(done: Replayed, delivered: Delivered, recompute_worker: RecomputeWorker, update: bytes) -> None:
    """The draw that decided about the step.

    From the beacon in the manifest after its own; if that is partial, from a later one, of the audit.
    """
    spec, commit, after = delivered.spec, done.commit, int(done.commit.round) + 1
    manifest, before = delivered.links[after].manifest, delivered.run_states[after]
    done.audit = final_audits(delivered.run_states).get((commit.round, commit.node))
    seed = beacon_of(before, manifest) if done.audit is None else done.audit.seed
    done.rate_ppm = before.rate_ppm(commit.node)
    done.is_drawn = manifest.is_partial or is_drawn(seed, commit.node, done.rate_ppm)
    done.order = auditors(seed, commit.node, judges_of(spec, manifest.disqualified))
    if done.audit is not None:
        done.order = done.audit.order
    layout = recompute_worker.parameters.layout
    live: list[int] = []
    if not done.faults:
        sent = decode_contribution(spec, layout, int(commit.round), update)
        live = [int(block) for block in sent.blocks_B]
    rate_ppm = done.rate_ppm if done.audit is None else done.audit.rate_ppm
    done.blocks = opened_blocks(seed, commit.node, spec.audit, rate_ppm, layout.blocks, live)
    done.drawn_by = seed
    done.segment = opened_segment(seed, commit.node, spec.rule.segments)


def _judge(
    done: Replayed,
    delivered: Delivered,
    recompute_worker: RecomputeWorker,
    update: bytes,
    *,
    use_opening: bool,
) -> None:
    """The audit itself, if the node's record of the step is available, or the opening that was audited."""
    commit, found = done.commit, None
    if done.is_task:
        done.opening = "not looked at: a known-answer task, which an audit finds false"
        return
    try:
        if use_opening:
            found = _own_opening(done, delivered, recompute_worker) or _kept_opening(done, delivered)
        if found is None:
            done.opening = "none at hand"
            return
        # The class decides only whether a difference is a fault; the verdict's line says so.
        own = replace(commit, exec_class=execution_class(delivered.spec.compute))
        body, sketch, whence = found
        judged = own if done.is_same_class or recompute_worker.limits is None else commit
        committed = sketch if done.is_same_class else NO_DIGEST
        done.found = recompute_worker.examine(
            judged,
            update,
            body,
            list(done.blocks),
            done.segment,
            committed=committed,
            drawn_by=done.drawn_by,
            own=_own_of(delivered, commit),
        )
    except (Diverged, MalformedMessage) as error:
        done.opening = f"none that the commit binds: {error}"
        return
    done.opening = f"{whence}, {len(body):,} bytes, {len(done.blocks)} blocks"
    is_judged = done.is_same_class or recompute_worker.limits is not None
    done.verdict = done.found.outcome if is_judged else Outcome.INCONCLUSIVE


def _own_of(delivered: Delivered, commit: Commit) -> OwnData:
    """What binds the node of a commit to data of its own; none where it trains on the run's."""
    return delivered.run_states[-1].nodes[commit.node].own


def _own_opening(
    done: Replayed, delivered: Delivered, recompute_worker: RecomputeWorker
) -> tuple[bytes, Digest, str] | None:
    """An opening from the node's own records, the step's sketch, and where it is from.

    Raises:
        Diverged, MalformedMessage: they do not fit the commit.
    """
    commit, seat = done.commit, local_nodes(delivered.root).get(done.commit.node)
    if delivered.spec.brings_data(commit.node):  # its own records have no text
        return None
    if seat is None or not (seat.folder / "steps").is_dir():
        return None
    steps = StepFiles(
        seat.folder,
        run_id=delivered.run_id,
        node=commit.node,
        rule=delivered.spec.rule,
        layout=recompute_worker.parameters.layout,
        keep=0,
    )
    body = steps.opening(int(commit.round), list(done.blocks), done.segment)
    sketch_openings = steps.sketch_openings(commit, done.segment)
    check_sketch_opening(sketch_openings, commit, done.segment)
    return body, sketch_openings.sketch, f"made from {seat.folder.name}'s own records"


def _kept_opening(done: Replayed, delivered: Delivered) -> tuple[bytes, Digest, str] | None:
    """The opening that the step's verdicts name, if it is here; the sketch as the chain has it, or zeros."""
    named = None if done.audit is None else named_opening(done.audit)
    path = None if named is None else delivered.opening(named.opening)
    if done.audit is None or path is None:
        return None
    return path.read_bytes(), done.audit.sketch or NO_DIGEST, "the one that was audited"


# ---- without an opening


def _remade(done: Replayed, remake: Remake, round_id: int, *, is_fresh: bool) -> tuple[str, Outcome | None]:
    """Result of making the private state again, and what it shows about the step of this round."""
    steps = f"{remake.count} step{'s' * (remake.count > 1)}" + (" from a fresh state" if is_fresh else "")
    if not remake.differs:
        which = "every one" if is_fresh else "the last one"
        return f"{steps}: both roots and the update of {which} agree", Outcome.MATCH
    summary = f"{steps}: round {round_id} differs: {remake.differs}"
    if not done.is_same_class:
        return summary, Outcome.INCONCLUSIVE
    if not remake.is_behind:
        return summary, Outcome.MISMATCH
    done.is_behind, done.first_false = True, remake.first_false
    return f"{summary}: what the node held is not known", None


def _compare_signs(
    done: Replayed, delivered: Delivered, recompute_worker: RecomputeWorker, remake: Remake
) -> None:
    """How what was sent agrees with the step's own gradient, and how what others sent does."""
    spec, layout, number = delivered.spec, recompute_worker.parameters.layout, int(done.commit.round)
    sequences = trained_as(spec, number) if done.is_task else number
    work = remake.work(done.commit, start_private(layout), sequences)
    others = []
    for signed in delivered.links[number].manifest.commits:
        try:
            body = delivered.update(signed.commit)
            agreed = sign_agreement(decode_contribution(spec, layout, number, body), work.x_NC)
        except AssayError:
            continue
        if signed.commit.node == done.commit.node:
            done.agreement = agreed
        else:
            others.append(agreed[0])
    done.others = float(np.mean(others)) if others else None


def sign_agreement(sent: Update, x_NC: NDArray[np.float32]) -> tuple[float, float]:
    """Share of the non-zero coefficients sent that have the sign of x there, and the cosine over all sent.

    Args:
        sent: A node's message.
        x_NC: A gradient by block, in the rule's basis. Shape (N, C).
    """
    there_BK = x_NC[sent.blocks_B[:, None], sent.index_BK].astype(np.float64)
    value_BK = sent.value_BK.astype(np.float64)
    if sent.exponent_B is not None:
        value_BK = np.ldexp(value_BK, sent.exponent_B[:, None])
    is_said = value_BK != 0
    if not is_said.any():
        return 0.0, 0.0
    share = float(np.mean(np.sign(value_BK[is_said]) == np.sign(there_BK[is_said])))
    size = float(np.linalg.norm(value_BK) * np.linalg.norm(there_BK))
    return share, float((value_BK * there_BK).sum()) / size if size else 0.0
