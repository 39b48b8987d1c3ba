"""Successor: a run that goes on from the parameters after the last certified manifest of a stopped one.

Room: bundle (edge: reads a folder). Nobody is asked: the stopped run's manifests are signed already, and name
every aggregate. So any one copy of its chain will do, a participant's or a fetched one.

    copies of a run --stop_of--> Stop(manifest, parameters) --successor_spec--> RunSpec(predecessor, base)
                  '---------------- check_predecessor ------------------------'
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from assay.bundle.read import Delivered
from assay.participant.files.index import IntegrityError
from assay.participant.following.sync import certified_state
from assay.protocol.encoding.codec import digest
from assay.protocol.errors import ConfigError, Diverged
from assay.protocol.messages import Member
from assay.protocol.params import NO_ACCEPT, AcceptSpec, Predecessor, RunSpec, check_spec
from assay.protocol.types import NO_ADDRESS, NO_DIGEST, Address, Digest
from assay.training.layout import layout_of
from assay.training.model.adapter import merged
from assay.training.model.initial import (
    BASE,
    OUTER,
    buffers_digest,
    frozen_parameters,
    imported_buffers,
    starting_parameters,
    state_digest,
)
from assay.training.optimiser.outer import OuterState, apply, public_digest, start_public
from assay.training.optimiser.public_state import THETA, checkpoints, read_checkpoint, write_array

START_WITHIN_S = 86_400  # for which a successor waits for nodes whose records are not there
ONE_STEP_IN = 20  # a node's steps may be a known-answer task


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """A round after which a run can be continued."""

    spec: RunSpec  # of the run
    round: int  # whose manifest is the last that counts
    predecessor: Predecessor
    theta_P: NDArray[np.float32]  # of the whole model after that round; an adapter is merged into its base
    buffers: tuple[NDArray[np.float32], ...]  # of the outer optimiser

    @property
    def base(self) -> Digest:
        """State digest of the parameters, which the successor imports."""
        return state_digest(self.theta_P)

    @property
    def rounds_left(self) -> int:
        """Ordered rounds that were not trained."""
        return self.spec.rounds - 1 - self.round


def stop_of(copies: Sequence[Delivered], round_id: int | None = None) -> Stop:
    """Where a run stopped, as far as anybody can show, with the parameters there.

    Args:
        copies: Of the run, one or more; every manifest of them was checked. The longest chain counts, and an
            aggregate that one lacks another may have.
        round_id: An earlier round to go back to; None: the last one of training.

    Raises:
        ConfigError: nothing was trained, or all that was ordered; or there is no such round; or a file that
            the run's parameters begin with is not here; or an adapter's base is held in few bits.
        IntegrityError: an aggregate is in no copy, or leads to other parameters than certified; or two
            copies contradict each other.
    """
    run = max(copies, key=lambda one: len(one.links))
    for copy in copies:
        if copy.links and copy.links[-1].manifest != run.links[len(copy.links) - 1].manifest:
            raise IntegrityError(
                f"{copy.root} and {run.root}: two manifests of round {len(copy.links) - 1} are certified, so "
                "more than f verifiers lied or lost their keys"
            )
    last = min(len(run.links), run.calendar.rounds) - 1
    at = last if round_id is None else round_id
    if not 0 <= at <= last:
        raise ConfigError(f"round {at} of run {run.run_id.hex()[:16]}: it was trained up to {last}")
    if at == run.spec.rounds - 1:
        raise ConfigError(f"run {run.run_id.hex()[:16]} trained all {at + 1} rounds: nothing is left")
    spec, base = run.spec, _base(copies)
    if bits := spec.model.adapter.base_bits:
        raise ConfigError(
            f"run {run.run_id.hex()[:16]} trains an adapter on a base in {bits} bits: merged it needs more, "
            "so it has no successor; order a new run on the model that it delivered"
        )
    public = _public(run, copies, base, at)
    buffers = () if spec.model.is_adapted else public.buffers  # an adapter is merged, and a new one begins
    return Stop(
        spec=spec,
        round=at,
        predecessor=Predecessor(
            run_id=run.run_id,
            manifest=digest(run.links[at].manifest),
            rounds=spec.in_line(at)[1] + 1,
            outer=buffers_digest(buffers),
        ),
        theta_P=merged(spec.model, frozen_parameters(spec, base), public.theta_P),
        buffers=buffers,
    )


def _base(copies: Sequence[Delivered]) -> Path:
    """The file of the run's own imported parameters, in the first copy that has it."""
    paths = [(copy.data if copy.is_followed else copy.bundle) / BASE for copy in copies]
    return next((path for path in paths if path.is_file()), paths[0])


