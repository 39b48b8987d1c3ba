"""Registry: the entry says what the chain says, in one spelling, and leaves open what nobody knows."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from assay.bundle.finished import Finished
from assay.bundle.receipts.rounds import facts_of
from assay.bundle.registry.document import Entry, entry_json, read_entry
from assay.bundle.registry.entry import registry_entry
from assay.bundle.registry.files import FOLDER, registry_files
from assay.ledger.journal.round_facts import RoundFacts
from assay.ledger.settlement.payouts import Unpaid, UnpaidReason
from assay.participant.declarations import ACCELERATOR_FLOP_PER_JOULE, Declarations
from assay.protocol.encoding.json_text import canonical_json, plain
from assay.protocol.types import NO_DIGEST
from assay.testing.members import RUN_ID, a_digest
from assay.training.model.flops import flop_per_token
from tests.bundle.test_write import finished

WEIGHTS = a_digest("weights")
STEP_TOKENS = 2 * 16  # two sequences of 16


def facts() -> tuple[RoundFacts, ...]:
    run = finished()
    tables = {epoch: one.settlement for epoch, one in run.settled.items()}
    return tuple(facts_of(run.spec, RUN_ID, run.links, tables))


FACTS = facts()  # of the chain, whatever else a test changes about the run


def entry_of(run: Finished) -> Entry:
    return registry_entry(run, FACTS, WEIGHTS)


def files_of(run: Finished) -> dict[str, bytes]:
    return registry_files(run, entry_of(run))


def with_unpaid(run: Finished, *steps: Unpaid) -> Finished:
    table = replace(run.settled[0].settlement, unpaid=steps)
    return replace(run, settled={**run.settled, 0: replace(run.settled[0], settlement=table)})


def test_two_who_hold_the_same_run_write_the_same_bytes():
    assert files_of(finished()) == files_of(finished())
    entry = entry_of(finished())
    assert read_entry(entry_json(entry)) == entry


def test_work_is_split_into_what_was_paid_what_was_not_and_what_was_recomputed():
    run = finished()
    node = run.settled[0].settlement.rows[0].peer
    unit = flop_per_token(run.spec.model)
    verdicts = [s.verdict for link in run.links for s in link.manifest.verdicts]
    recomputed = sum(verdict.exec_class != NO_DIGEST for verdict in verdicts)

    entry = entry_of(with_unpaid(run, Unpaid(round=1, node=node, reason=UnpaidReason.UNJUDGED)))

    assert (entry.tokens.accepted, entry.tokens.discarded) == (17 * STEP_TOKENS, STEP_TOKENS)
    assert entry.tokens.discarded_steps_by_reason == {"unjudged": 1}
    assert entry.flop.accepted == 17 * STEP_TOKENS * unit
    assert entry.flop.discarded == STEP_TOKENS * unit
    assert entry.flop.verification == recomputed * STEP_TOKENS * unit > 0


def test_passes_over_the_data_count_discarded_tokens_and_leave_out_the_validation_set():
    run = finished()
    run = with_unpaid(
        run, Unpaid(round=1, node=run.settled[0].settlement.rows[0].peer, reason=UnpaidReason.UNJUDGED)
    )
    data = replace(run.spec.data, tokens=run.spec.data.validation_tokens + 7)

    told = entry_of(replace(run, spec=replace(run.spec, data=data))).tokens

    assert told.in_training_data == 7
    assert told.epochs_over_data_milli == 18 * STEP_TOKENS * 1000 // 7


def test_a_verdict_that_recomputed_nothing_counts_no_work():
    run = finished()
    index = next(i for i, one in enumerate(FACTS) if one.ruled)
    audit = FACTS[index].ruled[0]
    idle = replace(audit, verdicts=tuple(replace(v, exec_class=NO_DIGEST) for v in audit.verdicts))
    changed = replace(FACTS[index], ruled=(idle, *FACTS[index].ruled[1:]))

    entry = registry_entry(run, (*FACTS[:index], changed, *FACTS[index + 1 :]), WEIGHTS)

    less = len(audit.verdicts) * STEP_TOKENS * flop_per_token(run.spec.model)
    assert entry.flop.verification == entry_of(run).flop.verification - less


def test_energy_is_an_estimate_by_a_named_figure_and_never_measured():
    flop = entry_of(finished()).flop
    spent = flop.accepted + flop.discarded + flop.verification

    default = entry_of(finished()).energy
    own = entry_of(
        replace(finished(), declarations=Declarations(flop_per_joule=1000, flop_source="our wattmeter, once"))
    ).energy

    assert (default.is_measured, default.nodes_metered) == (False, 0)
    assert default.joules == -(-spent // ACCELERATOR_FLOP_PER_JOULE)
    assert "assumed, not measured" in default.flop_per_joule_source
    assert own.joules == -(-spent // 1000)
    assert own.flop_per_joule_source == "our wattmeter, once"


@pytest.mark.parametrize(
    ("base_flop", "alerts"),
    [
        (None, 0),
        (10**22, 0),
        (5 * 10**22 - 10**10, 0),
        (5 * 10**22, 1),
        (9 * 10**22, 2),
        (5 * 10**24, 3),
        (10**25, 4),
    ],
)
def test_the_base_models_compute_counts_towards_the_acts_thresholds(base_flop: int | None, alerts: int):
    run = finished()
    spec = replace(run.spec, model=replace(run.spec.model, base=a_digest("base")))

    told = entry_of(replace(run, spec=spec, declarations=Declarations(base_flop=base_flop))).thresholds

    assert len(told.alerts) == alerts
    assert told.is_lower_bound == (base_flop is None)
    assert told.exceeds_a_third_of_base == (None if base_flop is None else False)


def test_a_third_of_the_bases_compute_is_exceeded_by_one_operation_more():
    run = finished()
    spec = replace(run.spec, model=replace(run.spec.model, base=a_digest("base")))
    trained = entry_of(run).flop.trained

    told = [
        entry_of(replace(run, spec=spec, declarations=Declarations(base_flop=flop))).thresholds
        for flop in (3 * trained, 3 * trained - 1)
    ]

    assert [one.exceeds_a_third_of_base for one in told] == [False, True]


def test_alerts_are_raised_at_half_and_nine_tenths_of_a_threshold_and_not_one_operation_before():
    run = finished()
    spec = replace(run.spec, model=replace(run.spec.model, base=a_digest("base")))
    trained = entry_of(run).thresholds.training_flop
    rest, most = 10**23 // 2 - trained, 9 * 10**22 - trained

    def alerts(base_flop: int) -> list[str]:
        told = entry_of(replace(run, spec=spec, declarations=Declarations(base_flop=base_flop))).thresholds
        return list(told.alerts)

    assert alerts(rest - 1) == []
    assert alerts(rest) == alerts(most - 1) == ["50 % of 10^23 FLOP reached"]
    assert alerts(most)[1:] == ["90 % of 10^23 FLOP reached"]


def test_participants_are_keys_and_accounts_with_what_counted_of_each():
    run = finished()
    entry = entry_of(run)
    people = entry.participants

    assert [one.peer for one in people.operators] == [m.peer.hex() for m in run.spec.nodes]
    assert [one.accepted for one in people.operators] == [6, 6, 6]
    assert all(one.banned is None for one in people.operators)
    assert sum(one.verdicts for one in people.verifiers) == entry.audits.verdicts["matched"]


def test_the_settlement_is_what_the_results_on_chain_say():
    run = finished()
    told = entry_of(run).settlement

    assert [one.root for one in told.epochs] == [run.settled[e].result.root.hex() for e in (0, 1)]
    assert [one.result for one in told.epochs] == [run.settled[e].digest.hex() for e in (0, 1)]
    assert sum(told.paid.values()) == sum(one.total for one in told.epochs)


def test_the_record_names_the_inventory_and_the_spec_that_the_entry_has():
    entry = entry_of(finished())

    assert entry.record is not None
    assert entry.data.digest == f"sha256:{entry.record.data_inventory_hash.hex()}"
    assert entry.run.spec == entry.record.config_hash.hex()
    assert entry.settlement.epochs[-1].result == entry.record.last_result.hex()


def test_a_model_without_a_record_has_no_record_file():
    files = files_of(replace(finished(), registered=None))

    assert "record.json" not in files
    assert json.loads(files["entry.json"])["record"] is None


def test_the_buyers_word_is_read_back_as_it_was_said():
    declarations = Declarations(
        provider="Acme", base_flop=10**24, flop_per_joule=5, flop_source="a meter", version="1"
    )

    assert Declarations(**plain(declarations)) == declarations


@pytest.mark.parametrize(
    "said",
    [
        {"provider": "two\nlines"},
        {"provider": "x" * 513},
        {"provider": 7},
        {"flop_per_joule": 0, "flop_source": "a meter"},
        {"flop_per_joule": True, "flop_source": "a meter"},
        {"flop_per_joule": 5},
        {"base_flop": -1},
        {"base_flop": 1.5},
        {"unknown": 1},
    ],
)
def test_a_word_that_no_entry_can_hold_is_refused(said: dict[str, Any]):
    with pytest.raises((ValueError, TypeError)):
        Declarations(**said)


def test_a_float_has_no_spelling():
    with pytest.raises(TypeError, match="float"):
        canonical_json({"a": [1, 2.5]})


def test_the_bundle_has_every_file(tmp_path: Path):
    from assay.bundle.write import write_bundle

    write_bundle(tmp_path / "bundle", finished())

    assert {path.name for path in (tmp_path / "bundle" / FOLDER).iterdir()} == set(files_of(finished()))
