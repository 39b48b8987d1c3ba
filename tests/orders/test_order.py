"""run.toml: what is accepted, and what every mistake is told."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from assay.orders.amounts import bytes_text, money_text, scaled
from assay.orders.load import load_order
from assay.orders.spec import accept_spec
from assay.protocol.errors import ConfigError
from assay.protocol.messages import LOSS_MICRO_MAX
from assay.protocol.params import NO_ACCEPT, AcceptSpec, Milestone
from assay.training.data.tokenizer import byte_tokenizer_json
from assay.training.model.hugging_face import export_config

ITEMS = str(Path(__file__).parents[2] / "examples" / "choices.jsonl")
EXAMPLES = [
    path
    for path in sorted((Path(__file__).parents[2] / "examples").glob("*.toml"))
    if not path.name.endswith(".scenario.toml")
]


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes a run.toml and makes its folder the present one, so that messages are short."""
    monkeypatch.chdir(tmp_path)

    def writer(text: str | bytes) -> Path:
        path = Path("run.toml")
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return writer


def lines_of(path: Path | None, overrides=None) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_order(path, overrides)
    return str(caught.value).splitlines()


def test_an_empty_file_is_no_order_and_buys_nothing_by_mistake(write):
    with pytest.raises(ConfigError, match="is empty, expected an order"):
        load_order(write(""))


@pytest.fixture(scope="module")
def examples(tmp_path_factory) -> Path:
    """The examples as they are once base.toml and grpo-start.toml have been run."""
    home = tmp_path_factory.mktemp("clone")
    folder = home / "examples"
    shutil.copytree(EXAMPLES[0].parent, folder)
    for run in ("base", "grpo-start"):
        delivered = home / "runs" / run / "bundle" / "model"
        delivered.mkdir(parents=True)
        # Documents have no separator, answers end with one.
        config = export_config(load_order(folder / "base.toml").sizes, None if run == "base" else 0)
        (delivered / "config.json").write_text(json.dumps(config))
        (delivered / "tokenizer.json").write_bytes(byte_tokenizer_json())
    return folder


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_is_an_order(path, examples):
    assert load_order(examples / path.name).run.name == path.stem


def test_the_adapters_example_trains_the_model_that_the_bases_example_delivers(examples):
    base, lora, finetune = (
        load_order(examples / f"{name}.toml").sizes for name in ("base", "lora", "finetune")
    )

    assert lora.whole == finetune == base
    assert lora.is_adapted


