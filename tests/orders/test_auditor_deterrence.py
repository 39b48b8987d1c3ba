"""Auditors: an order says whether its stakes and tasks make bribing one, or its idleness, a loss."""

from __future__ import annotations

from pathlib import Path

import pytest

from assay.orders.check import deters_words
from assay.orders.load import load_order


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ("", "no bribe suits a node and its auditor"),
        ("[budget]\nverifier_stake = 6000.0\n", "no bribe suits a node and its auditor"),
        ("[budget]\nverifier_stake = 5999.0\n", "with a verifier_stake of 6,000.000000 aUSD"),
        ("[budget]\nverifier_slash = 0.1\n", "with a verifier_stake of 12,000.000000 aUSD"),
        ("[verify]\nreplicated = 0.0\n", "for no audit is replicated"),
        ("", "recomputes nothing risks its stake in one of 6 audits"),
        ('[verify]\nlimits = "none"\n', "recomputes nothing risks its stake in every audit"),
        ("[verify]\nreplicated = 0.0\n", "recomputes nothing is not deterred"),
        ("[verify]\nreplicated = 0.0\nknown_answers = 1\n", "in every audit of a known-answer task"),
    ],
)
def test_an_order_says_whether_a_bribe_or_an_idle_auditor_pays(lines: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(f'[run]\nname = "bribes"\n{lines}')

    assert says in deters_words(load_order(path))
