"""A participant's folder, made from a delivered run as it was when this had got so far."""

from __future__ import annotations

import shutil
from pathlib import Path

from assay.bundle.follow import BLOBS, CONFIG, STORE
from assay.bundle.read import BUNDLE, read
from assay.participant.store import Store


def a_participant(run: Path, folder: Path, rounds: int) -> Path:
    """The folder of a participant of a delivered run, as it was when the run had got so far."""
    delivered = read(run)
    (folder / BLOBS).mkdir(parents=True)
    for name in ("run.assay", "network.txt"):
        shutil.copy(run / name, folder)
    (folder / CONFIG).write_text(f'network = "network.txt"\ndata = "{run / "data"}"\n')
    store = Store(folder / STORE)
    for link in delivered.links[:rounds]:
        store.add_link(link)
    store.close()
    for path in [*(run / BUNDLE / "updates").iterdir(), *(run / BUNDLE / "aggregates").iterdir()]:
        shutil.copy(path, folder / BLOBS / f"{path.stem}.blob")
    return folder
