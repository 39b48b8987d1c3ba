"""Reference pages: writes commands, keys, routes and contracts' errors from the code into docs/reference/.

`python -m tests.reference_pages` writes them; tests/test_reference_pages.py holds the pages to the code.
"""

from __future__ import annotations

import ast
import inspect
import io
import re
import textwrap
import tokenize
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from assay.api.app import make_app
from assay.chain.text.reverts import TEXTS
from assay.cli.main import EXIT_STATUS
from assay.cli.process import OperatorSection, ProcessFile
from assay.orders.sections import RunFile
from tests.commands import COMMANDS

FOLDER = Path(__file__).parents[1] / "docs" / "reference"
NOTE = "<!-- Written by `python -m tests.reference_pages`; change the code, not this page. -->"
HIDDEN = {"help", "install_completion", "show_completion"}


def commands() -> str:
    """Every command with its arguments, options and example, by panel."""
    panels: dict[str, list[str]] = {}
    for name, command in COMMANDS.commands.items():
        panel = str(getattr(command, "rich_help_panel", None) or "")
        if not command.hidden:
            panels.setdefault(panel, []).extend(_command(f"assay {name}", command))
    lines = ["# Commands", "", f"{EXIT_STATUS}", ""]
    for panel, found in panels.items():
        lines += [f"## {panel}", "", *found]
    return _page(lines)


def _command(name: str, command: Any) -> Iterator[str]:
    if hasattr(command, "commands"):
        for word, inner in command.commands.items():
            if not inner.hidden:
                yield from _command(f"{name} {word}", inner)
        return
    text, _, example = inspect.cleandoc(command.help or "").partition("Example:")
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    usage = " ".join([name, *(_metavar(one) for one in arguments)])
    yield from (f"### `{name}`", "", " ".join(text.split()), "", "```", usage, "```")
    if example:
        yield from ("Example:", "```", example.strip(), "```")
    rows = [row for one in command.params if one.name not in HIDDEN and (row := _parameter(one))]
    yield from ("", *_table(("", "meaning", "default"), rows), "") if rows else ("",)


def _parameter(one: Any) -> tuple[str, str, str] | None:
    text = getattr(one, "help", None) or ""
    if getattr(one, "hidden", False) or (one.param_type_name == "argument" and not text):
        return None
    name = _metavar(one) if one.param_type_name == "argument" else ", ".join(one.opts)
    shown = "" if one.default in (None, False, ()) or callable(one.default) else f"`{one.default}`"
    return f"`{name}`", " ".join(text.split()), shown


def _metavar(one: Any) -> str:
    return str(one.metavar or one.name.upper())


def configuration() -> str:
    """The keys of a participant's configuration."""
    lines = [
        "# Configuration",
        "",
        "The TOML file of a node, a verifier, a ledger service, a watchtower or a buyer.",
        "",
    ]
    said = f"A node's table `[operator]`: {_promise(OperatorSection)}"
    return _page([*lines, *_keys(ProcessFile), "", "## `[operator]`", "", said, "", *_keys(OperatorSection)])


def order_file() -> str:
    """The keys of an order, table by table."""
    lines = [
        "# Order file",
        "",
        "A buyer's `run.toml`. Every key has a default; docs/buyers.md says what they are for.",
        "",
    ]
    for name, field in RunFile.model_fields.items():
        kind = field.annotation
        section = kind if inspect.isclass(kind) and issubclass(kind, BaseModel) else kind.__args__[0]  # type: ignore[union-attr]
        lines += [f"## `[{name}]`" if section is kind else f"## `[[{name}]]`", ""]
        said = _promise(section)
        lines += [said[:1].upper() + said[1:], "", *_keys(section), ""]
    return _page(lines)


def _promise(section: type[BaseModel]) -> str:
    said = " ".join((section.__doc__ or "").split())
    return said.partition(": ")[2] or said


def _keys(kind: type[BaseModel]) -> list[str]:
    schema, said = kind.model_json_schema()["properties"], _comments(kind)
    rows = []
    for name, field in kind.model_fields.items():
        default = field.get_default(call_default_factory=True) if not field.is_required() else None
        shown = (
            "required" if field.is_required() else "" if default in (None, (), {}) else f"`{_spelt(default)}`"
        )
        rows.append((f"`{name}`", _type(schema[name]), shown, said.get(name, "")))
    return _table(("key", "value", "default", ""), rows)


def _spelt(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(_spelt, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return "table"
    if "anyOf" in schema:
        kinds = [_type(one) for one in schema["anyOf"] if one.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    if "enum" in schema:
        return ", ".join(f"`{one}`" for one in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    kind = {
        "integer": "integer", "number": "number", "string": "text", "boolean": "true, false",
        "object": "table",
    }  # fmt: skip
    bounds = [
        f"{word} {schema[key]:,}"
        for key, word in (
            ("minimum", "at least"), ("exclusiveMinimum", "above"),
            ("maximum", "at most"), ("exclusiveMaximum", "below"),
        )
        if key in schema
    ]  # fmt: skip
    return ", ".join([kind.get(str(schema.get("type")), "value"), *bounds])


def _comments(kind: type) -> dict[str, str]:
    """What the source says beside a field, or in the line above it."""
    source = textwrap.dedent(inspect.getsource(kind))
    notes = {
        token.start[0]: token.string.removeprefix("#").strip()
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT and not token.string.startswith(("# type:", "# fmt:"))
    }
    lines, found = source.splitlines(), {}
    for node in ast.parse(source).body[0].body:  # type: ignore[attr-defined]
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            inside = [
                notes[at] for at in range(node.lineno, (node.end_lineno or node.lineno) + 1) if at in notes
            ]
            above = notes.get(node.lineno - 1) if lines[node.lineno - 2].lstrip().startswith("#") else None
            found[node.target.id] = " ".join(filter(None, [above, *inside]))
    return found


def routes() -> str:
    """Every route of the HTTP API."""
    found = make_app().openapi()["paths"]
    rows = [
        (f"`{method.upper()}`", f"`{path}`", str(route.get("description", "")).partition("\n")[0])
        for path, methods in found.items()
        for method, route in methods.items()
    ]
    said = "What `assay api serve` answers; schemas at its `/openapi.json`, use in docs/api.md."
    return _page(["# HTTP routes", "", said, "", *_table(("", "address", ""), rows)])


def refusals() -> str:
    """What the contracts' errors mean."""
    rows = [(f"`{name}`", re.sub(r"\{\d(:\w+)?\}", "…", text)) for name, text in sorted(TEXTS.items())]
    said = "Each custom error of the contracts, as a command explains it."
    return _page(["# Contracts' errors", "", said, "", *_table(("error", "meaning"), rows)])


PAGES: dict[str, Callable[[], str]] = {
    "commands.md": commands,
    "configuration.md": configuration,
    "order-file.md": order_file,
    "routes.md": routes,
    "refusals.md": refusals,
}


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    cells = [
        re.sub(r"\s+", " ", " | ".join(cell.replace("|", "\\|") for cell in row)).strip() for row in rows
    ]
    return [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *(f"| {line} |" for line in cells)]


def _page(lines: list[str]) -> str:
    first, *rest = lines
    return "\n".join([first, "", NOTE, *rest]).rstrip() + "\n"


if __name__ == "__main__":
    for page, make in PAGES.items():
        (FOLDER / page).write_text(make())
