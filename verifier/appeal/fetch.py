"""Fetch: asks the accused, and nobody else, for its evidence about one operator of its step.

Room: verifier (edge: the network). What others would send could lose the appeal for it. Sizes and times are
bounded before anything is fetched, and what arrives is believed by nobody: verifier/appeal/evidence.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import trio

from assay.network.blob_store import DiskBlobs
from assay.network.host import Host, PeerAddress, open_host
from assay.participant.follower import fetch_blob
from assay.protocol.encoding.codec import decode, encode
from assay.protocol.errors import AssayError, PeerFault, Unavailable
from assay.protocol.messages import EvidenceNotice, EvidenceRequest
from assay.protocol.params import RunSpec
from assay.protocol.types import Digest, PeerId
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
    widest = max(model.vocabulary, 3 * model.width, 2 * model.hidden, model.heads * model.context)
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


async def ask(host: Host, node: PeerId, request: EvidenceRequest, spec: RunSpec) -> EvidenceNotice | None:
    """What the accused node can show; None if that is nothing yet.

    Raises:
        PeerFault: it is more than any evidence of this run.
        MalformedMessage, Unavailable: there is no such answer.
    """
    body = await host.request(node, "evidence", encode(request), timeout_s=ASK_S)
    if not body:
        return None
    shown, size_max = decode(EvidenceNotice, body), evidence_bytes_max(spec)
    if shown.evidence_bytes > size_max:
        raise PeerFault(node, f"evidence of {shown.evidence_bytes} bytes, at most {size_max} expected")
    return shown


async def keep(host: Host, node: PeerId, shown: EvidenceNotice, path: Path, deadline_s: float) -> None:
    """Fetch what the node showed into this file.

    Raises:
        Unavailable: it did not come in time. OSError: of the disk.
    """
    body = await fetch_blob(host, shown.evidence, (node,), deadline_s, shown.evidence_bytes)
    path.parent.mkdir(exist_ok=True)
    part = path.with_suffix(".part")
    await trio.to_thread.run_sync(part.write_bytes, body)
    part.replace(path)


async def fetch_as_juror(
    *,
    seed: bytes,
    run_id: Digest,
    spec: RunSpec,
    places: Sequence[PeerAddress],
    request: EvidenceRequest,
    path: Path,
    patience_s: float,
) -> None:
    """Fetch the evidence for a juror whose process is not in the run: as a host of its own, for this alone.

    Args:
        seed: Of the juror's peer key, by which the accused's node recognises it.
        run_id, spec: The accused's run.
        places: Where the accused's nodes may be.
        request: The evidence.
        path: The file that it becomes; the folder is there.
        patience_s: Until the accused has shown something; then the fetch has `FETCH_S`.

    Raises:
        Unavailable: the accused showed nothing that could be fetched.
    """
    peers, fetches = {place.peer for place in places}, 0
    reason = "not connected"
    async with (
        open_host(
            seed=seed,
            listen_port=0,
            network_id=run_id.hex()[:16],
            is_member=peers.__contains__,
            handlers={},
            blobs=DiskBlobs(path.parent / "blobs", bytes_max=0),
        ) as host,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(host.keep_connected, list(places))
        deadline = trio.current_time() + patience_s
        while trio.current_time() < deadline and fetches < FETCHES_MAX:
            for peer in sorted(peers & host.connected()):
                try:
                    shown = await ask(host, peer, request, spec)
                    if shown is None:
                        reason = "it has none to show"
                        continue
                    fetches += 1
                    await keep(host, peer, shown, path, FETCH_S)
                except (AssayError, OSError) as error:
                    reason = str(error)
                    continue
                nursery.cancel_scope.cancel()
                return
            await trio.sleep(LOOK_S)
        nursery.cancel_scope.cancel()
    names = ", ".join(peer.hex()[:8] for peer in sorted(peers))
    raise Unavailable(f"evidence about operator {request.operator} from {names}: {reason}")
