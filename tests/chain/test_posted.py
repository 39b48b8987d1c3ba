"""Posted epochs: how many results a run has, found by few calls."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from assay.chain.reader import EPOCHS_END, ChainReader
from assay.chain.state import EpochPhase


@pytest.mark.parametrize("known", [0, 1, 5])
@pytest.mark.parametrize("posted", [0, 1, 2, 3, 7, 8, 9, 1000])
def test_results_are_counted_from_what_is_known(posted: int, known: int):
    asked: list[int] = []
    assert counted(posted, known, asked) == max(posted, known)
    assert len(asked) <= 2 * max(1, posted - known + 1).bit_length()


def test_an_endpoint_that_says_so_of_every_epoch_is_asked_no_further():
    asked: list[int] = []
    assert counted(2**80, 0, asked) >= EPOCHS_END - 1
    assert max(asked) < 2**64


def counted(posted: int, known: int, asked: list[int]) -> int:
    def epoch_state(_run_id: bytes, epoch: int) -> Any:
        asked.append(epoch)
        return SimpleNamespace(phase=EpochPhase.PROPOSED if epoch < posted else EpochPhase.NONE)

    reader: Any = SimpleNamespace(epoch_state=epoch_state)
    return ChainReader.posted_epochs(reader, b"run", known)
