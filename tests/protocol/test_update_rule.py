"""A rule is a set of numbers that fit together: every one just inside its bound, and just outside it."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest

from assay.protocol.encoding.codec import decode, digest, encode
from assay.protocol.params import BLOCK_SIZE, PPM, RunSpec, check_spec
from assay.protocol.update_rule import (
    FRAGMENTS_MAX,
    LAG_MAX,
    RANK_MAX,
    RESET_MAX,
    SEGMENTS_MAX,
    Curve,
    Optimiser,
    Outer,
    RuleSpec,
    Transform,
    Values,
    Wire,
    check_rule,
)
from assay.testing.signed import a_spec
from assay.testing.specs import a_rule
from assay.training.methods.choices import Choices, method_rule
from assay.training.methods.presets import METHODS


def changed(rule: Any, **changes: Any) -> Any:
    """The rule with other numbers; `local__steps` is `steps` of its part `local`."""
    parts: dict[str, dict[str, Any]] = {}
    own = {}
    for name, value in changes.items():
        part, _, rest = name.partition("__")
        if rest:
            parts.setdefault(part, {})[rest] = value
        else:
            own[name] = value
    inside = {part: changed(getattr(rule, part), **some) for part, some in parts.items()}
    return replace(rule, **own, **inside)


def faults(rule: RuleSpec) -> list[str]:
    """Everything that is wrong with a rule, in words."""
    found: list[str] = []
    check_rule(rule, lambda holds, words: None if holds else found.append(words))
    return found


# method, what is just inside, what is just outside, words that name it
STREAM = "streaming-diloco"
CASES: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("demo", {"local__sequences": 1}, {"local__sequences": 0}, "sequences is 0"),
    ("demo", {"local__steps": 1}, {"local__steps": 2}, "takes 1 inner step, not 2"),
    ("demo", {"local__segment": 0}, {"local__segment": 1}, "no segments"),
    ("demo", {"local__proximal_micro": 0}, {"local__proximal_micro": 1}, "proximal term needs inner steps"),
    ("demo", {"fragments": 1}, {"fragments": 2}, "fragments and merging need inner steps"),
    ("demo", {"compress__keeps_error": True}, {"compress__keeps_error": False}, "needs its momentum"),
    (
        "sparseloco",
        {"local__equalises": False},
        {"local__equalises": True},
        "only a single gradient is equal",
    ),
    (
        "demo",
        {"compress__feedback_micro": PPM - 1},
        {"compress__feedback_micro": PPM},
        "beta is 1000000 mill",
    ),
    ("demo", {"compress__k": 1}, {"compress__k": 0}, "k is 0"),
    ("demo", {"compress__k": BLOCK_SIZE // 2}, {"compress__k": BLOCK_SIZE // 2 + 1}, "k is 2049"),
    ("sparseloco", {"compress__k": BLOCK_SIZE}, {"compress__k": BLOCK_SIZE - 1}, "k is 4095"),
    ("sparseloco", {"compress__k": BLOCK_SIZE}, {"compress__k": BLOCK_SIZE + 1}, "k is 4097"),
    (
        "sparseloco",
        {"compress__feedback_micro": PPM},
        {"compress__feedback_micro": PPM + 1},
        "feedback is 1000001",
    ),
    (
        "sparseloco",
        {"compress__values": Values.SIGN_MEAN},
        {"compress__values": Values.SIGN},
        "SIGN sends no amplitude",
    ),
    ("demo", {"outer__kind": Outer.SIGN}, {"outer__kind": Outer.SGD}, "SIGN sends no amplitude"),
    (
        "demo",
        {"aggregation__wire": Wire.SIGNS},
        {
            "aggregation__wire": Wire.SIGNS,
            "outer__kind": Outer.SGD,
            "compress__values": Values.SIGN_MEAN,
        },
        "an aggregate of signs moves parameters by a sign step only",
    ),
    (
        "diloco",
        {"aggregation__wire": Wire.MESSAGE},
        {"aggregation__wire": Wire.MESSAGE, "compress__k": 64},
        "an aggregate is written like a message where",
    ),
    (
        "diloco",
        {"aggregation__wire": Wire.MESSAGE},
        {"aggregation__wire": Wire.MESSAGE, "compress__transform": Transform.DCT},
        "an aggregate is written like a message where",
    ),
    ("sparseloco", {"local__segment": 1}, {"local__segment": 0}, "segments of 0 of 10"),
    ("sparseloco", {"local__segment": 10}, {"local__segment": 11}, "segments of 11 of 10"),
    (
        "sparseloco",
        {"local__steps": SEGMENTS_MAX, "local__segment": 1},
        {"local__steps": SEGMENTS_MAX + 1, "local__segment": 1},
        f"more than {SEGMENTS_MAX} segments of 1",
    ),
    ("demo", {"compress__reset_rounds": 1}, {"compress__reset_rounds": 0}, "anew every 0 rounds"),
    (
        "demo",
        {"compress__reset_rounds": RESET_MAX},
        {"compress__reset_rounds": RESET_MAX + 1},
        f"anew every {RESET_MAX + 1} rounds",
    ),
    ("demo", {"aggregation__f": 0}, {"aggregation__f": -1}, "f is -1, expected at least 0"),
    ("sparseloco", {"local__steps": 5}, {"local__steps": 0}, "0 inner steps, expected"),
    (
        "sparseloco",
        {"local__schedule__peak_nano": 1},
        {"local__schedule__peak_nano": 0},
        "inner steps need a rate",
    ),
    ("sparseloco", {"local__beta1_micro": PPM - 1}, {"local__beta1_micro": PPM}, "inner beta1 is 1000000"),
    ("sparseloco", {"local__beta2_micro": PPM - 1}, {"local__beta2_micro": PPM}, "inner beta2 is 1000000"),
    ("sparseloco", {"local__epsilon_pico": 1}, {"local__epsilon_pico": 0}, "epsilon above 0"),
    (
        "sparseloco",
        {"local__proximal_micro": 1000 * PPM},
        {"local__proximal_micro": 1000 * PPM + 1},
        "proximal",
    ),
    ("fedavg", {"local__keeps_moments": False}, {"local__keeps_moments": True}, "only AdamW and Muon have"),
    ("diloco", {"compress__rank": RANK_MAX}, {"compress__rank": RANK_MAX + 1}, f"rank is {RANK_MAX + 1}"),
    (
        "diloco",
        {"compress__rank": 1},
        {"compress__rank": 1, "compress__k": 64},
        "factors stand for whole blocks",
    ),
    (
        "diloco",
        {"compress__rank": 1},
        {"compress__rank": 1, "compress__values": Values.INT16},
        "sent as INT8",
    ),
    (
        "diloco",
        {"outer__momentum_micro": PPM - 1},
        {"outer__momentum_micro": PPM},
        "outer momentum is 1000000",
    ),
    ("diloco", {"outer__momentum_micro": 0}, {"outer__momentum_micro": -1}, "outer momentum is -1"),
    ("diloco", {"outer__beta2_micro": PPM - 1}, {"outer__beta2_micro": PPM}, "outer beta2 is 1000000"),
    (
        "diloco",
        {"outer__schedule__peak_nano": 1},
        {"outer__schedule__peak_nano": 0},
        "the outer step needs a rate",
    ),
    (
        "fedavg",
        {"outer__kind": Outer.ADAM, "outer__epsilon_nano": 1},
        {"outer__kind": Outer.YOGI, "outer__epsilon_nano": 0},
        "adaptive outer step needs an epsilon",
    ),
    (
        "demo",
        {"outer__schedule__floor_ppm": PPM},
        {"outer__schedule__floor_ppm": PPM + 1},
        "outer rate's floor",
    ),
    (
        "fedavg",
        {"local__schedule__floor_ppm": 0},
        {"local__schedule__floor_ppm": PPM + 1},
        "inner rate's floor",
    ),
    (
        "demo",
        {"outer__schedule__curve": Curve.WSD, "outer__schedule__decay_rounds": 1},
        {"outer__schedule__curve": Curve.WSD},
        "0 decay rounds and the curve WSD",
    ),
    ("demo", {}, {"outer__schedule__decay_rounds": 3}, "3 decay rounds and the curve COSINE"),
    ("demo", {"outer__decay_micro": 499 * PPM}, {"outer__decay_micro": 500 * PPM}, "rate times weight decay"),
    (
        "fedavg",
        {"local__decay_micro": 3_333_333},
        {"local__decay_micro": 3_333_334},
        "inner rate times weight decay",
    ),
    (
        STREAM,
        {"fragments": FRAGMENTS_MAX},
        {"fragments": FRAGMENTS_MAX + 1},
        f"{FRAGMENTS_MAX + 1} fragments",
    ),
    (STREAM, {"fragments": 2}, {"fragments": 0, "apply_lag": 0, "merge_ppm": 0}, "0 fragments"),
    (STREAM, {"merge_ppm": PPM}, {"merge_ppm": PPM + 1}, "share merged"),
    (
        STREAM,
        {"fragments": 1, "merge_ppm": 0, "apply_lag": 4, "outer__momentum_micro": 0},
        {"fragments": 1, "merge_ppm": 1, "apply_lag": 4, "outer__momentum_micro": 0},
        "apply_lag below fragments",
    ),
    (
        STREAM,
        {"fragments": 1, "apply_lag": 0},
        {"fragments": 1, "apply_lag": 0, "read_lag": 1},
        "read_lag must",
    ),
    ("demo", {}, {"merge_ppm": 1}, "merging need inner steps"),
    (STREAM, {"read_lag": 0}, {"read_lag": 1}, "read_lag must be 0"),
    (STREAM, {"apply_lag": 3}, {"apply_lag": 4}, "apply_lag below fragments"),
    ("diloco", {"read_lag": LAG_MAX}, {"read_lag": LAG_MAX + 1}, f"read_lag is {LAG_MAX + 1}"),
    ("fedavg", {"apply_lag": 1}, {"apply_lag": LAG_MAX + 1}, f"apply_lag is {LAG_MAX + 1}"),
    (
        "diloco",
        {"apply_lag": 1, "outer__momentum_micro": 650_000},
        {"apply_lag": 1, "outer__momentum_micro": 650_001},
        "diverges where it is applied 1 rounds late: expected at most 2",
    ),
    (
        "fedavg",
        {"apply_lag": 2},
        {"apply_lag": 2, "outer__kind": Outer.NESTEROV, "outer__momentum_micro": 1},
        "late",
    ),
    (
        "sparseloco",
        {"outer__kind": Outer.NESTEROV, "outer__momentum_micro": 500_000},
        {"outer__kind": Outer.NESTEROV, "outer__momentum_micro": 500_001},
        "diverges where what was not sent is sent later",
    ),
    (
        "diloco",
        {"compress__k": 64},
        {"compress__k": 64, "compress__keeps_error": True, "compress__feedback_micro": 950_000},
        "makes 7 of each aggregate",
    ),
]


@pytest.mark.parametrize(("method", "inside", "outside", "words"), CASES)
def test_a_number_at_its_bound_is_taken_and_one_beyond_it_is_named(method, inside, outside, words):
    rule = a_rule(method)

    assert faults(changed(rule, **inside)) == []
    found = faults(changed(rule, **outside))
    assert any(words in fault for fault in found), found


@pytest.mark.parametrize(
    "choices",
    [
        {},
        {"curve": Curve.WSD, "decay_rounds": 3},
        {"curve": Curve.CONSTANT},
        {"values": Values.INT16, "outer": Outer.ADAM},
        {"values": Values.SIGN_MEAN, "outer": Outer.YOGI},
        {"values": Values.E3M0, "outer": Outer.NESTEROV, "momentum_micro": 500_000},
        {"rank": 4, "outer": Outer.SGD},
    ],
)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_passes_as_it_is_and_with_usual_choices(method, choices):
    rule = method_rule(method, Choices(**choices))

    assert faults(rule) == []
    check_spec(a_spec(rule=rule))


@pytest.mark.parametrize(
    ("method", "choices", "traits", "segments", "sequences"),
    [
        ("demo", {}, {"is_gradient"}, 0, 2),
        ("sparseloco", {}, {"has_scale", "carries_inner"}, 2, 20),
        ("sparseloco", {"rank": 1}, {"is_dense", "has_scale", "carries_inner"}, 2, 20),
        ("diloco", {}, {"is_dense", "has_scale", "carries_inner"}, 2, 20),
        (STREAM, {}, {"is_dense", "has_scale", "is_local_kept", "carries_inner"}, 1, 10),
        ("fedavg", {}, {"is_dense", "has_scale"}, 2, 20),
    ],
)
def test_what_follows_from_a_method(method, choices, traits, segments, sequences):
    rule = a_rule(method, **choices)

    named = ("is_gradient", "is_dense", "has_scale", "is_local_kept", "carries_inner")
    assert {name for name in named if getattr(rule, name)} == traits
    assert (rule.segments, rule.sequences_per_round) == (segments, sequences)
    uneven = changed(rule, local__steps=7, local__segment=3)
    assert uneven.segments == (0 if rule.is_gradient else 3)


def test_a_node_can_be_lost_to_every_liar_the_rule_is_to_stand():
    """Three nodes stand one liar; two liars would need five."""
    check_spec(a_spec(rule=a_rule(f=1)))
    with pytest.raises(ValueError, match="3 nodes for f = 2"):
        a_spec(rule=a_rule(f=2))


@pytest.mark.parametrize("method", METHODS)
def test_a_spec_with_any_method_is_its_bytes(method):
    spec = a_spec(rule=a_rule(method))

    assert decode(RunSpec, encode(spec)) == spec
    assert len(encode(spec)) < 4096


def leaves(rule: Any, at: str = "") -> dict[str, Any]:
    found = {}
    for field in fields(rule):
        value = getattr(rule, field.name)
        found |= leaves(value, f"{at}{field.name}__") if is_dataclass(value) else {at + field.name: value}
    return found


def test_no_number_of_a_rule_can_be_changed_without_changing_the_spec():
    """Whatever is not in the digest, somebody could vary after the money is paid."""
    spec = a_spec(rule=a_rule("sparseloco"))
    seen = {digest(spec)}
    for name, value in leaves(spec.rule).items():
        other = (
            not value if isinstance(value, bool)
            else type(value)(value % 2 + 1) if isinstance(value, (Optimiser, Outer, Values, Curve))
            else value + 1 if type(value) is int
            else None
        )  # fmt: skip
        if other is None:
            other = value + "-2" if isinstance(value, str) else type(value)(3 - value)
        seen.add(digest(replace(spec, rule=changed(spec.rule, **{name: other}))))

    assert len(seen) == 1 + len(leaves(spec.rule))


@pytest.mark.parametrize("method", METHODS)
def test_an_adaptive_outer_step_is_a_hundredth_at_most_unless_it_is_chosen(method):
    rate = method_rule(method, Choices(outer=Outer.ADAM)).outer.schedule.peak_nano

    assert rate == min(METHODS[method].outer.schedule.peak_nano, 10_000_000)
    assert method_rule(method, Choices(outer=Outer.ADAM, lr_nano=9)).outer.schedule.peak_nano == 9


@pytest.mark.parametrize(
    ("k", "rank", "is_dense"),
    [(BLOCK_SIZE, 0, True), (BLOCK_SIZE - 1, 0, False), (4, 1, True), (4, 0, False)],
)
def test_a_rule_is_dense_if_it_sends_whole_blocks_or_factors(k, rank, is_dense):
    rule = a_rule()
    assert replace(rule, compress=replace(rule.compress, k=k, rank=rank)).is_dense == is_dense
