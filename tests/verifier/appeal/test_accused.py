"""The accused's moves at the edges of their times, on a chain in memory."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from assay.chain.state import AppealPhase, CasePhase, DefencePhase
from assay.protocol.errors import ConfigError
from assay.training.model.loss import use_one_thread
from assay.training.reference.narrowing import claimed
from assay.verifier.appeal.accused import Step, conduct, step_of
from tests.verifier.appeal.test_appeal import a_party

VETO_ENDS, UNTIL, ANSWER_BY = 100, 200, 300  # agreed seconds


@pytest.fixture(scope="module")
def step(tmp_path_factory) -> Step:
    use_one_thread()
    party = a_party(tmp_path_factory.mktemp("honest"), "honest")
    return step_of(party.spec, party.limits, party.commit, party.sources)


class ChainAt:
    """A chain on which this case was opened, at one time; it knows one defence, if any."""

    def __init__(self, now: int, *, phase=AppealPhase.NONE, defence=None, case=CasePhase.OPEN) -> None:
        self.now, self.phase, self.defence, self.moves = now, phase, defence, []
        self.case_phase = case

    def case(self, _case_id):
        return SimpleNamespace(phase=self.case_phase, veto_ends_at=VETO_ENDS)

    def timestamp(self) -> int:
        return self.now

    def appeal(self, _case_id):
        return SimpleNamespace(phase=self.phase, answer_by=ANSWER_BY, playing=int(self.defence is not None))

    def defences(self, _case_id):
        return [("0xdefender", self.defence, None)] if self.defence is not None else []

    def appeal_case(self, _case_id, count, positions) -> None:
        self.moves.append(("appeal", count, positions))
        self.phase = AppealPhase.OPEN

    def cut_part(self, _case_id, account, positions) -> None:
        self.moves.append(("cut", account, positions))

    def conclude_appeal(self, _case_id) -> None:
        self.moves.append(("conclude",))
        self.phase = AppealPhase.WON


class Stopped(Exception):
    """Ends a conduct that waits."""


def stop(_seconds: float) -> None:
    raise Stopped


def moves(chain: ChainAt, step: Step, save=None) -> list[object]:
    """What the accused does at one look."""
    try:
        list(conduct(chain, step, save, stop))
    except Stopped:
        chain.moves.append("waits")
    return chain.moves


def test_a_case_is_appealed_until_its_veto_window_ends_and_no_second_longer(step):
    count = len(step.program)
    appealed = ("appeal", count, claimed(step.trace.positions, 0, count))
    assert moves(ChainAt(VETO_ENDS - 1), step) == [appealed, "waits"]
    for chain in (ChainAt(VETO_ENDS), ChainAt(VETO_ENDS - 1, case=CasePhase.VETOED)):
        with pytest.raises(ConfigError, match="cannot be appealed any more"):
            moves(chain, step)
        assert chain.moves == []


def test_a_part_is_cut_until_its_time_ends_and_no_second_longer(step):
    part = SimpleNamespace(phase=DefencePhase.CUT, until=UNTIL, first=3, last=9)
    cut = ("cut", "0xdefender", claimed(step.trace.positions, 3, 9))
    for now, expected in ((UNTIL - 1, [cut, "waits"]), (UNTIL, ["waits"])):
        assert moves(ChainAt(now, phase=AppealPhase.OPEN, defence=part), step) == expected


def test_an_appeal_is_concluded_once_nobody_can_defend_any_more(step):
    chosen = SimpleNamespace(phase=DefencePhase.CHOOSE, until=UNTIL, first=0, last=9)
    for now, defence, expected in (
        (ANSWER_BY - 1, None, ["waits"]),
        (ANSWER_BY, None, [("conclude",)]),
        (ANSWER_BY, chosen, ["waits"]),
    ):
        assert moves(ChainAt(now, phase=AppealPhase.OPEN, defence=defence), step) == expected


def test_jurors_are_shown_an_operator_once_and_of_outputs_that_it_does_not_read_nothing_is_kept(step):
    index = len(step.program) - 1
    jury, saved = SimpleNamespace(phase=DefencePhase.JURY, until=UNTIL, first=index, last=index + 1), []

    def save(at: int, body: bytes):
        saved.append((at, len(body)))
        return "evidence"

    looks = iter((None, None))

    def twice(_seconds: float) -> None:
        if next(looks, stop) is stop:
            raise Stopped

    with pytest.raises(Stopped):
        list(conduct(ChainAt(UNTIL, phase=AppealPhase.OPEN, defence=jury), step, save, twice))
    assert [at for at, _ in saved] == [index]

    read = set(step.program[index].inputs)
    for operator, output in zip(step.program, step.outputs(index), strict=False):
        assert (output.size > 0) == (operator.name in read)
