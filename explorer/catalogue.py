"""Catalogue: the runs that one explorer serves, read and checked when it starts; live ones are then followed.

Room: explorer (edge: reads folders). A request looks a name up here, so no address leads out of the folders
that the operator gave, nor to a file that the run's index does not list.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

from assay.bundle.fetch import Part
from assay.bundle.follow import Followed
from assay.bundle.read import BUNDLE, read
from assay.explorer.explored import Explored, explore
from assay.explorer.live import Live
from assay.explorer.pages.run import Damaged
from assay.participant.files.index import INDEX, IntegrityError, read_index

Catalogue = Mapping[str, Explored | Damaged | Live]  # by name, in the order given
NAME_CHARS_MAX = 60


def open_runs(folders: Iterable[Path], on_run: Callable[[Explored | Damaged], None]) -> Catalogue:
    """The runs in these folders.

    Args:
        folders: Of delivered runs, or of participants and local networks whose run is not delivered.
        on_run: Called with each run, once it is read.

    Raises:
        ConfigError: one of them is no run's folder.
        Unavailable: a participant's store cannot be read.
    """
    found: dict[str, Explored | Damaged | Live] = {}
    for folder in folders:
        name = _unused(folder.resolve().name, found)
        if folder.is_dir() and not (folder / BUNDLE).is_dir():
            live = found[name] = Live(name, Followed(folder), partial(_once_delivered, name, folder))
            on_run(live.newest())
            continue
        run = found[name] = _delivered(name, folder)
        on_run(run)
    return found


def _once_delivered(name: str, folder: Path) -> Explored | Damaged | None:
    """The run, if the index of its files, which is written last, is here."""
    return _delivered(name, folder) if (folder / INDEX).is_file() else None


def _delivered(name: str, folder: Path) -> Explored | Damaged:
    """A delivered run. One that is damaged has a page that says so, and the others are served."""
    try:
        return explore(name, read(folder), _delivered_files(folder))
    except IntegrityError as error:
        return Damaged(name=name, reason=str(error))


def _delivered_files(folder: Path) -> dict[str, Path]:
    """The files of a run that the buyer signed for, and their index; none where the run has no index."""
    root, path = folder.resolve(), folder / INDEX
    if not path.is_file():
        return {}
    names = [
        INDEX,
        *(name for name in read_index(path.read_bytes()).files if Part.ALL.has(name, openings=True)),
    ]
    found = {name: (root / name).resolve() for name in names}
    return {name: path for name, path in found.items() if path.is_relative_to(root) and path.is_file()}


def _unused(folder: str, taken: Mapping[str, object]) -> str:
    """The folder's name as one part of an address, numbered if another run has it."""
    plain = re.sub(r"[^a-z0-9]+", "-", folder.lower()).strip("-")[:NAME_CHARS_MAX] or "run"
    names = [plain, *(f"{plain}-{number}" for number in range(2, len(taken) + 2))]
    return next(name for name in names if name not in taken)
