"""Initial: the parameters a run begins with, drawn from its seed or imported, and those that it leaves alone.

Room: training (edge: reads one file). Imported parameters travel as a file beside the
data; the spec names their digest, so a wrong file stops a participant at its first step.
A run that trains an adapter draws its factors from the seed, and keeps what is imported.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from assay.protocol.errors import ConfigError
from assay.protocol.params import RunSpec
from assay.protocol.types import NO_DIGEST, Digest
from assay.training.exact import initial_factors, initial_parameters
from assay.training.frozen import ALL_TRAINED, Frozen
from assay.training.layout import layout_of

BASE, OUTER = "base.npy", "outer.npy"


def state_digest(theta_P: NDArray[np.float32], *rest: bytes | memoryview) -> Digest:
    """BLAKE3 of the parameters: dtype and length, then little-endian values; then the rest of a public state.

    Whoever knows the rest as bytes can show by it which parameters a digest covers: their length is in front.
    """
    return _digest(len(theta_P), (np.ascontiguousarray(theta_P, "<f4").view(np.uint8).data, *rest))


def digest_of(base: Frozen) -> Digest:
    """The `state_digest` of a base's values, which are decoded one tensor at a time."""
    parts = (np.ascontiguousarray(one, "<f4").reshape(-1).view(np.uint8).data for one in base.tensors())
    return _digest(base.layout.parameters, parts)


def _digest(count: int, parts: Iterable[bytes | memoryview]) -> Digest:
    whole = blake3(b"assay/state/1|float32|" + count.to_bytes(8, "big"))
    for part in parts:
        whole.update(part)
    return Digest(whole.digest())


def starting_parameters(spec: RunSpec, base: Path | None) -> NDArray[np.float32]:
    """theta_0, the same bits at every participant. Shape (P,), float32, a fresh array.

    Args:
        spec: The run.
        base: The file of the imported parameters; ignored if the run imports none, or does not train them.

    Raises:
        ConfigError: the run starts from imported parameters, and these are others.
    """
    layout = layout_of(spec.model)
    if spec.model.is_adapted:
        return initial_factors(spec.seed, layout.names, layout.shapes)
    if spec.model.base == NO_DIGEST:
        return initial_parameters(spec.seed, layout.names, layout.shapes)
    return imported_parameters(spec, base).stored


def frozen_parameters(spec: RunSpec, base: Path | None) -> Frozen:
    """The parameters that a run leaves as they are: its base if it trains an adapter, else none.

    Args:
        spec: The run.
        base: The file of the imported parameters; ignored if all is trained.

    Raises:
        ConfigError: as `imported_parameters`.
    """
    if not spec.model.is_adapted:
        return ALL_TRAINED
    return imported_parameters(spec, base)


def imported_parameters(spec: RunSpec, base: Path | None) -> Frozen:
    """The base of a run that has one, read into memory whole: what was hashed is what is computed with.

    Args:
        spec: The run.
        base: The file.

    Returns:
        In the layout of the model without its adapter, held as the spec says.

    Raises:
        ConfigError: there is no file, or the spec names other parameters.
    """
    if base is None:
        raise ConfigError("this run starts from imported parameters; write their file as base = PATH")
    try:
        found = Frozen(layout_of(spec.model.whole), _read(base), spec.model.adapter.base_bits)
    except ValueError as cause:
        raise ConfigError(f"base {base}: {cause}") from None
    if digest_of(found) != spec.model.base:
        raise ConfigError(f"base {base}: not the parameters this run starts from")
    return found


def buffers_digest(buffers: Sequence[NDArray[np.float32]]) -> Digest:
    """BLAKE3 of an outer optimiser's buffers, which are as long as the parameters; zero of none."""
    return state_digest(np.concatenate(buffers)) if buffers else NO_DIGEST


def imported_buffers(spec: RunSpec, base: Path | None) -> tuple[NDArray[np.float32], ...]:
    """The outer optimiser's buffers that a successor goes on with; none where they begin at 0.

    Args:
        spec: The run.
        base: The file of the imported parameters; that of the buffers lies beside it.

    Raises:
        ConfigError: there is no file, or the spec names other buffers.
    """
    named = spec.predecessor.outer
    if named == NO_DIGEST:
        return ()
    if base is None:
        raise ConfigError("this run continues another; write the file of its parameters as base = PATH")
    path, count = base.with_name(OUTER), layout_of(spec.model).parameters
    found_BP = _read(path)
    if found_BP.dtype != np.float32 or found_BP.shape[1:] != (count,):
        raise ConfigError(
            f"outer {path}: {found_BP.dtype} of shape {found_BP.shape}, expected {count} float32"
        )
    if buffers_digest(tuple(found_BP)) != named:
        raise ConfigError(f"outer {path}: not the buffers this run goes on with")
    return tuple(found_BP)


def _read(path: Path) -> NDArray[Any]:
    try:
        found: NDArray[Any] = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as cause:
        raise ConfigError(f"{path.stem} {path}: cannot be read ({cause})") from None
    return found
