"""A browser: Debian's Chromium without a window, driven over its DevTools protocol."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
WAIT_S = 120.0


class Browser:
    """One page of one browser."""

    def __init__(self, line: ClientConnection) -> None:
        self._line, self._next = line, 0
        self.complaints: list[str] = []  # errors and warnings that the console showed
        self.addresses: list[str] = []  # of all requests
        self.called: list[str] = []  # what pages gave to functions that `Runtime.addBinding` made
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **given: Any) -> Any:
        self._next += 1
        self._line.send(json.dumps({"id": self._next, "method": method, "params": given}))
        while True:
            answer = self._told()
            if answer.get("id") == self._next:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]

    def _told(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(self._line.recv(timeout=WAIT_S))
        given = message.get("params", {})
        match message.get("method"):
            case "Log.entryAdded":
                self.complaints.append(f"{given['entry']['text']} {given['entry'].get('url', '')}")
            case "Runtime.exceptionThrown":
                self.complaints.append(str(given["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if given["type"] in ("error", "warning", "assert"):
                self.complaints.append(str(given["args"]))
            case "Network.requestWillBeSent":
                self.addresses.append(given["request"]["url"])
            case "Runtime.bindingCalled":
                self.called.append(given["payload"])
        return message

    def run(self, script: str) -> Any:
        """The value of an expression in the page; a promise is awaited."""
        done = self.ask("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def until(self, script: str) -> Any:
        """The first value of an expression that is true."""
        end = time.monotonic() + WAIT_S
        while time.monotonic() < end:
            value = self.run(script)
            if value:
                return value
            time.sleep(0.02)
        raise TimeoutError(f"{script} did not become true")

    def open(self, address: str) -> None:
        self.ask("Page.navigate", url=address)
        self.until(f"location.href === {json.dumps(address)} && document.readyState === 'complete'")

    def was_cut(self) -> bool:
        """Whether the machine's network changed under a page, as where another test makes a namespace.

        Chromium then ends what a page is fetching; it is asked about once.
        """
        cuts = [one for one in self.complaints if "ERR_NETWORK_CHANGED" in one]
        self.complaints[:] = [one for one in self.complaints if one not in cuts]
        return bool(cuts)

    @contextmanager
    def screen(self, width: int, scheme: str = "light") -> Iterator[None]:
        """Show pages on a screen so many CSS pixels wide, to a reader who prefers light or dark."""
        size = {"width": width, "height": 740, "deviceScaleFactor": 1, "mobile": width < 600}
        self.ask("Emulation.setDeviceMetricsOverride", **size)
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        try:
            yield
        finally:
            self.ask("Emulation.clearDeviceMetricsOverride")
            self.ask("Emulation.setEmulatedMedia", features=[])

    def check(self) -> tuple[str, str]:
        """Press "Check it here": the state of the answer, and its text."""
        self.run("document.querySelector('[data-check] button').click()")
        state = self.until("document.querySelector('[data-check] output').className")
        return state, self.run("document.querySelector('[data-check] output').textContent")


@contextmanager
def a_browser(folder: Path, *arguments: str) -> Iterator[Browser]:
    """A browser with a profile of its own in this folder; it ends with the block."""
    assert CHROMIUM is not None
    profile = folder / "profile"
    command = [
        CHROMIUM, "--headless=new", "--remote-debugging-port=0", f"--user-data-dir={profile}",
        "--no-first-run", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking",
        *arguments,
        *(["--no-sandbox"] if os.geteuid() == 0 else []), "about:blank",
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        port = _port(profile / "DevToolsActivePort", process)
        with connect(f"ws://127.0.0.1:{port[0]}{port[1]}", max_size=None) as line:
            page = _page(line)
        with connect(f"ws://127.0.0.1:{port[0]}/devtools/page/{page}", max_size=None) as line:
            yield Browser(line)
    finally:
        process.terminate()
        process.wait(120)


def _page(line: ClientConnection) -> str:
    """The id of the browser's first page."""
    line.send(json.dumps({"id": 1, "method": "Target.getTargets"}))
    while True:
        answer = json.loads(line.recv(timeout=WAIT_S))
        if answer.get("id") == 1:
            pages = [one for one in answer["result"]["targetInfos"] if one["type"] == "page"]
            return str(pages[0]["targetId"])


def _port(file: Path, process: subprocess.Popen[bytes]) -> tuple[str, str]:
    """Where the browser takes commands: the port and the path."""
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end and process.poll() is None:
        lines = file.read_text().split("\n") if file.exists() else []
        if len(lines) > 1 and lines[1]:
            return lines[0], lines[1]
        time.sleep(0.05)
    raise TimeoutError("the browser does not take commands")
