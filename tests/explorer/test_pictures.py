"""Every kind of page looks as it does on record, on a phone in the dark and on a desk in the light."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.explorer.a_browser import CHROMIUM, Browser
from tests.explorer.an_explorer import served
from tests.explorer.pictures import OTHERS_MAX, compare, share_of_others, taken
from tests.explorer.test_accessible import KINDS, SERVED

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: sudo apt-get install chromium"),
]


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    with served(*SERVED) as url:
        yield url


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_looks_as_it_does_on_record(browser: Browser, site: str, kind: str):
    browser.open(site + KINDS[kind])

    compare(browser, kind)


BREAKS = {
    "a colour": "document.querySelector('.figures').style.background = '#933'",
    "a gap": "document.querySelector('h2').style.marginTop = '6rem'",
    "a figure is gone": "document.querySelector('figure').remove()",
}


@pytest.mark.parametrize("kind", BREAKS)
def test_what_is_broken_looks_otherwise(browser: Browser, site: str, kind: str):
    browser.open(site + KINDS["run"])
    with browser.screen(1200):
        before = taken(browser)
        assert share_of_others(before, taken(browser)) == 0
        browser.run(f"{BREAKS[kind]}; 0")
        assert share_of_others(before, taken(browser)) > OTHERS_MAX
