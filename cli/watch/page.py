"""Page: `assay watch` on a terminal: round, loss, money, and tables of nodes, audits, verifiers and events.

Room: cli (edge: the terminal). What it shows is picture.py's; a thread reads the next picture while the page
stays responsive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.containers import Horizontal
from textual.widgets import DataTable, Footer, Static, TabbedContent, TabPane

from assay.cli.watch.chart import braille
from assay.cli.watch.lines import (
    amount_text,
    audits_text,
    head,
    latency_text,
    loss_text,
    money_rows,
    node_cells,
    peers_text,
    trip_text,
)
from assay.cli.watch.picture import Picture
from assay.orders.config_errors import one_line
from assay.protocol.errors import AssayError

REFRESH_S = 1.0
COLUMNS = {
    "nodes": ("node", "state", "audit", "last", "steps", "clean", "pay", "stake", "round trip"),
    "audits": ("step", "node", "state", "auditor", "verdicts"),
    "verifiers": ("verifier", "state", "verdicts", "paid", "stake", "round trip"),
    "events": ("round", "event"),
}
KEYS = {"n": "nodes", "a": "audits", "v": "verifiers", "e": "events"}


class WatchPage(App[None]):
    """One run on a terminal."""

    CSS = """
    #head { height: 1; background: $primary-darken-2; color: $text; padding: 0 1; }
    #top { height: 38%; min-height: 10; }
    #chart { width: 1fr; height: 100%; padding: 0 1; border: round $primary-darken-2; }
    #figures { width: 42; height: 100%; padding: 0 1; border: round $primary-darken-2; }
    #chart, #figures, #head { text-wrap: nowrap; text-overflow: ellipsis; }
    TabbedContent { height: 1fr; }
    TabPane { padding: 0; }
    DataTable { height: 1fr; }
    """
    BINDINGS = [  # noqa: RUF012 - Textual's own declaration
        *((key, f"tab('{name}')", name.capitalize()) for key, name in KEYS.items()),
        ("r", "read", "Read now"),
        ("q", "quit", "Quit"),
    ]
    ENABLE_COMMAND_PALETTE = False

    def __init__(self, read: Callable[[], Picture], title: str, refresh_s: float | None = REFRESH_S) -> None:
        """
        Args:
            read: The run as it is now; called in a thread, never twice at once.
            title: The run's name.
            refresh_s: Seconds between two pictures; None reads once.
        """
        super().__init__()
        self._read_picture, self._run_name, self._refresh_s = read, one_line(title), refresh_s
        self._picture: Picture | None = None
        self._is_reading = False

    def compose(self) -> ComposeResult:
        """The page, empty."""
        yield Static(self._run_name, id="head", markup=False)
        with Horizontal(id="top"):
            yield Static(id="chart", markup=False)
            yield Static(id="figures", markup=False)
        with TabbedContent(initial="nodes"):
            for name, columns in COLUMNS.items():
                with TabPane(name.capitalize(), id=name):
                    table: DataTable[Text | str] = DataTable(id=f"{name}-table", cursor_type="row")
                    table.add_columns(*columns)
                    yield table
        yield Footer()

    def on_mount(self) -> None:
        """Read at once, and then again and again."""
        self.action_read()
        self.query_one("#nodes-table").focus()
        if self._refresh_s is not None:
            self.set_interval(self._refresh_s, self.action_read)

    def action_read(self) -> None:
        """Read the next picture, unless the last one is still being read."""
        if not self._is_reading:
            self._is_reading = True
            self._read()

    def action_tab(self, name: str) -> None:
        """Show one of the tables."""
        self.query_one(TabbedContent).active = name
        self.query_one(f"#{name}-table").focus()

    def on_resize(self) -> None:
        """The chart has another size."""
        self.call_after_refresh(self._draw)

    @work(thread=True)
    def _read(self) -> None:
        try:
            picture = self._read_picture()
        except AssayError as error:
            self.call_from_thread(self._fail, error)
        else:
            self.call_from_thread(self._show, picture)

    def _fail(self, error: AssayError) -> None:
        self._is_reading = False
        self.query_one("#head", Static).update(
            Text(f"{self._run_name}  {one_line(str(error))}", style="bold red")
        )

    def _show(self, picture: Picture) -> None:
        self._is_reading = False
        self._picture = picture
        self._draw()

    def _draw(self) -> None:
        found = self._picture
        if found is None:
            return
        who = "" if found.me is None else f"  {found.me.hex()[:8]}"
        self.query_one("#head", Static).update(Text(f"{self._run_name}{who}  {head(found)}", no_wrap=True))
        self._draw_chart(found)
        figures = self.query_one("#figures", Static)
        figures.border_subtitle = one_line(found.note)
        figures.update(_figures(found))
        self._fill("nodes", [[_coloured(cell) for cell in node_cells(one)] for one in found.nodes])
        self._fill(
            "audits",
            [
                (
                    f"round {one.round}",
                    one.node.hex()[:8],
                    one.status,
                    one.auditor.hex()[:8],
                    str(one.verdicts),
                )
                for one in found.audits
            ],
        )
        self._fill(
            "verifiers",
            [
                (
                    one.peer.hex()[:8],
                    "DISQUALIFIED" if one.is_disqualified else "present" if one.is_present else "absent",
                    str(one.judged),
                    amount_text(one.paid),
                    amount_text(one.stake),
                    trip_text(one.round_trip_us),
                )
                for one in found.verifiers
            ],
        )
        events = reversed(found.events)
        self._fill(
            "events", [(str(one.round), Text(one.text, "bold red" if one.is_alarm else "")) for one in events]
        )

    def _draw_chart(self, found: Picture) -> None:
        chart = self.query_one("#chart", Static)
        chart.border_title = "Loss"
        size = chart.content_size
        width, height = max(size.width, 1), max(size.height - 1, 1)
        curve = "\n".join(braille(found.losses, found.rounds, width, height))
        chart.update(Text("\n").join([Text(curve, "cyan"), Text(_cut(loss_text(found), width))]))

    def _fill(self, name: str, rows: Iterable[Sequence[Text | str]]) -> None:
        table = self.query_one(f"#{name}-table", DataTable)
        at = table.cursor_row
        table.clear()
        table.add_rows(rows)
        if 0 <= at < table.row_count:
            table.move_cursor(row=at)


def _figures(found: Picture) -> Text:
    text = Text()
    rows = [
        ("audits", audits_text(found)),
        ("peers", peers_text(found)),
        ("latency", latency_text(found)),
        *money_rows(found),
    ]
    for name, value in rows:
        text.append(f"{name:<8}", "bold")
        text.append(f"{value}\n")
    return text


def _coloured(cell: str) -> Text:
    styles = {
        "banned": "bold red",
        "late": "yellow",
        "suspect": "yellow",
        "away": "yellow",
        "drawn": "magenta",
    }
    return Text(cell, styles.get(cell, ""))


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text.split(",")[0][:width]
