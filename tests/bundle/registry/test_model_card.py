"""Model card: its front matter is what the hub reads, and the licence is the buyer's choice or none."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from huggingface_hub import ModelCard

from assay.bundle.finished import Accuracy, Finished, HeldOut
from assay.bundle.receipts.rounds import facts_of
from assay.bundle.registry.model_card import model_card
from assay.bundle.report.training import Beside, TrainingReport, report_of_facts
from assay.participant.declarations import Declarations
from assay.training.data.choices import Choices, tokenised
from assay.training.data.tokenizer import byte_tokenizer
from assay.training.methods.presets import METHODS
from tests.bundle.test_write import finished
from tests.observer.ledger_service.test_bookkeeper import LINKS, TABLES

HELD_OUT = HeldOut(first_micro=5_500_000, last_micro=3_250_049, tokens=4096)


@cache
def a_report(held_out: HeldOut | None = None) -> TrainingReport:
    run = finished()
    facts = tuple(facts_of(run.spec, run.run_id, LINKS, TABLES))
    commits = [commit for one in facts for commit in one.commits]
    sizes = {**{commit.update: 10 for commit in commits}, **{one.aggregate: 20 for one in facts}}
    times = [link.manifest.time_s for link in LINKS]
    return report_of_facts(
        (run.spec.name, run.run_id),
        run.ending.rounds,
        facts,
        times,
        TABLES,
        sizes,
        Beside(held_out=held_out),
    )


def front_matter(run: Finished, report: TrainingReport) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(model_card(run, report).split("---\n")[1])
    return found


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        ("", {}),
        ("Apache-2.0", {"license": "apache-2.0"}),
        ("Acme's: own, terms #1", {"license": "other", "license_name": "Acme's: own, terms #1"}),
    ],
)
def test_the_licence_is_the_one_the_buyer_chose_and_never_that_of_the_data(
    declared: str, expected: dict[str, str]
) -> None:
    run = replace(finished(), declarations=Declarations(licence=declared))

    found = front_matter(run, a_report())

    assert {name: found[name] for name in ("license", "license_name") if name in found} == expected
    assert "| Data licence | none |" in model_card(run, a_report())


def test_the_model_index_has_the_held_out_loss_and_is_left_out_where_nobody_measured_it() -> None:
    data: Any = ModelCard(model_card(finished(), a_report(HELD_OUT))).data  # as the hub's own client reads it
    (result,) = data.eval_results

    assert (data.model_name, result.task_type, result.dataset_split) == (
        "tiny",
        "text-generation",
        "held out",
    )
    assert (result.metric_type, result.metric_value, result.verified) == ("loss", 3.25, False)
    assert "model-index" not in front_matter(finished(), a_report())
    assert "Nothing was measured on the held-out tokens." in model_card(finished(), a_report())


def test_the_model_index_has_the_accuracies_on_the_items_that_the_spec_names() -> None:
    choices = Choices(
        name="sums: easy.jsonl", items=(tokenised("2 + 3 =", ("5", "4"), 0, byte_tokenizer()),) * 8
    )
    run = finished()
    spec, inputs = replace(run.spec, choices=choices.spec()), replace(run.inputs, choices=choices)
    right = Accuracy(items=8, acc_first=1, acc_last=7, acc_norm_first=2, acc_norm_last=5)
    report = a_report(replace(HELD_OUT, accuracy=right))

    card = model_card(replace(run, spec=spec, inputs=inputs), report)

    data: Any = ModelCard(card).data
    _, acc, acc_norm = data.eval_results
    assert acc.dataset_name == acc_norm.dataset_name == "sums: easy.jsonl"
    assert acc.dataset_type == f"assay:{choices.spec().digest.hex()}"
    assert (acc.metric_type, acc.metric_value, acc.verified) == ("acc", 0.875, False)
    assert (acc_norm.metric_type, acc_norm.metric_value) == ("acc_norm", 0.625)
    assert "| acc, before and after | 0.1250 (1 of 8) to 0.8750 (7 of 8) |" in card
    assert "| acc_norm, before and after | 0.2500 (2 of 8) to 0.6250 (5 of 8) |" in card
    assert "on the 8 items of" in card
    assert "acc" not in model_card(run, a_report(HELD_OUT)).split("accepted")[0].split("---")[1]


def test_the_card_shows_the_curve_and_the_final_figures() -> None:
    card = model_card(finished(), a_report(HELD_OUT))

    assert "](training.png)" in card
    assert "| held-out loss, before and after | 5.5000 to 3.2500 |" in card
    assert "| steps accepted | 18 |" in card


def test_a_name_that_is_yaml_stays_a_name() -> None:
    run = replace(finished(), spec=replace(finished().spec, name='x"\nlicense: mit\n---'))

    text = model_card(run, a_report(HELD_OUT))

    assert yaml.safe_load(text.split("\n---\n")[0])["model_name"] == 'x"\nlicense: mit\n---'


def test_a_card_says_that_nodes_trained_on_data_which_only_they_have(monkeypatch):
    run = finished()
    assert "seen nothing but the data named above" in model_card(run, a_report())
    monkeypatch.setattr(type(run.spec), "bringing_nodes", (run.spec.nodes[0].peer,))
    card = model_card(run, a_report())
    assert "1 of its nodes trained on data that only they have" in card and "nothing but" not in card


def test_a_card_names_the_method_that_trained_the_model() -> None:
    run = finished()
    assert "nodes with DeMo." in model_card(run, a_report())
    for name in ("muloco", "streaming-diloco"):
        spec = replace(run.spec, rule=METHODS[name])
        other = replace(run, spec=spec)
        assert f"nodes with {name}." in model_card(other, a_report())
        assert name in front_matter(other, a_report())["tags"]
