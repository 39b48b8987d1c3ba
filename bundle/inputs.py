"""Run inputs: data manifest, tokenizer, chat template, items and base of a run, checked against its spec.

Room: bundle (edge: reads a folder). The spec names each by digest, so any copy will do; a bundle includes
them for whoever checks or uses the model.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from assay.protocol.errors import ConfigError
from assay.protocol.params import RunSpec
from assay.protocol.types import NO_DIGEST, Digest
from assay.training.data.chat_template import ChatTemplate, read_chat_template
from assay.training.data.choices import CHOICES, Choices, check_texts, read_choices
from assay.training.data.shards import CHAT, TOKENIZER, DataManifest, read_manifest
from assay.training.data.tokenizer import FILE_BYTES_MAX
from assay.training.frozen import ALL_TRAINED, Frozen
from assay.training.model.initial import imported_buffers, imported_parameters, starting_parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInputs:
    """Inputs checked against the spec.

    tokenizer: empty for bytes. base: imported parameters; None if the run imports none. chat: None if no data
    are conversations. choices: None if the model is scored on no items. buffers: the outer optimiser's, of a
    successor that goes on with some.
    """

    manifest: DataManifest
    tokenizer: bytes
    base: Frozen | None
    chat: ChatTemplate | None = None
    choices: Choices | None = None
    buffers: tuple[NDArray[np.float32], ...] = ()

    def start(self, spec: RunSpec) -> NDArray[np.float32]:
        """theta_0 of the run."""
        if self.base is None or spec.model.is_adapted:
            return starting_parameters(spec, None)
        return self.base.stored

    def frozen(self, spec: RunSpec) -> Frozen:
        """What the run leaves as it is."""
        return self.base if self.base is not None and spec.model.is_adapted else ALL_TRAINED


def read_inputs(spec: RunSpec, data: Path, base: Path | None) -> RunInputs:
    """The inputs of a run.

    Args:
        spec: The run.
        data: The folder with the manifest and, if there are any, tokenizer, chat template and choices.
        base: The file of imported starting parameters, if any.

    Raises:
        ConfigError: one of them is missing or is not the one the spec names.
    """
    manifest = read_manifest(data)
    if manifest.digest() != spec.data.manifest:
        raise ConfigError(f"data {data}: not the manifest this run committed to")
    tokenizer = b""
    if spec.data.tokenizer != NO_DIGEST:
        tokenizer = _named(data / TOKENIZER, spec.data.tokenizer, "the tokenizer this run committed to")
    chat = _chat_template(data, manifest.chat.template) if manifest.chat is not None else None
    is_drawn = spec.model.base == NO_DIGEST
    return RunInputs(
        manifest=manifest,
        tokenizer=tokenizer,
        base=None if is_drawn else imported_parameters(spec, base),
        chat=chat,
        choices=read_choices(data, spec),
        buffers=imported_buffers(spec, base),
    )


def check_item_texts(inputs: RunInputs, data: Path) -> None:
    """Do nothing if what the model is scored on is what the items say.

    The buyer tokenised them: else it could show hard questions and have easy ones answered.

    Args:
        inputs: As read from `data`.
        data: The folder, which has the tokenizer if tokens are not bytes.

    Raises:
        ConfigError: which item has other tokens than its text, or the tokenizer takes too much.
    """
    if inputs.choices is None:
        return
    try:
        check_texts(inputs.choices, data / TOKENIZER if inputs.tokenizer else None)
    except ValueError as fault:
        raise ConfigError(f"data {data / CHOICES}: {fault}") from None


def _chat_template(data: Path, named: Digest) -> ChatTemplate:
    path = data / CHAT
    body = _named(path, named, "the chat template that the data's manifest names")
    try:
        return read_chat_template(body)
    except (ValueError, RecursionError) as cause:
        raise ConfigError(f"data {path}: {cause}") from None


def _named(path: Path, digest: Digest, what: str) -> bytes:
    """The file of this SHA-256; one of more than `FILE_BYTES_MAX` bytes is none."""
    try:
        with open(path, "rb") as file:
            body = file.read(FILE_BYTES_MAX + 1)
    except OSError as cause:
        raise ConfigError(f"data {path}: cannot be read ({cause.strerror})") from None
    if len(body) > FILE_BYTES_MAX or hashlib.sha256(body).digest() != digest:
        raise ConfigError(f"data {path}: not {what}")
    return body
