"""Result: what a command found or did, printed as lines for a person or, with `--json`, as one document.

Room: cli (edge: standard output). A command makes a value; `show` and `show_steps` are the only places
that print one. A document has the fields of its value, and names the value's type:

    {"schema": "assay/stake-status/1", "account": "0x...", ...}

Amounts are integers in units of 10^-6 token, times are Unix seconds, bytes are hexadecimal.
What is printed may quote an endpoint, a peer or a file, which must not move a terminal's cursor: lines have
`?` for each character that could, documents its escape.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from assay.orders.config_errors import printable
from assay.protocol.encoding.json_text import plain

if TYPE_CHECKING:
    from assay.chain.client import Sent

T = TypeVar("T")
_CAPITAL = re.compile(r"(?<!^)(?=[A-Z])")
_BEYOND_ASCII = re.compile(r"[^\n -~]")
SCHEMA = 1  # of all documents: raised when a field is renamed or removed, not when one is added
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document, and nothing else.")]


class State(str, Enum):
    """What became of a step."""

    DONE = "done"
    DRY = "dry"  # `--dry-run`: it would be done
    NOTHING = "nothing"  # there was nothing to do, or it cannot be done yet
    TOLD = "told"  # something that was found


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One thing that a command did, would do, or found on the way."""

    name: str
    state: State
    text: str
    amount: int | None = None  # token units
    sent: Sent | None = None  # the transaction that did it


@dataclass(frozen=True, slots=True)
class Steps:
    """All steps of a command, in order; after an error those that came before it."""

    steps: tuple[Step, ...]


def told(name: str, text: str, amount: int | None = None) -> Step:
    """Something found."""
    return Step(name=name, state=State.TOLD, text=text, amount=amount)


def nothing(name: str, text: str) -> Step:
    """There was nothing to do."""
    return Step(name=name, state=State.NOTHING, text=text)


def dry(name: str, text: str, amount: int | None = None) -> Step:
    """What would be done."""
    return Step(name=name, state=State.DRY, text=text, amount=amount)


def done(name: str, text: str, amount: int | None = None, sent: Sent | None = None) -> Step:
    """What was done; with a transaction, where it is on chain."""
    return Step(name=name, state=State.DONE, text=text, amount=amount, sent=sent)


def show(value: Any, lines: Iterable[str], *, as_json: bool) -> None:
    """Print a value: its document, or the lines that say it to a person.

    Args:
        value: A dataclass.
        lines: Not read where a document is printed.
        as_json: Whether it is.
    """
    if as_json:
        typer.echo(document(value))
        return
    for line in lines:
        say(line)


def say(text: str, *, err: bool = False) -> None:
    """Print text for a person, on standard output or as `err` on standard error."""
    typer.echo(printable(text), err=err)


def show_steps(steps: Iterable[Step], *, as_json: bool) -> None:
    """Print each step as it comes: a failing transaction must not hide one already made."""
    show_each(steps, lambda step: step.text, lambda taken: Steps(tuple(taken)), as_json=as_json)


def stepwise(command: Callable[..., Iterator[Step]]) -> Callable[..., None]:
    """A command as Typer registers it, of a generator of its steps: they are shown, and `--json` is added."""
    asked = inspect.signature(command, eval_str=True)
    option = inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=AsJson)

    @wraps(command)
    def shown(*, as_json: bool, **given: Any) -> None:
        show_steps(command(**given), as_json=as_json)

    shown.__signature__ = asked.replace(parameters=[*asked.parameters.values(), option])  # type: ignore[attr-defined]
    return shown


def show_each(
    items: Iterable[T], text: Callable[[T], str], whole: Callable[[list[T]], Any], *, as_json: bool
) -> list[T]:
    """Print each item as it comes, or all of them, up to an error, as one document; returns them.

    Args:
        items: What comes.
        text: An item for a person.
        whole: The value of all items that came.
        as_json: Print its document instead.
    """
    taken: list[T] = []
    is_whole = False
    try:
        for item in items:
            taken.append(item)
            if not as_json:
                say(text(item))
        is_whole = True
    finally:
        if as_json and (taken or is_whole):
            typer.echo(document(whole(taken)))
    return taken


def document(value: Any) -> str:
    """A value's document, under the name of its type."""
    found = json.dumps({"schema": document_name(type(value)), **plain(value)}, indent=2, ensure_ascii=False)
    return escaped(found)


def escaped(text: str) -> str:
    """JSON with an escape for each character that could move a terminal's cursor; its value is the same."""
    return _BEYOND_ASCII.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    character = found[0]
    return character if character.isprintable() else json.dumps(character)[1:-1]


def document_name(kind: type | str) -> str:
    """The name of the document of a type's values; the type, or its name, is given."""
    name = kind if isinstance(kind, str) else kind.__name__
    return f"assay/{_CAPITAL.sub('-', name).lower()}/{SCHEMA}"
