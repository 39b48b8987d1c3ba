"""From an order to the spec that all parties sign."""

from __future__ import annotations

import os
import re
import sysconfig
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from assay.orders.amounts import money_text
from assay.orders.check import check_order, deterrence_words, opened_words
from assay.orders.data.tokenise import collect_data, collect_tokens
from assay.orders.load import load_order
from assay.orders.price.quote import audit_share, quote_of
from assay.orders.spec import build_spec, data_spec
from assay.protocol.encoding.codec import decode, encode
from assay.protocol.errors import ConfigError
from assay.protocol.params import Member, RunSpec, check_spec
from assay.protocol.types import Address, Digest, PeerId
from assay.protocol.update_rule import Values, Wire
from assay.testing.specs import a_rule, an_audit_spec
from assay.training.data.shards import DataManifest, write_tokens
from assay.verifier.audit.limits import shipped
from assay.verifier.audit.upload import block_bits

TEXT = b"All of it is text, and there is enough of it. " * 400


def a_member(number: int) -> Member:
    return Member(
        peer=PeerId(bytes([number]) * 32), account=Address(bytes([number]) * 20), hot=Address(bytes(20))
    )


def tokens_of(data: bytes) -> DataManifest:
    return write_tokens(None, [np.frombuffer(data, np.uint8)])


def text_of(order) -> bytes:
    """What an order's byte tokens spell; a zero byte ends each document."""
    return collect_tokens(order)[1].tobytes()


def a_spec(overrides=None, data=TEXT, **changes) -> RunSpec:
    order = load_order(None, overrides)
    parts = {
        "deployment_id": Digest(bytes(32)),
        "data": data_spec(order, tokens_of(data)),
        "buyer": Address(b"b" * 20),
        "treasury": Address(b"t" * 20),
        "nodes": [a_member(number) for number in (5, 3, 4, *range(6, 99))][: order.run.nodes],
        "verifiers": [a_member(2), a_member(1)],
    }
    return build_spec(order, **{**parts, **changes})


@pytest.mark.parametrize(("rounds", "warmup"), [(1, 0), (30, 18), (100, 60), (5_000, 600)])
def test_an_order_warms_up_for_600_rounds_or_three_fifths_of_its_run(rounds, warmup):
    assert load_order(None, {"run.rounds": rounds}).rule.outer.schedule.warmup_rounds == warmup
    written = load_order(None, {"run.rounds": rounds, "train.warmup": 70})
    assert written.rule.outer.schedule.warmup_rounds == 70


@pytest.mark.parametrize(("decay", "warmup"), [(20, 42), (28, 42), (40, 30), (90, 0)])
def test_a_default_warm_up_ends_before_the_rate_falls_at_the_end_of_the_run(decay, warmup):
    order = load_order(None, {"run.rounds": 70, "train.schedule": "wsd", "train.decay": decay})
    assert order.rule.outer.schedule.warmup_rounds == warmup


def test_the_default_order_makes_a_spec_in_exact_integers():
    spec = a_spec()

    check_spec(spec)
    assert decode(RunSpec, encode(spec)) == spec
    rule, audit, money, timing = spec.rule, spec.audit, spec.money, spec.timing
    assert (rule.compress.feedback_micro, rule.local.clip_micro) == (950_000, 1_000_000)
    assert rule.local.equalises
    assert (rule.outer.schedule.peak_nano, rule.outer.schedule.floor_ppm) == (2_000_000, 100_000)
    assert (rule.aggregation.name, rule.aggregation.f) == ("reputation+mean", 1)
    assert (rule.compress.k, rule.outer.schedule.warmup_rounds, rule.local.sequences) == (32, 42, 4)
    assert (audit.probation, audit.floor_ppm, audit.blocks) == (4, 50_000, 64)
    assert (audit.wide_ppm, audit.wide_blocks) == (31_250, 4882)  # 18 s at 10 MB/s, 36 KiB a block
    assert (money.price_per_mtoken, money.operators_ppm, money.verifiers_ppm) == (20_000_000, 870_000, 80_000)
    assert (money.slash_ppm, money.epoch_rounds, money.treasury) == (300_000, 10, b"t" * 20)
    assert (timing.collect_ms, timing.ready_ms, timing.iteration_ms, timing.resend_ms) == (
        30_000,
        4_000,
        60_000,
        1_000,
    )
    assert (spec.model.vocabulary, spec.seed, spec.rounds, spec.name) == (256, 20261120, 70, "quickstart")


