"""Data that only one node has: what it shows of a drawn step, and ways to show or train on others."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from assay.node.trainer import Trainer
from assay.protocol.auditing.draws import opened_blocks
from assay.protocol.encoding import merkle
from assay.protocol.encoding.codec import decode, encode
from assay.protocol.errors import ConfigError, MalformedMessage
from assay.protocol.messages import NO_OWN_DATA, Outcome, OwnData
from assay.protocol.openings import InnerOpening, Opening
from assay.protocol.openings import Path as MerklePath
from assay.protocol.params import Stratum
from assay.protocol.types import NO_DIGEST, Digest
from assay.testing.members import RUN_ID, a_digest
from assay.testing.signed import a_spec
from assay.testing.specs import TEXT, a_data_folder, a_rule, data_of
from assay.training.codec.contribution import decode_contribution
from assay.training.data.batches import batch_positions
from assay.training.data.own_data import OwnStream, drawn_part, own_tree, read_own_data
from assay.training.data.shards import SHARDS, write_tokens
from assay.training.model.loss import use_one_thread
from assay.training.reference.narrowing import START
from assay.verifier.appeal.program import why_not
from assay.verifier.audit.limits import shipped
from assay.verifier.audit.messages import Traced, TraceStep, opening_bytes_max, shown_bytes_max
from assay.verifier.audit.worker import RecomputeWorker

MATCH, MISMATCH = Outcome.MATCH, Outcome.MISMATCH
SEED, SECRET = a_digest("seed"), a_digest("salts")
OWN_TEXT = (np.arange(9000) ** 2 % 97).astype(np.uint8)
RULES = {
    "demo": a_rule(sequences=4),
    "fedavg": a_rule("fedavg", steps=5, segment=2, sequences=2, inner_lr_nano=2_000_000),
}
every_rule = pytest.mark.parametrize("name", RULES)


@cache
def spec_of(name):
    strata = (Stratum(tokens=0, seats=1), Stratum(tokens=len(TEXT), seats=2))
    return a_spec(rule=RULES[name], rounds=20, data=data_of(TEXT, strata=strata))


class Pair:
    """A node with data of its own, and an auditor that never had them."""

    def __init__(self, tmp_path, name, text=OWN_TEXT, trained=None):
        self.spec = spec = spec_of(name)
        self.node = spec.nodes[0].peer
        write_tokens(tmp_path / "own", [text])
        write_tokens(tmp_path / "trained", [text if trained is None else trained])
        self.own = read_own_data(tmp_path / "own", spec, RUN_ID, SECRET)
        self.trainer = Trainer(
            spec=spec, run_id=RUN_ID, node=self.node, data=tmp_path / "trained", folder=tmp_path / "node",
            salt_key=bytes(32), own=self.own.bound,
        )  # fmt: skip
        self.auditor = RecomputeWorker(
            spec=spec, data=a_data_folder(tmp_path / "data"), folder=tmp_path / "auditor"
        )
        self.record = self.trainer.step(0, a_digest("manifest"), 0, NO_DIGEST)

    def blocks(self):
        layout, rules = self.trainer.layout, self.spec.audit
        live = decode_contribution(self.spec, layout, 0, self.record.update).blocks_B.tolist()
        return list(opened_blocks(SEED, self.node, rules, rules.floor_ppm, layout.blocks, live))

    def opening(self, segment=0):
        shown = self.own.shown(self.record.commit, segment)
        return self.trainer.steps.opening(0, self.blocks(), segment, shown)

    def judge(self, segment=0, change=lambda windows: windows, own=None):
        """The auditor's outcome, of an opening whose windows were changed on the way."""
        body = self.opening(segment)
        if self.spec.rule.is_gradient:
            opened = decode(Opening, body)
            opened = replace(opened, windows=tuple(change(opened.windows)))
        else:
            outer = decode(InnerOpening, body)
            opened = replace(
                outer, opening=replace(outer.opening, windows=tuple(change(outer.opening.windows)))
            )
        return self.auditor.examine(
            self.record.commit, self.record.update, encode(opened), self.blocks(), segment,
            own=self.own.bound if own is None else own,
        ).outcome  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    use_one_thread()


# ---- the truth


@every_rule
def test_an_auditor_without_the_data_finds_an_honest_step_right(tmp_path, name):
    pair = Pair(tmp_path, name)
    segments = range(max(pair.spec.rule.segments, 1))
    assert [pair.judge(segment) for segment in segments] == [MATCH] * len(segments)