def test_the_quickstart_is_the_default_order_with_known_answer_tasks():
    quickstart, default = load_order(EXAMPLES[0].with_name("quickstart.toml")), load_order(None)

    data = quickstart.data[0].model_copy(update={"licence": None, "max_bytes": None})
    assert (quickstart.data[0].licence, quickstart.data[0].max_bytes) == (data.licence_text, data.bytes_max)
    assert quickstart.verify.known_answers == 2
    assert (quickstart.audit_rounds, quickstart.dispute_rounds) == (
        default.audit_rounds,
        default.dispute_rounds,
    )
    assert quickstart.verify.absence_s < default.verify.absence_s  # a demonstration does not wait for hours
    verify = quickstart.verify.model_copy(
        update={
            "known_answers": 0,
            "audit_rounds": None,
            "dispute_rounds": None,
            "absence_s": default.verify.absence_s,
        }
    )
    same = {"model": default.model, "train": default.train, "comm": default.comm, "folder": default.folder}
    assert replace(quickstart, data=(data,), verify=verify, **same) == default


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[train]\nlr = "fast"', 'run.toml: [train] lr = "fast": expected a number'),
        ("[train]\nlr = inf", "run.toml: [train] lr = Infinity: expected a finite number"),
        ("[train]\nlr = nan", "run.toml: [train] lr = NaN: expected a finite number"),
        ("[run]\nrounds = 60.0", "run.toml: [run] rounds = 60.0: expected a whole number"),
        ("[run]\nrounds = true", "run.toml: [run] rounds = true: expected a whole number"),
        ("[run]\nrounds = 0", "run.toml: [run] rounds = 0: expected at least 1"),
        ("[run]\nname = 7", "run.toml: [run] name = 7: expected text"),
        ('[run]\nname = ""', 'run.toml: [run] name = "": expected some text'),
        (
            '[run]\nname = "../up"',
            'run.toml: [run] name = "../up": expected letters, digits, dots, dashes and underscores',
        ),
        ("[run]\nseed = 18446744073709551616", "expected at most 18446744073709551615"),
        ("run = 3", "run.toml: [run] = 3: expected a table"),
        ("[data]", "run.toml: [data] = {}: expected a list of tables, each under a [[data]] line"),
        ("data = []", "expected at least one source"),
        (
            "[[data]]\n[[data]]\nmax_bytes = 0",
            "run.toml: [[data]] number 2 max_bytes = 0: expected at least 1",
        ),
        ("[verify]\naudit_rounds = 6", "lying leaders could hide verdicts: 4 verifiers need at least 7"),
        ("[run]\nverifiers = 7\n[verify]\ndispute_rounds = 6", "7 verifiers need at least 7"),
        ("[run]\nreserves = 3", "[run] reserves = 3: expected at most 2"),
        ("[run]\nverifiers = 5\nreserves = 2", "tolerate 1 faults, with them 2: expected as many"),
        ("[verify]\nfloor = 0", "run.toml: [verify] floor = 0: expected more than 0"),
        ("[verify]\nfloor = 1.1", "run.toml: [verify] floor = 1.1: expected at most 1"),
        ("[comm]\nbeta = 1", "as it is set up here: beta is 1000000 millionths, expected below 1"),
        ("[comm]\nbeta = 1.5", "run.toml: [comm] beta = 1.5: expected at most 1"),
        ('[comm]\nvalues = "sign"\nouter = "sgd"', "SIGN sends no amplitude"),
        ("[comm]\nmomentum = 0.6", 'the outer step "sign" has none; expected outer = "nesterov", "adam"'),
        ("[comm]\nf = 3", "[comm] f = 3: with 5 nodes the model stands still"),
        ('[comm]\nmethod = "sparseloco"\n[train]\nsteps = 4\nsegment = 5', "segments of 5 of 4 inner steps"),
        (
            '[comm]\nmethod = "sparseloco"\n[train]\nsteps = 1025\nsegment = 65\nsequences = 64',
            "[train] sequences = 64: a step takes 65600 windows, at most 65536 expected",
        ),
        (
            '[comm]\nmethod = "gossip"',
            'run.toml: [comm] method = "gossip": is not one of demo, muloco, sparseloco',
        ),
        ("[timing]\nready_s = 0.0001", "run.toml: [timing] ready_s = 0.0001: expected at most 3 decimals"),
        ("[train]\nlr = 1e-10", "run.toml: [train] lr = 1e-10: expected at most 9 decimals"),
        (
            "[model]\nwidth = 130",
            "run.toml: [model]: model width 130 must be a multiple of heads (4)",
        ),
        (
            "[budget]\noperators = 0.95",
            "run.toml: [budget] operators = 0.95: with verifiers, the shares exceed 1",
        ),
        ("[budget]\nprice_per_mtoken = 1", "an epoch would cost less than one token unit"),
        ('[budget]\namount = "lots"', 'expected "auto" or a whole number of token units above 0'),
        ("[budget]\namount = 5.0", 'expected "auto" or a whole number of token units above 0'),
        (
            "[budget]\namount = 3583999",
            "run.toml: [budget] amount = 3583999: the run can cost 3.584000 aUSD (3584000 units), "
            "this pays for 3.583999 aUSD (3583999 units)",
        ),
        ("x", "run.toml: is not TOML: "),
        ("[run]\nrounds = 1\nrounds = 2", "run.toml: is not TOML: "),
        ("a = " + "[" * 100_000, "run.toml: is not TOML"),
        (b"name = '\xff'", "run.toml: is not UTF-8 text"),
        ("#" * ((1 << 20) + 1), "run.toml: more than 1048576 bytes"),
        (
            "[train]\nsequences_max = 8",
            "run.toml: [train] sequences_max = 8: steps of different size are made of passes of one size",
        ),
        ("[train]\nsequences_max = 9\n[compute]\nmicro_sequences = 2", "9, expected a multiple of 2"),
        ("[train]\nsequences_max = 2\n[compute]\nmicro_sequences = 2", "expected more than sequences, 4"),
        ("[train]\nsequences_max = 0", "run.toml: [train] sequences_max = 0: expected at least 1"),
        ('[run.attesters]\n1 = ["key"]', '[run.attesters] 1 = ["key"]: expected text'),
        ('[run.attesters]\n5 = "key"', '[run.attesters] 5 = "key": no such node; nodes are 0 to 4'),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_with_its_place_and_what_was_expected(write, text, expected):
    (line,) = lines_of(write(text))

    assert expected in line
    assert line.startswith("run.toml: ")


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("[train]\nsequneces = 3", "[train] sequneces: unknown key; did you mean [train] sequences?"),
        ("[budgt]", "[budgt]: unknown table; did you mean [budget]?"),
        ("[[dta]]", "[dta]: unknown table; did you mean [[data]]?"),
        ("[run]\nlr = 3", "[run] lr: unknown key; did you mean [train] lr?"),
        ("lr = 3", "[lr]: unknown key; did you mean [train] lr?"),
        ("[run]\nmax_byte = 3", "[run] max_byte: unknown key; did you mean [[data]] max_bytes?"),
        ('[[data]]\nsorce = "x"', "[[data]] sorce: unknown key; did you mean [[data]] source?"),
        ("[timing]\nqqq = 1", "[timing] qqq: unknown key; expected one of collect_s, ready_s"),
        ("[qqq]", "[qqq]: unknown table; expected one of run, model, compute, data"),
    ],
)
def test_an_unknown_key_is_told_what_may_have_been_meant(write, text, meant):
    (line,) = lines_of(write(text))

    assert line.startswith(f"run.toml: {meant}")


