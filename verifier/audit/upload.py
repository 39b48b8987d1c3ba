"""Upload: what a node sends in a round, by the sizes of its run alone.

Room: verifier (pure). Updates are counted as they are in the mean if positions are random, openings at their
largest, and for each auditor. Commits, verdicts and other messages of some kB are not counted.
"""

from __future__ import annotations

import math

from assay.protocol.auditing.draws import opened_count, wide_share_ppm
from assay.protocol.messages import FIRST_HAND, INLINE_UPDATE_BYTES
from assay.protocol.params import PPM, AuditSpec
from assay.protocol.update_rule import BLOCK_SIDE, BLOCK_SIZE, RuleSpec, Values
from assay.training.codec.rice import rice_bits
from assay.training.codec.wire import CODE_BITS
from assay.training.layout import Layout
from assay.verifier.audit.messages import opening_bytes_max


def block_bits(rule: RuleSpec) -> float:
    """Expected bits of a 64 x 64 block that is sent, if positions are random.

    9.5 per coefficient at k = 32 with signs, as measured in training.
    """
    compress = rule.compress
    if compress.rank:
        return compress.rank * 2 * BLOCK_SIDE * 8 + 8
    code, scale = CODE_BITS[compress.values], 0 if compress.values is Values.SIGN else 16
    if compress.k == BLOCK_SIZE:
        return code * BLOCK_SIZE + scale
    low = rice_bits(BLOCK_SIZE, compress.k)
    mean_gap = (BLOCK_SIZE - compress.k) / (compress.k + 1)
    mean_quotient = 1 / math.expm1(2**low * math.log1p(1 / mean_gap))
    return compress.k * (low + 1 + mean_quotient + code) + scale  # low bits, unary part and its end, value


def update_bytes(rule: RuleSpec, layout: Layout) -> float:
    """What a node's message of one round has in the mean, if positions are random."""
    return layout.blocks / rule.fragments * block_bits(rule) / 8


def copies_sent(verifiers: int, update: float) -> int:
    """To how many verifiers a node itself sends an update of so many bytes, where all of them answer."""
    return verifiers if update <= INLINE_UPDATE_BYTES else min(FIRST_HAND, verifiers)


def openings_bytes(rule: RuleSpec, rules: AuditSpec, layout: Layout, rate_ppm: int) -> float:
    """What an honest node uploads for openings a round, at most in the mean, at this rate of audits."""
    wide = wide_share_ppm(rules, rate_ppm) / PPM
    usual, most = (
        opening_bytes_max(rule, layout, count) for count in (opened_count(rules, rate_ppm), rules.wide_blocks)
    )
    readers = 1 + rules.replication_ppm / PPM  # auditors, each of whom has it from the node
    return rate_ppm / PPM * readers * ((1 - wide) * usual + wide * most)


def uploaded_bytes(rule: RuleSpec, rules: AuditSpec, layout: Layout, verifiers: int, rate_ppm: int) -> float:
    """What an honest node uploads a round, in the mean: its update to some verifiers, and its openings."""
    update = update_bytes(rule, layout)
    return copies_sent(verifiers, update) * update + openings_bytes(rule, rules, layout, rate_ppm)
