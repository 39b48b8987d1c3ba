"""Evidence is a discount on audits: never under the floor, never on what deters, never for the refused."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.attestation.evidence import DeviceFamily
from assay.attestation.rate import discount_of
from assay.attestation.reasons import TrustTier
from assay.attestation.result import AttestationResult
from assay.protocol.auditing.draws import discounted_ppm
from assay.protocol.messages import Discount
from assay.protocol.params import PPM
from tests.attestation.authorities import AT_S
from tests.attestation.test_result import a_device, a_result

rates = st.integers(0, PPM)
floors = st.integers(1, PPM)


@given(st.integers(0, 3 * PPM), rates, floors, st.sampled_from(Discount))
def test_a_rate_is_never_under_the_floor_or_what_deters_nor_over_what_it_was(
    adaptive, deterrent, floor, discount
):
    rate = discounted_ppm(
        adaptive_ppm=adaptive, deterrent_ppm=deterrent, floor_ppm=floor, discount_ppm=discount
    )
    without = discounted_ppm(
        adaptive_ppm=adaptive, deterrent_ppm=deterrent, floor_ppm=floor, discount_ppm=Discount.NONE
    )

    assert max(floor, deterrent) <= rate <= without == min(PPM, max(adaptive, deterrent, floor))
    assert isinstance(rate, int)


@pytest.mark.parametrize(
    ("adaptive", "deterrent", "floor", "discount", "rate"),
    [
        (200_000, 0, 20_000, Discount.NONE, 200_000),
        (200_000, 0, 20_000, Discount.PROCESSOR, 160_000),
        (200_000, 0, 20_000, Discount.PROCESSOR_AND_GPU, 80_000),
        (200_001, 0, 20_000, Discount.PROCESSOR_AND_GPU, 80_001),  # up
        (40_000, 0, 20_000, Discount.PROCESSOR_AND_GPU, 20_000),
        (200_000, 100_000, 20_000, Discount.PROCESSOR_AND_GPU, 100_000),
        (PPM, PPM, 20_000, Discount.PROCESSOR_AND_GPU, PPM),  # probation
        (0, 0, 1, Discount.NONE, 1),
    ],
)
def test_only_the_adaptive_part_is_multiplied(adaptive, deterrent, floor, discount, rate):
    found = discounted_ppm(
        adaptive_ppm=adaptive, deterrent_ppm=deterrent, floor_ppm=floor, discount_ppm=discount
    )

    assert found == rate


@pytest.mark.parametrize(
    "bad", [{"floor_ppm": 0}, {"floor_ppm": PPM + 1}, {"deterrent_ppm": -1}, {"adaptive_ppm": -1}]
)
def test_rates_out_of_bounds_are_our_own_mistake(bad):
    good = {"adaptive_ppm": 1, "deterrent_ppm": 1, "floor_ppm": 1}
    with pytest.raises(ValueError, match="expected 0 or more"):
        discounted_ppm(**good | bad, discount_ppm=Discount.NONE)


def affirming(**changed: object) -> AttestationResult:
    good = a_device(verdict=TrustTier.AFFIRMING, reasons=())
    result = a_result(verdict=TrustTier.AFFIRMING, reasons=(), main=good, gpus=(good,), expires_s=AT_S + 100)
    return dataclasses.replace(result, **changed)


def test_a_processor_with_its_gpus_earns_most_and_alone_or_with_a_warning_less():
    assert discount_of(affirming(), AT_S) is Discount.PROCESSOR_AND_GPU
    assert discount_of(affirming(gpus=()), AT_S) is Discount.PROCESSOR
    assert discount_of(affirming(verdict=TrustTier.WARNING), AT_S) is Discount.PROCESSOR
    assert discount_of(affirming(verdict=TrustTier.WARNING, gpus=()), AT_S) is Discount.PROCESSOR


def test_nothing_refused_expired_early_or_absent_earns_anything():
    for verdict in (TrustTier.NONE, TrustTier.CONTRAINDICATED):
        assert discount_of(affirming(verdict=verdict), AT_S) is Discount.NONE
    assert discount_of(None, AT_S) is Discount.NONE
    assert discount_of(affirming(), AT_S + 99) is Discount.PROCESSOR_AND_GPU
    assert discount_of(affirming(), AT_S + 100) is Discount.NONE
    assert discount_of(affirming(), AT_S - 1) is Discount.NONE
    gpu = a_device(family=DeviceFamily.NVIDIA_CC, verdict=TrustTier.WARNING)
    assert discount_of(affirming(main=gpu, gpus=(), verdict=TrustTier.WARNING), AT_S) is Discount.NONE
