"""Sign agreement: what a node sent is compared with a gradient where it said something, and nowhere else."""

from __future__ import annotations

import numpy as np
import pytest

from assay.bundle.replay.step import sign_agreement
from assay.training.codec.wire import Update

X = np.zeros((3, 8), np.float32)
X[0, :4] = 3, -4, 1, 1
X[2, 4:] = 2, -1, 0, 5


def sent(*values: list[int], at: tuple[int, ...] = (0, 2), exponents: list[int] | None = None) -> Update:
    index = np.array([[0, 1, 2, 3], [4, 5, 6, 7]])[: len(values)]
    scale = None if exponents is None else np.array(exponents)
    return Update(np.array(at[: len(values)]), index, np.array(values, np.int8), scale)


@pytest.mark.parametrize(
    ("update", "share"),
    [
        (sent([1, -1, 1, 1]), 1.0),
        (sent([-1, 1, -1, -1]), 0.0),
        (sent([1, -1, -1, -1]), 0.5),
        (sent([1, -1, 0, 0]), 1.0),  # a coefficient of 0 says nothing
        (sent([-1, -1, 0, 0]), 0.5),
        (sent([1, -1, 1, 1], [1, -1, 1, -1]), 6 / 8),  # a gradient of 0 has no sign
        (sent([0, 0, 0, 0]), 0.0),
    ],
)
def test_the_share_is_of_the_coefficients_that_are_not_0(update: Update, share: float):
    assert sign_agreement(update, X)[0] == pytest.approx(share)


def test_the_cosine_is_of_all_that_was_sent_with_its_scale():
    there = np.array([3, -4, 1, 1, 2, -1, 0, 5.0])
    for exponents in ([0, 0], [3, 3], [-2, 1]):
        here = np.array([2, -1, 0, 1, 1, 1, 1, 1.0]) * np.repeat(np.exp2(exponents), 4)
        cosine = (here * there).sum() / (np.linalg.norm(here) * np.linalg.norm(there))

        found = sign_agreement(sent([2, -1, 0, 1], [1, 1, 1, 1], exponents=exponents), X)

        assert found[1] == pytest.approx(cosine)
    assert sign_agreement(sent([0, 0, 0, 0]), X) == (0, 0)
    assert sign_agreement(sent([1, 1, 1, 1], at=(1,)), X) == (0, 0)  # where the gradient is nothing
