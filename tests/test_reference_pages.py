"""The reference pages say what the code says, and name every command and key."""

from __future__ import annotations

import pytest

from assay.cli.process import ProcessFile
from tests.commands import leaves
from tests.reference_pages import FOLDER, PAGES, commands, configuration


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_as_the_code_writes_it(page: str) -> None:
    assert (FOLDER / page).read_text() == PAGES[page](), "python -m tests.reference_pages"


def test_every_command_and_key_is_named() -> None:
    text, names = commands(), [name for name, command in leaves() if not command.hidden]

    assert len(names) > 60 and all(f"### `assay {name}`" in text for name in names)
    assert all(f"| `{key}` |" in configuration() for key in ProcessFile.model_fields)
