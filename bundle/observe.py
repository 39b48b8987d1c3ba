"""Observe: copies a run while it goes on from web servers that nobody trusts, and then as it is delivered.

Room: bundle (edge: HTTP, files). Takes no key and no connection to a participant: an explorer that follows
the run serves its chain, and the updates and aggregates that this names, under the names that they will have
in the bundle. The run id names the spec, and this the verifiers; a manifest counts if a quorum of them signed
it to follow the last one, an update or an aggregate if it has its digest.

    spec --> manifest of the next round --> its updates and aggregate --.--> the buyer's index: `fetch`
                        ^-----------------------------------------------'
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from assay.bundle.fetch import Client, Fetched, Part, fetch, find_index
from assay.bundle.follow import OBSERVED
from assay.bundle.read import BUNDLE, extended, link_name, opening_name, read_terms
from assay.ledger.settlement.results import run_id_of
from assay.participant.files.index import IntegrityError
from assay.participant.openings import named_openings
from assay.protocol.encoding.blob import CHUNK_BYTES, ChunkList
from assay.protocol.encoding.codec import decode, encode
from assay.protocol.errors import AssayError, ConfigError, MalformedMessage, Unavailable
from assay.protocol.messages import CertifiedManifest
from assay.protocol.params import RunSpec
from assay.protocol.run_state import RunState, start
from assay.protocol.types import NO_DIGEST, Digest
from assay.training.codec.contribution import aggregate_bytes_max
from assay.training.layout import layout_of

_TERMS = ("spec.cbor", "deployment.json")
FILE_BYTES_MAX = 64 << 20  # of the spec, or of a certified manifest
OPENING_TRIES_MAX = 100  # looks at sources that lack an opening


def observe(
    sources: Sequence[str],
    run_id: Digest,
    folder: Path | None = None,
    *,
    part: Part = Part.ALL,
    openings: bool = False,
    bytes_max: int = 100 << 30,
    pause: Callable[[], None],
    on_round: Callable[[int], None] = lambda _: None,
    on_slow: Callable[[str], None] = lambda _: None,
    is_public: bool = False,
) -> Fetched:
    """Follow a run into a folder until its buyer has delivered it, and fetch this.

    Until then `bundle/follow.py` reads the folder. Started again, it goes on where it was.

    Args:
        sources: Addresses as those of `fetch`, of explorers that follow the run.
        run_id: The run, whose buyer has signed nothing yet that tells it from a made-up one.
        folder: Where it is to lie; None: in `runs`, by its id.
        part: Updates and aggregates are fetched for `Part.ALL` alone.
        openings: Whether with the openings of drawn steps, as far as a source has them; none is waited for.
        bytes_max: As that of `fetch`, before the delivery and once more after it.
        pause: Called when no source has more yet.
        on_round: Called with each round whose manifest, and bytes, are here.
        on_slow, is_public: As those of `fetch`.

    Raises:
        ConfigError: an address, or a folder with another run.
        IntegrityError: a source has what the run's verifiers did not sign, and no other what they did.
        Unavailable: no source has the run at the first look; with what each answered.
    """
    client = Client(sources, bytes_max, on_slow=on_slow, is_public=is_public)
    folder = folder or Path("runs") / run_id.hex()[:16]
    if not (folder / BUNDLE).exists():
        run_state = start(_begun(client, folder, run_id), run_id)
        wanted = Openings(client, folder, run_state.spec) if openings else None
        _follow(client, folder, run_state, part, pause, on_round, wanted)
        os.replace(folder / OBSERVED, folder / BUNDLE)
    return fetch(
        client.sources,
        folder,
        part=part,
        openings=openings,
        run_id=run_id,
        bytes_max=bytes_max,
        on_slow=on_slow,
        is_public=is_public,
    )


def _follow(
    client: Client,
    folder: Path,
    run_state: RunState,
    part: Part,
    pause: Callable[[], None],
    on_round: Callable[[int], None],
    openings: Openings | None,
) -> None:
    """Return once the run is delivered."""
    while True:
        try:
            run_state = _grown(client, folder, run_state, part)
            on_round(int(run_state.round) - 1)
            if openings is not None:
                openings.want(run_state)
        except Unavailable:
            if openings is not None:
                openings.fetch()
            if _is_delivered(client, run_state.run_id):
                return
            pause()


class Openings:
    """Openings that a followed run's chain names: what sources lack now is asked for again, for a while.

    The one that a step's commit binds is told from another by who reads it: `bundle/replay/step.py`.
    """

    def __init__(self, client: Client, folder: Path, spec: RunSpec) -> None:
        from assay.verifier.audit.messages import longest_opening  # a second, which other fetches save

        self._client, self._folder, self._size_max = client, folder, longest_opening(spec)
        self._wanted: dict[Digest, int] = {}  # sizes
        self._tries = Counter[Digest]()

    def want(self, run_state: RunState) -> None:
        """Note what audits name that ended by the last manifest."""
        ended = (one for one in run_state.audits.values() if one.closed_round == int(run_state.round) - 1)
        for named in named_openings(ended).values():
            is_here = (self._folder / opening_name(named.opening)).is_file()
            if not is_here and named.size <= self._size_max:
                self._wanted[named.opening] = named.size

    def fetch(self) -> None:
        """Ask all sources once for each that is wanted."""
        for opening, size in list(self._wanted.items()):
            try:
                self._client.file(opening_name(opening), _has(opening), self._folder, size_max=size)
            except (IntegrityError, Unavailable):  # a lying verifier names what nobody has
                self._tries[opening] += 1
                if self._tries[opening] < OPENING_TRIES_MAX:
                    continue
            del self._wanted[opening]


def _begun(client: Client, folder: Path, run_id: Digest) -> RunSpec:
    """The run's spec; it lies in the folder then, with its deployment."""
    observed, faults = folder / OBSERVED, list[str]()
    for source in () if observed.is_dir() else client.sources:
        try:
            bodies = [client.small(source, f"{BUNDLE}/{name}", FILE_BYTES_MAX) for name in _TERMS]
            found = run_id_of(decode(RunSpec, bodies[0]))
            if found != run_id:
                raise IntegrityError(f"run {found.hex()}")
            partial = observed.with_name(f"{OBSERVED}.partial")
            partial.mkdir(parents=True, exist_ok=True)
            for name, body in zip(_TERMS, bodies, strict=True):
                (partial / name).write_bytes(body)
            read_terms(folder, partial.name)  # before it stays
        except (IntegrityError, MalformedMessage, Unavailable) as error:
            faults.append(f"{source}: {error}")
            continue
        os.replace(partial, observed)
        break
    if not observed.is_dir():
        raise Unavailable(f"run {run_id.hex()}: no source has it: {'; '.join(faults)}")
    spec, _ = read_terms(folder, OBSERVED)
    if run_id_of(spec) != run_id:
        raise ConfigError(f"{folder}: has run {run_id_of(spec).hex()}, expected {run_id.hex()}")
    return spec


