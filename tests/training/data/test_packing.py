"""Packing: every conversation is in one sequence, whole, and every sequence has the ordered length."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.training.data import packing
from assay.training.data.packing import Packer

PADDING = 9


def conversation(length: int, number: int = 5, *, masked: int = 1) -> np.ndarray:
    """Of which the first tokens are masked."""
    tokens = np.full(length, number)
    tokens[:masked] = ~tokens[:masked]
    return tokens


def packed(conversations, length: int) -> tuple[list[np.ndarray], Packer]:
    packer = Packer(length=length, padding=PADDING)
    found = [one for given_ in conversations for one in packer.add(given_)]
    return found + list(packer.close()), packer


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(2, 40), max_size=90), st.integers(2, 24))
def test_every_conversation_is_whole_in_one_sequence_and_the_rest_is_masked(lengths, length):
    given_ = [conversation(size, number + 100) for number, size in enumerate(lengths)]

    sequences, packer = packed(given_, length)

    assert all(len(one) == length for one in sequences)
    for number in range(len(lengths)):
        held = [one for one in sequences if number + 100 in one]
        assert len(held) == 1
        at = int(np.flatnonzero(held[0] == number + 100)[0]) - 1
        kept = given_[number][:length]
        assert np.array_equal(held[0][at : at + len(kept)], kept)
    rest = np.concatenate([np.zeros(0, int), *sequences])
    assert packer.padded == np.count_nonzero(rest == ~PADDING)
    assert packer.cut == sum(size > length for size in lengths)
    assert packer.packed == len(lengths) and packer.dropped == 0


def test_the_sequence_that_is_filled_best_takes_a_conversation():
    sequences, _ = packed([conversation(6, 1), conversation(7, 2), conversation(3, 3)], 10)

    assert any({2, 3} <= set(one.tolist()) for one in sequences)
    assert not any({1, 3} <= set(one.tolist()) for one in sequences)


def test_a_conversation_without_a_target_in_a_sequences_length_is_left_out():
    late = conversation(20, masked=10)
    only_first = np.array([5, ~5, ~5])  # the first token of a sequence is never predicted

    sequences, packer = packed([late, only_first, conversation(10, 7, masked=9)], 10)

    assert (packer.packed, packer.dropped, packer.cut) == (1, 2, 0)
    assert [one.tolist() for one in sequences] == [[*[~7] * 9, 7]]


def test_few_sequences_are_open_at_once_whatever_comes(monkeypatch):
    monkeypatch.setattr(packing, "OPEN_MAX", 4)
    packer = Packer(length=10, padding=PADDING)

    finished = [one for number in range(50) for one in packer.add(conversation(6, number))]

    assert len(finished) == 46 and len(packer._open) == 4
