"""Node: a node's process that misbehaves, in its trainer or in what it sends.

Room: devnet (edge).
"""

from __future__ import annotations

from dataclasses import replace

from assay.devnet.faults.behaviours import Behaviour, FaultyTrainerStart
from assay.node.messages import TrainerStart
from assay.node.openings import Openings
from assay.node.service import Sent, Service
from assay.participant.config import Participant
from assay.protocol.auditing.audits import Audit
from assay.protocol.encoding.codec import Message
from assay.protocol.errors import Unavailable
from assay.protocol.messages import OpeningNotice, Submission
from assay.protocol.types import PeerId


class FaultyOpenings(Openings):
    """Openings of a node with a behaviour."""

    behaviour: Behaviour

    async def opening(self, audit: Audit) -> OpeningNotice:
        """`withhold-opening`: none.

        Raises:
            Unavailable: it is withheld.
        """
        if self.behaviour.at(int(audit.round)) == "withhold-opening":
            raise Unavailable("withheld")
        return await super().opening(audit)


class FaultyNode(Service):
    """A node with a behaviour."""

    def __init__(self, me: Participant, behaviour: Behaviour) -> None:
        self._behaviour = behaviour
        super().__init__(me)

    def _trainer(self) -> tuple[str, Message]:
        _, start = super()._trainer()
        assert isinstance(start, TrainerStart)
        return "assay.devnet.faults.trainer", FaultyTrainerStart(
            start=start, behaviour=self._behaviour.name, from_round=self._behaviour.from_round
        )

    async def _submit(self, verifier: PeerId, submission: Submission, sent: Sent) -> None:
        """`two-commits`: every second verifier gets another commit, which no honest node ever signs."""
        commit = submission.signed.commit
        is_second = self.me.spec.verifier_peers.index(verifier) % 2 == 1
        if is_second and self._behaviour.at(int(commit.round)) == "two-commits":
            twin = replace(commit, loss_micro=commit.loss_micro + 1)
            submission = replace(submission, signed=self._signed(twin))
        await super()._submit(verifier, submission, sent)

    def _openings(self, kind: type[Openings] = Openings) -> Openings:
        openings = super()._openings(FaultyOpenings)
        assert isinstance(openings, FaultyOpenings)
        openings.behaviour = self._behaviour
        return openings
