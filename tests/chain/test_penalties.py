"""Penalties: what a deployment's court can still judge."""

from __future__ import annotations

from dataclasses import replace

import pytest

from assay.chain.penalties import check_absence
from assay.protocol.errors import ConfigError
from assay.testing.signed import a_spec

AUDIT = replace(a_spec().audit, absence_s=100)


@pytest.mark.parametrize(("known_answers", "window_s"), [(0, 100), (1, 200)])
def test_a_list_of_tasks_may_be_shown_as_long_again_after_an_overdue_opening(
    known_answers: int, window_s: int
):
    rules = replace(AUDIT, known_answer_count=known_answers)
    check_absence(rules, window_s)
    with pytest.raises(ConfigError, match="the slash court of this deployment takes cases for"):
        check_absence(rules, window_s - 1)
