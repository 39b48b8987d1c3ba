"""Config: the configuration of one API server: its runs, chain and limits.

Room: api (pure). Package `cli` reads the TOML; paths are relative to the file.

    origin = "https://api.example.org"     # where people reach it; in sign-in messages
    access = "access.db"                   # the server's own file
    [runs]
    quickstart = "runs/quickstart"         # a folder, a ledger.db, or postgresql://...
    [chain]                                # for stake, orders, moves and contract wallets
    rpc_url = "http://127.0.0.1:8545"
    deployment = "runs/quickstart/deployment.json"
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

RUN_NAME = r"^[A-Za-z0-9][A-Za-z0-9_\-]{0,63}$"
EXPLORER = r"^https?://[A-Za-z0-9.\-\[\]:]+(/[A-Za-z0-9._~\-]+)*$"
_Count = Annotated[int, Field(ge=1, le=10**6)]


class Section(BaseModel):
    """Base of the tables: strict types, no unknown keys, frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ChainSection(Section):
    """Chain endpoint and deployment file."""

    rpc_url: Annotated[str, Field(pattern=r"^https?://")]
    deployment: Path


class LimitsSection(Section):
    """Rate and size limits per caller."""

    address_per_minute: _Count = 300
    address_burst: _Count = 100
    account_per_minute: _Count = 300
    account_burst: _Count = 100
    token_per_minute: _Count = 600
    token_burst: _Count = 200
    body_bytes: Annotated[int, Field(ge=1024, le=1 << 24)] = 1 << 18
    header_bytes: Annotated[int, Field(ge=1024, le=1 << 16)] = 1 << 14
    requests_at_once: Annotated[int, Field(ge=1, le=1000)] = 128
    request_s: Annotated[float, Field(gt=0, le=600)] = 20.0
    export_s: Annotated[float, Field(gt=0, le=3600)] = 300.0
    audit_every_s: Annotated[float, Field(ge=0, le=86_400)] = 60.0
    streams: Annotated[int, Field(ge=1, le=1000)] = (
        64  # open at once; never more than half of requests_at_once
    )
    streams_per_account: Annotated[int, Field(ge=1, le=1000)] = 4
    stream_s: Annotated[float, Field(gt=0, le=86_400)] = 3600.0


class ServerFile(Section):
    """The keys of a server's file."""

    listen: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65_535)] = 8600
    origin: Annotated[str, Field(pattern=r"^https?://[A-Za-z0-9.\-\[\]:]+$")] = "http://127.0.0.1:8600"
    explorer: Annotated[str, Field(pattern=EXPLORER, max_length=200)] | None = None  # the wallet page's link
    access: Path = Path("access.db")
    public_read: bool = False  # whether the books may be read without a token
    # Accounts that may read all books where that is not public; a run's parties may read its own.
    readers: frozenset[Annotated[str, Field(pattern=r"^0x[0-9a-fA-F]{40}$")]] = Field(
        default=frozenset(), max_length=1000
    )
    runs: dict[Annotated[str, Field(pattern=RUN_NAME)], str] = Field(default_factory=dict, max_length=100)
    chain: ChainSection | None = None
    limits: LimitsSection = LimitsSection()
    webhooks: bool = False  # whether this server connects to the addresses that its callers register
