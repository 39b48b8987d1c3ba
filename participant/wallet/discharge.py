"""Discharge: gets the lot of a node that left its run back while the run goes on.

Room: participant (edge: host, one file, the chain in threads). The contract's rule is `SlashCourt.discharge`,
the verifiers' is `protocol.membership.bound_by`.

    left, drained --a quorum's signatures--> certificate, in a file --transaction--> a window later: free

With the file `assay stake release` sends what the node's process could not, once that has ended.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from assay.chain.commit_statement import evm_address
from assay.chain.statements import MEMBERS_MAX, OPERATOR, SIGNATURE_BYTES
from assay.chain.text.times import when_text
from assay.network.host import Host
from assay.participant.config import Participant
from assay.participant.wallet.certificates import certified_discharge
from assay.participant.wallet.claims import open_chain
from assay.participant.wallet.judges import read_judges
from assay.protocol.errors import AssayError, ConfigError

if TYPE_CHECKING:  # web3 takes a second to import
    from assay.chain.client import Chain, Sent
    from assay.chain.reader import ChainReader

log = logging.getLogger(__name__)
FILE = "discharge"  # in the node's folder: a quorum's signatures on the discharge of its lot
TRIES_S = 600.0  # for which a node that left waits for its discharge before its process ends without one
RETRY_S = 3.0
NOT_DISCHARGED = "bound until the run is over"  # the lot of a node that left and was not discharged


async def discharge(me: Participant, host: Host) -> str:
    """Have our lot discharged, unless it is bound to nothing any more; says what becomes of it, in words.

    Tried again for `TRIES_S`, as verifiers may be behind, or the chain away. Repeating it changes nothing.
    """
    reason = ""
    with trio.move_on_after(TRIES_S):
        while True:
            try:
                return await _discharge(me, host)
            except AssayError as error:
                if reason != str(error):  # once, not every three seconds
                    reason = str(error)
                    log.warning("not discharged yet", extra={"reason": reason})
                await trio.sleep(RETRY_S)
    return f"{NOT_DISCHARGED}: start this process again to ask for its discharge once more"


async def _discharge(me: Participant, host: Host) -> str:
    run_sync = trio.to_thread.run_sync
    chain = await run_sync(open_chain, me)
    account, run_id = evm_address(me.keys.account_address), bytes(me.run_id)
    if not await run_sync(is_bound, chain, account, run_id):
        return await run_sync(lot_text, chain, account, run_id)
    judges = await run_sync(read_judges, chain, me.spec, me.run_id)
    cert = await certified_discharge(me, host, judges)
    try:
        await run_sync((me.config.folder / FILE).write_bytes, cert)
    except OSError as error:  # a full disk costs the way by hand, not the discharge
        log.error("certificate not kept", extra={"reason": error.strerror})
    if me.keys.signs_by_files:
        return f"{NOT_DISCHARGED}, unless its discharge is sent by hand: assay stake release"
    await run_sync(chain.discharge, account, run_id, cert)
    return await run_sync(lot_text, chain, account, run_id)


def is_bound(chain: ChainReader, account: str, run_id: bytes) -> bool:
    """Whether an operator has a lot for this run that a discharge would free sooner."""
    lot = chain.lot_of(account, OPERATOR, run_id)
    window_from = chain.release_at(lot, OPERATOR, run_id) - chain.evidence_window()
    return lot.until > 0 and window_from > chain.timestamp()


def read_certificate(folder: Path) -> bytes | None:
    """The certificate of a discharge that a node's process has kept; None without one.

    Raises:
        ConfigError: the file cannot be read, or holds no certificate.
    """
    file = folder / FILE
    try:
        with file.open("rb") as opened:
            cert = opened.read(MEMBERS_MAX * SIGNATURE_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read ({error.strerror})") from None
    if not cert or len(cert) % SIGNATURE_BYTES or len(cert) > MEMBERS_MAX * SIGNATURE_BYTES:
        expected = f"1 to {MEMBERS_MAX} signatures of {SIGNATURE_BYTES}"
        raise ConfigError(f"{file}: {len(cert)} bytes, expected {expected}: remove it")
    return cert


def send_discharge(chain: Chain, folder: Path, run_id: bytes) -> Sent | None:
    """Send the discharge that our node's process has kept; None where none would free our lot sooner.

    Args:
        chain: Of the account that has the lot.
        folder: The node's.
        run_id: The run that it has left.

    Raises:
        ConfigError: the kept certificate is damaged. ChainRefused: it is out of date.
    """
    cert = read_certificate(folder)
    if cert is None or not is_bound(chain, chain.address, run_id):
        return None
    return chain.discharge(chain.address, run_id, cert)


def lot_text(chain: ChainReader, account: str, run_id: bytes) -> str:
    """From when an operator's lot for a run can be released, as far as is known now."""
    lot = chain.lot_of(account, OPERATOR, run_id)
    if not lot.until:
        return "free"
    when = when_text(chain.release_at(lot, OPERATOR, run_id), chain.timestamp())
    held = f", once {lot.cases} cases about it have ended" if lot.cases else ""
    return f"free from {when}{held}: assay stake release"
