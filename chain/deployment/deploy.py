"""Deploy: deploys the contracts, wired to each other and without an owner.

Room: chain (edge). The contracts name each other in immutable fields, and some of
them in a circle, so their addresses are computed from the deployer's nonce before
the first one is sent. The deployer keeps no right over any of them; it only holds
the supply of a token that was made for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from assay.chain.addresses import CONTRACTS, Deployment, created_address
from assay.chain.deployment.coin import SINK, check_coin
from assay.chain.deployment.parameters import ChainParams
from assay.chain.rpc import Rpc, artefact
from assay.chain.signing.signer import Signer
from assay.chain.statements import Address
from assay.protocol.errors import ConfigError, Unavailable


def deploy(
    rpc_url: str,
    deployer_key: Signer | bytes,
    params: ChainParams,
    deployment_id: bytes,
    verifiers: Sequence[str],
    *,
    coin: Address | None = None,
    sink: Address = SINK,
) -> Deployment:
    """Deploys all contracts and returns their addresses.

    Args:
        rpc_url: The chain's endpoint.
        deployer_key: What signs for the deployer, or its 32-byte private key; it pays the gas, and
            receives the whole supply of a new token.
        params: Windows, stakes and shares.
        deployment_id: 32 random bytes, fresh for every deployment.
        verifiers: Accounts of verifier set 1; 1 to 64, all different.
        coin: An ERC-20 that is there already; by default a new token is made.
        sink: Gets what is slashed and paid to nobody, and the bonds that are lost.

    Raises:
        ConfigError: a contract refused its parameters, the set is malformed, or the coin cannot be used.
        Unavailable: the chain is gone, or another transaction of the deployer came in between.
    """
    if len(deployment_id) != 32:
        raise ConfigError(f"deployment_id of {len(deployment_id)} bytes, 32 expected")
    if not 1 <= len(verifiers) <= 64:
        raise ConfigError(f"{len(verifiers)} verifiers; 1 to 64 expected")
    rpc = Rpc(rpc_url, deployer_key)
    eth = rpc.web3.eth
    deployer: Any = rpc.address
    nonce = rpc.read("deploy", lambda: eth.get_transaction_count(deployer, "pending"))
    chain_id = rpc.read("deploy", lambda: eth.chain_id)
    block = rpc.read("deploy", lambda: eth.block_number)
    if coin is not None:
        check_coin(rpc, coin)
    arguments = _arguments(rpc.address, nonce, params, deployment_id, verifiers, coin, sink)
    sent = []
    for contract, given in arguments.items():
        factory = eth.contract(abi=artefact(contract)["abi"], bytecode=artefact(contract)["bytecode"])
        data = factory.constructor(*given).data_in_transaction
        gas = 1_000_000 + 130 * len(data) + 120_000 * len(verifiers) * (contract == "VerifierSet")
        sent.append((contract, rpc.send(f"deploy {contract}", {"data": data, "gas": gas}, wait=False)))
    addresses = {contract: created_address(rpc.address, nonce + at) for at, contract in enumerate(arguments)}
    assert all(one.tx_hash is not None for _, one in sent), "a deployment is always sent"
    # All of them before any is judged: a refusal leaves no transaction behind that is still to be mined.
    receipts = [
        (contract, rpc.receipt(f"deploy {contract}", one.tx_hash)) for contract, one in sent if one.tx_hash
    ]
    for contract, receipt in receipts:
        if receipt["status"] != 1:
            raise ConfigError(f"{contract} could not be deployed: check the windows, shares and verifiers")
        if receipt["contractAddress"] != addresses[contract]:
            raise Unavailable(f"deploy {contract}: another transaction of {rpc.address} came in between")
    addresses = {"AssayToken": coin, **addresses} if coin is not None else addresses
    return Deployment(
        chain_id=chain_id,
        deployment_id=deployment_id,
        block=block,
        **{CONTRACTS[contract]: address for contract, address in addresses.items()},
    )


def _arguments(
    deployer: Address,
    nonce: int,
    p: ChainParams,
    deployment_id: bytes,
    verifiers: Sequence[str],
    coin: Address | None,
    sink: Address,
) -> dict[str, list[Any]]:
    """Constructor arguments by contract, in the order of deployment."""
    order = [
        "VerifierSet",
        "StakeVault",
        "SlashCourt",
        "RunEscrow",
        "EpochSettlement",
        "ModelRegistry",
        "Directory",
        "AppealCourt",
    ]
    made = [] if coin is not None else ["AssayToken"]
    token = coin or created_address(deployer, nonce)
    verifier_set, vault, court, escrow, settlement, _, _, appeals = (
        created_address(deployer, nonce + at + len(made)) for at in range(len(order))
    )
    members = sorted(verifiers, key=lambda account: int(account, 16))
    stakes = (p.min_operator_stake, p.min_verifier_stake, p.slash_buyer_ppm, p.accuser_fee, sink)
    given: list[list[Any]] = [
        [vault, members],
        [token, court, escrow, (p.unbonding_s, *stakes)],
        [
            vault,
            verifier_set,
            escrow,
            appeals,
            (
                p.evidence_window_s,
                p.veto_window_s,
                p.execute_window_s,
                p.margin_s,
                p.payout_delay_s,
                p.report_window_s,
                p.case_ppm_max,
                p.case_bond,
            ),
        ],
        [token, verifier_set, settlement, p.close_delay_s],
        [
            token,
            escrow,
            verifier_set,
            court,
            (
                p.challenge_window_s,
                p.resolve_window_s,
                p.claim_period_s,
                p.draw_delay_blocks,
                p.jury_seats,
                p.challenge_bond,
                sink,
            ),
        ],
        [escrow, settlement, verifier_set],
        [escrow, vault],
        [
            court,
            verifier_set,
            escrow,
            (p.appeal_move_s, p.appeal_vote_s, p.draw_delay_blocks, p.jury_seats, p.appeal_bond),
        ],
    ]
    arguments = {contract: [deployment_id, *rest] for contract, rest in zip(order, given, strict=True)}
    return {**{contract: [p.token_supply] for contract in made}, **arguments}
