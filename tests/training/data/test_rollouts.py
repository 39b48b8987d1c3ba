"""Rollouts: which task a window holds, and what a rollout says of itself."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.protocol.grpo import FIGURE_TOKENS, REWARD_MAX, Reward
from assay.training.data.environments import Task
from assay.training.data.mask import visible
from assay.training.data.rollouts import figures, laid_out_rollouts, rollouts_digest, task_of, until_end
from tests.training.tasks import END, GRPO, LENGTH, a_window


def ids(text: bytes) -> np.ndarray:
    return np.frombuffer(text, np.uint8).astype(np.int64)


def test_a_task_is_the_masked_prompt_and_the_answer_with_its_end():
    task = task_of(a_window(b"ab=", b"xy"), GRPO)

    assert bytes(task.prompt.astype(np.uint8)) == b"ab="
    assert bytes(task.answer.astype(np.uint8)) == b"xy\0"
    assert task.room == GRPO.completion


def test_an_answer_ends_with_its_first_end_token_or_where_tokens_are_masked():
    twice = a_window(b"ab=", b"x\0y")
    assert bytes(task_of(twice, GRPO).answer.astype(np.uint8)) == b"x\0"
    torn = a_window(b"ab=", b"xy")
    torn[5] = ~torn[5]  # the end
    assert bytes(task_of(torn, GRPO).answer.astype(np.uint8)) == b"xy"


@pytest.mark.parametrize("prompt", [2, 7, 8])
def test_a_completion_has_as_much_room_as_the_figures_leave(prompt):
    task = task_of(a_window(b"p" * prompt, b"x"), GRPO)

    assert task.room == min(GRPO.completion, LENGTH - FIGURE_TOKENS - prompt) == (2 if prompt == 8 else 3)


def test_a_rollout_is_its_prompt_masked_its_completion_and_its_figures():
    task = task_of(a_window(b"ab=", b"x"), GRPO)
    rows = laid_out_rollouts(task, [ids(b"x\0"), ids(b"y\0"), ids(b"abc"), ids(b"x\0")], Reward.EXACT, LENGTH)

    assert [bytes(row[row >= 0].astype(np.uint8)) for row in rows] == [b"x\0", b"y\0", b"abc", b"x\0"]
    assert all(bytes(visible(row)[:3].astype(np.uint8)) == b"ab=" for row in rows)
    earned, ahead = figures(rows, 4)
    assert earned.tolist() == [1, 0, 0, 1] and ahead.tolist() == [0.5, -0.5, -0.5, 0.5]


@pytest.mark.parametrize("right", [0, 4])
def test_a_group_that_earns_the_same_has_no_advantage(right):
    task = task_of(a_window(b"ab=", b"x"), GRPO)
    made = [ids(b"x\0")] * right + [ids(b"y\0")] * (4 - right)

    earned, ahead = figures(laid_out_rollouts(task, made, Reward.EXACT, LENGTH), 4)

    assert set(earned) == {right / 4} and not ahead.any()


@given(st.lists(st.integers(0, REWARD_MAX), min_size=2, max_size=64))
def test_figures_are_read_as_they_were_written(earned):
    task = Task(ids(b"p"), ids(b"x"), 1, END)
    rows = laid_out_rollouts(task, [ids(b"")] * len(earned), Reward.EXACT, LENGTH)
    total = sum(earned)
    for row, micro in zip(rows, earned, strict=True):
        row[-7:] = ~ids(micro.to_bytes(3, "big") + total.to_bytes(4, "big"))

    found, ahead = figures(rows, len(earned))

    assert np.allclose(found * REWARD_MAX, earned, atol=1e-6)
    assert np.allclose(ahead, found - found.mean(), atol=1e-9) and abs(ahead.sum()) < 1e-9


@given(st.lists(st.integers(-(1 << 24), (1 << 24) - 1), min_size=LENGTH, max_size=LENGTH))
def test_any_window_is_some_task_whose_completions_fit(tokens):
    window = np.array(tokens, np.int64)
    task = task_of(window, GRPO)

    assert len(task.prompt) >= 1 and 0 <= task.room <= GRPO.completion
    full = np.full(task.room, 5, np.int64)
    rows = laid_out_rollouts(task, [full, full[:0]], Reward.PREFIX, LENGTH)
    assert (rows[0] >= 0).sum() == task.room and (rows[:, -FIGURE_TOKENS:] < 0).all()
    assert np.isfinite(figures(window[None], 4)).all()


def test_what_is_behind_an_end_is_cut_and_the_digest_covers_rewards():
    assert until_end(np.array([5, END, 6, END]), END).tolist() == [5, END]
    assert until_end(np.array([5, 6]), END).tolist() == [5, 6]
    rows = laid_out_rollouts(
        task_of(a_window(b"ab=", b"x"), GRPO), [ids(b"x\0"), ids(b"y\0")], Reward.EXACT, LENGTH
    )
    other = rows.copy()
    other[0, -1] = ~9
    assert rollouts_digest(rows) != rollouts_digest(other)
