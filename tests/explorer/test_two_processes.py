"""One process writes a participant's store, another serves pages of it: the command and its sockets."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from assay.bundle.follow import STORE, Followed
from assay.chain.commit_statement import evm_address
from assay.protocol.encoding.codec import encode
from tests.explorer.a_backlog import a_backlog

pytestmark = pytest.mark.slow
ROUNDS, SLOWLY, PAUSE_S, WAIT_S = 150, 60, 0.03, 120.0
# Adds what the store lacks of the links: the first ones slowly, as a run does, then the rest at once.
WRITER = f"""
import sys, time
from pathlib import Path
from assay.participant.store import Store
from assay.protocol.encoding.codec import decode
from assay.protocol.messages import CertifiedManifest
folder = Path(sys.argv[1])
store = Store(folder / "{STORE}")
for at, path in enumerate(sorted((folder / "links").iterdir())):
    if at >= int(sys.argv[2]):
        store.add_link(decode(CertifiedManifest, path.read_bytes()))
        time.sleep({PAUSE_S} if at < {SLOWLY} else 0)
store.close()
"""


@contextmanager
def explorer(folder: Path) -> Iterator[str]:
    """`assay explorer serve` of this folder; its address."""
    words = [sys.executable, "-m", "assay.cli.main", "explorer", "serve", str(folder), "--port", "0"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip().rstrip("/")
    finally:
        process.terminate()
        _, told = process.communicate(timeout=120)
    assert told == f"{folder.name}: read and checked\n"  # and nothing went wrong after that
    assert process.returncode in (0, -15)


def writer(folder: Path, first: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", WRITER, str(folder), str(first)])


def get(url: str, address: str) -> tuple[int, bytes]:
    line = HTTPConnection(urlsplit(url).netloc, timeout=120)
    line.request("GET", address)
    answer = line.getresponse()
    return answer.status, answer.read()


def value(url: str, address: str) -> Any:
    status, body = get(url, f"{address}.json")
    assert status == 200, (address, body)
    return json.loads(body)


def follow(url: str, heard: list[int]) -> None:
    """The numbers that an event stream tells, until it has told of all rounds."""
    line = HTTPConnection(urlsplit(url).netloc, timeout=WAIT_S)
    line.request("GET", "/runs/node-1/events")
    answer = line.getresponse()
    while not heard or heard[-1] < ROUNDS:
        text = answer.readline().decode()
        assert text, heard
        if text.startswith("data: "):
            heard.append(int(text.removeprefix("data: ")))
    line.close()


def grown_to(url: str, seen: list[int], rounds: int, addresses: list[str]) -> None:
    """Ask for the pages until the run has so many rounds; each time all of them are there."""
    end = time.monotonic() + WAIT_S
    while not seen or seen[-1] < rounds:
        assert time.monotonic() < end, seen
        seen.append(value(url, "/runs/node-1")["head"]["live"])
        for address in addresses:
            assert get(url, address)[0] == 200, address
        time.sleep(0.1)


def test_pages_grow_while_another_process_writes_is_killed_and_goes_on(tmp_path: Path):
    folder = tmp_path / "node-1"
    links = a_backlog(folder, ROUNDS)
    (folder / "links").mkdir()
    for at, link in enumerate(links):
        (folder / "links" / f"{at:06d}").write_bytes(encode(link))
    spec = Followed(folder).read().spec
    operator = evm_address(spec.nodes[0].account)
    addresses = [
        "/", "/runs/node-1/order", f"/operators/{operator}", f"/buyers/{evm_address(spec.buyer)}",
        "/runs/node-1/nodes", "/runs/node-1/rounds",
    ]  # fmt: skip
    seen: list[int] = []
    heard: list[int] = []

    with explorer(folder) as url:
        assert value(url, "/runs/node-1")["head"]["live"] == 0 and not (folder / STORE).exists()
        listener = threading.Thread(target=follow, args=(url, heard))
        first = writer(folder, 0)
        grown_to(url, seen, 5, addresses[:3])
        listener.start()
        first.kill()
        first.wait()
        written = len(Followed(folder).read().links)
        assert 5 <= written < SLOWLY
        second = writer(folder, written)
        grown_to(url, seen, ROUNDS, addresses)
        listener.join(WAIT_S)
        assert second.wait(WAIT_S) == 0

        assert seen == sorted(seen) and len(set(seen)) > 3
        assert heard == sorted(set(heard)) and heard[-1] == ROUNDS and len(heard) > 2
        page = value(url, f"/runs/node-1/rounds/{ROUNDS - 1}")
        assert page["digest"] == links[-1].block.manifest.hex()
        assert get(url, "/runs/node-1/rounds/9.cbor")[1] == encode(links[9])
        order, home = value(url, "/runs/node-1/order"), value(url, f"/operators/{operator}")
        assert 0 < order["settled"] < order["order"]["spent"] <= order["order"]["budget"]
        assert home["seats"][0]["last_round"] == ROUNDS - 1
        assert home["paid"] > 0 and home["due"] > 0
