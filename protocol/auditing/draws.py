"""Draws: which steps are audited, on which blocks and by which verifiers, derived from the round's beacon.

Room: protocol (pure). The seed of a round exists only after its manifest is
final, because it mixes the verifiers' VRF outputs over that manifest. All
arithmetic is on integers from SHA-256, so every party derives the same draws.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from assay.protocol.params import PPM, AuditSpec
from assay.protocol.randomness.vrf import proof_to_hash
from assay.protocol.types import NO_DIGEST, Digest, PeerId, RoundId

OPENED_LEAST = 8  # blocks of any audit: between execution classes, fewer let one block's rounding decide


def beacon_input(deployment_id: Digest, run_id: Digest, round_id: RoundId, manifest: Digest) -> bytes:
    """The VRF input of a round's beacon, known once the round is final."""
    return b"assay/beacon/1" + deployment_id + run_id + round_id.to_bytes(8, "big") + manifest


def audit_seed(
    alpha: bytes,
    proofs: Iterable[tuple[PeerId, bytes]],
    *,
    drand: Digest = NO_DIGEST,
) -> Digest:
    """Seed of a round's draws; unpredictable without every one of its parts.

    Args:
        alpha: The round's beacon input.
        proofs: The beacon shares that count, in any order.
        drand: Randomness of the drand round; zero bytes without.
    """
    mix = hashlib.sha256(b"assay/vrf-mix/1")
    for verifier, proof in sorted(proofs):
        mix.update(verifier + proof_to_hash(proof))
    return Digest(hashlib.sha256(b"assay/audit/2" + alpha + mix.digest() + drand).digest())


def audit_rate_ppm(audit: AuditSpec, clean_audits: int, discount_ppm: int = PPM) -> int:
    """Probability of an audit, in millionths, from the count of consecutive passed audits.

    1,000,000 on probation; never below the floor.

    Args:
        audit: The run's rules.
        clean_audits: Passed in a row since the last fault or change of execution class.
        discount_ppm: Factor for attested hardware; it does not affect probation and floor.
    """
    if clean_audits < audit.probation:
        return PPM
    adaptive_ppm = PPM * audit.probation // clean_audits
    return discounted_ppm(
        adaptive_ppm=adaptive_ppm, deterrent_ppm=0, floor_ppm=audit.floor_ppm, discount_ppm=discount_ppm
    )


