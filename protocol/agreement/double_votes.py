"""Double votes: two signed statements of one verifier, of which an honest verifier signs at most one.

Room: protocol (pure). Such a pair is objective evidence: whoever knows the spec can check it, no committee
decides it, and the manifest that carries it disqualifies the verifier. Rules: docs/protocol.md, section 7a.
"""

from __future__ import annotations

from assay.protocol.agreement.configurations import FIRST, Configuration
from assay.protocol.agreement.finality import SETTLED
from assay.protocol.encoding.codec import decode_any, digest, encode
from assay.protocol.errors import MalformedMessage, PeerFault
from assay.protocol.identity import Domain, verify
from assay.protocol.messages import Block, DoubleVote, SignedBlock, SignedVote, Vote, VoteKind
from assay.protocol.offences import offence_id
from assay.protocol.types import Digest, PeerId, Signature

Statement = SignedVote | SignedBlock
_KINDS: dict[bytes, type[Vote] | type[Block]] = {Vote.TAG: Vote, Block.TAG: Block}


def double_vote(one: Statement, other: Statement) -> DoubleVote:
    """The pair as evidence, in its one canonical order."""
    (first, first_signature, verifier), (second, second_signature, _) = sorted(
        (_parts(one), _parts(other)), key=lambda parts: digest(parts[0])
    )
    return DoubleVote(
        run_id=first.run_id,
        verifier=verifier,
        first=encode(first),
        second=encode(second),
        first_signature=first_signature,
        second_signature=second_signature,
    )


def check_double_vote(domain: Domain, pair: DoubleVote, configuration: Configuration = FIRST) -> None:
    """Do nothing if an honest verifier signs at most one of these statements, and this one signed both.

    The fault is of whoever held the seat `pair.verifier` in their iteration; `configuration` is the run's
    present one.

    Raises:
        MalformedMessage: the statements do not exclude each other, or stand in the wrong order.
        PeerFault: a signature is not this verifier's.
    """
    first, second = decode_any(_KINDS, pair.first), decode_any(_KINDS, pair.second)
    culprit = pair.verifier.hex()[:8]
    if {pair.run_id, first.run_id, second.run_id} != {domain.run_id}:
        raise MalformedMessage(f"double vote of {culprit}: of another run")
    if not digest(first) < digest(second) or not _exclude(first, second):
        raise MalformedMessage(f"double vote of {culprit}: its two statements do not exclude each other")
    key = signer_of(pair, configuration)
    try:
        verify(key, domain, first, pair.first_signature)
        verify(key, domain, second, pair.second_signature)
    except PeerFault as fault:
        raise MalformedMessage(f"double vote: {fault}") from None


def signer_of(pair: DoubleVote, configuration: Configuration) -> PeerId:
    """The key of whoever held the seat in the iteration of the pair; `configuration` is the present one.

    Raises:
        MalformedMessage: the first is no statement of a double vote, or of a configuration to come.
    """
    return configuration.of(decode_any(_KINDS, pair.first).iteration).key(pair.verifier)


def double_vote_offence(run_id: Digest, verifier: PeerId) -> Digest:
    """Identifier of a verifier's double votes: one offence in a run, however many pairs there are."""
    return offence_id(run_id, b"assay/double-vote-offence/1" + verifier)


def _parts(signed: Statement) -> tuple[Vote | Block, Signature, PeerId]:
    statement = signed.vote if isinstance(signed, SignedVote) else signed.block
    return statement, signed.signature, signed.verifier


def _exclude(first: Vote | Block, second: Vote | Block) -> bool:
    """Whether an honest verifier signs at most one: one block, and one vote of each kind, an iteration."""
    if first.iteration != second.iteration or first.iteration == SETTLED:
        return False
    if isinstance(first, Vote) and isinstance(second, Vote):
        return first.kind == second.kind or {first.kind, second.kind} == {VoteKind.DUMMY, VoteKind.FINALISE}
    return isinstance(first, Block) and isinstance(second, Block)
