"""Rounded: a base's matrices in 8 or 4 bits, as small whole numbers and a scale for every 64 of them.

Room: training (pure). A base that no step moves may be held in a quarter or an eighth of its memory. Every
value is `code * scale`, and that product is exact: a code has at most 7 bits beside its sign, a scale the 8
of a bfloat16. So whoever holds the codes and whoever holds float32 compute with the same bits.

Only the layers' matrices are rounded; embedding, head, norms and biases stay float32. Symmetric, nearest, by
groups within a row: Dettmers et al., arXiv:2208.07339 and arXiv:2305.14314, whose frozen weights these are,
without their double quantisation and with uniform codes in place of NF4.

    stored: float32 of what is not rounded | scales, the upper halves of float32 | codes, by row and group

Shape suffixes: F = frozen parameters, R = rows, G = groups of a row, K = bytes of a group's codes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.training.layout import Layout

GROUP = 64
CODES, SCALES = ".codes", ".scales"  # ends of names
SCALE_MIN, SCALE_MAX = np.float32(2.0**-100), np.float32(2.0**100)  # of a scale that is not 0

Stored = NDArray[np.uint8]
Matrix = NDArray[np.float32]


def is_rounded(name: str, shape: tuple[int, ...]) -> bool:
    """Whether a base's tensor is held in few bits: the matrices of its layers are."""
    return len(shape) == 2 and name.startswith("layer")


def stored_bytes(layout: Layout, bits: int) -> int:
    """Bytes of a base whose layers' matrices have so many bits; 0: all of it is float32."""
    if not bits:
        return 4 * layout.parameters
    return sum(size for _, size in _sizes(layout, bits))


def encode(layout: Layout, values_F: Matrix, bits: int) -> Stored:
    """A base rounded to the nearest codes. Shape (`stored_bytes`,).

    Args:
        layout: Of the base.
        values_F: Its parameters, float32.
        bits: 8 or 4.

    Raises:
        ValueError: a matrix to be rounded has a value that is not finite, or larger than a scale reaches.
    """
    exact, scales, codes = [np.zeros(0, np.uint8)], [np.zeros(0, np.uint8)], [np.zeros(0, np.uint8)]
    for name, tensor in layout.views(values_F).items():
        if not is_rounded(name, tensor.shape):
            exact.append(np.ascontiguousarray(tensor, "<f4").reshape(-1).view(np.uint8))
            continue
        half_RG, code_RGK = _rounded(name, tensor, bits)
        scales.append(half_RG.astype("<u2").reshape(-1).view(np.uint8))
        codes.append(code_RGK.reshape(-1).view(np.uint8))
    return np.concatenate([*exact, *scales, *codes])


def parts(layout: Layout, stored: Stored, bits: int) -> dict[str, NDArray[Any]]:
    """What a stored base consists of, codes and exact tensors as views of it.

    Returns:
        Exact tensors under their names; of each rounded one its codes, uint8 of shape (R, G, K), and scales,
        float32 of shape (R, G), under its name with `CODES` and `SCALES`.

    Raises:
        ValueError: it has another size, or a scale is out of bounds.
    """
    expected = stored_bytes(layout, bits)
    if stored.dtype != np.uint8 or stored.shape != (expected,):
        raise ValueError(f"{stored.dtype} of shape {stored.shape}, expected {expected} uint8")
    shapes, found, at = dict(zip(layout.names, layout.shapes, strict=True)), dict[str, NDArray[Any]](), 0
    for name, size in _sizes(layout, bits):
        part, at = stored[at : at + size], at + size
        if name.endswith(SCALES):
            scale = (part.view("<u2").astype(np.uint32) << 16).view(np.float32)
            if not (((scale >= SCALE_MIN) & (scale <= SCALE_MAX)) | (scale.view(np.uint32) == 0)).all():
                raise ValueError(f"{name} are not all 0 or from 2^-100 to 2^100")
            found[name] = scale.reshape(-1, _groups(shapes[name.removesuffix(SCALES)]))
        elif name.endswith(CODES):
            found[name] = part.reshape(*found[name.removesuffix(CODES) + SCALES].shape, -1)
        else:
            found[name] = part.view("<f4").reshape(shapes[name])
    return found


def decoded(code_RGK: Stored, scale_RG: Matrix, columns: int) -> Matrix:
    """A matrix's values. Shape (R, columns), float32, a fresh array."""
    code_RGC = code_RGK.view(np.int8)
    if code_RGK.shape[2] < GROUP:  # the group's first half is in the low bits
        code_RGC = np.concatenate([code_RGK & 15, code_RGK >> 4], axis=2).view(np.int8) - np.int8(8)
    value_RGC = code_RGC.astype(np.float32)
    value_RGC *= scale_RG[:, :, None]
    return np.ascontiguousarray(value_RGC.reshape(len(scale_RG), -1)[:, :columns])


def _rounded(name: str, matrix: Matrix, bits: int) -> tuple[NDArray[np.uint32], Stored]:
    """The upper halves of a matrix's scales, and its codes."""
    most = np.float32((1 << (bits - 1)) - 1)
    rows, columns = matrix.shape
    groups = _groups(matrix.shape)
    value_RGC = np.zeros((rows, groups, GROUP), np.float32)
    value_RGC.reshape(rows, -1)[:, :columns] = matrix
    least_RG = np.ascontiguousarray(np.abs(value_RGC).max(axis=2) / most)
    half_RG = (least_RG.view(np.uint32) + np.uint32(0xFFFF)) >> np.uint32(16)  # no code is above `most`
    half_RG[least_RG < SCALE_MIN] = 0
    scale_RG = (half_RG << 16).view(np.float32)
    if not (scale_RG <= SCALE_MAX).all():
        raise ValueError(f"{name} has values that no scale of at most 2^100 reaches")
    code_RGC = np.rint(value_RGC / np.where(half_RG > 0, scale_RG, np.float32(np.inf))[:, :, None])
    code_RGC = code_RGC.astype(np.int8)
    if bits == 8:
        return half_RG, code_RGC.view(np.uint8)
    nibble_RGC = (code_RGC + np.int8(8)).view(np.uint8)
    return half_RG, nibble_RGC[:, :, : GROUP // 2] | nibble_RGC[:, :, GROUP // 2 :] << np.uint8(4)


def _sizes(layout: Layout, bits: int) -> Iterator[tuple[str, int]]:
    """Names and bytes of all that is stored, in its order."""
    shapes = list(zip(layout.names, layout.shapes, strict=True))
    few = [(name, shape) for name, shape in shapes if is_rounded(name, shape)]
    for name, shape in shapes:
        if not is_rounded(name, shape):
            yield name, 4 * math.prod(shape)
    for name, shape in few:
        yield name + SCALES, 2 * shape[0] * _groups(shape)
    for name, shape in few:
        yield name + CODES, shape[0] * _groups(shape) * GROUP * bits // 8


def _groups(shape: tuple[int, ...]) -> int:
    return -(-shape[1] // GROUP)
