"""Successor: a buyer ends a run that stopped, and has another committee train what is left of it.

Room: cli (edge). What the run certified is bundle/successor.py's; the transactions are those of money.py.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from assay.bundle.follow import Followed
from assay.bundle.successor import START_WITHIN_S, Stop, stop_of, successor_spec, write_start
from assay.chain.statements import address_of
from assay.cli.account.spending import account_of
from assay.cli.orders.money import cancel_steps, known_records, opened_steps, refund_steps
from assay.cli.result import Step, done, told
from assay.orders.place import of_role
from assay.orders.price.quote import Quote, terms_of
from assay.orders.purchase import need_escrow
from assay.participant.files.record import Role
from assay.participant.files.run_file import RunFile, run_file_of
from assay.participant.wallet.account import Account
from assay.protocol.errors import ConfigError, NotYet
from assay.protocol.types import Address, Digest
from assay.training.model.initial import BASE


def continue_steps(
    file: Path,
    stopped: Path,
    copies: Sequence[Path],
    members: Path | None,
    *,
    round_id: int | None,
    days: int,
    is_dry: bool,
) -> Iterator[Step]:
    """End a run that stopped, and open its successor, or find it open.

    Args:
        file: The buyer's configuration for the successor.
        stopped: Its configuration of the run that stopped.
        copies: Folders with more of that run's chain than the buyer's own, if there are any.
        members: Folder of the members' records; not needed where the successor's run file is there already.
        round_id: The round to go back to; None: the last one that was certified.
        days: Until the successor closes by itself.
        is_dry: Send and write nothing.

    Raises:
        ConfigError: a file, a member or the contracts do not fit. IntegrityError: a copy is false.
        ChainRefused: the escrow refused.
    """
    former, account = account_of(stopped), account_of(file)
    found = [Followed(folder).read() for folder in (stopped.parent, *copies)]
    if any(one.run_id != former.run_id for one in found):
        raise ConfigError(f"{copies}: of another run than {stopped}, {former.run_id.hex()[:16]}")
    if account.run is not None and account.spec.predecessor.run_id != former.run_id:
        raise ConfigError(f"{account.config.run}: of a run that does not continue {former.run_id.hex()[:16]}")
    stop = stop_of(found, _last_round(account, former, round_id))
    at = f"after round {stop.round} of {stop.spec.rounds}, manifest {stop.predecessor.manifest.hex()[:16]}"
    yield told("continue", f"continue  run {former.run_id.hex()[:16]} {at}")
    escrow = need_escrow(former)
    yield from cancel_steps(stopped, is_dry=is_dry)
    if escrow.is_closed:
        try:
            yield from refund_steps(stopped, is_dry=is_dry)
        except NotYet as error:
            yield told("refund", f"refund    not yet: {error}")
    is_made = account.run is None
    if is_made:
        account = replace(account, run=_successor(account, stop, members))
    if not is_dry:
        write_start(stop, account.config.data)
        yield done(
            "start", f"start     {account.config.data / BASE}: every participant needs what is new there"
        )
    spec = account.spec
    quote = Quote(
        terms=terms_of(spec),
        budget=spec.price,
        epoch_cap=spec.epoch_price(0),
        lot=escrow.run.lot,
        start_within_s=START_WITHIN_S if spec.start_by_s else 0,
    )
    yield from opened_steps(account, quote, days, is_made=is_made, is_dry=is_dry)


def _last_round(account: Account, former: Account, round_id: int | None) -> int | None:
    """The round of the stopped run that the successor continues, as its file says if there is one."""
    if account.run is None:
        return round_id
    return account.spec.predecessor.rounds - 1 - former.spec.predecessor.rounds


def _successor(account: Account, stop: Stop, members: Path | None) -> RunFile:
    """The run that continues a stopped one, with everybody whose record is in a folder, and the buyer."""
    now_s = int(time.time())
    found = known_records(account, members, now_s)
    ledgers = of_role(found, Role.LEDGER)
    if len(ledgers) != 1:
        raise ConfigError(f"records of {len(ledgers)} ledger services, expected 1")
    spec = successor_spec(
        stop,
        deployment_id=Digest(account.deployment.deployment_id),
        buyer=Address(account.keys.account_address),
        buyer_key=Address(bytes.fromhex(address_of(account.keys.buyer_key)[2:])),
        treasury=Address(ledgers[0].record.account),
        nodes=[one.record.member for one in of_role(found, Role.NODE)],
        verifiers=[one.record.member for one in of_role(found, Role.VERIFIER)],
        now_s=now_s,
    )
    return run_file_of(spec, found, account.keys.buyer_key)
