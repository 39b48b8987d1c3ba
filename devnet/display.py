"""Display: shows a local run's progress, live on a terminal and line by line elsewhere.

Room: devnet (edge: the terminal and the clock). The texts come from `lines`; this file places them. On a
terminal the last rounds and a progress bar stay at the bottom, and everything else scrolls past above them.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from assay.devnet.lines import COLUMNS, duration_text, event_line, round_cells, round_line
from assay.ledger.queries.report import RoundFigures
from assay.ledger.settlement.ending import Ending
from assay.observer.ledger_service.status import EpochReport, RefundReport, SlashReport
from assay.orders.config_errors import one_line

ROWS_MAX = 12  # rounds shown at once
FRAME_LINES = 8  # of a terminal's height, left to the table's frame, the bar and a line above
ETA_ROUNDS = 12  # recent rounds on which the ETA is based
REFRESH_HZ = 4


class Display:
    """A context manager around one run; safe to leave at any point, also by an exception."""

    def __init__(
        self,
        rounds: int,
        is_terminal: bool,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            rounds: Training rounds of the run.
            is_terminal: Draw live; otherwise write lines without control characters.
            console: Where to; standard output if absent.
            clock: Seconds that never go back.
        """
        self._rounds, self._clock = rounds, clock
        self._console = console or (
            Console() if is_terminal else Console(force_terminal=False, no_color=True)
        )
        self._step: Spinner | None = None
        self._step_text = ""
        self._recent: deque[RoundFigures] = deque(maxlen=ROWS_MAX)
        self._times: deque[float] = deque(maxlen=ETA_ROUNDS)
        self._started = clock()
        self._is_finished = False
        self._live = (
            Live(
                get_renderable=self._picture,
                console=self._console,
                refresh_per_second=REFRESH_HZ,
                vertical_overflow="crop",
            )
            if is_terminal
            else None
        )

    def __enter__(self) -> Display:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._step_text:
            self._print_line(f"stopped during: {self._step_text}", "red")
            self._step, self._step_text = None, ""
        if self._live:
            self._live.stop()

    def setup(self, text: str) -> None:
        """A set-up step begins."""
        self._step_text = one_line(text)
        name = "line" if self._console.options.ascii_only else "dots"
        self._step = Spinner(name, Text(self._step_text), style="cyan")
        self._draw()

    def setup_done(self, text: str, seconds: float) -> None:
        """The step is done; `text` says what there is now."""
        self._step, self._step_text = None, ""
        mark = "ok" if self._live is None or self._console.options.ascii_only else "✓"
        self._print_line(f"{mark} {text} ({duration_text(seconds)})", "green", styled=len(mark))

    def feed(self, report: RoundFigures | Ending | SlashReport | EpochReport | RefundReport) -> None:
        """One report of the ledger service."""
        if isinstance(report, RoundFigures):
            self.round(report)
        else:
            self.event(event_line(report), is_alarm=isinstance(report, SlashReport | Ending))

    def round(self, figures: RoundFigures) -> None:
        """A round is final."""
        self._rounds = figures.rounds  # fewer than ordered, once the run closes early
        if self._live is None:
            self._print_line(round_line(figures))
            return
        self._recent.append(figures)
        if figures.round < self._rounds:
            self._times.append(self._clock())
        self._draw()

    def event(self, text: str, *, is_alarm: bool = False) -> None:
        """Another report, such as a slash or a settlement."""
        self._print_line(f"* {text}", "bold red" if is_alarm else "yellow")

    def finish(self) -> None:
        """The run is over; what is drawn stays."""
        self._is_finished = True
        if self._live is None:
            self._print_line(f"finished in {duration_text(self._clock() - self._started)}")
        self._draw()

    def _print_line(self, text: str, style: str = "", *, styled: int | None = None) -> None:
        """A line that stays, with its first `styled` characters (or all) in a style."""
        line = Text(one_line(text))
        if self._live is None:
            self._console.print(line, soft_wrap=True)
            return
        line.stylize(style, 0, styled)
        self._console.print(line)

    def _draw(self) -> None:
        if self._live:
            self._live.refresh()

    def _picture(self) -> RenderableType:
        """The live part at the bottom."""
        parts: list[RenderableType] = [self._step] if self._step else []
        if self._recent:
            parts += [self._table(), self._bar()]
        return Group(*parts)

    def _table(self) -> Table:
        is_narrow = self._console.width < 100
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), header_style="bold")
        for name in COLUMNS:
            short = "audits d/p/f" if is_narrow else "audits drawn/passed/failed"
            title = short if name == "drawn/passed/failed" else name
            least = len("closing") if name == "loss" else None
            table.add_column(title, justify="right", no_wrap=True, min_width=least)
        room = max(1, min(ROWS_MAX, self._console.height - FRAME_LINES))
        for figures in list(self._recent)[-room:]:
            has_fault = bool(figures.slashes or figures.audits.failed)
            cells = [Text(cell) for cell in round_cells(figures)]
            if figures.nodes < figures.active and figures.round < self._rounds:
                cells[2].stylize("yellow")
            if has_fault:
                cells[5].stylize("red")
                cells[6].stylize("bold red" if figures.slashes else "")
            table.add_row(*cells)
        return table

    def _bar(self) -> Table:
        done = min(self._recent[-1].round + 1, self._rounds)
        line = Table.grid(padding=(0, 1), expand=True)
        line.add_column(ratio=1)
        line.add_column(no_wrap=True)
        line.add_row(ProgressBar(total=self._rounds, completed=done), Text(self._outlook(done)))
        return line

    def _outlook(self, done: int) -> str:
        """Progress, speed and remaining time."""
        now = self._clock()
        if self._is_finished:
            return f"{done}/{self._rounds}  finished in {duration_text(now - self._started)}"
        if done >= self._rounds:
            return f"{done}/{self._rounds}  closing audits and accounts"
        if len(self._times) < 2:
            return f"{done}/{self._rounds}  {duration_text(now - self._started)}"
        state_sync = (self._times[-1] - self._times[0]) / (len(self._times) - 1)
        left = max(0.0, state_sync * (self._rounds - done) - (now - self._times[-1]))
        return f"{done}/{self._rounds}  {duration_text(state_sync)} a round  ETA {duration_text(left)}"
