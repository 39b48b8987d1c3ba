"""The table says what was tried, machines can read it, and honest work is believed."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from typer.testing import CliRunner

import assay.verifier.audit.exact
import assay.verifier.audit.worker
from assay.cli.main import app
from assay.cli.result import document
from assay.cli.schema import schema_of
from assay.redteam.attack import without
from assay.redteam.nodes.false_positives import Honest, Judging, audit_honest, total
from assay.redteam.table import ATTACKS, AttackTable, as_markdown, named, try_all
from assay.training.model.loss import use_one_thread
from assay.training.transform.compress import transition
from assay.verifier.audit.tolerance import judged_blocks


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    use_one_thread()


def test_honest_steps_are_believed_block_by_block(tmp_path: Path) -> None:
    found = audit_honest(3, 5, tmp_path)

    assert (found.audits, found.blocks, found.false_slashes) == (6, 6 * 58, 0)
    assert found.block_bound == pytest.approx(3 / found.blocks, rel=0.01)


@pytest.mark.parametrize("judging", [Judging.REFERENCE, Judging.REFERENCE_BF16])
def test_honest_steps_are_believed_in_the_reference_class(judging: Judging, tmp_path: Path) -> None:
    found = audit_honest(2, 5, tmp_path, judging)

    assert (found.judging, found.audits, found.undecided, found.false_slashes) == (judging.value, 4, 0, 0)


@pytest.mark.parametrize("judging", [Judging.REFERENCE, Judging.REFERENCE_BF16])
def test_a_step_beyond_the_limits_of_the_reference_class_is_counted(judging: Judging, tmp_path: Path) -> None:
    def other_work(spec: Any, layout: Any, round_id: int, slope: Any) -> Any:
        return judged_blocks(spec, layout, round_id, -slope)

    with without(assay.verifier.audit.worker, "judged_blocks", other_work):
        assert audit_honest(1, 5, tmp_path, judging).false_slashes == 2


def test_an_honest_step_that_is_not_believed_is_counted(tmp_path: Path) -> None:
    def other_hardware(compress: Any, before: Any, x: Any) -> Any:
        return transition(compress, before, x * (1 + 2**-20))

    with without(assay.verifier.audit.exact, "transition", other_hardware):
        assert audit_honest(1, 5, tmp_path).false_slashes == 2


def test_code_paths_add_up() -> None:
    whole = total([Honest("one", "a", 2, 30, 1, 0), Honest("one", "b", 3, 40, 0, 1)])
    assert whole == Honest("all", "a, b", 5, 70, 1, 1)


def test_a_row_has_its_fields_and_no_others() -> None:
    rows = try_all(named("index bomb"), 2)
    honest = [Honest("own", "avx2", 2, 30, 1, 0), Honest("own", "sse2", 3, 40, 0, 0)]
    plain = json.loads(document(AttackTable.of(rows, honest)))
    jsonschema.validate(plain, schema_of(AttackTable))

    assert plain["honest"] == {
        "judging": "all", "path": "avx2, sse2", "audits": 5, "blocks": 70, "undecided": 1, "false_slashes": 0
    }  # fmt: skip
    assert [sorted(row) for row in plain["attacks"]] == [
        ["cost", "defence", "detection_rate", "harm", "name", "verdict"]
    ]
    assert plain["attacks"][0]["detection_rate"] == 1.0
    assert plain["attacks"][0]["verdict"] == "caught"
    assert "| 23 | index bomb |" in as_markdown(rows, [Honest("own", "avx2", 2, 30, 1, 0)])


def test_the_command_prints_json_for_one_attack() -> None:
    done = CliRunner().invoke(app, ["redteam", "--quick", "--json", "--attack", "index bomb"])

    assert done.exit_code == 0, done.output
    assert [row["name"] for row in json.loads(done.stdout)["attacks"]] == ["index bomb"]


def test_a_name_that_no_attack_has_is_refused() -> None:
    assert CliRunner().invoke(app, ["redteam", "--attack", "no such thing"]).exit_code != 0


def test_all_attacks_are_named_by_nothing() -> None:
    assert named("") == ATTACKS


def test_the_page_has_every_attack_and_counts_them() -> None:
    page = (Path(__file__).parents[2] / "docs/results/redteam.md").read_text()
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    rows = [row for row in rows if len(row) == 8 and row[0].isdigit()]
    counts = Counter(row[-1] for row in rows)
    said = ", ".join(f"{counts[name]} {name}" for name in ("caught", "harmless", "open"))

    assert [row[1] for row in rows] == [attack.name for attack in ATTACKS]
    assert f"- {len(rows)} rows: {said}." in page
