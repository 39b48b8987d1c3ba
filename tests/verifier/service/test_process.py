"""A verifier's start: which runs it refuses."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from assay.protocol.errors import ConfigError
from assay.testing.signed import a_spec
from assay.verifier.service import process


@pytest.mark.parametrize("is_begun", [False, True])
def test_a_run_that_closes_too_late_is_refused_but_by_who_is_in_it(
    is_begun: bool, monkeypatch: pytest.MonkeyPatch
):
    chain: Any = SimpleNamespace(
        case_ppm_max=lambda: 10**6,
        evidence_window=lambda: 10**9,
        close_delay=lambda: 1,
        final_escrow=lambda _run: SimpleNamespace(newest_s=0, time_s=0),
    )
    monkeypatch.setattr(process, "open_chain", lambda _me: chain)
    links = [b"a manifest"] if is_begun else []
    store = SimpleNamespace(link_bodies=lambda first, count: iter(links[first:count]))
    me: Any = SimpleNamespace(spec=a_spec(), run_id=b"run", store=store)

    if is_begun:
        process._check_contracts(me)
    else:
        with pytest.raises(ConfigError, match="the escrow of this deployment waits 1 s"):
            process._check_contracts(me)
