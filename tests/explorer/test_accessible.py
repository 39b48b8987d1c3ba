"""Every kind of page is free of what axe finds against WCAG 2.2 AA, on a phone and a desk, light and dark.

axe goes in through the driver, past the pages' policy, which stays as it is served. What axe cannot decide
counts as found, but for the contrast of text that is scrolled out of its region: the wide screen shows it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from assay.explorer.pages.run import Damaged
from assay.participant.telemetry.round_trips import FORMAT, RoundTrips
from tests.explorer.a_browser import CHROMIUM, Browser
from tests.explorer.an_explorer import addresses, golden_explored, served
from tests.explorer.test_auditor import disputed
from tests.explorer.test_homes import PEER, live

AXE = Path(__file__).parent / "node_modules/axe-core/axe.min.js"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: sudo apt-get install chromium"),
    pytest.mark.skipif(not AXE.exists(), reason="no axe: make setup-dev"),
]
RUN = golden_explored()
JUDGE = RUN.delivered.spec.verifier_peers[1]
SERVED = (
    RUN,
    replace(
        live(late=frozenset({PEER}), funding_reports={}),
        round_trips=RoundTrips(format=FORMAT, at_s=1_700_000_000, us={PEER: 1500, JUDGE: 81_300}),
    ),
    replace(disputed(), name="disputed"),
    Damaged(name="damaged", reason="no index.json"),
)
KINDS = {
    **addresses(RUN),
    "no page": "/none",
    "order with errors": "/orders/new?rounds=0&nodes=many&preset=none",
    "methods by bytes": "/methods?x=bytes&like=golden",
    "damaged": "/runs/damaged",
    "live run": "/runs/live",
    "live order": "/runs/live/order",
    "live node": f"/runs/live/nodes/{PEER.hex()}",
}
NARROW, WIDE = 360, 2000  # CSS pixels; no table is wider than the second
ASKED = {
    "runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"],
    "resultTypes": ["violations", "incomplete"],
}
FOUND = """axe.run(document, ASKED).then(({ violations, incomplete }) => {
  const told = (rules) => rules.flatMap(({ id, nodes }) =>
    nodes.map((one) => [id, one.target[0], one.failureSummary]));
  const isHidden = ([id, target]) =>
    !IS_WIDE && id === "color-contrast" && document.querySelector(target).closest(".scroll");
  const found = [...told(violations), ...told(incomplete).filter((one) => !isHidden(one))];
  return found.map((one) => one.join(" | "));
})"""
UNROLLED = """(sheet => {
  sheet.replaceSync(".scroll { overflow: visible }");
  document.adoptedStyleSheets = [sheet];
})(new CSSStyleSheet())"""


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    with served(*SERVED) as url:
        yield url


def faults(browser: Browser, is_wide: bool) -> list[str]:
    """What axe finds on the open page: a rule, an element and how to mend it, each."""
    if not browser.run("'axe' in globalThis"):
        browser.run(AXE.read_text() + "; 0")
    script = FOUND.replace("ASKED", json.dumps(ASKED)).replace("IS_WIDE", json.dumps(is_wide))
    found: list[str] = browser.run(script)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_axe_finds_nothing_on_a_page(browser: Browser, site: str, kind: str):
    browser.open(site + KINDS[kind])
    if browser.run("document.querySelector('[data-check]') !== null"):
        browser.check()  # an answer has colours of its own
    for scheme in ("light", "dark"):
        with browser.screen(NARROW, scheme):
            assert faults(browser, False) == [], scheme
    browser.run(UNROLLED)
    for scheme in ("light", "dark"):
        with browser.screen(WIDE, scheme):
            assert faults(browser, True) == [], scheme


BREAKS = {
    "color-contrast": "document.querySelector('.lead').style.color = '#999'",
    "button-name": "document.querySelector('button').textContent = ''",
    "link-name": "document.querySelector('main a').textContent = ''",
    "html-has-lang": "document.documentElement.removeAttribute('lang')",
    "landmark-one-main": "(one => one.replaceWith(...one.childNodes))(document.querySelector('main'))",
}


BROKEN_FORM = {"label": "document.querySelector('.field label').remove()"}


@pytest.mark.parametrize("rule", [*BREAKS, *BROKEN_FORM])
def test_axe_finds_what_is_broken_on_a_page(browser: Browser, site: str, rule: str):
    browser.open(site + KINDS["new order" if rule in BROKEN_FORM else "run"])
    assert faults(browser, False) == []

    browser.run(f"{(BREAKS | BROKEN_FORM)[rule]}; 0")

    assert rule in {one.split(" | ")[0] for one in faults(browser, False)}
