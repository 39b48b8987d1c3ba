"""Sharded: a model whose parameters lie in parts in the processes of one node, with the bits of one process.

Room: training (edge: collectives of torch.distributed). As in FSDP (Zhao et al., arXiv:2304.11277) a process
has its part of every tensor and of its gradient. A tensor is gathered before the kernels that read it, and
dropped after them: where the backward pass would keep it, only its name is kept, and it is gathered again. So
a process computes whole groups of a batch, with the kernels and the shapes of one that is alone.

FSDP2 adds gradients up in its library's order. Here each process sends the parts of its group's gradient to
those who have these parts, and they add the groups' in their order: the bits of one process, however many
there are. All make the same calls in the same order, so one without a group computes another's, and sends 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from assay.training.layout import Layout

_READ_WHOLE = ("embed", "position")  # looked up, in float32 whatever a pass is computed in


class Sharded(Mapping[str, Tensor]):
    """One process's parts of a model, and all tensors by name, each gathered when it is asked for."""

    def __init__(self, rank: int, device: str, others: tuple[Connection, ...] = ()) -> None:
        """Take a place among the processes for which torch.distributed is set up.

        Args:
            rank: Which process this is; 0 has the whole parameters and gets the whole gradient.
            device: Where this one computes.
            others: Of rank 0, how each other process is told of a pass.
        """
        self.rank, self.device, self.others = rank, device, others
        self.count = dist.get_world_size()
        self._places: dict[str, tuple[int, int, tuple[int, ...]]] = {}  # in a part: start, size; the shape
        self._part = self._gradient = self._root = torch.zeros(0)
        self._gathered: dict[StorageWeakRef, str] = {}
        self._tied: list[Tensor] = []  # the embedding, if it is read twice: its gradients are added first
        self._is_half = self._is_idle = False

    def __getitem__(self, name: str) -> Tensor:
        if name == "embed" and self._tied:
            return self._tied[0]
        found: Tensor = _Gather.apply(self._root, self, name)  # type: ignore[no-untyped-call]
        if name == "embed" and "head" not in self._places:
            self._tied.append(found)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def begin(self, layout: Layout, theta_P: NDArray[np.float32] | None) -> None:
        """Take this process's part of every tensor. theta_P: all of them, at rank 0."""
        self._places, at = {}, 0
        for name, shape in zip(layout.names, layout.shapes, strict=True):
            self._places[name] = (at, -(-math.prod(shape) // self.count), shape)
            at += self._places[name][1]
        self._part = torch.zeros(at, device=self.device)
        self._gradient = torch.zeros(at, device=self.device)
        self._root = torch.zeros((), requires_grad=True)  # so that autograd follows what is gathered
        if theta_P is None:
            dist.recv(self._part, 0)
            return
        views = layout.views(theta_P)
        for rank in reversed(range(self.count)):  # our own last
            for name, (at, size, _) in self._places.items():
                piece = views[name].reshape(-1)[rank * size : (rank + 1) * size]
                self._part[at : at + len(piece)] = torch.from_numpy(piece)
            if rank:
                dist.send(self._part, rank)

    def end(self, layout: Layout) -> Tensor | None:
        """The whole gradient, on the host, at rank 0; the parts are dropped."""
        if self.rank:
            dist.send(self._gradient, 0)
            found = None
        else:
            found = torch.empty(layout.parameters)
            views = layout.views(found)
            for rank in range(self.count):
                if rank:
                    dist.recv(self._gradient, rank)
                part = self._gradient.cpu()
                for name, (at, size, _) in self._places.items():
                    into = views[name].view(-1)[rank * size : (rank + 1) * size]
                    into[:] = part[at : at + len(into)]
        self._part = self._gradient = torch.zeros(0)
        return found

    @contextmanager
    def group(self, *, is_half: bool, is_idle: bool) -> Iterator[None]:
        """While this lasts, one forward and backward pass of a group.

        Args:
            is_half: Matrices are multiplied in bfloat16, as which they are gathered then.
            is_idle: The group is another's: zeros are sent as its gradient.
        """
        self._is_half, self._is_idle = is_half, is_idle
        with torch.autograd.graph.saved_tensors_hooks(self._kept, self._again):
            yield
        self._tied.clear()
        self._gathered.clear()

    def each(self, number: float) -> list[float]:
        """What each process says here, in the order of ranks."""
        own = torch.tensor([number], dtype=torch.float64, device=self.device)
        every = own.new_empty(self.count)
        dist.all_gather_single(every, own)
        return list(map(float, every.tolist()))

    def gather(self, name: str) -> Tensor:
        """A whole tensor; in bfloat16 where a pass would round it to that."""
        at, size, shape = self._places[name]
        part = self._part[at : at + size]
        if self._is_half and len(shape) > 1 and name not in _READ_WHOLE:
            part = part.bfloat16()
        whole = part.new_empty(size * self.count)
        dist.all_gather_single(whole.view(torch.uint8), part.view(torch.uint8))
        self._gathered[_storage(whole)] = name
        return whole[: math.prod(shape)].view(shape)

    def add(self, name: str, gradient: Tensor) -> None:
        """Send the parts of our group's gradient, and add all groups' to our part, in the groups' order."""
        at, size, shape = self._places[name]
        sent = torch.zeros(size * self.count, device=self.device)
        if not self._is_idle:
            sent[: math.prod(shape)] = gradient.reshape(-1)
        came = torch.empty_like(sent)
        dist.all_to_all_single(came, sent)
        for part in came.view(self.count, size):
            self._gradient[at : at + size] += part

    def _kept(self, tensor: Tensor) -> Any:
        """What is kept of a tensor until the backward pass: of a gathered one, its name and view."""
        name = self._gathered.get(_storage(tensor))
        if name is None or (name == "embed" and self._tied):
            return tensor
        return name, tensor.shape, tensor.stride(), tensor.storage_offset()

    def _again(self, kept: Any) -> Tensor:
        if isinstance(kept, Tensor):
            return kept
        name, shape, stride, offset = kept
        return self.gather(name).as_strided(shape, stride, offset)


def _storage(tensor: Tensor) -> StorageWeakRef:
    """A tensor's memory, which stays another than any that comes later."""
    return StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]


class _Gather(torch.autograd.Function):
    """A whole tensor of its parts, whose gradient goes back to them."""

    @staticmethod
    def forward(ctx: Any, _root: Tensor, of: Sharded, name: str) -> Tensor:
        ctx.of, ctx.name = of, name
        return of.gather(name)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None, None]:
        ctx.of.add(ctx.name, gradients[0])
        return None, None, None


_current: list[Sharded] = []


def current() -> Sharded | None:
    """This process's part of its node; None where a node is one process."""
    return _current[0] if _current else None


def become(one: Sharded | None) -> None:
    """Set what `current` returns."""
    _current[:] = [] if one is None else [one]