def test_members_ascend_whatever_order_they_came_in():
    spec = a_spec()

    assert [member.peer[0] for member in spec.nodes] == [3, 4, 5, 6, 7]
    assert spec == a_spec(nodes=[a_member(number) for number in (4, 7, 5, 3, 6)])


def test_a_number_written_in_another_way_gives_the_same_bytes():
    assert encode(a_spec({"train.lr": 0.002, "train.clip": 1})) == encode(a_spec({"train.lr": 2e-3}))


def test_members_that_share_an_account_are_refused_in_plain_words():
    twin = replace(a_member(9), account=a_member(3).account)

    with pytest.raises(ConfigError, match="one account cannot stand behind two members"):
        a_spec(verifiers=[a_member(1), twin])


# ---- data ----


def test_the_last_bytes_are_held_out():
    spec = data_spec(load_order(None, {"train.validation_share": 0.25}), tokens_of(TEXT))

    assert (spec.tokens, spec.validation_tokens) == (len(TEXT), len(TEXT) // 4)


def test_one_byte_of_data_changes_the_root():
    order = load_order(None)

    assert data_spec(order, tokens_of(TEXT)).root != data_spec(order, tokens_of(TEXT[:-1] + b"!")).root


@pytest.mark.parametrize(
    ("data", "words"),
    [(TEXT[:500], "one step of one node needs 516"), (TEXT[:2000], "held out for validation")],
)
def test_too_little_data_is_refused_in_plain_words(data, words):
    with pytest.raises(ConfigError, match=words):
        data_spec(load_order(None), tokens_of(data))


def test_a_spec_does_not_tell_where_a_file_lies_on_the_buyers_disk(tmp_path):
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "notes.txt").write_bytes(TEXT)
    order = an_order_for(tmp_path / "secret" / "notes.txt", "stdlib", max_bytes=20_000)
    manifest = collect_data(order, None)

    spec = data_spec(order, manifest)

    assert spec.source == "notes.txt + stdlib"
    assert spec.licence == "unknown AND PSF-2.0"
    assert b"secret" not in manifest.to_json()


def an_order_for(*sources, **keys):
    return load_order(None, {"data": [{"source": str(source), **keys} for source in sources]})


def test_a_folder_is_read_in_the_order_of_relative_paths(tmp_path):
    for name, body in {"b.txt": b"2", "a/z.txt": b"1", "c": b"3", ".hidden": b"no"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(body)

    assert text_of(an_order_for(tmp_path)) == b"1\x002\x003\0"


def test_what_is_no_text_or_leads_outside_a_folder_is_left_out(tmp_path):
    inside, outside = tmp_path / "in", tmp_path / "out"
    inside.mkdir(), outside.mkdir()
    (inside / "text").write_bytes(b"text")
    (inside / "binary").write_bytes(b"a\0b")
    (outside / "secret").write_bytes(b"secret")
    (inside / "link").symlink_to(outside / "secret")
    (inside / "door").symlink_to(outside)
    (inside / "dangling").symlink_to(outside / "nothing")
    os.mkfifo(inside / "pipe")

    assert text_of(an_order_for(inside)) == b"text\0"


def test_sources_are_joined_in_the_order_written_each_up_to_its_bound(tmp_path):
    first, second = tmp_path / "1", tmp_path / "2"
    first.write_bytes(b"abc"), second.write_bytes(b"def")

    assert text_of(an_order_for(second, first, max_bytes=2)) == b"de\0ab\0"


def test_a_path_in_a_file_is_relative_to_that_file_whatever_the_command_line_chooses(tmp_path, monkeypatch):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "text").write_bytes(b"there")
    (tmp_path / "there" / "limits.json").write_bytes(shipped().encode())
    (tmp_path / "text").write_bytes(b"here")
    path = tmp_path / "there" / "run.toml"
    path.write_text('[[data]]\nsource = "text"\n[verify]\nlimits = "limits.json"\n')
    monkeypatch.chdir(tmp_path)
    here = load_order(path, {"data": [{"source": str(tmp_path / "text")}]})

    assert (text_of(load_order(path)), text_of(here)) == (b"there\0", b"here\0")
    assert here.limits == shipped()


