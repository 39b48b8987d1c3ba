"""Layout: the position of every parameter in the flat vector and in the 64 x 64 blocks.

Room: training (pure). Parameters are one flat float32 vector in a fixed order of
names. For the transform they are cut into 64 x 64 blocks: matrices are padded to
multiples of 64 and tiled row-major; all vectors are laid out in rows of 64, one
after another, and tiled as one more matrix. Padding is zero going in and dropped
coming out, so an awkward size never gets its own density or block shape.

An adapter's factors have one side of a few rows, which padding to 64 would make many times as large. They are
packed: one after another in rows of 64, without padding but at the end.

Shape suffixes: P = parameters, N = blocks, S = 64.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from assay.protocol.params import BLOCK_SIDE as S
from assay.protocol.params import Family, ModelSpec, Target, target_shape
from assay.training import parallel

Shapes = list[tuple[str, tuple[int, ...]]]
LORA_A, LORA_B, BIAS = ".lora_a", ".lora_b", ".bias"  # ends of names
TARGET_NAMES = {
    Target.Q: "attention.q",
    Target.K: "attention.k",
    Target.V: "attention.v",
    Target.O: "attention.out",
    Target.GATE: "mlp.gate",
    Target.UP: "mlp.up",
    Target.DOWN: "mlp.down",
}

T = TypeVar("T", bound=np.generic)
V = TypeVar("V", bound=Any)  # an array, or a tensor: this file does not import torch


@dataclass(frozen=True, slots=True)
class Layout:
    """Names and shapes in order, with the sizes that follow from them.

    is_packed: blocks are cut from the flat vector as it is, without tiles or padding.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    is_packed: bool = False

    @property
    def parameters(self) -> int:
        """Length of the flat vector."""
        return sum(math.prod(shape) for shape in self.shapes)

    @property
    def blocks(self) -> int:
        """Number of 64 x 64 blocks."""
        if self.is_packed:
            return -(-self.parameters // (S * S))
        matrices = sum(_up(s[0]) * _up(s[1]) for s in self.shapes if len(s) == 2)
        return matrices + _up(self._vector_rows())

    def offsets(self) -> dict[str, tuple[int, tuple[int, ...]]]:
        """Start in the flat vector, and shape, by name."""
        found, at = {}, 0
        for name, shape in zip(self.names, self.shapes, strict=True):
            found[name] = (at, shape)
            at += math.prod(shape)
        return found

    def views(self, flat: V) -> dict[str, V]:
        """Every tensor by its name, as a view of a flat vector of numpy or torch. Shape (P,)."""
        places = self.offsets().items()
        return {name: flat[at : at + math.prod(shape)].reshape(shape) for name, (at, shape) in places}

    def _vector_rows(self) -> int:
        return sum(_up(s[0]) for s in self.shapes if len(s) == 1)


def layout_of(model: ModelSpec) -> Layout:
    """The order and shapes of the parameters that are trained: all, or an adapter's factors."""
    if model.is_adapted:
        named = _adapter_shapes(model)
        return Layout(tuple(n for n, _ in named), tuple(s for _, s in named), is_packed=True)
    return _whole_layout(model)


def frozen_layout(model: ModelSpec) -> Layout:
    """The order and shapes of the parameters that stay as imported; empty if all are trained."""
    return _whole_layout(model) if model.is_adapted else Layout((), ())


def adapted_names(model: ModelSpec) -> tuple[str, ...]:
    """The matrices to which an adapter is added, in the order of the layers; empty without one."""
    targets = model.adapter.targets
    return tuple(f"layer{n}.{TARGET_NAMES[one]}" for n in range(model.layers) for one in targets)


def _whole_layout(model: ModelSpec) -> Layout:
    named = _gpt_shapes(model) if model.family is Family.GPT else _llama_shapes(model)
    if not model.is_tied:
        named.append(("head", (model.vocabulary, model.width)))
    return Layout(tuple(n for n, _ in named), tuple(s for _, s in named))


def _gpt_shapes(model: ModelSpec) -> Shapes:
    d = model.width
    shapes: Shapes = [("embed", (model.vocabulary, d)), ("position", (model.context, d))]
    for layer in range(model.layers):
        at = f"layer{layer}."
        shapes += [
            (at + "norm1.weight", (d,)),
            (at + "norm1.bias", (d,)),
            (at + "attention.qkv", (3 * d, d)),
            (at + "attention.out", (d, d)),
            (at + "norm2.weight", (d,)),
            (at + "norm2.bias", (d,)),
            (at + "mlp.up", (model.hidden, d)),
            (at + "mlp.down", (d, model.hidden)),
        ]
    return [*shapes, ("norm.weight", (d,)), ("norm.bias", (d,))]


def _llama_shapes(model: ModelSpec) -> Shapes:
    d, mixed, shared = model.width, model.mixed_width, model.kv_heads * model.head
    own: Shapes = []  # what a family has besides
    if model.family is Family.QWEN2:
        sizes = {"attention.q": mixed, "attention.k": shared, "attention.v": shared}
        own = [(name + BIAS, (size,)) for name, size in sizes.items()]
    if model.family is Family.QWEN3:
        own = [("attention.q_norm.weight", (model.head,)), ("attention.k_norm.weight", (model.head,))]
    shapes: Shapes = [("embed", (model.vocabulary, d))]
    for layer in range(model.layers):
        at = f"layer{layer}."
        shapes += [
            (at + "norm1.weight", (d,)),
            (at + "attention.q", (mixed, d)),
            (at + "attention.k", (shared, d)),
            (at + "attention.v", (shared, d)),
            *((at + name, shape) for name, shape in own),
            (at + "attention.out", (d, mixed)),
            (at + "norm2.weight", (d,)),
            (at + "mlp.gate", (model.hidden, d)),
            (at + "mlp.up", (model.hidden, d)),
            (at + "mlp.down", (d, model.hidden)),
        ]
    return [*shapes, ("norm.weight", (d,))]


def _adapter_shapes(model: ModelSpec) -> Shapes:
    """All A, then all B: as B begins with zeros, so do A's gradients, and stay the smaller ones.

    In a block of both, the coefficients of B would take every place that a sparse update has.
    """
    rank, a_side, b_side = model.adapter.rank, [], []
    sides = [target_shape(model, one) for one in model.adapter.targets] * model.layers
    for name, (rows, columns) in zip(adapted_names(model), sides, strict=True):
        a_side.append((name + LORA_A, (rank, columns)))
        b_side.append((name + LORA_B, (rows, rank)))
    return [*a_side, *b_side]


def to_blocks(layout: Layout, flat_P: NDArray[np.float32]) -> NDArray[np.float32]:
    """Cut the flat vector into padded blocks. Shape (N, 64, 64), float32, a fresh array."""
    out_NSS = np.zeros((layout.blocks, S, S), np.float32)
    if layout.is_packed:
        out_NSS.reshape(-1)[: len(flat_P)] = flat_P
        return out_NSS

    def work(piece: _Piece) -> None:
        tiles = out_NSS[piece.block : piece.block + piece.high * piece.wide]
        part = flat_P[piece.at : piece.at + piece.rows * piece.columns].reshape(piece.rows, piece.columns)
        if piece.is_whole:
            by_tile = tiles.reshape(piece.high, piece.wide, S, S)
            by_tile[...] = part.reshape(piece.high, S, piece.wide, S).transpose(0, 2, 1, 3)
        else:
            tiles[...] = _tile(part)

    parallel.each(work, _pieces(layout))
    vectors = list(_vectors(layout))
    if vectors:
        tiles = _tile(np.concatenate([_pad_rows(flat_P[at : at + size]) for at, size in vectors]))
        out_NSS[-len(tiles) :] = tiles
    return out_NSS


def from_blocks(layout: Layout, blocks_NSS: NDArray[T]) -> NDArray[T]:
    """Inverse of `to_blocks`, padding dropped; any dtype is kept. Shape (P,)."""
    if layout.is_packed:
        return blocks_NSS.reshape(-1)[: layout.parameters].copy()
    flat_P = np.empty(layout.parameters, blocks_NSS.dtype)

    def work(piece: _Piece) -> None:
        tiles = blocks_NSS[piece.block : piece.block + piece.high * piece.wide]
        by_row = tiles.reshape(piece.high, piece.wide, S, S).transpose(0, 2, 1, 3)
        part = flat_P[piece.at : piece.at + piece.rows * piece.columns]
        if piece.is_whole:
            part.reshape(piece.high, S, piece.wide, S)[...] = by_row
        else:
            matrix = by_row.reshape(piece.high * S, piece.wide * S)
            part[:] = matrix[: piece.rows, : piece.columns].reshape(-1)

    pieces = _pieces(layout)
    parallel.each(work, pieces)
    rows = blocks_NSS[sum(piece.high * piece.wide for piece in pieces) :].reshape(-1)
    row = 0
    for start, size in _vectors(layout):
        flat_P[start : start + size] = rows[row * S : row * S + size]
        row += _up(size)
    return flat_P


@dataclass(frozen=True, slots=True)
class _Piece:
    """Rows of a matrix, of whole tiles but the last. at: in the flat vector. block: of the first tile."""

    at: int
    rows: int
    columns: int
    block: int

    @property
    def high(self) -> int:
        return _up(self.rows)

    @property
    def wide(self) -> int:
        return _up(self.columns)

    @property
    def is_whole(self) -> bool:
        """Whether no tile is padded."""
        return self.rows % S == 0 and self.columns % S == 0


def _pieces(layout: Layout) -> list[_Piece]:
    """All matrices, in pieces for the threads."""
    pieces, at, block = [], 0, 0
    for shape in layout.shapes:
        if len(shape) > 1:
            rows, columns = shape
            for part in parallel.parts(_up(rows), max(parallel.LEAST // _up(columns), 1)):
                first, last = part.start * S, min(part.stop * S, rows)
                begin = at + first * columns, block + part.start * _up(columns)
                pieces.append(_Piece(begin[0], last - first, columns, begin[1]))
            block += _up(rows) * _up(columns)
        at += math.prod(shape)
    return pieces


def _vectors(layout: Layout) -> Iterator[tuple[int, int]]:
    """Place in the flat vector and length of each vector."""
    at = 0
    for shape in layout.shapes:
        if len(shape) == 1:
            yield at, shape[0]
        at += math.prod(shape)


def _up(size: int) -> int:
    return -(-size // S)


def _pad_rows(vector: NDArray[np.float32]) -> NDArray[np.float32]:
    padded = np.zeros(_up(len(vector)) * S, np.float32)
    padded[: len(vector)] = vector
    return padded.reshape(-1, S)


def _tile(matrix: NDArray[np.float32]) -> NDArray[np.float32]:
    high, wide = _up(matrix.shape[0]), _up(matrix.shape[1])
    padded = np.zeros((high * S, wide * S), np.float32)
    padded[: matrix.shape[0], : matrix.shape[1]] = matrix
    return padded.reshape(high, S, wide, S).transpose(0, 2, 1, 3).reshape(-1, S, S)
