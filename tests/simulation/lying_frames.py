"""Lying frames: verifiers that say one thing to one peer and another to the next, or both to everybody.

A liar's process follows the rules; what it puts on the wire is changed here, and signed with its key. It
hears of its own lies sooner or later, and then its process ends: nobody else may sign with its key.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from hashlib import sha256
from typing import Any

from nacl.signing import SigningKey

from assay.protocol.encoding.codec import decode_any, digest, encode
from assay.protocol.identity import peer_of, sign
from assay.protocol.messages import (
    MESSAGES,
    BeaconShare,
    Proposal,
    SignedBlock,
    SignedEvaluation,
    SignedEvaluationCommitment,
    SignedInclusionList,
    SignedReceipt,
    SignedRefusal,
    SignedVote,
    VoteKind,
)
from assay.protocol.types import NO_DIGEST, Digest
from assay.testing.members import DOMAIN, a_peer_key, name_of
from tests.simulation.streams import BLOB, Frame

Lie = Callable[[Frame, bool], tuple[Frame, ...]]


def two_faced(frame: Frame, is_second: bool) -> tuple[Frame, ...]:
    """Every second peer gets another vote, proposal, share of the beacon, list, evaluation or receipt."""
    return (_other(frame),) if is_second else (frame,)


def two_voiced(frame: Frame, is_second: bool) -> tuple[Frame, ...]:
    """Everybody gets both, in another order each."""
    other = _other(frame)
    both = (other, frame) if is_second else (frame, other)
    return both if other is not frame else (frame,)


def mute(frame: Frame, is_second: bool) -> tuple[Frame, ...]:
    """Every second peer gets nothing but answers."""
    return () if is_second and not frame.method else (frame,)


def dull(frame: Frame, _is_second: bool) -> tuple[Frame, ...]:
    """Leads no iteration: proposals of its own are not sent."""
    is_own = not frame.method and isinstance(decode_any(MESSAGES, frame.body), Proposal)
    return () if is_own else (frame,)


def turncoat(frame: Frame, is_second: bool) -> tuple[Frame, ...]:
    """Passes its turns for every second peer, and proposes to the others."""
    message = None if frame.method else decode_any(MESSAGES, frame.body)
    if not is_second or not isinstance(message, Proposal):
        return (frame,)
    key, block = a_peer_key(name_of(frame.source)), replace(message.block, manifest=NO_DIGEST)
    passed = SignedBlock(block=block, verifier=message.proposer, signature=sign(key, DOMAIN, block))
    return (replace(frame, body=encode(passed)),)


def half_open(frame: Frame, is_second: bool) -> tuple[Frame, ...]:
    """Every second peer gets no opening: a node that is judged by few, one of whom may lie."""
    if not is_second or frame.method not in ("opened", "open", BLOB):
        return (frame,)
    return (replace(frame, body=b"", error="not for you", is_busy=True),) if frame.answers else ()


def hoard(frame: Frame, is_second: bool) -> tuple[Frame, ...]:
    """Acknowledges updates and serves no blob: every second peer gets other bytes, the rest wait."""
    if frame.method != BLOB or not frame.answers:
        return (frame,)
    return (replace(frame, body=bytes(len(frame.body))),) if is_second else ()


LIES: dict[str, Lie] = {"two-faced": two_faced, "two-voiced": two_voiced, "mute": mute, "dull": dull}
HOARDER = "hoarder"  # of those who are dull else
TURNCOAT = "turncoat"  # of those who are mute else
NODES_LIES: dict[str, Lie] = {"half-open": half_open}


class Copier:
    """Measures nothing: repeats in its own name what it hears of others' evaluations."""

    def __init__(self) -> None:
        self._sealed: dict[int, SignedEvaluationCommitment] = {}  # by epoch
        self._opened: dict[int, SignedEvaluation] = {}

    def hear(self, frame: Frame) -> None:
        """What another verifier says."""
        message = None if frame.method else decode_any(MESSAGES, frame.body)
        match message:
            case SignedEvaluationCommitment(commitment=one):
                self._sealed.setdefault(one.epoch, message)
            case SignedEvaluation(evaluation=found):
                self._opened.setdefault(found.epoch, message)

    def lie(self, frame: Frame) -> tuple[Frame, ...]:
        """Another's commitment in place of its own; with each vote, others' evaluations as its own."""
        if frame.method:
            return (frame,)
        key, message = a_peer_key(name_of(frame.source)), decode_any(MESSAGES, frame.body)
        match message:
            case SignedEvaluationCommitment(commitment=one):
                if one.epoch not in self._sealed:
                    return ()
                copied = replace(one, evaluation=self._sealed[one.epoch].commitment.evaluation)
                signed = SignedEvaluationCommitment(commitment=copied, signature=sign(key, DOMAIN, copied))
                return (replace(frame, body=encode(signed)),)
            case SignedVote():
                return (frame, *(replace(frame, body=one) for one in self._said(key)))
        return (frame,)

    def _said(self, key: SigningKey) -> Iterator[bytes]:
        for known in self._opened.values():
            found = replace(known.evaluation, verifier=peer_of(key))
            yield encode(SignedEvaluation(evaluation=found, signature=sign(key, DOMAIN, found)))


