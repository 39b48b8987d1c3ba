"""Work on blocks is divided among threads, and has the same bits however it is divided."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from assay.protocol.types import Digest
from assay.testing.specs import a_rule
from assay.training import parallel
from assay.training.exact import apply_signs
from assay.training.layout import Layout
from assay.training.optimiser.momentum_root import momentum_leaves
from assay.training.transform.blocked_dct import row_lengths
from assay.training.transform.compress import gradient_blocks, transition, work_sketch
from assay.training.transform.inverse import inverse_signs

LAYOUT = Layout(("a", "b", "c", "d", "e"), ((640, 1000), (130, 576), (37,), (128, 192), (64,)))
RULE = a_rule(k=32)


@pytest.fixture(autouse=True)
def one_thread_afterwards() -> Iterator[None]:
    yield
    parallel.set_count(1)


def digests() -> list[str]:
    """Of everything that a step computes after its gradient, and of what a message moves."""
    rng = np.random.default_rng(0)
    slope_P = rng.standard_normal(LAYOUT.parameters).astype(np.float32)
    before_NC = rng.standard_normal((LAYOUT.blocks, 4096)).astype(np.float32)
    x_NC = gradient_blocks(RULE, LAYOUT, slope_P, np.float32(0.01))
    moved = transition(RULE.compress, before_NC, x_NC)
    sent = moved.sent
    count_N = RULE.compress.k * np.bincount(sent.blocks_B, minlength=LAYOUT.blocks)
    values = sent.value_BK.reshape(-1).astype(np.int32)
    signs = inverse_signs(count_N, sent.index_BK.reshape(-1).astype(np.int16), values)
    parts = (
        x_NC,
        row_lengths(x_NC),
        moved.after_BC,
        sent.index_BK,
        sent.value_BK,
        work_sketch(Digest(bytes(32)), x_NC),
        b"".join(momentum_leaves(Digest(bytes(32)), moved.after_BC)),
        signs,
        apply_signs(before_NC.reshape(-1), signs.reshape(-1)[: before_NC.size], np.float32(0.3)),
    )
    return [hashlib.sha256(bytes(part)).hexdigest() for part in parts]


def test_any_number_of_threads_computes_the_same_bits():
    assert LAYOUT.blocks > 5 * parallel.LEAST  # so that there is something to divide
    alone = digests()
    for count in (2, 3, 7):
        parallel.set_count(count)
        assert digests() == alone, count


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("size", [0, 1, 31, 32, 33, 1000])
def test_parts_cover_everything_once_and_are_not_small(count, size):
    parallel.set_count(count)

    parts = parallel.parts(size)

    assert [i for part in parts for i in range(part.start, part.stop)] == list(range(size))
    assert all(part.stop - part.start >= min(size, parallel.LEAST) for part in parts)
    assert len(parts) <= (4 * count if count > 1 else 1)


def test_with_several_threads_several_work_and_with_one_the_caller_does():
    seen: set[str] = set()
    barrier = threading.Barrier(3, timeout=20)

    def work(_: int) -> None:
        seen.add(threading.current_thread().name)
        barrier.wait()

    parallel.set_count(3)
    parallel.each(work, range(6))
    assert len(seen) == 3

    parallel.set_count(1)
    seen.clear()
    parallel.each(lambda _: seen.add(threading.current_thread().name), range(6))
    assert seen == {threading.current_thread().name}


@pytest.mark.parametrize("count", [1, 3])
def test_an_error_reaches_the_caller(count):
    parallel.set_count(count)

    def work(number: int) -> None:
        if number == 3:
            raise ValueError("three")

    with pytest.raises(ValueError, match="three"):
        parallel.each(work, range(6))
    parallel.each(lambda _: None, range(6))  # and nothing is left broken


def test_less_than_one_thread_is_refused():
    with pytest.raises(ValueError, match="0 threads"):
        parallel.set_count(0)


@pytest.mark.parametrize("count", [1, 3])
def test_results_come_in_order_and_only_a_few_ahead(count):
    parallel.set_count(count)
    begun: list[int] = []

    def work(number: int) -> int:
        begun.append(number)
        time.sleep(0.001 * (number % 3))
        return number

    results = parallel.in_order(work, range(40))

    assert [next(results) for _ in range(5)] == list(range(5))
    assert len(begun) <= 5 + 2 * count
    assert list(results) == list(range(5, 40))


@pytest.mark.parametrize("count", [1, 3])
def test_an_error_is_raised_in_its_turn(count):
    parallel.set_count(count)

    results = parallel.in_order(lambda number: 6 // (3 - number), range(40))

    assert [next(results) for _ in range(3)] == [2, 3, 6]
    with pytest.raises(ZeroDivisionError):
        next(results)
