"""Examples: the example orders that are installed with Assay, with their scenarios and data, into a folder.

Room: orders (edge: files).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from assay.protocol.errors import ConfigError

INSTALLED = Path(__file__).parents[1] / "examples"  # `assay.examples`, a package of data alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Examples:
    """What was written. files: their names in the folder, in order."""

    folder: str
    files: tuple[str, ...]

    @property
    def lines(self) -> Iterator[str]:
        """The same for people."""
        yield f"{self.folder}: {len(self.files)} files"
        yield f"run one: assay localnet {self.folder}/quickstart.toml --rounds 20"


def write_examples(folder: Path) -> Examples:
    """Write all examples into a new or an empty folder.

    Raises:
        ConfigError: there is something in it, or it cannot be written.
    """
    found = sorted(path.relative_to(INSTALLED) for path in INSTALLED.rglob("*") if path.is_file())
    try:
        if folder.is_dir() and any(folder.iterdir()):
            raise ConfigError(f"{folder}: has something in it, expected a new or an empty folder")
        for name in found:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes((INSTALLED / name).read_bytes())
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be written ({error.strerror})") from None
    return Examples(folder=str(folder), files=tuple(map(str, found)))
