"""GRPO: what all nodes agree on where a model learns from the rewards of completions that it samples itself.

Room: protocol (pure). `GrpoSpec` is a term of a run's `ComputeSpec`. Rules: docs/protocol.md, "GRPO".

Reference:
    Shao et al., "DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open Language Models",
    arXiv:2402.03300 (group relative advantages); Liu et al., "Understanding R1-Zero-Like Training: A Critical
    Perspective", arXiv:2503.20783 (without the division by length and by the standard deviation).
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

GROUP_MAX = 64
FIGURE_TOKENS = 7  # at a rollout's end: its reward in three digits of base 256, its group's sum in four
DIGIT = 256
REWARD_MAX = 10**6  # millionths of 1, the reward of a right completion


class Reward(enum.IntEnum):
    """The environment that says what a completion earns: a function in training/data/environments.py."""

    EXACT = 1  # it is the answer
    ENDING = 2  # it ends with the answer, after whatever it wrote before
    PREFIX = 3  # the share of it that is the answer's beginning
    ARITHMETIC = 4  # it is the value of the expression in the prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpoSpec:
    """Terms of GRPO. A group of 0 is none: the loss is another."""

    TAG: ClassVar[bytes] = b"assay/grpo-spec/1"
    group: int  # completions of one prompt
    completion: int  # the most tokens of one, its end included
    end: int  # the token that ends one
    reward: Reward


NO_GRPO = GrpoSpec(group=0, completion=0, end=0, reward=Reward.EXACT)


def grpo_faults(grpo: GrpoSpec, *, sequences: int, context: int, vocabulary: int) -> Iterator[str]:
    """Errors in the terms of GRPO, as text. sequences: of a step. context, vocabulary: the model's."""
    if not 2 <= grpo.group <= GROUP_MAX:
        yield f"groups of {grpo.group} completions, expected 2 to {GROUP_MAX}"
    elif sequences % grpo.group:
        yield f"{sequences} sequences in a step of GRPO, expected a multiple of the group, {grpo.group}"
    if not 1 <= grpo.completion <= context - FIGURE_TOKENS:
        yield (
            f"completions of up to {grpo.completion} tokens, expected 1 to {context - FIGURE_TOKENS}: "
            f"a context of {context} also holds the prompt and {FIGURE_TOKENS} tokens of figures"
        )
    if vocabulary < DIGIT:
        yield f"a vocabulary of {vocabulary}, expected at least {DIGIT}: figures are written in tokens"
    if grpo.end >= vocabulary:
        yield f"token {grpo.end} ends a completion, expected one under {vocabulary}"
