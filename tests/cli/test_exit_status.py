"""Exit status: one rule for every command, and never a traceback for what the machine's edge can do."""

from __future__ import annotations

import sys

import pytest

from assay.chain.rpc import ChainRefused
from assay.cli import main
from assay.cli.process import run_process
from assay.participant.files.index import IntegrityError
from assay.protocol.errors import AssayError, ConfigError, NotYet, Unavailable


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (IntegrityError("links/000003.cbor: another digest"), 1),
        (ChainRefused("release", "TooEarly", (5,)), 1),
        (NotYet("the run is open until tomorrow"), 1),
        (AssayError("no quorum"), 1),
        (ConfigError("port = 70000"), 2),
        (Unavailable("the chain is away"), 2),
        (FileNotFoundError(2, "No such file or directory", "keys"), 2),
        (PermissionError(13, "Permission denied", "data"), 2),
        (OSError("no space"), 2),
    ],
    ids=repr,
)
def test_no_is_1_and_what_could_not_be_asked_is_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception, status: int
):
    def fail(**_: object) -> None:
        raise error

    monkeypatch.setattr(main, "app", fail)

    with pytest.raises(SystemExit) as ended:
        main.run()

    out, err = capsys.readouterr()
    assert (ended.value.code, out, len(err.splitlines())) == (status, "", 1)
    assert err.startswith("assay: ")


@pytest.mark.parametrize("error", [Unavailable("the chain is away"), OSError(28, "No space left on device")])
def test_a_process_that_can_be_started_again_does_not_end_with_2(error: Exception):
    async def fail() -> None:
        raise error

    with pytest.raises(AssayError, match="can be started again") as ended:
        run_process(fail)

    assert not isinstance(ended.value, ConfigError | Unavailable)


def test_a_bug_of_ours_is_not_hidden(monkeypatch: pytest.MonkeyPatch):
    def fail(**_: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(main, "app", fail)

    with pytest.raises(KeyError):
        main.run()


@pytest.mark.parametrize("words", [["stake", "shwo"], ["audit", "odds", "--rate", "much"], ["earnings"]])
def test_misuse_is_2(monkeypatch: pytest.MonkeyPatch, words: list[str]):
    monkeypatch.setattr(sys, "argv", ["assay", *words])

    with pytest.raises(SystemExit) as ended:
        main.run()

    assert ended.value.code == 2
