"""Write: writes the bundle of a finished run, which has everything to check it offline, as one folder.

Room: bundle (edge: files). It is written beside its final path and renamed at the end, so it is there whole
or not at all.

    spec.cbor deployment.json links/ updates/ aggregates/ settlements/ receipts/
    tasks/   lists of known-answer tasks, of the nodes that have shown theirs, if the run orders any
    anchor.json   the ledger's last anchor on chain, if any
    anchors/ proofs that each epoch's result is final, down to a block's hash; chain/proofs/result_anchor.py
    data/    manifest of the data, its tokenizer, chat template and choices    base.npy  imported parameters
    outer.npy  outer optimiser's buffers of a successor
    model/   what `transformers` loads: config.json, model.safetensors, tokenizer.json
    adapter/ what `peft` loads beside the base, if an adapter was trained; `model` has it merged
    report.json report.html   loss, steps, traffic, audits, time and cost by round; bundle/report/training.py
    registry/  what the model is made of, its record on chain; bundle/registry/files.py
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from assay.bundle.finished import Finished
from assay.bundle.inputs import RunInputs
from assay.bundle.read import REPORT, list_name
from assay.bundle.receipts.rounds import facts_of, round_receipts
from assay.bundle.registry.entry import registry_entry
from assay.bundle.registry.files import FOLDER, registry_files
from assay.bundle.registry.model_card import PICTURE, model_card
from assay.bundle.report.loss_kind import loss_kind
from assay.bundle.report.picture import picture
from assay.bundle.report.training import Beside, report_json, report_of_facts
from assay.bundle.report.training_page import training_page
from assay.bundle.samples import samples_of
from assay.bundle.settlement_file import SETTLEMENTS, epoch_name, settlement_file
from assay.chain.proofs.result_anchor import ANCHORS
from assay.protocol.encoding.codec import encode
from assay.protocol.encoding.json_text import plain
from assay.protocol.types import NO_DIGEST, Digest
from assay.training.data.choices import CHOICES
from assay.training.data.shards import CHAT, MANIFEST, TOKENIZER
from assay.training.data.tokenizer import byte_tokenizer_json, special_name
from assay.training.model.adapter import merged
from assay.training.model.hugging_face import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    CHAT_TEMPLATE,
    CONFIG,
    TOKENIZER_CONFIG,
    WEIGHTS,
    export_adapter,
    export_adapter_config,
    export_config,
    export_tensors,
)
from assay.training.model.initial import BASE, OUTER

ANCHOR, ADAPTER = "anchor.json", "adapter"
REPORT_PAGE = "report.html"
PICTURES = (f"model/{PICTURE}", f"{ADAPTER}/{PICTURE}")


def write_bundle(folder: Path, run: Finished, *, has_agreed: bool = True) -> Digest:
    """Write the folder and return the digest of the model in it; an existing folder stays.

    Args:
        folder: Of the bundle.
        run: What it is made of.
        has_agreed: Whether the loss that verifiers agreed on is drawn, as in bundles of today.

    Raises:
        Unavailable: a blob is missing or damaged.
        OSError: disk refused.
    """
    if folder.exists():
        return run.state
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    (partial / "spec.cbor").write_bytes(encode(run.spec))
    (partial / "deployment.json").write_text(run.deployment.to_json())
    if run.anchor is not None:
        _write_json(partial / ANCHOR, run.anchor)
    sizes = _write_chain(partial, run)
    for shown in run.task_lists:
        path = partial / list_name(shown.node)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(encode(shown))
    _write_settlements(partial, run)
    _write_inputs(partial, run.inputs)
    _write_receipts_and_model(partial, run, sizes, has_agreed)
    os.replace(partial, folder)
    return run.state


def _write_chain(folder: Path, run: Finished) -> dict[Digest, int]:
    """Write the chain and the bytes it names; returns the size of each update and aggregate."""
    sizes: dict[Digest, int] = {}

    def write(place: str, name: Digest) -> None:
        sizes[name] = (folder / place / f"{name.hex()}.bin").write_bytes(run.load(name))

    for name in ("links", "updates", "aggregates"):
        (folder / name).mkdir()
    for certified in run.links:
        manifest = certified.manifest
        (folder / "links" / f"{int(manifest.round):06d}.cbor").write_bytes(encode(certified))
        for signed in manifest.commits:
            write("updates", signed.commit.update)
        if manifest.aggregate != NO_DIGEST:
            write("aggregates", manifest.aggregate)
    return sizes


def _write_settlements(folder: Path, run: Finished) -> None:
    (folder / SETTLEMENTS).mkdir()
    (folder / ANCHORS).mkdir()
    for epoch, one in run.settled.items():
        _write_json(folder / epoch_name(SETTLEMENTS, epoch), settlement_file(one))
        if one.anchor is not None:
            _write_json(folder / epoch_name(ANCHORS, epoch), one.anchor)


def _write_inputs(folder: Path, inputs: RunInputs) -> None:
    (folder / "data").mkdir()
    (folder / "data" / MANIFEST).write_bytes(inputs.manifest.to_json())
    if inputs.tokenizer:
        (folder / "data" / TOKENIZER).write_bytes(inputs.tokenizer)
    if inputs.chat is not None:
        (folder / "data" / CHAT).write_bytes(inputs.chat.to_json())
    if inputs.choices is not None:
        (folder / "data" / CHOICES).write_bytes(inputs.choices.to_json())
    if inputs.base is not None:
        np.save(folder / BASE, inputs.base.stored, allow_pickle=False)
    if inputs.buffers:
        np.save(folder / OUTER, np.stack(inputs.buffers), allow_pickle=False)


def _write_receipts_and_model(
    folder: Path, run: Finished, sizes: Mapping[Digest, int], has_agreed: bool
) -> None:
    tables = {epoch: one.settlement for epoch, one in run.settled.items()}
    facts = tuple(facts_of(run.spec, run.run_id, run.links, tables))
    (folder / "receipts").mkdir()
    for receipt in round_receipts(run.spec, run.links, facts, tables):
        _write_json(folder / "receipts" / f"round-{receipt.round:06d}.json", receipt)
    model = folder / "model"
    model.mkdir()
    whole = run.spec.model.whole
    tensors = export_tensors(whole, merged(run.spec.model, run.inputs.frozen(run.spec), run.theta))
    # One metadata key: the library writes several in varying order, and bytes must repeat.
    save_file(tensors, model / WEIGHTS, metadata={"format": "pt"})
    _write_json(model / CONFIG, export_config(whole, run.inputs.manifest.separator))
    (model / TOKENIZER).write_bytes(run.inputs.tokenizer or byte_tokenizer_json())
    chat, end = run.inputs.chat, special_name(run.inputs.tokenizer, run.inputs.manifest.separator)
    _write_json(
        model / TOKENIZER_CONFIG,
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": run.spec.model.context,
            "clean_up_tokenization_spaces": False,
            **({"eos_token": end} if end else {}),
            **({} if chat is None else {**chat.tokens, "chat_template": chat.text}),
        },
    )
    if chat is not None:
        (model / CHAT_TEMPLATE).write_bytes(chat.text.encode())  # where newer versions keep it
    times = [link.manifest.time_s for link in run.links]
    named = (run.spec.name, run.run_id)
    if run.spec.model.is_adapted:
        _write_adapter(folder / ADAPTER, run)
        adapter = _sha256(folder / ADAPTER / ADAPTER_WEIGHTS)
    else:
        adapter = b""
    entry = registry_entry(run, facts, _sha256(model / WEIGHTS), adapter)
    beside = Beside(held_out=run.held_out, energy=entry.energy, samples=samples_of(run))
    report = report_of_facts(named, run.ending.rounds, facts, times, tables, sizes, beside)
    body = report_json(report)
    (folder / REPORT).write_bytes(body)
    kind = loss_kind(run.spec)
    (folder / REPORT_PAGE).write_text(training_page(report, kind, has_agreed=has_agreed))
    drawn = picture(report, hashlib.sha256(body).hexdigest(), kind, has_agreed=has_agreed)
    card = model_card(run, report)
    _write_card(model, card, drawn)
    if run.spec.model.is_adapted:
        _write_card(folder / ADAPTER, card, drawn)
    (folder / FOLDER).mkdir()
    for name, body in registry_files(run, entry).items():
        (folder / FOLDER / name).write_bytes(body)


def _write_card(folder: Path, card: str, drawn: bytes) -> None:
    (folder / "README.md").write_text(card)
    (folder / PICTURE).write_bytes(drawn)


def _write_adapter(folder: Path, run: Finished) -> None:
    folder.mkdir()
    tensors = export_adapter(run.spec.model, run.theta)
    save_file(tensors, folder / ADAPTER_WEIGHTS, metadata={"format": "pt"})
    _write_json(folder / ADAPTER_CONFIG, export_adapter_config(run.spec.model))


def _sha256(path: Path) -> bytes:
    hasher = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(1 << 20):
            hasher.update(piece)
    return hasher.digest()


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(plain(value), indent=2) + "\n")