def test_every_mistake_is_reported_at_once(write):
    text = '[run]\nrounds = "many"\n[train]\nlr = true\nwarmpu = 1\n[[data]]\nsource = 4\n'

    assert len(lines_of(write(text))) == 4


def test_words_from_a_file_cannot_move_the_cursor(write):
    (line,) = lines_of(write('[run]\n"\\u001b[2Jx\\r" = 1'))

    assert line.isprintable()


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6)
KEYS = st.sampled_from(["run", "data", "rounds", "source", "attesters", "4", "lr", "amount", "method"])
TREES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)
PATHS = ["run", "train", "data", "run.attesters", "run.rounds", "budget.amount", "budget.slash", "train.lr"]


@settings(suppress_health_check=[HealthCheck.too_slow])  # how fast values are drawn is not the claim
@given(st.dictionaries(st.sampled_from(PATHS), TREES, max_size=3))
def test_no_value_whatever_is_answered_with_a_traceback(values):
    words = ""
    try:
        load_order(None, values)
    except ConfigError as fault:
        words = str(fault)
    assert all(line.isprintable() for line in words.split("\n"))


def test_a_missing_file_and_a_folder_are_named(tmp_path):
    assert lines_of(tmp_path / "no.toml") == [
        f"{tmp_path / 'no.toml'}: cannot be read (No such file or directory)"
    ]
    assert lines_of(tmp_path) == [f"{tmp_path}: is a folder, expected a TOML file"]


# ---- choices from the command line ----


def test_a_choice_replaces_the_files_word_and_none_leaves_it(write):
    path = write("[run]\nrounds = 30\nseed = 1\n")

    order = load_order(path, {"run.rounds": 10, "run.seed": None, "run.nodes": 3})

    assert (order.run.rounds, order.run.seed, order.run.nodes) == (10, 1, 3)


def test_a_mistake_is_blamed_on_where_it_was_made(write):
    path = write("[run]\nnodes = -1")

    lines = lines_of(path, {"run.verifiers": 0, "run.rounds": 9})

    assert [line.split(":")[0] for line in lines] == ["run.toml", "command line"]
    assert lines_of(None, {"run.rounds": 0}) == ["command line: [run] rounds = 0: expected at least 1"]


# ---- how many ----


