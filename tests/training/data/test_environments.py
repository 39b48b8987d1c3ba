"""Environments: what a completion of a task earns, whatever tokens a buyer or a model chose."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.protocol.grpo import REWARD_MAX, Reward
from assay.training.data.environments import ENVIRONMENTS, Task, reward_micro
from tests.training.tasks import END


def ids(text: bytes) -> np.ndarray:
    return np.frombuffer(text, np.uint8).astype(np.int64)


def a_task(prompt: bytes = b"p", answer: bytes = b"42\0") -> Task:
    return Task(ids(prompt), ids(answer), 16, END)


def test_every_environment_is_one_function():
    assert set(ENVIRONMENTS) == set(Reward) and len(set(ENVIRONMENTS.values())) == len(Reward)


@pytest.mark.parametrize(
    ("reward", "completion", "earned"),
    [
        (Reward.EXACT, b"42\0", REWARD_MAX),
        (Reward.EXACT, b"42", 0),  # not ended
        (Reward.EXACT, b"\x0042\0", 0),
        (Reward.EXACT, b"so 42\0", 0),
        (Reward.EXACT, b"", 0),
        (Reward.ENDING, b"42\0", REWARD_MAX),
        (Reward.ENDING, b"so 42\0", REWARD_MAX),
        (Reward.ENDING, b"so 42", 0),
        (Reward.ENDING, b"2\0", 0),
        (Reward.ENDING, b"so 43\0", 0),
        (Reward.PREFIX, b"42\0", REWARD_MAX),
        (Reward.PREFIX, b"42", 666_666),
        (Reward.PREFIX, b"42123", 400_000),
        (Reward.PREFIX, b"52\0", 0),
        (Reward.PREFIX, b"", 0),
    ],
)
def test_a_completion_earns_what_the_environment_says(reward, completion, earned):
    assert reward_micro(reward, a_task(), ids(completion)) == earned


@pytest.mark.parametrize(
    ("prompt", "value"),
    [
        (b"3+4=", 7),
        (b"Q: what is 12 * 3?\nA: ", 36),
        (b"<|user|>\n3 - 10\0\n<|assistant|>\n", -7),
        (b"2+3*4-5*-6=", 44),
        (b"-2 - -3 = ", 1),
        (b"1+1, and 2 -3", -1),  # the last
        (b"Say 007.", 7),
        (b"0*9", 0),
        (b"9" * 64, 10**64 - 1),
        (b"1" + b"*9" * 31, 9**31),  # 63 characters
    ],
)
def test_arithmetic_is_the_value_of_the_prompts_last_expression(prompt, value):
    task = a_task(prompt, b"not read\0")

    right = (b"%d\0" % value, b"  %d\0" % value, b"%s00%d\0" % (b"-" if value < 0 else b"", abs(value)))
    earned = [reward_micro(Reward.ARITHMETIC, task, ids(text)) for text in right]

    assert earned == ([REWARD_MAX] * 2 + [REWARD_MAX * (value < 10**62)])
    assert reward_micro(Reward.ARITHMETIC, task, ids(b"%d\0" % (value + 1))) == 0


@pytest.mark.parametrize(
    "completion",
    [
        b"", b"\0", b"7", b"77", b"7 \0", b"7\0\0", b"x7\0", b"7x\0", b"3+4\0", b"+7\0", b"--7\0", b"- 7\0",
        b"7.0\0", b"-7\0", b"\xb2\0", b"\xff7\0", b"7" * 70 + b"\0", b"0" * 64 + b"7\0", b"7" * 9000 + b"\0",
        "٧\0".encode(),
    ],
)  # fmt: skip
def test_arithmetic_gives_nothing_for_what_is_not_the_value_alone(completion):
    assert reward_micro(Reward.ARITHMETIC, a_task(b"3+4="), ids(completion)) == 0
    assert reward_micro(Reward.ARITHMETIC, a_task(b"3+4="), ids(b"0" * 63 + b"7\0")) == REWARD_MAX  # bounded


@pytest.mark.parametrize("prompt", [b"", b"no number", b"+-*", b"(", b"1" * 65, b"1" + b"+0" * 32])
def test_a_prompt_without_an_expression_or_with_too_long_a_one_earns_nothing(prompt):
    for completion in (b"0\0", b"1\0", b"1" * 64 + b"\0"):
        assert reward_micro(Reward.ARITHMETIC, a_task(prompt), ids(completion)) == 0


def test_a_token_that_is_no_byte_is_no_digit():
    seven = ids(b"7\0")
    assert reward_micro(Reward.ARITHMETIC, a_task(b"3+4="), seven) == REWARD_MAX
    for other in (256, -256, 1 << 20, -1 - (1 << 23)):  # of which the lowest byte alone would be a digit
        shifted = seven + np.array([other, 0])
        assert reward_micro(Reward.ARITHMETIC, a_task(b"3+4="), shifted) == 0
        task = Task(ids(b"3+4=") + other, seven, 16, END)
        assert reward_micro(Reward.ARITHMETIC, task, seven) == 0


NUMBERS = st.integers(-99, 99)


@given(NUMBERS, st.lists(st.tuples(st.sampled_from("+-*"), NUMBERS, st.sampled_from(["", " "])), max_size=6))
def test_arithmetic_agrees_with_pythons(first, rest):
    expression = str(first) + "".join(f"{gap}{sign}{gap}{number}" for sign, number, gap in rest)
    value = eval(expression)

    assert reward_micro(Reward.ARITHMETIC, a_task(expression.encode()), ids(b"%d\0" % value)) == REWARD_MAX


TOKENS = st.one_of(
    st.lists(st.sampled_from([*b"0123456789+-* \0x"]), max_size=40),
    st.lists(st.integers(-(1 << 24), (1 << 24) - 1), max_size=10),
)


@pytest.mark.parametrize("reward", Reward)
@given(prompt=TOKENS, completion=TOKENS, answer=TOKENS)
def test_no_completion_earns_more_than_one_or_less_than_nothing(reward, prompt, completion, answer):
    task = Task(np.array(prompt, np.int64), np.array(answer, np.int64), 16, END)

    earned = reward_micro(reward, task, np.array(completion, np.int64))

    assert isinstance(earned, int) and 0 <= earned <= REWARD_MAX
    assert answer or not earned


@pytest.mark.parametrize("reward", Reward)
@pytest.mark.parametrize("piece", [b"1", b" ", b"-", b"1 ", b"1+", b"1+ ", b"1 -", b"9*9"])
def test_the_longest_prompt_and_completion_take_milliseconds(reward, piece):
    long = ids(piece * 100_000 + b"\0")
    started = time.perf_counter()

    earned = reward_micro(reward, Task(long, ids(b"1\0"), len(long), END), long)

    assert earned <= REWARD_MAX and time.perf_counter() - started < 1  # what is quadratic takes minutes
