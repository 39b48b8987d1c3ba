"""Founding: deploys a network's contracts with its first verifiers, and gives its people tokens and gas.

Room: participant (edge: the chain). The founder keeps no right over the contracts; it holds the supply
of a token that was made for them and pays out of it whoever it wants to take part.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from assay.chain.client import Chain
from assay.chain.commit_statement import evm_address
from assay.chain.deployment.coin import SINK
from assay.chain.deployment.deploy import deploy
from assay.chain.deployment.parameters import ChainParams
from assay.chain.signing.signer import Signer
from assay.chain.statements import Address
from assay.participant.files.invitation import Invitation, check_invitation, check_network, invitation_of
from assay.participant.files.record import Role, SignedRecord
from assay.protocol.errors import ConfigError


def found_network(
    rpc_url: str,
    founder_key: Signer | bytes,
    params: ChainParams,
    name: str,
    endpoints: Sequence[str],
    verifiers: Sequence[SignedRecord],
    *,
    coin: Address | None = None,
    sink: Address = SINK,
) -> Invitation:
    """Deploy the contracts of a new network; returns the invitation to it, compared with the chain.

    Args:
        rpc_url: Of the chain.
        founder_key: What signs for the account, or its 32-byte key; it pays the gas and receives a new
            token's supply.
        params: Windows, stakes and shares.
        name: For people.
        endpoints: URLs at which others may reach the chain.
        verifiers: Checked records of the first verifier set.
        coin: An ERC-20 that is there already; by default a new token is made.
        sink: Gets what is slashed and paid to nobody, and the bonds that are lost.

    Raises:
        ConfigError: a record is of another role, a name or URL is malformed, or a contract refused `params`.
        Unavailable: the endpoint is gone.
    """
    for signed in verifiers:
        if signed.record.role is not Role.VERIFIER:
            raise ConfigError(f"a record of a {signed.record.role.name.lower()} among the first verifiers")
    members = [evm_address(one.record.account) for one in verifiers]
    if len(set(members)) != len(members):
        raise ConfigError("two of the first verifiers have one account")
    deployment = deploy(rpc_url, founder_key, params, secrets.token_bytes(32), members, coin=coin, sink=sink)
    chain = Chain(rpc_url, deployment, founder_key)
    invitation = invitation_of(chain, name, endpoints, verifiers)
    check_invitation(invitation, max(one.record.made_at_s for one in verifiers))
    check_network(invitation, chain)
    return invitation
