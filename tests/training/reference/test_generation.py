"""Generation: text follows from parameters and noise, alike on every machine, and ends at a separator."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import pytest

from assay.protocol.params import AdapterSpec, Target
from assay.protocol.types import Digest
from assay.testing.specs import a_model
from assay.training.exact import initial_parameters
from assay.training.frozen import Frozen
from assay.training.layout import frozen_layout, layout_of
from assay.training.model.adapter import merged
from assay.training.model.presets import PRESETS
from assay.training.reference.generation import chosen, generated, gumbel
from assay.training.reference.gradient import reference_logits
from tests.training.model.logits import logits

NOISE = ["-0x1.90a3aa15a0b5dp+1", "-0x1.4e79361bab321p-2", "0x1.774f29c39c0bdp-2", "0x1.6dfb516f1cbbfp+4"]
GPT = a_model()
LLAMA = replace(PRESETS["llama-130k"], vocabulary=GPT.vocabulary, context=GPT.context)


def parameters(model, scale=4.0):
    layout = layout_of(model)
    return initial_parameters(4, layout.names, layout.shapes) * np.float32(scale)


def test_tokens_are_drawn_with_the_probabilities_of_the_softmax():
    probabilities = np.array([0.5, 0.3, 0.15, 0.05])
    draws = np.frombuffer(hashlib.shake_256(b"draws").digest(4 * 4 * 40_000), "<u4").reshape(-1, 4)

    found = chosen(np.log(probabilities).astype(np.float32)[None].repeat(40_000, 0), draws)

    assert np.allclose(np.bincount(found, minlength=4) / 40_000, probabilities, atol=0.01)


def test_noise_has_the_same_bits_everywhere_and_a_tie_is_the_first_tokens():
    ends = gumbel(np.array([0, 1 << 30, 1 << 31, 2**32 - 1], np.uint32))
    assert [value.hex() for value in ends.tolist()] == NOISE
    assert np.allclose(ends, -np.log(-np.log((np.array([0, 2**30, 2**31, 2**32 - 1]) + 0.5) / 2**32)))
    same = np.full((1, 5), 7, np.uint32)
    assert chosen(np.array([[1, 3, 3, 0, 2]], np.float32), same)[0] == 1
    assert chosen(np.array([[1, 3, np.nan, 0, np.nan]], np.float32), same)[0] == 2


@pytest.mark.parametrize("model", [GPT, LLAMA])
def test_logits_are_those_of_a_training_pass(model):
    inputs = np.random.default_rng(0).integers(0, model.vocabulary, (3, model.context))

    found = reference_logits(model, parameters(model), inputs)

    expected = logits(model, layout_of(model), parameters(model), inputs)
    assert found.shape == (3, model.context, model.vocabulary)
    assert np.allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize("model", [GPT, LLAMA])
def test_every_token_has_the_highest_sum_of_logit_and_noise_given_what_precedes_it(model):
    theta, separator = parameters(model), 3
    made = generated(model, theta, separator, sequences=2, length=6, head=b"head")

    assert made == generated(model, theta, separator, sequences=2, length=6, head=b"head")
    assert made != generated(model, theta, separator, sequences=2, length=6, head=b"other")
    for number, row in enumerate(made):
        whole = [separator, *row, *([separator] if len(row) < 6 else [])]
        for place, token in enumerate(whole[1:]):
            inputs = np.zeros((1, model.context), np.int64)
            inputs[0, : place + 1] = whole[: place + 1]
            bits = hashlib.shake_256(b"head" + number.to_bytes(8, "big") + place.to_bytes(8, "big"))
            noise = gumbel(np.frombuffer(bits.digest(4 * model.vocabulary), "<u4"))
            assert token == np.argmax(logits(model, layout_of(model), theta, inputs)[0, place] + noise)


def test_an_adapter_makes_up_what_the_merged_model_does():
    adapter = AdapterSpec(rank=4, alpha=8, targets=(Target.Q, Target.V))
    adapted = replace(LLAMA, base=Digest(bytes(32)[:-1] + b"b"), adapter=adapter)
    frozen, factors = Frozen(frozen_layout(adapted), parameters(LLAMA)), parameters(adapted, scale=10)
    whole = merged(adapted, frozen, factors)
    asked = {"sequences": 3, "length": 16, "head": b"head"}

    made = generated(adapted, factors, 3, frozen=frozen, **asked)

    assert made == generated(LLAMA, whole, 3, **asked) != generated(LLAMA, parameters(LLAMA), 3, **asked)


def test_a_document_ends_before_the_next_separator_and_at_the_length():
    theta = parameters(GPT)
    lengths = {
        len(row)
        for head in range(8)
        for row in generated(GPT, theta, 3, sequences=3, length=GPT.context, head=bytes([head]))
        if 3 not in row
    }

    assert max(lengths) == GPT.context and len(lengths) > 1


def test_a_model_that_diverged_makes_up_nothing():
    with pytest.raises(FloatingPointError):
        generated(GPT, parameters(GPT) * np.float32(1e30), 3, sequences=1, length=2, head=b"")
