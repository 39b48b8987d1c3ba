"""Registry text: how the registry's files for people and other tools are spelled.

Room: bundle (pure). What nobody can know from a run is left to the provider, in these words.
"""

from __future__ import annotations

import json
import unicodedata
from typing import Any

TO_BE_FILLED = "_to be filled by the provider_"


def spelled(value: Any) -> bytes:
    """JSON for people too; keys stay in the order in which they were written."""
    return (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def cell(text: object) -> str:
    """A value inside a Markdown table or line: no markup, no line's end, nothing that hides what it says."""
    plain = "".join(
        " " if unicodedata.category(letter) in ("Cc", "Zl", "Zp", "Cf") else letter for letter in str(text)
    )
    for mark in ("\\", "|", "`", "*", "_", "<", ">", "[", "]"):
        plain = plain.replace(mark, f"\\{mark}")
    return plain


def table(heads: tuple[str, ...], rows: list[tuple[object, ...]]) -> str:
    """A Markdown table; cells are escaped, heads are not. Text that equals `TO_BE_FILLED` stays as it is."""
    lines = [heads, tuple("---" for _ in heads)]
    told = [tuple(one if one == TO_BE_FILLED else cell(one) for one in row) for row in rows]
    return "\n".join(f"| {' | '.join(str(part) for part in line)} |" for line in [*lines, *told])
