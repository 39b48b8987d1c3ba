"""Run: `assay localnet`, a whole network on this machine, from keys to paid-out money.

Room: devnet (edge). It prepares what separate people would prepare, starts one process for each of them,
shows the ledger service's reports, and finally checks everything that can be checked.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from assay.chain.deployment.anvil import Anvil
from assay.devnet.anvil_binary import anvil_binary
from assay.devnet.display import Display
from assay.devnet.faults.scenario import load_scenario
from assay.devnet.finish import finish
from assay.devnet.machines import Loopback, Machines
from assay.devnet.provision import ProvisionedNetwork, establish
from assay.devnet.summary import invariants, summary_json
from assay.devnet.supervisor import Supervisor
from assay.devnet.tables import report
from assay.ledger.queries.report import RoundFigures, SettledFigures
from assay.observer.ledger_service.status import BUYER, LEDGER_SERVICE, AgreementReport, RefundDue, Tail
from assay.orders.data.tokenise import collect_data, write_base
from assay.orders.load import load_order
from assay.orders.order import Order
from assay.orders.price.quote import quote_of
from assay.orders.spec import data_spec
from assay.protocol.errors import AssayError, ConfigError
from assay.protocol.types import Digest
from assay.training.data.shards import DataManifest

POLL_S = 0.25
STALL_S = 600.0  # without a report of the ledger service for this long, the run is aborted


def run_localnet(
    file: Path | None,
    overrides: Mapping[str, Any],
    behave: Sequence[str],
    out: Path | None,
    *,
    as_json: bool,
    machines: Machines | None = None,
) -> bool:
    """Run a whole network; returns whether every invariant held.

    Args:
        file: A run.toml, beside which there may be a scenario; None for the defaults.
        overrides: Values from the command line: nodes, verifiers, rounds, seed, data.
        behave: Behaviours from the command line, see `load_scenario`.
        out: Folder of the run; `runs/<name>` if None. An earlier run there is replaced.
        as_json: Print the summary alone.
        machines: Where its processes run.

    Raises:
        ConfigError, AssayError: before or instead of a summary.
    """
    order = load_order(file, _by_key(overrides))
    scenario = load_scenario(order.run, file, behave)
    quote_of(order)  # refuses what `assay order check` refuses, before anything is started
    root = (out or Path("runs") / order.run.name).resolve()
    binary = anvil_binary()
    try:
        root.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f".{root.name}-", dir=root.parent))
        staged = aside / "data"  # bad data must not cost an earlier run
        staged.mkdir()
    except OSError as error:
        raise ConfigError(f"{root}: cannot be created ({error.strerror})") from None
    try:
        manifest = collect_data(order, staged)
        base = write_base(order, staged)
        _make_room(root)
        os.replace(staged, root / "data")
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    started = time.monotonic()
    console = Console(quiet=as_json)
    is_live = sys.stdout.isatty() and not as_json
    with Display(order.run.rounds, is_live, None if is_live and not as_json else _plain(as_json)) as display:
        places = machines or Loopback()
        with (
            Anvil(binary=binary, state_dir=root / "chain", host=places.chain_host) as anvil,
            Supervisor(root / "logs", places) as supervisor,
        ):
            network = _set_up(order, scenario, root, manifest, base, anvil, display, places)
            for member in network.seats:
                supervisor.start(member)
            display.setup("participants")
            settled, agreement = _watch(network, anvil, supervisor, display)
        display.finish()
    summary = finish(network, settled, agreement, time.monotonic() - started)
    if as_json:
        print(summary_json(summary))
    else:
        console.print(report(summary, _places(root)))
    return not invariants(summary)


def _set_up(
    order: Order,
    scenario: Mapping[str, str],
    root: Path,
    manifest: DataManifest,
    base: Digest,
    anvil: Anvil,
    display: Display,
    machines: Machines,
) -> ProvisionedNetwork:
    current: list[tuple[str, float]] = []

    def step(text: str) -> None:
        if current:
            before, since = current.pop()
            display.setup_done(before, time.monotonic() - since)
        current.append((text, time.monotonic()))
        display.setup(text)

    step(f"data: {manifest.tokens:,} tokens")
    described = data_spec(order, manifest)
    network = establish(order, scenario, root, anvil, described, step, machines, base)
    before, since = current.pop()
    display.setup_done(before, time.monotonic() - since)
    for name, behaviour in scenario.items():
        display.event(f"{name} is made to misbehave: {behaviour}")
    return network


def _watch(
    network: ProvisionedNetwork, anvil: Anvil, supervisor: Supervisor, display: Display
) -> tuple[SettledFigures, AgreementReport]:
    """Show the ledger service's reports until everything is settled; returns it and the buyer's comparison.

    Raises:
        AssayError: a process cannot run, or there has been no report for too long.
    """
    ledger = Tail(network.member("ledger").folder / "status.jsonl", LEDGER_SERVICE)
    buyer = Tail(network.member("buyer").folder / "status.jsonl", BUYER)
    began, news_at = time.monotonic(), time.monotonic()
    settled: SettledFigures | None = None
    agreement: AgreementReport | None = None
    is_up = False
    while (
        settled is None
        or agreement is None
        or not supervisor.is_done("buyer")
        or not supervisor.is_done("ledger")
    ):
        for name in supervisor.check():
            display.event(f"{name} was started again")
        for news in (*ledger.news(), *buyer.news()):
            news_at = time.monotonic()
            if isinstance(news, RoundFigures) and not is_up:
                is_up = True
                display.setup_done(f"{len(network.seats)} participants", time.monotonic() - began)
            if isinstance(news, SettledFigures):
                settled = news
            elif isinstance(news, AgreementReport):
                agreement = news
                if not news.ok:
                    display.event(f"parameters disagree: {news.mismatches}", is_alarm=True)
            elif isinstance(news, RefundDue):
                anvil.pass_time(news.at_s)  # only the chain's clock is waited for
            elif news is not None:
                display.feed(news)
        if time.monotonic() - news_at > STALL_S:
            raise AssayError(f"nothing happened for {STALL_S:.0f} s; logs are in {supervisor.logs}")
        time.sleep(POLL_S)
    return settled, agreement


def _places(root: Path) -> dict[str, Path]:
    return {
        "summary": root / "summary.json",
        "model": root / "bundle" / "model",
        "proof of how it was made": root / "bundle",
        "books": root / "ledger.db",
        "logs": root / "logs",
    }


def _by_key(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Command-line options by their key in run.toml."""
    keys = {"nodes": "run.nodes", "verifiers": "run.verifiers", "rounds": "run.rounds", "seed": "run.seed"}
    chosen: dict[str, Any] = {keys[k]: v for k, v in overrides.items() if k in keys}
    if overrides.get("data"):
        chosen["data"] = [{"source": str(Path(overrides["data"]).resolve())}]
    return chosen


def _make_room(root: Path) -> None:
    """Make an empty folder for the run; only an earlier run there is replaced."""
    if root.exists() and any(root.iterdir()) and not (root / "participants").is_dir():
        raise ConfigError(f"{root} is not empty and holds no earlier run; choose another --out")
    shutil.rmtree(root, ignore_errors=True)
    try:
        root.mkdir(parents=True)
    except OSError as error:
        raise ConfigError(f"{root}: cannot be created ({error.strerror})") from None


def _plain(is_quiet: bool) -> Console:
    return Console(quiet=is_quiet, force_terminal=False, no_color=True, width=160, soft_wrap=True)
