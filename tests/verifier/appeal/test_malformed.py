"""Malformed evidence costs a juror no computation: everything about it is checked before an operator runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from assay.protocol.auditing.audits import case_id_of
from assay.protocol.encoding.blob import blob_digest
from assay.protocol.encoding.codec import encode
from assay.protocol.errors import MalformedMessage
from assay.protocol.messages import Commit
from assay.protocol.types import Digest
from assay.training.codec.contribution import contribution_bytes_max
from assay.training.frozen import ALL_TRAINED
from assay.training.layout import layout_of
from assay.training.model.loss import use_one_thread
from assay.training.reference import referee
from assay.training.reference.narrowing import OPERATORS_MAX
from assay.training.reference.operators import run_one
from assay.verifier.appeal import answers
from assay.verifier.appeal.evidence import ShownArray, StepEvidence, evidence_of, holds, parse_evidence
from assay.verifier.appeal.program import operator_count, program_of
from assay.verifier.audit.messages import JudgeOperator
from tests.verifier.appeal.test_appeal import Party, a_party
from tests.verifier.appeal.test_inner_steps import a_node
from tests.verifier.appeal.test_kept_moments import a_keeper

RULES = {
    "a gradient": lambda folder: a_party(folder, "honest"),
    "inner steps": lambda folder: a_node(folder, "honest", "muloco"),
    "kept moments": lambda folder: a_keeper(folder, "honest", "muloco"),
}


@pytest.fixture(scope="module", params=RULES)
def party(request, tmp_path_factory) -> Party:
    use_one_thread()
    return RULES[request.param](tmp_path_factory.mktemp("party"))


@pytest.fixture
def computed(monkeypatch) -> list[str]:
    """The operators that jurors ran."""
    ran = list[str]()

    def counted(operator, inputs):
        ran.append(operator.name)
        return run_one(operator, inputs)

    monkeypatch.setattr(referee, "run_one", counted)
    return ran


def shown(party: Party) -> StepEvidence:
    """Evidence of the finding, as an honest node shows it."""
    index = len(party.program) - 1
    body = evidence_of(party.commit, party.program, party.sources, party.told, party.trace, index)
    return parse_evidence(body, case_id_of(party.commit))


def judged(party: Party, evidence: StepEvidence) -> bool:
    index = len(party.program) - 1
    positions = party.trace.positions[index], party.trace.positions[index + 1]
    return holds(party.spec, party.program, evidence, positions, party.tokens)


def test_the_one_operator_of_well_formed_evidence_is_computed(party, computed):
    assert judged(party, shown(party))
    assert computed == [party.program[-1].name]


def with_message(party: Party, update: bytes) -> StepEvidence:
    """Evidence of a node that committed to this message."""
    evidence = shown(party)
    return replace(evidence, update=update, commit=replace(party.commit, update=blob_digest(update)))


def test_a_message_that_is_none_of_its_rule_is_wrong_before_anything_is_computed(party, computed):
    update = party.sources.update
    most = contribution_bytes_max(party.spec.rule, layout_of(party.spec.model).blocks)
    for bent in (b"", update[:-1], update + b"\0", bytes(len(update)), b"\xff" * (most + 1)):
        assert not judged(party, with_message(party, bent))

    assert computed == []


def test_another_message_than_the_commits_shows_nothing_before_anything_is_computed(party, computed):
    with pytest.raises(MalformedMessage, match="message that is not the commit's"):
        judged(party, replace(shown(party), update=party.sources.update + b"\0"))

    assert computed == []


@pytest.mark.parametrize("name", ["outputs", "before", "after", "start", "end", "update"])
def test_a_part_of_another_size_or_other_bytes_shows_nothing_before_anything_is_computed(
    party, computed, name
):
    evidence = shown(party)
    data = getattr(evidence, name)
    if not data and name in ("start", "end"):
        pytest.skip("this rule has none")
    flipped = bytes([*data[:2], data[2] ^ 1, *data[3:]]) if data else b"\0"
    for bent in {data[:-4], data + bytes(4), flipped} - {data}:
        with pytest.raises(MalformedMessage):
            judged(party, replace(evidence, **{name: bent}))

    assert computed == []


def test_sizes_are_told_before_anything_is_hashed(party, monkeypatch):
    def never(*_):
        raise AssertionError("hashed")

    evidence = shown(party)
    monkeypatch.setattr("assay.verifier.appeal.evidence.private_leaves", never)
    monkeypatch.setattr("assay.verifier.appeal.evidence.state_digest", never)
    monkeypatch.setattr("assay.verifier.appeal.evidence.roots_of", never)
    size = len(evidence.after)
    with pytest.raises(MalformedMessage, match=f"{size - 4} bytes of after, expected {size}"):
        judged(party, replace(evidence, after=evidence.after[:-4]))


def test_other_outputs_than_the_operator_reads_show_nothing_before_anything_is_computed(party, computed):
    evidence = shown(party)
    one = ShownArray(name=party.program[0].name, dtype="<f4", shape=(1,), data=bytes(4))
    for arrays in ((*evidence.arrays, one), evidence.arrays[1:] or (one,)):
        with pytest.raises(MalformedMessage, match=r"outputs, expected the operator's \d+"):
            judged(party, replace(evidence, arrays=arrays))

    assert computed == []


def test_values_that_are_not_finite_show_nothing_before_anything_is_computed(party, computed):
    evidence = shown(party)
    nan = np.full(len(evidence.after) // 4, np.nan, np.float32).tobytes()
    with pytest.raises(MalformedMessage, match="finite"):
        judged(party, replace(evidence, after=nan))

    assert computed == []


def test_an_operator_that_the_program_does_not_have_is_wrong_before_anything_is_computed(party, computed):
    for index in (-1, len(party.program)):
        assert not judged(party, replace(shown(party), index=index))
    assert computed == []


def test_a_claim_of_another_length_or_about_another_operator_makes_no_program(party, tmp_path, monkeypatch):
    """A program has up to 262,144 operators."""
    made = list[Commit]()

    def making(spec, limits, commit):
        made.append(commit)
        return program_of(spec, limits, commit)

    monkeypatch.setattr(answers, "program_of", making)
    path, index = tmp_path / "evidence", len(party.program) - 1
    path.write_bytes(encode(shown(party)))
    request = JudgeOperator(
        case_id=Digest(case_id_of(party.commit)), operators=len(party.program), index=index,
        start=party.trace.positions[index], end=party.trace.positions[index + 1], evidence=str(path),
    )  # fmt: skip

    def judge(**changes):
        given = replace(request, **changes)
        return answers.is_right(party.spec, party.limits, given, party.tokens, ALL_TRAINED)

    assert operator_count(party.spec, party.commit) == len(party.program)
    assert not judge(operators=len(party.program) + 1)
    with pytest.raises(MalformedMessage, match=f"operator {index}, expected {index + 1}"):
        judge(index=index + 1)
    assert made == []
    assert judge() and made == [party.commit]


def test_a_file_has_room_for_the_digests_of_the_longest_program_and_no_more(party):
    most, case_id = 32 * OPERATORS_MAX, case_id_of(party.commit)
    largest = replace(shown(party), outputs=bytes(most))

    assert parse_evidence(encode(largest), case_id) == largest
    with pytest.raises(ValueError, match=f"outputs: expected bytes of at most {most}"):
        encode(replace(largest, outputs=bytes(most + 1)))


def test_evidence_has_no_source_that_its_operator_does_not_read(party):
    """All of them are the finding's: of kept moments there is no other operator."""
    whole = {"before", "after", "end", "update", "start"}
    for index in range(0, len(party.program) - 1, 50):
        body = evidence_of(party.commit, party.program, party.sources, party.told, party.trace, index)
        evidence = parse_evidence(body, case_id_of(party.commit))
        assert not any(getattr(evidence, name) for name in whole)
    finding = {name for name in whole if getattr(shown(party), name)}
    steps = party.spec.rule.segments > 0
    assert finding == whole - ({"start"} if len(party.program) > 1 else set()) - (set() if steps else {"end"})