@every_rule
def test_an_opening_shows_the_windows_of_what_was_drawn_and_no_others(tmp_path, name):
    pair, commit = Pair(tmp_path, name), None
    commit = pair.record.commit
    positions = batch_positions(pair.spec, pair.node, 0, commit.tokens, pair.own.bound)
    segments = range(max(pair.spec.rule.segments, 1))
    shown = [pair.own.shown(commit, segment) for segment in segments]

    assert [len(windows) for windows in shown] == {"demo": [4], "fedavg": [4, 4, 2]}[name]
    told = [one.tokens for windows in shown for one in windows]
    assert told == [OWN_TEXT[at : at + pair.spec.window_tokens].tobytes() for at in positions]
    assert len(encode(pair.own.shown(commit, 0)[0])) * len(shown[0]) <= shown_bytes_max(pair.spec)
    blocks = pair.blocks()
    bound = opening_bytes_max(pair.spec.rule, pair.trainer.layout, len(blocks)) + shown_bytes_max(pair.spec)
    assert len(pair.opening()) <= bound


def test_the_batches_of_a_node_follow_from_its_root():
    """Else it could lay out its data so that the windows it likes are drawn when it likes."""
    spec = spec_of("demo")
    node, tokens = spec.nodes[0].peer, spec.tokens_per_step
    one, other = (OwnData(root=a_digest(name), windows=300) for name in ("one", "other"))

    drawn = [batch_positions(spec, node, 3, tokens, own) for own in (one, other)]

    assert drawn[0] != drawn[1]
    assert all(at % spec.window_tokens == 0 and at < 300 * spec.window_tokens for at in drawn[0])
    found = {at for number in range(1200) for at in batch_positions(spec, node, number, tokens, one)}
    assert len(found) == 300  # every window, the held-out ones of the public stream or not


def test_nobody_draws_a_batch_of_data_that_are_not_announced_or_of_a_node_that_brings_none():
    spec = spec_of("demo")
    with pytest.raises(ValueError, match="has announced none"):
        batch_positions(spec, spec.nodes[0].peer, 0, spec.tokens_per_step)
    own = OwnData(root=a_digest("root"), windows=300)
    with pytest.raises(ValueError, match="brings no data"):
        batch_positions(spec, spec.nodes[1].peer, 0, spec.tokens_per_step, own)


def test_the_hash_of_a_window_does_not_confirm_a_guess_of_its_text():
    spec = spec_of("demo")
    trees = [own_tree(spec, RUN_ID, OWN_TEXT, secret) for secret in (SECRET, a_digest("other salts"))]
    assert trees[0].leaf(0) != trees[1].leaf(0)
    assert own_tree(spec, a_digest("other run"), OWN_TEXT, SECRET).leaf(0) != trees[0].leaf(0)


# ---- lies


@every_rule
def test_a_node_that_trains_on_other_data_than_it_is_bound_to_is_found_out(tmp_path, name):
    """Also a node that changed its data later: it is bound to what it announced first."""
    pair = Pair(tmp_path, name, trained=OWN_TEXT[::-1].copy())
    assert pair.judge() is MISMATCH


def test_whatever_data_it_shows_must_lead_to_the_root_that_it_announced(tmp_path):
    """It lied in its batch, and shows the windows that it took: those lead to another root."""
    other = OWN_TEXT[::-1].copy()
    pair = Pair(tmp_path, "demo", trained=other)
    tree = own_tree(pair.spec, RUN_ID, other, SECRET)
    liar = OwnStream(pair.spec, other, SECRET, tree)
    starts = batch_positions(pair.spec, pair.node, 0, pair.record.commit.tokens, pair.own.bound)
    with pytest.raises(MalformedMessage, match="is not under root"):
        pair.judge(change=lambda _: [liar._window(at) for at in starts])


def _swapped(windows):
    return (windows[1], windows[0], *windows[2:])


def _forged(windows):
    hashes = windows[0].path.hashes
    return (replace(windows[0], path=MerklePath(hashes=(a_digest("sibling"), *hashes[1:]))), *windows[1:])


def _longer(windows):
    hashes = (*windows[0].path.hashes, a_digest("one more"))
    return (replace(windows[0], path=MerklePath(hashes=hashes)), *windows[1:])


def _salted(windows):
    return (replace(windows[0], salt=a_digest("salt")), *windows[1:])


def _other_text(windows):
    return (replace(windows[0], tokens=bytes(len(windows[0].tokens))), *windows[1:])


