"""The summary: exact money, and an invariant that breaks for every way things can be wrong."""

from __future__ import annotations

import io
import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from rich.console import Console

from assay.devnet.summary import (
    AuditTotals,
    BooksCheck,
    Losses,
    NodeResult,
    Summary,
    VerifierResult,
    finite,
    invariants,
    read_summary,
    summary_json,
    wire_figures,
)  # fmt: skip
from assay.devnet.tables import (
    money_table,
    nodes_table,
    places_table,
    report,
    training_table,
    verifiers_table,
)
from assay.ledger.queries.report import Money
from assay.ledger.settlement.ending import Ending

SLASHES = ("slashed", "burnt", "to_buyer", "to_challengers")


def a_node(number: int, **facts: object) -> NodeResult:
    none = {"accepted": 0, "audits_passed": 0, "audits_failed": 0, "slashed": 0, "paid": 0}
    return NodeResult(**{"peer": bytes([number] * 32).hex(), "behaviour": "honest", **none, **facts})


def a_summary(**changes: object) -> Summary:
    """Two honest nodes, one cheater, odd amounts."""
    parts = {
        "run_id": "72" * 32,
        "deployment_id": "64" * 32,
        "rounds": 60,
        "rounds_finalised": 60,
        "ending": Ending(
            rounds=60, rounds_ordered=60, epochs_funded=6, closed_by=None, closed_block=None
        ),
        "unsettled_steps": 0,
        "wall_s": 151.2,
        "params": 870_656,
        "loss": Losses(first=5.6, last=2.6, validation_first=5.61, validation_last=2.71),
        "state_agreement": True,
        "record": "c6665af2" * 8,
        "wire": wire_figures(129, 129 * 8070, 129 * 213 * 32, 870_656),
        "audits": AuditTotals(drawn=48, passed=47, failed=1, opening_bytes_max=1_100_000),
        "nodes": (
            a_node(1, accepted=60, audits_passed=20, paid=890_881),
            a_node(
                2, behaviour="stale-parameters", accepted=9, audits_passed=5, audits_failed=1,
                slashed=500_000_001,
            ),
            a_node(3, accepted=60, audits_passed=22, paid=890_880),
        ),
        "verifiers": tuple(
            VerifierResult(
                peer=bytes([n] * 32).hex(), behaviour="honest", votes=72, audits=12, slashed=0, paid=54_613
            )
            for n in (4, 5, 6)
        ),
        "money": Money(
            funded=3_225_600,
            paid_operators=1_781_761,
            paid_verifiers=163_839,
            fees=102_400,
            refunded=1_177_600,
            slashed=500_000_001,
            burnt=250_000_001,
            to_buyer=125_000_000,
            to_challengers=125_000_000,
        ),
        "ledger": BooksCheck(trial_balance=0, chain_matches_books=True),
    }  # fmt: skip
    return Summary(**{**parts, **changes})


def plain(summary: Summary) -> dict:
    return json.loads(summary_json(summary))


def test_a_run_in_which_everything_holds_is_ok():
    assert invariants(a_summary()) == []
    assert plain(a_summary())["ok"] is True


def test_a_model_without_a_record_breaks_a_run():
    assert invariants(a_summary(record=None)) == ["the model is not on record on chain"]


