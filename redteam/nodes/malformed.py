"""Malformed: malformed-input attacks on the decoders.

Room: redteam. Every attempt must end in one `MalformedMessage`: no crash, no verdict, no memory out of
proportion. Malformed input must not become evidence against anybody either.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import cbor2
import numpy as np

import assay.training.codec.wire
import assay.verifier.audit.exact
import assay.verifier.audit.worker
from assay.protocol.encoding.codec import DEPTH_MAX, MESSAGE_BYTES_MAX, decode, encode
from assay.protocol.errors import MalformedMessage
from assay.protocol.messages import Manifest
from assay.protocol.openings import Opening
from assay.protocol.params import BLOCK_SIZE, Values
from assay.redteam.attack import Attacks, Outcome, Where, without
from assay.redteam.nodes.test_bed import lab_of
from assay.redteam.verifiers.fake_verifier import tally
from assay.training.codec.rice import rice_bits
from assay.training.codec.wire import Update, decode_update, encode_update, update_bytes_max
from assay.training.optimiser.node_state import NodeState

BLOCKS, K = 6, 32
BYTES_ATTACKS = Attacks(Where.BYTES)


def _an_update(seed: int) -> Update:
    rng = np.random.default_rng(seed)
    index = np.stack([np.sort(rng.choice(BLOCK_SIZE, K, replace=False)) for _ in range(BLOCKS)])
    value = rng.integers(1, 100, index.shape) * 200
    scales = np.full(BLOCKS, -30, np.int64), np.full(BLOCKS, 200, np.int64)
    return Update(np.arange(BLOCKS), index, value.astype(np.int32), *scales)


@BYTES_ATTACKS.attack("NaN and infinity in an opening", 22, "openings hold finite values only")
def _not_finite(is_defended: bool, seed: int) -> Outcome:
    """NaN and infinities in an opened momentum that the node has even committed to."""
    lab = lab_of(seed)
    claim = lab.claim(lab.truth())
    members: list[Callable[[], object]] = []
    for value in (np.nan, np.inf, -np.inf):
        after = claim.after.error_NC.copy()
        after[:, seed % 4096] = value

        def act(after: Any = after) -> object:
            return lab.judge(replace(claim, after=NodeState(after, None, lab.round + 1)))

        members.append(act)
    with without(assay.verifier.audit.exact, "np", _Lenient(), unless=is_defended):
        return tally(members, 0.0, "none: no such opening; nothing in time is WITHHELD", MalformedMessage)


class _Lenient:
    """numpy in which every value counts as finite."""

    def __getattr__(self, name: str) -> Any:
        if name == "isfinite":
            return lambda values: np.ones_like(values, bool)
        return getattr(np, name)


@BYTES_ATTACKS.attack("scales out of range", 22, "window of exponents; no code for NaN")
def _loud_scale(is_defended: bool, seed: int) -> Outcome:
    """Amplitudes beyond the fixed point in which the network sums, and levels that do not exist."""
    bodies = []
    for exponent in (0, 50, 255, -100):
        loud = replace(_an_update(seed), exponent_B=np.full(BLOCKS, exponent, np.int64))
        bodies.append(encode_update(loud, BLOCKS, K, Values.INT8))
    with without(assay.training.codec.wire, "exponent_window", lambda _: (-256, 255), unless=is_defended):
        members = [partial(decode_update, body, BLOCKS, K, Values.INT8) for body in bodies]
        return tally(members, 0.0, "none: refused by every verifier alike", MalformedMessage)


@BYTES_ATTACKS.attack("index bomb", 23, "gaps ascend and end inside the block")
def _index_bomb(is_defended: bool, seed: int) -> Outcome:
    """Indices beyond their block, so that a node writes into another's."""
    bodies = []
    for beyond in (BLOCK_SIZE, BLOCK_SIZE + 1, 2 * BLOCK_SIZE):
        update = _an_update(seed)
        index = update.index_BK.copy()
        index[-1, -1] = beyond
        bodies.append(encode_update(replace(update, index_BK=index), BLOCKS, K, Values.INT8))
    with ExitStack() as stack:
        if not is_defended:
            stack.enter_context(without(assay.training.codec.wire, "BLOCK_SIZE", 1 << 20))
            stack.enter_context(
                without(assay.training.codec.wire, "rice_bits", lambda _size, k: rice_bits(BLOCK_SIZE, k))
            )
        members = [partial(decode_update, body, BLOCKS, K, Values.INT8) for body in bodies]
        return tally(
            members, 0.0, "none: refused; duplicates and disorder have no encoding", MalformedMessage
        )


