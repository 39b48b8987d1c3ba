"""Page: what `assay watch` shows of recorded state, at two sizes, is what is on record.

With RECORD_SCREENS=1 the screens are recorded again, after a change that is meant.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from assay.cli.watch.lines import picture_lines
from assay.cli.watch.picture import MoneyView, Picture
from assay.protocol.errors import ConfigError
from tests.cli.watch.a_screen import a_picture, golden, shown

pytestmark = pytest.mark.slow

SCREENS = Path(__file__).parents[2] / "vectors" / "screens"
LINKS = golden().spec.rounds + 4  # training is over, one node is banned


@pytest.mark.parametrize("key", ["n", "a", "v", "e"])
@pytest.mark.parametrize("size", [(80, 24), (120, 40)], ids=["80x24", "120x40"])
def test_the_screen_is_the_one_on_record(size: tuple[int, int], key: str):
    picture = a_picture(8 if key == "a" else LINKS)

    found = shown(lambda: picture, size, key)

    file = SCREENS / f"{key}-{size[0]}x{size[1]}.txt"
    if "RECORD_SCREENS" in os.environ:
        file.parent.mkdir(exist_ok=True)
        file.write_text("\n".join(found) + "\n")
    assert found == file.read_text().splitlines()
    assert len(found) <= size[1] and max(map(len, found)) <= size[0]


def test_a_page_without_a_round_waits():
    picture = a_picture(0, money=MoneyView(note="the chain does not answer"))

    lines = shown(lambda: picture, (80, 24))

    assert "no round is final yet" in lines[0]
    assert any("the chain does not answer" in line for line in lines)
    assert any("no loss yet" in line for line in lines)


def once_then_damaged(picture: Picture) -> Callable[[], Picture]:
    answers = [picture]

    def read() -> Picture:
        if answers:
            return answers.pop()
        raise ConfigError("store.db: is not a participant's store")

    return read


def test_an_error_is_told_on_the_page_and_what_was_read_stays():
    lines = shown(once_then_damaged(a_picture(LINKS)), (120, 40), "r")

    assert "store.db: is not a participant's store" in lines[0]
    assert any("banned" in line for line in lines)


def test_the_page_follows_the_run():
    pictures = [a_picture(9), a_picture(8)]

    before = shown(lambda: pictures[-1], (80, 24))
    after = shown(lambda: pictures.pop(), (80, 24), "r")

    rounds = golden().spec.rounds
    assert f"round 8/{rounds}" in before[0] and f"round 9/{rounds}" in after[0]


def test_a_pipe_gets_the_same_as_lines():
    text = "\n".join(picture_lines(a_picture(LINKS, me=golden().spec.nodes[0].peer)))

    rounds = golden().spec.rounds
    assert f"closing  round {rounds}/{rounds}" in text and "banned" in text and "stake     1,000.00" in text
    assert "\x1b" not in text
