"""Receipt: writes a step's receipt from a finished run, and checks receipts, offline and without torch.

Room: cli (edge: reads and writes files).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from assay.bundle.read import Delivered, find_node, read
from assay.bundle.receipts.rounds import RoundReceipt, facts_of, round_receipts
from assay.bundle.receipts.step import FORMAT, RECEIPT_BYTES_MAX, Checked, check_receipt, make_receipt
from assay.chain.commit_statement import evm_address
from assay.orders.amounts import token_text
from assay.participant.files.index import IntegrityError
from assay.protocol.encoding.codec import digest
from assay.protocol.encoding.json_text import parse_json, read_plain
from assay.protocol.errors import ConfigError
from assay.protocol.params import PPM
from assay.protocol.types import Digest, PeerId

PROVES_NOT = (
    "not proved: that this run id is the one in the escrow (compare it with the chain's); that pay was",
    "claimed; that an unaudited step is honest; anything, if too many verifiers are dishonest for a quorum",
)


@dataclass(frozen=True, slots=True)
class WrittenReceipt:
    """A receipt's file."""

    path: Path
    bytes: int

    @property
    def line(self) -> str:
        """Where it is, and how to check it."""
        return f"{self.path}: {self.bytes:,} bytes; check it with: assay receipt verify {self.path}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvedVerdict:
    """One auditor's finding on the step."""

    outcome: str
    verifier: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvedStep:
    """What a valid receipt proves; `statements` says it to a person."""

    run_id: bytes
    is_run_known: bool  # the caller gave the run's id, and it is this one
    round: int
    node: bytes
    tokens: int
    commit: bytes
    update: bytes
    update_bytes: int
    signers: int  # the fewest under any certificate
    verifiers: int
    last_round: int
    ruling: str | None  # None: no verdict is in the chain
    verdicts: tuple[ProvedVerdict, ...]
    epoch: int | None  # None: the receipt has no pay
    account: str
    amount: int | None  # token units, for all paid steps of the epoch; None: not shown, which proves nothing
    final_block: int | None
    final_hash: bytes | None
    statements: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvedRound:
    """What the chain of a bundle proves of a round's summary."""

    run_id: bytes
    manifests: int
    round: int
    contributions: int
    statements: tuple[str, ...]


def write_receipt(run: Path, round_id: int, node: str, out: Path | None) -> WrittenReceipt:
    """Write the receipt of a step.

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
    return WrittenReceipt(path, len(text))


def verify_receipt(
    path: Path, run_id: str | None, verifiers: Sequence[str], rpc: str | None = None
) -> ProvedStep | ProvedRound:
    """Verify a receipt.

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
        return _check_summary(path, text, expected, keys)
    checked = check_receipt(text, run_id=expected, verifiers=keys)
    chain_lines = [] if rpc is None else list(_chain_lines(checked, rpc))
    return _proved(checked, expected is not None, chain_lines)


def _proved(checked: Checked, is_run_known: bool, chain_lines: Sequence[str]) -> ProvedStep:
    commit, paid, audit = checked.commit.commit, checked.paid, checked.audit
    block = None if paid is None else paid.anchor
    verdicts = () if audit is None else audit.verdicts
    return ProvedStep(
        run_id=checked.run_id,
        is_run_known=is_run_known,
        round=commit.round,
        node=commit.node,
        tokens=commit.tokens,
        commit=digest(commit),
        update=commit.update,
        update_bytes=commit.update_bytes,
        signers=checked.signers,
        verifiers=len(checked.spec.verifiers),
        last_round=checked.last_round,
        ruling=None if audit is None else audit.ruling.value,
        verdicts=tuple(ProvedVerdict(outcome=one.outcome.name, verifier=one.verifier) for one in verdicts),
        epoch=None if paid is None else paid.epoch,
        account=evm_address(checked.member.account),
        amount=None if paid is None else paid.amount,
        final_block=None if block is None else block.number,
        final_hash=None if block is None else block.hash,
        statements=(*checked_lines(checked, is_run_known), *chain_lines),
    )


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
        return (
            f"no payout row of epoch {paid.epoch} in this receipt: that does not prove that its table, which "
            "a quorum signed, has none of the node"
        )
    return (
        f"{token_text(paid.amount)} to {evm_address(checked.member.account)} for all its paid steps "
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


def _check_summary(
    path: Path, text: bytes, run_id: Digest | None, verifiers: Sequence[PeerId] | None
) -> ProvedRound:
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
    try:
        given = read_plain(RoundReceipt, parse_json(text))
    except ValueError as error:
        raise IntegrityError(f"{path.name}: {error}") from None
    for made in round_receipts(spec, links, facts, tables):
        if made.round == given.round:
            if made != given:
                raise IntegrityError(f"{path.name}: differs from the certified chain")
            break
    else:
        raise IntegrityError(f"{path.name}: its round is not in this run")
    count = len(given.contributions)
    return ProvedRound(
        run_id=delivered.run_id,
        manifests=len(links),
        round=given.round,
        contributions=count,
        statements=(
            f"run      {delivered.run_id.hex()}: follows from the spec in the bundle",
            f"chain    {len(links)} manifests, each certified by a quorum; "
            "payout tables recomputed, and signed",
            f"round    {given.round}: {count} contributions, audits and pay as stated",
            *PROVES_NOT,
        ),
    )


def _key(text: str) -> bytes:
    try:
        found = bytes.fromhex(text.removeprefix("0x"))
    except ValueError:
        found = b""
    if len(found) != 32:
        raise ConfigError(f"{text!r}: expected 32 bytes in hexadecimal")
    return found
