"""Fetch: copies a delivered run, or the parts of it that are wanted, from web servers that nobody trusts.

Room: bundle (edge: HTTP, files). A source is any address under which a run's folder is served as it is: an
explorer, a static web server, an object store. The index names every file by its SHA-256 and is signed by the
buyer, whom the spec names, whose digest the run id names. So any holder will do: a file that one source lacks
or falsifies comes from the next, and a fetch that was stopped goes on where it was.
"""

from __future__ import annotations

import enum
import hashlib
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock, local
from urllib.parse import quote, urlsplit

import requests
from urllib3.exceptions import HTTPError

from assay.bundle.read import BUNDLE
from assay.bundle.steady import TooSlow, pieces, steady_session
from assay.chain.commit_statement import evm_address
from assay.ledger.settlement.results import run_id_of
from assay.participant.files.index import (
    INDEX,
    OPENINGS,
    PARTICIPANTS,
    Index,
    IntegrityError,
    read_index,
    signer_text,
)
from assay.protocol.encoding.codec import decode
from assay.protocol.errors import AssayError, ConfigError, Unavailable
from assay.protocol.params import RunSpec
from assay.protocol.types import Digest

SPEC = f"{BUNDLE}/spec.cbor"
INDEX_BYTES_MAX = 64 << 20
SPEC_BYTES_MAX = 4 << 20
PARTIAL = ".fetch"  # folder of what is being fetched, under the fetched one
AT_ONCE = 4  # requests
ANSWER_S_MAX = 30  # to connect, and between two pieces of an answer
PIECE_BYTES = 1 << 16  # what an answer is written in
_NO_PROOF = ("updates/", "aggregates/", "model/", "adapter/", "base.npy", "outer.npy")
_NO_MODEL = ("updates/", "aggregates/", "base.npy", "outer.npy")


