"""Openings: the parts of its private state that an audited node reveals, each bound by its commit.

Room: protocol (pure). Kept apart from `messages` because openings are large and never part of a manifest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from assay.protocol.encoding.codec import Later, Max
from assay.protocol.types import Digest, PeerId, RoundId

OPENED_BLOCKS_MAX = 1 << 15  # 512 MiB of each root
PROOF_HASHES_MAX = 26
INNER_BYTES_MAX = 512 * 1024 * 1024  # parameters of an opened inner state: 128 million of float32
WINDOWS_MAX = 1 << 16  # of a step: what whoever checks it draws, or is shown of a node's own data
WINDOW_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """Siblings of one leaf, from the leaf up."""

    TAG: ClassVar[bytes] = b"assay/path/1"
    hashes: Annotated[tuple[Digest, ...], Max(PROOF_HASHES_MAX)]


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnWindow:
    """A window of data that only its node has, and what binds it to the root that the node announced."""

    TAG: ClassVar[bytes] = b"assay/own-window/1"
    salt: (
        Digest  # without it the hash of a window would tell whoever guesses the text that the guess is right
    )
    tokens: Annotated[bytes, Max(WINDOW_BYTES_MAX)]  # little-endian, as wide as those of the run's data
    path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """A node's opening of its momentum: drawn blocks under both roots, with Merkle paths."""

    TAG: ClassVar[bytes] = b"assay/opening/2"
    run_id: Digest
    round: RoundId
    node: PeerId
    blocks: Annotated[tuple[int, ...], Max(OPENED_BLOCKS_MAX)]  # strictly ascending
    before: Annotated[bytes, Max(OPENED_BLOCKS_MAX * 16384)]  # float32 little-endian, block after block
    after: Annotated[bytes, Max(OPENED_BLOCKS_MAX * 16384)]
    paths_before: Annotated[tuple[Path, ...], Max(OPENED_BLOCKS_MAX)]
    paths_after: Annotated[tuple[Path, ...], Max(OPENED_BLOCKS_MAX)]
    # of a node that trains on data of its own: those that the drawn part of the step took, in its order
    windows: Annotated[tuple[OwnWindow, ...], Max(WINDOWS_MAX), Later()] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class InnerBlocks:
    """Opened blocks of an inner state, with the Merkle data that binds them to `Commit.inner`."""

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
    """A node's opening of its inner steps: the start and end of one segment, and the round's last state.

    The start is bound by the entry of `Commit.inner` before the segment, or by `momentum_before`.
    """

    TAG: ClassVar[bytes] = b"assay/inner-opening/4"
    opening: Opening
    segment: int
    start_count: int  # inner steps since the moments were zero
    start_theta: Annotated[bytes, Max(INNER_BYTES_MAX)]  # float32; empty if it starts from the network's
    start_theta_root: Digest  # where `start_theta` is empty but a digest binds it: its Merkle root
    start_moments: Annotated[bytes, Max(2 * INNER_BYTES_MAX)]  # float32, as `shown_moments` writes them
    start_path: Path  # of the carried state in `momentum_before`; empty if another state is the start
    end: InnerBlocks  # the state the segment ended in: parameters and moments
    last: Annotated[tuple[InnerBlocks, ...], Max(1)]  # the round's last state, parameters only, if another
    last_path: Path  # of the carried state in `momentum_after`; empty if nothing is carried
