"""Appeals of steps of different size: the program is that of the sequences that the commit counts for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from assay.node.trainer import Trainer
from assay.protocol.params import RunSpec
from assay.testing.specs import FLOAT32_WHOLE, a_rule
from assay.training.data.shards import write_tokens
from assay.training.model.loss import use_one_thread
from assay.training.model.presets import gpt_spec
from assay.verifier.appeal.fetch import evidence_bytes_max
from assay.verifier.appeal.program import operator_count, why_not
from tests.faulty import a_faulty_trainer
from tests.verifier.appeal.test_appeal import Party, a_party
from tests.verifier.appeal.test_inner_steps import STEPS
from tests.verifier.audit.test_displacement import measured_class
from tests.verifier.audit.test_exact import TEXT, a_run

pytestmark = pytest.mark.slow

RULES = {
    "demo": a_rule(sequences=1, sequences_max=3),
    "sparseloco": a_rule(
        "sparseloco",
        sequences=1,
        sequences_max=3,
        steps=STEPS,
        segment=STEPS,
        inner_lr_nano=2_000_000,
        keeps_moments=False,
    ),
}
each_method = pytest.mark.parametrize("method", RULES)


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    use_one_thread()


def of_the_most(behaviour: str, start: int, **arguments: Any) -> Trainer:
    """A trainer that has time for the largest step."""
    trainer: Any = a_faulty_trainer(behaviour, start, **arguments)
    trainer._step_tokens = lambda _left_ms: trainer.spec.most_tokens_per_step
    found: Trainer = trainer
    return found


def a_large_step(folder: Path, behaviour: str, method: str) -> Party:
    write_tokens(folder / "data", [TEXT])
    base: RunSpec = replace(a_run(), rule=RULES[method], compute=replace(FLOAT32_WHOLE, micro_sequences=1))
    limits = {} if method == "demo" else {"limits": lambda one: measured_class(one, steps=STEPS)}
    return a_party(folder, behaviour, base=base, trainer_of=of_the_most, **limits)


@each_method
def test_the_program_of_a_large_step_has_operators_for_each_of_its_sequences(
    tmp_path: Path, method: str
) -> None:
    party = a_large_step(tmp_path, "honest", method)
    commit = party.commit
    spec: Any = party.spec

    assert commit.tokens == spec.most_tokens_per_step
    assert len(party.program) == operator_count(spec, commit)
    assert operator_count(spec, replace(commit, tokens=spec.tokens_per_step)) < len(party.program)
    assert party.doubted() == (len(party.program) - 1, True)


@each_method
def test_who_claimed_more_than_it_trained_loses_at_the_finding(tmp_path: Path, method: str) -> None:
    party = a_large_step(tmp_path, "claims-more", method)

    assert party.doubted() == (len(party.program) - 1, False)


def test_no_program_decides_a_commit_that_counts_for_what_no_step_does(tmp_path: Path) -> None:
    party = a_large_step(tmp_path, "honest", "demo")
    none = replace(party.commit, tokens=party.commit.tokens + 1)

    assert "of no step of this run" in str(why_not(party.spec, party.limits, none))


def test_evidence_may_be_as_long_as_that_of_the_largest_step() -> None:
    large = replace(a_run(), rule=RULES["demo"])
    smaller = replace(large, rule=a_rule(sequences=1))
    equal = replace(large, rule=a_rule(sequences=3))

    assert evidence_bytes_max(smaller) < evidence_bytes_max(large) == evidence_bytes_max(equal)


@pytest.mark.parametrize(
    ("sizes", "most", "most_of_inner_steps"),
    [
        ({"vocabulary": 4096}, 15_016_836, 18_709_184),
        ({"width": 512}, 32_127_129, 80_335_827),
        ({"hidden": 4096}, 15_966_533, 21_113_361),
        ({"heads": 8, "context": 512}, 77_500_830, 212_292_708),
    ],
)
def test_the_most_bytes_of_evidence_are_the_same_for_every_juror(
    sizes: dict[str, int], most: int, most_of_inner_steps: int
) -> None:
    """Frozen: what one juror fetches and another refuses splits a jury."""
    small = {"layers": 1, "width": 8, "heads": 2, "context": 4, "vocabulary": 257, "hidden": 8}
    spec = replace(a_run(), model=gpt_spec(**(small | sizes)), rule=a_rule(sequences=1))
    steps = replace(spec, rule=a_rule("sparseloco", sequences=1, steps=3, segment=2))

    assert evidence_bytes_max(spec) == most
    assert evidence_bytes_max(steps) == most_of_inner_steps
