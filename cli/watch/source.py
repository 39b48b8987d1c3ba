"""Source: reads what the processes of a run keep and publish, without disturbing them.

Room: cli (edge: files and, now and then, the chain). The manifests come from a participant's store, which is
only read, and round trips from beside it; events of money from a ledger service's status file; escrow and
stakes from the run's endpoint.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from assay.cli.process import read_process_file
from assay.cli.watch.picture import Chronicle, MoneyView, Picture
from assay.devnet.lines import event_line
from assay.ledger.queries.report import RoundFigures, SettledFigures
from assay.observer.ledger_service.status import (
    LEDGER_SERVICE,
    AgreementReport,
    RefundDue,
    SlashReport,
    Tail,
)
from assay.participant.config import read_run
from assay.participant.files.record import OWN_RECORD, Role, read_record
from assay.participant.store import read_link_bodies
from assay.participant.telemetry.round_trips import FILE, read_round_trips
from assay.protocol.encoding.codec import decode
from assay.protocol.errors import AssayError, ConfigError, Unavailable
from assay.protocol.messages import CertifiedManifest
from assay.protocol.types import PeerId

if TYPE_CHECKING:
    from assay.chain.reader import ChainReader

ASK_CHAIN_S = 15.0
LOCAL_LEDGER = Path("participants/ledger/config.toml")


class Source:
    """One run, as one of its participants knows it."""

    def __init__(self, what: Path) -> None:
        """Find the run.

        Args:
            what: A participant's configuration, or the folder of a local network.

        Raises:
            ConfigError: it is neither, or a file that it names is missing.
        """
        is_network = what.is_dir()
        file = what / LOCAL_LEDGER if is_network else what
        if is_network and not file.is_file():
            raise ConfigError(
                f"{what}: no local network here, and no configuration: expected FILE.toml or RUN"
            )
        config, given = read_process_file(file)
        run, self._deployment = read_run(config)
        self._config, self._spec = config, run.spec
        record = read_record(config.keys / OWN_RECORD, int(time.time())).record
        is_member = record.role in (Role.NODE, Role.VERIFIER)
        self.me: PeerId | None = record.peer if is_member and not is_network else None
        self._chronicle = Chronicle(run.spec, run.run_id)
        self._store = config.folder / "store.db"
        status = given.status or Path("status.jsonl")
        self._status = Tail(file.parent / status, LEDGER_SERVICE) if record.role is Role.LEDGER else None
        self._money = MoneyView()
        self._asked_at: float | None = None
        self._reader: ChainReader | None = None

    def read(self) -> Picture:
        """The run as it is now; asks the chain only every `ASK_CHAIN_S`.

        Raises:
            Unavailable: the store cannot be read now.
            AssayError: a manifest in it is invalid.
        """
        if self._store.is_file():
            for body in read_link_bodies(self._store, int(self._chronicle.state.round)):
                self._chronicle.add(decode(CertifiedManifest, body))
        self._read_status()
        now = time.monotonic()
        if self._asked_at is None or now - self._asked_at >= ASK_CHAIN_S:
            self._ask_chain()
            self._asked_at = time.monotonic()
        trips = read_round_trips(self._config.folder / FILE, time.time())
        return self._chronicle.picture(self.me, self._money, trips)

    def _read_status(self) -> None:
        for report in () if self._status is None else self._status.news():
            match report:
                case None | AgreementReport() | SettledFigures() | RefundDue():
                    pass
                case RoundFigures():
                    self._escrow(report.escrow)
                case _:
                    self._chronicle.tell(event_line(report), is_alarm=isinstance(report, SlashReport))

    def _escrow(self, left: int) -> None:
        """The books' own figure, where the chain is away."""
        if self._reader is None:
            budget = max(left, self._money.budget or 0)
            self._money = replace(self._money, budget=budget, spent=budget - left)

    def _ask_chain(self) -> None:
        from assay.chain.commit_statement import evm_address
        from assay.chain.reader import ChainReader  # importing web3 takes a second
        from assay.chain.statements import OPERATOR, VERIFIER

        state = self._chronicle.state
        try:
            if self._reader is None:
                reader = ChainReader(self._config.rpc_url, self._deployment)
                reader.check_deployment()
                self._reader = reader
            escrow = self._reader.run(state.run_id)
            members = [
                *((record.member, OPERATOR) for record in state.nodes.values()),
                *((member, VERIFIER) for member in self._spec.judges),
            ]
            stakes = {
                member.peer: self._reader.stake_of(evm_address(member.account), role).active
                for member, role in members
                if self.me in (None, member.peer)
            }
        except Unavailable:
            self._money = replace(self._money, note="the chain does not answer")
        except AssayError as error:
            self._money = replace(self._money, note=str(error))
        else:
            budget, spent = (None, None) if escrow is None else (escrow.budget, escrow.paid + escrow.reserved)
            self._money = MoneyView(budget=budget, spent=spent, stakes=stakes)
