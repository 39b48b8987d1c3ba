"""Account: opens a participant's on-chain account for transactions that its owner sends by hand.

Room: participant (edge: files, the chain). Reads the same files as the participant's process,
with the same checks, but opens neither its store nor its port,
so it may be used while the process runs.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from assay.chain.addresses import Deployment
from assay.chain.client import Chain
from assay.chain.commit_statement import evm_address
from assay.chain.statements import OPERATOR, VERIFIER, Address
from assay.participant.config import Config, read_run
from assay.participant.keyring import Keys, load_keys
from assay.protocol.errors import ConfigError
from assay.protocol.params import RunSpec
from assay.protocol.types import Digest

ROLE_NAMES = {OPERATOR: "operator", VERIFIER: "verifier"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """An account with its keys, contracts and run."""

    config: Config = field(repr=False)  # it holds the password
    keys: Keys = field(repr=False)
    spec: RunSpec
    run_id: Digest
    deployment: Deployment
    chain: Chain

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
    spec, deployment = read_run(config)
    keys = load_keys(config.folder / "keys", config.password)
    chain = Chain(config.rpc_url, deployment, keys.account)
    chain.check_deployment()
    return Account(
        config=config, keys=keys, spec=spec, run_id=config.run_id, deployment=deployment, chain=chain
    )


def role_in(spec: RunSpec, account: Address) -> int:
    """The account's staking role in the run.

    Raises:
        ConfigError: it is neither node nor verifier of the run.
    """
    for role, members in ((OPERATOR, spec.nodes), (VERIFIER, spec.verifiers)):
        if any(evm_address(member.account) == account for member in members):
            return role
    raise ConfigError(f"{account} is neither node nor verifier of run {spec.name!r}: it has no stake there")
