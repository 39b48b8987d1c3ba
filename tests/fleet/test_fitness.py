"""What a run asks of a machine follows from its sizes; what its escrow cannot pay is no pay."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.chain.commit_statement import evm_address
from assay.chain.state import EscrowState
from assay.chain.statements import Address
from assay.fleet.fitness import (
    Machine,
    disk_bytes,
    escrow_fault,
    funded_hours,
    is_lapsed,
    spec_fault,
    upload_bytes_s,
)
from assay.participant.market.work import (
    chosen_tokens,
    hourly_pay,
    memory_bytes,
    price_per_mtoken,
    step_ms,
    step_pay_micro,
)
from assay.protocol.encoding.codec import digest
from assay.protocol.grpo import GrpoSpec, Reward
from assay.protocol.market import SeatClass
from assay.protocol.params import PPM, AcceptSpec, AdapterSpec, Milestone, RunSpec, Target, check_spec
from assay.protocol.types import Digest
from assay.testing.specs import a_model, a_rule, a_spec
from assay.training.layout import frozen_layout, layout_of
from assay.training.model.flops import flop_per_token
from assay.training.model.presets import PRESETS
from assay.verifier.audit.limits import shipped
from assay.verifier.audit.messages import longest_opening
from assay.verifier.audit.upload import openings_bytes, update_bytes

ADAPTER = AdapterSpec(rank=2, alpha=4, targets=(Target.Q, Target.V))
MACHINE = Machine(flop_per_s=10**9, blob_bytes=10**8)


def judged(**changes: Any):
    """A spec that is judged by the limits of this release."""
    spec = a_spec(**changes)
    return replace(spec, audit=replace(spec.audit, limits=shipped().digest()))


def an_escrow(spec, **changes: Any) -> EscrowState:
    usual = EscrowState(
        buyer=Address("0x" + "09" * 20), epochs=spec.epochs, set_version=1, pending=0,
        deadline=2, closes_at=2,
        budget=10**9, epoch_cap=spec.epoch_price(0), reserved=0, paid=0, returned=0, spec_hash=digest(spec),
        holds=True, lot=1,
    )  # fmt: skip
    return replace(usual, **changes)


def judges_of(spec):
    return [evm_address(one.account) for one in spec.verifiers]


# ---- pay


def test_pay_an_hour_is_the_operators_share_of_what_steps_count_for_in_that_time():
    spec = a_spec()  # 32 tokens a step at 1,000 tokens for 10^6, of which operators get 87 %
    each = spec.tokens_per_step * flop_per_token(spec.model)
    machine = replace(MACHINE, flop_per_s=each)  # a step takes a second

    assert step_ms(spec, machine.flop_per_s) == 1000
    assert step_pay_micro(spec) == 32 * 870_000_000
    assert hourly_pay(spec, machine.flop_per_s) == 32 * 870 * 3_600 // 2  # a round takes a second more
    assert step_ms(spec, 0) == each * 1000  # a machine that cannot be measured


def test_with_grpo_each_token_of_a_completion_costs_a_third_of_a_step_more():
    spec = a_spec()
    grpo = GrpoSpec(group=4, completion=6, end=0, reward=Reward.EXACT)
    sampled = replace(spec, compute=replace(spec.compute, grpo=grpo))
    machine = replace(MACHINE, flop_per_s=spec.tokens_per_step * flop_per_token(spec.model))

    assert step_ms(sampled, machine.flop_per_s) == 3 * step_ms(spec, machine.flop_per_s)


SIZED = {
    "rule": a_rule(sequences=2, sequences_max=8),
    "compute": replace(a_spec().compute, micro_sequences=2),
}


def test_a_faster_machine_is_paid_for_the_larger_steps_that_it_has_time_for():
    spec = a_spec(**SIZED)
    sequence = spec.model.context * flop_per_token(spec.model)  # 2.5 s of work are planned
    slow, middle, fast = sequence, 2 * sequence, 100 * sequence

    assert [chosen_tokens(spec, speed) // spec.model.context for speed in (slow, middle, fast)] == [2, 4, 8]
    assert chosen_tokens(spec, 0) == spec.tokens_per_step
    assert hourly_pay(spec, slow) == hourly_pay(a_spec(), slow) == 32 * 870 * 3_600 // 3
    assert hourly_pay(spec, middle) == 64 * 870 * 3_600 // 3
    assert hourly_pay(spec, fast) == 128 * 870 * 3_600_000 // 1_080
    assert step_pay_micro(spec) == step_pay_micro(a_spec())


def test_the_price_that_a_class_of_seats_asks_for_is_of_the_steps_that_it_will_take():
    spec = a_spec(**SIZED)
    speed = (spec.model.context * flop_per_token(spec.model)).bit_length() + 6
    seats = SeatClass(speed=speed, memory=40, days=0, lot=0)

    for pay in (1, 10**6, 10**9):
        price = price_per_mtoken(spec, seats, pay)
        paid = [
            hourly_pay(replace(spec, money=replace(spec.money, price_per_mtoken=one)), 1 << speed)
            for one in (price - 1, price)
        ]
        assert paid[0] < pay <= paid[1]
    assert price_per_mtoken(spec, seats, 10**9) < price_per_mtoken(a_spec(), seats, 10**9)


def test_what_depends_on_milestones_is_no_pay():
    spec = a_spec()
    worthless = AcceptSpec(
        share_ppm=500_000, sequences=1, milestones=(Milestone(epoch=0, most_loss_micro=1),)
    )
    bait = replace(spec, money=replace(spec.money, accept=worthless))

    assert 2 * step_pay_micro(bait) == step_pay_micro(spec)
    escrow = an_escrow(bait, budget=10_000)
    assert funded_hours(bait, escrow, 10) == 10_000 * 435 // 1_000 // (10 * bait.seats)


def test_hours_of_pay_are_what_the_escrow_has_left_for_every_seat():
    spec = a_spec(seats=4)
    escrow = an_escrow(spec, budget=10_000, paid=1_000, reserved=500, returned=500)

    assert funded_hours(spec, escrow, 174) == 8_000 * 87 // 100 // (174 * 4) == 10
    assert funded_hours(spec, escrow, 0) == 8_000 * 87 // 100  # of a unit an hour, the least


def test_a_budget_beyond_the_work_that_is_left_is_no_hours_of_pay():
    spec = replace(a_spec(seats=4), rounds=a_spec().rounds - 1)  # its last epoch is shorter, and costs less
    work = sum(spec.epoch_price(epoch) for epoch in range(spec.epochs))
    whole, pay = work * 87 // 100, 100

    assert spec.epoch_price(spec.epochs - 1) < spec.epoch_price(0)
    for budget in (work, 1_000 * work):
        escrow = an_escrow(spec, budget=budget)
        assert funded_hours(spec, escrow, pay) == whole // (pay * 4)
        late = replace(escrow, paid=work // 2, reserved=work // 4)
        assert funded_hours(spec, late, pay) == (work - work // 2 - work // 4) * 87 // 100 // (pay * 4)
    over = an_escrow(spec, budget=3 * work, paid=2 * work)
    assert funded_hours(spec, over, pay) == 0


# ---- what it asks for


def test_larger_models_batches_and_contexts_ask_for_more():
    small, machine = a_spec(), MACHINE
    for larger in (
        a_spec(model=a_model(layers=64)),
        a_spec(model=a_model(width=1024)),
        a_spec(model=a_model(context=512)),
        a_spec(rule=a_rule(sequences=64)),
    ):
        assert memory_bytes(larger) > memory_bytes(small)
        assert step_ms(larger, machine.flop_per_s) > step_ms(small, machine.flop_per_s)
    deep = a_spec(model=a_model(width=1024))
    assert disk_bytes(deep, machine) > disk_bytes(small, machine) >= machine.blob_bytes


def test_a_base_in_few_bits_asks_for_less():
    asked = []
    for bits in (0, 8, 4):
        adapter = AdapterSpec(rank=8, alpha=16, targets=(Target.Q,), base_bits=bits)
        model = replace(PRESETS["llama-1b"], adapter=adapter, base=Digest(b"b" * 32))
        asked.append(memory_bytes(replace(a_spec(), model=model)) / 1e9)
    assert [round(asked[0] - one, 1) for one in asked] == [0, 5.8, 6.7]  # of two processes


def test_the_estimates_of_a_small_model_are_these():
    small, wider = a_spec(), a_spec(model=a_model(layers=2, width=128))
    inner = a_spec(rule=a_rule("sparseloco", steps=4, segment=2))

    assert memory_bytes(small) == 2_153_447_424
    assert memory_bytes(wider) == 2_178_973_696
    assert disk_bytes(small, MACHINE) == 107_196_160
    assert disk_bytes(inner, MACHINE) == 152_193_280  # states between inner steps may be asked for too


def test_a_replica_takes_a_gradient_and_the_activations_of_a_group_more():
    short, long = a_spec(), a_spec(model=a_model(context=512))
    parameters, more = layout_of(short.model).parameters, memory_bytes(short, 2) - memory_bytes(short)

    assert memory_bytes(short, 3) - memory_bytes(short) == 2 * more > 2 * 4 * parameters
    assert memory_bytes(long, 2) - memory_bytes(long) > more


def test_a_layer_that_is_computed_again_is_not_kept():
    spec = a_spec()
    shallow = replace(spec, model=replace(spec.model, layers=1))
    deep = replace(spec, model=replace(spec.model, layers=9))
    tokens = spec.rule.local.sequences * spec.model.context

    def activations(one: RunSpec, **how: bool) -> int:
        return memory_bytes(one, **how) - 4 * 16 * layout_of(one.model).parameters

    less = activations(deep, is_checkpointing=True) - activations(shallow)
    assert less == 4 * 8 * tokens * spec.model.width
    assert activations(shallow, is_checkpointing=True) == activations(shallow)
    assert activations(deep) - activations(shallow) > 40 * less


def test_a_frozen_base_is_held_twice_beside_its_trained_adapter():
    whole, adapted = a_spec(), replace(a_spec(), model=replace(a_model(), adapter=ADAPTER))
    trained, frozen = layout_of(adapted.model).parameters, frozen_layout(adapted.model).parameters

    saved = memory_bytes(whole) - memory_bytes(adapted)
    assert saved == 4 * 16 * (layout_of(whole.model).parameters - trained) - 4 * 2 * frozen and frozen > 0


def test_a_step_that_rounds_do_not_wait_for_is_not_served(tmp_path):
    spec = judged()
    slow = replace(MACHINE, flop_per_s=1)

    assert spec_fault(spec, spec.deployment_id, tmp_path, MACHINE) is None
    assert "longer here than its rounds wait" in spec_fault(spec, spec.deployment_id, tmp_path, slow)
    weak = replace(MACHINE, flop_per_s=10**7)
    needed = step_ms(spec, weak.flop_per_s)
    for collect_ms, is_served in ((needed, True), (needed - 1, False)):
        one = replace(spec, timing=replace(spec.timing, collect_ms=collect_ms))
        assert (spec_fault(one, one.deployment_id, tmp_path, weak) is None) == is_served


def test_a_run_whose_openings_come_too_late_over_a_usual_line_is_not_served(tmp_path):
    spec = judged(model=a_model(vocabulary=1 << 16))
    wide = replace(spec, audit=replace(spec.audit, wide_ppm=10**6, wide_blocks=64))
    needed = -(-longest_opening(wide) // 10_000)  # ms, at 10 MB/s
    collect_ms = -(-needed * 10 // 6)
    assert longest_opening(spec) < longest_opening(wide)

    for late_ms, fault in ((0, None), (2, "do not arrive in time")):
        one = replace(wide, timing=replace(wide.timing, collect_ms=collect_ms - late_ms))
        found = spec_fault(one, one.deployment_id, tmp_path, replace(MACHINE, flop_per_s=10**15))
        assert found is None if fault is None else fault in found


def test_a_run_takes_of_the_line_what_it_uploads_at_the_floors_rate():
    spec, blocks = judged(), layout_of(judged().model)
    speed = replace(MACHINE, flop_per_s=spec.tokens_per_step * flop_per_token(spec.model))  # 1 s a step
    update = update_bytes(spec.rule, blocks)
    opened = openings_bytes(spec.rule, spec.audit, blocks, spec.audit.floor_ppm)

    assert upload_bytes_s(spec, speed) == int(1000 * (len(spec.verifiers) * update + opened)) // 2000
    assert upload_bytes_s(spec, replace(speed, flop_per_s=speed.flop_per_s // 3)) < upload_bytes_s(
        spec, speed
    )
    assert opened < openings_bytes(spec.rule, spec.audit, blocks, PPM)


def test_a_run_all_of_whose_nodes_bring_data_has_no_seat_for_others(tmp_path, monkeypatch):
    spec = judged()
    assert spec_fault(spec, spec.deployment_id, tmp_path, MACHINE) is None
    monkeypatch.setattr(type(spec), "takes_newcomers", False)
    assert "bring data of their own" in spec_fault(spec, spec.deployment_id, tmp_path, MACHINE)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"deployment_id": bytes(32)}, "another network"),
        ({"data": None}, "data are not here"),
        ({"base": bytes([1]) * 32}, "starts from are not here"),
        ({"limits": bytes(32)}, "own execution class alone"),
        ({"limits": bytes([1]) * 32}, "this release does not have"),
    ],
)
def test_what_a_machine_cannot_serve_has_a_reason(tmp_path, change, reason):
    spec, data = judged(), change.get("data", tmp_path)
    if "base" in change:
        spec = replace(spec, model=replace(spec.model, base=change["base"]))
    if "limits" in change:
        spec = replace(spec, audit=replace(spec.audit, limits=change["limits"]))

    found = spec_fault(spec, change.get("deployment_id", spec.deployment_id), data, MACHINE)

    assert found is not None and reason in found


# ---- the escrow


def test_an_escrow_pays_what_its_spec_promises_or_is_found():
    spec = a_spec()
    good = an_escrow(spec)

    assert escrow_fault(spec, good, judges_of(spec)) is None
    for changes, reason in (
        ({"spec_hash": bytes(32)}, "another spec"),
        ({"epochs": spec.epochs - 1}, "another spec"),
        ({"epoch_cap": spec.epoch_price(0) - 1}, "no whole epoch"),
    ):
        assert reason in escrow_fault(spec, replace(good, **changes), judges_of(spec))
    assert "settle it" in escrow_fault(spec, good, judges_of(spec)[1:])
    short = replace(spec, rounds=spec.rounds - 1)  # its last epoch is shorter, and costs less
    poor = an_escrow(short, epoch_cap=short.epoch_price(1))
    assert "no whole epoch" in escrow_fault(short, poor, judges_of(short))


def test_a_run_that_waited_in_vain_for_nodes_is_over():
    spec = replace(a_spec(), start_by_s=100, least_nodes=3)

    assert [is_lapsed(spec, seats, now) for seats, now in ((2, 100), (3, 101), (2, 101))] == [
        False, False, True,
    ]  # fmt: skip
    assert not is_lapsed(a_spec(), 0, 10**12)


# ---- strangers' numbers


def with_number(value: Any, path: list[str], number: int) -> Any:
    name, *rest = path
    inner = number if not rest else with_number(getattr(value, name), rest, number)
    return replace(value, **{name: inner})


def numbers(value: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """The path of every whole number of a spec."""
    found = []
    for field in fields(value):
        inner = getattr(value, field.name)
        if is_dataclass(inner):
            found += numbers(inner, (*path, field.name))
        elif type(inner) is int:
            found.append((*path, field.name))
    return found


@pytest.mark.slow
@settings(max_examples=300, deadline=20_000)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(numbers(a_spec())),
            st.sampled_from([1, 2, 4, 1023, 2**20, 2**40, 2**62, 2**64 - 1]),
        ),
        min_size=1,
        max_size=3,
    )
)
def test_no_spec_that_is_valid_makes_the_estimates_fail_or_go_on(changes):
    spec = judged()
    for path, number in changes:
        spec = with_number(spec, list(path), number)
    try:
        check_spec(spec)
    except ValueError:
        return

    pay = hourly_pay(spec, MACHINE.flop_per_s)
    assert funded_hours(spec, an_escrow(spec), pay) >= 0
    assert memory_bytes(spec) > 0 and disk_bytes(spec, MACHINE) > 0
