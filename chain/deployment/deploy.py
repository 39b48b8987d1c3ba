"""Deploy: deploys the seven contracts, wired to each other and without an owner.

Room: chain (edge). The contracts name each other in immutable fields, and some of
them in a circle, so their addresses are computed from the deployer's nonce before
the first one is sent. The deployer keeps no right over any of them; it only holds
the token's supply.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from eth_typing import HexAddress, HexStr
from web3.types import Nonce
from web3.utils import get_create_address

from assay.chain.addresses import CONTRACTS, Deployment
from assay.chain.penalties import CASE_PPM_MAX
from assay.chain.rpc import Rpc, artefact
from assay.chain.statements import Address
from assay.chain.times import CLOSE_DELAY_S, EVIDENCE_WINDOW_S
from assay.protocol.errors import ConfigError, Unavailable

UNIT = 10**6  # token units in one token


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainParams:
    """Immutable parameters of a deployment. Times in seconds, money in token units, shares in ppm.

    unbonding_s must exceed both evidence + veto + execute + margin and challenge + resolve + veto +
    execute + margin; otherwise the constructors revert.
    """

    challenge_window_s: int
    resolve_window_s: int
    claim_period_s: int
    close_delay_s: int
    evidence_window_s: int
    veto_window_s: int
    execute_window_s: int
    margin_s: int
    payout_delay_s: int  # from executing a slash order to its pay-out; until then a veto reverses it
    report_window_s: int  # validity of a commitment to report
    unbonding_s: int
    draw_delay_blocks: int  # from a challenge to its jury
    jury_seats: int
    challenge_bond: int  # of an epoch's first proposal and first challenge; below 2^96
    case_bond: int  # below 2^96
    min_operator_stake: int
    min_verifier_stake: int
    slash_buyer_ppm: int  # at most 500,000; of a slash by order
    accuser_fee: int  # at most 30 % of what is slashed
    case_ppm_max: int  # of one lot, by all slash orders of 30 days
    token_supply: int


LOCALNET = ChainParams(
    challenge_window_s=3,
    resolve_window_s=10,
    claim_period_s=600,
    close_delay_s=3,
    evidence_window_s=10,
    veto_window_s=3,
    execute_window_s=20,
    margin_s=5,
    payout_delay_s=3,
    report_window_s=60,
    unbonding_s=45,
    draw_delay_blocks=1,
    jury_seats=5,
    challenge_bond=10 * UNIT,
    case_bond=10 * UNIT,
    min_operator_stake=100 * UNIT,
    min_verifier_stake=100 * UNIT,
    slash_buyer_ppm=200_000,
    accuser_fee=20 * UNIT,
    case_ppm_max=CASE_PPM_MAX,
    token_supply=1_000_000_000 * UNIT,
)
MAINNET = ChainParams(
    challenge_window_s=86_400,
    resolve_window_s=3 * 86_400,
    claim_period_s=180 * 86_400,
    close_delay_s=CLOSE_DELAY_S,
    evidence_window_s=EVIDENCE_WINDOW_S,
    veto_window_s=3 * 86_400,
    execute_window_s=7 * 86_400,
    margin_s=86_400,
    payout_delay_s=7 * 86_400,
    report_window_s=86_400,
    unbonding_s=21 * 86_400,
    draw_delay_blocks=8,
    jury_seats=15,
    challenge_bond=500 * UNIT,
    case_bond=500 * UNIT,
    min_operator_stake=1_000 * UNIT,
    min_verifier_stake=10_000 * UNIT,
    slash_buyer_ppm=200_000,
    accuser_fee=20 * UNIT,
    case_ppm_max=CASE_PPM_MAX,
    token_supply=1_000_000_000 * UNIT,
)


def deploy(
    rpc_url: str,
    deployer_key: bytes,
    params: ChainParams,
    deployment_id: bytes,
    verifiers: Sequence[tuple[str, str]],
) -> Deployment:
    """Deploys all contracts and returns their addresses.

    Args:
        rpc_url: The chain's endpoint.
        deployer_key: 32-byte private key; pays the gas and receives the token's whole supply.
        params: Windows, stakes and shares.
        deployment_id: 32 random bytes, fresh for every deployment.
        verifiers: (account, hot key) addresses of verifier set 1; 1 to 64, all different.

    Raises:
        ConfigError: a contract refused its parameters, or the set is malformed.
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
    arguments = _arguments(rpc.address, nonce, params, deployment_id, verifiers)
    sent = []
    for contract, given in arguments.items():
        factory = eth.contract(abi=artefact(contract)["abi"], bytecode=artefact(contract)["bytecode"])
        data = factory.constructor(*given).data_in_transaction
        gas = 1_000_000 + 130 * len(data) + 120_000 * len(verifiers) * (contract == "VerifierSet")
        sent.append((contract, rpc.send(f"deploy {contract}", {"data": data, "gas": gas}, wait=False)))
    addresses = {contract: _created(rpc.address, nonce + at) for at, contract in enumerate(arguments)}
    for contract, one in sent:
        if one.tx_hash is None:
            raise AssertionError("a deployment is always sent")
        receipt = rpc.receipt(f"deploy {contract}", one.tx_hash)
        if receipt["status"] != 1:
            raise ConfigError(f"{contract} could not be deployed: check the windows, shares and verifiers")
        if receipt["contractAddress"] != addresses[contract]:
            raise Unavailable(f"deploy {contract}: another transaction of {rpc.address} came in between")
    return Deployment(
        chain_id=chain_id,
        deployment_id=deployment_id,
        block=block,
        **{CONTRACTS[contract]: address for contract, address in addresses.items()},
    )


def _arguments(
    deployer: Address, nonce: int, p: ChainParams, deployment_id: bytes, verifiers: Sequence[tuple[str, str]]
) -> dict[str, list[Any]]:
    """Constructor arguments by contract, in the order of deployment."""
    order = [
        "AssayToken",
        "VerifierSet",
        "StakeVault",
        "SlashCourt",
        "RunEscrow",
        "EpochSettlement",
        "ModelRegistry",
    ]
    token, verifier_set, vault, court, escrow, settlement, _ = (
        _created(deployer, nonce + at) for at in range(len(order))
    )
    members = sorted(((account, hot) for account, hot in verifiers), key=lambda pair: int(pair[1], 16))
    stakes = (p.min_operator_stake, p.min_verifier_stake, p.slash_buyer_ppm, p.accuser_fee)
    given: list[list[Any]] = [
        [p.token_supply],
        [vault, members],
        [token, court, escrow, (p.unbonding_s, *stakes)],
        [
            vault,
            verifier_set,
            escrow,
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
            ),
        ],
        [escrow, settlement, verifier_set],
    ]
    return {contract: [deployment_id, *rest] for contract, rest in zip(order, given, strict=True)}


def _created(deployer: Address, nonce: int) -> Address:
    """The address of the contract that `deployer` creates with `nonce`."""
    return Address(get_create_address(HexAddress(HexStr(deployer)), Nonce(nonce)))
