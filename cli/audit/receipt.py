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
    "does not prove: that this run id is the one in the escrow (compare it with the chain's); that pay was",
    "claimed; that an unaudited step is honest; anything, if more verifiers lie than a quorum tolerates",
)


def write_receipt(run: Path, round_id: int, node: str, out: Path | None) -> str:
    """Write the receipt of a step; returns a line with its path.

    Raises:
        ConfigError: no such run, round or node, or the file exists already.
        IntegrityError: the run's chain is invalid.
    """
    delivered = read(run)
    peer = find_node(delivered.spec, node)
    if not 0 <= round_id < delivered.spec.rounds:
        raise ConfigError(f"round {round_id}: the run trained in rounds 0 to {delivered.spec.rounds - 1}")
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
    """Check a receipt; returns one line per thing it proves.

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
            raise ConfigError(f"{path}: more than {RECEIPT_BYTES_MAX} bytes, so no receipt")
        text = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    expected = None if run_id is None else Digest(_key(run_id))
    keys = [PeerId(_key(one)) for one in verifiers] or None
    if _is_round_summary(text):
        yield from _summary_lines(path, text, expected, keys)
    else:
        checked = check_receipt(text, run_id=expected, verifiers=keys)
        told = [] if rpc is None else list(_chain_lines(checked, rpc))
        yield from checked_lines(checked, expected is not None)
        yield from told


def checked_lines(checked: Checked, is_run_known: bool) -> Iterator[str]:
    """What a valid receipt proves, and what it does not."""
    spec, commit = checked.spec, checked.commit.commit
    word = "as expected" if is_run_known else "compare it with the chain's"
    yield f"run      {checked.run_id.hex()}: follows from the spec in the receipt; {word}"
    yield f"step     round {commit.round} of node {commit.node.hex()}, {commit.tokens:,} tokens"
    yield f"commit   {digest(commit).hex()}: signed by the node and by its hot key, on the assigned batch"
    yield f"update   {commit.update.hex()}, {commit.update_bytes:,} bytes"
    yield (
        f"final    at least {checked.signers} of {len(spec.verifiers)} verifiers signed every link and "
        f"header from round {commit.round} to {checked.last_round}, the run's last"
    )
    drand = f" and drand round {checked.drand}" if checked.drand else ""
    yield f"beacon   shares of {checked.shares} verifiers{drand}, all of them checked"
    yield f"audit    {_audit_words(checked)}"
    yield f"pay      {_pay_words(checked)}"
    yield f"anchor   {_anchor_words(checked)}"
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
        raise IntegrityError(f"run_id: the escrow on chain {checked.deployment.chain_id} knows no such run")
    yield f"chain    {rpc}: the escrow holds this run"
    block = None if checked.paid is None else checked.paid.anchor
    if block is not None:
        found = chain.block_hash(block.number)
        if found != block.hash:
            raise IntegrityError(f"anchor: block {block.number} is 0x{found.hex()}, not 0x{block.hash.hex()}")
        yield f"chain    {rpc}: block {block.number} has that hash"


def _audit_words(checked: Checked) -> str:
    if checked.audit is None:
        share = f"{checked.drawn_from_ppm / PPM:.4%}"
        if checked.drawn_from_ppm <= checked.spec.audit.floor_ppm:
            return f"drawn (at any rate from {share}, the floor is above), and judged by nobody in time"
        return f"no verdict in the chain; drawn only at rates from {share}, by the node's clean audits then"
    told = ", ".join(
        f"{verdict.outcome.name} by {verdict.verifier.hex()[:8]}" for verdict in checked.audit.verdicts
    )
    return f"drawn, {told}: {checked.audit.ruling.value.upper()}"


def _pay_words(checked: Checked) -> str:
    paid = checked.paid
    if paid is None:
        return "not in this receipt"
    if paid.amount is None:
        return f"no row of the node claimed in epoch {paid.epoch}, whose table a quorum signed"
    node = next(member for member in checked.spec.nodes if member.peer == checked.commit.commit.node)
    return (
        f"{money_text(paid.amount)} {UNIT} to {evm_address(node.account)} for all its paid steps of epoch "
        f"{paid.epoch}: a leaf under the root a quorum signed"
    )


def _anchor_words(checked: Checked) -> str:
    block = None if checked.paid is None else checked.paid.anchor
    if block is None:
        return "none: that the chain made the pay final is not shown here"
    when = datetime.fromtimestamp(block.time_s, timezone.utc).isoformat()
    return (
        f"the epoch's result is final in block {block.number} of {when}, hash 0x{block.hash.hex()}: "
        "compare the hash with the chain's"
    )


def _is_round_summary(text: bytes) -> bool:
    try:
        told = parse_json(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(told, dict) and "contributions" in told and told.get("format") != FORMAT


def _summary_lines(
    path: Path, text: bytes, run_id: Digest | None, verifiers: Sequence[PeerId] | None
) -> Iterator[str]:
    """A round's summary proves nothing alone: it is recomputed from the chain of its bundle."""
    bundle = path.resolve().parent.parent
    if path.resolve().parent.name != "receipts" or not (bundle / "spec.cbor").is_file():
        raise ConfigError(f"{path}: a round's summary; it can be checked only where it lies, in its bundle")
    delivered: Delivered = read(bundle.parent)
    if run_id is not None and run_id != delivered.run_id:
        raise IntegrityError(f"run_id: {delivered.run_id.hex()}, expected {run_id.hex()}")
    if verifiers is not None and sorted(verifiers) != list(delivered.spec.verifier_peers):
        raise IntegrityError("spec: its verifiers are not the ones expected")
    spec, links, tables = delivered.spec, delivered.links, delivered.tables
    facts = facts_of(spec, delivered.run_id, links, tables)
    told: dict[str, Any] = parse_json(text)
    for made in round_receipts(spec, links, facts, tables):
        if made["round"] == told.get("round"):
            if made != told:
                raise IntegrityError(f"{path.name}: differs from what the certified chain says")
            break
    else:
        raise IntegrityError(f"{path.name}: of no round of this run")
    yield f"run      {delivered.run_id.hex()}: follows from the spec in the bundle"
    yield f"chain    {len(links)} links, each certified by a quorum; every table made again, and signed"
    yield f"round    {told['round']}: {len(told['contributions'])} contributions, audits and pay as told"
    yield from PROVES_NOT


def _key(text: str) -> bytes:
    try:
        found = bytes.fromhex(text.removeprefix("0x"))
    except ValueError:
        found = b""
    if len(found) != 32:
        raise ConfigError(f"{text!r}: expected 32 bytes in hexadecimal")
    return found
