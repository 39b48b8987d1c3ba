"""The notebooks of examples/ run from the first cell to the last, on a run of real processes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import Finished

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytestmark = pytest.mark.slow
NOTEBOOKS = Path(__file__).parents[2] / "examples" / "notebooks"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("train", ("held-out loss ", "of its stake taken", "tensors, such as")),
        ("audit", ("MISMATCH: the opened blocks", "signature does not cover this Vote")),
        ("books", ("trial balance: zero", "epoch 0: ", "as certified", 'option "title" "Assay')),
    ],
)
def test_a_notebook_runs_to_its_end(
    name: str, said: tuple[str, ...], finished: Finished, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASSAY_RUN", str(finished.run))
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", 4)
    for cell in notebook.cells:
        cell.pop("outputs", None)

    where = {"metadata": {"path": str(NOTEBOOKS)}}
    done = nbclient.NotebookClient(notebook, timeout=300, resources=where).execute()

    text = "".join(out.get("text", "") for cell in done.cells for out in cell.get("outputs", []))
    assert not [words for words in said if words not in text]