def test_the_summary_has_the_keys_that_others_read_and_is_strict_json():
    summary = plain(a_summary())

    assert list(summary) == [
        "run_id", "deployment_id", "rounds", "rounds_finalised", "ending", "unsettled_steps", "wall_s",
        "params", "loss",
        "state_agreement", "record", "wire", "audits", "nodes", "verifiers", "money", "ledger", "ok",
    ]  # fmt: skip
    assert set(summary["loss"]) == {
        "first",
        "last",
        "validation_first",
        "validation_last",
    }
    assert set(summary["wire"]) == {
        "bytes_per_node_round",
        "bits_per_coefficient",
        "reduction_vs_fp32_gradient",
    }
    assert set(summary["audits"]) == {"drawn", "passed", "failed", "opening_bytes_max"}
    node_keys = {"peer", "behaviour", "accepted", "audits_passed", "audits_failed", "slashed", "paid"}
    assert all(set(node) == node_keys for node in summary["nodes"])
    verifier_keys = {"behaviour", "peer", "votes", "audits", "slashed", "paid"}
    assert all(set(one) == verifier_keys for one in summary["verifiers"])
    assert set(summary["money"]) >= {
        "unit", "funded", "paid_operators", "paid_verifiers", "fees", "refunded", "burnt", "slashed",
    }  # fmt: skip
    assert set(summary["ledger"]) == {"trial_balance", "chain_matches_books"}
    assert read_summary(summary_json(a_summary())) == a_summary()


def test_figures_of_the_wire_follow_from_the_totals():
    assert asdict(a_summary().wire) == {
        "bytes_per_node_round": 8070.0,
        "bits_per_coefficient": 9.472,
        "reduction_vs_fp32_gradient": 431.6,
    }
    assert set(asdict(wire_figures(0, 0, 0, 870_656)).values()) == {0.0}


def broken(path: str, value: object) -> list[str]:
    """The invariants that do not hold once the value at `path` of a sound summary is another."""
    summary = plain(a_summary())
    at = summary
    *folders, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    for part in folders:
        at = at[part]
    at[last] = value(at[last]) if callable(value) else value
    return invariants(read_summary(json.dumps(summary)))


@pytest.mark.parametrize("by", [-1, 1])
@pytest.mark.parametrize(
    "key",
    [*("funded", "paid_operators", "paid_verifiers", "fees", "refunded"), *SLASHES],
)
def test_one_unit_too_many_or_too_few_anywhere_is_noticed(key, by):
    (first, *_) = broken(f"money.{key}", lambda units: units + by)

    assert first.startswith("money: ")


@pytest.mark.parametrize("path", ["nodes.0.paid", "nodes.1.slashed", "verifiers.2.paid"])
def test_participants_and_totals_must_agree_to_the_unit(path):
    (only,) = broken(path, lambda units: units + 1)

    assert only.startswith("money: ")


def test_money_that_moves_backwards_is_noticed_even_if_sums_agree():
    money = a_summary().money
    moved = replace(money, fees=money.fees - 200_000, refunded=money.refunded + 200_000)

    assert invariants(a_summary(money=moved)) == ["money: fees is -97600 units, below 0"]


def test_a_held_out_loss_that_a_run_does_not_minimise_may_rise():
    risen = Losses(first=0.9, last=0.5, validation_first=1.0, validation_last=1.5, is_minimised=False)

    assert invariants(a_summary(loss=risen)) == []
    assert read_summary(summary_json(a_summary(loss=risen))).loss == risen


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("rounds_finalised", 59, "59 rounds are final, expected 60"),
        ("rounds_finalised", 61, "61 rounds are final, expected 60"),
        ("unsettled_steps", 1, "1 accepted steps are in epochs without a final result"),
        ("state_agreement", False, "honest processes held different parameters"),
        ("loss.validation_last", 5.61, "validation loss went from 5.6100 to 5.6100, expected it to fall"),
        ("loss.validation_last", 5.62, "expected it to fall"),
        ("loss.validation_last", None, "validation loss is missing or not finite"),
        ("loss.validation_first", None, "validation loss is missing or not finite"),
        ("ledger.trial_balance", 1, "the trial balance is 1 units, expected 0"),
        ("ledger.trial_balance", -1, "the trial balance is -1 units, expected 0"),
        ("ledger.chain_matches_books", False, "the books differ from the chain"),
        (
            "nodes.1.behaviour",
            "honest",
            "node 02020202 (honest) did not cheat and was slashed 500000001 units",
        ),
        ("nodes.1.behaviour", "diverge", "node 02020202 (diverge) did not cheat and was slashed"),
        ("nodes.0.behaviour", "wrong-data", "node 01010101 (wrong-data) cheated and was not slashed"),
    ],
)
def test_each_thing_that_must_hold_is_missed_when_it_does_not(path, value, words):
    (only,) = broken(path, value)

    assert words in only


