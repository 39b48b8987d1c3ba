"""False trainers: two lies that leave the work true: in the message alone, and in the sealed sketch alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest import mock

from assay.devnet.faults.trainer import FaultyTrainer
from assay.node.messages import StepRecord
from assay.protocol.types import Digest
from assay.training.optimiser import step
from assay.training.optimiser.node_state import NodeState
from assay.training.optimiser.step import Work, encode


class OtherMessage(FaultyTrainer):
    """Sends the opposite of what its states, which it opens, say that it sent."""

    def _encode(self, round_id: int, before: NodeState, work: Work) -> tuple[NodeState, bytes]:
        if not self.is_false(round_id):
            return super()._encode(round_id, before, work)
        after, _ = encode(self.spec, self.layout, round_id, before, work)
        _, opposite = encode(self.spec, self.layout, round_id, before, replace(work, x_NC=-work.x_NC))
        return after, opposite


class OtherSketch(FaultyTrainer):
    """Seals a sketch that is none of its work."""

    def _keep(self, round_id: int, *made: Any) -> StepRecord:
        if not self.is_false(round_id):
            return super()._keep(round_id, *made)
        with mock.patch.object(step, "sketches", return_value=(LIE,)):
            return super()._keep(round_id, *made)


LIE = Digest(bytes([1]) * 32)
KINDS = {"other-message": OtherMessage, "other-sketch": OtherSketch}
