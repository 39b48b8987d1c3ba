"""Accuracy: the buyer's process counts right answers before and after the training, unless it takes long."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from assay.bundle import held_out
from assay.bundle.finished import Accuracy
from assay.training.data.choices import Choices, tokenised
from assay.training.data.tokenizer import byte_tokenizer
from assay.training.model.flops import flop_per_token
from assay.training.reference.evaluation import right_answers
from tests.bundle.test_write import SPEC, finished

PAIRS = ("go", "stay"), ("yes", "noo"), ("a", "bcd"), ("left", "up"), ("one", "two"), ("x", "why")
ITEMS = Choices(
    name="made up",
    items=tuple(tokenised(f"{n}", PAIRS[n % 6], 0, byte_tokenizer()) for n in range(18)),
)
RUN = replace(SPEC, choices=ITEMS.spec())
INPUTS = replace(finished().inputs, choices=ITEMS)
THETA = INPUTS.start(RUN)
TRAINED = THETA + np.float32(0.05) * np.sin(np.arange(len(THETA), dtype=np.float32))


def test_it_is_what_the_reference_class_counts_of_the_start_and_of_what_is_delivered() -> None:
    first, last = (right_answers(RUN.model, theta, ITEMS) for theta in (THETA, TRAINED))
    assert first != last

    assert held_out._accuracy(RUN, INPUTS, TRAINED) == Accuracy(
        items=18, acc_first=first[0], acc_last=last[0], acc_norm_first=first[1], acc_norm_last=last[1]
    )
    assert held_out._accuracy(SPEC, finished().inputs, TRAINED) is None


def test_items_that_take_too_long_are_not_measured_at_delivery(monkeypatch: pytest.MonkeyPatch) -> None:
    forward = ITEMS.tokens * flop_per_token(RUN.model) // 3
    monkeypatch.setattr(held_out, "ACCURACY_FLOP_MAX", forward)
    assert held_out._accuracy(RUN, INPUTS, TRAINED) is not None
    monkeypatch.setattr(held_out, "ACCURACY_FLOP_MAX", forward - 1)
    assert held_out._accuracy(RUN, INPUTS, TRAINED) is None