def _grown(client: Client, folder: Path, run_state: RunState, part: Part) -> RunState:
    """The state after the next manifest, once it and the bytes that it names are here.

    Raises:
        IntegrityError: a source has a wrong one, and none the right one.
        Unavailable: no source has it yet.
    """
    name = link_name(int(run_state.round))
    path = folder / OBSERVED / name
    if path.exists():
        with suppress(IntegrityError):  # a crash, or a disk, may have left something else: it comes again
            return extended(run_state, name, path.read_bytes(), "spec.cbor")[1]
    link, after = _next(client, run_state, name)
    if part is Part.ALL:
        for blob, place, size_max in _blobs(link, run_state.spec):
            is_right, kept = _has(blob), f"{OBSERVED}/{place}"
            if not ((folder / kept).is_file() and is_right(folder / kept)):
                client.file(f"{BUNDLE}/{place}", is_right, folder, kept_as=kept, size_max=size_max)
    path.parent.mkdir(exist_ok=True)
    whole = path.with_suffix(".partial")
    whole.write_bytes(encode(link))
    whole.replace(path)  # last: what is followed is complete
    return after


def _next(client: Client, run_state: RunState, name: str) -> tuple[CertifiedManifest, RunState]:
    faults: list[AssayError] = []
    for source in client.sources:
        try:
            body = client.small(source, f"{BUNDLE}/{name}", FILE_BYTES_MAX)
            return extended(run_state, f"{source}{BUNDLE}/{name}", body, f"{BUNDLE}/spec.cbor")
        except (IntegrityError, Unavailable) as error:
            faults.append(error)
    raise client.fault(faults)


def _blobs(link: CertifiedManifest, spec: RunSpec) -> list[tuple[Digest, str, int]]:
    """The bytes that a manifest names, their files in a bundle, and the most bytes that each has."""
    commits, aggregate = (one.commit for one in link.manifest.commits), link.manifest.aggregate
    found = [(one.update, f"updates/{one.update.hex()}.bin", one.update_bytes) for one in commits]
    if aggregate != NO_DIGEST:
        size_max = aggregate_bytes_max(spec, layout_of(spec.model).blocks)
        found.append((aggregate, f"aggregates/{aggregate.hex()}.bin", size_max))
    return found


def _has(blob: Digest) -> Callable[[Path], bool]:
    def is_right(path: Path) -> bool:
        with open(path, "rb") as file:
            chunks = iter(lambda: file.read(CHUNK_BYTES), b"")
            hashes = tuple(hashlib.sha256(chunk).digest() for chunk in chunks)
            return ChunkList(size=file.tell(), hashes=hashes).digest() == blob

    return is_right


def _is_delivered(client: Client, run_id: Digest) -> bool:
    """Whether a source has the index that the buyer signed."""
    try:
        find_index(client, run_id)
    except (IntegrityError, Unavailable):
        return False
    return True
