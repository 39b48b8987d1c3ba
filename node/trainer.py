"""Trainer: a node's private half, in the process that holds torch.

Room: node (edge: files of one folder; runs as a `replica.child` worker). A step
is on disk, with the momentum it leads to, before its commit can be signed; asked
again for the same round it returns the same step, so a crash can never lead to
two different commits for one round.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import cbor2
import numpy as np
from numpy.typing import NDArray

from node.behaviours import Behaviour
from protocol import merkle
from protocol.blob import blob_digest
from protocol.codec import decode, encode
from protocol.errors import Diverged, Unavailable
from protocol.messages import Opening
from protocol.messages import Path as MerklePath
from protocol.params import BLOCK_SIZE, RunSpec
from protocol.types import Digest, PeerId, RoundId
from training import demo
from training.data import batch_positions, batch_root, batch_tokens, read_tokens
from training.exact import learning_rate
from training.model import execution_class, loss_and_gradient, use_one_thread
from training.momentum import momentum_leaves, seal
from training.parameters import Parameters, state_digest, write_array
from training.wire import encode_update

LOSS_MICRO_MAX = 10**9


class Trainer:
    """theta of recent rounds, momentum of recent steps, and the data."""

    def __init__(
        self, *, spec: RunSpec, run_id: Digest, node: PeerId, data: Path, folder: Path, behaviour: Behaviour
    ) -> None:
        self.spec, self.run_id, self.node, self.behaviour = spec, run_id, node, behaviour
        self.keep = spec.audit.audit_rounds + spec.audit.dispute_rounds + 2
        self.parameters = Parameters(spec, folder / "theta", self.keep)
        self.layout = self.parameters.layout
        self.tokens = read_tokens(data, spec.data)
        self.folder = folder / "steps"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.has_diverged = (folder / "diverged").exists()

    def apply(self, round_id: int, aggregate: bytes) -> Digest:
        """Step the parameters; see `Parameters.apply`."""
        return self.parameters.apply(round_id, aggregate)

    def step(self, round_id: int, parent: Digest, base_round: int, base_root: Digest) -> dict[str, Any]:
        """This round's step: computed once, durable, the same when asked again.

        Args:
            round_id: The round to train; the parameters must be there.
            parent: Digest of the manifest before.
            base_round: The round of the last accepted step, or -1.
            base_root: The momentum root the chain knows after that step.

        Returns:
            The fields of a commit that only this process knows, and the update's bytes.

        Raises:
            Diverged: the parameters are of another round.
            Unavailable: the gradient is not finite.
        """
        known = self._record(round_id)
        if known is not None and known["parent"] == parent:
            return known
        if self.parameters.round != round_id:
            raise Diverged(f"asked for a step of round {round_id} while at round {self.parameters.round}")
        base_round, before = self._momentum(base_round, base_root)
        lie = self.behaviour.at(round_id)
        positions = batch_positions(self.spec, self.node, round_id)
        theta, used = self._theta(round_id, lie), positions
        if lie == "wrong-data":
            used = batch_positions(self.spec, self.node, round_id + self.spec.rounds)
        batch = batch_tokens(self.tokens, used, self.spec.model.context)
        loss, gradient = loss_and_gradient(self.spec.model, self.layout, theta, batch)
        if not (np.isfinite(loss) and np.isfinite(gradient).all()):
            # Sent, its momentum could not be opened, and withholding an opening is slashed.
            raise Unavailable(f"round {round_id}: the gradient is not finite, so there is nothing to send")
        if lie == "random-update":
            noise = np.random.default_rng(round_id).standard_normal(len(gradient)).astype(np.float32)
            gradient = noise * (np.linalg.norm(gradient) / np.linalg.norm(noise))
        spectrum = demo.transformed_gradient(self.spec.rule, self.layout, gradient)
        lr = learning_rate(self.spec.rule, self.spec.rounds, round_id)
        moved = demo.transition(self.spec.rule, lr, before, spectrum)
        after = moved.after_BC
        if lie == "no-feedback":
            after = before * np.float32(self.spec.rule.beta_micro / 1e6) + spectrum * lr
        update = encode_update(demo.update_of(moved), self.layout.blocks, self.spec.rule.k)
        sketch, salt = demo.gradient_sketch(parent, spectrum), os.urandom(32)
        record: dict[str, Any] = {
            "round": round_id,
            "parent": parent,
            "base_round": base_round,
            "state": state_digest(self._theta(round_id, "honest" if lie != "diverge" else lie)),
            "batch_root": batch_root(self.spec, positions),
            "update": update,
            "update_digest": blob_digest(update),
            "momentum_before": merkle.root(momentum_leaves(self.run_id, before)),
            "momentum_after": merkle.root(momentum_leaves(self.run_id, after)),
            "seal": seal(salt, sketch),
            "salt": salt,
            "sketch": sketch,
            "exec_class": execution_class(),
            "tokens": self.spec.tokens_per_step,
            "loss_micro": min(int(loss * 1e6), LOSS_MICRO_MAX),
        }
        write_array(self._momentum_path(round_id), after)
        _write_durably(self._record_path(round_id), cbor2.dumps(record))
        self._forget(round_id)
        return record

    def opening(self, round_id: int, blocks: list[int]) -> bytes:
        """The encoded opening of a recent step for the blocks drawn.

        Raises:
            Diverged: that step is not here any more, or damaged.
        """
        record = self._record(round_id)
        after = self._load(round_id)
        before = None if record is None else self._load(record["base_round"])
        if record is None or after is None or before is None:
            raise Diverged(f"the step of round {round_id} is not on this disk any more")
        leaves_before = momentum_leaves(self.run_id, before)
        leaves_after = momentum_leaves(self.run_id, after)
        return encode(
            Opening(
                run_id=self.run_id,
                round=RoundId(round_id),
                node=self.node,
                blocks=tuple(blocks),
                before=before[blocks].astype("<f4").tobytes(),
                after=after[blocks].astype("<f4").tobytes(),
                paths_before=tuple(MerklePath(hashes=merkle.proof(leaves_before, b)) for b in blocks),
                paths_after=tuple(MerklePath(hashes=merkle.proof(leaves_after, b)) for b in blocks),
                salt=record["salt"],
                sketch=record["sketch"],
            )
        )

    def reset(self) -> None:
        """Throw the parameters away, as a diverged node must.

        The steps stay: accepted ones can still be drawn, and who cannot open them is slashed.
        Their momentum needs no trust, it is used only where it has the root the chain knows.
        """
        self.parameters.reset()
        self.has_diverged = True
        _write_durably(self.folder.parent / "diverged", b"once")

    def _theta(self, round_id: int, lie: str) -> NDArray[np.float32]:
        if lie == "stale-parameters" and round_id > 0:
            return self.parameters.at(round_id - 1)
        theta = self.parameters.at(round_id)
        if lie == "diverge" and not self.has_diverged:
            theta = theta.copy()
            theta.view(np.uint32)[0] ^= 1
        return theta

    def _momentum(self, base_round: int, base_root: Digest) -> tuple[int, NDArray[np.float32]]:
        """Momentum after the last accepted step if it is here and as the chain knows it, else zero."""
        momentum = None if base_round < 0 else self._load(base_round)
        if momentum is None or merkle.root(momentum_leaves(self.run_id, momentum)) != base_root:
            return -1, self._zeros()
        return base_round, momentum

    def _record_path(self, round_id: int) -> Path:
        return self.folder / f"{round_id:08d}.cbor"

    def _record(self, round_id: int) -> dict[str, Any] | None:
        """The kept step of a round; None where there is none, or disk has damaged it."""
        try:
            record: dict[str, Any] = cbor2.loads(self._record_path(round_id).read_bytes())
        except (OSError, ValueError, cbor2.CBORError):
            return None
        return record if isinstance(record, dict) and record.get("round") == round_id else None

    def _momentum_path(self, round_id: int) -> Path:
        return self.folder / f"momentum-{round_id:08d}.npy"

    def _load(self, round_id: int) -> NDArray[np.float32] | None:
        """Momentum after the step of a round; None where it is not here, or damaged."""
        if round_id < 0:
            return self._zeros()
        try:
            found: NDArray[np.float32] = np.load(self._momentum_path(round_id), allow_pickle=False)
        except (OSError, ValueError, EOFError):
            return None
        is_whole = found.shape == (self.layout.blocks, BLOCK_SIZE) and found.dtype == np.float32
        return found if is_whole else None

    def _zeros(self) -> NDArray[np.float32]:
        return np.zeros((self.layout.blocks, BLOCK_SIZE), np.float32)

    def _forget(self, round_id: int) -> None:
        """Delete what no audit can ask for: old steps, and momenta that no kept step began from."""
        oldest = round_id - self.keep
        kept = (self._record(number) for number in range(oldest, round_id + 1))
        bases = {record["base_round"] for record in kept if record is not None}
        for path in self.folder.iterdir():
            number = path.stem.removeprefix("momentum-")
            if not number.isdigit() or int(number) >= oldest:
                continue
            if path.suffix != ".npy" or int(number) not in bases:
                path.unlink()


def _write_durably(path: Path, body: bytes) -> None:
    partial = path.with_suffix(".partial")
    with open(partial, "wb") as file:
        file.write(body)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)


def methods() -> Mapping[str, Callable[..., Any]]:
    """What the parent may call; `open` comes first."""
    use_one_thread()
    held: list[Trainer] = []

    def open_(
        spec: bytes, run_id: bytes, node: bytes, data: str, folder: str, behaviour: str, start: int
    ) -> int:
        held[:] = [
            Trainer(
                spec=decode(RunSpec, spec),
                run_id=Digest(run_id),
                node=PeerId(node),
                data=Path(data),
                folder=Path(folder),
                behaviour=Behaviour(behaviour, start),
            )
        ]
        return held[0].parameters.round

    return {
        "open": open_,
        "round": lambda: held[0].parameters.round,
        "digest": lambda: state_digest(held[0].parameters.at(held[0].parameters.round)),
        "apply": lambda **a: held[0].apply(**a),
        "step": lambda **a: held[0].step(**a),
        "opening": lambda **a: held[0].opening(**a),
        "reset": lambda: held[0].reset(),
    }
