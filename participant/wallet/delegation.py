"""Delegation: lets a participant's hot key sign for its account, until a date, and warns before that date.

Room: participant (edge: the chain). Repeating a delegation with a later date renews it; the hot key's consent
is part of the transaction. A process whose operator said for how long renews it by itself.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

import trio

from assay.chain.commit_statement import evm_address
from assay.chain.state import HotKey
from assay.chain.statements import OPERATOR, VERIFIER, Address, Delegation, sign, term_of
from assay.chain.text.times import time_text, when_text
from assay.participant.keys.keyring import Keys
from assay.participant.telemetry.readings import Holdings
from assay.protocol.errors import AssayError, ConfigError

if TYPE_CHECKING:  # web3 takes a second to import
    from assay.chain.client import Chain, Sent
    from assay.chain.reader import ChainReader
    from assay.participant.config import Participant

log = logging.getLogger(__name__)
DAY_S = 86_400
DAYS_MAX = 366
WARN_S = 14 * DAY_S
LOOK_S = 3_600.0
RETRY_S = 60.0
RENEW_S = 6 * 3_600.0  # between two looks: an endpoint that hides a renewal costs four transactions a day


def delegate(chain: Chain, keys: Keys, days: int, now_s: int) -> tuple[Sent, int]:
    """Let the hot key sign for the account for this many days; returns the transaction and the end.

    Args:
        chain: A client with the account's key.
        keys: The hot key consents.
        days: 0, which ends it, to `DAYS_MAX`; to the end of a UTC day, if the account signs by files.
        now_s: The chain's time.

    Raises:
        ConfigError: too many days, or less than none. ChainRefused: another account has this hot key.
    """
    if not 0 <= days <= DAYS_MAX:
        raise ConfigError(f"{days} days: a delegation lasts 1 to {DAYS_MAX}, and 0 ends it")
    expiry, hot = now_s + days * DAY_S, evm_address(keys.hot_address)
    if keys.signs_by_files:
        expiry = -(-expiry // DAY_S) * DAY_S  # all day long the same, while it is carried to the key
    consent = Delegation(
        deployment_id=chain.deployment.deployment_id,
        account=evm_address(keys.account_address),
        hot_key=hot,
        expiry=expiry,
    )
    return chain.delegate(hot, expiry, sign(consent, chain.deployment.domain(Delegation), keys.hot)), expiry


def delegation_text(hot_address: Address, found: HotKey | None, account: Address, now_s: int) -> str:
    """What a hot key may do, and until when, as text."""
    if found is None:
        return f"{hot_address} is not delegated by any account yet"
    if found.account != account:
        return f"{hot_address} is delegated by {found.account}, NOT by this account"
    if found.is_replaced:
        return f"{hot_address} was REPLACED by another hot key of this account"
    if found.expiry <= now_s:
        return f"{hot_address} EXPIRED {when_text(found.expiry, now_s)}"
    return f"{hot_address} until {when_text(found.expiry, now_s)}"


def delegation_fault(found: HotKey | None, account: Address, until_s: int) -> str | None:
    """Why a hot key cannot sign for an account until this time; None if it can."""
    if found is None:
        return "its hot key is not delegated"
    if found.account != account:
        return f"its hot key signs for {found.account}"
    if found.is_replaced:
        return "its account has delegated to another hot key since"
    if found.expiry <= until_s:
        return f"its hot key's delegation ends {time_text(found.expiry)}, before {time_text(until_s)}"
    return None


class Renewal:
    """Renews a hot key's delegation in its last `WARN_S`, while it is in force and this account's last one.

    What its owner ended, let end or gave to another hot key stays so: a process that was left running with
    old keys would bring a leaked one back.
    """

    def __init__(self, days: int | None) -> None:
        """
        Args:
            days: For which each renewal is; None renews nothing.
        """
        self._days = days
        self._tried_s = -RENEW_S

    def keep(self, chain: Chain, keys: Keys) -> None:
        """Renew the delegation if that is due; blocks until it is mined, and logs what it could not do."""
        if self._days is None or keys.signs_by_files or time.monotonic() < self._tried_s + RENEW_S:
            return
        self._tried_s = time.monotonic()
        try:
            now_s, account = chain.timestamp(), evm_address(keys.account_address)
            found = chain.hot_key(evm_address(keys.hot_address))
            if delegation_fault(found, account, now_s) or not delegation_fault(
                found, account, now_s + WARN_S
            ):
                return
            if chain.in_flight():  # perhaps its end
                return
            _, expiry = delegate(chain, keys, self._days, now_s)
            log.info("delegation renewed", extra={"until": time_text(expiry)})
        except AssayError as error:
            log.warning("delegation not renewed yet", extra={"reason": str(error)})


async def watch_delegation(me: Participant) -> None:
    """Read our stake and our hot key's delegation every hour; renew it or warn while it ends soon."""

    from assay.participant.wallet.claims import open_chain

    renewal = Renewal(me.config.delegation_days)

    def look() -> tuple[str | None, int]:
        chain = open_chain(me)
        renewal.keep(chain, me.keys)
        now_s, hot = chain.timestamp(), evm_address(me.keys.hot_address)
        found = chain.hot_key(hot)
        me.readings.holdings = holdings(chain, me, 0 if found is None else found.expiry)
        left_s = 0 if found is None else found.expiry - now_s
        return delegation_fault(found, evm_address(me.keys.account_address), now_s + WARN_S), left_s

    while True:
        wait_s = LOOK_S
        try:
            fault, left_s = await trio.to_thread.run_sync(look)
            if fault is not None:
                days = max(left_s, 0) // DAY_S
                log.warning("renew: assay key delegate", extra={"reason": fault, "days_left": days})
        except AssayError as error:
            log.debug("delegation not read", extra={"reason": str(error)})
            wait_s = RETRY_S
        await trio.sleep(wait_s)


def holdings(chain: ChainReader, me: Participant, hot_key_expiry: int) -> Holdings:
    """A member's stake, and the lot that backs it: a node's for the run, a verifier's for its term."""
    account, run = evm_address(me.keys.account_address), chain.run(me.run_id)
    is_verifier = me.me in me.spec.seat_peers
    commitment = term_of(chain.set_version_of(me.run_id)) if is_verifier else bytes(me.run_id)
    role = VERIFIER if is_verifier else OPERATOR
    lot = chain.lot_of(account, role, commitment)
    return Holdings(
        stake=chain.stake_of(account, role).active,
        lot=lot.amount,
        lot_until=lot.until,
        needed_until=0 if run is None else run.deadline,
        hot_key_expiry=hot_key_expiry,
    )
