"""Documents: what each command prints with `--json` has the fields that are on record, and nothing beside it.

With RECORD_DOCUMENTS=1 these tests record them again, after a change that is meant.
"""

from __future__ import annotations

import json
import os
import pkgutil
import sqlite3
import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from assay.bundle.read import read
from assay.chain.statements import OPERATOR
from assay.cli.main import run
from assay.cli.schema import documents, schema_of
from assay.fleet.config import write_state
from assay.fleet.plan import State
from assay.participant.files.record import OWN_RECORD, Role, write_record
from assay.testing.signed import NODES
from assay.verifier.service.standby import RESIGN
from tests.a_network import a_record
from tests.cli.ledger.test_commands import Assay
from tests.cli.market import ORDER, Market
from tests.commands import leaves
from tests.fleet.test_seats import a_seat
from tests.test_golden_run import ARCHIVE, VECTORS

RECORDED = VECTORS / "documents.json"
# Processes print logs; `ledger export` prints the format that is asked for, `unit` a file, `schema` a schema.
WITHOUT = {
    "node run", "verifier run", "ledger serve", "ledger export", "buyer run", "watchtower", "chain dev",
    "api serve", "explorer serve", "sim train", "misbehave", "unit", "operator up",
    "schema",
}  # fmt: skip
# Need minutes, or a network that somebody founded; these files run them.
ELSEWHERE = {
    "localnet": "e2e/nets.py",
    "redteam": "redteam/test_table.py",
    "audit accuse": "cli/test_accuse.py",
    "audit calibrate": "verifier/calibration/test_classes.py",
    "attest appraise": "attestation/test_attest_command.py",
    "key sign": "cli/test_sign.py",
    "ledger rebuild": "cli/ledger/test_rebuild.py",
    "network create": "e2e/test_founding.py",
    "order continue": "cli/orders/test_continue.py",
    "network fund": "e2e/test_founding.py",
    "network rotate": "cli/orders/test_rotation.py",
    "network sign-rotation": "cli/orders/test_rotation.py",
    "registry check": "cli/test_registry.py",
    "registry sign-withdrawal": "cli/test_registry.py",
    "registry withdraw": "cli/test_registry.py",
    "appeal open": "cli/test_appeal_commands.py",
    "appeal vote": "cli/test_appeal_commands.py",
    "join": "e2e/test_founding.py",
    "run fetch": "explorer/test_fetch.py",
    "run merge": "bundle/test_merge.py",
    "doctor": "e2e/test_founding.py",
}
OFFLINE = {
    "operator show": "TMP/operator.toml",
    "run verify": "RUN",
    "run verify --only": "RUN --only proof",
    "run report": "RUN",
    "audit report": "RUN",
    "audit replay": "RUN:2:NODE --from-start",
    "audit spot": "RUN --rate 0.05 --seed 1",
    "audit odds": "--cost 0.01 --price 0.02 --stake 5",
    "audit game": "--epochs 20",
    "receipt make": "RUN 7 NODE --out TMP/receipt.json",
    "receipt verify": "RUN/bundle/receipts/round-000007.json",
    "registry show": "RUN",
    "ledger balance": "RUN",
    "ledger entries": "RUN --account payable",
    "ledger statement": "RUN buyer",
    "ledger prove": "RUN 1",
    "ledger audit": "RUN",
    "ledger faults": "RUN",
    "ledger settle": "--check RUN:0",
    "ledger yearly": "RUN --year YEAR --supplier TMP/supplier.toml",
    "earnings": "RUN --node NODE",
    "earnings --why": "RUN --node NODE --why 0",
    "invoice": "RUN --csv TMP/invoice.csv",
    "order check": "ORDER",
    "order data": "ORDER TMP/data",
    "order quote": "ORDER",
    "order examples": "TMP/examples",
    "key new": "TMP/new/keys",
    "key show": "TMP/keys",
    "key rotate": "TMP/keys",
    "key backup": "TMP/keys TMP/keys.backup --backup-password TMP/password",
    "key restore": "TMP/keys.backup TMP/again/keys --backup-password TMP/password",
    "key card": "TMP/keys --role node --address 203.0.113.7:4001",
    "api token create": "TMP/api.toml --name bookkeeping --scope read",
    "api token list": "TMP/api.toml",
    "api token revoke": "TMP/api.toml 1",
}
ON_CHAIN = {
    "stake show": "NODE",
    "stake add": "NODE 100",
    "stake remove": "NODE 100",
    "stake lock": "NODE 50 --dry-run",
    "stake release": "NODE",
    "stake cancel": "NODE",
    "stake withdraw": "NODE",
    "stake collect": "NODE",
    "key delegate": "NODE --days 30",
    "claim": "NODE --dry-run",
    "watch": "NODE",
    "node leave": "NODE",
    "verifier resign": "NODE",
    "network show": "INVITATION --offline",
    "network announce": "NODE",
    "network list": "CHECKED",
    "operator offer": "OPERATOR",
    "network offers": "CHECKED",
    "order quote --network": "OPEN-ORDER --network CHECKED --days 1",
    "run list": "CHECKED",
    "run show": "CHECKED RUN-ID",
    "order show": "BUYER",
    "order place": "BUYER ORDER",
    "order topup": "BUYER 5",
    "order cancel": "BUYER",
    "order refund": "BUYER --dry-run",
}
REFUSED = {"order refund", "stake release"}  # too early: no document, and exit status 1


