"""Fetch: gets an accused node's evidence about one operator of its step, from it or from who passes it on.

Room: verifier (edge: the network). What others made could lose the appeal for the node, so only what it
signed for is fetched. Sizes and times are bounded before that, and what arrives is believed by nobody:
verifier/appeal/evidence.py.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path

import trio

from assay.network.blob_store import DiskBlobs
from assay.network.host import Host, PeerAddress, open_host
from assay.participant.files.evidence import notice_path
from assay.participant.follower import fetch_blob
from assay.protocol.encoding.codec import decode, encode
from assay.protocol.errors import AssayError, PeerFault, Unavailable
from assay.protocol.identity import Domain, verify
from assay.protocol.messages import EvidenceRequest, SignedEvidenceNotice
from assay.protocol.params import RunSpec
from assay.protocol.types import PeerId
from assay.protocol.update_rule import BLOCK_SIZE
from assay.training.codec.contribution import contribution_bytes_max
from assay.training.layout import layout_of
from assay.training.optimiser.outer import rest_bytes
from assay.training.reference.narrowing import OPERATORS_MAX

ASK_S = 10.0
FETCH_S = 600.0
FETCHES_MAX = 4  # of evidence about one operator: an accused may spoil a file once, and bytes are not free
LOOK_S = 2.0  # between two questions to an accused that has nothing to show yet


def evidence_bytes_max(spec: RunSpec) -> int:
    """Upper bound in bytes of any evidence about a step of this run.

    The digests of all outputs; error before and after, message; parameters, and of earlier outputs the
    slopes of all of them or four arrays over a batch, or else the gradient and its probe; the rest of the
    public state; with inner steps two inner states, or with kept moments the start and each segment's end.
    """
    layout, model, local = layout_of(spec.model), spec.model, spec.rule.local
    tokens = spec.rule.most_sequences_per_round * (model.context + 1)
    widest = max(
        model.vocabulary,
        3 * max(model.width, model.mixed_width),
        2 * model.hidden,
        model.heads * model.context,
    )
    sources = 8 * layout.parameters + 8 * layout.blocks * BLOCK_SIZE + rest_bytes(spec, spec.rounds)
    if not spec.rule.is_gradient:
        states = 1 + spec.rule.segments if spec.rule.carries_inner else 2
        sources += 4 * states * (1 + local.moments) * layout.parameters
    return (
        sources
        + contribution_bytes_max(spec.rule, layout.blocks)
        + 32 * OPERATORS_MAX
        + 32 * tokens * widest
        + (1 << 20)
    )


async def latest(
    host: Host,
    peers: Collection[PeerId],
    nodes: Collection[PeerId],
    request: EvidenceRequest,
    domain: Domain,
    spec: RunSpec,
) -> tuple[SignedEvidenceNotice, list[PeerId]]:
    """What the accused wrote last, of what peers can show; and those of them that show it.

    Args:
        host: Ours.
        peers: Whom to ask, as far as they are connected: the accused's nodes, and verifiers of their run.
        nodes: The accused's nodes, one of which signed.
        request: The evidence.
        domain, spec: The accused's run.

    Raises:
        Unavailable: nobody shows anything that may be fetched.
    """
    shown, reasons = dict[PeerId, SignedEvidenceNotice](), {"nobody is connected"}

    async def one(peer: PeerId) -> None:
        try:
            found = await _ask(host, peer, nodes, request, domain, spec)
        except AssayError as error:
            reasons.add(f"{peer.hex()[:8]}: {error}")
        else:
            if found is None:
                reasons.add(f"{peer.hex()[:8]}: has none")
            else:
                shown[peer] = found

    async with trio.open_nursery() as nursery:
        for peer in host.connected() & {*peers}:
            reasons.discard("nobody is connected")
            nursery.start_soon(one, peer)
    if not shown:
        raise Unavailable("; ".join(sorted(reasons)))
    last = max(shown.values(), key=lambda found: found.notice.written_ns)
    return last, [peer for peer, found in shown.items() if found.notice == last.notice]


async def _ask(
    host: Host,
    peer: PeerId,
    nodes: Collection[PeerId],
    request: EvidenceRequest,
    domain: Domain,
    spec: RunSpec,
) -> SignedEvidenceNotice | None:
    """What a peer shows; None if it has nothing yet.

    Raises:
        PeerFault: it is more than any evidence of this run, about something else, or not the accused's.
        MalformedMessage, Unavailable: there is no such answer.
    """
    body = await host.request(peer, "evidence", encode(request), timeout_s=ASK_S)
    if not body:
        return None
    signed = decode(SignedEvidenceNotice, body)
    notice, size_max = signed.notice, evidence_bytes_max(spec)
    if (notice.case_id, notice.operator) != (request.case_id, request.operator):
        raise PeerFault(
            peer,
            f"evidence about operator {notice.operator} of case {notice.case_id.hex()[:8]}, asked for "
            f"operator {request.operator} of case {request.case_id.hex()[:8]}",
        )
    if notice.evidence_bytes > size_max:
        raise PeerFault(peer, f"evidence of {notice.evidence_bytes} bytes, at most {size_max} expected")
    for node in nodes:
        with suppress(PeerFault):
            verify(node, domain, notice, signed.signature)
            return signed
    raise PeerFault(peer, "evidence that no node of the accused signed for")


async def keep(
    host: Host, holders: Sequence[PeerId], shown: SignedEvidenceNotice, path: Path, deadline_s: float
) -> None:
    """Fetch what these peers showed into this file, with its notice beside it.

    Raises:
        Unavailable: it did not come in time. OSError: of the disk.
    """
    notice = shown.notice
    body = await fetch_blob(host, notice.evidence, holders, deadline_s, notice.evidence_bytes)
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)  # after a crash there may be a notice without evidence, never with another's
    notice_path(path).write_bytes(encode(shown))
    part = path.with_suffix(".part")
    await trio.to_thread.run_sync(part.write_bytes, body)
    part.replace(path)


async def fetch_as_juror(
    *,
    seed: bytes,
    domain: Domain,
    spec: RunSpec,
    nodes: Collection[PeerId],
    places: Sequence[PeerAddress],
    request: EvidenceRequest,
    path: Path,
    patience_s: float,
) -> None:
    """Fetch the evidence for a juror whose process is not in the run: as a host of its own, for this alone.

    Args:
        seed: Of the juror's peer key, by which the accused's node recognises it.
        domain, spec: The accused's run.
        nodes: The accused's nodes.
        places: Where these and the run's verifiers may be.
        request: The evidence.
        path: The file that it becomes; the folder is there.
        patience_s: Until somebody has shown something; then the fetch has `FETCH_S`.

    Raises:
        Unavailable: nobody showed anything that could be fetched.
    """
    peers, fetches, reason = {place.peer for place in places}, 0, ""
    async with (
        open_host(
            seed=seed,
            listen_port=0,
            network_id=domain.run_id.hex()[:16],
            is_member=peers.__contains__,
            handlers={},
            blobs=DiskBlobs(path.parent / "blobs", bytes_max=0),
        ) as host,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(host.keep_connected, list(places))
        deadline = trio.current_time() + patience_s
        while not path.exists() and trio.current_time() < deadline and fetches < FETCHES_MAX:
            try:
                shown, holders = await latest(host, peers, nodes, request, domain, spec)
                fetches += 1
                await keep(host, holders, shown, path, FETCH_S)
            except (AssayError, OSError) as error:
                reason = str(error)
                await trio.sleep(LOOK_S)
        nursery.cancel_scope.cancel()
    if not path.exists():
        raise Unavailable(f"evidence about operator {request.operator}: {reason}")
