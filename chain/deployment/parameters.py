"""Parameters: the immutable parameters of a deployment, two sets of them, and where each is read on chain.

Room: chain (pure). `ChainReader.parameters` reads them; a test compares them with what was deployed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from assay.chain.penalties import CASE_PPM_MAX
from assay.chain.statements import OPERATOR, VERIFIER
from assay.chain.text.times import CLOSE_DELAY_S, EVIDENCE_WINDOW_S

UNIT = 10**6  # token units in one token


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainParams:
    """Immutable parameters of a deployment. Times in seconds, money in token units, shares in ppm.

    unbonding_s must exceed both evidence + veto + execute + margin and challenge + resolve + veto +
    execute + margin; otherwise the constructors revert.
    """

    TAG: ClassVar[bytes] = b"assay/chain-params/1"
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
    appeal_move_s: int  # for each move of an appeal, five at most
    appeal_vote_s: int  # for its jury
    appeal_bond: int  # below 2^96
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
    appeal_move_s=5,
    appeal_vote_s=10,
    appeal_bond=10 * UNIT,
    min_operator_stake=100 * UNIT,
    min_verifier_stake=1_000 * UNIT,
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
    appeal_move_s=86_400,
    appeal_vote_s=3 * 86_400,
    appeal_bond=500 * UNIT,
    min_operator_stake=1_000 * UNIT,
    min_verifier_stake=10_000 * UNIT,
    slash_buyer_ppm=200_000,
    accuser_fee=20 * UNIT,
    case_ppm_max=CASE_PPM_MAX,
    token_supply=1_000_000_000 * UNIT,
)

# Contract, getter and its arguments; the bond is a field of an epoch that nobody has proposed.
GETTERS: Mapping[str, tuple[str, str, tuple[Any, ...]]] = {
    "challenge_window_s": ("EpochSettlement", "challengeWindow", ()),
    "resolve_window_s": ("EpochSettlement", "resolveWindow", ()),
    "claim_period_s": ("EpochSettlement", "claimPeriod", ()),
    "close_delay_s": ("RunEscrow", "closeDelay", ()),
    "evidence_window_s": ("SlashCourt", "evidenceWindow", ()),
    "veto_window_s": ("SlashCourt", "vetoWindow", ()),
    "execute_window_s": ("SlashCourt", "executeWindow", ()),
    "margin_s": ("SlashCourt", "margin", ()),
    "payout_delay_s": ("SlashCourt", "payoutDelay", ()),
    "report_window_s": ("SlashCourt", "reportWindow", ()),
    "unbonding_s": ("StakeVault", "unbondingDelay", ()),
    "draw_delay_blocks": ("EpochSettlement", "drawDelay", ()),
    "jury_seats": ("EpochSettlement", "jurySeats", ()),
    "case_bond": ("SlashCourt", "caseBond", ()),
    "appeal_move_s": ("AppealCourt", "moveWindow", ()),
    "appeal_vote_s": ("AppealCourt", "voteWindow", ()),
    "appeal_bond": ("AppealCourt", "bond", ()),
    "min_operator_stake": ("StakeVault", "minStake", (OPERATOR,)),
    "min_verifier_stake": ("StakeVault", "minStake", (VERIFIER,)),
    "slash_buyer_ppm": ("StakeVault", "buyerPpm", ()),
    "accuser_fee": ("StakeVault", "accuserFee", ()),
    "case_ppm_max": ("SlashCourt", "casePpmMax", ()),
    "token_supply": ("AssayToken", "totalSupply", ()),
}
