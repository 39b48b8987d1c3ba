"""Schemas: request and response types of the API, as documented at /openapi.json.

Room: api (pure). Amounts are token units as text, because JSON parsers may round large numbers; hashes
are hexadecimal. Answers read these from integers and bytes, and their fields from objects that have the same.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field


def _written(value: object) -> object:
    """Token units as decimal text, bytes as hexadecimal."""
    return value.hex() if isinstance(value, bytes) else str(value) if isinstance(value, int) else value


def _hook_url(text: str) -> str:
    """The address of a webhook: a name, the usual port, no user, no fragment."""
    if (
        re.fullmatch(r"https://([A-Za-z0-9-]{1,63}\.)+[A-Za-z][A-Za-z0-9-]{0,62}(/[!-\"$-\[\]-~]*)?", text)
        is None
    ):
        raise ValueError("expected https://NAME/PATH, with a host's full name and no port, user or fragment")
    return text


Amount = Annotated[str, BeforeValidator(_written), Field(pattern=r"^-?[0-9]{1,39}$", examples=["12800043"])]
Hash = Annotated[str, BeforeValidator(_written), Field(pattern=r"^(0x)?[0-9a-f]*$", examples=["9e98" * 16])]
AddressText = Annotated[str, Field(pattern=r"^0x[0-9a-fA-F]{40}$", examples=["0x" + "52" * 20])]
HashGiven = Annotated[str, Field(pattern=r"^0x[0-9a-fA-F]{64}$", examples=["0x" + "9e98" * 16])]
AmountGiven = Annotated[
    str, Field(pattern=r"^[1-9][0-9]{0,18}$", examples=["1000000"], json_schema_extra={"format": "amount"})
]


A = TypeVar("A", bound="Answer")


class Answer(BaseModel):
    """Base of response bodies."""

    model_config = ConfigDict(frozen=True, from_attributes=True)

    @classmethod
    def of(cls: type[A], value: object, **more: Any) -> A:
        """The answer whose fields are `more`, and those of the same names of a value."""
        return cls(**{name: getattr(value, name) for name in cls.model_fields if name not in more}, **more)


class Asked(BaseModel):
    """Base of request bodies: no unknown keys, strict types."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class ProblemAnswer(Answer):
    """An error (RFC 9457)."""

    type: str = "about:blank"
    title: str = Field(examples=["Not Found"])
    status: int = Field(examples=[404])
    detail: str = Field(examples=["no run of this name is served here"])


class Health(Answer):
    ok: bool
    runs: int
    chain: str = Field(description='"up", "down", or "none"')


class RunAnswer(Answer):
    name: str = Field(examples=["quickstart"])
    run_id: Hash | None
    entries: int
    root: Hash
    checkpoint_size: int | None
    settled_epochs: list[int]


class BalanceAnswer(Answer):
    account: str = Field(examples=["budget:9f86d0"])
    asset: str
    amount: Amount


class Balances(Answer):
    entries: int
    root: Hash
    balances: list[BalanceAnswer]
    trial_balance: Amount


class PostingAnswer(Answer):
    account: str
    asset: str
    amount: Amount


class EntryAnswer(Answer):
    number: int
    key: str
    kind: str
    epoch: int | None
    block_number: int
    block_hash: Hash
    reverses: str | None
    time: str = Field(
        examples=["2026-11-20T09:29:48+00:00"], description="of its block; of a document, when it was issued"
    )
    recorded: str = Field(examples=["2026-11-20T09:30:00.000+00:00"])
    leaf_hash: Hash
    postings: list[PostingAnswer]


class Entries(Answer):
    entries: list[EntryAnswer]
    next: int | None = Field(description="`after` of the next page; null on the last page")


class ProofAnswer(Answer):
    entry: EntryAnswer
    leaf_index: int
    leaf: Hash
    proof: list[Hash]
    checkpoint: str
    verifier_key: str


class CheckpointAnswer(Answer):
    size: int
    root: Hash
    note: str
    verifier_key: str


class AuditResult(Answer):
    ok: bool
    difference: str | None = Field(
        description="the first difference from the log or from a signed checkpoint"
    )
    entries: int | None
    postings: int | None
    root: Hash | None
    checkpoints: int | None
    age_s: int = Field(description="how long ago the audit was made")


class EpochEarnings(Answer):
    epoch: int
    steps: int
    tokens: int
    unpaid: int
    settled: bool = Field(validation_alias="is_settled")
    amount: Amount
    claimed: Amount


class Earnings(Answer):
    peer: Hash
    epochs: list[EpochEarnings]
    total: Amount


class FindingAnswer(Answer):
    outcome: str
    verifier: Hash
    round: int
    manifest: Hash


class EndedAnswer(Answer):
    ruling: str
    round: int
    manifest: Hash


class UnpaidAnswer(Answer):
    round: int
    reason: str
    tokens: int
    commit: Hash
    update: Hash
    manifest: Hash
    findings: list[FindingAnswer]
    rulings: list[EndedAnswer]
    fault_round: int | None


class Reasons(Answer):
    peer: Hash
    epoch: int
    steps: int
    unpaid: list[UnpaidAnswer]


