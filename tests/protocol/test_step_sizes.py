"""Steps of different size: which a spec allows, what they count for, and that no other spec changes."""

from __future__ import annotations

from dataclasses import replace

import cbor2
import pytest

from assay.protocol.encoding.codec import decode, encode
from assay.protocol.grpo import NO_GRPO, GrpoSpec, Reward
from assay.protocol.params import ComputeSpec, Precision, RunSpec, check_spec
from assay.protocol.update_rule import LocalSpec
from assay.testing.signed import a_spec
from assay.testing.specs import a_rule


def passes(micro: int, *, beta_micro: int = 0, grpo: GrpoSpec = NO_GRPO) -> ComputeSpec:
    return ComputeSpec(dtype=Precision.FLOAT32, micro_sequences=micro, beta_micro=beta_micro, grpo=grpo)


def sized(least: int, most: int, micro: int = 2, method: str = "demo", **choices: int) -> RunSpec:
    """A run whose steps have least to most sequences, in passes of `micro`."""
    rule = a_rule(method, sequences=least, sequences_max=most, **choices)
    return a_spec(rule=rule, compute=passes(micro))


SPEC = sized(4, 10)
CONTEXT = SPEC.model.context


@pytest.mark.parametrize("sequences", [4, 6, 8, 10])
def test_a_step_counts_for_whole_passes_from_the_least_to_the_most(sequences: int) -> None:
    assert SPEC.step_sequences(sequences * CONTEXT) == sequences


@pytest.mark.parametrize(
    "tokens", [0, 2 * CONTEXT, 5 * CONTEXT, 12 * CONTEXT, 4 * CONTEXT - 1, 10 * CONTEXT + 1, 2**63]
)
def test_no_step_counts_for_anything_else_and_the_error_says_what_would_do(tokens: int) -> None:
    with pytest.raises(ValueError, match=f"^{tokens} tokens, expected 64 to 160 in steps of 32$"):
        SPEC.step_sequences(tokens)


def test_inner_steps_are_of_one_size_within_a_round() -> None:
    spec = sized(2, 4, method="sparseloco", steps=3, segment=2)

    assert spec.step_sequences(3 * 2 * CONTEXT) == 2
    assert spec.step_sequences(3 * 4 * CONTEXT) == 4
    with pytest.raises(ValueError, match="tokens, expected 96 to 192 in steps of 96"):
        spec.step_sequences(3 * 2 * CONTEXT + 2 * CONTEXT)


def test_without_a_most_every_step_is_of_one_size() -> None:
    spec = a_spec()

    assert spec.most_tokens_per_step == spec.tokens_per_step
    assert spec.step_sequences(spec.tokens_per_step) == spec.rule.local.sequences
    for tokens in (spec.tokens_per_step - CONTEXT, 2 * spec.tokens_per_step):
        with pytest.raises(ValueError, match=f"^{tokens} tokens, expected {spec.tokens_per_step}$"):
            spec.step_sequences(tokens)


def test_an_epoch_can_cost_what_the_largest_steps_of_all_seats_cost() -> None:
    least, most = sized(4, 10), sized(10, 0)

    assert least.epoch_price(0) == most.epoch_price(0)
    assert least.epoch_price(0) * 4 == sized(4, 0).epoch_price(0) * 10


@pytest.mark.parametrize(
    ("least", "most", "micro", "words"),
    [
        (4, 4, 2, "sequences_max is 4, expected more than sequences, 4"),
        (4, 3, 2, "sequences_max is 3, expected more than sequences, 4"),
        (4, 8, 0, "passes of one size, expected micro_sequences above 0"),
        (4, 9, 2, "sequences_max is 9, expected a multiple of 2"),
        (3, 8, 2, "sequences is 3, expected a multiple of 2"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(least: int, most: int, micro: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        sized(least, most, micro)


def test_sizes_are_of_whole_pairs_and_groups() -> None:
    groups = GrpoSpec(group=4, completion=4, end=0, reward=Reward.EXACT)

    assert passes(4, beta_micro=100_000).sequence_unit == 4
    assert passes(6, grpo=groups).sequence_unit == 12
    spec = a_spec(
        rule=a_rule(sequences=12, sequences_max=24), compute=passes(6, grpo=groups), model=SPEC.model
    )
    with pytest.raises(ValueError, match="sequences_max is 18, expected a multiple of 12"):
        check_spec(replace(spec, rule=a_rule(sequences=12, sequences_max=18)))


@pytest.mark.parametrize("term", ["completion", "end", "reward"])
def test_a_group_of_none_beside_another_term_of_grpo_is_refused(term: str) -> None:
    value = Reward.PREFIX if term == "reward" else 1
    compute = passes(2, grpo=replace(NO_GRPO, **{term: value}))  # type: ignore[arg-type]

    with pytest.raises(ValueError, match="groups of 0 completions, expected 2 to"):
        check_spec(replace(SPEC, compute=compute))


def test_the_data_hold_the_largest_step() -> None:
    windows = len(SPEC.training_windows(SPEC.nodes[0].peer))

    assert sized(2, windows // 2 * 2).most_windows_per_round <= windows
    with pytest.raises(ValueError, match="training tokens, one step needs"):
        sized(2, windows // 2 * 2 + 4)


def test_a_rule_without_a_most_is_encoded_as_before_there_was_one() -> None:
    local = a_rule().local

    larger = replace(local, sequences_max=8)

    assert len(cbor2.loads(encode(local))) + 1 == len(cbor2.loads(encode(larger)))
    assert decode(LocalSpec, encode(local)) == local and decode(LocalSpec, encode(larger)) == larger
    assert (local.most_sequences, larger.most_sequences) == (2, 8)
