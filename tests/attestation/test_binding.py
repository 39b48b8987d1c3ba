"""A report is about one node, one run, one epoch, one code and one nonce, and about nothing else."""

from __future__ import annotations

import dataclasses
import hashlib

import pytest

from assay.attestation.binding import Binding, context, gpu_nonce, report_data
from assay.attestation.evidence import DeviceFamily, Report
from assay.protocol.encoding.codec import encode
from assay.protocol.types import Digest, PeerId
from tests.attestation.authorities import a_binding


def prefixed(*fields: bytes) -> bytes:
    return b"".join(len(field).to_bytes(4, "big") + field for field in fields)


def test_the_bytes_are_those_of_the_written_rule():
    binding = a_binding()
    named = hashlib.sha256(
        prefixed(b"assay/attest/v1", b"D" * 32, b"N" * 32, b"R" * 32, (3).to_bytes(8, "big"), b"C" * 32)
    ).digest()
    nothing = hashlib.sha256(b"").digest()

    assert context(binding) == named
    assert gpu_nonce(binding) == hashlib.sha256(prefixed(b"assay/gpu/v1", named, binding.nonce)).digest()
    assert report_data(binding, ()) == (
        hashlib.sha256(prefixed(b"assay/report-data/v1", named, nothing)).digest() + binding.nonce
    )
    assert len(report_data(binding, ())) == 64


def test_gpu_reports_go_in_by_their_one_encoding_each_behind_its_length():
    binding = a_binding()
    reports = [Report(family=DeviceFamily.NVIDIA_CC, body=body, certificates=()) for body in (b"a", b"b")]
    said = hashlib.sha256(prefixed(*map(encode, reports))).digest()

    assert report_data(binding, reports)[:32] == (
        hashlib.sha256(prefixed(b"assay/report-data/v1", context(binding), said)).digest()
    )


@pytest.mark.parametrize(
    "changed",
    [
        {"deployment_id": Digest(b"d" * 32)},
        {"node": PeerId(b"n" * 32)},
        {"run_id": Digest(b"r" * 32)},
        {"epoch": 4},
        {"code_digest": Digest(b"c" * 32)},
        {"nonce": Digest(b"x" * 32)},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_every_field_changes_both_values(changed):
    first, second = a_binding(), a_binding(**changed)

    assert report_data(first, ()) != report_data(second, ())
    assert gpu_nonce(first) != gpu_nonce(second)


def test_when_the_nonce_was_drawn_is_in_no_hash():
    first = a_binding()
    second = dataclasses.replace(first, nonce_at_s=first.nonce_at_s + 1)

    assert (report_data(first, ()), gpu_nonce(first)) == (report_data(second, ()), gpu_nonce(second))
    assert {field.name for field in dataclasses.fields(Binding)} == {
        "deployment_id", "node", "run_id", "epoch", "code_digest", "nonce", "nonce_at_s",
    }  # fmt: skip


def test_gpu_reports_are_bound_with_their_order_their_bounds_and_their_certificates():
    def gpu(body: bytes, *certificates: bytes) -> Report:
        return Report(family=DeviceFamily.NVIDIA_CC, body=body, certificates=certificates)

    said = [
        report_data(a_binding(), gpus)
        for gpus in (
            (),
            (gpu(b""),),
            (gpu(b"ab"),),
            (gpu(b"a"), gpu(b"b")),
            (gpu(b"b"), gpu(b"a")),
            (gpu(b"ab", b"c"),),
            (gpu(b"abc"),),
        )
    ]

    assert len(set(said)) == len(said)
