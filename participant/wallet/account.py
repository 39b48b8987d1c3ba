"""Account: opens a participant's on-chain account for transactions that its owner sends by hand.

Room: participant (edge: files, the chain). Reads the same files as the participant's process,
with the same checks, but opens neither its store nor its port,
so it may be used while the process runs.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from assay.chain.addresses import Deployment
from assay.chain.client import Chain
from assay.chain.commit_statement import evm_address
from assay.chain.statements import OPERATOR, VERIFIER, Address
from assay.participant.config import Config, read_run
from assay.participant.files.invitation import read_invitation
from assay.participant.files.record import OWN_RECORD, Role, read_record
from assay.participant.files.run_file import RunFile, missing_run
from assay.participant.keys.keyring import Keys, load_keys
from assay.protocol.errors import ConfigError
from assay.protocol.params import RunSpec
from assay.protocol.types import Digest

ROLE_NAMES = {OPERATOR: "operator", VERIFIER: "verifier"}
STAKED = {Role.NODE: OPERATOR, Role.VERIFIER: VERIFIER}


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """An account with its keys and contracts, and its run if it has one."""

    config: Config = field(repr=False)  # it holds the password
    keys: Keys = field(repr=False)
    run: RunFile | None
    deployment: Deployment
    chain: Chain

    @property
    def spec(self) -> RunSpec:
        """The spec of its run.

        Raises:
            ConfigError: it has no run file.
        """
        return self.run_file.spec

    @property
    def run_id(self) -> Digest:
        """The id of its run.

        Raises:
            ConfigError: it has no run file.
        """
        return self.run_file.run_id

    @property
    def role(self) -> int:
        """Its role as a staker: as its run names it, else by its own record.

        Raises:
            ConfigError: it stakes in neither role.
        """
        if self.run is not None and (role := role_in(self.spec, self.address)) is not None:
            return role
        own = self.config.keys / OWN_RECORD
        if self.run is not None and not own.exists():
            raise ConfigError(
                f"{self.address} is neither node nor verifier of run {self.spec.name!r}, and has no record"
            )
        role = read_record(own, int(time.time())).record.role
        if role not in STAKED:
            raise ConfigError(f"a {role.name.lower()} has no stake")
        return STAKED[role]

    @property
    def run_file(self) -> RunFile:
        """The file of its run.

        Raises:
            ConfigError: it has none.
        """
        if self.run is None:
            raise missing_run(self.config.run)
        return self.run

    @property
    def address(self) -> Address:
        """Address of the account."""
        return evm_address(self.keys.account_address)

    @property
    def hot_address(self) -> Address:
        """Address of the hot key."""
        return evm_address(self.keys.hot_address)


def open_account(config: Config) -> Account:
    """The account of a configuration, on an endpoint checked to serve its deployment.

    Raises:
        ConfigError: a file is missing, damaged or of another run, or the endpoint is another chain.
        Unavailable: the endpoint does not answer.
    """
    run = read_run(config)[0] if config.has_run else None
    deployment = read_invitation(config.network).deployment
    keys = load_keys(config.keys, config.password)
    chain = Chain(config.rpc_url, deployment, keys.signer)
    chain.check_deployment()
    return Account(config=config, keys=keys, run=run, deployment=deployment, chain=chain)


def role_in(spec: RunSpec, account: Address) -> int | None:
    """The role in which a run's spec names this account; None if it does not."""
    for role, members in ((OPERATOR, spec.nodes), (VERIFIER, spec.judges)):
        if any(evm_address(member.account) == account for member in members):
            return role
    return None
