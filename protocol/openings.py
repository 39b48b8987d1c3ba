"""Openings: what a drawn node shows of its private state, each part bound by its commit.

Room: protocol (pure). Messages like those of `messages`, apart because they are long and are never agreed on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from assay.protocol.encoding.codec import Max
from assay.protocol.types import Digest, PeerId, RoundId

OPENED_BLOCKS_MAX = 256
PROOF_HASHES_MAX = 26
INNER_BYTES_MAX = 512 * 1024 * 1024  # parameters of an opened inner state: 128 million of float32


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """Siblings of one leaf, from the leaf up."""

    TAG: ClassVar[bytes] = b"assay/path/1"
    hashes: Annotated[tuple[Digest, ...], Max(PROOF_HASHES_MAX)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """What a drawn node shows of its momentum: blocks of both roots, and their paths."""

    TAG: ClassVar[bytes] = b"assay/opening/2"
    run_id: Digest
    round: RoundId
    node: PeerId
    blocks: Annotated[tuple[int, ...], Max(OPENED_BLOCKS_MAX)]  # strictly ascending
    before: Annotated[bytes, Max(OPENED_BLOCKS_MAX * 16384)]  # float32 little-endian, block after block
    after: Annotated[bytes, Max(OPENED_BLOCKS_MAX * 16384)]
    paths_before: Annotated[tuple[Path, ...], Max(OPENED_BLOCKS_MAX)]
    paths_after: Annotated[tuple[Path, ...], Max(OPENED_BLOCKS_MAX)]


@dataclass(frozen=True, slots=True, kw_only=True)
class InnerBlocks:
    """The opened blocks of an inner state, with what leads from them to its entry in `Commit.inner`."""

    TAG: ClassVar[bytes] = b"assay/inner-blocks/1"
    count: int  # inner steps since the moments were zero
    theta_root: Digest
    moments_root: Digest  # zeros where the rule's optimiser has none
    theta: Annotated[bytes, Max(OPENED_BLOCKS_MAX * 16384)]  # float32 little-endian, block after block
    theta_paths: Annotated[tuple[Path, ...], Max(OPENED_BLOCKS_MAX)]
    moments: Annotated[bytes, Max(OPENED_BLOCKS_MAX * 2 * 16384)]  # likewise, all moments of a block together
    moments_paths: Annotated[tuple[Path, ...], Max(OPENED_BLOCKS_MAX)]


@dataclass(frozen=True, slots=True, kw_only=True)
class InnerOpening:
    """What a drawn node shows of its inner steps besides: one segment's start and end, and the last state.

    The start is bound by the entry of `Commit.inner` before the segment, or by `momentum_before`.
    """

    TAG: ClassVar[bytes] = b"assay/inner-opening/3"
    opening: Opening
    segment: int
    start_count: int  # inner steps since the moments were zero
    start_theta: Annotated[bytes, Max(INNER_BYTES_MAX)]  # float32; empty where the network's is the start
    start_theta_root: Digest  # where `start_theta` is empty but a digest binds it: its Merkle root
    start_moments: Annotated[bytes, Max(2 * INNER_BYTES_MAX)]  # float32, one after another
    start_path: Path  # of the carried state in `momentum_before`; empty if the segment begins elsewhere
    end: InnerBlocks  # the state the segment ended in: parameters and moments
    last: Annotated[tuple[InnerBlocks, ...], Max(1)]  # the round's last state, parameters only, if another
    last_path: Path  # of the carried state in `momentum_after`; empty if nothing is carried
