"""A screen: the page of `assay watch` on recorded state, and its characters as lines."""

from __future__ import annotations

import asyncio
import html
import re
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from assay.bundle.read import Delivered, read
from assay.cli.watch.page import WatchPage
from assay.cli.watch.picture import Chronicle, MoneyView, Picture
from assay.participant.telemetry.round_trips import FORMAT, RoundTrips
from assay.protocol.types import PeerId
from tests.test_golden_run import ARCHIVE


@cache
def golden() -> Delivered:
    """The recorded run; its links stay when the folder is gone."""
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(ARCHIVE) as archive:
            archive.extractall(folder, filter="data")
        return read(Path(folder))


def chronicle_of(links: int) -> Chronicle:
    """The recorded run after so many manifests."""
    run = golden()
    found = Chronicle(run.spec, run.run_id)
    for link in run.links[:links]:
        found.add(link)
    return found


def a_picture(links: int, me: PeerId | None = None, money: MoneyView | None = None) -> Picture:
    """The recorded run after so many manifests, with stakes, and round trips to all nodes but one."""
    stakes = {member.peer: 10**9 for member in golden().spec.nodes}
    us = {member.peer: 900 + 1100 * at for at, member in enumerate(golden().spec.nodes[1:])}
    trips = RoundTrips(format=FORMAT, at_s=0, us=us)
    return chronicle_of(links).picture(me, money or MoneyView(budget=5 * 10**9, stakes=stakes), trips)


def screen_of(page: WatchPage) -> list[str]:
    """The characters of a screen, line by line."""
    svg = page.export_screenshot()
    lines: dict[float, list[tuple[float, str]]] = {}
    for x, y, text in re.findall(
        r'<text class="[^"]*-r\d+" x="([\d.]+)" y="([\d.]+)"[^>]*>([^<]*)</text>', svg
    ):
        shown = html.unescape(text).replace("\xa0", " ")
        lines.setdefault(float(y), []).append((float(x), shown))
    found = []
    for _, parts in sorted(lines.items()):
        line = ""
        for x, text in sorted(parts):
            line = line.ljust(round(x / 12.2)) + text
        found.append(line.rstrip())
    return found


def shown(
    read_picture: Callable[[], Picture],
    size: tuple[int, int],
    keys: Sequence[str] = (),
    refresh_s: float | None = None,
) -> list[str]:
    """The screen after the first picture and some keys."""

    async def play() -> list[str]:
        page = WatchPage(read_picture, "golden", refresh_s)
        async with page.run_test(size=size) as pilot:
            await page.workers.wait_for_complete()
            await pilot.pause()
            for key in keys:
                await pilot.press(key)
                await page.workers.wait_for_complete()
                await pilot.pause()
            return screen_of(page)

    return asyncio.run(play())