def _other(frame: Frame) -> Frame:
    key = a_peer_key(name_of(frame.source))
    if frame.method == "submit" and frame.answers and not frame.error:
        return replace(frame, body=_other_receipt(key, frame.body))
    if frame.method:
        return frame
    other = other_face(key, frame.body)
    return frame if other == frame.body else replace(frame, body=other)


def _other_receipt(key: SigningKey, body: bytes) -> bytes:
    """A receipt of a commit that nobody sent."""
    answer: Any = decode_any({SignedReceipt.TAG: SignedReceipt, SignedRefusal.TAG: SignedRefusal}, body)
    if isinstance(answer, SignedRefusal):
        return body
    receipt = replace(answer.receipt, commit=Digest(sha256(answer.receipt.commit).digest()))
    return encode(SignedReceipt(receipt=receipt, signature=sign(key, DOMAIN, receipt)))


def other_face(key: SigningKey, body: bytes) -> bytes:
    """Another statement in place of this one, signed alike; anything else as it is."""
    message: Any = decode_any(MESSAGES, body)
    peer = peer_of(key)
    match message:
        case SignedVote(vote=vote) if message.verifier == peer and vote.iteration:
            match vote.kind:
                case VoteKind.NOTARISE:
                    vote = replace(vote, block=Digest(sha256(vote.block).digest()))
                case VoteKind.FINALISE:
                    vote = replace(vote, kind=VoteKind.DUMMY, block=NO_DIGEST)
            return encode(SignedVote(vote=vote, verifier=peer, signature=sign(key, DOMAIN, vote)))
        case Proposal(block=block) if message.proposer == peer:
            manifest = replace(message.manifest, time_s=message.manifest.time_s + 1)
            block = replace(block, manifest=digest(manifest))
            return encode(
                replace(message, manifest=manifest, block=block, signature=sign(key, DOMAIN, block))
            )
        case BeaconShare(verifier=verifier) if verifier == peer:
            return encode(replace(message, proof=random.Random(message.proof).randbytes(len(message.proof))))
        case SignedInclusionList(inclusion_list=one) if one.verifier == peer:
            one = replace(one, nodes=bytes(len(one.nodes)))
            return encode(SignedInclusionList(inclusion_list=one, signature=sign(key, DOMAIN, one)))
        case SignedEvaluationCommitment(commitment=sealed) if sealed.verifier == peer:
            sealed = replace(sealed, evaluation=Digest(sha256(sealed.evaluation).digest()))
            return encode(SignedEvaluationCommitment(commitment=sealed, signature=sign(key, DOMAIN, sealed)))
        case SignedEvaluation(evaluation=found) if found.verifier == peer:
            found = replace(found, score=replace(found.score, loss_micro=found.score.loss_micro // 2))
            return encode(SignedEvaluation(evaluation=found, signature=sign(key, DOMAIN, found)))
    return body
