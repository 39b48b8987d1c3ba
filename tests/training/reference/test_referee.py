"""Referee: whoever lies about any operator is found at fault, and an honest claimant never is."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.protocol.params import AdapterSpec, ComputeSpec, Precision, Target
from assay.protocol.types import Digest
from assay.testing.specs import FLOAT32_WHOLE
from assay.training.exact import initial_parameters
from assay.training.frozen import Frozen
from assay.training.layout import frozen_layout, layout_of
from assay.training.model.presets import gpt_spec, llama_spec
from assay.training.reference.gradient import reference_loss_and_gradient, run
from assay.training.reference.operators import TOKENS, operators, run_one, sources
from assay.training.reference.referee import Finding, first_difference, judge, settle
from assay.training.reference.trace import Answer, output_digest, trace_of, traced

LLAMA = llama_spec(layers=2, width=12, heads=3, kv_heads=1, hidden=7, context=5, vocabulary=11)
MODELS = {
    "gpt": gpt_spec(layers=2, width=12, heads=2, context=5, vocabulary=11, is_tied=True),
    "llama": LLAMA,
    "an adapter": replace(LLAMA, adapter=AdapterSpec(rank=2, alpha=3, targets=tuple(Target))),
}
MICRO = ComputeSpec(dtype=Precision.FLOAT32, micro_sequences=2)  # of three sequences: two groups
NEEDS_EQUAL_ROWS = re.compile(
    r"(/norm|norm[12]|norm[12]?[.](weight|x)|mlp[.]x|attention|attention[.]x|loss[.]x)$"
)
every_model = pytest.mark.parametrize("name", MODELS)


def a_program(name):
    model = MODELS[name]
    layout = layout_of(model)
    theta = initial_parameters(4, layout.names, layout.shapes)
    tokens = np.random.default_rng(1).integers(0, model.vocabulary, (3, model.context + 1))
    return operators(model, 3, MICRO), sources(layout, theta, tokens, frozen_of(model))


def frozen_of(model) -> Frozen:
    layout = frozen_layout(model)
    return Frozen(layout, initial_parameters(3, layout.names, layout.shapes))


def moved(output):
    """The output with one bit changed."""
    changed = output.copy()
    changed.reshape(-1).view(np.uint8)[0] ^= 1
    return changed


class Claimed:
    """A claimant that keeps what it claims; one operator's output is a lie, with which the rest is run."""

    def __init__(self, program, arrays, lie=None, change=moved):
        self.outputs, held = [], dict(arrays)
        for index, operator in enumerate(program):
            output = run_one(operator, held)
            held[operator.name] = change(output) if index == lie else output
            self.outputs.append(held[operator.name])
        self.trace = trace_of([output_digest(output) for output in self.outputs])
        self.root, self.asked = self.trace.tree.root, 0

    def answer(self, index):
        self.asked += 1
        return self.trace.answer(index)

    def output(self, index):
        return self.outputs[index]


@pytest.fixture(scope="module")
def honest():
    return {name: Claimed(*a_program(name)) for name in MODELS}


@every_model
def test_a_lie_in_any_single_operator_loses_on_either_side(name, honest):
    program, arrays = a_program(name)
    for index in range(len(program)):
        if program[index].name.endswith(("inputs", "targets")):
            continue  # moved tokens may lie outside the vocabulary; see below
        liar = Claimed(program, arrays, lie=index)
        assert settle(program, arrays, (honest[name], liar)) == Finding(index, (False, True))
        assert settle(program, arrays, (liar, honest[name])) == Finding(index, (True, False))


@every_model
def test_other_tokens_than_the_committed_ones_lose(name, honest):
    program, arrays = a_program(name)
    liar = Claimed(program, arrays, lie=0, change=lambda tokens: (tokens + 1) % 11)

    assert settle(program, arrays, (honest[name], liar)) == Finding(0, (False, True))


@every_model
def test_two_honest_claimants_have_nothing_to_settle(name, honest):
    program, arrays = a_program(name)

    assert settle(program, arrays, (honest[name], Claimed(program, arrays))) == Finding(None, (False, False))


@every_model
def test_two_liars_both_lose_where_the_first_of_them_lies(name):
    program, arrays = a_program(name)
    one = Claimed(program, arrays, lie=40)
    other = Claimed(program, arrays, lie=40, change=lambda output: moved(moved(output) + output))

    assert settle(program, arrays, (one, other)) == Finding(40, (True, True))


@every_model
def test_answers_that_are_not_under_the_root_lose(name, honest):
    """Whoever changes its story while it is asked, at any question, in the digest or in the path."""
    program, arrays = a_program(name)
    truth = honest[name]

    class Wavering(Claimed):
        patience, way = 0, 0

        def answer(self, index):
            told = super().answer(index)
            if self.asked <= self.patience:
                return told
            return replace(told, output=truth.trace.outputs[index]) if self.way else truth.answer(index)

    for way in (0, 1):
        for lie in (3, 20, len(program) - 1):
            for patience in range(4):
                liar = Wavering(program, arrays, lie=lie)
                liar.patience, liar.way = patience, way
                finding = settle(program, arrays, (truth, liar))
                assert finding.at_fault == (False, True)
                liar.asked = 0
                assert settle(program, arrays, (liar, truth)).at_fault == (True, False)


