"""Pages stay where they are while they are read, and can be used without a mouse."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.explorer.a_browser import CHROMIUM, Browser
from tests.explorer.an_explorer import addresses, golden_explored, served

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: sudo apt-get install chromium"),
]
RUN = golden_explored()
KINDS = addresses(RUN)
# The sum over all shifts, by what of the screen moved and how far: https://web.dev/articles/cls; up to 0.1 is
# called good. Columns of a long table may settle while it comes.
SHIFT_MAX = 0.02
SHIFTED = """new Promise((done) => {
  let sum = 0;
  new PerformanceObserver((list) => { for (const one of list.getEntries()) sum += one.value; })
    .observe({ type: "layout-shift", buffered: true });
  requestAnimationFrame(() => setTimeout(() => done(sum), 200));
})"""
CONTROLS = """[...document.querySelectorAll(
  "a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex='0']")]
  .filter((one) => one.checkVisibility() && !one.disabled)"""


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    with served(RUN) as url:
        yield url


@pytest.mark.parametrize("width", [360, 1200])
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_moves_while_a_page_loads(browser: Browser, site: str, kind: str, width: int):
    with browser.screen(width):
        browser.open(site + KINDS[kind])
        assert browser.run(SHIFTED) <= SHIFT_MAX


def test_a_page_that_grows_past_the_screen_stays_where_it_is(browser: Browser, site: str):
    """A long page is first painted with what has come of it: its scroll bar must not push it aside then."""
    lefts = set()
    with browser.screen(1200):
        browser.open(site + KINDS["nodes"])
        for height in ("10px", "2000px"):
            browser.run(
                f"document.querySelector('main').style.cssText = 'overflow: hidden; height: {height}'"
            )
            lefts.add(browser.run("document.querySelector('main').getBoundingClientRect().left"))
    assert len(lefts) == 1


def test_a_page_that_moves_is_noticed(browser: Browser, site: str):
    with browser.screen(360):
        browser.open(site + KINDS["run"])
        browser.run(
            "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => {"
            " document.querySelector('main').style.paddingTop = '200px'; done(0); })))"
        )
        assert browser.run(SHIFTED) > SHIFT_MAX


def press_tab(browser: Browser) -> None:
    for kind in ("keyDown", "keyUp"):
        browser.ask("Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab", windowsVirtualKeyCode=9)


@pytest.mark.parametrize("kind", ["run", "node", "new order"])
def test_every_control_is_reached_by_the_keyboard_in_order_and_shows_it(
    browser: Browser, site: str, kind: str
):
    browser.open(site + KINDS[kind])
    controls = browser.run(f"globalThis.controls = {CONTROLS}, controls.length")
    assert controls > 10
    for at in range(controls):
        press_tab(browser)
        assert browser.run("controls.indexOf(document.activeElement)") == at
        outline = "(({ outlineStyle, outlineWidth }) => outlineStyle !== 'none' && outlineWidth !== '0px')"
        assert browser.run(f"{outline}(getComputedStyle(document.activeElement))"), at
