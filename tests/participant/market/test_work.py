"""What an hour at a seat pays, and the price of tokens at which it pays so much, are each other's inverse."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.participant.checks import MEMORY_BYTES_MIN
from assay.participant.market.work import hourly_pay, memory_bytes, price_per_mtoken, serves, step_ms
from assay.protocol.market import SeatClass
from assay.protocol.params import Family, RunSpec
from assay.testing.specs import a_rule, a_spec

# A pass with hidden layers a thousand times as wide as the model: the bytes that it takes beside the imports.
HIDDEN, SEQUENCES, CONTEXT, LAYERS = 16_384, 16, 64, 2
PASS = """
import re, sys
from pathlib import Path
import numpy as np
from assay.protocol.params import Family
from assay.testing.specs import a_spec
from assay.training.layout import layout_of
from assay.training.model.loss import loss_and_gradient, use_threads
from tests.participant.market.test_work import SEQUENCES, wide_in_the_middle

def peak():
    # ru_maxrss begins with that of the process which started this one.
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024

def run(model, sequences):
    layout = layout_of(model)
    tokens = np.zeros((sequences, model.context + 1), np.int64)
    theta = np.full(layout.parameters, 0.01, np.float32)
    loss_and_gradient(model, layout, theta, tokens, compute=a_spec().compute)

use_threads(1)
run(a_spec().model, 1)
before = peak()
run(wide_in_the_middle(Family(int(sys.argv[1]))).model, SEQUENCES)
print(peak() - before)
"""
CLASS = SeatClass(speed=34, memory=34, days=5, lot=30)


def priced(price: int, **changes: int) -> RunSpec:
    spec = a_spec()
    return replace(spec, money=replace(spec.money, price_per_mtoken=price, **changes))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**15), st.integers(20, 60))
def test_the_price_is_the_least_at_which_an_hour_pays_so_much(pay: int, speed: int):
    price = price_per_mtoken(priced(1), replace(CLASS, speed=speed), pay)

    if price is None:
        assert hourly_pay(priced(1 << 63), 1 << speed) < pay
        return
    assert hourly_pay(priced(price), 1 << speed) >= pay
    assert price == 0 or hourly_pay(priced(price - 1), 1 << speed) < pay


def test_no_price_pays_operators_who_have_no_share_of_it():
    assert price_per_mtoken(priced(5, operators_ppm=0), CLASS, 1) is None
    assert price_per_mtoken(priced(5, operators_ppm=0), CLASS, 0) == 0


def test_a_faster_machine_than_the_class_is_paid_at_least_as_much():
    spec = priced(price_per_mtoken(priced(1), CLASS, 10**6) or 0)

    assert hourly_pay(spec, (1 << CLASS.speed) + 12345) >= hourly_pay(spec, 1 << CLASS.speed) >= 10**6


@pytest.mark.parametrize("field", ["speed", "memory", "days", "lot"])
def test_a_class_serves_a_run_from_just_enough_of_each_on(field: str):
    spec = a_spec()
    speed = next(bits for bits in range(80) if step_ms(spec, 1 << bits) <= spec.timing.collect_ms)
    memory = next(bits for bits in range(50) if memory_bytes(spec) <= 1 << bits)
    enough = SeatClass(speed=speed, memory=memory, days=5, lot=20)

    assert serves(enough, spec, days=32, lot=1 << 20)
    assert not serves(enough, spec, days=33, lot=1 << 20)
    assert not serves(replace(enough, **{field: getattr(enough, field) - 1}), spec, days=32, lot=1 << 20)


# ---- memory


def wide_in_the_middle(family: Family) -> RunSpec:
    """A run of little width and much between: what its pass keeps is nearly all of the hidden width."""
    is_gpt = family is Family.GPT
    model = replace(
        a_spec().model,
        family=family,
        layers=LAYERS,
        width=16,
        hidden=HIDDEN,
        context=CONTEXT,
        rope_theta=0 if is_gpt else 10_000,
    )
    return replace(a_spec(), model=model, rule=a_rule(sequences=SEQUENCES))


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads peaks from Linux's /proc")
@pytest.mark.parametrize("family", Family)
def test_a_pass_takes_no_more_than_the_estimate(family: Family):
    estimate = memory_bytes(wide_in_the_middle(family)) - MEMORY_BYTES_MIN

    told = subprocess.run([sys.executable, "-c", PASS, str(family.value)], capture_output=True, check=True)

    a_value = 4 * LAYERS * HIDDEN * SEQUENCES * CONTEXT
    assert 2 * a_value < int(told.stdout) <= estimate < 9 * a_value