@every_model
def test_a_path_too_long_or_too_short_loses(name, honest):
    program, arrays = a_program(name)
    for change in (lambda path: path[:-1], lambda path: (*path, Digest(bytes(32))), lambda _: ()):
        liar = Claimed(program, arrays, lie=9)
        liar.answer = lambda i, liar=liar, change=change: Answer(
            liar.trace.outputs[i], change(liar.trace.answer(i).path)
        )
        assert settle(program, arrays, (honest[name], liar)).at_fault == (False, True)


@every_model
def test_inputs_other_than_those_agreed_on_lose(name, honest):
    program, arrays = a_program(name)
    liar = Claimed(program, arrays, lie=30)
    liar.output = lambda index: moved(liar.outputs[index])

    assert settle(program, arrays, (liar, honest[name])).at_fault == (True, False)


@every_model
def test_inputs_that_do_not_fit_each_other_are_refused_before_compiled_code(name):
    """It looks at no size: two liars who agree on a wrong one would have it read and write foreign memory."""
    program, arrays = a_program(name)
    outputs = Claimed(program, arrays).outputs
    held = {**arrays, **dict(zip((one.name for one in program), outputs, strict=True))}
    checked = [one for one in program if NEEDS_EQUAL_ROWS.search(one.name)]
    assert len(checked) > 30
    for operator in checked:
        for given_name in set(operator.inputs) - {TOKENS}:  # which no claimant gives
            with pytest.raises(ValueError):
                run_one(operator, {**held, given_name: held[given_name][:-1]})
    for operator in program:
        for given_name in ("0/inputs", "0/targets"):
            if given_name in operator.inputs:
                with pytest.raises((ValueError, IndexError)):
                    run_one(operator, {**held, given_name: held[given_name] + 11})


@every_model
def test_liars_who_agree_on_inputs_of_the_wrong_size_both_lose(name):
    program, arrays = a_program(name)
    index = next(i for i, one in enumerate(program) if one.name == "0/slope/layer0.mlp.x")
    (place,) = [i for i, one in enumerate(program) if one.name == program[index].inputs[0]]
    pair = [Claimed(program, arrays) for _ in range(2)]
    for number, one in enumerate(pair):
        one.outputs[place] = one.outputs[place][:-1]
        one.outputs[index] = one.outputs[index] + number
        one.trace = trace_of([output_digest(output) for output in one.outputs])
        one.root = one.trace.tree.root

    assert settle(program, arrays, tuple(pair)) == Finding(index, (True, True))


class Leaves:
    """A claimant of made-up digests."""

    def __init__(self, digests):
        self.trace, self.asked = trace_of(digests), 0
        self.root = self.trace.tree.root

    def answer(self, index):
        self.asked += 1
        return self.trace.answer(index)


@given(st.integers(1, 200), st.data())
def test_the_first_difference_is_found_in_logarithmically_many_questions(count, data):
    different = data.draw(st.sets(st.integers(0, count - 1)))
    digests = [Digest(bytes([i]) * 32) for i in range(count)]
    one = Leaves(digests)
    other = Leaves([Digest(bytes(32)[1:] + b"\x01") if i in different else d for i, d in enumerate(digests)])

    assert first_difference(one, other, count) == min(different, default=None)
    assert max(one.asked, other.asked) <= (count - 1).bit_length()


@every_model
def test_a_trace_is_that_of_the_gradient_and_every_operator_can_be_repeated_alone(name, honest):
    program, arrays = a_program(name)
    model = MODELS[name]
    trace, gradient = traced(program, arrays)
    layout = layout_of(model)
    theta = np.concatenate([arrays[one].reshape(-1) for one in layout.names])
    _, expected = reference_loss_and_gradient(
        model, layout, theta, arrays["tokens"], compute=MICRO, frozen=frozen_of(model)
    )
    held = {**arrays, **dict(zip((one.name for one in program), honest[name].outputs, strict=True))}

    assert np.array_equal(gradient, expected)
    assert trace.outputs[-1] == output_digest(expected)
    for operator, digest in zip(program, trace.outputs, strict=True):
        assert judge(operator, held, digest)
    assert np.array_equal(run(program[:20], arrays, lambda *_: None), honest[name].outputs[19])


def test_an_output_digest_knows_dtype_and_shape():
    x = np.zeros((2, 3), np.float32)

    assert len({output_digest(one) for one in (x, x.T, x.reshape(-1), x.astype(np.int32), x + 1)}) == 5
    assert output_digest(x) == output_digest(x.astype(">f4"))


@every_model
def test_a_whole_batch_is_one_group(name):
    names = [one.name for one in operators(MODELS[name], 3, FLOAT32_WHOLE)]

    assert all(one.startswith("0/") for one in names) and len(set(names)) == len(names)
