"""Permutation: an order of the numbers below n that a key chooses, without a table of them.

Room: training (pure). One number takes a dozen hashes whatever n is, in integers alone, so that it is the
same on every machine.
"""

from __future__ import annotations

import hashlib
import math

ROUNDS = 6  # of the Feistel network; four suffice against who does not know the key, and nobody has to guess


def permuted(index: int, count: int, key: bytes) -> int:
    """Where a key's permutation of the numbers below `count` takes `index`, one of them; count > 0.

    A Feistel network over pairs of numbers, in which halves are added modulo their ranges. It permutes at
    least `count` numbers and few more: where it leads beyond them it is applied again (cycle walking).

    Reference:
        Black & Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002.
    """
    highs = math.isqrt(count - 1) + 1
    lows = -(-count // highs)
    while count > 1:
        high, low = divmod(index, lows)
        for number in range(ROUNDS):
            if number % 2:
                low = (low + _hashed(key, number, high)) % lows
            else:
                high = (high + _hashed(key, number, low)) % highs
        index = high * lows + low
        if index < count:
            break
    return index


def _hashed(key: bytes, number: int, half: int) -> int:
    body = key + bytes([number]) + half.to_bytes(8, "big")
    return int.from_bytes(hashlib.sha256(body).digest()[:16], "big")