def test_an_order_keeps_what_its_files_held_when_it_was_read(tmp_path):
    path, limits = tmp_path / "run.toml", tmp_path / "limits.json"
    path.write_text('[verify]\nlimits = "limits.json"\n')
    limits.write_bytes(shipped().encode())
    order = load_order(path)

    limits.unlink()

    assert quote_of(order).terms.audit.limits == shipped().digest()
    with pytest.raises(ConfigError, match=r"run\.toml: \[verify\] limits: .*limits\.json: .*No such file"):
        load_order(path)


def test_missing_empty_and_strange_sources_are_named(tmp_path):
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")

    for name, words in {
        "nothing": "does not exist",
        "empty": "holds no text",
        "folder": "holds no text",
        "pipe": "is neither a file nor a folder",
    }.items():
        with pytest.raises(ConfigError, match=f"{name}: {words}"):
            collect_data(an_order_for(tmp_path / name), None)


def test_an_unreadable_file_is_named(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    (tmp_path / "text").write_bytes(b"text")
    order = an_order_for(tmp_path / "text")
    monkeypatch.setattr("builtins.open", refuse)

    with pytest.raises(ConfigError, match=r"text: cannot be read \(Permission denied\)"):
        collect_data(order, None)


def test_the_standard_library_is_sources_only_and_the_same_every_time():
    order = an_order_for("stdlib", max_bytes=300_000)

    data, manifest = text_of(order), collect_data(order, None)

    assert sum(one.bytes for one in manifest.sources) == 300_000
    assert data == text_of(order)
    assert data.startswith(Path(sysconfig.get_path("stdlib"), "__future__.py").read_bytes() + b"\0")
    assert data.count(b"\0") == manifest.sources[0].documents == len(data) - 300_000


# ---- what a buyer is told before paying ----


def test_the_check_names_sizes_price_budget_and_audits(tmp_path):
    (tmp_path / "text").write_bytes(TEXT)
    path = tmp_path / "run.toml"
    path.write_text('[[data]]\nsource = "text"\nlicence = "MIT"')

    report = "\n".join(check_order(path).lines)

    for words in (
        "gpt, 4 x 128, 4 heads (4 kv), context 128, vocabulary 256: 870,656 parameters in 213 blocks",
        "18,401 tokens",
        "18,400 bytes in 1 documents, a token each byte",
        "float32, the whole batch per forward and backward pass",
        "5 nodes, 5 seats, 4 verifiers",
        "text (MIT)",
        "0.07 bits per parameter",
        "70 rounds of 2,560 tokens, 7 epochs",
        "3.584000 aUSD if every contribution counts",
        "3.763200 aUSD in escrow",
        "of an honest node's steps recomputed",
    ):
        assert words in report


def an_order_of_strata(folder: Path, *seats: int | None, nodes: int = 7) -> Path:
    """An order with one text file for each of these counts of seats."""
    lines = [f"[run]\nnodes = {nodes}\n[model]\ncontext = 16\n[train]\nsequences = 2\n"]
    for number, count in enumerate(seats):
        (folder / f"{number}.txt").write_bytes(TEXT[: 4000 + number])
        lines.append(f'[[data]]\nsource = "{number}.txt"\nlicence = "CC0-1.0"\n')
        lines.append(f"seats = {count}\n" if count else "")
    path = folder / "order.toml"
    path.write_text("".join(lines))
    return path


def test_a_source_with_seats_is_a_stratum_of_its_tokens(tmp_path):
    order = load_order(an_order_of_strata(tmp_path, 5, 2))
    data = data_spec(order, collect_data(order, None))

    assert [stratum.seats for stratum in data.strata] == [5, 2]
    assert [stratum.tokens for stratum in data.strata] == [4001, 4002]  # a zero byte ends each document
    assert sum(stratum.tokens for stratum in data.strata) == data.tokens
    said = check_order(an_order_of_strata(tmp_path, 5, 2)).rows["strata"]
    assert said == (
        "5 + 2 seats, each on its own source; "
        "in 1 of 2, 2 liars can be the majority: bounded by the others' nodes"
    )
    assert check_order(an_order_of_strata(tmp_path, 7)).rows["strata"] == "7 seats, each on its own source"
    assert "strata" not in check_order(an_order_of_strata(tmp_path, None)).rows


@pytest.mark.parametrize(
    ("seats", "reason"),
    [
        ((5, None), "expected some for every source, or for none"),
        ((5, 3), "the sources have 8 seats together, expected the run's 7"),
    ],
)
def test_seats_of_sources_are_all_of_the_run_s_seats(tmp_path, seats, reason):
    with pytest.raises(ConfigError, match=reason):
        load_order(an_order_of_strata(tmp_path, *seats))


def test_a_stratum_too_small_for_one_step_is_refused_before_anybody_pays(tmp_path):
    order = an_order_of_strata(tmp_path, 5, 2)
    (tmp_path / "1.txt").write_bytes(TEXT[:50])
    with pytest.raises(ConfigError, match="stratum 1 has 0 windows of 17 tokens to train on, a step needs 2"):
        check_order(order)


def an_order_of_weights(folder: Path, *weights: float | None, sampling: str = "with-replacement") -> Path:
    """An order with one text file for each of these weights."""
    path = an_order_of_strata(folder, *(None for _ in weights))
    lines = path.read_text().replace("sequences = 2\n", f'sequences = 2\nsampling = "{sampling}"\n')
    for number, weight in enumerate(weights):
        name = f'source = "{number}.txt"\n'
        lines = lines.replace(name, name if weight is None else f"{name}weight = {weight}\n")
    path.write_text(lines)
    return path


def test_a_source_with_a_weight_is_drawn_by_it(tmp_path):
    path = an_order_of_weights(tmp_path, 0.125, 0.875, sampling="without-replacement")
    order = load_order(path)
    data = data_spec(order, collect_data(order, None))

    assert [(one.tokens, one.weight_milli) for one in data.mixture] == [(4001, 125), (4002, 875)]
    assert not data.replaces
    said = check_order(path).rows["draws"]
    # 70 rounds of 7 nodes with 2 sequences: 980 draws, of 235 and 211 windows
    assert re.fullmatch(
        r"0\.txt 12\.5% of the sequences, 0\.5\d passes; 1\.txt 87\.5% of the sequences, 4\.0\d passes; "
        "without replacement",
        said,
    )
    plain = check_order(an_order_of_weights(tmp_path, None, sampling="without-replacement")).rows
    assert plain["draws"].startswith("without replacement, 4.")


def test_without_weights_and_with_replacement_a_spec_says_nothing_of_draws(tmp_path):
    order = load_order(an_order_of_weights(tmp_path, None, None))
    data = data_spec(order, collect_data(order, None))

    assert data.mixture == () and data.replaces
    assert "draws" not in check_order(an_order_of_weights(tmp_path, None, None)).rows


@pytest.mark.parametrize(
    ("weights", "reason"),
    [
        ((0.5, None), "another source has a weight; expected one for every source, or for none"),
        ((0.5, 0.501), "the weights of all sources make 1.001 together, expected 1"),
        ((0.5, 0.49999), "expected at most 3 decimals"),
        ((0.0, 1.0), "expected more than 0"),
    ],
)
def test_weights_of_sources_are_shares_in_thousandths(tmp_path, weights, reason):
    with pytest.raises(ConfigError, match=reason):
        load_order(an_order_of_weights(tmp_path, *weights))


def test_a_source_with_seats_has_no_weight_and_is_drawn_with_replacement(tmp_path):
    path = an_order_of_strata(tmp_path, 5, 2)
    weighted = path.read_text().replace("seats = 5", "weight = 0.5\nseats = 5")
    path.write_text(weighted.replace("seats = 2", "weight = 0.5\nseats = 2"))
    with pytest.raises(ConfigError, match="train on it alone, which its weight cannot change"):
        load_order(path)
    path = an_order_of_strata(tmp_path, 5, 2)
    path.write_text(path.read_text().replace("[train]", '[train]\nsampling = "without-replacement"'))
    with pytest.raises(ConfigError, match="assigned its source by its key"):
        load_order(path)


def test_a_source_with_a_weight_that_holds_less_than_a_step_is_refused_before_anybody_pays(tmp_path):
    path = an_order_of_weights(tmp_path, 0.5, 0.5)
    (tmp_path / "1.txt").write_bytes(TEXT[:40])
    with pytest.raises(ConfigError, match="source 1 has 0 windows of 17 tokens to train on, a step needs 2"):
        check_order(path)


def an_order_of_own_data(folder: Path, own: int, *seats: int | None, nodes: int = 4) -> Path:
    """The same, of whose nodes so many bring data of their own."""
    path = an_order_of_strata(folder, *seats, nodes=nodes)
    path.write_text(path.read_text().replace("[run]\n", f"[run]\nown_data = {own}\n"))
    return path


@pytest.mark.parametrize(
    ("own", "seats", "strata"),
    [
        (2, (None,), [(0, 1), (0, 1), (4001, 2)]),
        (4, (None,), [(0, 1)] * 4 + [(4001, 0)]),  # the order's text is only held out
        (1, (2, 1), [(0, 1), (4001, 2), (4002, 1)]),
    ],
)
def test_nodes_that_bring_data_have_a_stratum_each_of_which_the_spec_says_nothing(
    tmp_path, own, seats, strata
):
    path = an_order_of_own_data(tmp_path, own, *seats)
    order = load_order(path)
    data = data_spec(order, collect_data(order, None))

    assert [(one.tokens, one.seats) for one in data.strata] == strata
    assert data.source.endswith(f" + what {own} nodes have of their own")
    said = check_order(path).rows["own data"]
    others = "the order's are only held out" if own == 4 else f"the other {4 - own} on the order's"
    assert said.startswith(f"{own} of the named nodes train on data that only they have, {others}; ")
    assert "a drawn step shows 2 windows" in said


@pytest.mark.parametrize(
    ("own", "seats", "reason"),
    [
        (5, (None,), "of the 4 nodes that are named; expected no more"),
        (1, (2, 2), "4 seats together, expected the run's 4, less 1 with data of their own"),
    ],
)
def test_more_own_data_than_nodes_or_seats_is_refused(tmp_path, own, seats, reason):
    with pytest.raises(ConfigError, match=reason):
        load_order(an_order_of_own_data(tmp_path, own, *seats))


def test_the_check_refuses_an_order_without_its_data(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text('[[data]]\nsource = "nowhere"')

    with pytest.raises(ConfigError, match="nowhere: does not exist"):
        check_order(path)


def test_estimated_bits_are_what_random_positions_cost():
    assert block_bits(a_rule(k=32)) / 32 == pytest.approx(9.47, abs=0.01)
    assert block_bits(a_rule(k=64)) / 64 == pytest.approx(8.47, abs=0.05)


def test_a_whole_block_costs_its_values_and_factors_their_columns_and_a_scale():
    assert block_bits(a_rule("diloco", rank=2)) == 2 * (64 + 64) * 8 + 8
    assert block_bits(a_rule("diloco", values=Values.INT8)) == 4096 * 8 + 16


def test_the_check_says_how_many_blocks_audits_open_and_in_how_many_of_them_more():
    some = an_audit_spec(blocks=4, wide_ppm=250_000, wide_blocks=8)
    assert opened_words(some, 100).startswith("at the floor every one opens 4 of 100 blocks, one of 4 8;")
    for rules in (replace(some, wide_ppm=0), replace(some, blocks=8)):
        assert opened_words(rules, 100).startswith(
            f"at the floor every one opens {rules.blocks} of 100 blocks;"
        )


def test_the_gain_of_a_false_step_is_deterred_up_to_the_odds_of_losing_the_slashed_share():
    words = deterrence_words(
        an_audit_spec(floor_ppm=100_000), 6, stake=10**21, slash_ppm=500_000, step_pay=10**18
    )
    caught = Fraction(1, 10) * Fraction(19, 20)
    outside = money_text(int(5 * 10**20 * caught / (1 - caught)))
    assert f"one false step worth up to {outside};" in words


@pytest.mark.parametrize(
    ("changes", "wire"),
    [
        ({"run.nodes": 24}, Wire.UNION),
        ({"run.nodes": 25}, Wire.SIGNS),
        ({"run.nodes": 25, "comm.download": "union"}, Wire.UNION),
        ({"run.nodes": 25, "comm.method": "sparseloco"}, Wire.UNION),  # its step needs amplitudes
        ({"comm.rank": 2}, Wire.SIGNS),  # twice its upload; the union would be 33 times
        ({"comm.rank": 2, "run.nodes": 1}, Wire.SIGNS),
        ({"comm.rank": 2, "comm.download": "union"}, Wire.UNION),
        ({"comm.k": 4096}, Wire.SIGNS),
        ({"run.nodes": 8, "comm.k": 100}, Wire.SIGNS),
        ({"run.nodes": 8, "comm.k": 99}, Wire.UNION),
        ({"comm.method": "diloco"}, Wire.MESSAGE),
        ({"comm.method": "diloco", "comm.rank": 2}, Wire.MESSAGE),
        ({"comm.method": "diloco", "comm.transform": "dct"}, Wire.UNION),
        ({"comm.method": "muloco", "comm.download": "union"}, Wire.UNION),
        ({"comm.download": "signs"}, Wire.SIGNS),
        ({"comm.aggregation": "decoded-median"}, Wire.SIGNS),
    ],
    ids=str,
)
def test_aggregates_are_written_in_the_shortest_way_unless_told_otherwise(changes, wire):
    assert load_order(None, changes).rule.aggregation.wire is wire


@pytest.mark.parametrize(
    "changes",
    [
        {"comm.method": "diloco", "comm.download": "signs"},
        {"comm.aggregation": "decoded-vote", "comm.download": "union"},
        {"comm.aggregation": "decoded-vote", "comm.transform": "none"},
    ],
    ids=str,
)
def test_signs_that_no_step_makes_and_rules_without_a_wire_are_refused_before_anybody_pays(changes):
    with pytest.raises(ConfigError, match="sign"):
        a_spec(changes)


@pytest.mark.parametrize(
    ("changes", "is_equalised"),
    [({}, True), ({"train.equalise": False}, False), ({"comm.method": "sparseloco"}, False)],
    ids=str,
)
def test_a_gradient_is_equalised_unless_the_order_says_otherwise(changes, is_equalised):
    assert a_spec(changes).rule.local.equalises == is_equalised


@pytest.mark.parametrize(
    ("changes", "found", "whole"),
    [
        ({"train.lr": 0.5}, lambda rule: rule.outer.schedule.peak_nano, 500_000_000),
        ({"train.lr_floor": 0.25}, lambda rule: rule.outer.schedule.floor_ppm, 250_000),
        ({"train.weight_decay": 0.125}, lambda rule: rule.outer.decay_micro, 125_000),
        ({"train.inner_lr": 0.004}, lambda rule: rule.local.schedule.peak_nano, 4_000_000),
        ({"train.inner_weight_decay": 0.2}, lambda rule: rule.local.decay_micro, 200_000),
        ({"train.proximal": 0.01}, lambda rule: rule.local.proximal_micro, 10_000),
        ({"comm.beta": 0.9}, lambda rule: rule.compress.feedback_micro, 900_000),
        (
            {"comm.outer": "nesterov", "comm.momentum": 0.5},
            lambda rule: rule.outer.momentum_micro,
            500_000,
        ),
    ],
    ids=lambda one: next(iter(one)) if isinstance(one, dict) else "",
)
def test_a_ratio_of_an_order_is_a_whole_number_of_its_unit_in_the_rule(changes, found, whole):
    assert found(a_spec({"comm.method": "sparseloco", **changes}).rule) == whole


def test_inner_steps_that_are_to_be_equalised_are_refused_before_anybody_pays():
    with pytest.raises(ConfigError, match="only a single gradient is equalised"):
        a_spec({"comm.method": "sparseloco", "train.equalise": True})


@pytest.mark.parametrize(("floor", "probation", "rounds", "share"), [(1.0, 1, 50, 1.0), (0.2, 4, 4, 1.0)])
def test_the_expected_audit_share_is_one_on_probation_and_at_a_floor_of_one(floor, probation, rounds, share):
    order = load_order(None, {"verify.floor": floor, "verify.probation": probation, "run.rounds": rounds})

    assert audit_share(order) == share


def test_the_expected_audit_share_nears_the_floor_in_a_long_run():
    assert audit_share(load_order(None, {"run.rounds": 20_000})) == pytest.approx(0.05, abs=0.01)


def test_more_fragments_than_the_model_has_parts_are_refused_before_anybody_pays():
    fits = {"comm.method": "streaming-diloco", "comm.fragments": 3, "model.layers": 1}

    assert a_spec(fits).rule.fragments == 3
    with pytest.raises(ConfigError, match="5 fragments are too many for this model"):
        a_spec({**fits, "comm.fragments": 5})
