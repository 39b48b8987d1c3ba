"""The table says what was tried, machines can read it, and honest work is believed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import assay.verifier.audit.exact
from assay.cli.main import app
from assay.redteam.attack import without
from assay.redteam.false_positives import Honest, audit_honest, total
from assay.redteam.table import ATTACKS, as_markdown, named, table_json, try_all
from assay.training.model.loss import use_one_thread
from assay.training.transform.compress import transition


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    use_one_thread()


def test_honest_steps_are_believed_block_by_block(tmp_path: Path) -> None:
    found = audit_honest(3, 5, tmp_path)

    assert (found.audits, found.blocks, found.false_slashes) == (6, 6 * 58, 0)
    assert found.block_bound == pytest.approx(3 / found.blocks, rel=0.01)


def test_an_honest_step_that_is_not_believed_is_counted(tmp_path: Path) -> None:
    def other_hardware(compress: Any, before: Any, x: Any) -> Any:
        return transition(compress, before, x * (1 + 2**-20))

    with without(assay.verifier.audit.exact, "transition", other_hardware):
        assert audit_honest(1, 5, tmp_path).false_slashes == 2


def test_code_paths_add_up() -> None:
    whole = total([Honest("a", 2, 30, 0), Honest("b", 3, 40, 1)])
    assert (whole.path, whole.audits, whole.blocks, whole.false_slashes) == ("a, b", 5, 70, 1)


def test_a_row_has_its_fields_and_no_others() -> None:
    rows = try_all(named("index bomb"), 2)
    plain = json.loads(table_json(rows, [Honest("avx2", 2, 30, 0)]))

    assert plain["honest"] == {"audits": 2, "blocks": 30, "false_slashes": 0}
    assert [sorted(row) for row in plain["attacks"]] == [
        ["cost", "defence", "detection_rate", "harm", "name", "verdict"]
    ]
    assert plain["attacks"][0]["detection_rate"] == 1.0
    assert plain["attacks"][0]["verdict"] == "caught"
    assert "| 23 | index bomb |" in as_markdown(rows, [Honest("avx2", 2, 30, 0)])


def test_the_command_prints_json_for_one_attack() -> None:
    done = CliRunner().invoke(app, ["redteam", "--quick", "--json", "--attack", "index bomb"])

    assert done.exit_code == 0, done.output
    assert [row["name"] for row in json.loads(done.stdout)["attacks"]] == ["index bomb"]


def test_a_name_that_no_attack_has_is_refused() -> None:
    assert CliRunner().invoke(app, ["redteam", "--attack", "no such thing"]).exit_code != 0


def test_all_attacks_are_named_by_nothing() -> None:
    assert named("") == ATTACKS