@pytest.mark.parametrize(
    ("inside", "outside", "reason"),
    [
        ({"nodes": 1}, {"nodes": 0}, "nodes = 0: nobody would train"),
        (
            {"nodes": 3, "least_nodes": 3},
            {"nodes": 3, "least_nodes": 2},
            "at least as many as the buyer names: 3",
        ),
        (
            {"nodes": 0, "least_nodes": 4, "seats": 4},
            {"nodes": 0, "least_nodes": 4, "seats": 3},
            "seats = 3: expected at least as many as nodes take part from the start: 4",
        ),
        (
            {"nodes": 0, "least_nodes": 102, "verifiers": 7},
            {"nodes": 0, "least_nodes": 103, "verifiers": 7},
            "7 verifiers can admit 102 at once",
        ),
        (
            {"nodes": 0, "least_nodes": 4, "start_within_s": 1},
            {"nodes": 0, "least_nodes": 4, "start_within_s": 0},
            "start_within_s = 0: expected at least 1",
        ),
    ],
)
def test_nodes_named_needed_and_seated_ascend(inside, outside, reason):
    load_order(None, {f"run.{key}": value for key, value in inside.items()})
    with pytest.raises(ConfigError, match=re.escape(reason)):
        load_order(None, {f"run.{key}": value for key, value in outside.items()})


@pytest.mark.parametrize("key", ["run.nodes", "run.least_nodes"])
@pytest.mark.parametrize("f", [1, 2, 21])
def test_nodes_that_may_lie_cannot_stop_the_model_by_staying_away(key: str, f: int):
    some = {"run.nodes": 0, "comm.f": f}

    assert load_order(None, {**some, key: 3 * f + 1}).rule.aggregation.f == f
    with pytest.raises(ConfigError, match=rf"f = {f}: if {f} of {3 * f} nodes .* or {3 * f + 1} nodes"):
        load_order(None, {**some, key: 3 * f})
    with pytest.raises(ConfigError, match=f"f = {f}: if 1 of {2 * f + 1} nodes stay away"):
        load_order(None, {**some, key: 2 * f + 1})


def test_what_an_order_waits_for_is_what_its_method_and_its_escrow_are_made_for():
    order = load_order(None, {"run.nodes": 0, "run.least_nodes": 7})
    assert (order.least_nodes, order.seats, order.start_within_s) == (7, 7, 86_400)
    assert order.rule.aggregation.f == 2
    named = load_order(None, {"run.nodes": 7})
    assert named.start_within_s == 0 and named.worst_case_units() == order.worst_case_units()


# ---- money ----


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"accept.share": 0.2}, "accept] share = 0.2: expected both or neither"),
        ({"accept.held_out": {"1": 2.5}}, "accept] share = 0.0: expected both or neither"),
        ({"accept.share": 0.2, "accept.held_out": {"7": 2.5}}, "no such epoch; epochs are 0 to 6"),
        ({"accept.share": 0.2, "accept.held_out": {"01": 2.5}}, "no such epoch; epochs are 0 to 6"),
        ({"accept.share": 0.6, "accept.held_out": {"1": 2.5}}, "share = 0.6: expected at most 0.5"),
        ({"accept.share": 0.2, "accept.held_out": {"1": 0.0}}, "1 = 0.0: expected more than 0.0"),
        (
            {"accept.acc": {"1": 0.5}, "evaluate.choices": ITEMS},
            "accept] share = 0.0: expected both or neither",
        ),
        (
            {"accept.share": 0.2, "accept.acc": {"1": 0.5}},
            "accuracy needs items; expected [evaluate] choices",
        ),
        ({"accept.share": 0.2, "accept.acc_norm": {"1": 0.5}}, "accuracy needs items; expected [evaluate]"),
        ({"accept.share": 0.2, "accept.acc": {"7": 0.5}}, "acc] 7 = 0.5: no such epoch; epochs are 0 to 6"),
        ({"accept.share": 0.2, "accept.acc": {"1": 1.1}}, "1 = 1.1: expected at most 1"),
        ({"accept.share": 0.2, "accept.acc_norm": {"1": 0.0}}, "1 = 0.0: expected more than 0"),
        ({"evaluate.choices": "none.jsonl"}, "none.jsonl: cannot be read"),
    ],
)
def test_a_share_of_the_price_depends_on_losses_and_accuracies_after_epochs_of_the_run(keys, reason):
    with pytest.raises(ConfigError, match=re.escape(reason)):
        load_order(None, keys)


