"""The display: what a person sees, on a terminal and off it."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from assay.devnet.display import Display
from assay.devnet.lines import duration_text, round_cells
from assay.ledger.queries.report import AuditFigures, RoundFigures
from assay.observer.ledger_service.status import EpochReport, RefundReport, SlashReport
from assay.orders.config_errors import one_line

ESCAPE = "\x1b"


def a_round(number: int, rounds: int = 60, **changes) -> RoundFigures:
    figures = {
        "round": number,
        "rounds": rounds,
        "loss": 5.5 - number / 30 if number < rounds else None,
        "nodes": 5,
        "active": 5,
        "bytes": 40_500,
        "signatures": 3,
        "verifiers": 4,
        "audits": AuditFigures(drawn=12, passed=10, failed=1),
        "slashes": 1,
        "escrow": 3_225_600,
    }
    return RoundFigures(**{**figures, **changes})


SLASHED = SlashReport(
    node="3fa1c2d0" * 8, amount=500_000_001, burnt=250_000_001, buyer=125_000_000, challenger=125_000_000
)


def shown(is_terminal: bool, width: int = 80, height: int = 24, encoding: str = "utf-8") -> str:
    """Everything a whole run writes."""
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding=encoding)
    console = Console(file=out, force_terminal=is_terminal, width=width, height=height, legacy_windows=False)
    times = iter(range(10_000))
    with Display(60, is_terminal, console, clock=lambda: float(next(times))) as display:
        display.setup("starting the chain")
        display.setup_done("chain on port 8545", 1.25)
        for number in range(72):
            display.feed(a_round(number))
        display.feed(SLASHED)
        display.feed(EpochReport(epoch=0, phase="posted", total=512_000))
        display.feed(RefundReport(amount=153_600))
        display.finish()
    out.flush()
    return raw.getvalue().decode(encoding)


def test_plain_output_has_no_control_characters():
    text = shown(False)

    assert all(line.isprintable() for line in text.split("\n"))


def test_plain_output_is_one_line_per_step_round_and_event():
    lines = shown(False).splitlines()

    assert lines[0] == "ok chain on port 8545 (1.2 s)"
    assert lines[1] == (
        "round 0 (1/60)  loss 5.5000  nodes 5/5  40.5 kB  certificate 3/4  "
        "audits 12 drawn 10 passed 1 failed  slashes 1  escrow 3.225600 aUSD"
    )
    assert lines[61].startswith("closing 60  certificate 3/4  audits 12 drawn")
    assert "loss" not in lines[61]
    assert lines[73:76] == [
        "* node 3fa1c2d0 slashed 500.000001 aUSD: 250.000001 burnt, "
        "125.000000 to buyer, 125.000000 to challenger",
        "* epoch 0 posted: 0.512000 aUSD",
        "* refunded 0.153600 aUSD to the buyer",
    ]
    assert len(lines) == 1 + 72 + 3 + 1


def test_plain_output_ignores_a_console_that_would_colour_it(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    with Display(60, False) as display:
        display.setup_done("chain", 1.0)
        display.round(a_round(0))
        display.event("slashed", is_alarm=True)

    assert ESCAPE not in capsys.readouterr().out


def test_words_from_elsewhere_cannot_draw_on_the_terminal():
    for is_terminal in (False, True):
        out = io.StringIO()
        console = Console(file=out, force_terminal=is_terminal, width=80, height=24)
        with Display(60, is_terminal, console) as display:
            display.setup("[red]x\x1b]0;title\x07")
            display.setup_done("[red]done\x1b[2J", 0.1)
            display.event("mal\x1b[31mice\rover\nline")
            display.feed(EpochReport(epoch=0, phase="\x1b[2J", total=1))

        text = out.getvalue()
        assert "\x1b[2J" not in text
        assert "\x1b]0;" not in text
        assert "mal?[31mice?over?line" in text
        assert "[red]done" in text  # markup is text, too


@pytest.mark.slow
@pytest.mark.parametrize(
    ("width", "height"),
    [*((width, 24) for width in (10, 20, 40, 60, 79, 80, 100, 140, 300)), (80, 1), (40, 10), (10, 60)],
)
def test_the_live_display_never_writes_a_line_wider_than_the_terminal(width, height):
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown(True, width, height)).replace("\r", "\n")

    assert max(len(line) for line in text.split("\n")) <= width


def test_everything_of_a_round_fits_in_80_columns_also_with_a_large_escrow():
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=80, height=24, color_system=None)
    with Display(1000, True, console) as display:
        display.round(
            a_round(
                999,
                1000,
                loss=10.1234,
                escrow=98_765_432_109,
                audits=AuditFigures(drawn=5000, passed=4990, failed=10),
            )
        )
        display.round(a_round(1000, 1000))
    text = out.getvalue()

    assert "…" not in text
    for cell in ("closing", "98,765.432109", "5000/4990/10", "40.5 kB"):
        assert cell in text


def test_the_last_rounds_stay_and_the_oldest_go():
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=80, height=40, color_system=None)
    with Display(60, True, console) as display:
        for number in range(20):
            display.round(a_round(number))
        out.seek(0), out.truncate()
    last = out.getvalue()

    rows = re.findall(r"^ +(\d+) +\d\.\d{4}", last, re.MULTILINE)
    assert rows[-12:] == [str(number) for number in range(8, 20)]  # a refresh may print it twice


def test_a_terminal_that_cannot_show_unicode_is_given_ascii():
    assert shown(True, encoding="ascii").isascii()


def test_the_eta_goes_by_the_recent_pace():
    now = [0.0]
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=80, height=24, color_system=None)
    with Display(60, True, console, clock=lambda: now[0]) as display:
        for number in range(30):
            display.round(a_round(number))
            now[0] += 100.0 if number < 10 else 2.0
        now[0] -= 2.0

    assert "30/60  2.0 s a round  ETA 1:00" in out.getvalue()


def test_a_run_that_breaks_off_says_during_what_and_gives_the_terminal_back():
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=80, height=24)

    def run() -> None:
        with Display(60, True, console) as display:
            display.setup("deploying contracts")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        run()

    assert "stopped during: deploying contracts" in out.getvalue()
    assert out.getvalue().count("\x1b[?25h") == out.getvalue().count("\x1b[?25l")  # the cursor


def test_a_round_without_a_loss_or_after_training_shows_none():
    assert round_cells(a_round(3, loss=None))[1] == "-"
    assert round_cells(a_round(60))[1:4] == ("closing", "-", "-")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0.0 s"), (9.94, "9.9 s"), (12.4, "12 s"), (59.6, "1:00"), (185, "3:05"), (3723, "1:02:03")],
)
def test_durations_read_well(seconds, text):
    assert duration_text(seconds) == text


def test_one_line_keeps_letters_of_every_script():
    assert one_line("Zürich 東京\t\x00") == "Zürich 東京??"