def fields(value: Any, path: str = "") -> set[str]:
    """The path of every field of a document; what varies in number is one path."""
    if isinstance(value, dict):
        return {one for name, inner in value.items() for one in fields(inner, f"{path}.{name}".strip("."))}
    if isinstance(value, list):
        return {one for inner in value for one in fields(inner, f"{path}[]")} or {f"{path}[]"}
    return {path}


def recorded() -> dict[str, list[str]]:
    found: dict[str, list[str]] = json.loads(RECORDED.read_text())
    return found


def compare(name: str, code: int, out: str, err: str) -> None:
    if name in REFUSED:
        assert (code, out) == (1, ""), err
        return
    assert code == 0, err
    if named := json.loads(out).get("schema"):
        jsonschema.validate(json.loads(out), schema_of(pkgutil.resolve_name(documents()[named])))
    if "RECORD_DOCUMENTS" in os.environ:
        found = {**recorded(), name: sorted(fields(json.loads(out)))}
        RECORDED.write_text(json.dumps(dict(sorted(found.items())), indent=1) + "\n")
    assert sorted(fields(json.loads(out))) == recorded()[name]


def files(folder: Path) -> Callable[[str], list[str]]:
    """A place with everything that the offline commands read; and the words of a command in it."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder / "run", filter="data")
    node = read(folder / "run").links[7].manifest.commits[0].commit.node.hex()
    (folder / "text.txt").write_text("some words of nobody " * 4000)
    (folder / "order.toml").write_text(
        "[run]\nrounds = 6\n[model]\nlayers = 1\nwidth = 64\nheads = 2\ncontext = 16\n"
        '[train]\nsequences = 2\n[[data]]\nsource = "text.txt"\nlicence = "none"\n'
    )
    (folder / "api.toml").write_text(f'[runs]\npaper = "{folder / "run"}"\n')
    with closing(sqlite3.connect(folder / "run" / "ledger.db")) as db:
        (ended_s,) = db.execute("SELECT max(block_time) FROM journal_entry").fetchone()
    ended = datetime.fromtimestamp(ended_s, timezone.utc)
    (folder / "rates.csv").write_text(
        f"time,currency,rate,source\n{(ended - timedelta(days=1)).isoformat()},EUR,0.9,example\n"
    )
    (folder / "supplier.toml").write_text(
        '[supplier]\nname = "Example"\naddress = ["Weg 1"]\nvat_id = "DE136695976"\n'
        'currency = "EUR"\nrates = "rates.csv"\n'
    )
    (folder / "operator.toml").write_text(
        'keys = "keys"\nnetwork = "network.txt"\n[operator]\nreserve = 1\nlots = 1\nfolder = "runs"\n'
    )
    write_state(folder / "runs", State(seats=(a_seat(),), avoided={"0x09": ended_s}))
    names = {
        "RUN": folder / "run",
        "TMP": folder,
        "ORDER": folder / "order.toml",
        "NODE": node,
        "YEAR": ended.year,
    }

    def words(text: str) -> list[str]:
        for name, value in names.items():
            text = text.replace(name, str(value))
        return text.split()

    return words


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[str]]:
    return files(tmp_path_factory.mktemp("documents"))


@pytest.fixture
def anybody(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Assay:
    """The command line of somebody with a real run: exit status, standard output, standard error."""

    def call(*given: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["assay", *map(str, given)])
        with pytest.raises(SystemExit) as ended:
            run()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return call


@pytest.mark.slow
@pytest.mark.parametrize("name", OFFLINE)  # in this order: a key is made before it is shown
def test_a_command_prints_the_document_on_record(
    anybody: Assay, place: Callable[[str], list[str]], name: str
):
    if name.startswith("key") and name != "key new":
        anybody("key", "new", *place("TMP/keys"))
    compare(name, *anybody(*name.partition(" --")[0].split(), *place(OFFLINE[name]), "--json"))


@pytest.mark.slow
def test_commands_on_a_chain_print_the_documents_on_record(anybody: Assay, market: Market):
    for name, out in on_chain(market, anybody):
        compare(name, *out)
        if name == "verifier resign":  # the run has no reserves
            assert json.loads(out[1])["steps"][0]["state"] == "nothing"
            assert not (market.config_of(NODES[0]).parent / RESIGN).exists()


def on_chain(market: Market, call: Assay) -> Iterator[tuple[str, tuple[int, str, str]]]:
    """Each command of `ON_CHAIN`, on a run whose nodes are ready."""
    market.join_nodes()
    for node in NODES:
        market.lock(node)
    market.fill_store(NODES[0], 3)
    own = market.config_of(NODES[0]).parent / "keys" / OWN_RECORD
    write_record(own, a_record(NODES[0], Role.NODE))
    operator, order = market.folder / NODES[0] / "operator.toml", market.folder / "open.toml"
    table = "[operator]\nreserve = 0\nlots = 1\nruns = 1\nmemory_gb = 64\n"
    operator.write_text(f"{market.config_of(NODES[0]).read_text()}{table}")
    (operator.parent / "runs").mkdir()
    (operator.parent / "runs" / "speed").write_text(f"{10**12}\n")
    market.as_(NODES[0]).stake(OPERATOR, 10**6)
    order.write_text(ORDER.replace("nodes = 3", "nodes = 2\nseats = 3") + "operator_stake = 0.5\n")
    names = {
        "OPEN-ORDER": order,
        "OPERATOR": operator,
        "NODE": market.config_of(NODES[0]),
        "BUYER": market.config_of("buyer"),
        "ORDER": market.order_file,
        "INVITATION": market.folder / "network.txt",
        "CHECKED": market.invitation(),
        "RUN-ID": market.run_id.hex(),
    }
    opened = sorted(ON_CHAIN.items(), key=lambda one: one[0] != "order place")
    for name, text in opened:
        yield (
            name,
            call(
                *name.partition(" --")[0].split(), *(names.get(word, word) for word in text.split()), "--json"
            ),
        )


def test_an_error_prints_no_document(anybody: Assay, tmp_path: Path):
    code, out, err = anybody("ledger", "balance", tmp_path, "--json")

    assert (code, out) == (2, "") and len(err.splitlines()) == 1


def test_every_command_that_prints_a_result_has_a_document_on_record():
    listed = {name for name, command in leaves() if any(one.name == "as_json" for one in command.params)}
    everything = {name for name, _ in leaves()}

    assert everything - listed == WITHOUT & everything
    assert listed == {name.partition(" --")[0] for name in (*OFFLINE, *ON_CHAIN)} | set(ELSEWHERE)
    assert all((Path(__file__).parents[1] / file).exists() for file in ELSEWHERE.values())
    assert set(recorded()) == (set(OFFLINE) | set(ON_CHAIN)) - REFUSED


def test_a_field_that_is_gone_or_new_is_noticed():
    value = {"a": [{"b": 1}, {"c": None}], "d": {}}

    assert fields(value) == {"a[].b", "a[].c"}
    assert fields({**value, "e": 1}) != fields(value)
