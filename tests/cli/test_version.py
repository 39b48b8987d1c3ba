"""`assay --version` says what this machine computes with, and which execution classes it has."""

from __future__ import annotations

import importlib.metadata
import re

import pytest
import torch

from assay.cli import version
from assay.protocol.params import ComputeSpec, Precision
from assay.training.execution.execution_class import execution_class
from tests.conftest import Assay


def test_the_release_its_build_and_a_class_for_each_precision(assay: Assay) -> None:
    status, out, _ = assay("--version")
    lines = out.splitlines()

    assert status == 0 and lines[0] == f"assay {importlib.metadata.version('assay')}"
    assert f"torch {importlib.metadata.version('torch')}" in lines[1]
    assert [re.split(r" +", line)[3] for line in lines[2:]] == ["float32", "bfloat16"]
    assert torch.get_num_threads() == 1
    own = execution_class(ComputeSpec(dtype=Precision.BFLOAT16, micro_sequences=0))
    assert own.hex()[:16] in lines[3] and own.hex()[:16] not in lines[2]


def test_without_torch_there_is_no_class(monkeypatch: pytest.MonkeyPatch) -> None:
    known = importlib.metadata.version

    def without(name: str) -> str:
        if name == "torch":
            raise importlib.metadata.PackageNotFoundError(name)
        return known(name)

    monkeypatch.setattr(importlib.metadata, "version", without)
    lines = list(version.version_lines())

    assert "torch" not in lines[1]
    assert lines[2:] == ["class   none: without torch nothing is trained or recomputed here"]
