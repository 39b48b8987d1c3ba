"""Merge: the mean of the parameters of finished runs that began with the same ones, with its lineage.

Room: bundle (edge: reads and writes folders). Runs that fine-tune one base end near each other, so that the
mean of their parameters is often a better model than each (Wortsman et al. 2022, "Model soups",
https://arxiv.org/abs/2203.05482); runs from different starts do not, and are refused. Nobody certifies a
merged model: its lineage names the certified ones, and whoever has these makes the same bytes again.

    model/         what `transformers` loads, and a later order can name as its base
    lineage.json   the runs, what each counts for, and the SHA-256 of the weights
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from assay.bundle.read import BUNDLE, Delivered
from assay.bundle.verify import Report
from assay.protocol.encoding.json_text import plain
from assay.protocol.errors import ConfigError
from assay.protocol.params import ModelSpec, RunSpec
from assay.protocol.types import NO_DIGEST, Digest
from assay.training.layout import layout_of
from assay.training.model.adapter import merged
from assay.training.model.hugging_face import WEIGHTS, export_tensors, read_theta

MODEL, LINEAGE = "model", "lineage.json"
FORMAT = "assay/lineage/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parent:
    """A run of whose model a merged one is made."""

    run_id: Digest
    deployment_id: Digest
    name: str
    record: bytes | None  # id of the model's record on chain
    weights: str  # SHA-256 of its file of weights
    share: int  # what it counts for


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """A merged model's lineage."""

    format: str
    method: str
    parents: tuple[Parent, ...]  # in the order of their run ids
    weights: str  # SHA-256 of the merged file of weights


def merge(reports: Sequence[Report], shares: Sequence[int], out: Path) -> Merged:
    """Write the weighted mean of verified runs' models.

    Args:
        reports: What `verify` said of each run, two or more.
        shares: What each counts for, above 0; by equal shares it is the plain mean.
        out: The folder; it must not exist.

    Raises:
        ConfigError: the runs cannot be merged, and why; or the folder is there.
    """
    if out.exists():
        raise ConfigError(f"{out}: is there already")
    ordered = sorted(zip(reports, shares, strict=True), key=lambda one: one[0].delivered.run_id)
    _check_mergeable([report for report, _ in ordered])
    spec = ordered[0][0].delivered.spec
    total_P = np.zeros(layout_of(spec.model.whole).parameters, np.float64)
    for report, share in ordered:
        total_P += share * read_theta(_model(report.delivered), spec.model.whole).astype(np.float64)
    mean_P: NDArray[np.float32] = (total_P / sum(shares)).astype(np.float32)
    # One metadata key: the library writes several in varying order, and bytes must repeat.
    body = save(export_tensors(spec.model.whole, mean_P), metadata={"format": "pt"})
    made = Merged(
        format=FORMAT,
        method="weighted mean of all parameters",
        parents=tuple(_parent(report, share) for report, share in ordered),
        weights=hashlib.sha256(body).hexdigest(),
    )
    partial = out.with_name(out.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    (partial / MODEL).mkdir(parents=True)
    for path in _model(ordered[0][0].delivered).iterdir():  # configuration and tokenizer
        if path.suffix in (".json", ".jinja"):
            shutil.copyfile(path, partial / MODEL / path.name)
    (partial / MODEL / WEIGHTS).write_bytes(body)
    (partial / LINEAGE).write_text(json.dumps(plain(made), indent=2) + "\n")
    os.replace(partial, out)
    return made


def _check_mergeable(reports: Sequence[Report]) -> None:
    """Raise ConfigError unless the runs are several, of one model and vocabulary, from one start."""
    first = reports[0]
    if len({report.delivered.run_id for report in reports}) < max(2, len(reports)):
        raise ConfigError("two or more different runs expected")
    for other in reports[1:]:
        name = other.delivered.spec.name
        if _sizes(other.delivered.spec) != _sizes(first.delivered.spec):
            raise ConfigError(
                f"run {name!r} has a model of another architecture or vocabulary than the first"
            )
        if _start(other) != _start(first):
            raise ConfigError(
                f"run {name!r} began with other parameters than the first (seed or base): the mean of models "
                "that did not begin alike is no model"
            )


def _sizes(spec: RunSpec) -> tuple[ModelSpec, Digest, int]:
    """What the runs of a merged model have in common, wherever they began."""
    return replace(spec.model.whole, base=NO_DIGEST), spec.data.tokenizer, spec.data.vocabulary


def _start(report: Report) -> bytes:
    """SHA-256 of the whole model's parameters before the first round."""
    spec = report.delivered.spec
    start_P = merged(spec.model, report.inputs.frozen(spec), report.inputs.start(spec))
    return hashlib.sha256(start_P.tobytes()).digest()


def _model(delivered: Delivered) -> Path:
    return delivered.root / BUNDLE / MODEL


def _parent(report: Report, share: int) -> Parent:
    delivered = report.delivered
    weights = (_model(delivered) / WEIGHTS).read_bytes()
    return Parent(
        run_id=delivered.run_id,
        deployment_id=delivered.spec.deployment_id,
        name=delivered.spec.name,
        record=None if report.registered is None else report.registered.record_id,
        weights=hashlib.sha256(weights).hexdigest(),
        share=share,
    )


def merged_lines(made: Merged, out: Path) -> Iterator[str]:
    """A line for each run, and where the model is."""
    whole = sum(parent.share for parent in made.parents)
    for parent in made.parents:
        record = "no record" if parent.record is None else f"record {parent.record.hex()}"
        yield f"{parent.share}/{whole} of run {parent.name} {parent.run_id.hex()}: {record}"
    yield f"{out / MODEL}: weights {made.weights}; {LINEAGE} says what it is made of"
