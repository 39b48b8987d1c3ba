"""Order check: the figures in the report are those that the order's rules give, computed here by hand."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from fractions import Fraction

import pytest
import tomllib

from assay.orders.amounts import bytes_text, money_text
from assay.orders.check import (
    accused_words,
    appeal_words,
    check_order,
    deterrence_words,
    deters_words,
    epoch_words,
    late_words,
    method_words,
    model_words,
    node_price,
    opened_words,
    size_words,
    start_words,
    tokenizer_words,
    upload_words,
)
from assay.orders.load import load_order
from assay.orders.order import public_start
from assay.orders.price.quote import audit_share
from assay.orders.spec import audit_spec, compute_spec, data_spec, model_spec, order_closing_s
from assay.protocol.auditing.draws import wide_share_ppm
from assay.protocol.errors import ConfigError
from assay.protocol.messages import INLINE_UPDATE_BYTES
from assay.protocol.params import PPM
from assay.protocol.types import NO_DIGEST, Digest
from assay.protocol.update_rule import Values
from assay.testing.specs import a_rule, an_audit_spec
from assay.training.data.shards import write_tokens
from assay.training.layout import layout_of
from assay.training.methods.choices import Choices, method_rule
from assay.training.methods.presets import METHODS
from assay.training.model.presets import PRESETS
from assay.verifier.appeal.program import why_never
from assay.verifier.audit.messages import opening_bytes_max
from assay.verifier.audit.upload import block_bits, copies_sent
from tests.orders.test_quote import TEXT

DEFAULT = load_order(None)


def test_an_operator_earns_its_share_of_the_price():
    assert node_price(DEFAULT) == 20_000_000 * 87 // 100


def test_files_that_are_left_out_for_a_zero_byte_are_counted(tmp_path):
    (tmp_path / "run.toml").write_text('[[data]]\nsource = "corpus"\n')
    (tmp_path / "corpus").mkdir()
    words = "some words " * 20_000
    (tmp_path / "corpus" / "a.txt").write_text(words)

    def text() -> str:
        return check_order(tmp_path / "run.toml").rows["text"]

    assert text().endswith("in 1 documents, a token each byte")
    (tmp_path / "corpus" / "b.txt").write_text(words + "\0")
    assert text().endswith(
        "; 1 file left out, b.txt: it holds zero bytes, as binary files and UTF-16 text do"
    )
    (tmp_path / "corpus" / "c.txt").write_text(words, encoding="utf-16")
    assert "in 1 documents, a token each byte; 2 files left out: they hold zero bytes" in text()
    (tmp_path / "corpus" / "a.txt").unlink()
    with pytest.raises(ConfigError, match=r"holds no text, expected .*without zero bytes"):
        text()


def test_a_run_that_waits_for_nobody_says_nothing_of_when_it_starts():
    waits = load_order(None, {"run.least_nodes": 6, "run.start_within_s": 7200})

    assert start_words(DEFAULT) == ""
    assert start_words(waits) == "with 6 nodes, within 2 h, or never"


def test_the_model_is_named_by_its_preset_else_its_family():
    sizes = "4 x 128, 4 heads (4 kv), context 128, vocabulary 256"
    preset = load_order(None, {"model.preset": "gpt-1m"})

    assert model_words(DEFAULT, DEFAULT.sizes) == f"gpt, {sizes}"
    assert model_words(preset, preset.sizes) == f"gpt-1m, {sizes}"


def test_a_tokenizer_is_named_by_its_digest_and_bytes_in_words():
    data = data_spec(DEFAULT, write_tokens(None, [TEXT]))

    assert data.tokenizer == NO_DIGEST and tokenizer_words(data) == "a token each byte"
    named = replace(data, tokenizer=Digest(b"\xab" * 32))
    assert tokenizer_words(named) == "tokenizer " + "ab" * 8


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "demo: one gradient, then 32 of 4096 coefficients as SIGN; "),
        ({"comm.method": "diloco"}, "diloco: 30 ADAMW steps, then everything as "),
        ({"comm.method": "diloco", "comm.rank": 2}, "then factors of rank 2; "),
        ({"comm.method": "streaming-diloco", "comm.fragments": 2}, ", one of 2 fragments a round; "),
        ({"comm.f": 0}, " for f = 0; "),
        ({"run.nodes": 7}, " for f = 2; "),
        ({"comm.aggregation": "trimmed-mean"}, "among those that sent a coefficient: nearly a mean, "),
        ({"comm.aggregation": "trimmed-mean", "comm.k": 4096}, "trimmed-mean for f = 1; "),
    ],
)
def test_a_method_is_its_work_its_message_and_its_step(changes, words):
    order = load_order(None, {"train.steps": 30, **changes} if "comm.method" in changes else changes)

    text = method_words(order, order.rule)

    assert words in text and text.endswith(f"; {order.rule.outer.kind.name} step")
    assert ("fragments" in text) == (order.rule.fragments > 1)


def test_a_block_costs_its_positions_values_and_scale():
    """Of one coefficient in a block of 4096: 11 low bits, a stop bit, the unary part, its value."""
    mean_quotient = sum((1 - 1 / 2048.5) ** (2**11 * times) for times in range(1, 60))  # of gaps of 2047.5
    sign = block_bits(a_rule(k=1))

    assert sign == pytest.approx(11 + 1 + mean_quotient + 1, abs=0.01)
    signs = a_rule("diloco", rank=3)
    assert block_bits(signs) == 3 * 128 * 8 + 8
    assert block_bits(a_rule("diloco", values=Values.INT16)) == 4096 * 16 + 16


def test_the_audit_share_counts_probation_whole_and_then_what_the_rate_is():
    order = load_order(None, {"verify.probation": 4, "verify.floor": 0.5, "run.rounds": 6})
    # Four audits on probation; then a rate of probation / audits, here 4/4, at a whole count of audits.
    audits, rates = 0.0, []
    for _ in range(6):
        rates.append(1.0 if int(audits) <= 4 else max(4 / int(audits), 0.5))
        audits += rates[-1]

    assert audit_share(order) == pytest.approx(sum(rates) / 6, abs=1e-6)
    assert audit_share(load_order(None, {"verify.floor": 1.0})) == 1.0


def test_a_false_block_is_opened_after_the_inverse_of_rate_and_share_opened():
    rules = an_audit_spec(blocks=10, wide_ppm=0, wide_blocks=10, floor_ppm=100_000)

    assert opened_words(rules, 100).endswith("is opened after 100")  # a tenth of steps, a tenth of blocks
    assert opened_words(rules, 10).endswith("is opened after 10")
    assert opened_words(rules, 5).startswith("at the floor every one opens 5 of 5 blocks; ")
    wide = replace(rules, wide_ppm=500_000, wide_blocks=100)
    assert opened_words(wide, 100).endswith(
        "one of 2 100; a block that is false in every step is opened after 18"
    )


def test_openings_take_every_audit_on_probation_and_the_floor_s_share_later():
    layout, rules = layout_of(DEFAULT.sizes), audit_spec(DEFAULT)
    means = []
    for rate, count in ((PPM, 8), (rules.floor_ppm, rules.blocks)):
        usual, most = (opening_bytes_max(DEFAULT.rule, layout, n) for n in (count, rules.wide_blocks))
        wide = Fraction(wide_share_ppm(rules, rate), PPM)
        read = Fraction(rate * (PPM + rules.replication_ppm), PPM**2)
        means.append(bytes_text(float(read * ((1 - wide) * usual + wide * most))))

    assert upload_words(DEFAULT, layout).endswith(f"and up to {means[0]} and {means[1]} of openings")
    assert means[0] == "373.0 kB"


@pytest.mark.parametrize(
    ("preset", "verifiers", "copies", "times"),
    [
        ("gpt-1m", 4, 4, "50.2"),
        ("gpt-125m", 4, 2, "2.9"),
        ("gpt-125m", 16, 2, "2.9"),
        ("llama-1b", 16, 2, "2.1"),
    ],
)
def test_an_update_that_does_not_fit_beside_its_commit_is_uploaded_twice(preset, verifiers, copies, times):
    order = load_order(None, {"model.preset": preset, "run.verifiers": verifiers})

    words = upload_words(order, layout_of(order.sizes))

    assert f" on probation, {times} times its update" in words
    assert f": the update to {copies} verifiers" in words
    assert [copies_sent(verifiers, INLINE_UPDATE_BYTES + more) for more in (0, 1)] == [verifiers, 2]


LATE = {"model.preset": "gpt-125m", "comm.method": "muloco"}


def test_openings_that_arrive_too_late_are_named_with_the_keys_that_make_them_small():
    order = load_order(None, LATE)
    layout = layout_of(order.sizes)
    public = load_order(None, LATE | {"train.keep_moments": False})
    long, short = (bytes_text(opening_bytes_max(one.rule, layout, 64)) for one in (order, public))

    words = late_words(order, layout)

    assert words.startswith(f"one takes up to {long} and does not arrive within 18 s at 10.0 MB a second")
    assert f"; keep_moments = false: openings of {short}, and an audit repeats all 5 steps" in words
    assert late_words(public, layout) == late_words(DEFAULT, layout_of(DEFAULT.sizes)) == ""


def test_the_time_that_is_named_is_the_least_in_which_openings_arrive():
    order = load_order(None, LATE)
    seconds = int(late_words(order, layout_of(order.sizes)).split("collect_s = ")[1].split()[0])

    late = [
        late_words(load_order(None, LATE | {"timing.collect_s": one}), layout_of(order.sizes))
        for one in (seconds, seconds - 1)
    ]

    assert late[0] == "" and late[1]


def test_a_public_start_that_is_late_all_the_same_is_given_more_time_only():
    order = load_order(None, {"timing.collect_s": 0.1})

    assert late_words(order, layout_of(order.sizes)).endswith("as collect_s = 1 would allow")


@pytest.mark.parametrize(
    ("changes", "most"),
    [
        ({}, 0),
        ({"comm.reset": 1024}, 0),
        ({"comm.method": "muloco", "comm.reset": 1024}, 0),
        ({"comm.method": "streaming-diloco"}, 0),
        ({"comm.method": "sparseloco", "comm.reset": 1024, "comm.fragments": 4}, 5120),
        ({"comm.reset": 340, "verify.known_answers": 1}, 0),
        ({"comm.reset": 341, "verify.known_answers": 1}, 2052),
    ],
)
def test_an_order_whose_later_steps_cannot_be_accused_says_so(changes, most):
    long, short = (load_order(None, {"run.rounds": rounds} | changes) for rounds in (10_000, 1024))

    assert accused_words(short) == ""
    assert (f"and up to {most:,} steps lead to it" in accused_words(long)) == bool(most)
    assert bool(accused_words(long)) == bool(most)


@pytest.mark.parametrize("method", [one for one in METHODS if one != "demo"])
@pytest.mark.parametrize("preset", PRESETS)
def test_every_method_can_be_ordered_for_every_preset_with_openings_of_ten_megabytes(method, preset):
    given = {"model.preset": preset, "comm.method": method, "train.steps": 30}
    public, keys = public_start(method_rule(method, Choices(steps=30)))
    section = {"keep_moments": "train", "segment": "train"}
    changes = {
        f"{section.get(key, 'comm')}.{key}": tomllib.loads(f"x={text}")["x"] for key, text in keys.items()
    }

    order = load_order(None, given | changes)

    assert replace(order.rule, aggregation=public.aggregation) == public
    assert public_start(order.rule) == (order.rule, {})
    assert opening_bytes_max(order.rule, layout_of(order.sizes), audit_spec(order).blocks) <= 10 * 10**6


def test_an_order_whose_openings_cannot_be_made_is_refused_with_what_would_help():
    with pytest.raises(
        ConfigError, match=r"bytes of parameters, .* keep_moments = false, segment = 30 it shows"
    ):
        load_order(None, {"model.preset": "llama-350m", "comm.method": "muloco", "train.steps": 30})


def test_what_the_default_order_deters_is_what_its_odds_give():
    """300 aUSD at risk, found in 0.0475 of the steps, 12 more before the verdict, and safety of 2."""
    words = deters_words(DEFAULT)

    saving = math.floor(300_000_000 / (2 * (1 / Fraction(475, 10_000) + 12)))
    pay = 4 * 128 * 20 * 87 // 100  # units of a step of 4 sequences
    outside = math.floor(300_000_000 * Fraction(475, 9525))
    assert words.startswith(
        f"skipping work worth {money_text(saving)} aUSD a step ({saving / pay:,.1f} times its pay), one "
        f"false step worth up to {money_text(outside)}; lying in 1 step of 10 is found within 968 steps "
        "(99 %); "
    )


SIZED = {"train.sequences_max": 16, "compute.micro_sequences": 2}


def test_what_deters_is_reckoned_by_the_largest_step():
    least, most = load_order(None), load_order(None, SIZED)
    saving = odds_words(least)

    assert least.rule.local.sequences * 4 == 16
    assert odds_words(most) == pytest.approx(saving / 4, abs=0.1)  # of four times the pay of a step


def odds_words(order) -> float:
    """How many times the pay of a step may be saved by skipping its work."""
    found = re.search(r"\(([0-9,.]+) times its pay\)", deters_words(order))
    assert found is not None
    return float(found[1].replace(",", ""))


def test_sizes_of_steps_are_said_where_nodes_choose_them():
    words = size_words(load_order(None, SIZED))

    assert words.startswith("4 to 16 sequences a step, as many as a node has time for in 15 s")
    assert size_words(load_order(None)) == ""


def test_the_lesser_of_slash_and_withheld_share_is_what_deters():
    order = load_order(None, {"budget.slash": 0.3, "budget.withheld": 0.03})

    assert "one false step worth up to 1.496062;" in deters_words(order)


def test_certain_discovery_deters_any_sabotage_and_work_without_pay_has_no_multiple():
    rules = an_audit_spec(floor_ppm=PPM)
    known = {"stake": 10**9, "slash_ppm": 500_000}

    sure = deterrence_words(rules, 0, **known, step_pay=0, power=Fraction(1))
    assert "any sabotage" in sure and "(of its pay)" in sure
    nearly = deterrence_words(rules, 0, **known, step_pay=10**6, power=Fraction(999, 1000))
    assert "worth up to 499,500.000000;" in nearly
    # Skipping work is found in the step itself: half of what is at risk, at a safety of 2.
    assert sure.startswith("skipping work worth 250.000000 aUSD a step")
    twice = deterrence_words(rules, 0, **known, step_pay=10**6, power=Fraction(1), idle=2)
    assert twice.startswith("skipping work worth 125.000000 aUSD a step (125.0 times its pay)")


def test_an_order_of_many_epochs_says_what_their_results_need():
    few, many = (load_order(None, {"run.rounds": n, "budget.epoch_rounds": 1}) for n in (24, 25))
    assert epoch_words(few) == "24 epochs"
    assert epoch_words(many).startswith("25 epochs; training waits while more than 24 of them lack a result")


def test_an_order_closes_in_the_time_of_its_last_rounds():
    quick = load_order(None, {"timing.collect_s": 1, "timing.iteration_s": 1})

    assert order_closing_s(quick) < order_closing_s(DEFAULT)


UNITS = {"train.sequences": 4, "train.sequences_max": 65_536, "compute.micro_sequences": 2}


def test_the_largest_step_that_an_appeal_covers_is_said():
    order = load_order(None, UNITS)
    model, compute = model_spec(order), compute_spec(order)
    found = re.search(r"of up to ([\d,]+) sequences", appeal_words(order, model))
    assert found is not None
    most = int(found[1].replace(",", ""))

    def reason(sequences: int) -> str | None:
        return why_never(model, compute, order.rule, sequences, has_limits=True)

    assert reason(most) is None and "can be narrowed down" in str(reason(most + 2))
    fits = load_order(None, UNITS | {"train.sequences_max": most})
    assert appeal_words(fits, model) == "of every step"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "of every step"),
        ({"verify.state_every": 3}, "of one in 3 rounds"),
        ({"verify.limits": "none"}, "of no step: the run names no limits between execution classes"),
        ({"train.sequences": 65_536, "compute.micro_sequences": 1}, "of no step: its program has"),
        ({"comm.method": "muloco"}, "of every step, in execution classes with limits for inner steps"),
    ],
)  # fmt: skip
def test_what_no_appeal_covers_is_said_with_its_reason(changes, words):
    order = load_order(None, changes)
    assert appeal_words(order, model_spec(order)).startswith(words)
