"""One value has one encoding, and a stranger's bytes cost no more than their length."""

from __future__ import annotations

import dataclasses
import enum
import tracemalloc
import typing
from dataclasses import replace

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.protocol.encoding.codec import (
    DEPTH_MAX,
    INT_MAX,
    MESSAGE_BYTES_MAX,
    decode,
    decode_any,
    digest,
    encode,
    encode_list,
    field_types,
    split_bound,
)
from assay.protocol.errors import MalformedMessage
from assay.protocol.grpo import NO_GRPO, GrpoSpec, Reward
from assay.protocol.messages import (
    MESSAGES,
    VERDICTS_MAX,
    BeaconShare,
    CertifiedManifest,
    Manifest,
    ManifestRange,
    OpeningNotice,
    Outcome,
    SignedVerdict,
    StepRequest,
    Verdict,
)
from assay.protocol.openings import PROOF_HASHES_MAX, Opening, Path
from assay.protocol.params import ComputeSpec, DataSpec, Precision, Stratum
from assay.testing.specs import some_data
from tests.protocol.strategies import KINDS, any_message, sample

EVERY_TAG = {kind.TAG: kind for kind in KINDS}


def refused_or_canonical(kind: type, data: bytes) -> bool:
    """Whether the bytes were refused; if not, they must be the encoding of what they decoded to."""
    try:
        message = decode(kind, data)
    except MalformedMessage:
        return True
    assert encode(message) == data
    return False


@given(any_message())
def test_decode_inverts_encode(message):
    data = encode(message)

    assert decode(type(message), data) == message
    assert decode_any(EVERY_TAG, data) == message


@given(any_message())
def test_an_encoding_is_what_rfc_8949_calls_deterministic(message):
    data = encode(message)

    assert cbor2.dumps(cbor2.loads(data), canonical=True) == data


@pytest.mark.slow
@given(any_message(), st.data())
def test_a_changed_message_is_refused_or_is_another_message_in_its_own_one_encoding(message, data):
    raw = bytearray(encode(message))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(raw) - 1))
        match data.draw(st.sampled_from(["set", "flip", "insert", "delete", "repeat"])):
            case "set":
                raw[at] = data.draw(st.integers(0, 255))
            case "flip":
                raw[at] ^= 1 << data.draw(st.integers(0, 7))
            case "insert":
                raw[at:at] = data.draw(st.binary(min_size=1, max_size=9))
            case "delete" if len(raw) > 9:
                del raw[at : at + 3]
            case _:
                raw += raw[at:]

    refused_or_canonical(type(message), bytes(raw))


@given(st.sampled_from(KINDS), st.binary(max_size=200))
def test_any_bytes_whatever_are_refused_or_canonical(kind, data):
    refused_or_canonical(kind, data)
    refused_or_canonical(kind, cbor2.dumps(kind.TAG) + data)
    refused_or_canonical(kind, bytes([0x80 | len(field_types(kind)) + 1]) + cbor2.dumps(kind.TAG) + data)


FOREIGN = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5) | st.binary(max_size=40),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=10,
)


