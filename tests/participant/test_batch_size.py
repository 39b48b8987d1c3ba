"""Batch size: a node takes as many sequences as it has time for, and never more than the run pays for."""

from __future__ import annotations

from assay.participant.batch_size import planned_ms, step_tokens
from assay.protocol.params import ComputeSpec, Precision
from assay.testing.signed import a_spec
from assay.testing.specs import a_rule

COMPUTE = ComputeSpec(dtype=Precision.FLOAT32, micro_sequences=2)
SPEC = a_spec(rule=a_rule(sequences=4, sequences_max=10), compute=COMPUTE)
INNER = a_spec(rule=a_rule("sparseloco", steps=3, segment=2, sequences=2, sequences_max=6), compute=COMPUTE)


def sequences(sequence_us: int, left_us: int) -> int:
    return SPEC.step_sequences(step_tokens(SPEC, sequence_us, left_us))


def test_a_node_takes_what_fits_in_whole_passes() -> None:
    assert [sequences(1000, left) for left in (5_999, 6_000, 7_999, 8_000, 9_999, 10_000)] == [
        4, 6, 6, 8, 8, 10,
    ]  # fmt: skip


def test_it_takes_the_least_where_less_fits_and_the_most_where_more_does() -> None:
    assert sequences(1000, 0) == sequences(1000, -5) == sequences(1000, 3_999) == 4
    assert sequences(1000, 10**12) == sequences(1, 10**12) == 10


def test_who_has_measured_nothing_takes_the_least() -> None:
    assert sequences(0, 10**12) == 4


def test_all_inner_steps_have_to_fit() -> None:
    def taken(left_us: int) -> int:
        return INNER.step_sequences(step_tokens(INNER, 1000, left_us))

    assert [taken(left) for left in (11_999, 12_000, 17_999, 18_000, 10**9)] == [2, 4, 4, 6, 6]


def test_a_run_of_one_size_leaves_nothing_to_choose() -> None:
    spec = a_spec()

    assert step_tokens(spec, 1, 10**12) == spec.tokens_per_step == step_tokens(spec, 10**12, 1)


def test_a_node_plans_for_half_of_the_time_that_leaders_wait() -> None:
    assert planned_ms(SPEC.timing) * 2 == SPEC.timing.collect_ms
