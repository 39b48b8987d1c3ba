"""Choices: the answer to an item is the choice that the reference class finds likeliest."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from assay.testing.specs import FLOAT32_WHOLE, a_model
from assay.training.data.choices import Choices, Item
from assay.training.exact import initial_parameters
from assay.training.layout import layout_of
from assay.training.model.loss import mean_loss
from assay.training.model.presets import PRESETS
from assay.training.reference.choices import Answer, answer, answered, choice_loss, shortened
from assay.training.reference.evaluation import reference_loss_micro, reference_score, right_answers

GPT = a_model()
LLAMA = replace(PRESETS["llama-130k"], vocabulary=GPT.vocabulary, context=GPT.context)
NAN = float("nan")


def parameters(model, scale=2.0):
    layout = layout_of(model)
    return initial_parameters(4, layout.names, layout.shapes) * np.float32(scale) + np.float32(0.003)


def an_item(*lengths, gold=0, seed=1, query=3):
    """An item whose choices have so many tokens, and characters."""
    draw = np.random.default_rng(seed)
    tokens = [tuple(draw.integers(0, GPT.vocabulary, length).tolist()) for length in lengths]
    return Item(
        query="q",
        choices=tuple("x" * length for length in lengths),
        gold=gold,
        query_tokens=tuple(draw.integers(0, GPT.vocabulary, query).tolist()),
        choice_tokens=tuple(tokens),
    )


@pytest.mark.parametrize("model", [GPT, LLAMA], ids=["gpt", "llama"])
@pytest.mark.parametrize("length", [1, 4])
def test_the_loss_of_a_choice_is_that_of_its_tokens_behind_the_query_wherever_the_context_ends(model, length):
    (tokens, *_) = an_item(length, 2).sequences()
    theta = parameters(model)
    padded = np.full((1, model.context + 1), ~0, np.int64)  # masked behind the end
    padded[:, : tokens.shape[1]] = tokens

    found = choice_loss(model, theta, tokens)

    assert found == pytest.approx(length * mean_loss(model, layout_of(model), theta, padded), rel=1e-5)


def test_a_model_is_shortened_to_positions_that_it_has():
    theta = parameters(GPT)
    assert np.array_equal(shortened(GPT, theta, GPT.context)[1], theta)
    for context in (0, GPT.context + 1):
        with pytest.raises(ValueError, match=f"{context} positions of a model, expected 1 to {GPT.context}"):
            shortened(GPT, theta, context)


@pytest.mark.parametrize(
    ("losses", "gold", "expected"),
    [
        ((2.0, 3.0), 0, Answer(acc=True, acc_norm=False)),  # 1 and 0.5 a character
        ((2.0, 3.0), 1, Answer(acc=False, acc_norm=True)),
        ((2.0, 9.0), 0, Answer(acc=True, acc_norm=True)),
        ((2.0, 2.0), 0, Answer(acc=True, acc_norm=False)),  # the first of equals
        ((2.0, 2.0), 1, Answer(acc=False, acc_norm=True)),
        ((1.0, 3.0), 1, Answer(acc=False, acc_norm=False)),
        ((2.0, 6.0), 1, Answer(acc=False, acc_norm=False)),  # equal by character, too
        ((2.0, math.inf), 0, Answer(acc=False, acc_norm=False)),
        ((NAN, 2.0), 1, Answer(acc=False, acc_norm=False)),
    ],
)
def test_the_least_loss_answers_by_itself_and_by_character_and_ties_go_to_the_first(losses, gold, expected):
    assert answered(an_item(2, 6, gold=gold), losses) == expected


def test_whichever_choice_is_likeliest_answers_right_if_it_is_the_gold_one():
    theta = parameters(GPT)
    for seed in range(6):
        item = an_item(2, 2, 2, seed=seed)
        losses = [choice_loss(GPT, theta, tokens) for tokens in item.sequences()]
        for gold in range(3):
            assert answer(GPT, theta, replace(item, gold=gold)).acc == (gold == losses.index(min(losses)))


def test_a_model_that_diverged_answers_nothing_right():
    wild = parameters(GPT)
    wild[:] = np.float32(3e38)
    assert answer(GPT, wild, an_item(2, 2)) == Answer(acc=False, acc_norm=False)


def test_a_score_is_the_held_out_loss_and_the_count_of_right_answers():
    theta, tokens = parameters(GPT), np.zeros((2, GPT.context + 1), np.int64)
    items = tuple(an_item(2, 3, 1, seed=seed, gold=seed % 3) for seed in range(9))
    answers = [answer(GPT, theta, item) for item in items]
    choices = Choices(name="made up", items=items)

    found = reference_score(GPT, theta, tokens, choices, compute=FLOAT32_WHOLE)

    assert found.loss_micro == reference_loss_micro(GPT, theta, tokens, compute=FLOAT32_WHOLE)
    assert found.acc_count == sum(one.acc for one in answers)
    assert found.acc_norm_count == sum(one.acc_norm for one in answers)
    assert 0 < found.acc_count < 9 and found.acc_count != found.acc_norm_count
    assert (found.acc_count, found.acc_norm_count) == right_answers(GPT, theta, choices)
    without = reference_score(GPT, theta, tokens, None, compute=FLOAT32_WHOLE)
    assert without == replace(found, acc_count=0, acc_norm_count=0)