@given(any_message(), FOREIGN, st.data())
def test_a_field_of_another_type_is_refused_or_canonical(message, foreign, data):
    plain = cbor2.loads(encode(message))
    plain[data.draw(st.integers(0, len(plain) - 1))] = foreign

    refused_or_canonical(type(message), cbor2.dumps(plain, canonical=True))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_prefix_is_refused(kind):
    """Of long messages a thousand: each message that they hold is also cut at every byte, by itself."""
    data = encode(sample(kind))

    for end in range(0, len(data), 1 + len(data) // 1000):
        with pytest.raises(MalformedMessage):
            decode(kind, data[:end])


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_bytes_after_the_end_are_refused(kind):
    with pytest.raises(MalformedMessage, match="1 bytes after the end"):
        decode(kind, encode(sample(kind)) + b"\0")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_missing_or_an_additional_field_is_refused(kind):
    plain = cbor2.loads(encode(sample(kind)))

    for other in (plain[:-1], [*plain, 0], [*plain, None]):
        with pytest.raises(MalformedMessage):
            decode(kind, cbor2.dumps(other, canonical=True))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_message_does_not_decode_as_any_other(kind):
    data = encode(sample(kind))

    for other in KINDS:
        if other is not kind:
            with pytest.raises(MalformedMessage):
                decode(other, data)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_the_digest_covers_every_field(kind):
    message = sample(kind)

    for name, _ in field_types(kind):
        changed = dataclasses.replace(message, **{name: getattr(sample(kind, "other"), name)})
        if changed != message:  # an enumeration may draw the same member twice
            assert digest(changed) != digest(message), name


STEP = StepRequest(number=7, node=bytes(32))
HEAD = encode(STEP)[: -len(cbor2.dumps(bytes(32))) - 1]  # up to where the 7 is


@pytest.mark.parametrize(
    "seven",
    [
        pytest.param("1807", id="1 byte"),
        pytest.param("190007", id="2 bytes"),
        pytest.param("1a00000007", id="4 bytes"),
        pytest.param("1b0000000000000007", id="8 bytes"),
        pytest.param("c24107", id="bignum"),
        pytest.param("f94700", id="half float"),
        pytest.param("fb401c000000000000", id="double"),
        pytest.param("c107", id="tagged"),
        pytest.param("37", id="negative"),
    ],
)
def test_seven_is_written_in_one_way(seven):
    tail = cbor2.dumps(bytes(32))
    assert decode(StepRequest, HEAD + b"\x07" + tail) == STEP

    with pytest.raises(MalformedMessage):
        decode(StepRequest, HEAD + bytes.fromhex(seven) + tail)


@pytest.mark.parametrize(
    "data",
    [
        b"\x9f" + encode(STEP)[1:] + b"\xff",  # indefinite array
        encode(STEP)[:-34] + b"\x5f\x58\x20" + bytes(32) + b"\xff",  # indefinite string
        encode(STEP)[:-34] + b"\x59\x00\x20" + bytes(32),  # length in two bytes
        b"\x98\x03" + encode(STEP)[1:],  # array length in one byte more
        b"\xd9\xd9\xf7" + encode(STEP),  # self-described
        cbor2.dumps({"tag": StepRequest.TAG}),
        b"\xf6",
        b"\xf7",
        b"\xe0",
        b"",
        b"\x80",
        b"\x81\x80",
        b"\xff",
        b"\x1c",
    ],
)
def test_other_forms_of_cbor_are_refused(data):
    with pytest.raises(MalformedMessage):
        decode(StepRequest, data)
    with pytest.raises(MalformedMessage):
        decode_any(MESSAGES, data)


@pytest.mark.parametrize("major", range(8))
@pytest.mark.parametrize("length", [2**16, 2**32, 2**63, 2**64 - 1])
def test_a_giant_length_is_refused_without_giant_memory(major, length):
    claim = bytes([major << 5 | 27]) + length.to_bytes(8, "big")
    data = [claim, b"\x82" + claim + claim, b"\x82" + cbor2.dumps(Path.TAG) + claim + bytes(200)]

    tracemalloc.start()
    for one in data:
        with pytest.raises(MalformedMessage):
            decode(Path, one)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert peak < 100_000


@pytest.mark.parametrize("depth", [DEPTH_MAX + 1, DEPTH_MAX + 2, 1000, 1_000_000])
def test_deep_nesting_is_refused_before_the_stack_ends(depth):
    for data in (b"\x81" * depth, b"\x81" * depth + b"\x00", b"\xc1" * depth):
        with pytest.raises(MalformedMessage):
            decode(Path, data)


def test_nesting_is_allowed_for_every_message_to_depth_ten_and_no_further():
    def levels(hint) -> int:
        bare, _ = split_bound(hint)
        if typing.get_origin(bare) is tuple:
            return 1 + levels(typing.get_args(bare)[0])
        return 1 + max(levels(h) for _, h in field_types(bare)) if dataclasses.is_dataclass(bare) else 0

    assert max(map(levels, KINDS)) <= DEPTH_MAX
    with pytest.raises(MalformedMessage, match="starts with a tag"):
        decode_any(MESSAGES, b"\x81" * 10 + b"\x00")
    with pytest.raises(MalformedMessage, match="nested deeper than 10"):
        decode_any(MESSAGES, b"\x81" * 11 + b"\x00")


def test_more_bytes_than_a_message_may_have_are_refused_unread():
    for reader in (lambda data: decode(Path, data), lambda data: decode_any(MESSAGES, data)):
        with pytest.raises(MalformedMessage, match=f"at most {MESSAGE_BYTES_MAX} expected"):
            reader(bytes(MESSAGE_BYTES_MAX + 1))


@pytest.mark.slow
@pytest.mark.parametrize("item", [b"\x80", b"\x00", b"\x40", b"\x60"])
@pytest.mark.parametrize("nested", [False, True])
def test_many_tiny_items_are_refused_before_they_cost_memory(item, nested):
    """4 MiB of one-byte items would be 270 MB of lists, and seconds of one core; here are 200 kB."""
    count = 200_000
    data = b"\x9a" + count.to_bytes(4, "big") + item * count
    if nested:
        data = b"\x98\xc8" + (b"\x99\x03\xe7" + item * 999) * (count // 1000)

    tracemalloc.start()
    with pytest.raises(MalformedMessage, match=r"longer than the message|more items than"):
        decode(Path, data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert peak < 20 * len(data)


def test_a_message_holds_as_many_items_as_its_length_allows_and_not_one_more():
    def flat(count: int) -> bytes:
        return b"\x99" + count.to_bytes(2, "big") + bytes(count)

    def nested(count: int) -> bytes:
        return b"\x82" + flat(count // 2) + flat(count - count // 2)

    # 4096 items and one for every 8 bytes; the arrays themselves count too.
    for make, most in ((flat, 4680), (nested, 4678)):
        with pytest.raises(MalformedMessage, match="starts with a tag"):
            decode_any(MESSAGES, make(most))
        with pytest.raises(MalformedMessage, match=r"longer than the message|more items than"):
            decode_any(MESSAGES, make(most + 1))


def test_the_densest_messages_there_can_be_are_inside_the_bound_on_items():
    paths = (Path(hashes=(bytes(32),) * PROOF_HASHES_MAX),) * 64
    opening = dataclasses.replace(
        sample(Opening),
        blocks=tuple(range(64)),
        before=bytes(64 * 16384),
        after=bytes(64 * 16384),
        paths_before=paths,
        paths_after=paths,
    )
    verdict = dataclasses.replace(sample(Verdict), round=0, opening_bytes=0, distance_ppb=0, block=0)
    verdicts = (SignedVerdict(verdict=verdict, signature=bytes(64)),) * VERDICTS_MAX
    manifest = dataclasses.replace(sample(Manifest), commits=(), beacon_shares=(), verdicts=verdicts)

    for message in (opening, manifest):
        assert decode(type(message), encode(message)) == message


def test_an_unknown_tag_is_named():
    with pytest.raises(MalformedMessage, match="unknown message tag b'assay/nothing/1'"):
        decode_any(MESSAGES, cbor2.dumps([b"assay/nothing/1"], canonical=True))


def test_bounds_hold_on_both_sides_just_inside_and_just_outside():
    inside = dataclasses.replace(sample(BeaconShare), proof=bytes(80))
    outside = dataclasses.replace(sample(BeaconShare), proof=bytes(81))

    assert decode(BeaconShare, encode(inside)) == inside
    with pytest.raises(ValueError, match=r"BeaconShare\.proof"):
        encode(outside)
    plain = cbor2.loads(encode(inside))
    with pytest.raises(MalformedMessage, match=r"BeaconShare\.proof"):
        decode(BeaconShare, cbor2.dumps([*plain[:-1], bytes(81)], canonical=True))


def test_integers_reach_to_64_bits_and_no_further():
    assert decode(OpeningNotice, encode(dataclasses.replace(sample(OpeningNotice), opening_bytes=INT_MAX)))
    for number in (INT_MAX + 1, -1):
        with pytest.raises(ValueError, match=r"OpeningNotice\.opening_bytes"):
            encode(dataclasses.replace(sample(OpeningNotice), opening_bytes=number))


@pytest.mark.parametrize("value", [1.0, "1", b"1", None, True, [1]])
def test_our_own_mistakes_are_refused_when_encoding(value):
    with pytest.raises(ValueError, match=r"OpeningNotice\.round"):
        encode(dataclasses.replace(sample(OpeningNotice), round=value))


def test_a_value_outside_an_enumeration_is_refused():
    plain = cbor2.loads(encode(sample(Verdict)))
    at = [name for name, _ in field_types(Verdict)].index("outcome") + 1

    for value in (0, len(Outcome) + 1, True, b"", []):
        with pytest.raises(MalformedMessage, match=r"Verdict\.outcome"):
            decode(Verdict, cbor2.dumps([*plain[:at], value, *plain[at + 1 :]], canonical=True))


def test_every_registered_message_is_found_by_its_own_tag_and_no_tag_is_another_ones_prefix():
    tags = sorted(EVERY_TAG)

    assert len(tags) == len(KINDS)
    assert all(tag.startswith(b"assay/") for tag in tags)
    assert not any(b.startswith(a) for a in tags for b in tags if a != b)


def test_no_message_has_a_field_that_could_hold_a_float():
    def scalars(kind):
        for _, hint in field_types(kind):
            bare, _ = split_bound(hint)
            bare = bare.__args__[0] if hasattr(bare, "__args__") else bare
            bare = split_bound(bare)[0]
            if dataclasses.is_dataclass(bare):
                yield from scalars(bare)
            else:
                yield getattr(bare, "__supertype__", bare)

    for kind in KINDS:
        for one in scalars(kind):
            assert one in (int, bool, bytes, str) or issubclass(one, enum.IntEnum)


@settings(max_examples=20)
@given(any_message())
def test_encoding_does_not_depend_on_what_was_encoded_before(message):
    assert encode(message) == encode(decode(type(message), encode(message)))


@pytest.mark.parametrize("count", [0, 1, 23, 24, 255, 256])
def test_a_list_put_together_from_encodings_is_the_encoding_of_the_list(count):
    link = sample(CertifiedManifest)

    assert encode_list(ManifestRange, [encode(link)] * count) == encode(ManifestRange(links=(link,) * count))


def test_a_message_of_another_version_is_named_and_other_bytes_are_not_repeated():
    newer = cbor2.dumps([b"assay/manifest/99", 1])
    with pytest.raises(MalformedMessage, match="starts with assay/manifest/99, expected an array"):
        decode(Manifest, newer)
    for junk in ([b"assay/" + b"x" * 99 + b"/1"], [b"\x1b[2J"], [7], [], b"assay/manifest/99"):
        with pytest.raises(MalformedMessage, match=r"^Manifest: expected an array that starts"):
            decode(Manifest, cbor2.dumps(junk))


def test_a_later_field_keeps_the_bytes_of_before_and_has_one_encoding():
    before = ComputeSpec(dtype=Precision.FLOAT32, micro_sequences=2)
    plain = [ComputeSpec.TAG, 1, 2]

    assert encode(before) == cbor2.dumps(plain)
    assert decode(ComputeSpec, cbor2.dumps(plain)) == before
    assert decode(ComputeSpec, cbor2.dumps([*plain, 5])) == replace(before, beta_micro=5)
    assert encode(replace(before, beta_micro=5)) == cbor2.dumps([*plain, 5])
    grpo = GrpoSpec(group=8, completion=4, end=1, reward=Reward.PREFIX)
    assert encode(replace(before, grpo=grpo)) == cbor2.dumps([*plain, 0, [GrpoSpec.TAG, 8, 4, 1, 3]])
    assert decode(ComputeSpec, encode(replace(before, grpo=grpo))) == replace(before, grpo=grpo)
    for strata in ((), (Stratum(tokens=3, seats=1), Stratum(tokens=4, seats=2))):
        data = some_data(strata=strata)
        assert decode(DataSpec, encode(data)) == data
    with pytest.raises(MalformedMessage, match="which is left out"):
        decode(DataSpec, cbor2.dumps([*cbor2.loads(encode(some_data())), []]))
    for wrong, reason in (
        ([*plain, 0], "which is left out"),
        ([*plain, 5, cbor2.loads(encode(NO_GRPO))], "which is left out"),
        ([*plain, 5, 0], "GrpoSpec: expected an array"),
        ([*plain, 5, 0, 0], "expected 2 to 4"),
        (plain[:2], "2 to 4"),
    ):
        with pytest.raises(MalformedMessage, match=reason):
            decode(ComputeSpec, cbor2.dumps(wrong))
