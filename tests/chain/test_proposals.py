"""Proposals: whoever signed two results for one epoch is found, by whichever keys and certificates."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from assay.chain.proposals import CertifiedResult, DoubleResult, double_results
from assay.chain.statements import Address, EpochResult, address_of, sign_digest
from assay.protocol.types import NO_DIGEST
from assay.testing.members import RUN_ID, a_deployment, a_digest

DEPLOYMENT = a_deployment()
KEYS = {name: bytes([at]) * 32 for at, name in enumerate(("ann", "bob", "cid", "dan"), 1)}
NAMES = {address_of(key): name for name, key in KEYS.items()}


def a_result(name: str, epoch: int = 0, run_id: bytes = RUN_ID) -> EpochResult:
    return EpochResult(
        deployment_id=DEPLOYMENT.deployment_id,
        run_id=run_id,
        epoch=epoch,
        set_version=1,
        prev_result=NO_DIGEST,
        root=a_digest(f"root {name}"),
        table_hash=NO_DIGEST,
        model_hash=NO_DIGEST,
        total=1,
    )


def posted(result: EpochResult, *names: str) -> CertifiedResult:
    keys = sorted((KEYS[name] for name in names), key=lambda key: int(address_of(key), 16))
    signed = (sign_digest(DEPLOYMENT.digest(result), key) for key in keys)
    return CertifiedResult(result=result, certificate=b"".join(signed))


def found(proposals: Iterable[CertifiedResult], replaced: str = "") -> list[DoubleResult]:
    """What is found, where one's hot key has taken the place of ann's."""

    def account_of(hot: Address) -> Address:
        return address_of(KEYS["ann"]) if NAMES[hot] == replaced else hot

    return list(double_results(DEPLOYMENT, list(proposals), account_of))


def test_each_signer_of_two_results_is_found_with_both_of_its_signatures() -> None:
    first, second = posted(a_result("a"), "ann", "bob", "cid"), posted(a_result("b"), "bob", "cid", "dan")

    doubles = found([first, second])

    assert {NAMES[one.signer] for one in doubles} == {"bob", "cid"}
    for one in doubles:
        assert (one.first, one.second) == (first.result, second.result)
        key = KEYS[NAMES[one.signer]]
        assert one.first_signature == sign_digest(DEPLOYMENT.digest(one.first), key)
        assert one.second_signature == sign_digest(DEPLOYMENT.digest(one.second), key)


def test_an_account_that_signed_with_its_old_key_and_its_new_one_is_one_account() -> None:
    (one,) = found([posted(a_result("a"), "ann"), posted(a_result("b"), "dan")], replaced="dan")

    assert NAMES[one.signer] == "ann"
    assert one.second_signature == sign_digest(DEPLOYMENT.digest(one.second), KEYS["dan"])


def test_a_signer_of_any_certificate_of_a_result_is_found() -> None:
    doubles = found(
        [posted(a_result("a"), "ann"), posted(a_result("a"), "bob"), posted(a_result("b"), "bob")]
    )

    assert [NAMES[one.signer] for one in doubles] == ["bob"]


@pytest.mark.parametrize(
    "other", [a_result("a"), a_result("b", epoch=1), a_result("b", run_id=a_digest("another run"))]
)
def test_the_same_result_again_and_those_of_other_epochs_and_runs_are_no_double(other: EpochResult) -> None:
    assert found([posted(a_result("a"), "ann"), posted(other, "ann")]) == []


def test_a_certificate_that_is_none_hides_nobody_else() -> None:
    broken = CertifiedResult(result=a_result("c"), certificate=b"\1" * 65)

    doubles = found([broken, posted(a_result("a"), "ann"), posted(a_result("b"), "ann")])

    assert [NAMES[one.signer] for one in doubles] == ["ann"]


def test_whoever_posts_many_results_costs_its_readers_no_comparison_of_all_with_all() -> None:
    many = [posted(a_result(str(at)), "ann", "bob") for at in range(20)]

    assert len(found(many)) == 2 * 19
