"""Device trainer: a trainer whose gradient stays on the device until it is a message.

Room: node (edge: a device; runs as an `assay.participant.worker` worker). Its steps are the trainer's to the
byte, so neither its class nor an auditor knows of it. The error stays on the device from step to step; it is
brought to the host once for each, since the commit binds it by hashes and the disk keeps it before that is
signed. Rules that it does not cover are the trainer's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.node.messages import StepRecord, TrainerStart
from assay.node.trainer import NOTHING, Trainer
from assay.protocol.types import Digest
from assay.training.model.loss import gradient_on_device
from assay.training.optimiser import step as rules
from assay.training.optimiser.carry import mean_block, shares_by_length
from assay.training.optimiser.node_state import NodeState
from assay.training.optimiser.schedule import rate
from assay.training.transform import on_device


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceWork(rules.Work):
    """Work of one gradient. x_on_device: in place of x_NC. length_N: of each block."""

    x_on_device: Tensor
    length_N: NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceState(NodeState):
    """A private state on the device and, in `error_NC`, on the host."""

    on_device: Tensor


class DeviceTrainer(Trainer):
    """A trainer of a rule that `on_device` covers."""

    _after: DeviceState | None = None
    _root: Digest | None = None  # of that state, once it is kept
    _staging: Tensor | None = None  # page-locked memory, which a device writes to while the host works

    def _before(self, base: int, base_root: Digest) -> tuple[NodeState, Digest]:
        if self._after is not None and self._root == base_root:
            return replace(self._after, base=base), base_root
        return super()._before(base, base_root)

    def _local(
        self, round_id: int, before: NodeState, theta_P: NDArray[np.float32], batch: NDArray[np.int64]
    ) -> rules.Work:
        spec = self.spec
        loss, slope_P = self._timed(
            lambda: gradient_on_device(
                spec.model, self.layout, theta_P, batch,
                compute=spec.compute, device=self.device, frozen=self.frozen,
            )
        )  # fmt: skip
        lr = rate(spec.rule.outer.schedule, *spec.in_line(round_id))
        x_NC = on_device.gradient_blocks(spec.rule, self.layout, slope_P, lr)
        return DeviceWork(
            x_NC=NOTHING.error_NC,
            loss=loss,
            rollouts=rules.sampled_digest(spec, batch),
            x_on_device=x_NC,
            length_N=on_device.row_lengths(x_NC),
        )

    def _is_finite(self, work: rules.Work) -> bool:
        assert isinstance(work, DeviceWork)
        return bool(np.isfinite(work.length_N).all())  # a square of float32 does not overflow

    def _sketches(self, work: rules.Work, pattern: Digest) -> tuple[Digest, ...]:
        assert isinstance(work, DeviceWork)
        sketch = on_device.work_sketch(pattern, work.x_on_device)
        return (rules.bound_sketch(pattern, sketch, work.rollouts),)

    def _encode(self, round_id: int, before: NodeState, work: rules.Work) -> tuple[NodeState, bytes]:
        assert isinstance(work, DeviceWork)
        spec, self._root = self.spec, None
        error_NC = (
            before.on_device
            if isinstance(before, DeviceState)
            else torch.from_numpy(before.error_NC).to(self.device)
        )
        if spec.rule.compress.keeps_error:
            share_N = shares_by_length(
                spec.rule, spec.rounds, before.base, round_id, np.arange(self.layout.blocks),
                on_device.row_lengths(error_NC), work.length_N, mean_block(spec.rule, work.length_N),
                rounds_before=spec.predecessor.rounds,
            )  # fmt: skip
            on_device.leave(error_NC, share_N)
        update = on_device.transition(spec.rule.compress, error_NC, work.x_on_device)
        on_host = self._brought(error_NC)
        body = rules.message(spec, self.layout, update)
        if error_NC.is_cuda:
            torch.cuda.synchronize(error_NC.device)
        self._after = DeviceState(error_NC=on_host.numpy(), base=round_id + 1, on_device=error_NC)
        return self._after, body

    def _keep(self, *given: Any) -> StepRecord:
        record = super()._keep(*given)
        self._root = record.commit.momentum_after
        return record

    def _brought(self, error_NC: Tensor) -> Tensor:
        """The error in the host's memory, where CUDA may still be writing it."""
        if not error_NC.is_cuda:
            return error_NC
        if self._staging is None:
            self._staging = torch.empty(error_NC.shape, pin_memory=True)
        return self._staging.copy_(error_NC, non_blocking=True)


def _open(start: TrainerStart) -> Trainer:
    return (DeviceTrainer if on_device.covers(start.spec.rule) else Trainer).open(start)


START, open_worker = TrainerStart, _open