def _public(run: Delivered, copies: Sequence[Delivered], base: Path, last: int) -> OuterState:
    """The public state after a round, by certified aggregates from the start or the newest checkpoint."""
    spec, layout = run.spec, layout_of(run.spec.model)
    begin, public = max((_checkpoint(run, copy, last) for copy in copies), key=lambda found: found[0])
    if public is None:
        public = start_public(spec, starting_parameters(spec, base), imported_buffers(spec, base))
    for round_id in range(begin, last + 1):
        state = certified_state(run.links[round_id])
        if state is not None and state != public_digest(public):
            raise IntegrityError(f"round {round_id}: the aggregates lead to other parameters than certified")
        public = apply(spec, layout, public, round_id, _aggregate(run, copies, round_id))
    for waiting in range(spec.rule.apply_lag):  # what is certified and waits is applied, too
        public = apply(spec, layout, public, last + 1 + waiting, b"")
    return public


def _aggregate(run: Delivered, copies: Sequence[Delivered], round_id: int) -> bytes:
    """The aggregate that a round's manifest names, from the first copy that has it unaltered."""
    name, faults = run.links[round_id].manifest.aggregate, list[IntegrityError]()
    if name == NO_DIGEST:
        return b""
    for copy in copies:
        try:
            return copy.load(name)
        except IntegrityError as error:
            faults.append(error)
    raise IntegrityError(f"the aggregate of round {round_id} is in no copy: {faults[-1]}")


def _checkpoint(run: Delivered, copy: Delivered, last: int) -> tuple[int, OuterState | None]:
    """A participant's newest checkpoint that a manifest of these rounds certifies, or round 0 and None."""
    found = {} if copy.held is None else checkpoints(copy.held.store.parent / THETA)
    for round_id, path in reversed(found.items()):
        state = certified_state(run.links[round_id]) if round_id <= last else None
        try:
            public = None if state is None else read_checkpoint(run.spec, path)
        except Diverged:
            continue
        if public is not None and public_digest(public) == state:
            return round_id, public
    return 0, None


def write_start(stop: Stop, folder: Path) -> None:
    """Put parameters and buffers there, in a folder of the run's data, as the successor imports them.

    Raises:
        ConfigError: other parameters are there, of the run that stopped or of a third one.
    """
    path = folder / BASE
    if path.exists():
        found_P = np.load(path, allow_pickle=False)
        if found_P.dtype != np.float32 or state_digest(found_P) != stop.base:
            raise ConfigError(
                f"{path}: other parameters than the successor's; expected a copy of the data without"
            )
        return
    folder.mkdir(parents=True, exist_ok=True)
    if stop.buffers:
        write_array(folder / OUTER, np.stack(stop.buffers))
    write_array(path, stop.theta_P)


# ---- the run that continues it