CHANGES = {
    "none of them": (lambda _: (), "0 windows of the node's data, 4 were drawn"),
    "one too few": (lambda windows: windows[1:], "3 windows"),
    "one too many": (lambda windows: (*windows, windows[0]), "5 windows"),
    "another order": (_swapped, "is not under root"),
    "a forged path": (_forged, "is not under root"),
    "a longer path": (_longer, "hashes, expected"),
    "another salt": (_salted, "is not under root"),
    "another text": (_other_text, "is not under root"),
    "a shorter text": (
        lambda windows: (replace(windows[0], tokens=windows[0].tokens[1:]), *windows[1:]),
        "a window of 16 bytes, expected 17",
    ),
}


@pytest.mark.parametrize("how", CHANGES)
@every_rule
def test_windows_that_do_not_lead_to_the_root_open_nothing(tmp_path, name, how, monkeypatch):
    """They count as no opening, before anything is computed: whoever sent them need not be the node."""
    change, reason = CHANGES[how]
    pair = Pair(tmp_path, name)
    monkeypatch.setattr(pair.auditor, "gradient", lambda *_: pytest.fail("it computed"))
    with pytest.raises(MalformedMessage, match=reason):
        pair.judge(change=change)


def test_tokens_that_no_model_of_the_run_knows_cannot_be_opened(tmp_path):
    """A commitment to such data is one that its node can never open."""
    pair = Pair(tmp_path, "demo")
    narrow = replace(pair.spec.data, vocabulary=50)
    pair.auditor.spec = replace(pair.spec, data=narrow)
    with pytest.raises(MalformedMessage, match=r"token \d+ of 50"):
        pair.judge()


def test_a_node_that_says_it_has_more_windows_cannot_show_those_drawn(tmp_path):
    pair = Pair(tmp_path, "demo")
    more = replace(pair.own.bound, windows=merkle.LEAVES_MAX)
    with pytest.raises(MalformedMessage, match=r"is too short|is not under root"):
        pair.judge(own=more)


def test_a_step_on_public_data_shows_no_windows(tmp_path):
    """What nothing binds must be empty: a step has one opening, and the verdict names it."""
    pair = Pair(tmp_path, "demo")
    with pytest.raises(MalformedMessage, match="data that are everybody's"):
        pair.judge(own=NO_OWN_DATA)


def test_no_claim_of_an_appeal_about_such_a_step_is_right(tmp_path):
    """No juror is shown the data: verifiers doubt the claim from its first position on."""
    pair = Pair(tmp_path, "demo")
    other = replace(pair.record.commit, node=pair.spec.nodes[1].peer)
    found, public = (pair.auditor.answer(TraceStep(commit=one)) for one in (pair.record.commit, other))
    assert found == Traced(positions=START) == public  # the other's run has no limits
    assert "only its node has" in why_not(pair.spec, shipped(), pair.record.commit)


# ---- the folder


def test_data_that_make_no_step_of_the_run_are_refused_before_they_are_announced(tmp_path):
    spec = spec_of("demo")
    write_tokens(tmp_path / "few", [OWN_TEXT[: 4 * 17 - 1]])
    with pytest.raises(ConfigError, match="3 windows of 17 tokens, expected 4"):
        read_own_data(tmp_path / "few", spec, RUN_ID, SECRET)
    write_tokens(tmp_path / "wide", [OWN_TEXT.astype(np.uint16)], vocabulary=1000)
    with pytest.raises(ConfigError, match="1000 different tokens by tokenizer 00000000, this run has 256"):
        read_own_data(tmp_path / "wide", spec, RUN_ID, SECRET)
    write_tokens(tmp_path / "torn", [OWN_TEXT])
    shard = next((tmp_path / "torn" / SHARDS).iterdir())
    shard.write_bytes(shard.read_bytes()[:-1] + b"?")
    with pytest.raises(ConfigError):
        read_own_data(tmp_path / "torn", spec, RUN_ID, SECRET)


def test_the_drawn_part_of_a_step_is_whole_segments():
    spec = spec_of("fedavg")
    commit = type("C", (), {"tokens": spec.tokens_per_step})()
    parts = [drawn_part(spec, commit, segment) for segment in range(spec.rule.segments)]
    assert [(part.start, part.stop) for part in parts] == [(0, 4), (4, 8), (8, 10)]
    assert drawn_part(spec_of("demo"), commit, 0) == slice(None)


def test_the_root_of_one_window_more_or_less_is_another(tmp_path):
    spec = spec_of("demo")
    whole = own_tree(spec, RUN_ID, OWN_TEXT, SECRET)
    assert whole.count == 9000 // 17
    assert own_tree(spec, RUN_ID, OWN_TEXT[:-17], SECRET).root != whole.root
    assert Digest(whole.root) == merkle.root([whole.leaf(n) for n in range(whole.count)])
