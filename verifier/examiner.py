"""Examiner: an auditor's recomputing half, in the process that holds torch.

Room: verifier (edge: checkpoint files; runs as a `replica.child` worker). It
follows the parameters like every honest process and answers one question: what
should this step have been?
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from protocol.codec import decode
from protocol.messages import Commit, Opening, Outcome
from protocol.params import RunSpec
from protocol.types import NO_DIGEST, Digest
from training.data import batch_positions, batch_tokens, read_tokens
from training.demo import gradient_sketch, transformed_gradient
from training.exact import learning_rate
from training.model import execution_class, loss_and_gradient, use_one_thread
from training.parameters import Parameters, state_digest
from training.wire import decode_update
from verifier.audit import Finding, check_opening, compare


class Examiner:
    """theta of recent rounds and the data: all that a recompute needs."""

    def __init__(self, *, spec: RunSpec, data: Path, folder: Path) -> None:
        self.spec = spec
        self.parameters = Parameters(
            spec, folder / "theta", spec.audit.audit_rounds + spec.audit.dispute_rounds + 2
        )
        self.tokens = read_tokens(data, spec.data)

    def examine(self, commit: Commit, update: bytes, opening: bytes, blocks: list[int]) -> Finding:
        """Recompute one forward and backward pass and judge the opened step by it.

        Raises:
            MalformedMessage: these bytes are not the opening the commit binds. Whoever
                handed them over is to blame, which need not be the node: not a verdict.
        """
        spec, layout = self.spec, self.parameters.layout
        if commit.exec_class != execution_class():
            return Finding(Outcome.INCONCLUSIVE, NO_DIGEST, 0, 0)
        opened = decode(Opening, opening)
        before, after = check_opening(opened, commit, blocks, layout.blocks)
        sent = decode_update(update, layout.blocks, spec.rule.k)
        positions = batch_positions(spec, commit.node, int(commit.round))
        batch = batch_tokens(self.tokens, positions, spec.model.context)
        _, gradient = loss_and_gradient(spec.model, layout, self.parameters.at(int(commit.round)), batch)
        if not np.isfinite(gradient).all():  # no honest node could have stepped here either
            return Finding(Outcome.INCONCLUSIVE, NO_DIGEST, 0, 0)
        spectrum = transformed_gradient(spec.rule, layout, gradient)
        lr = learning_rate(spec.rule, spec.rounds, int(commit.round))
        sketch = gradient_sketch(commit.parent, spectrum)
        return compare(spec.rule, lr, opened, before, after, sent, spectrum, sketch)


def methods() -> Mapping[str, Callable[..., Any]]:
    """What the parent may call; `open` comes first."""
    use_one_thread()
    held: list[Examiner] = []

    def open_(spec: bytes, data: str, folder: str) -> int:
        held[:] = [Examiner(spec=decode(RunSpec, spec), data=Path(data), folder=Path(folder))]
        return held[0].parameters.round

    def examine(commit: bytes, update: bytes, opening: bytes, blocks: list[int]) -> list[Any]:
        found = held[0].examine(decode(Commit, commit), update, opening, blocks)
        return [int(found.outcome), bytes(found.recomputed), found.distance_ppb, found.block]

    def apply(round_id: int, aggregate: bytes) -> Digest:
        return held[0].parameters.apply(round_id, aggregate)

    return {
        "open": open_,
        "round": lambda: held[0].parameters.round,
        "digest": lambda: state_digest(held[0].parameters.at(held[0].parameters.round)),
        "apply": apply,
        "examine": examine,
        "reset": lambda: held[0].parameters.reset(),
    }