def successor_spec(
    stop: Stop,
    *,
    deployment_id: Digest,
    buyer: Address,
    treasury: Address,
    nodes: Sequence[Member],
    verifiers: Sequence[Member],
    now_s: int,
    buyer_key: Address = NO_ADDRESS,
) -> RunSpec:
    """The spec of the run that trains what is left, on the same terms, among these members.

    Args:
        stop: Where the run stopped.
        deployment_id: Of the contracts that it is paid through; they may be others.
        buyer: Who funds it.
        treasury: Who receives the fee.
        nodes: Those that are named. Where these are fewer than the run had to have, it waits for others.
        verifiers: In any order; the last are reserves, as many as the run had.
        now_s: Unix time, from which it waits.
        buyer_key: Address of the key that signs run file and index; zero: the buyer's own.

    Raises:
        ConfigError: these members make no run.
    """
    spec, rounds = stop.spec, stop.rounds_left
    seated = len(verifiers) - len(spec.reserves)
    waits = len(nodes) < spec.least_nodes
    tasks = min(spec.audit.known_answer_count, rounds // ONE_STEP_IN)
    successor = replace(
        spec,
        deployment_id=deployment_id,
        rounds=rounds,
        model=replace(spec.model, base=stop.base),
        audit=replace(spec.audit, known_answer_count=tasks),
        money=replace(spec.money, treasury=treasury, accept=_accept_left(stop)),
        buyer=buyer,
        buyer_key=NO_ADDRESS if buyer_key == buyer else buyer_key,
        least_nodes=max(spec.least_nodes, len(nodes)),
        start_by_s=now_s + START_WITHIN_S if waits else 0,
        nodes=tuple(sorted(nodes, key=lambda member: member.peer)),
        verifiers=tuple(sorted(verifiers[:seated], key=lambda member: member.peer)),
        reserves=tuple(sorted(verifiers[seated:], key=lambda member: member.peer)),
        predecessor=stop.predecessor,
    )
    try:
        check_spec(successor)
    except ValueError as fault:
        raise ConfigError(f"these members do not make a run: {fault}") from None
    return successor


def _accept_left(stop: Stop) -> AcceptSpec:
    """The milestones that were not reached yet, each after the successor's epoch that ends no sooner."""
    spec, trained = stop.spec, stop.round + 1
    accept, length = spec.money.accept, spec.money.epoch_rounds
    left = {
        (end - trained - 1) // length: milestone
        for milestone in accept.milestones
        if (end := spec.ordered.epoch_end(milestone.epoch)) > trained
    }  # of two that fall into one epoch the later
    if not left:
        return NO_ACCEPT
    return replace(accept, milestones=tuple(replace(one, epoch=epoch) for epoch, one in left.items()))


def check_predecessor(spec: RunSpec, delivered: Delivered) -> None:
    """Do nothing if a run goes on where this other one was, with its model, parameters, seed and data.

    The data with their split, tokenizer and windows: what that run trained on must be held out by neither.

    Raises:
        ConfigError: it continues another run, or none.
        IntegrityError: it does not begin with what that run certified; or as `stop_of`.
    """
    named = spec.predecessor
    if named.run_id != delivered.run_id:
        what = f"run {named.run_id.hex()[:16]}" if spec.is_continued else "no run"
        raise ConfigError(f"this run continues {what}, not {delivered.run_id.hex()[:16]}")
    at = named.rounds - 1 - delivered.spec.predecessor.rounds
    stop = stop_of([delivered], at)
    for what, found, expected in (
        ("manifest", named.manifest, stop.predecessor.manifest),
        ("model", _model(spec), _model(delivered.spec)),
        ("parameters", spec.model.base, stop.base),
        ("outer buffers", named.outer, stop.predecessor.outer),
        ("data", digest(spec.data), digest(delivered.spec.data)),
        ("window", spec.window_tokens.to_bytes(8, "big"), delivered.spec.window_tokens.to_bytes(8, "big")),
        ("seed", spec.seed.to_bytes(8, "big"), delivered.spec.seed.to_bytes(8, "big")),
    ):
        if found != expected:
            raise IntegrityError(
                f"spec: {what} {found.hex()[:16]}, after round {at} of run {delivered.run_id.hex()[:16]} "
                f"it was {expected.hex()[:16]}"
            )


def _model(spec: RunSpec) -> Digest:
    """Digest of the architecture of what is delivered, wherever it began: an adapter is merged into it."""
    return digest(replace(spec.model.whole, base=NO_DIGEST))