@BYTES_ATTACKS.attack("another encoding of the same", 22, "strict decoders: one content, one byte string")
def _two_encodings(is_defended: bool, seed: int) -> Outcome:
    """Other bytes for the same update: padding that is not zero, bytes after the end, cut ends."""
    body = encode_update(_an_update(seed), BLOCKS, K, Values.INT8)
    others = [body + b"\0", body[:-1], bytes([body[0] | 128, *body[1:]])]

    def strict(data: bytes) -> object:
        return decode_update(data, BLOCKS, K, Values.INT8)

    def lenient(data: bytes) -> object:
        return data[: len(body)].ljust(len(body), b"\0")  # a lenient decoder reads only what it needs

    read = strict if is_defended else lenient
    return tally(
        [partial(read, one) for one in others], 0.0, "none: one content has one byte string", MalformedMessage
    )


@BYTES_ATTACKS.attack("oversize and nesting", 21, "bounds before parsing")
def _oversize(is_defended: bool, seed: int) -> Outcome:
    """Messages above the legal size: an update, a manifest, nested arrays."""
    huge = bytes(update_bytes_max(BLOCKS, K, Values.INT8) + 1)
    nest = b"\x81" * (DEPTH_MAX + 2) + b"\x00"
    many = b"\x9a\x00\x10\x00\x00" + b"\x00" * (1 << 20)
    large = b"\x5a\x00\x40\x00\x01" + bytes(MESSAGE_BYTES_MAX + 1)
    if is_defended:
        members: list[Callable[[], object]] = [
            lambda: decode_update(huge, BLOCKS, K, Values.INT8),
            lambda: decode(Manifest, nest),
            lambda: decode(Manifest, many),
            lambda: decode(Manifest, large),
        ]
    else:
        members = [partial(cbor2.loads, data) for data in (nest, many, large)]
    return tally(members, 0.0, "none: refused before anything is allocated for it", MalformedMessage)


@BYTES_ATTACKS.attack("junk openings in an honest name", 21, "what does not open the commit is no evidence")
def _junk_openings(is_defended: bool, seed: int) -> Outcome:
    """An honest node's opening with bytes changed, announced in its name; undefended, it is a mismatch."""
    lab, rng = lab_of(seed), random.Random(seed)
    claim = lab.claim(lab.truth())
    commit, blocks = lab.keep(claim), lab.drawn(claim.update)
    true = lab.trainer.steps.opening(lab.round, blocks)
    opening = decode(Opening, true, len(true))
    junk = [
        rng.randbytes(200),
        b"",
        true[:-1],
        true + b"\0",
        encode(replace(opening, blocks=opening.blocks[1:])),
    ]
    junk += [encode(replace(opening, before=opening.after)), encode(replace(opening, paths_after=()))]
    for _ in range(40):
        body = bytearray(true)
        body[rng.randrange(len(body))] ^= 1 << rng.randrange(8)
        junk.append(bytes(body))
    verdicts = refused = 0
    for body_ in junk:
        try:
            lab.recompute_worker.examine(commit, claim.update, body_, blocks)
            verdicts += 1
        except MalformedMessage:
            refused += 1
            verdicts += not is_defended
    harm = f"{len(junk)} openings, {verdicts} verdicts on an honest node"
    return Outcome(
        attempts=len(junk), caught=refused if is_defended else 0, succeeded=verdicts, cost=0.0, harm=harm
    )
