"""A real browser proves each page of an honest run, and refutes one with another signature or figure."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from assay.explorer.explored import Explored
from assay.protocol.messages import CertifiedManifest
from tests.explorer.a_browser import CHROMIUM, Browser
from tests.explorer.an_explorer import addresses, golden_explored, served
from tests.test_golden_run import ARCHIVE

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: sudo apt-get install chromium"),
]
RUN = golden_explored()
CHECKED = (
    "index", "buyer", "run", "order", "rounds", "round", "node", "verifier", "audit", "epoch", "payout",
)  # fmt: skip


def test_every_page_is_proved_without_a_complaint_or_a_request_to_another_host(browser: Browser):
    browser.complaints.clear()
    browser.addresses.clear()
    with served(RUN) as url:
        for kind, address in addresses(RUN).items():
            browser.open(url + address)
            assert browser.run("document.querySelectorAll('[data-check]').length") == (kind in CHECKED), kind
            if kind in CHECKED:
                state, text = browser.check()
                assert (kind, state) == (kind, "proved"), text
                assert RUN.delivered.run_id.hex() in text or kind in ("index", "buyer")

    assert browser.complaints == []
    assert all(address.startswith(url) for address in browser.addresses)


def with_link(at: int, change: Callable[[CertifiedManifest], CertifiedManifest]) -> Explored:
    """The recorded run, one link of which was changed after it was read."""
    links = list(RUN.delivered.links)
    links[at] = change(links[at])
    return replace(RUN, delivered=replace(RUN.delivered, links=tuple(links)))


def with_row(**changes: Any) -> Explored:
    """The recorded run with another row 2 in the table of epoch 0."""
    one = RUN.delivered.settled[0]
    rows = list(one.settlement.rows)
    rows[2] = replace(rows[2], **changes)
    table = replace(one.settlement, rows=tuple(rows))
    settled = {**RUN.delivered.settled, 0: replace(one, settlement=table)}
    return replace(RUN, delivered=replace(RUN.delivered, settled=settled))


def with_total(total: int) -> Explored:
    """The recorded run with another sum in the result of epoch 1."""
    one = RUN.delivered.settled[1]
    settled = {**RUN.delivered.settled, 1: replace(one, result=replace(one.result, total=total))}
    return replace(RUN, delivered=replace(RUN.delivered, settled=settled))


def forged(link: CertifiedManifest) -> CertifiedManifest:
    signatures = link.certificate.signatures
    wrong = bytes([signatures[1][0] ^ 1]) + signatures[1][1:]
    certificate = replace(link.certificate, signatures=(signatures[0], wrong, *signatures[2:]))
    return replace(link, certificate=certificate)


def retimed(link: CertifiedManifest) -> CertifiedManifest:
    return replace(link, manifest=replace(link.manifest, time_s=1))


LIES: dict[str, tuple[Explored, str, str]] = {
    "a forged signature, its round": (with_link(7, forged), "round", "does not cover it"),
    "a forged signature, the run": (with_link(7, forged), "run", "round 7, finalisation"),
    "a forged signature, the list": (with_link(7, forged), "rounds", "does not cover it"),
    "another time": (with_link(1, retimed), "audit", "another manifest than the one received"),
    "one round for another": (with_link(6, lambda _: RUN.delivered.links[5]), "round", "round 6"),
    "more for one, its row": (with_row(amount=10**6), "payout", "not under the signed root"),
    "more for one, the table": (with_row(amount=10**6), "epoch", "lead to the root"),
    "less for an epoch": (with_total(1), "order", "hot key"),
    "another account": (with_row(account=b"\x01" * 20), "payout", "not under the signed root"),
}


@pytest.mark.parametrize("lie", LIES)
def test_one_changed_signature_or_row_is_refuted(browser: Browser, lie: str):
    run, kind, reason = LIES[lie]
    with served(run) as url:
        browser.open(url + addresses(RUN)[kind])
        state, text = browser.check()

    assert state == "refuted" and reason in text


def test_a_page_that_shows_another_figure_than_the_signed_one_is_refuted(browser: Browser):
    with served(RUN) as url:
        for kind in ("index", "buyer", "run", "order", "rounds", "round", "node", "audit", "epoch", "payout"):
            browser.open(url + addresses(RUN)[kind])
            count = browser.run("document.querySelectorAll('[data-signed]').length")
            for at in {0, count // 2, count - 1}:
                browser.open(url + addresses(RUN)[kind])
                every = f"document.querySelectorAll('[data-signed]')[{at}]"
                browser.run(f"{every}.textContent = {every}.textContent.replace(/[a-z0-9]/i, '9') + '9'")
                state, text = browser.check()
                assert state == "refuted" and "this page shows" in text, (kind, at, text)


def test_a_figure_that_nobody_signed_is_refuted(browser: Browser):
    with served(RUN) as url:
        browser.open(url + addresses(RUN)["round"])
        browser.run("document.querySelector('[data-signed]').dataset.signed = '7/commits/nobody/tokens'")
        state, text = browser.check()

    assert state == "refuted" and "has no such thing" in text


def test_an_accepted_step_that_the_page_denies_is_refuted(browser: Browser):
    with served(RUN) as url:
        browser.open(url + addresses(RUN)["node"])
        browser.run(
            "(one => { one.dataset.absent = one.dataset.signed; delete one.dataset.signed })"
            "(document.querySelector('[data-signed$=tokens]'))"
        )
        state, text = browser.check()

    assert state == "refuted" and "there is no 0/commits" in text


@pytest.mark.parametrize("kind", ["round", "verifier", "audit"])
def test_a_commitment_that_is_in_no_earlier_manifest_is_refuted(browser: Browser, kind: str):
    with served(RUN) as url:
        for change in ("Number(one.textContent) - 1", "99", "one.dataset.sealed.split('/')[0]"):
            browser.open(url + addresses(RUN)[kind])
            browser.run(f"(one => one.textContent = {change})(document.querySelector('[data-sealed]'))")
            state, text = browser.check()
            assert state == "refuted" and "for the commitment to" in text, (change, text)


def test_evidence_that_is_missing_is_no_proof(browser: Browser):
    shorter = replace(RUN, delivered=replace(RUN.delivered, links=RUN.delivered.links[:-1]))
    with served(RUN) as whole, served(shorter) as url:
        browser.open(whole + addresses(RUN)["run"])
        rounds = browser.run("document.querySelector('[data-check]').dataset.rounds")
        browser.open(url + addresses(RUN)["run"])
        browser.run(f"document.querySelector('[data-check]').dataset.rounds = '{rounds}'")
        state, text = browser.check()

    last = len(RUN.delivered.links) - 1
    assert (rounds, state) == (f"0-{last}", "refuted") and "does not give the evidence" in text


def test_pages_fit_a_narrow_screen_and_are_reached_by_keyboard(browser: Browser):
    with served(RUN) as url, browser.screen(360):
        for kind, address in addresses(RUN).items():
            browser.open(url + address)
            assert browser.run("document.documentElement.scrollWidth") <= 360, kind
            reached = [browser.run("document.activeElement.tagName")]
            for _ in range(12):
                for act in ("keyDown", "keyUp"):
                    browser.ask(
                        "Input.dispatchKeyEvent", type=act, key="Tab", code="Tab", windowsVirtualKeyCode=9
                    )
                reached.append(browser.run("document.activeElement.tagName"))
            assert "A" in reached and ("BUTTON" in reached) == (kind in CHECKED), (kind, reached)


def test_the_command_serves_a_runs_folder_to_a_browser(browser: Browser, tmp_path: Path):
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path / "golden", filter="data")
    words = [
        sys.executable,
        "-m",
        "assay.cli.main",
        "explorer",
        "serve",
        str(tmp_path / "golden"),
        "--port",
        "0",
    ]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        url = process.stdout.readline().strip()
        assert url.startswith("http://127.0.0.1:")
        browser.open(f"{url}runs/golden")
        assert browser.check()[0] == "proved"
    finally:
        process.terminate()
        _, told = process.communicate(timeout=120)
    assert told == "golden: read and checked\n"


def test_an_order_that_another_account_made_is_refuted(browser: Browser):
    buyer = RUN.delivered.spec.buyer
    with served(RUN) as url:
        browser.open(url + addresses(RUN)["buyer"])
        browser.run(
            "(one => one.textContent = one.textContent.replace(/^./, '5'))"
            "(document.querySelector('[data-signed$=buyer]'))"
        )
        state, text = browser.check()

    assert state == "refuted" and f"signed is {buyer.hex()}" in text


def test_an_auditor_copies_the_replay_of_a_step_from_its_home(browser: Browser):
    browser.ask("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    with served(RUN) as url:
        browser.open(url + addresses(RUN)["verifier"])
        browser.run("document.querySelector('a[href^=\"/verifiers/\"]').click()")
        browser.until("document.readyState === 'complete' && document.querySelector('[data-copy]') !== null")
        browser.ask("Page.bringToFront")
        browser.until("!document.querySelector('[data-copy]').hidden")
        browser.run("document.querySelector('[data-copy]').click()")
        told = browser.until("document.querySelector('[data-told]').textContent")
        copied = browser.run("navigator.clipboard.readText()")

    assert copied.startswith("assay audit replay golden:") and told == f"Copied: {copied}"


def test_a_visitor_types_an_order_and_sees_its_quote_its_errors_and_its_file(browser: Browser):
    browser.complaints.clear()
    with served(RUN) as url:
        browser.open(f"{url}/orders/new")
        first = browser.run("document.querySelector('#sum').textContent")
        browser.run("document.querySelector('#rounds').focus()")
        browser.run("document.querySelector('#rounds').select()")
        browser.ask("Input.insertText", text="120")
        browser.until(f"document.querySelector('#sum').textContent !== {json.dumps(first)}")
        doubled = browser.run("document.querySelector('#sum').textContent")
        assert browser.run("document.activeElement.id") == "rounds"
        assert "rounds=120" in browser.run("location.search")
        toml = browser.run("fetch(document.querySelector('[download]').href).then((one) => one.text())")

        browser.run("document.querySelector('#rounds').select()")
        browser.ask("Input.insertText", text="many")
        browser.until("document.querySelector('#rounds').getAttribute('aria-invalid') === 'true'")
        wrong = browser.run("document.querySelector('#rounds-error').textContent")
        assert browser.run("document.querySelector('[download]')") is None

        browser.ask("Emulation.setScriptExecutionDisabled", value=True)
        try:
            browser.ask("Page.navigate", url=f"{url}/orders/new")
            browser.until("document.readyState === 'complete' && location.search === ''")
            browser.run("document.querySelector('#rounds').value = '120'")
            browser.run("document.querySelector('form').submit()")
            browser.until("document.readyState === 'complete' && location.search.includes('rounds=120')")
            assert browser.run("document.querySelector('#sum').textContent") == doubled
        finally:
            browser.ask("Emulation.setScriptExecutionDisabled", value=False)

    assert "6.144000" in doubled and "3.584000" in first
    assert "rounds = 120" in toml and "expected a whole number" in wrong
    assert browser.complaints == []
