"""Registry text: JSON and Markdown formatting of the registry's files.

Room: bundle (pure). What a run cannot know is left to the provider, in the texts defined here.
"""

from __future__ import annotations

import json
import unicodedata
from typing import Any

TO_BE_FILLED = "_to be filled by the provider_"


def spelled(value: Any) -> bytes:
    """JSON indented for people; keys stay in insertion order."""
    return (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def cell(text: object) -> str:
    """A value for a Markdown table or line, escaped: no markup, no line break, no invisible characters."""
    plain = "".join(
        " " if unicodedata.category(letter) in ("Cc", "Zl", "Zp", "Cf") else letter for letter in str(text)
    )
    for mark in ("\\", "|", "`", "*", "_", "<", ">", "[", "]"):
        plain = plain.replace(mark, f"\\{mark}")
    return plain


def table(heads: tuple[str, ...], rows: list[tuple[object, ...]]) -> str:
    """A Markdown table; cells are escaped, heads are not. Text that equals `TO_BE_FILLED` stays as it is."""
    lines = [heads, tuple("---" for _ in heads)]
    body_rows = [tuple(one if one == TO_BE_FILLED else cell(one) for one in row) for row in rows]
    return "\n".join(f"| {' | '.join(str(part) for part in line)} |" for line in [*lines, *body_rows])