class Part(str, enum.Enum):
    """How much of a run is fetched."""

    PROOF = "proof"  # spec, certified chain, receipts, settlements, registry: no updates and no weights
    MODEL = "model"  # the same with the model
    ALL = "all"  # everything, from which the weights can be recomputed

    def has(self, name: str, *, openings: bool = False) -> bool:
        """Whether this file of a delivered run belongs to the part; openings only if they are asked for."""
        if name.startswith(f"{PARTICIPANTS}/"):
            return False
        if name.startswith(f"{OPENINGS}/"):
            return openings
        if self is Part.ALL:
            return True
        left_out = _NO_PROOF if self is Part.PROOF else _NO_MODEL
        folder, _, rest = name.partition("/")
        return folder == BUNDLE and not rest.startswith(left_out)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a fetch is. files: of the part, in all."""

    files: int
    files_done: int
    bytes_fetched: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """What was fetched. files_kept: those that were there before. signed_by: as `Verified.signed_by`."""

    run_id: Digest
    buyer: str
    signed_by: str
    folder: str
    part: Part
    files: int
    files_kept: int
    bytes_fetched: int


def fetch(
    sources: Sequence[str],
    folder: Path | None = None,
    *,
    part: Part = Part.ALL,
    openings: bool = False,
    run_id: Digest | None = None,
    bytes_max: int = 100 << 30,
    on_progress: Callable[[Progress], None] = lambda _: None,
    on_slow: Callable[[str], None] = lambda _: None,
    is_public: bool = False,
) -> Fetched:
    """Fetch a part of a delivered run into a folder; every file in it is then as the buyer signed it.

    Files that are there and right are kept, others are fetched, a broken one from where it broke off.

    Args:
        sources: Addresses under which the run's `index.json` lies, in the order in which they are asked.
        folder: Where the run is to lie, perhaps with an earlier fetch of it; None: in `runs`, by its id.
        part: How much of it.
        openings: Whether with the openings of drawn steps, of a small model more than all the rest.
        run_id: The run that is expected; None takes the one that the first source has.
        bytes_max: The fetch ends before it has received more; each source may send an equal share of it, and
            what is left of others' from which no file came, once a file can be had in no other way.
        on_progress: Called after each file.
        on_slow: Told of each source that sends too slowly, or has sent its share: the next one is asked then.
        is_public: Whether strangers named the sources, so that none may lead into the reader's own network.

    Raises:
        ConfigError: an address, or a folder with another run; or all sources have sent their share.
        IntegrityError: no source has an index that the run's buyer signed, or a file that it lists.
        Unavailable: a source does not answer, and no other has the file.
    """
    client = Client(sources, bytes_max, on_slow=on_slow, is_public=is_public, gives_back=True)
    text, spec = find_index(client, run_id)
    index, found_id = read_index(text), run_id_of(spec)
    folder = folder or Path("runs") / found_id.hex()[:16]
    names = sorted(name for name in index.files if part.has(name, openings=openings))
    begun = folder / PARTIAL / INDEX  # until all files are here: an index says that its run is delivered
    for path in (folder / INDEX, begun):
        if path.exists() and path.read_bytes() != text:
            raise ConfigError(f"{path}: of another run, or of this one as another buyer signed it")
    begun.parent.mkdir(parents=True, exist_ok=True)
    begun.write_bytes(text)
    kept = done = 0
    lock = Lock()

    def one(name: str) -> None:
        nonlocal kept, done
        is_kept = _sha256(folder / name) == index.files[name]
        if not is_kept:
            client.file(name, lambda path: _sha256(path) == index.files[name], folder)
        with lock:
            kept, done = kept + is_kept, done + 1
            on_progress(Progress(files=len(names), files_done=done, bytes_fetched=client.received))

    with ThreadPoolExecutor(AT_ONCE) as pool:
        futures = [pool.submit(one, name) for name in names]
        try:
            for future in futures:
                future.result()
        finally:  # after the first error, or Ctrl-C, nothing more is begun
            pool.shutdown(cancel_futures=True)
    begun.replace(folder / INDEX)
    shutil.rmtree(folder / PARTIAL, ignore_errors=True)
    return Fetched(
        run_id=found_id,
        buyer=evm_address(spec.buyer),
        signed_by=index.signer,
        folder=str(folder),
        part=part,
        files=len(names),
        files_kept=kept,
        bytes_fetched=client.received,
    )


def find_index(client: Client, run_id: Digest | None) -> tuple[bytes, RunSpec]:
    """The index and the spec of the first source that has both of one run, and of the expected one.

    Raises:
        IntegrityError: no source has.
        ConfigError: all have sent their shares.
    """
    faults: list[str] = []
    for source in client.in_turn():
        try:
            text = client.small(source, INDEX, INDEX_BYTES_MAX)
            index, body = read_index(text), client.small(source, SPEC, SPEC_BYTES_MAX)
            spec = _spec(index, body)
            if run_id is not None and run_id_of(spec) != run_id:
                raise IntegrityError(f"{INDEX}: of run {run_id_of(spec).hex()}, expected {run_id.hex()}")
        except (IntegrityError, Unavailable) as error:
            faults.append(f"{source}{error}" if isinstance(error, IntegrityError) else str(error))
            continue
        return text, spec
    raise client.spent() or IntegrityError("; ".join(faults))


def _spec(index: Index, body: bytes) -> RunSpec:
    if hashlib.sha256(body).hexdigest() != index.files.get(SPEC):
        raise IntegrityError(f"{SPEC}: not the one in the index")
    try:
        spec = decode(RunSpec, body)
    except AssayError as error:
        raise IntegrityError(f"{SPEC}: {error}") from None
    buyer, signer = evm_address(spec.buyer), evm_address(spec.signer)
    if index.signer != signer:
        raise IntegrityError(f"{INDEX}: signed by {index.signer}, not by {signer_text(buyer, signer)}")
    return spec


class Client:
    """Requests to sources that may be slow, lie, or send without end."""

    def __init__(
        self,
        sources: Sequence[str],
        bytes_max: int,
        *,
        on_slow: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
        is_public: bool = False,
        gives_back: bool = False,
    ) -> None:
        """Nothing is asked for yet.

        Args:
            sources: See `fetch`.
            bytes_max: No more are received in all, and from each source no more than its share.
            on_slow: Told of each source that sends too slowly, or has sent its share, in a line.
            clock: Seconds.
            is_public: See `fetch`.
            gives_back: Whether what no source has ends the fetch: a source may lack it for now otherwise.

        Raises:
            ConfigError: a source is no address.
        """
        self.sources, self.received = list(dict.fromkeys(map(_address, sources))), 0
        self._bytes_max, self._lock, self._local = bytes_max, Lock(), local()
        self._share = dict.fromkeys(self.sources, bytes_max // len(self.sources))
        self._sent = dict.fromkeys(self.sources, 0)
        self._answered, self._useful = set[str](), set[str]()
        self._on_slow, self._clock, self._is_public, self._gives_back = on_slow, clock, is_public, gives_back

    def in_turn(self) -> Iterator[str]:
        """The sources in the order of asking; then again those whose share has grown since then."""
        turn = self.sources
        while turn:
            shares = self._share.copy()
            yield from turn
            self._give_back()
            turn = [one for one in turn if self._share[one] > shares[one]]

    def _give_back(self) -> None:
        """What is left to sources from which no file came goes to those that have sent their share."""
        with self._lock:
            spent = [one for one in self.sources if self._is_spent(one)]
            spent = [one for one in spent if one in self._useful] or spent  # others may send rubbish
            if not self._gives_back or not spent:
                return
            idle = [one for one in self.sources if one not in self._useful and one not in spent]
            left = sum(self._share[one] - self._sent[one] for one in idle)
            self._share |= {one: self._sent[one] for one in idle}
            self._share |= {one: self._share[one] + left // len(spent) for one in spent}
            self.sources = [one for one in self.sources if one not in idle]

    def _is_spent(self, source: str) -> bool:
        return self._sent[source] > self._share[source]

    def small(self, source: str, name: str, bytes_max: int) -> bytes:
        """A whole file from one source.

        Raises:
            Unavailable: it has none, or a larger one.
        """
        body = bytearray()
        with self._get(source, name, 0) as answer:
            for piece in self._pieces(source, name, answer):
                body += piece
                if len(body) > bytes_max:
                    raise Unavailable(f"{source}{name}: more than {bytes_max} bytes")
        return bytes(body)

    def file(
        self,
        name: str,
        is_right: Callable[[Path], bool],
        folder: Path,
        *,
        kept_as: str = "",
        size_max: int | None = None,
    ) -> None:
        """Fetch a file, from the first source that has it as it must be.

        Args:
            name: Of the file, under each source and under the folder.
            is_right: Whether a file is the one that is wanted.
            folder: Where the run is to lie.
            kept_as: Its name under the folder, if this is another.
            size_max: The most bytes that it has, where this is known; a longer answer is broken off.

        Raises:
            IntegrityError: somebody has another file of that name, and nobody this one.
            Unavailable: nobody has it.
            ConfigError: nobody has it whose share is not spent.
        """
        path, faults = folder / (kept_as or name), list[AssayError]()
        if not path.resolve().is_relative_to(folder.resolve()):
            raise ConfigError(f"{path}: a link that leads out of {folder}")
        for one in (path.parent, folder / PARTIAL):
            one.mkdir(parents=True, exist_ok=True)
        partial = folder / PARTIAL / hashlib.sha256(name.encode()).hexdigest()
        for source in self.in_turn():
            try:
                has_begun = True
                while has_begun:  # what was there may be another source's lie: then all of it from this one
                    has_begun = partial.is_file()
                    self._append(source, name, partial, size_max)
                    if is_right(partial):
                        partial.replace(path)
                        self._useful.add(source)
                        return
                    partial.unlink()
                faults.append(IntegrityError(f"{name}: {source} has another file than the run's"))
            except Unavailable as error:
                faults.append(error)
        raise self.fault(faults)

    def fault(self, faults: Sequence[AssayError]) -> AssayError:
        """What it means that no source had a file: an error of each, in the order of asking."""
        lies = (one for one in faults if isinstance(one, IntegrityError))
        spent = (one for one in faults if isinstance(one, _ShareSent))
        return next(lies, self.spent() or next(spent, faults[-1]))

    def spent(self) -> ConfigError | None:
        """An error if all sources that ever answered, and are still asked, have sent their shares."""
        answered = self._answered.intersection(self.sources)
        if not answered or not all(map(self._is_spent, answered)):
            return None
        if len(answered) < len(self.sources):
            return ConfigError(
                f"all that answered have sent their shares of {self._bytes_max} bytes: see --most"
            )
        return ConfigError(f"more than {self._bytes_max} bytes are needed: see --most")

    def _append(self, source: str, name: str, partial: Path, size_max: int | None) -> None:
        """Fetch what `partial` lacks, or all of it where the source cannot send a part."""
        begun = partial.stat().st_size if partial.is_file() else 0
        with self._get(source, name, begun) as answer:
            goes_on = begun and answer.status_code == requests.codes.partial_content
            with open(partial, "ab" if goes_on else "wb") as out:
                for piece in self._pieces(source, name, answer):
                    out.write(piece)
                    if size_max is not None and out.tell() > size_max:
                        return  # not what is wanted, whatever follows

    def _get(self, source: str, name: str, begun: int) -> requests.Response:
        self._count(source, 0)
        if not hasattr(self._local, "session"):
            self._local.session = steady_session(is_public=self._is_public)
        asked = {"Range": f"bytes={begun}-"} if begun else {}
        # Bytes as they are stored: what a server compresses could be small on the line and endless here.
        headers = {"Accept-Encoding": "identity", **asked}
        try:
            answer: requests.Response = self._local.session.get(
                source + quote(name),
                headers=headers,
                stream=True,
                timeout=ANSWER_S_MAX,
                allow_redirects=False,  # a stranger's address must not lead into our own network
            )
        except requests.RequestException as error:
            raise Unavailable(f"{source}{name}: no answer ({type(error).__name__})") from None
        self._answered.add(source)
        if begun and answer.status_code == requests.codes.requested_range_not_satisfiable:
            answer.close()
            return self._get(source, name, 0)
        if answer.status_code not in (requests.codes.ok, requests.codes.partial_content):
            answer.close()
            raise Unavailable(f"{source}{name}: answered with status {answer.status_code}")
        return answer

    def _pieces(self, source: str, name: str, answer: requests.Response) -> Iterator[bytes]:
        if answer.headers.get("Content-Encoding", "identity") != "identity":
            raise Unavailable(f"{source}{name}: sent in another encoding than asked for")
        try:
            for piece in pieces(answer, PIECE_BYTES, self._clock):
                self._count(source, len(piece))
                yield piece
        except TooSlow as error:
            answer.close()
            self._ask_last(source)
            self._on_slow(f"{source}{name}: too slow, the next source is asked: {error}")
            raise Unavailable(f"{source}{name}: too slow: {error}") from None
        except (HTTPError, OSError) as error:
            raise Unavailable(f"{source}{name}: broke off ({type(error).__name__})") from None

    def _count(self, source: str, size: int) -> None:
        """Take bytes off a source's share.

        Raises:
            Unavailable: they are more than was left of it.
        """
        with self._lock:
            was_spent = self._is_spent(source)
            self.received += size
            self._sent[source] += size
            if not self._is_spent(source):
                return
        line = f"{source}: has sent its share of {self._share[source]} bytes, see --most"
        if not was_spent and not all(map(self._is_spent, self.sources)):  # another one is asked
            self._on_slow(line)
        raise _ShareSent(line)

    def _ask_last(self, source: str) -> None:
        """Have a slow source asked when no other has a file, and not before each."""
        with self._lock:
            self.sources = [*(one for one in self.sources if one != source), source]


class _ShareSent(Unavailable):
    """A source is asked for more than its share."""


def _address(source: str) -> str:
    parts = urlsplit(source)
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.query or parts.fragment:
        raise ConfigError(f"{source!r}: expected an address such as https://example.org/runs/mine")
    return source.removesuffix(INDEX).rstrip("/") + "/"


def _sha256(path: Path) -> str:
    if not path.is_file():
        return ""
    with open(path, "rb") as file:
        hasher = hashlib.sha256()
        while piece := file.read(PIECE_BYTES):
            hasher.update(piece)
    return hasher.hexdigest()
