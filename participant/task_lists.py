"""Task lists: a node's list of known-answer tasks once it is shown: who keeps it, and how members pass it on.

Room: participant (edge: store, host). A list authenticates itself by the root that its node announced. What a
single honest verifier has, every one has that asks: else a node could choose for whom a step is a task, and
for whom it is a lie.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from pathlib import Path

import trio

from assay.network.host import Host
from assay.participant.store import Store, read_value
from assay.protocol.auditing.commitments import known_answer_root
from assay.protocol.encoding.codec import decode, encode
from assay.protocol.errors import AssayError
from assay.protocol.known_answers import task_list
from assay.protocol.messages import TaskList
from assay.protocol.state_transition import RunState
from assay.protocol.types import NO_DIGEST, Digest, PeerId

log = logging.getLogger(__name__)
SHOW, ASK = "list", "listed"  # methods of verifiers: take a list; give that of a node
LISTED = "listed/"  # keys: the secret of a node that has shown its list
SHOW_S = 3.0  # for one verifier, and between two attempts
SHOWN_S = 120.0  # for which it is tried to show a list to all


def is_announced(shown: TaskList, run_state: RunState) -> bool:
    """Whether it is the list that its node announced in this run."""
    record = run_state.nodes.get(shown.node)
    if record is None or record.tasks == NO_DIGEST or shown.run_id != run_state.run_id:
        return False
    return known_answer_root(task_list(shown.secret, run_state.spec, shown.node)) == record.tasks


def keep_list(store: Store, shown: TaskList) -> None:
    """Keep a list that was announced."""
    store.set_value(f"{LISTED}{shown.node.hex()}", shown.secret)


def kept_lists(store: Store, run_id: Digest) -> list[TaskList]:
    """All lists that are here."""
    found = store.values(LISTED).items()
    return [
        TaskList(run_id=run_id, node=PeerId(bytes.fromhex(name.removeprefix(LISTED))), secret=Digest(secret))
        for name, secret in found
    ]


def kept_secret(store: Store, node: PeerId) -> Digest | None:
    """What the node's list follows from; None if it is not here."""
    body = store.value(f"{LISTED}{node.hex()}")
    return None if body is None else Digest(body)


def read_list(path: Path, run_id: Digest, node: PeerId) -> TaskList | None:
    """The list of a node in the store of a member, which may be at work; None if it is not there.

    Raises:
        Unavailable: the store cannot be read now.
    """
    secret = read_value(path, f"{LISTED}{node.hex()}")
    return None if secret is None else TaskList(run_id=run_id, node=node, secret=Digest(secret))


async def show_list(host: Host, verifiers: Collection[PeerId], shown: TaskList) -> None:
    """Show these verifiers a list, until all have it, or for `SHOWN_S`."""
    body, left = encode(shown), set(verifiers)
    with trio.move_on_after(SHOWN_S):
        while left:
            for verifier in sorted(left):
                try:
                    await host.request(verifier, SHOW, body, timeout_s=SHOW_S)
                    left.discard(verifier)
                except AssayError as error:  # it may lack the last manifests
                    log.info("list not shown", extra={"verifier": verifier.hex()[:8], "reason": str(error)})
            if left:
                await trio.sleep(SHOW_S)
    log.info("list of known-answer tasks shown", extra={"node": shown.node.hex()[:8], "not_to": len(left)})


async def find_list(
    host: Host, verifiers: Collection[PeerId], run_state: RunState, node: PeerId
) -> TaskList | None:
    """The list of a node from the first of these verifiers that has it; None if none shows it now."""
    for verifier in verifiers:
        try:
            shown = decode(TaskList, await host.request(verifier, ASK, node, timeout_s=SHOW_S))
        except AssayError as error:
            log.info("no list found", extra={"verifier": verifier.hex()[:8], "reason": str(error)})
            continue
        if shown.node == node and is_announced(shown, run_state):
            return shown
    return None
