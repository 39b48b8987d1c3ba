"""Params: each bound of a run's spec, from both sides."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from assay.protocol.params import (
    AdapterSpec,
    Family,
    Precision,
    RunSpec,
    Target,
    check_spec,
    closing_rounds,
    model_faults,
)
from assay.protocol.types import Address, Digest
from assay.testing.members import a_member, peer
from assay.testing.run import a_spec
from assay.testing.specs import a_rule, an_audit_spec

SOME = Digest(b"s" * 32)
MEMBERS = tuple(sorted((a_member(peer(f"member {n}")) for n in range(140)), key=lambda one: one.peer))


def changed(section: str, **changes: Any) -> RunSpec:
    """A valid spec but for these changes; "" names the spec itself."""
    spec = a_spec(rounds=100)
    if section:
        return replace(spec, **{section: replace(getattr(spec, section), **changes)})
    return replace(spec, **changes)


def priced(price: int) -> RunSpec:
    """A run in which an epoch has 384 tokens."""
    return changed("money", price_per_mtoken=price)


def nodes(count: int, seats: int, **changes: Any) -> RunSpec:
    counts = {"least_nodes": count, "seats": seats, "verifiers": MEMBERS[139:], **changes}
    return changed("", nodes=MEMBERS[:count], **counts)


def with_segments(seats: int, segments: int) -> RunSpec:
    """A run of inner steps, each a segment."""
    rule = a_rule("diloco", steps=5 * segments, segment=5, sequences=1, f=0)
    return changed("", rule=rule, seats=seats, data=replace(a_spec().data, tokens=10**5))


def with_windows(step: int, count: int) -> RunSpec:
    """A run whose steps take so many of this many windows."""
    return replace(
        changed("data", tokens=100 + 17 * count, validation_tokens=100), rule=a_rule(sequences=step)
    )


def waits(least: int, seats: int, verifiers: int = 4, **changes: Any) -> RunSpec:
    some = MEMBERS[128 : 128 + verifiers]
    return nodes(0, seats, least_nodes=least, verifiers=some, **{"start_by_s": 1, **changes})


def adapted(rank: int, **sizes: int) -> dict[str, Any]:
    return {"base": SOME, "adapter": AdapterSpec(rank=rank, alpha=1, targets=(Target.V,)), **sizes}


@pytest.mark.parametrize(
    ("inside", "outside", "reason"),
    [
        (changed("", rounds=1), changed("", rounds=0), "rounds is 0, expected at least 1"),
        (changed("", rounds=10**6), changed("", rounds=10**6 + 1), "and at most 1000000"),
        (priced(0), priced(1), "less than one token unit"),
        (priced(2_605), priced(2_604), "less than one token unit"),
        (changed("", state_every=1), changed("", state_every=0), "state_every is 0, expected at least 1"),
        *(
            (changed("timing", **{name: 1}), changed("timing", **{name: 0}), f"{name} is 0, expected")
            for name in ("collect_ms", "ready_ms", "iteration_ms", "resend_ms")
        ),
        (changed("audit", floor_ppm=1), changed("audit", floor_ppm=0), "floor must be above 0"),
        (changed("audit", floor_ppm=10**6), changed("audit", floor_ppm=10**6 + 1), "floor must be above 0"),
        (changed("audit", probation=1), changed("audit", probation=0), "at least one audit"),
        (changed("audit", audit_rounds=1000), changed("audit", audit_rounds=1001), "audit_rounds is 1001"),
        (changed("audit", dispute_rounds=1000), changed("audit", dispute_rounds=1001), "dispute_rounds is"),
        (changed("audit", takeover_rounds=1), changed("audit", takeover_rounds=0), "at least one round"),
        (changed("audit", audit_rounds=4), changed("audit", audit_rounds=3), "audit_rounds is 3"),
        (changed("audit", dispute_rounds=2), changed("audit", dispute_rounds=1), "dispute_rounds is 1"),
        (changed("audit", wide_ppm=10**6), changed("audit", wide_ppm=10**6 + 1), "wide audits is at most 1"),
        (changed("audit", blocks=1), changed("audit", blocks=0), "0 blocks opened"),
        (changed("audit", blocks=1 << 15), changed("audit", blocks=32769), "32769 blocks opened"),
        (changed("audit", wide_blocks=1), changed("audit", wide_blocks=0), "0 wide_blocks opened"),
        (changed("audit", wide_blocks=1 << 15), changed("audit", wide_blocks=32769), "32769 wide_blocks"),
        (
            changed("audit", replication_ppm=10**6),
            changed("audit", replication_ppm=10**6 + 1),
            "replicated audits is at most 1",
        ),
        (
            changed("audit", known_answer_count=5),
            changed("audit", known_answer_count=6),
            "6 known-answer tasks of each node in 100 rounds, at most one step in 20",
        ),
        (
            replace(changed("audit", known_answer_count=1000), rounds=20_020),
            replace(changed("audit", known_answer_count=1001), rounds=20_020),
            "1001 known-answer tasks of each node in 20020 rounds, .* and at most 1000",
        ),
        (
            changed("audit", attestation=SOME, attested_rounds=1, code=SOME),
            changed("audit", attestation=SOME, code=SOME),
            "needs the rounds for which evidence counts",
        ),
        (changed("audit"), changed("audit", attested_rounds=1), "and no policy has none"),
        (changed("audit"), changed("audit", code=SOME), "attested code needs a policy"),
        (changed("money", verifiers_ppm=130_000), changed("money", verifiers_ppm=130_001), "more than 1"),
        (changed("money", epoch_rounds=1), changed("money", epoch_rounds=0), "at least one round"),
        *(
            pair
            for name in ("slash_ppm", "withheld_ppm", "verifier_slash_ppm")
            for pair in (
                (changed("money", **{name: 1}), changed("money", **{name: 0}), f"{name} must be above 0"),
                (
                    changed("money", **{name: 10**6}),
                    changed("money", **{name: 10**6 + 1}),
                    f"{name} must be above 0 and at most 1",
                ),
            )
        ),
        (changed("", verifiers=MEMBERS[:1]), changed("", verifiers=()), "needs verifiers"),
        (nodes(1, 1), nodes(0, 1), "0 nodes for f = 0"),
        (nodes(3, 3), nodes(3, 2), "3 nodes named, 3 needed, 2 seats"),
        (nodes(128, 128), nodes(128, 129), "129 seats: expected to ascend, and at most 128"),
        (
            with_segments(128, 12),
            with_segments(128, 13),
            "proposals of up to 265,516 bytes with 128 seats and 13 segments",
        ),
        (with_segments(37, 64), with_segments(38, 64), "262,144 expected: fewer seats, or longer segments"),
        (waits(3, 3), waits(3, 2), "0 nodes named, 3 needed, 2 seats"),
        (nodes(3, 3), nodes(3, 3, least_nodes=2), "3 nodes named, 2 needed, 3 seats"),
        (waits(1, 1), waits(0, 1), "0 nodes for f = 0"),
        (waits(1, 1), waits(1, 1, start_by_s=0), "needs a time by which it starts"),
        (nodes(3, 3), nodes(3, 3, start_by_s=1), "and no other has one"),
        (waits(128, 128, 4), waits(128, 128, 7), "7 verifiers can admit 102 at once"),
        (waits(102, 128, 7), waits(103, 128, 7), "103 nodes to wait for"),
        (
            changed("", verifiers=MEMBERS[:16]),
            changed("", verifiers=MEMBERS[:17]),
            "17 verifiers and 0 reserves, at most 16",
        ),
        (
            changed("", buyer_key=MEMBERS[0].account),
            changed("", buyer_key=a_spec().buyer),
            "signs for itself, expected no other key",
        ),
        (changed(""), changed("", nodes=MEMBERS[2::-1]), "must ascend by peer"),
        (changed(""), changed("", nodes=(*MEMBERS[:2], MEMBERS[1])), "must ascend by peer, each once"),
        (changed(""), changed("", verifiers=MEMBERS[3::-1]), "must ascend by peer"),
        (
            changed(""),
            changed("", nodes=MEMBERS[:3], verifiers=MEMBERS[2:6]),
            "one account cannot stand behind two members",
        ),
        *(
            (
                changed("money", treasury=Address(b"f" * 20)),
                changed("money", treasury=member.account),
                "the fee",
            )
            for member in (a_spec().nodes[0], a_spec().verifiers[-1])
        ),
        *(
            (changed("", name="Run-7.b_c"), changed("", name=name), "name is")
            for name in ("", "-run", "a run", "run\n", "run\n\n**Held-out loss 1.02**", "<b>", "r\u00fcn")
        ),
        # Sixteen tokens a sequence and the next one, two sequences a step.
        (
            changed("data", tokens=134, validation_tokens=100),
            changed("data", tokens=133, validation_tokens=100),
            "33 training tokens, one step needs 34",
        ),
        (with_windows(4096, 4096), with_windows(4096, 4095), "69615 training tokens, one step needs 69632"),
        (with_windows(4097, 8194), with_windows(4097, 8193), "139281 training tokens, one step needs 139298"),
        (
            with_windows(1 << 16, 1 << 17),
            with_windows((1 << 16) + 1, 1 << 18),
            "takes 65537 windows, at most",
        ),
        (
            changed("data", validation_tokens=17),
            changed("data", validation_tokens=16),
            "validation needs at least 17",
        ),
        *((changed("data", token_bytes=n), changed("data", token_bytes=3), "3 bytes") for n in (1, 2, 4)),
        (
            replace(changed("data", vocabulary=256), model=replace(a_spec().model, vocabulary=257)),
            replace(changed("data", vocabulary=257), model=replace(a_spec().model, vocabulary=257)),
            "257 different tokens do not fit 1 bytes",
        ),
        (
            changed("model", vocabulary=256),
            changed("model", vocabulary=255),
            "256 different tokens, the model knows 255",
        ),
    ],
)
def test_a_spec_is_accepted_at_each_bound_and_refused_beyond_it(inside, outside, reason):
    check_spec(inside)
    with pytest.raises(ValueError, match=reason):
        check_spec(outside)


@pytest.mark.parametrize(
    ("inside", "outside", "reason"),
    [
        *(
            ({}, {name: 0}, f"model {name} is 0")
            for name in ("vocabulary", "layers", "width", "heads", "kv_heads", "hidden", "context")
        ),
        ({"width": 12, "heads": 3, "kv_heads": 3}, {"width": 13}, "width 13 must be a multiple of heads"),
        ({"heads": 4, "kv_heads": 2}, {"heads": 4, "kv_heads": 3}, "must be a multiple of kv_heads"),
        ({"norm_epsilon_nano": 1}, {"norm_epsilon_nano": 0}, "epsilon must be above 0"),
        ({"norm_epsilon_nano": 10**9 - 1}, {"norm_epsilon_nano": 10**9}, "and below 1"),
        ({"rope_theta": 2}, {"rope_theta": 1}, "rope_theta is 1, expected at least 2"),
        ({"width": 4}, {"width": 6}, "width / heads is 3, rotation needs an even number"),
        ({"width": 9, "head_width": 2}, {"head_width": 3}, "head_width is 3, rotation needs an even number"),
        (
            {"family": Family.GPT, "rope_theta": 0},
            {"family": Family.GPT, "rope_theta": 0, "head_width": 4},
            "expected a head_width of 0, not 4",
        ),
        ({"layers": 1024}, {"layers": 1025}, "layers is 1025, expected at most 1024"),
        (adapted(3, kv_heads=1), adapted(4, kv_heads=1), "rank 4 for v, a matrix of 4 x 8: expected less"),
        ({}, {"family": Family.GPT}, "learned positions, expected a rope_theta of 0"),
        (
            {"family": Family.GPT, "rope_theta": 0},
            {"family": Family.GPT, "rope_theta": 0, "kv_heads": 1},
            "as many kv_heads as heads",
        ),
    ],
)
def test_a_models_sizes_are_accepted_at_each_bound_and_refused_beyond_it(inside, outside, reason):
    llama = replace(
        a_spec().model, family=Family.LLAMA, width=8, heads=2, kv_heads=2, rope_theta=10_000,
        vocabulary=1, layers=1, hidden=1, context=1,
    )  # fmt: skip

    assert model_faults(replace(llama, **inside)) == ()
    assert any(reason in fault for fault in model_faults(replace(llama, **outside)))


def test_a_run_closes_after_its_audits_and_as_many_disputes_as_its_verifiers_hold():
    audit = replace(a_spec().audit, audit_rounds=6, dispute_rounds=2)
    assert [closing_rounds(audit, count) for count in (1, 4, 16)] == [8, 8, 10]


def test_an_opening_has_six_tenths_of_the_time_that_a_leader_waits():
    assert replace(a_spec().timing, collect_ms=1_001).opening_ms == 600


def test_a_run_has_none_of_what_its_audit_rules_do_not_mention():
    rules = an_audit_spec()  # which gives the rules that have no default

    assert (rules.wide_ppm, rules.wide_blocks, rules.absence_s) == (0, 1, 0)
    assert (rules.known_answer_count, rules.attested_rounds) == (0, 0)


def test_a_gemma_in_bfloat16_has_no_limits_between_classes():
    spec = a_spec()
    model = replace(spec.model, family=Family.GEMMA, kv_heads=spec.model.heads, rope_theta=10_000)
    half = replace(spec.compute, dtype=Precision.BFLOAT16)
    judged = replace(spec.audit, limits=Digest(b"l" * 32))
    check_spec(replace(spec, model=model, audit=judged))
    check_spec(replace(spec, model=model, compute=half))
    with pytest.raises(ValueError, match="a Gemma in bfloat16 is audited within one execution class"):
        check_spec(replace(spec, model=model, compute=half, audit=judged))
