"""Follow: reads a run that is still going on from the folder of a participant, which writes to it meanwhile.

Room: bundle (edge: reads a folder). The value is that of `bundle/read.py`, as far as the run has got, and
each manifest passes the same checks. Of the participant's files only its run file is trusted, whose spec
gives the run id. Who is no participant fetches such a folder: `bundle/observe.py`.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

from pydantic import BaseModel

from assay.bundle.read import BUNDLE, Delivered, Held, extended, link_name, read, read_terms
from assay.chain.addresses import Deployment
from assay.ledger.settlement.payouts import settle
from assay.ledger.settlement.results import run_id_of
from assay.orders.toml import read_tables
from assay.participant.files.invitation import read_invitation
from assay.participant.files.run_file import read_run_file, read_run_id
from assay.participant.store import read_link_bodies
from assay.participant.telemetry import round_trips
from assay.participant.telemetry.round_trips import RoundTrips, read_round_trips
from assay.protocol.errors import ConfigError, Unavailable
from assay.protocol.params import RunSpec
from assay.protocol.run_state import start

CONFIG, STORE, BLOBS = "config.toml", "store.db", "blobs"
OBSERVED = "observed"  # folder of a run that is fetched while it goes on, laid out as its bundle will be
LOCAL = Path("participants") / "buyer"  # of a local network: the participant that keeps all updates
LINKS_AT_ONCE = 64  # read in one transaction


class _Paths(BaseModel):
    """The keys of a participant's file that lead to its run; relative to the file."""

    network: Path
    run: Path = Path("run.assay")
    folder: Path = Path(".")
    data: Path = Path("data")
    limits: Path | None = None


def read_any(root: Path) -> Delivered:
    """A delivered run, or in a participant's or a local network's folder the run as far as it has got.

    Raises:
        ConfigError, IntegrityError, Unavailable: as `read` and `Followed` raise them.
    """
    return read(root) if (root / BUNDLE).is_dir() else Followed(root).read()


class Followed:
    """A run that is followed. Each `read` goes on where the last one stopped and checks only what is new.

    is_behind: whether the last one stopped for its time, though more may be there.
    """

    def __init__(self, root: Path) -> None:
        """Find the run in the folder of a participant, of a local network, or of a fetch that goes on.

        Its chain is not read yet.

        Raises:
            ConfigError: this is no such folder, or its run file or invitation is damaged.
            IntegrityError: the fetched spec is damaged.
        """
        folder = next((one for one in (root, root / LOCAL) if (one / CONFIG).is_file()), None)
        bundle, held = root / OBSERVED, None
        self._round_trips: Path | None = None
        if folder is not None:
            spec, deployment, held = _participants(folder)
            self._place, self._bodies = STORE, partial(_stored, held.store)
            self._round_trips = held.store.with_name(round_trips.FILE)
        elif bundle.is_dir():
            spec, deployment = read_terms(root, OBSERVED)
            self._place, self._bodies = OBSERVED, partial(_fetched, bundle)
        else:
            raise ConfigError(
                f"{root}: no delivered run, expected a folder with `bundle`, `{OBSERVED}` or `{CONFIG}` in it"
            )
        run_id = run_id_of(spec)
        self.is_behind = False
        self._known = Delivered(
            root=root,
            bundle=bundle,
            spec=spec,
            run_id=run_id,
            deployment=deployment,
            links=(),
            run_states=(start(spec, run_id),),
            tables={},
            settled={},
            sizes={},
            report=None,
            is_followed=True,
            held=held,
        )

    def round_trips(self, now_s: float) -> RoundTrips | None:
        """What the participant measured lately; None where it does not run, or this is no participant's."""
        return None if self._round_trips is None else read_round_trips(self._round_trips, now_s)

    def read(self, fold_s: float = math.inf) -> Delivered:
        """The run as far as it has got; the same value as before if nothing was added.

        Args:
            fold_s: Seconds after which it stops with the manifests of one transaction, the rest is left.

        Raises:
            IntegrityError: a stored manifest is damaged or not what a quorum signed.
            Unavailable: the store cannot be read now.
        """
        links, run_states = list(self._known.links), list(self._known.run_states)
        ends_s, self.is_behind = time.monotonic() + fold_s, False
        while True:
            bodies = self._bodies(len(links), LINKS_AT_ONCE)
            for body in bodies:
                name = f"{self._place}: round {len(links)}"
                link, run_state = extended(run_states[-1], name, body, "the run file")
                links.append(link)
                run_states.append(run_state)
            if len(bodies) < LINKS_AT_ONCE:
                break
            self.is_behind = time.monotonic() >= ends_s
            if self.is_behind:
                break
        if len(links) > len(self._known.links):
            tables = dict(self._known.tables)
            for at in range(len(self._known.links), len(links)):
                epoch = run_states[at + 1].calendar.ripe_at(at)
                if epoch is not None:
                    tables[epoch] = settle(run_states[at + 1], epoch)
            self._known = replace(
                self._known, links=tuple(links), run_states=tuple(run_states), tables=tables
            )
        return self._known


def _participants(folder: Path) -> tuple[RunSpec, Deployment, Held]:
    """The run of a participant: spec, deployment, and where its parts are kept.

    Raises:
        ConfigError: a file is damaged, or the run is for another deployment than the network.
    """
    paths = read_tables(folder / CONFIG, _Paths)
    run_id = read_run_id(str(paths.run))
    run = read_run_file(folder / (paths.run if run_id is None else f"{run_id.hex()}.assay"), int(time.time()))
    deployment = read_invitation(folder / paths.network).deployment
    if run.spec.deployment_id != deployment.deployment_id:
        raise ConfigError(f"{folder / CONFIG}: its run is for another deployment than its network")
    held = Held(
        store=folder / paths.folder / STORE,
        blobs=folder / paths.folder / BLOBS,
        data=folder / paths.data,
        limits=None if paths.limits is None else folder / paths.limits,
    )
    return run.spec, deployment, held


def _stored(store: Path, first: int, count: int) -> list[bytes]:
    """Encoded manifests from round `first` on; none before the participant has first started."""
    return read_link_bodies(store, first, count) if store.exists() else []


def _fetched(bundle: Path, first: int, count: int) -> list[bytes]:
    """The same of a run that is being fetched."""
    found = list[bytes]()
    for number in range(first, first + count):
        try:
            found.append((bundle / link_name(number)).read_bytes())
        except FileNotFoundError:
            break
        except OSError as cause:
            raise Unavailable(f"{bundle / link_name(number)}: {cause.strerror}") from None
    return found
