"""Attention: causal attention and its backward pass, of shared keys and values and rotated ones too, float32.

Room: training (pure). Per sequence: scores, probabilities, mixed values; products are those of product.py, of
which the masked half is not computed, softmax that of rows.py. The backward pass computes the probabilities
again, so that they need not be kept.

Shape suffixes: T = tokens (in an attention's own arrays: of one sequence), D = width, X = any, H = heads.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from assay.training.reference import rows
from assay.training.reference.elementary import cos_sin64, exp64, log64
from assay.training.reference.layers import expect_shape
from assay.training.reference.product import Shape, multiply

Floats = NDArray[np.float32]
Jitter = Callable[[Floats], Floats]


@dataclass(frozen=True, slots=True)
class Attention:
    """Causal attention of several heads, which may share keys and values and may be rotated (rope).

    length: tokens of a sequence. head: width of one. shared: heads to one key and value. theta: base of the
    rotary wavelengths; 0 for none.
    """

    heads: int
    kv_heads: int
    head: int
    length: int
    theta: int

    def forward(self, *qkv: Floats) -> Floats:
        """The values mixed by softmax(q k / sqrt(head)); given q, k and v, or all beside each other."""
        q_TD, k_TX, v_TX = self._three(qkv)
        out_TD = np.empty(q_TD.shape, np.float32)
        for q, k, v, out in zip(*map(self._sequences, (q_TD, k_TX, v_TX, out_TD)), strict=True):
            p_HTT = self._probabilities(self._turned(q), self._turned(k))
            for one in self._groups():
                multiply(p_HTT[one], v, out[one], Shape.LOWER_FACTOR)
        return out_TD

    def back(self, slope_TD: Floats, *qkv: Floats, jitters: tuple[Jitter, Jitter] | None = None) -> Floats:
        """Slopes along q, k and v beside each other; of shared ones summed over their heads in order.

        jitters: how scores round, and slopes along probabilities; see rounding.py.
        """
        three = self._three(qkv)
        expect_shape(three[0].shape, slope_TD)
        out_TX = np.empty((len(slope_TD), self.edges[2]), np.float32)
        arrays = (slope_TD, *three, *self._three((out_TX,)))
        for slope, q, k, v, to_q, to_k, to_v in zip(*map(self._sequences, arrays), strict=True):
            q, k = self._turned(q), self._turned(k)
            p_HTT = self._probabilities(q, k)
            s_HTT = np.empty_like(p_HTT)
            for one in self._groups():
                multiply(slope[one], v.transpose(0, 2, 1), s_HTT[one], Shape.LOWER_RESULT)
            noises = None if jitters is None else self._noises(jitters, q, k, p_HTT, s_HTT)
            rows.causal_softmax_back(self._flat(p_HTT), self.length, self._scale, self._flat(s_HTT))
            if noises is not None:
                of_p, of_s = noises
                s_HTT += s_HTT * of_p + of_s
                p_HTT += p_HTT * of_p
            for number, one in enumerate(self._groups()):
                p_back, s_back = (x[one].transpose(0, 2, 1) for x in (p_HTT, s_HTT))
                multiply(p_back, slope[one], to_v, Shape.UPPER_FACTOR, adds=number > 0)
                multiply(s_back, q[one], to_k, Shape.UPPER_FACTOR, adds=number > 0)
                multiply(s_HTT[one], k, to_q[one], Shape.LOWER_FACTOR)
            to_q[...], to_k[...] = self._turned(to_q, -1), self._turned(to_k, -1)
        return out_TX

    @property
    def edges(self) -> tuple[int, int, int]:
        """Where q, k and v end when they lie beside each other."""
        width, shared = self.heads * self.head, self.kv_heads * self.head
        return width, width + shared, width + 2 * shared

    def _three(self, qkv: tuple[Floats, ...]) -> list[Floats]:
        """q, k and v, of which one array may hold all."""
        three = list(qkv) if len(qkv) == 3 else np.split(qkv[0], self.edges[:2], axis=1)
        tokens, width = len(three[0]), self.heads * self.head
        if tokens % self.length:
            raise ValueError(f"{tokens} tokens, expected sequences of {self.length}")
        expect_shape((tokens, width), three[0])
        expect_shape((tokens, self.kv_heads * self.head), *three[1:])
        return three

    @property
    def _scale(self) -> np.float32:
        return np.float32(1.0 / math.sqrt(self.head))

    def _groups(self) -> list[slice]:
        """Heads by their number among those that share a key."""
        shared = self.heads // self.kv_heads
        return [slice(number, None, shared) for number in range(shared)]

    def _sequences(self, x_TX: Floats) -> Floats:
        """By sequence and head: a view of shape (sequences, heads, length, head)."""
        return x_TX.reshape(-1, self.length, x_TX.shape[1] // self.head, self.head).transpose(0, 2, 1, 3)

    def _flat(self, x_HTT: Floats) -> Floats:
        return x_HTT.reshape(-1, self.length)

    def _probabilities(self, q_HTD: Floats, k_HTD: Floats) -> Floats:
        p_HTT = self._scores(q_HTD, k_HTD)
        rows.causal_softmax(self._flat(p_HTT), self.length, self._scale)
        return p_HTT

    def _scores(self, q_HTD: Floats, k_HTD: Floats) -> Floats:
        """Before they are scaled; what is masked is anything."""
        found_HTT = np.empty((self.heads, self.length, self.length), np.float32)
        for one in self._groups():
            multiply(q_HTD[one], k_HTD.transpose(0, 2, 1), found_HTT[one], Shape.LOWER_RESULT)
        return found_HTT

    def _noises(
        self, jitters: tuple[Jitter, Jitter], q_HTD: Floats, k_HTD: Floats, p_HTT: Floats, s_HTT: Floats
    ) -> tuple[Floats, Floats]:
        """What rounds inside: probabilities, relative to them, and slopes along scores.

        Kernels that keep no probabilities take exp(score - log of its row's sum) again: where scores of
        thousands round otherwise then, a probability of 1 changes as well. Off a slope its row's mean is
        taken: where p is 1, nothing but rounding is left.
        """
        scores, slopes = jitters
        score_HTT, slope_HTT = np.tril(self._scores(q_HTD, k_HTD)) * self._scale, np.tril(s_HTT)
        of_s = (slopes(slope_HTT) - slope_HTT) * p_HTT * self._scale
        return scores(score_HTT) - score_HTT, of_s

    def _turned(self, x_HTD: Floats, sense: int = 1) -> Floats:
        """Coordinates i and i + head / 2 turned by their position's angle, back for a sense of -1."""
        if not self.theta:
            return x_HTD
        cosine, sine = _angles(self.length, self.head, self.theta)
        first, second = np.split(x_HTD, 2, axis=2)
        if sense < 0:
            sine = -sine
        return np.concatenate((first * cosine - second * sine, second * cosine + first * sine), axis=2)


@functools.lru_cache(maxsize=4)
def _angles(length: int, head: int, theta: int) -> tuple[Floats, Floats]:
    """Cosine and sine of position / theta^(2i / head), each of shape (length, head / 2).

    Exponent, power, its inverse and the angle are rounded to float32, as in training/model/llama.py.
    """
    exponent = np.arange(0, head, 2).astype(np.float32) / np.float32(head)
    power = exp64(exponent.astype(np.float64) * log64(np.array(float(theta)))).astype(np.float32)
    frequency = np.float32(1) / power
    angle = np.arange(length).astype(np.float32)[:, None] * frequency
    cosine, sine = cos_sin64(angle.astype(np.float64))
    return cosine.astype(np.float32), sine.astype(np.float32)
