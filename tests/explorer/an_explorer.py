"""An explorer of the recorded run, asked without a socket or served on a port of its own."""

from __future__ import annotations

import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import uvicorn
from starlette.testclient import TestClient

from assay.bundle.read import Delivered, read
from assay.chain.commit_statement import evm_address
from assay.explorer.app import make_app
from assay.explorer.catalogue import Catalogue
from assay.explorer.explored import Explored, explore
from assay.explorer.guard import Guard
from assay.explorer.serve import LOOPBACK
from assay.protocol.auditing.audits import AuditStatus
from tests.test_golden_run import ARCHIVE


@cache
def golden() -> Delivered:
    """The recorded run; its folder is gone."""
    with TemporaryDirectory() as folder:
        with tarfile.open(ARCHIVE) as archive:
            archive.extractall(folder, filter="data")
        return read(Path(folder))


@cache
def rulings() -> list[AuditStatus]:
    """What became of each audit of the recorded run."""
    found = {step: audit for state in golden().run_states for step, audit in state.audits.items()}
    return [audit.ruling for audit in found.values()]


@cache
def golden_explored() -> Explored:
    return explore("golden", golden())


def guarded(*runs: Any) -> Guard:
    """The app of these runs, as it is served on the loopback."""
    catalogue: Catalogue = {run.name: run for run in runs}
    return Guard(make_app(catalogue), LOOPBACK)


def asking(*runs: Any, host: str = "127.0.0.1") -> TestClient:
    """A client of these runs, or of the recorded one."""
    return TestClient(guarded(*(runs or (golden_explored(),))), base_url=f"http://{host}:8600")


def addresses(run: Explored) -> dict[str, str]:
    """One address of every kind of page, by its kind."""
    base, node = f"/runs/{run.name}", next(iter(run.commits)).hex()
    return {
        "index": "/",
        "operator": f"/operators/{account_of(run)}",
        "buyer": f"/buyers/{evm_address(run.delivered.spec.buyer)}",
        "auditor": f"/verifiers/{evm_address(run.delivered.spec.verifiers[0].account)}",
        "methods": "/methods",
        "new order": "/orders/new",
        "run": base,
        "order": f"{base}/order",
        "rounds": f"{base}/rounds",
        "round": f"{base}/rounds/7",
        "nodes": f"{base}/nodes",
        "node": f"{base}/nodes/{node}",
        "verifier": f"{base}/verifiers/{run.delivered.spec.verifier_peers[0].hex()}",
        "audits": f"{base}/audits",
        "audit": f"{base}/audits/1/{node}",
        "epochs": f"{base}/epochs",
        "epoch": f"{base}/epochs/0",
        "payout": f"{base}/epochs/0/2",
    }


def account_of(run: Explored) -> str:
    """The account of the node that was banned."""
    records = run.delivered.run_states[-1].nodes.values()
    return evm_address(next(record for record in records if record.banned).member.account)


def renamed(name: str, run: Explored, **parts: Any) -> Explored:
    """A run whose texts or parts are others, whatever its signatures say."""
    delivered = run.delivered
    return replace(run, delivered=replace(delivered, spec=replace(delivered.spec, name=name), **parts))


@contextmanager
def served(*runs: Any) -> Iterator[str]:
    """The address of a server of these runs, in a thread of its own."""
    server = uvicorn.Server(
        uvicorn.Config(guarded(*runs), port=0, log_config=None, ws="none", lifespan="off")
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            thread.join(0.01)
            assert thread.is_alive()
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(120)
