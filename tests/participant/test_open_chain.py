"""A process checks an endpoint once for all its tasks, and again after a failure or ten minutes."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from assay.participant.wallet import claims
from assay.protocol.errors import Unavailable


class Endpoint:
    """In place of `Chain`: counts checks, of which the first `failures` fail."""

    def __init__(self, monkeypatch, failures=0):
        self.asked, self.failures, self.now_s = [], failures, 1000.0
        monkeypatch.setattr("assay.chain.client.Chain", self.opened)
        monkeypatch.setattr(claims, "_checked", {})
        monkeypatch.setattr(claims, "time", SimpleNamespace(monotonic=lambda: self.now_s))

    def opened(self, url, deployment, _signer):
        return SimpleNamespace(check_deployment=lambda: self.check(url, deployment))

    def check(self, url, deployment):
        self.asked.append((url, deployment.deployment_id))
        if len(self.asked) <= self.failures:
            raise Unavailable("no answer")


def participant(url="http://one", deployment=b"1"):
    return SimpleNamespace(
        config=SimpleNamespace(rpc_url=url),
        deployment=SimpleNamespace(deployment_id=deployment),
        keys=SimpleNamespace(signer=None),
    )


def test_tasks_of_a_process_share_a_check_for_ten_minutes(monkeypatch):
    endpoint = Endpoint(monkeypatch)

    for endpoint.now_s in (1000.0, 1000.0, 1599.0):
        claims.open_chain(participant())
    assert len(endpoint.asked) == 1

    endpoint.now_s = 1600.0
    claims.open_chain(participant())
    assert len(endpoint.asked) == 2


def test_another_endpoint_or_deployment_is_checked_for_itself(monkeypatch):
    endpoint = Endpoint(monkeypatch)

    for url, deployment in (("http://one", b"1"), ("http://two", b"1"), ("http://one", b"2")):
        claims.open_chain(participant(url, deployment))

    assert endpoint.asked == [("http://one", b"1"), ("http://two", b"1"), ("http://one", b"2")]


def test_a_check_that_failed_is_not_believed(monkeypatch):
    endpoint = Endpoint(monkeypatch, failures=1)

    with pytest.raises(Unavailable):
        claims.open_chain(participant())
    claims.open_chain(participant())

    assert len(endpoint.asked) == 2


def test_who_waits_for_an_endpoint_that_hangs_checks_for_itself(monkeypatch):
    endpoint, hangs, goes_on = Endpoint(monkeypatch), threading.Event(), threading.Event()
    monkeypatch.setattr(claims, "WAIT_S", 0.01)
    check = endpoint.check

    def hang(url, deployment):
        monkeypatch.setattr(endpoint, "check", check)
        hangs.set()
        assert goes_on.wait(60)
        check(url, deployment)

    monkeypatch.setattr(endpoint, "check", hang)
    first = threading.Thread(target=claims.open_chain, args=(participant(),))
    first.start()
    try:
        assert hangs.wait(60)
        claims.open_chain(participant())
        assert len(endpoint.asked) == 1
    finally:
        goes_on.set()
        first.join()
    assert len(endpoint.asked) == 2 and not claims._checking.locked()
