"""Consensus numbers: those on which all verifiers must agree are frozen: a change of one needs a new run."""

from __future__ import annotations

import pytest

from assay.protocol import (
    grpo,
    membership,
    messages,
    openings,
    params,
    permitted,
    run_state,
    state_transition,
    update_rule,
)
from assay.protocol.agreement import quorum
from assay.protocol.encoding import blob, codec, json_text, merkle
from assay.protocol.errors import MalformedMessage
from assay.protocol.messages import Vote
from assay.protocol.randomness import drand, vrf
from assay.training.data import environments

FROZEN = {
    params: {"RUN_NODES_MAX": 128, "RUN_VERIFIERS_MAX": 16, "CROWDED_MAX": 4096},
    messages: {
        "NODES_MAX": 1024, "VERIFIERS_MAX": 64, "VERDICTS_MAX": 4096, "SKETCH_BYTES": 512,
        "REASON_CHARS_MAX": 300, "COMMITMENT_HASHES_MAX": 10, "STAKE_REPORTS_MAX": 8, "JOINS_MAX": 4,
        "ADMISSIONS_MAX": 512, "STATEMENT_BYTES_MAX": 512, "CONTRADICTIONS_MAX": 4,
        "EVIDENCE_BYTES_MAX": 163_840, "INLINE_UPDATE_BYTES": 131_072, "PIECE_BYTES_MAX": 65_536,
        "FIRST_HAND": 2,
    },
    quorum: {"FIRST_COMMITTEE": 5},
    vrf: {"PROOF_BYTES": 80, "OUTPUT_BYTES": 64},
    drand: {"KEY_BYTES": 96, "SIGNATURE_BYTES": 48, "AHEAD_S": 120, "SLACK_S": 3, "GRACE_S": 5},
    update_rule: {
        "PPM": 1_000_000, "BLOCK_SIDE": 64, "BLOCK_SIZE": 4096, "SEGMENTS_MAX": 64, "RANK_MAX": 8,
        "FRAGMENTS_MAX": 64, "RESET_MAX": 1024, "REACH_MAX_NANO": 2_000_000_000, "LAG_MAX": 4,
    },
    run_state: {"IDLE_ROUNDS": 16, "BORDERLINE_WEIGHT": 4, "BORDERLINE_MAX": 16},
    permitted: {"STAKE_REPORT_PAUSE": 64, "STAKE_REPORT_ROUNDS": 16},
    state_transition: {"BEACON_PAUSE": 16, "PAUSE_DOUBLINGS_MAX": 4},
    openings: {
        "OPENED_BLOCKS_MAX": 32_768, "PROOF_HASHES_MAX": 26, "INNER_BYTES_MAX": 536_870_912,
        "WINDOWS_MAX": 65_536,
    },
    codec: {
        "MESSAGE_BYTES_MAX": 4_194_304, "DEPTH_MAX": 10, "ITEMS_MIN": 4096, "ITEM_BYTES": 8,
        "INT_MAX": 18_446_744_073_709_551_615,
    },
    blob: {"CHUNK_BYTES": 262_144, "BLOB_BYTES_MAX": 1_099_511_627_776},
    json_text: {"NESTED_MAX": 200},
    grpo: {"GROUP_MAX": 64, "FIGURE_TOKENS": 7, "DIGIT": 256, "REWARD_MAX": 1_000_000},
    environments: {"ARITHMETIC_CHARACTERS": 64},
    merkle: {"LEAVES_MAX": 67_108_864},
    membership: {"ADMISSION_S": 60, "SAID_ROUNDS": 16, "RETURN_PAUSE_S": 60},
}  # fmt: skip


@pytest.mark.parametrize("module", FROZEN, ids=lambda module: module.__name__)
def test_a_number_that_all_verifiers_share_is_the_frozen_one(module):
    assert {name: getattr(module, name) for name in FROZEN[module]} == FROZEN[module]


def test_a_message_has_at_most_4_mib():
    with pytest.raises(MalformedMessage, match="4194305 bytes, at most 4194304 expected"):
        codec.decode(Vote, bytes((4 << 20) + 1))
    with pytest.raises(MalformedMessage) as other:
        codec.decode(Vote, bytes(4 << 20))  # not too large, but no message
    assert "at most" not in str(other.value)
