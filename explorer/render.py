"""Render: turns a page's value into HTML by its template, or into JSON.

Room: explorer (edge: reads its own templates). Autoescaping is on for every template: a stranger wrote a
run's texts. A value that a template needs and does not get is an error, never an empty text.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, ClassVar, Protocol

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from assay.bundle.report.charts import figure_html
from assay.chain.text.times import span_text
from assay.chain.text.units import UNIT, money_text
from assay.explorer import drawings, losses
from assay.protocol.encoding.json_text import plain

TIME_S_MAX = 253_402_300_799  # the last second that has a date in four digits


class Page(Protocol):
    """A page's value: a dataclass that names its template."""

    TEMPLATE: ClassVar[str]
    __dataclass_fields__: ClassVar[dict[str, Any]]


def html_of(page: Page, address: str, api: str = "") -> str:
    """The page at this address, with a link to the wallet page of an API's address, if one is given."""
    return _TEMPLATES.get_template(page.TEMPLATE).render(page=page, address=address, api=api)


def json_of(page: Page) -> str:
    """The same value as one JSON object, bytes in hexadecimal."""
    return json.dumps(plain(page), ensure_ascii=False)


def _when(unix_s: int) -> str:
    if unix_s > TIME_S_MAX:  # agreed by verifiers that lie about it
        return str(unix_s)
    return datetime.fromtimestamp(unix_s, timezone.utc).strftime("%Y-%m-%d %H:%M:%S")


def _loss(micro: int) -> str:
    """A loss with four decimals, in integers: page.mjs computes the same text from the signed figure."""
    whole, part = divmod((micro + 50) // 100, 10**4)
    return f"{whole:,}.{part:04d}"


_TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_FILTERS: dict[str, Callable[..., Any]] = {
    "money": money_text,
    "when": _when,
    "span": span_text,
    "ppm": lambda value: f"{value / 1e4:.4g} %",
    "loss": _loss,
    "ms": lambda us: f"{us / 1000:,.1f} ms",
    "figure": lambda chart: Markup(figure_html(chart)),  # it escapes every text
    "spark_path": lambda curve, scale, last: losses.spark_path(scale, curve, last),
    "map_paths": drawings.map_paths,
}
_TEMPLATES.filters |= _FILTERS
_TEMPLATES.globals |= {
    "UNIT": UNIT,
    "CELL": drawings.CELL,
    "SPARK_BOX": f"0 0 {losses.SPARK_WIDTH} {losses.SPARK_HEIGHT}",
    "MARK_TEXT": drawings.MARK_TEXT,
}