def clean_at_floor(audit: AuditSpec) -> int:
    """How many audits passed in a row bring a node's rate to the floor; more change nothing."""
    return -(-PPM * audit.probation // audit.floor_ppm)


def discounted_ppm(*, adaptive_ppm: int, deterrent_ppm: int, floor_ppm: int, discount_ppm: int) -> int:
    """Probability of an audit, in millionths: `min(1, max(deterrent, discount * adaptive, floor))`.

    Only the adaptive part is multiplied, and rounded up. Hence, for all arguments:
    the result is at least `floor_ppm` and at least `deterrent_ppm`; it is at most
    what it is without a discount; and without one it is
    `min(1_000_000, max(deterrent_ppm, adaptive_ppm, floor_ppm))`.

    Args:
        adaptive_ppm: Rate from a node's record, before the floor: `1_000_000 * probation // clean`.
            0 or more; more than 1,000,000 counts as it is, then the result is cut.
        deterrent_ppm: Lower bound that no attestation lowers. 0 to 1,000,000.
        floor_ppm: The run's floor. 1 to 1,000,000.
        discount_ppm: 0 to 1,000,000.

    Raises:
        ValueError: an argument is outside of its bounds (our own mistake).
    """
    if adaptive_ppm < 0 or not 0 <= deterrent_ppm <= PPM or not 0 < floor_ppm <= PPM:
        raise ValueError(
            f"rates {adaptive_ppm}, {deterrent_ppm}, {floor_ppm}: "
            f"expected 0 or more, 0 to {PPM}, and 1 to {PPM} millionths"
        )
    if not 0 <= discount_ppm <= PPM:
        raise ValueError(f"a discount of {discount_ppm} millionths, expected 0 to {PPM}")
    return min(PPM, max(deterrent_ppm, -(-adaptive_ppm * discount_ppm // PPM), floor_ppm))


def is_drawn(seed: Digest, node: PeerId, rate_ppm: int) -> bool:
    """Whether this node's step is audited."""
    return _number(seed, b"A", node, 0) % PPM < rate_ppm  # 256 bits: bias below 2^-235


def is_replicated(seed: Digest, node: PeerId, round_id: int, replication_ppm: int) -> bool:
    """Whether a second auditor must recompute this step (replicated audit).

    Args:
        seed: Of the round whose manifest carried the first commitment: its auditor could not know it.
        node, round_id: The step.
        replication_ppm: Probability, in millionths.
    """
    return _number(seed, b"L", node, round_id) % PPM < replication_ppm


def auditors(seed: Digest, node: PeerId, verifiers: Sequence[PeerId]) -> tuple[PeerId, ...]:
    """The verifiers in order of responsibility for this audit."""
    left = sorted(verifiers)
    order = []
    for turn in range(len(left)):
        order.append(left.pop(_number(seed, b"V", node, turn) % len(left)))
    return tuple(order)


def opened_count(audit: AuditSpec, rate_ppm: int) -> int:
    """Blocks that an audit opens unless it is wide, at this rate: `blocks * floor / rate`, rounded up.

    So a block of a step is opened at least as probably at every rate as at the floor, by as many bytes of a
    round. Never fewer than `OPENED_LEAST` or `blocks`, whichever is less.

    Args:
        audit: The run's rules.
        rate_ppm: At which the node's steps are drawn, floor to 1,000,000.
    """
    return max(min(OPENED_LEAST, audit.blocks), -(-audit.blocks * audit.floor_ppm // rate_ppm))


def wide_share_ppm(audit: AuditSpec, rate_ppm: int) -> int:
    """Probability that an audit is wide, at this rate: `wide * floor / rate`, rounded up."""
    return -(-audit.wide_ppm * audit.floor_ppm // rate_ppm)


def opened_blocks(
    seed: Digest, node: PeerId, audit: AuditSpec, rate_ppm: int, block_count: int, live: Sequence[int]
) -> tuple[int, ...]:
    """Indices of the blocks a drawn node opens, ascending: half uniform, half among its non-empty blocks.

    With probability `wide_share_ppm` they are `wide_blocks`, else `opened_count`; never more than there are.

    With a sign wire every non-empty block carries the same energy, so the
    energy-weighted half is uniform over `live`.

    Args:
        seed: Of the beacon that drew the step.
        node: Whose step it is.
        audit: The run's rules.
        rate_ppm: At which the node's steps are drawn, floor to 1,000,000 (`Audit.rate_ppm`).
        block_count: Of the model.
        live: The blocks of which the node sent something.
    """
    is_wide = _number(seed, b"F", node, 0) % PPM < wide_share_ppm(audit, rate_ppm)
    want = min(audit.wide_blocks if is_wide else opened_count(audit, rate_ppm), block_count)
    if want == block_count:
        return tuple(range(block_count))
    chosen: set[int] = set()
    draw = 0
    while len(chosen) < want // 2:
        chosen.add(_number(seed, b"B", node, draw) % block_count)
        draw += 1
    pool = sorted(set(live) - chosen)
    while len(chosen) < want and pool:
        chosen.add(pool.pop(_number(seed, b"W", node, draw) % len(pool)))
        draw += 1
    while len(chosen) < want:
        chosen.add(_number(seed, b"B", node, draw) % block_count)
        draw += 1
    return tuple(sorted(chosen))


def opened_segment(seed: Digest, node: PeerId, segments: int) -> int:
    """Index of the segment of inner steps that an audit recomputes; 0 where a round has none."""
    return _number(seed, b"S", node, 0) % segments if segments else 0


def _number(seed: Digest, what: bytes, node: PeerId, draw: int) -> int:
    return int.from_bytes(hashlib.sha256(seed + what + node + draw.to_bytes(4, "big")).digest(), "big")