def test_a_fault_without_intent_need_not_be_slashed():
    assert broken("nodes.0.behaviour", "diverge") == []


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_becomes_null_and_breaks_the_run(loss):
    lost = Losses(first=5.6, last=finite(loss), validation_first=5.6, validation_last=finite(loss))
    summary = plain(a_summary(loss=lost))

    assert summary["loss"]["last"] is None
    assert summary["ok"] is False


# ---- tables ----


def drawn(*tables, width: int = 80) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width)
    for table in tables:
        console.print(table)
    return out.getvalue()


def test_tables_are_exact_to_the_last_unit():
    text = drawn(report(a_summary(), {}))

    for amount in ("3.225600", "1.781761", "0.163839", "500.000001", "250.000001", "0.890881", "0.054613"):
        assert amount in text


def test_the_nodes_table_names_the_cheater_and_what_it_lost():
    (line,) = [line for line in drawn(nodes_table(a_summary())).splitlines() if "02020202" in line]

    for cell in ("stale-parameters", " 9 ", " 5 ", " 1 ", "500.000001", "0.000000"):
        assert cell in line


@pytest.mark.parametrize("width", [40, 80, 140])
def test_tables_keep_inside_the_terminal(width):
    summary = a_summary()
    places = {
        "summary": Path.cwd() / "runs" / "quickstart" / "summary.json",
        "logs": Path("/elsewhere") / ("x" * 90),
    }
    text = drawn(
        training_table(summary),
        nodes_table(summary),
        verifiers_table(summary),
        money_table(summary),
        places_table(places),
        width=width,
    )

    assert max(map(len, text.splitlines())) <= width
    assert "runs/quickstart/summary.json" in text.replace("\n", "") or width < 80


def test_the_training_table_survives_a_run_that_went_wrong():
    loss = Losses(first=5.6, last=None, validation_first=5.6, validation_last=None)

    assert "not finite" in drawn(training_table(a_summary(loss=loss, state_agreement=False)))


def test_the_report_ends_with_what_does_not_hold():
    summary = a_summary(state_agreement=False)

    assert drawn(report(a_summary(), {})).splitlines()[-1] == "every invariant holds"
    assert drawn(report(summary, {})).splitlines()[-1] == "* honest processes held different parameters"


@pytest.mark.parametrize(
    ("behaviour", "audits", "slashed", "words"),
    [
        ("pass-all", 3, 0, "(pass-all) cheated and was not slashed"),
        ("honest", 3, 7, "(honest) did not cheat and was slashed 7 units"),
        ("never-open", 3, 7, "(never-open) did not cheat and was slashed 7 units"),
    ],
)
def test_an_auditor_is_slashed_if_and_only_if_it_cheated(behaviour, audits, slashed, words):
    found = invariants(
        with_verifiers(slashed, {"behaviour": behaviour, "audits": audits, "slashed": slashed})
    )

    assert [broken for broken in found if words in broken] == found != []


def test_a_cheating_auditor_that_was_slashed_or_never_asked_breaks_nothing():
    slashed, idle = {"behaviour": "accuse-all", "slashed": 5}, {"behaviour": "pass-all", "audits": 0}

    assert invariants(with_verifiers(5, slashed, idle)) == []


def with_verifiers(slashed: int, *changes: dict) -> Summary:
    """A summary in which the first verifiers are changed, and this much more was slashed."""
    summary = a_summary()
    first, money = summary.verifiers, summary.money
    changed = tuple(replace(one, **change) for one, change in zip(first, changes, strict=False))
    money = replace(money, slashed=money.slashed + slashed, burnt=money.burnt + slashed)
    return a_summary(verifiers=(*changed, *first[len(changed) :]), money=money)
