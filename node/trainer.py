"""Trainer: computes a node's steps, in the child process that holds torch.

Room: node (edge: files of one folder; runs as an `assay.participant.worker` worker). A step is on disk, with
the momentum it leads to, before its commit can be signed; asked again for the same round it returns the same
step, so a crash can never lead to two different commits for one round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.node.behaviours import Behaviour
from assay.node.known_answer import KNOWN_ANSWER_ERROR
from assay.node.steps import StepFiles, write_durably
from assay.protocol.commitments import commitment_of, derived_salt
from assay.protocol.encoding.blob import blob_digest
from assay.protocol.encoding.codec import decode
from assay.protocol.errors import Diverged, Unavailable
from assay.protocol.params import PPM, RunSpec
from assay.protocol.types import Digest, PeerId
from assay.training.data.batches import batch_positions, batch_root, batch_tokens, read_tokens
from assay.training.execution.execution_class import execution_class
from assay.training.execution.threads import prepare
from assay.training.model.loss import loss_and_gradient
from assay.training.optimiser import step as rules
from assay.training.optimiser.momentum_root import zero_root
from assay.training.optimiser.node_state import NodeState, start_private
from assay.training.optimiser.public_state import PublicState, kept_rounds

LOSS_MICRO_MAX = 10**9
HONEST = "honest"
NOTHING = NodeState(np.zeros((0, 0), np.float32), None, -1)  # private state for computing a gradient only
ROOM_BYTES_MAX = 1 << 28  # buffers kept between steps; a larger model allocates them anew each time


@dataclass(frozen=True, slots=True)
class _Ahead:
    """Work done before its round began, from the private state of this round and root."""

    round: int
    base: tuple[int, Digest]
    work: rules.Work


class Trainer:
    """Parameters of recent rounds, private states of recent steps, and the data."""

    def __init__(
        self,
        *,
        spec: RunSpec,
        run_id: Digest,
        node: PeerId,
        data: Path,
        folder: Path,
        salt_key: bytes,
        behaviour: Behaviour,
        base: Path | None = None,
        device: str = "cpu",
        known_answers: frozenset[int] = frozenset(),
    ) -> None:
        self.spec, self.run_id, self.node, self.behaviour = spec, run_id, node, behaviour
        self._salt_key = salt_key
        self.keep, self.device, self.known_answers = kept_rounds(spec), device, known_answers
        self.parameters = PublicState(spec, folder / "theta", self.keep, base)
        self.layout = self.parameters.layout
        self.tokens = read_tokens(data, spec.data)
        self.steps = StepFiles(
            folder, run_id=run_id, node=node, rule=spec.rule, layout=self.layout, keep=self.keep
        )
        self._scar = folder / "diverged"
        self._done: _Ahead | None = None
        self._room: NDArray[np.float32] | None = None
        self._diverge()

    def apply(self, round_id: int, aggregate: bytes) -> Digest:
        """Step the parameters; see `PublicState.apply`."""
        digest = self.parameters.apply(round_id, aggregate)
        return self.parameters.digest() if self._diverge() else digest

    def step(self, round_id: int, parent: Digest, base_round: int, base_root: Digest) -> dict[str, Any]:
        """This round's step: computed once, durable, the same when asked again.

        Args:
            round_id: The round to train; the parameters must be there.
            parent: Digest of the manifest before.
            base_round: The round of the last accepted step, or -1.
            base_root: The root of the private state that the chain has after that step.

        Returns:
            The fields of a commit that only this process can compute, and the update's bytes.

        Raises:
            Diverged: the parameters are of another round.
            Unavailable: the gradient is not finite.
        """
        known = self.steps.record(round_id)
        if known is not None and known["parent"] == parent:
            return known
        if self.parameters.round != round_id:
            raise Diverged(f"asked for a step of round {round_id} while at round {self.parameters.round}")
        rule = self.spec.rule
        lie = self._lie(round_id)
        positions = batch_positions(self.spec, self.node, round_id)
        ahead, self._done = self._done, None
        work: rules.Work | None = None
        with ThreadPoolExecutor(1) as beside:  # BLAKE3 and file reads release the GIL
            reading = beside.submit(self._before, base_round, base_root)
            if rule.is_gradient and ahead is None:  # the root is hashed meanwhile
                work = self._work(round_id, NOTHING, lie)
            before, root_before = reading.result()
        if ahead is not None and (ahead.round, ahead.base) == (round_id, (before.round, root_before)):
            work = ahead.work
        elif work is None:
            work = self._work(round_id, before, lie)
        parts = (work.x_NC, *(part for end in work.ends for part in (end.theta_P, *end.moments)))
        if not (np.isfinite(work.loss) and all(np.isfinite(part).all() for part in parts)):
            # If sent, its states could not be opened, and withholding an opening is slashed.
            raise Unavailable(f"round {round_id}: the gradient is not finite, so there is nothing to send")
        uses_up = lie != "no-feedback"  # which needs what was before once more
        after, update = rules.encode(self.spec, self.layout, round_id, before, work, uses_up=uses_up)
        if lie == "no-feedback":
            beta = np.float32(rule.compress.feedback_micro / PPM)
            after = replace(after, error_NC=before.error_NC * beta + work.x_NC)
        tree = self.steps.tree(after)
        place = round_id.to_bytes(8, "big") + parent + root_before
        salt, sketches = (
            derived_salt(self._salt_key, b"commit", place),
            rules.sketches(self.layout, work, parent),
        )
        record: dict[str, Any] = {
            "round": round_id,
            "parent": parent,
            "base_round": before.round,
            "state": self.parameters.digest(),
            "batch_root": batch_root(self.spec, positions),
            "update": update,
            "update_digest": blob_digest(update),
            "momentum_before": root_before,
            "momentum_after": tree.root,
            "inner": self.steps.inner_digests(work.ends),
            "commitment": commitment_of(salt, sketches),
            "salt": salt,
            "sketches": list(sketches),
            "exec_class": execution_class(self.spec.compute, self.device),
            "tokens": self.spec.tokens_per_step,
            "loss_micro": min(int(work.loss * 1e6), LOSS_MICRO_MAX),
        }
        self.steps.keep(record, after, tree, work.ends)
        return record

    def ahead(self, round_id: int, base_round: int, base_root: Digest) -> bool:
        """Do the local work of a round before its manifest exists, if its parameters are known.

        Rules that read old parameters (`read_lag`) can work during consensus: all inputs are known except
        whether the last contribution is accepted, which is assumed. `step` uses the work done here if the
        assumption held.

        Args:
            round_id: The round after the one that the parameters are of.
            base_round: The round of the contribution that is assumed accepted.
            base_root: The root of the private state after it.

        Returns:
            Whether any work was done.
        """
        is_known = self.steps.record(round_id) is not None
        lie = self._lie(round_id)
        if not self.spec.rule.read_lag or is_known or lie != HONEST or round_id != self.parameters.round + 1:
            return False
        before, root = self._before(base_round, base_root)
        self._done = _Ahead(round_id, (before.round, root), self._work(round_id, before, lie))
        return True

    def _lie(self, round_id: int) -> str:
        """The behaviour that falsifies this round's step, if any."""
        return KNOWN_ANSWER_ERROR if round_id in self.known_answers else self.behaviour.at(round_id)

    def _work(self, round_id: int, before: NodeState, lie: str) -> rules.Work:
        """A round's local work, from the private state before it."""
        used = batch_positions(self.spec, self.node, round_id)
        theta = self.parameters.read(round_id - 1 if lie == "stale-parameters" and round_id else round_id)
        if lie == "wrong-data":
            used = batch_positions(self.spec, self.node, round_id + self.spec.rounds)
        batch = batch_tokens(self.tokens, used, self.spec.model.context)
        gradient = self._noise if lie == "random-update" else self._gradient
        # No two works are in use at once: work done ahead is used or discarded before the next.
        work = rules.local(self.spec, self.layout, theta, before, batch, round_id, gradient, self._room)
        if self.spec.rule.is_gradient and work.x_NC.nbytes <= ROOM_BYTES_MAX:
            self._room = work.x_NC
        return work

    def _gradient(
        self, theta_P: NDArray[np.float32], tokens: NDArray[np.int64]
    ) -> tuple[float, NDArray[np.float32]]:
        return loss_and_gradient(
            self.spec.model, self.layout, theta_P, tokens, compute=self.spec.compute, device=self.device
        )

    def _noise(
        self, theta_P: NDArray[np.float32], tokens: NDArray[np.int64]
    ) -> tuple[float, NDArray[np.float32]]:
        """The false gradient of that behaviour: noise of the right size."""
        loss, gradient = self._gradient(theta_P, tokens)
        noise = np.random.default_rng(self.parameters.round).standard_normal(len(gradient)).astype(np.float32)
        return loss, noise * (np.linalg.norm(gradient) / np.linalg.norm(noise))

    def reset(self) -> None:
        """Discard the parameters, as a diverged node must.

        The steps stay: accepted ones can still be drawn, and a node that cannot open them is slashed.
        Their momentum needs no trust: it is used only if it has the root that the chain has.
        """
        self.parameters.reset()
        self._done = None
        write_durably(self._scar, b"once")

    def _diverge(self) -> bool:
        """Under the fault of that name, flip one bit of the parameters, once; returns whether it did."""
        due = self.behaviour.name == "diverge" and self.parameters.round == self.behaviour.from_round
        if not due or self._scar.exists():
            return False
        theta = self.parameters.at(self.parameters.round).copy()
        theta.view(np.uint32)[0] ^= 1
        self.parameters.replace(theta)
        return True

    def _before(self, base_round: int, base_root: Digest) -> tuple[NodeState, Digest]:
        """The private state after the last accepted step if its root is the chain's, else a fresh one.

        Returns:
            The state and its root. The root is recomputed from the file's content.
        """
        found = None if base_round < 0 else self.steps.private(base_round)
        if found is not None and self.steps.tree(found).root == base_root:
            return found, base_root
        return start_private(self.layout), zero_root(self.run_id, self.spec.rule, self.layout.blocks)


def methods() -> Mapping[str, Callable[..., Any]]:
    """The methods that the parent process may call; `open` comes first."""
    held: list[Trainer] = []

    def open_(
        spec: bytes,
        run_id: bytes,
        node: bytes,
        data: str,
        folder: str,
        salt_key: bytes,
        behaviour: str,
        start: int,
        known_answers: list[int],
        base: str | None,
        device: str,
        threads: int,
    ) -> int:
        prepare(Path(folder), device=device, threads=threads)
        held[:] = [
            Trainer(
                spec=decode(RunSpec, spec),
                run_id=Digest(run_id),
                node=PeerId(node),
                data=Path(data),
                folder=Path(folder),
                salt_key=salt_key,
                behaviour=Behaviour(behaviour, start),
                known_answers=frozenset(known_answers),
                base=None if base is None else Path(base),
                device=device,
            )
        ]
        return held[0].parameters.round

    return {
        "open": open_,
        "round": lambda: held[0].parameters.round,
        "digest": lambda: held[0].parameters.digest(),
        "apply": lambda **a: held[0].apply(**a),
        "step": lambda **a: held[0].step(**a),
        "ahead": lambda **a: held[0].ahead(**a),
        "reset": lambda: held[0].reset(),
    }