class PayoutAnswer(Answer):
    index: int
    role: str
    peer: Hash
    account: str
    amount: Amount
    proof: list[Hash]


class SettlementAnswer(Answer):
    epoch: int
    table_hash: Hash
    root: Hash
    tokens_paid: int
    total: Amount
    rows: list[PayoutAnswer]


class InvoiceHead(Answer):
    series: str
    number: int
    name: str
    first_epoch: int
    last_epoch: int
    total: Amount
    corrects: int | None


class QuoteCost(Answer):
    tokens: int
    operators: Amount
    verifiers: Amount
    fee: Amount
    gross: Amount


class QuoteAnswer(Answer):
    quote: Hash = Field(description="digest of the quote; equal orders have equal digests on every server")
    budget: Amount
    epoch_cap: Amount
    epochs: int
    at_most: QuoteCost
    expected: QuoteCost
    price_per_mtoken: Amount


class OrderAnswer(Answer):
    run_id: Hash
    buyer: str
    budget: Amount
    reserved: Amount
    paid: Amount
    returned: Amount
    free: Amount
    epoch_cap: Amount
    epochs: int
    deadline: int
    closes_at: int
    pending_results: int
    chain_time: int


class StakeAnswer(Answer):
    account: str
    role: str
    active: Amount
    leaving: Amount
    minimum: Amount
    free: Amount
    rewards: Amount
    banned: bool


class DeploymentAnswer(Answer):
    chain_id: int
    deployment_id: Hash
    block: int = Field(description="where reading the contracts' events starts")
    contracts: dict[str, str] = Field(
        description="addresses by the contracts' names", examples=[{"AssayToken": "0x" + "52" * 20}]
    )


class NonceAnswer(Answer):
    nonce: str
    expires_at: int
    chain_id: int
    domain: str
    uri: str


class MessageAsked(Asked):
    account: AddressText


class MessageAnswer(Answer):
    message: str = Field(description="for `personal_sign`, unchanged")
    expires_at: int


class SignInAsked(Asked):
    message: Annotated[str, Field(max_length=4000)]
    signature: Annotated[str, Field(pattern=r"^0x([0-9a-fA-F]{2}){1,2048}$")]


class SessionAnswer(Answer):
    token: str = Field(description="send it as `Authorization: Bearer ...`; it is not stored")
    account: str
    expires_at: int


class ActionAnswer(Answer):
    """An action, the function that carries it out, and its parameters.

    takes: Argument that is the sum which the function takes from the account, or a word for a sum that is no
    argument; empty: it takes none.
    """

    name: str
    does: str
    contract: str
    function: str
    selector: str  # of the function, 8 hexadecimal digits
    inputs: list[dict[str, Any]]  # of the function, as its ABI has them
    takes: str
    parameters: dict[str, Any]  # as JSON Schema; format "amount": token units, "unix-time": seconds


class ActionsAnswer(Answer):
    """Every action that an account may have planned."""

    actions: list[ActionAnswer]


class PrepareAsked(Asked):
    action: str = Field(max_length=32, examples=["stake.add"])
    parameters: dict[str, Any] = Field(examples=[{"role": "operator", "amount": "1000000"}], max_length=8)


class TransactionAnswer(Answer):
    type: int
    chainId: int
    nonce: int
    to: str
    value: int
    data: str
    gas: int
    maxFeePerGas: int
    maxPriorityFeePerGas: int


class PreparedAnswer(Answer):
    id: str
    account: str
    action: str
    amount: Amount
    expires_at: int
    typed_data: dict[str, Any]
    transactions: list[TransactionAnswer]


class MoveAsked(Asked):
    id: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    signature: Annotated[str, Field(pattern=r"^0x[0-9a-fA-F]{130}$")]
    transactions: Annotated[
        list[Annotated[str, Field(pattern=r"^0x([0-9a-fA-F]{2}){1,16384}$")]],
        Field(min_length=1, max_length=4),
    ]


class SentTransaction(Answer):
    hash: Hash
    state: str = Field(description='"unknown", "pending", "mined", "reverted" or "final"')
    block: int | None
    refused: str | None = Field(description="the chain endpoint's error text")


class MoveAnswer(Answer):
    id: str
    action: str
    account: str
    amount: Amount
    state: str = Field(description='"prepared", "expired", "sent", "mined", "reverted" or "final"')
    transactions: list[SentTransaction]


class HookAsked(Asked):
    run: Annotated[str, Field(max_length=64, examples=["quickstart"])]
    url: Annotated[
        str,
        AfterValidator(_hook_url),
        Field(max_length=500, examples=["https://hooks.example.org/assay"]),
    ]
    after: Annotated[
        int | None,
        Field(ge=0, lt=2**63, description="number of the last entry that is not sent; without it the newest"),
    ] = None


class HookAnswer(Answer):
    id: str
    run: str
    url: str
    position: int = Field(description="number of the last entry that was delivered")
    is_failed: bool = Field(description="given up; nothing more is sent")
    attempts: int = Field(description="at the next entry")
    error: str = Field(description="why the last of them failed")


class NewHookAnswer(HookAnswer):
    secret: str = Field(description="whsec_..., shown once")
