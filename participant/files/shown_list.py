"""Shown list: where a member keeps the list of known-answer tasks that a node has shown, in its store.

Room: participant (edge: a store). Needs no network: a light installation reads a run's lists, too.
"""

from __future__ import annotations

from pathlib import Path

from assay.participant.store import Store, read_value
from assay.protocol.messages import TaskList
from assay.protocol.types import Digest, PeerId

LISTED = "listed/"  # keys: the secret of a node that has shown its list


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
