"""Referee: a claim that is false anywhere loses to whoever ran the program; an honest one never does."""

from __future__ import annotations

import itertools
import re
import tracemalloc
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.protocol.errors import MalformedMessage
from assay.protocol.params import AdapterSpec, ComputeSpec, Family, Precision, Target
from assay.protocol.types import Digest
from assay.testing.specs import FLOAT32_WHOLE
from assay.training.exact import initial_parameters
from assay.training.frozen import Frozen
from assay.training.layout import frozen_layout, layout_of
from assay.training.model.presets import gpt_spec, llama_spec
from assay.training.reference.gradient import reference_loss_and_gradient, run
from assay.training.reference.narrowing import OPERATORS_MAX, PARTS, START, claimed, ends_of, first_wrong
from assay.training.reference.operators import TOKENS, operators, run_one, sources
from assay.training.reference.referee import is_right, show
from assay.training.reference.trace import after, output_digest, trace_of, traced

pytestmark = pytest.mark.slow

LLAMA = llama_spec(layers=2, width=12, heads=3, kv_heads=1, hidden=7, context=5, vocabulary=11)
MODELS = {
    "gpt": gpt_spec(layers=2, width=12, heads=2, context=5, vocabulary=11, is_tied=True),
    "llama": LLAMA,
    "qwen2": replace(LLAMA, family=Family.QWEN2),
    "qwen3": replace(LLAMA, family=Family.QWEN3, head_width=6),
    "gemma": replace(LLAMA, family=Family.GEMMA, is_tied=True),
    "an adapter": replace(LLAMA, adapter=AdapterSpec(rank=2, alpha=3, targets=tuple(Target))),
}
MICRO = ComputeSpec(dtype=Precision.FLOAT32, micro_sequences=2)  # of three sequences: two groups
NEEDS_EQUAL_ROWS = re.compile(
    r"(/norm|norm[12]|norm[12]?[.](weight|x)|mlp[.]x|attention|attention[.]x|loss[.]x)$"
)
every_model = pytest.mark.parametrize("name", MODELS)


def a_program(name):
    return a_program_of(MODELS[name])


def a_program_of(model):
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
        self.trace = trace_of(output_digest(output) for output in self.outputs)


def narrowed(claimant, count, pick):
    """The operator at which a claim ends, and the positions before and after it; `pick` names the parts."""
    first, last, start = 0, count, START
    for _ in range(3):
        told = claimed(claimant.trace.positions, first, last)
        part = pick(first, last, told)
        edges = (first, *ends_of(first, last))
        start = told[part - 1] if part else start
        first, last = edges[part], edges[part + 1]
        if last - first == 1:
            return first, (start, told[part])
    raise AssertionError("three cuts do not narrow it to one operator")


def doubts(known):
    """How a doubter with these positions names parts."""
    return lambda first, last, told: first_wrong(known, first, last, told)


def outcome(name, claimant, pick):
    """Where the claim ended, and whether a judge of that operator finds it right."""
    program, arrays = a_program(name)
    index, positions = narrowed(claimant, len(program), pick)
    shown = show(program, claimant.outputs, claimant.trace, index)
    return index, is_right(program, arrays, index, positions, shown)


@pytest.fixture(scope="module")
def honest():
    return {name: Claimed(*a_program(name)) for name in MODELS}


@every_model
def test_a_lie_in_any_single_operator_is_narrowed_to_it_and_loses(name, honest):
    program, arrays = a_program(name)
    for index in range(len(program)):
        if program[index].name.endswith(("inputs", "targets")):
            continue  # moved tokens may lie outside the vocabulary; see below
        liar = Claimed(program, arrays, lie=index)
        assert outcome(name, liar, doubts(honest[name].trace.positions)) == (index, False)


@every_model
def test_other_tokens_than_the_committed_ones_lose(name, honest):
    program, arrays = a_program(name)
    liar = Claimed(program, arrays, lie=0, change=lambda tokens: (tokens + 1) % 11)

    assert outcome(name, liar, doubts(honest[name].trace.positions)) == (0, False)


@every_model
def test_an_honest_claim_wins_at_every_operator_that_a_liar_can_name(name, honest):
    program, _ = a_program(name)
    for target in range(len(program)):

        def towards(first, last, _told, target=target):
            return next(part for part, end in enumerate(ends_of(first, last)) if end > target)

        assert outcome(name, honest[name], towards) == (target, True)


@every_model
def test_a_claimant_that_changes_its_story_between_cuts_loses(name, honest):
    """It tells one trace at first and another, or the truth, in a later cut: no two are compared."""
    program, arrays = a_program(name)
    known, count = honest[name].trace.positions, len(program)
    for lie in (3, 20, count - 1):
        liar, truth = Claimed(program, arrays, lie=lie), honest[name]
        told = claimed(liar.trace.positions, 0, count)
        part = first_wrong(known, 0, count, told)
        edges = (0, *ends_of(0, count))
        first, last = edges[part], edges[part + 1]
        for story in (truth, Claimed(program, arrays, lie=first)):
            inner = [
                *claimed(story.trace.positions, first, last)[:-1],
                told[part],
            ]  # the contract holds it to the end
            one = first_wrong(known, first, last, inner)
            ends = (first, *ends_of(first, last))
            assert ends[one + 1] - ends[one] == 1  # these programs are small
            positions = (inner[one - 1] if one else known[first]), inner[one]
            shown = show(program, truth.outputs, truth.trace, ends[one])
            assert positions[0] == known[ends[one]] and not is_right(
                program, arrays, ends[one], positions, shown
            )


