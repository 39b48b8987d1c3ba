"""Replay: a chain with a commit that counts for what no step of its run does cannot be replayed."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from assay.bundle.replay.step import replay_of
from assay.participant.files.index import IntegrityError
from assay.testing.members import peer
from assay.testing.signed import a_chain, a_history
from assay.testing.specs import a_model


def test_a_count_of_no_step_is_named_before_anything_is_computed() -> None:
    run_state = a_history()
    smaller = replace(run_state.spec, model=a_model(context=15))  # of which 32 tokens are no step
    delivered: Any = SimpleNamespace(spec=smaller, links=a_chain(run_state, 2), held=None)

    with pytest.raises(IntegrityError, match=r"^commit of round 0 of .*: 32 tokens, expected 30$"):
        replay_of(delivered, peer("nora"), 0)
