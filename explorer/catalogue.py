"""Catalogue: the runs that one explorer serves, read and checked once when it starts.

Room: explorer (edge: reads folders). A request reads no file: it looks a name up here, so no address leads
out of the folders that the operator gave.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from assay.bundle.read import read
from assay.explorer.explored import Explored, explore
from assay.explorer.pages.run import Damaged
from assay.participant.index import IntegrityError

Catalogue = Mapping[str, Explored | Damaged]  # by name, in the order given
NAME_CHARS_MAX = 60


def open_runs(folders: Iterable[Path], on_run: Callable[[Explored | Damaged], None]) -> Catalogue:
    """The runs in these folders.

    Args:
        folders: Of delivered runs.
        on_run: Called with each run, once it is read.

    Raises:
        ConfigError: one of them is no run's folder.
    """
    found: dict[str, Explored | Damaged] = {}
    for folder in folders:
        name = _unused(folder.resolve().name, found)
        try:
            found[name] = explore(name, read(folder))
        except IntegrityError as error:  # the others are served; this one's page says what is wrong
            found[name] = Damaged(name=name, reason=str(error))
        on_run(found[name])
    return found


def _unused(folder: str, taken: Mapping[str, object]) -> str:
    """The folder's name as one part of an address, numbered if another run has it."""
    plain = re.sub(r"[^a-z0-9]+", "-", folder.lower()).strip("-")[:NAME_CHARS_MAX] or "run"
    names = [plain, *(f"{plain}-{number}" for number in range(2, len(taken) + 2))]
    return next(name for name in names if name not in taken)