@every_model
def test_what_is_shown_must_be_what_the_position_before_binds(name, honest):
    program, arrays = a_program(name)
    truth, index = honest[name], 30
    positions = truth.trace.positions[index], truth.trace.positions[index + 1]
    shown = show(program, truth.outputs, truth.trace, index)
    (given,) = [one for one in program[index].inputs if one in shown.arrays][:1]
    wrong = [
        replace(shown, outputs=shown.outputs[:-1]),
        replace(shown, outputs=(*shown.outputs, shown.outputs[0])),
        replace(shown, outputs=(Digest(bytes(32)), *shown.outputs[1:])),
        replace(shown, arrays={**shown.arrays, given: moved(shown.arrays[given])}),
        replace(shown, arrays={}),
    ]

    assert is_right(program, arrays, index, positions, shown)
    for one in wrong:
        with pytest.raises(MalformedMessage, match="evidence: "):
            is_right(program, arrays, index, positions, one)
    for beyond in (-1, len(program)):
        assert not is_right(program, arrays, beyond, positions, shown)


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
def test_a_claim_on_inputs_of_the_wrong_size_is_wrong_and_does_not_crash(name):
    program, arrays = a_program(name)
    index = next(i for i, one in enumerate(program) if one.name == "0/slope/layer0.mlp.x")
    (place,) = [i for i, one in enumerate(program) if one.name == program[index].inputs[0]]
    liar = Claimed(program, arrays)
    liar.outputs[place] = liar.outputs[place][:-1]
    liar.trace = trace_of(output_digest(output) for output in liar.outputs)
    shown = show(program, liar.outputs, liar.trace, index)

    positions = liar.trace.positions[index], liar.trace.positions[index + 1]
    assert not is_right(program, arrays, index, positions, shown)


@given(st.integers(1, OPERATORS_MAX), st.data())
def test_parts_are_whole_and_three_cuts_reach_every_operator(count, data):
    target = data.draw(st.integers(0, count - 1))
    first, last = 0, count
    for _ in range(3):
        ends = ends_of(first, last)
        assert ends[-1] == last and len(ends) == min(last - first, PARTS)
        assert all(a < b for a, b in zip((first, *ends), ends, strict=False))
        part = next(part for part, end in enumerate(ends) if end > target)
        first, last = (first, *ends)[part], ends[part]
    assert (first, last) == (target, target + 1)


@given(st.integers(1, 300), st.data())
def test_the_part_named_is_the_first_whose_end_is_not_known(count, data):
    known = trace_of(Digest(i.to_bytes(32, "big")) for i in range(count)).positions
    lie = data.draw(st.integers(0, count))
    told = [known[end] if end <= lie else Digest(bytes(32)) for end in ends_of(0, count)]
    part = first_wrong(known, 0, count, told)
    wrong = [end > lie for end in ends_of(0, count)]

    assert part == (wrong.index(True) if any(wrong) else len(wrong) - 1)
    with pytest.raises(ValueError):
        first_wrong(known, 0, count, told[:-1])


def test_what_a_doubter_does_not_know_is_wrong():
    known = trace_of(Digest(bytes([i]) * 32) for i in range(9)).positions
    told = [*known[1:], after(known[-1], Digest(b"f" * 32))]

    assert first_wrong(known, 0, 10, told) == 9


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
        assert output_digest(run_one(operator, held)) == digest
    assert np.array_equal(run(program[:20], arrays, lambda *_: None), honest[name].outputs[19])


def test_an_output_digest_knows_dtype_and_shape():
    x = np.zeros((2, 3), np.float32)

    assert len({output_digest(one) for one in (x, x.T, x.reshape(-1), x.astype(np.int32), x + 1)}) == 5
    assert output_digest(x) == output_digest(x.astype(">f4"))


@every_model
def test_a_whole_batch_is_one_group(name):
    names = [one.name for one in operators(MODELS[name], 3, FLOAT32_WHOLE)]

    assert all(one.startswith("0/") for one in names) and len(set(names)) == len(names)


LONG = 3000  # so that LONG times LONG values are 36 MB, and LONG for each token of a sequence or word 3 MB
SHAPES = ((1, LONG), (LONG, 1), (LONG,), (2, 1, LONG), (2, LONG, 1), (LONG, 12))  # 12: the width
LARGE = {"width": 12, "heads": 2, "context": 256, "vocabulary": 257, "layers": 1}
LARGE_LLAMA = llama_spec(**LARGE, kv_heads=1, hidden=7)
LARGE_MODELS = (gpt_spec(**LARGE), LARGE_LLAMA, replace(LARGE_LLAMA, adapter=MODELS["an adapter"].adapter))


@pytest.mark.parametrize("model", LARGE_MODELS, ids=["gpt", "llama", "an adapter"])
def test_arrays_of_other_shapes_take_a_judge_no_more_room_than_a_few_of_their_own_size(model):
    """A claimant may show whatever its claim has the digests of, to a judge that has less memory."""
    program, arrays = a_program_of(model)
    made, held = {operator.name for operator in program}, dict(arrays)
    for operator in program:
        held[operator.name] = run_one(operator, held)
    tracemalloc.start()
    for operator in program:
        shown = [one for one in operator.inputs if one in made]
        for first, others in itertools.product(SHAPES, SHAPES):
            shapes = [first, *[others] * (len(shown) - 1)]
            inputs = {one: held[one] for one in operator.inputs} | {
                one: np.zeros(shape, held[one].dtype) for one, shape in zip(shown, shapes, strict=False)
            }
            before, _ = tracemalloc.get_traced_memory()
            tracemalloc.reset_peak()
            with np.errstate(all="ignore"), suppress(ValueError, TypeError, LookupError, ArithmeticError):
                run_one(operator, inputs)
            _, peak = tracemalloc.get_traced_memory()
            room = (1 << 21) + 4 * sum(one.nbytes for one in inputs.values())
            assert peak - before < room, (operator.name, first, others)
    tracemalloc.stop()
