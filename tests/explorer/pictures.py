"""Pictures: what a page looks like, in blocks of pixels, compared with what is on record.

All text is set in one font that matplotlib brings, so that no machine's fonts matter, and nothing is smaller
than a block. `RECORD_PICTURES=1 pytest tests/explorer/test_pictures.py tests/api/test_wallet.py` records,
after a look at the pages. Another major version of Chromium may lay a page out otherwise: then nothing is
compared.
"""

from __future__ import annotations

import base64
import io
import json
import os
from functools import cache
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from tests.explorer.a_browser import Browser

FOLDER = Path(__file__).parents[1] / "vectors/pictures"
SCREENS = ((360, "dark"), (1200, "light"))
SCALE, REDUCED = (
    0.25,
    4,
)  # a block is one pixel of a picture a quarter as large, reduced by four: 16 of the page
CLOSE = 12  # of 255: blocks are alike
OTHERS_MAX = 0.005  # share of blocks that are not, such as a port's digits
Blocks = NDArray[np.uint8]
SET = """(async data => {
  if (globalThis.isSet) return;
  const font = new FontFace("pictures", Uint8Array.from(atob(data), one => one.charCodeAt(0)));
  document.fonts.add(await font.load());
  const sheet = new CSSStyleSheet();
  sheet.replaceSync("*, ::before, ::after { font-family: pictures !important; transition: none !important }");
  document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];
  globalThis.isSet = true;
})(DATA)"""


@cache
def _font() -> str:
    path = Path(matplotlib.get_data_path()) / "fonts/ttf/DejaVuSans.ttf"
    return json.dumps(base64.b64encode(path.read_bytes()).decode())


def taken(browser: Browser) -> Blocks:
    """The whole open page on the present screen, the mean of each block. Shape (height, width, 3)."""
    browser.run(SET.replace("DATA", _font()))
    browser.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done))).then(() => 0)")
    browser.ask("Emulation.setScrollbarsHidden", hidden=True)
    wide, high = browser.run("[innerWidth, document.documentElement.scrollHeight]")
    clip = {"x": 0, "y": 0, "width": wide, "height": high, "scale": SCALE}
    shot = browser.ask("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
    picture = Image.open(io.BytesIO(base64.b64decode(shot["data"]))).convert("RGB")
    found: Blocks = np.asarray(picture.reduce(REDUCED))
    return found


def share_of_others(one: Blocks, other: Blocks) -> float:
    """The share of blocks in which two pictures differ: 1 if they have other sizes."""
    if one.shape != other.shape:
        return 1.0
    return float((np.abs(one.astype(int) - other).max(axis=2) > CLOSE).mean())


def compare(browser: Browser, name: str) -> None:
    """Compare the open page with its pictures on record: on a phone in the dark, on a desk in the light."""
    major = browser.ask("Browser.getVersion")["product"].split(".")[0]
    of = FOLDER / "browser.txt"
    for width, scheme in SCREENS:
        with browser.screen(width, scheme):
            found = taken(browser)
        path = FOLDER / f"{name.replace(' ', '-')}-{width}-{scheme}.png"
        if os.environ.get("RECORD_PICTURES"):
            FOLDER.mkdir(exist_ok=True)
            Image.fromarray(found).save(path, optimize=True)
            of.write_text(f"{major}\n")
            continue
        if of.read_text().strip() != major:
            pytest.skip(f"pictures are of {of.read_text().strip()}, this is {major}")
        share = share_of_others(found, np.asarray(Image.open(path)))
        assert share <= OTHERS_MAX, f"{path.name}: {share:.1%} of the page looks otherwise"
