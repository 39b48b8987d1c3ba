"""One browser for all tests of the explorer's pages in a process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.explorer.a_browser import Browser, a_browser


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with a_browser(tmp_path_factory.mktemp("browser")) as found:
        yield found
