"""Gossip: small facts to everybody by gossipsub; a convenience that correctness never needs.

Room: network (edge: libp2p pubsub). Strict signing binds a message to its author;
the author must be a member, whoever forwards it. Messages may be lost, repeated
and reordered, and above a rate they are dropped in silence: the protocol's own
replay protection and its direct facts carry the guarantees.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from typing import Any

import trio
from libp2p.peer.id import ID
from libp2p.pubsub.gossipsub import PROTOCOL_ID_V11, PROTOCOL_ID_V12, GossipSub
from libp2p.pubsub.pubsub import Pubsub
from libp2p.tools.anyio_service import background_trio_service

from assay.network import limits
from assay.network.identity import peer_id
from assay.network.inbox import Inbox, Notification
from assay.protocol.errors import MalformedMessage, Unavailable
from assay.protocol.types import PeerId

log = logging.getLogger(__name__)


class Gossip:
    """The topics of one host. `run` must be running while it is used."""

    def __init__(
        self,
        host: Any,
        *,
        me: PeerId,
        network_id: str,
        topics: Sequence[str],
        is_member: Callable[[PeerId], bool],
        inbox: Inbox,
    ) -> None:
        self._me = me
        self._is_member = is_member
        self._inbox = inbox
        self._wire_names = {topic: f"/assay/{network_id}/{topic}/1" for topic in topics}
        self._is_ready = trio.Event()
        self._router = GossipSub(
            protocols=[PROTOCOL_ID_V12, PROTOCOL_ID_V11],  # later versions are unfinished upstream
            degree=limits.GOSSIP_DEGREE,
            degree_low=limits.GOSSIP_DEGREE_LOW,
            degree_high=limits.GOSSIP_DEGREE_HIGH,
            heartbeat_interval=limits.GOSSIP_HEARTBEAT_S,
            max_messages_per_topic_per_second=limits.GOSSIP_PER_TOPIC_PER_S,
        )
        self._pubsub = Pubsub(
            host,
            self._router,
            strict_signing=True,
            msg_id_constructor=_message_id,
            max_inbound_rpc_size=limits.GOSSIP_RPC_BYTES_MAX,
            allowed_topics=frozenset(self._wire_names.values()),
        )

    async def run(self) -> None:
        """Keep the topics going; ends only by cancellation."""
        async with (
            background_trio_service(self._pubsub),
            background_trio_service(self._router),
            trio.open_nursery() as nursery,
        ):
            await self._pubsub.wait_until_ready()
            for topic, wire_name in self._wire_names.items():
                self._pubsub.set_topic_validator(wire_name, self._is_acceptable, False)
                nursery.start_soon(self._collect, topic, await self._pubsub.subscribe(wire_name))
            self._is_ready.set()

    async def publish(self, topic: str, data: bytes) -> None:
        """Hand a message to the mesh; nothing says who received it.

        Raises:
            Unavailable: the topics are not running.
            ValueError: an unknown topic, or more than `limits.GOSSIP_BYTES_MAX` (our own mistake).
        """
        if topic not in self._wire_names:
            raise ValueError(f"topic {topic} was not given when the host was opened")
        if len(data) > limits.GOSSIP_BYTES_MAX:
            raise ValueError(f"gossip of {len(data)} bytes, at most {limits.GOSSIP_BYTES_MAX} allowed")
        if not self._is_ready.is_set():
            raise Unavailable("gossip is not running yet")
        try:
            await self._pubsub.publish(self._wire_names[topic], data)
        except Exception as error:  # supervision: gossip may fail, its caller may not
            raise Unavailable(f"gossip: {type(error).__name__}") from error

    def _is_acceptable(self, _forwarder: ID, message: Any) -> bool:
        try:
            author = peer_id(ID(message.from_id))
        except MalformedMessage:
            return False
        return (
            len(message.data) <= limits.GOSSIP_BYTES_MAX
            and len(message.topicIDs) == 1
            and (author == self._me or self._is_member(author))
        )

    async def _collect(self, topic: str, subscription: Any) -> None:
        # libp2p holds 32 messages and then drops, so this task does nothing but take them.
        while True:
            message = await subscription.get()
            author = peer_id(ID(message.from_id))
            if author != self._me and not self._inbox.offer(Notification(author, bytes(message.data), topic)):
                self._inbox.drop(author)


def _message_id(message: Any) -> bytes:
    # By content: the same fact by two authors or twice by one is one message.
    return hashlib.sha256("|".join(message.topicIDs).encode() + b"\0" + message.data).digest()