def test_milestones_ascend_by_epoch_in_millionths():
    order = load_order(
        None, {"accept.share": 0.25, "accept.sequences": 7, "accept.held_out": {"5": 2.5, "2": 3.000001}}
    )
    assert accept_spec(order) == AcceptSpec(
        share_ppm=250_000,
        sequences=7,
        milestones=(
            Milestone(epoch=2, most_loss_micro=3_000_001),
            Milestone(epoch=5, most_loss_micro=2_500_000),
        ),
    )
    assert accept_spec(load_order(None)) == NO_ACCEPT


def test_an_epoch_that_several_keys_name_has_one_milestone_with_each_bound():
    order = load_order(
        None,
        {
            "evaluate.choices": ITEMS,
            "accept.share": 0.25,
            "accept.held_out": {"2": 3.0},
            "accept.acc": {"2": 0.333333, "5": 1.0},
            "accept.acc_norm": {"0": 0.5, "5": 0.25},
        },
    )
    assert accept_spec(order).milestones == (
        Milestone(epoch=0, most_loss_micro=LOSS_MICRO_MAX, least_acc_norm_ppm=500_000),
        Milestone(epoch=2, most_loss_micro=3_000_000, least_acc_ppm=333_333),
        Milestone(
            epoch=5, most_loss_micro=LOSS_MICRO_MAX, least_acc_ppm=1_000_000, least_acc_norm_ppm=250_000
        ),
    )


def test_the_worst_case_is_what_settlement_would_charge_epoch_by_epoch():
    order = load_order(
        None,
        {"run.rounds": 25, "run.nodes": 3, "budget.price_per_mtoken": 333_333, "budget.epoch_rounds": 10},
    )
    tokens = 3 * 4 * 128

    charged = [rounds * tokens * 333_333 // 10**6 for rounds in (10, 10, 5)]

    assert order.worst_case_units() == sum(charged)
    assert order.epoch_units_max() == max(charged)
    assert order.epochs == 3


def test_an_automatic_budget_is_the_worst_case_and_five_percent_rounded_up():
    order = load_order(None, {"run.rounds": 1, "run.nodes": 1, "budget.price_per_mtoken": 20_507})

    assert order.worst_case_units() == 10
    assert order.budget_units() == 11


def test_a_budget_of_exactly_the_worst_case_is_enough():
    assert load_order(None, {"budget.amount": 3_584_000}).budget_units() == 3_584_000


@given(st.integers(0, 10**9))
def test_scaling_inverts_writing_a_number_with_decimals(micro):
    assert scaled(float(f"{micro // 10**6}.{micro % 10**6:06d}"), 6) == micro


@pytest.mark.parametrize(
    ("number", "decimals", "expected"),
    [(0.95, 6, 950_000), (2e-3, 9, 2_000_000), (1e-9, 9, 1), (30, 3, 30_000), (1e6, 6, 10**12)],
)
def test_scaling_is_exact(number, decimals, expected):
    assert scaled(number, decimals) == expected


@pytest.mark.parametrize(("number", "decimals"), [(0.1 + 0.2, 6), (1e-7, 6), (1 / 3, 9), (0.0005, 3)])
def test_scaling_never_rounds(number, decimals):
    with pytest.raises(ValueError, match=f"at most {decimals} decimals"):
        scaled(number, decimals)


@given(st.integers(-(10**18), 10**18))
def test_amounts_are_shown_to_the_last_unit(units):
    assert int(money_text(units).replace(",", "").replace(".", "")) == units


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1_000, "1.0 kB"),
        (999_949, "999.9 kB"),
        (999_951, "1.0 MB"),
        (999_951_000, "1.0 GB"),
        (5 * 10**12, "5000.0 GB"),
    ],
)
def test_a_size_is_shown_in_the_unit_that_leaves_it_below_a_thousand(count, text):
    assert bytes_text(count) == text


@pytest.mark.parametrize(("nodes", "rounds", "most"), [(4, 19, 0), (4, 39, 1), (24, 40, 2)])
def test_known_answer_tasks_are_one_step_in_twenty_of_each_node_at_most(nodes, rounds, most):
    choices = {"run.nodes": nodes, "run.rounds": rounds}
    load_order(None, {**choices, "verify.known_answers": most})
    with pytest.raises(ConfigError, match="at most one step in 20 can be a known-answer task"):
        load_order(None, {**choices, "verify.known_answers": most + 1})
