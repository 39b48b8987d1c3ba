"""The decision page names tests for every pitfall and invariant: they exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "decisions" / "0001-contracts.md"
FILES = {"client": "chain_client", "machine": "state_machine"}
NAMED = re.compile(r"\b(stake|court|settlement|digests|registry|client|machine)::(\w+)")
IN_FORGE = re.compile(r"(?:forge|halmos): ([^|;]+)")


def test_every_test_that_the_decision_page_names_exists():
    named = NAMED.findall(PAGE.read_text())
    assert len(named) >= 25
    for file, test in named:
        text = (Path(__file__).parent / f"test_{FILES.get(file, file)}.py").read_text()
        assert f"def test_{test}(" in text, f"{file}::{test}"


def test_every_property_that_the_decision_page_names_exists():
    sources = "".join(path.read_text() for path in (ROOT / "contracts" / "test").glob("*.sol"))
    words = [word for group in IN_FORGE.findall(PAGE.read_text()) for word in re.findall(r"\w{12,}", group)]
    assert len(words) >= 15
    for word in words:
        known = (
            f"function {word}(",
            f"function testFuzz_{word}(",
            f"function check_{word}(",
            f"contract {word} ",
        )
        assert any(one in sources for one in known), word
