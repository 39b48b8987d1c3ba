"""Receipt: writes a step's receipt from a finished run, and checks receipts, offline and without torch.

Room: cli (edge: reads and writes files).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from assay.bundle.read import Delivered, find_node, read
from assay.bundle.receipts import facts_of, round_receipts
from assay.bundle.step_receipt import FORMAT, RECEIPT_BYTES_MAX, Checked, check_receipt, make_receipt
from assay.chain.commit_statement import evm_address
from assay.orders.amounts import UNIT, money_text
from assay.participant.index import IntegrityError
from assay.protocol.encoding.codec import digest
from assay.protocol.encoding.json_text import parse_json
from assay.protocol.errors import ConfigError
from assay.protocol.params import PPM
from assay.protocol.types import Digest, PeerId

PROVES_NOT = (
    "not proved: that this run id is the one in the escrow (compare it with the chain's); that pay was",
    "claimed; that an unaudited step is honest; anything, if too many verifiers are dishonest for a quorum",
)


def write_receipt(run: Path, round_id: int, node: str, out: Path | None) -> str:
    """Write the receipt of a step; returns a line with its path.

    Raises:
        ConfigError: no such run, round or node, or the file exists already.
        IntegrityError: the run's chain is invalid.
    """
    delivered = read(run)
    peer = find_node(delivered.run_states[-1].nodes, node)
    rounds = delivered.calendar.rounds
    if not 0 <= round_id < rounds:
        raise ConfigError(f"round {round_id}: the run trained in rounds 0 to {rounds - 1}")
    try:
        text = make_receipt(
            delivered.spec,
            delivered.run_id,
            delivered.deployment,
            delivered.links,
            delivered.settled,
            round_id,
            peer,
        )
    except ValueError as error:
        raise ConfigError(str(error)) from None
    path = out or Path(f"receipt-{round_id:06d}-{peer.hex()[:8]}.json")
    try:
        with open(path, "x") as file:
            file.write(text)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror})") from None
    return f"{path}: {len(text):,} bytes; check it with: assay receipt verify {path}"


def receipt_lines(
    path: Path, run_id: str | None, verifiers: Sequence[str], rpc: str | None = None
) -> Iterator[str]:
    """Verify a receipt; returns one line for each proved statement.

    Args:
        path: The file.
        run_id: The run's id on chain, if the caller knows it.
        verifiers: The run's verifiers, if the caller knows them.
        rpc: A chain endpoint to query for what is left to compare; without it nothing is queried.

    Raises:
        ConfigError: no such file, an option that is no key, or another chain than the receipt's.
        IntegrityError: the first check that fails.
        Unavailable: the chain does not answer.
    """
    try:
        if path.stat().st_size > RECEIPT_BYTES_MAX:
            raise ConfigError(f"{path}: more than {RECEIPT_BYTES_MAX} bytes, so it is not a receipt")
        text = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    expected = None if run_id is None else Digest(_key(run_id))
    keys = [PeerId(_key(one)) for one in verifiers] or None
    if _is_round_summary(text):
        yield from _summary_lines(path, text, expected, keys)
    else:
        checked = check_receipt(text, run_id=expected, verifiers=keys)
        chain_lines = [] if rpc is None else list(_chain_lines(checked, rpc))
        yield from checked_lines(checked, expected is not None)
        yield from chain_lines


def checked_lines(checked: Checked, is_run_known: bool) -> Iterator[str]:
    """What a valid receipt proves, and what it does not."""
    spec, commit = checked.spec, checked.commit.commit
    comparison = "as expected" if is_run_known else "compare it with the chain's"
    yield f"run      {checked.run_id.hex()}: follows from the spec in the receipt; {comparison}"
    yield f"step     round {commit.round} of node {commit.node.hex()}, {commit.tokens:,} tokens"
    yield f"commit   {digest(commit).hex()}: signed by the node and by its hot key, on the assigned batch"
    yield f"update   {commit.update.hex()}, {commit.update_bytes:,} bytes"
    yield (
        f"final    at least {checked.signers} of {len(spec.verifiers)} verifiers signed every manifest and "
        f"header from round {commit.round} to {checked.last_round}"
    )
    drand = f" and drand round {checked.drand}" if checked.drand else ""
    yield f"beacon   shares of {checked.shares} verifiers{drand}, all of them checked"
    yield f"audit    {_audit_text(checked)}"
    yield f"pay      {_pay_text(checked)}"
    yield f"anchor   {_anchor_text(checked)}"
    yield from PROVES_NOT


def _chain_lines(checked: Checked, rpc: str) -> Iterator[str]:
    """What a chain reports about the run and the block.

    Raises:
        IntegrityError: it contradicts the receipt.
    """
    from assay.chain.reader import ChainReader  # importing web3 takes a second

    chain = ChainReader(rpc, checked.deployment)
    chain.check_deployment()
    if chain.run(checked.run_id) is None:
        raise IntegrityError(f"run_id: the escrow on chain {checked.deployment.chain_id} holds no such run")
    yield f"chain    {rpc}: the escrow holds this run"
    block = None if checked.paid is None else checked.paid.anchor
    if block is not None:
        found = chain.block_hash(block.number)
        if found != block.hash:
            raise IntegrityError(f"anchor: block {block.number} is 0x{found.hex()}, not 0x{block.hash.hex()}")
        yield f"chain    {rpc}: block {block.number} has that hash"


def _audit_text(checked: Checked) -> str:
    if checked.audit is None:
        share = f"{checked.drawn_from_ppm / PPM:.4%}"
        if checked.drawn_from_ppm <= checked.spec.audit.floor_ppm:
            return f"drawn (at any rate from {share}, the floor is above), but no verdict arrived in time"
        return f"no verdict in the chain; drawn only at rates of at least {share}, by its passed audits"
    verdicts = ", ".join(
        f"{verdict.outcome.name} by {verdict.verifier.hex()[:8]}" for verdict in checked.audit.verdicts
    )
    return f"drawn, {verdicts}: {checked.audit.ruling.value.upper()}"


def _pay_text(checked: Checked) -> str:
    paid = checked.paid
    if paid is None:
        return "not in this receipt"
    if paid.amount is None:
        return f"no payout row of the node in epoch {paid.epoch}, whose table a quorum signed"
    return (
        f"{money_text(paid.amount)} {UNIT} to {evm_address(checked.member.account)} for all its paid steps "
        f"of epoch {paid.epoch}: a leaf under the root a quorum signed"
    )


def _anchor_text(checked: Checked) -> str:
    block = None if checked.paid is None else checked.paid.anchor
    if block is None:
        return "none: this receipt does not show that the pay is final on chain"
    when = datetime.fromtimestamp(block.time_s, timezone.utc).isoformat()
    return (
        f"the epoch's result is final in block {block.number} of {when}, hash 0x{block.hash.hex()}: "
        "compare the hash with the chain's"
    )


def _is_round_summary(text: bytes) -> bool:
    try:
        found = parse_json(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and "contributions" in found and found.get("format") != FORMAT


def _summary_lines(
    path: Path, text: bytes, run_id: Digest | None, verifiers: Sequence[PeerId] | None
) -> Iterator[str]:
    """A round's summary proves nothing alone: it is recomputed from the chain of its bundle."""
    bundle = path.resolve().parent.parent
    if path.resolve().parent.name != "receipts" or not (bundle / "spec.cbor").is_file():
        raise ConfigError(f"{path}: a round's summary; it can be verified only inside its bundle")
    delivered: Delivered = read(bundle.parent)
    if run_id is not None and run_id != delivered.run_id:
        raise IntegrityError(f"run_id: {delivered.run_id.hex()}, expected {run_id.hex()}")
    if verifiers is not None and sorted(verifiers) != list(delivered.spec.verifier_peers):
        raise IntegrityError("spec: its verifiers are not the ones expected")
    spec, links, tables = delivered.spec, delivered.links, delivered.tables
    facts = facts_of(spec, delivered.run_id, links, tables)
    given: dict[str, Any] = parse_json(text)
    for made in round_receipts(spec, links, facts, tables):
        if made["round"] == given.get("round"):
            if made != given:
                raise IntegrityError(f"{path.name}: differs from the certified chain")
            break
    else:
        raise IntegrityError(f"{path.name}: its round is not in this run")
    yield f"run      {delivered.run_id.hex()}: follows from the spec in the bundle"
    yield f"chain    {len(links)} manifests, each certified by a quorum; payout tables recomputed, and signed"
    yield f"round    {given['round']}: {len(given['contributions'])} contributions, audits and pay as stated"
    yield from PROVES_NOT


def _key(text: str) -> bytes:
    try:
        found = bytes.fromhex(text.removeprefix("0x"))
    except ValueError:
        found = b""
    if len(found) != 32:
        raise ConfigError(f"{text!r}: expected 32 bytes in hexadecimal")
    return found
