"""Own data: attacks by a node that trains on data which only it has.

Room: redteam (edge: temporary folders). Node and auditor are production's; the auditor never has the data.
What no audit can find is here too: data that were chosen badly, and committed to as they are.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import assay.protocol.membership
from assay.node.trainer import Trainer
from assay.participant.links import check_place
from assay.protocol.auditing.draws import opened_blocks
from assay.protocol.encoding import merkle
from assay.protocol.errors import MalformedMessage
from assay.protocol.messages import AttendanceKind, OwnData
from assay.protocol.messages import Outcome as Found
from assay.protocol.params import RunSpec, Stratum, check_spec
from assay.protocol.run_state import start
from assay.protocol.state_transition import advance
from assay.protocol.types import NO_DIGEST, Digest
from assay.redteam.attack import Attacks, Outcome, Where, tallied, without
from assay.redteam.members import one_act
from assay.redteam.nodes.test_bed import NODE, data_spec, lab_spec, text
from assay.testing.members import RUN_ID, a_digest
from assay.testing.run import a_manifest, an_attendance
from assay.training.codec.contribution import decode_contribution
from assay.training.data.own_data import OwnStream, own_tree, read_own_data
from assay.training.data.shards import write_tokens
from assay.training.model.loss import use_one_thread
from assay.verifier.audit.worker import RecomputeWorker

OWN_DATA_ATTACKS = Attacks(Where.STEP)
SEED, SALTS = a_digest("own data's draw"), a_digest("own data's salts")
Text = NDArray[np.uint8]


def _spec(seed: int, folder: Path) -> RunSpec:
    """The test bed's run, whose first named node brings data of its own."""
    spec = lab_spec(seed, data_spec(folder, seed))
    strata = Stratum(tokens=0, seats=1), Stratum(tokens=spec.data.tokens, seats=spec.seats - 1)
    spec = replace(spec, data=replace(spec.data, strata=strata))
    check_spec(spec)
    return spec


class _OwnBed:
    """A node that is bound to one text and trains on another, or on the same, and its auditor."""

    def __init__(self, folder: Path, seed: int, bound: Text, trained: Text) -> None:
        use_one_thread()
        self.spec = _spec(seed, folder / "data")
        for name, content in (("bound", bound), ("trained", trained)):
            write_tokens(folder / name, [content])
        self.own = read_own_data(folder / "bound", self.spec, RUN_ID, SALTS)
        self.trainer = Trainer(
            spec=self.spec, run_id=RUN_ID, node=NODE, data=folder / "trained", folder=folder / "node",
            salt_key=bytes(32), own=self.own.bound,
        )  # fmt: skip
        self.auditor = RecomputeWorker(spec=self.spec, data=folder / "data", folder=folder / "auditor")
        self.record = self.trainer.step(0, a_digest("manifest"), 0, NO_DIGEST)

    def judged(self, shows: OwnStream) -> Found:
        """What the auditor finds where the node shows the drawn windows of this stream.

        Nobody is bound to what does not fit the commit: an opening that never comes counts as withheld.
        """
        commit, layout, rules = self.record.commit, self.trainer.layout, self.spec.audit
        live = decode_contribution(self.spec, layout, 0, self.record.update).blocks_B.tolist()
        blocks = list(opened_blocks(SEED, NODE, rules, rules.floor_ppm, layout.blocks, live))
        body = self.trainer.steps.opening(0, blocks, 0, shows.shown(commit, 0))
        try:
            return self.auditor.examine(commit, self.record.update, body, blocks, own=self.own.bound).outcome
        except MalformedMessage:
            return Found.WITHHELD

    def stream(self, content: Text) -> OwnStream:
        """Another text, cut where the node's own is, with what would bind it."""
        tree = own_tree(self.spec, RUN_ID, content, SALTS)
        return _Disguised(self.spec, content, SALTS, tree, self.own.bound)


class _Disguised(OwnStream):
    """A stream whose windows are drawn as if it were the one that the node is bound to."""

    __slots__ = ("_as",)

    def __init__(self, spec: RunSpec, content: Text, salts: Digest, tree: merkle.Tree, said: OwnData) -> None:
        super().__init__(spec, content, salts, tree)
        object.__setattr__(self, "_as", said)

    @property
    def bound(self) -> OwnData:
        """What its node says."""
        return self._as  # type: ignore[attr-defined,no-any-return]


@contextmanager
def _bed(seed: int, bound: Text, trained: Text) -> Iterator[_OwnBed]:
    with tempfile.TemporaryDirectory(prefix="assay-own-") as folder:
        yield _OwnBed(Path(folder), seed, bound, trained)


@OWN_DATA_ATTACKS.attack(
    "own data: train on other data than it is bound to (2 ways)", 4, "windows with paths under its root"
)
def _other_data(is_defended: bool, seed: int) -> Outcome:
    """Shows the windows that it is bound to, or those that it trained on."""
    bound, trained = text(seed), text(seed + 1)
    with (
        _bed(seed, bound, trained) as bed,
        without(merkle, "check", lambda *_: None, unless=is_defended),
    ):
        found = [bed.judged(bed.own), bed.judged(bed.stream(trained))]
    caught = sum(one in (Found.MISMATCH, Found.WITHHELD) for one in found)
    return tallied(len(found), caught, 1.0, "none past the first audit")


@OWN_DATA_ATTACKS.attack(
    "own data: bind itself again, once it knows what is drawn", 4, "a node is bound once", where=Where.CHAIN
)
def _bound_again(is_defended: bool, seed: int) -> Outcome:
    """Announces a second root, under which the windows that will be drawn are others."""
    with tempfile.TemporaryDirectory(prefix="assay-own-") as folder:
        run_state = start(_spec(seed, Path(folder)), RUN_ID)
    roots = [a_digest("root", seed, number) for number in range(2)]
    with without(assay.protocol.membership, "may_bring", lambda *_: True, unless=is_defended):
        for root in roots:
            own = OwnData(root=root, windows=1000)
            said = an_attendance(run_state, NODE, AttendanceKind.DATA, own=own)
            manifest = a_manifest(run_state, nodes=[], attendance=(said,))
            try:
                check_place(run_state, manifest)
            except MalformedMessage:
                continue
            run_state = advance(run_state, manifest)
    has_changed = run_state.nodes[NODE].own.root == roots[1]
    return one_act(not has_changed, has_changed, 0.0, "it trains on what it chose after the draw")


@OWN_DATA_ATTACKS.attack(
    "own data: worthless data", 4, "none: the buyer names who brings data", has_off=False
)
def _worthless(_is_defended: bool, seed: int) -> Outcome:
    """Binds itself to windows of one token, and trains on them as ordered."""
    same = np.full(20_000, 32 + seed, np.uint8)
    with _bed(seed, same, same) as bed:
        found = bed.judged(bed.own)
    harm = "its steps are paid and teach nothing: bounded by reputation, its vote, and milestones"
    return tallied(1, int(found is not Found.MATCH), 1.0, harm)
