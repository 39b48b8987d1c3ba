"""New order page: a form for an order's essentials, with its quote, its file and the commands that place it.

Room: explorer (pure). Nothing is kept and nothing is sent: an order is in the page's own address. Keys and
money stay with the command line, which has them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar
from urllib.parse import urlencode

from assay.explorer.pages.paging import NoSuchPage
from assay.orders.form import GROUPS, ORDER_FILE, START, Draft, draft_of
from assay.orders.price.quoted import Quoted


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldLine:
    """One field as the form shows it. error: what arrived and what was expected; empty: nothing is wrong."""

    name: str
    label: str
    hint: str
    value: str
    options: Sequence[str]
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NewOrderPage:
    """The form and what follows from it. quoted, toml: None while something is wrong."""

    TEMPLATE: ClassVar[str] = "new_order.html"
    query: str  # of this page's address, that gives it again
    groups: Mapping[str, Sequence[FieldLine]]
    error_count: int
    problems: Sequence[str]  # of no single field
    quoted: Quoted | None
    file: str
    toml: str | None
    commands: Sequence[tuple[str, str]]  # what each does, and the command


def new_order_page(typed: Mapping[str, str]) -> NewOrderPage:
    """The page for what a visitor typed, by field; without anything, what the form begins with."""
    draft = draft_of(typed or START)
    return NewOrderPage(
        query=urlencode({name: text for name, text in draft.typed.items() if text}),
        groups={
            legend: [
                FieldLine(
                    name=field.name,
                    label=field.label,
                    hint=field.hint,
                    value=draft.typed[field.name],
                    options=field.options,
                    error=draft.errors.get(field.name, ""),
                )
                for field in fields
            ]
            for legend, fields in GROUPS.items()
        },
        error_count=len(draft.errors) + len(draft.problems),
        problems=draft.problems,
        quoted=draft.quoted,
        file=ORDER_FILE,
        toml=draft.toml,
        commands=_commands(draft),
    )


def order_file(typed: Mapping[str, str]) -> str:
    """The order's TOML. Raises NoSuchPage: there is none while something is wrong with it."""
    draft = draft_of(typed or START)
    if draft.toml is None:
        raise NoSuchPage(f"file of this order: {next(iter([*draft.errors.values(), *draft.problems]))}")
    return draft.toml


def _commands(draft: Draft) -> list[tuple[str, str]]:
    if draft.quoted is None:
        return []
    place = f"assay order place FILE.toml {ORDER_FILE} --members members"
    return [
        ("Check it, with its data", f"assay order check {ORDER_FILE}"),
        ("See this quote again", f"assay order quote {ORDER_FILE}"),
        ("Place it at this quote and no other", f"{place} --quote {draft.quoted.quote} --days {draft.days}"),
    ]
