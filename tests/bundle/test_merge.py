"""A merged model: the mean of models of runs that began alike, in bytes that anybody makes again."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from assay.bundle.merge import LINEAGE, MODEL, merge, merged_lines
from assay.bundle.read import BUNDLE, read
from assay.bundle.verify import Report, verify
from assay.protocol.errors import ConfigError
from assay.protocol.types import Digest
from assay.training.frozen import Frozen
from assay.training.layout import layout_of
from assay.training.model.hugging_face import WEIGHTS, read_theta
from tests.conftest import Assay

OTHER = Digest(b"o" * 32)


@pytest.fixture(scope="module")
def first(recorded_run: Path) -> Report:
    return verify(read(recorded_run))


@pytest.fixture
def second(first: Report, tmp_path: Path) -> Report:
    """A run that began like the first and ended with twice its parameters."""
    root = tmp_path / "second"
    shutil.copytree(first.delivered.root / BUNDLE / MODEL, root / BUNDLE / MODEL)
    path = root / BUNDLE / MODEL / WEIGHTS
    save_file({name: 2 * value for name, value in load_file(path).items()}, path, metadata={"format": "pt"})
    return replace(first, delivered=replace(first.delivered, run_id=OTHER, root=root), registered=None)


def changed(report: Report, **model: object) -> Report:
    spec = report.delivered.spec
    return replace(
        report, delivered=replace(report.delivered, spec=replace(spec, model=replace(spec.model, **model)))
    )


@pytest.mark.parametrize(("shares", "factor"), [((1, 1), 1.5), ((3, 1), 1.25), ((1, 9), 1.9)])
def test_a_merged_model_is_the_weighted_mean(
    first: Report, second: Report, tmp_path: Path, shares: tuple[int, int], factor: float
):
    made = merge([first, second], shares, tmp_path / "both")

    model = first.delivered.spec.model
    ours = read_theta(tmp_path / "both" / MODEL, model)
    theirs = read_theta(first.delivered.root / BUNDLE / MODEL, model)
    np.testing.assert_allclose(ours, factor * theirs, rtol=1e-6)
    assert made.weights == hashlib.sha256((tmp_path / "both" / MODEL / WEIGHTS).read_bytes()).hexdigest()


def test_the_order_of_the_runs_changes_nothing_and_no_file_is_left_over(
    first: Report, second: Report, tmp_path: Path
):
    one, other = tmp_path / "one", tmp_path / "other"

    assert merge([first, second], (3, 1), one) == merge([second, first], (1, 3), other)

    files = sorted(path.relative_to(one) for path in one.rglob("*") if path.is_file())
    assert [(one / name).read_bytes() for name in files] == [(other / name).read_bytes() for name in files]
    assert {path.name for path in (one / MODEL).iterdir()} == {
        "config.json", WEIGHTS, "tokenizer.json", "tokenizer_config.json"
    }  # fmt: skip
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "other", "second"]


def test_the_lineage_names_each_run_its_record_and_its_share(first: Report, second: Report, tmp_path: Path):
    made = merge([second, first], (1, 3), tmp_path / "both")

    said = json.loads((tmp_path / "both" / LINEAGE).read_text())
    shares = {one["run_id"]: one["share"] for one in said["parents"]}
    assert shares == {OTHER.hex(): 1, first.delivered.run_id.hex(): 3}
    assert first.registered is not None
    assert {one["record"] for one in said["parents"]} == {None, first.registered.record_id.hex()}
    *_, last = lines = list(merged_lines(made, tmp_path / "both"))
    assert "3/4 of run tiny" in "\n".join(lines) and made.weights in last


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"context": 64}, "another architecture"),
        ({"base": Digest(b"b" * 32)}, "began with other parameters"),
    ],
)
def test_what_did_not_begin_alike_is_refused(
    first: Report, second: Report, tmp_path: Path, change: dict[str, object], words: str
):
    other = changed(second, **change)
    if "base" in change:
        start = 2 * first.inputs.start(first.delivered.spec)
        other = replace(
            other, inputs=replace(other.inputs, base=Frozen(layout_of(other.delivered.spec.model), start))
        )

    with pytest.raises(ConfigError, match=words):
        merge([first, other], (1, 1), tmp_path / "both")
    assert not (tmp_path / "both").exists()


def test_another_seed_is_another_start(first: Report, second: Report, tmp_path: Path):
    spec = replace(second.delivered.spec, seed=second.delivered.spec.seed + 1)
    other = replace(second, delivered=replace(second.delivered, spec=spec))

    with pytest.raises(ConfigError, match="seed or base"):
        merge([first, other], (1, 1), tmp_path / "both")


def test_one_run_twice_or_alone_is_refused_and_so_is_a_folder_that_is_there(
    first: Report, second: Report, tmp_path: Path
):
    for reports in ([first, first], [first], [first, second, first]):
        with pytest.raises(ConfigError, match="different runs"):
            merge(reports, [1] * len(reports), tmp_path / "both")
    with pytest.raises(ConfigError, match="is there already"):
        merge([first, second], (1, 1), tmp_path)


def test_the_command_verifies_each_run_and_refuses_in_words(assay: Assay, recorded_run: Path, tmp_path: Path):
    code, out, err = assay("run", "merge", recorded_run, recorded_run, "--out", tmp_path / "both")
    assert (code, out) == (2, "") and "two or more different runs expected" in err

    code, _, err = assay(
        "run", "merge", recorded_run, "--out", tmp_path / "both", "--share", "1", "--share", "2"
    )
    assert code == 2 and "2 shares of 1 runs" in err

    copy = tmp_path / "copy"
    shutil.copytree(recorded_run, copy)
    (copy / BUNDLE / MODEL / WEIGHTS).write_bytes(b"other")
    code, _, err = assay("run", "merge", recorded_run, copy, "--out", tmp_path / "both")
    assert code == 1 and WEIGHTS in err
