"""Monitoring: rules and dashboard name only metrics that exist, and each alert does what it says."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from assay.participant.telemetry.figures import METRICS

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "deploy" / "monitoring"
OF_CLIENT = {"process_resident_memory_bytes", "process_cpu_seconds_total"}  # of prometheus-client itself
WORD = re.compile(r"\b(?:assay|process)_[a-z_]+\b")


def rules() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"][0]["rules"]
    return found


def expressions() -> list[str]:
    panels = json.loads((FOLDER / "grafana.json").read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel["targets"]] + [
        str(rule["expr"]) for rule in rules()
    ]


def test_every_metric_that_a_rule_or_a_panel_names_exists() -> None:
    named = {word for one in expressions() for word in WORD.findall(one)}

    assert named - {metric.name for metric in METRICS} - OF_CLIENT == set()
    assert len(named) > 20
    assert all(WORD.search(one) for one in expressions())


def test_every_alert_is_tested_to_fire_and_not_to_fire_just_before() -> None:
    tests = yaml.safe_load((FOLDER / "alerts.test.yml").read_text())["tests"]
    cases = [case for one in tests for case in one["alert_rule_test"]]

    fired = {case["alertname"] for case in cases if case["exp_alerts"]}
    assert fired == {rule["alert"] for rule in rules()}
    quiet = {case["alertname"] for case in cases if not case["exp_alerts"]}
    assert fired - quiet == set()


@pytest.mark.parametrize("arguments", ["check rules alerts.yml", "test rules alerts.test.yml"])
def test_promtool_accepts_the_rules_and_their_tests(arguments: str) -> None:
    tool = shutil.which("promtool", path=f"{os.environ['PATH']}:{ROOT / 'build/prometheus/usr/bin'}")
    if tool is None:
        pytest.skip("needs promtool, which `make setup-dev` unpacks from Debian's package prometheus")
    done = subprocess.run([tool, *arguments.split()], cwd=FOLDER, capture_output=True, text=True, timeout=60)

    assert done.returncode == 0, done.stdout + done.stderr


def test_the_table_in_the_documentation_is_made_from_the_code() -> None:
    head = "| metric | kind | labels | processes | what it is |\n|---|---|---|---|---|"
    rows = (
        f"| `{one.name}` | {one.kind.value} | {', '.join(one.labels) or '–'} | {one.who} | {one.text} |"
        for one in METRICS
    )
    assert "\n".join((head, *rows)) + "\n" in (ROOT / "docs" / "metrics.md").read_text()
