"""Public state: parameters of recent rounds, rebuilt from certified aggregates alone.

Room: training (edge: checkpoint files). Every honest process holds the same bits at every round: theta, the
outer optimiser's buffers, aggregates not yet applied. A checkpoint about every `keep` rounds bounds what a
restart must replay. It is of a round whose commits carry the state's digest, so it also serves a newcomer as
a snapshot; the same state gives the same bytes.

Audits look back `keep` rounds. The theta of recent rounds stays in memory as far as there is room for it;
that of others is replayed from the checkpoint before, with the aggregates since, which lie in files. A replay
holds one state more, from which the next one goes on if it can. Whatever a file says is compared with the
digest of what was written: a damaged one must not make an audit of an honest node fail.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray
from safetensors.numpy import load_file, save

from assay.protocol.errors import Diverged, Unavailable
from assay.protocol.params import RunSpec
from assay.protocol.types import Digest
from assay.training.layout import layout_of
from assay.training.model.initial import imported_buffers, starting_parameters
from assay.training.model.initial import state_digest as state_digest
from assay.training.optimiser.outer import (
    BUFFERS,
    OuterState,
    apply,
    public_digest,
    rest_bytes,
    rest_of,
    start_public,
)

THETA = "theta"  # folder of the checkpoints, in that of the participant
REST = ".rest"  # suffix of what is held beside theta
RECENT_BYTES = 1 << 30  # of the theta of recent rounds in memory


def kept_rounds(spec: RunSpec) -> int:
    """Rounds back for which audits need theta, so that it must be kept, but for openings that are overdue."""
    return spec.closing_rounds + 2 + spec.rule.read_lag


def checkpoint_rounds(spec: RunSpec, save_every: int) -> int:
    """Rounds between checkpoints: the least multiple of `state_every` that is at least `save_every`."""
    return -(-save_every // spec.state_every) * spec.state_every


def snapshot_bytes_max(spec: RunSpec) -> int:
    """The most bytes that a checkpoint has, but for aggregates that wait for their round."""
    return 4 * (1 + BUFFERS[spec.rule.outer.kind]) * layout_of(spec.model).parameters + (1 << 16)


def checkpoints(folder: Path) -> dict[int, Path]:
    """The complete checkpoints in a folder, by round, ascending."""
    found = {int(path.stem.split("-")[1]): path for path in folder.glob("public-*.safetensors")}
    return dict(sorted(found.items()))


def read_checkpoint(spec: RunSpec, path: Path) -> OuterState:
    """The state in a checkpoint's file.

    Raises:
        Diverged: it holds other arrays than this run's states do.
    """
    try:
        arrays = load_file(path)
    except Exception as error:  # of a file from anybody: of what numpy has no type for, too
        raise Diverged(f"{path.name} is no checkpoint: {error}") from None
    shape, count = (layout_of(spec.model).parameters,), BUFFERS[spec.rule.outer.kind]
    floats = ["theta", *(f"buffer{i}" for i in range(count))]
    bodies = [f"pending{i}" for i in range(len(arrays) - len(floats))]
    if (
        set(arrays) != {*floats, *bodies}
        or len(bodies) > spec.rule.apply_lag
        or any(arrays[name].shape != shape or arrays[name].dtype != np.float32 for name in floats)
        or any(arrays[name].ndim != 1 or arrays[name].dtype != np.uint8 for name in bodies)
    ):
        raise Diverged(f"{path.name} holds other arrays than a state of this run: {sorted(arrays)}")
    theta_P, *buffers = (arrays[name] for name in floats)
    return OuterState(theta_P, tuple(buffers), tuple(arrays[name].tobytes() for name in bodies))


def held_parameters(folder: Path, round_id: int) -> NDArray[np.float32] | None:
    """theta that a process keeps of an old round, see `PublicState.hold`; None if it keeps none."""
    path = _held_path(folder, round_id)
    if not path.exists():
        return None
    try:
        held: NDArray[np.float32] = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise Diverged(f"{path.name} cannot be read ({error})") from None
    return held


def held_rest(folder: Path, round_id: int) -> bytes:
    """`rest_of` the public state whose theta is held, if that was kept, too; else empty."""
    path = _held_path(folder, round_id).with_suffix(REST)
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise Diverged(f"{path.name} cannot be read ({error.strerror})") from None


def _held_path(folder: Path, round_id: int) -> Path:
    return folder / f"held-{round_id:08d}.npy"


class PublicState:
    """theta_r for the newest round r and the `keep` rounds before it, with the rest of the newest state."""

    def __init__(
        self,
        spec: RunSpec,
        folder: Path,
        keep: int,
        base: Path | None = None,
        *,
        save_every: int | None = None,
        room_bytes: int = RECENT_BYTES,
        holds_rest: bool = False,
    ) -> None:
        """Resume from the checkpoint that lets `keep` earlier rounds be replayed, else from the start.

        From the start, too, if that checkpoint's file is damaged.

        Args:
            spec: The run.
            folder: Of the checkpoints; nobody else writes here.
            keep: Rounds before the newest whose theta can be asked for.
            base: The file of imported parameters, for a run that starts from such.
            save_every: Rounds between checkpoints, `keep` at least; None: `keep`.
            room_bytes: Of the theta of recent rounds in memory. What local work reads is always there.
            holds_rest: What is held is the whole state, as a node shows it to jurors; it is replayed then.

        Raises:
            ConfigError: the run starts from imported parameters, and `base` is not their file.
        """
        self.spec, self.layout = spec, layout_of(spec.model)
        self._folder, self._keep, self._base = folder, keep, base
        self._save_every = checkpoint_rounds(spec, save_every or keep)
        fit = room_bytes // (4 * self.layout.parameters)
        self._in_memory = min(max(fit, 1 + spec.rule.read_lag), keep + 1)
        self._holds_rest = holds_rest and rest_bytes(spec, spec.rounds) > 0
        folder.mkdir(parents=True, exist_ok=True)
        found = list(checkpoints(folder).items())
        # A first checkpoint that is no first one was restored from a snapshot: nothing before it is here.
        is_restored = len(found) == 1 and found[0][0] > self._save_every
        self.round, path = found[0] if is_restored else found[-2] if len(found) > 1 else (0, None)
        try:
            self._begin(self._first() if path is None else self._load(path))
        except Diverged:  # damaged on disk: all of it follows from the aggregates
            self.reset()

    def _begin(self, public: OuterState) -> None:
        """Go on from this state of `self.round`: what was before it cannot be asked for."""
        self.public, self._start = public, self.round
        self._recent = {self.round: public.theta_P}
        self._replayed: tuple[int, OuterState] | None = None
        self._saved = {self.round: public_digest(public)}
        self._aggregates: dict[int, Digest] = {}
        for path in self._folder.glob("aggregate-*"):
            path.unlink()

    def digest(self) -> Digest:
        """Digest of the newest state."""
        return public_digest(self.public)

    def read(self, round_id: int) -> NDArray[np.float32]:
        """theta that local work of a round starts from: `read_lag` rounds old.

        Raises:
            Diverged: that round is ahead of us or too old.
        """
        return self.at(max(round_id - self.spec.rule.read_lag, 0))

    def at(self, round_id: int) -> NDArray[np.float32]:
        """theta of a recent round.

        Raises:
            Diverged: that round is ahead of us or too old.
        """
        if round_id in self._recent:
            return self._recent[round_id]
        held = held_parameters(self._folder, round_id)
        if held is not None:
            return held
        if not self._oldest <= round_id <= self.round:
            raise Diverged(
                f"no parameters of round {round_id}: rounds {self._oldest} to {self.round} are kept"
            )
        return self._replay(round_id).theta_P

    @property
    def _oldest(self) -> int:
        return max(self.round - self._keep, self._start)

    def _replay(self, round_id: int) -> OuterState:
        """The state of a round that is not in memory, from the nearest one before it."""
        nearest = max(saved for saved in self._saved if saved <= round_id)
        if self._replayed is None or not nearest <= self._replayed[0] <= round_id:
            self._replayed = None  # before another state is loaded, so that there are never three
            self._replayed = nearest, self._checkpoint(nearest)
        at, public = self._replayed
        for earlier in range(at, round_id):
            public = apply(self.spec, self.layout, public, earlier, self._aggregate(earlier))
        self._replayed = round_id, public
        return public

    def _checkpoint(self, round_id: int) -> OuterState:
        """The state that this process saved, or began with, in this round.

        Raises:
            Diverged: its file was changed or is gone.
        """
        path = checkpoints(self._folder).get(round_id)
        public = self._first() if path is None and not round_id else self._load(path or self._path(round_id))
        if public_digest(public) != self._saved[round_id]:
            raise Diverged(f"the checkpoint of round {round_id} is not what was saved")
        return public

    def _aggregate(self, round_id: int) -> bytes:
        """An aggregate that was applied since this process began.

        Raises:
            Diverged: its file was changed or is gone.
        """
        path = self._folder / f"aggregate-{round_id:08d}"
        try:
            body = path.read_bytes()
        except OSError as error:
            raise Diverged(f"{path.name} cannot be read ({error.strerror})") from None
        if blake3(body).digest() != self._aggregates.get(round_id):
            raise Diverged(f"{path.name} is not what was applied in that round")
        return body

    def apply(self, round_id: int, aggregate: bytes) -> Digest:
        """Step from `round_id` to the next round; returns the digest of the new state.

        Raises:
            Diverged: this is not our newest round.
        """
        if round_id != self.round:
            raise Diverged(f"the aggregate of round {round_id} arrived at round {self.round}")
        self.public = apply(self.spec, self.layout, self.public, round_id, aggregate)
        self.round = round_id + 1
        self._recent[self.round] = self.public.theta_P
        for old in [r for r in self._recent if r <= self.round - self._in_memory]:
            del self._recent[old]
        if self._in_memory <= self._keep or self._holds_rest:
            self._remember(round_id, aggregate)
        if self.round % self._save_every == 0:
            self._save(self.round)
        return self.digest()

    def hold(self, rounds: Collection[int]) -> None:
        """Keep what local work of these rounds starts from in files, as far as it is here, and no other.

        Raises:
            Diverged: it has to be replayed, and a file for that was changed or is gone.
            Unavailable: a file cannot be written.
        """
        wanted = {max(round_id - self.spec.rule.read_lag, 0) for round_id in rounds}
        for path in self._folder.glob("held-*"):
            if int(path.stem.split("-")[1]) not in wanted:
                path.unlink()
        for round_id in sorted(wanted & set(range(self._oldest, self.round + 1))):
            path = _held_path(self._folder, round_id)
            if not path.exists():
                try:
                    if self._holds_rest:
                        public = self.public if round_id == self.round else self._replay(round_id)
                        with durably(path.with_suffix(REST)) as file:
                            file.write(rest_of(public))
                    write_array(path, self.at(round_id))
                except OSError as error:
                    raise Unavailable(
                        f"parameters of round {round_id} cannot be kept ({error.strerror})"
                    ) from None

    def reset(self) -> None:
        """Discard everything and start from round 0: what a diverged process does."""
        for path in checkpoints(self._folder).values():
            path.unlink()
        self.round = 0
        self._begin(self._first())

    def restore(self, round_id: int, path: Path, state: Digest) -> None:
        """Go on from another process's checkpoint of a later round; this one's are deleted.

        Args:
            round_id: Its round.
            path: Its file, from whomever.
            state: The digest that a quorum certified for that round.

        Raises:
            Diverged: the file is not a checkpoint of this run with this digest, or not of a later round.
        """
        if round_id <= self.round:
            raise Diverged(f"a snapshot of round {round_id} at round {self.round}")
        public = self._load(path)
        found = public_digest(public)
        if found != state:
            raise Diverged(
                f"snapshot of round {round_id} is {found.hex()[:8]}, certified is {state.hex()[:8]}"
            )
        self.reset()
        self.round = round_id
        self._begin(public)
        self._save(round_id)

    def _remember(self, round_id: int, aggregate: bytes) -> None:
        """Write an applied aggregate for replays, and delete those that no replay needs any more.

        On a full disk the rounds after it cannot be replayed; the newest state goes on all the same.
        """
        path = self._folder / f"aggregate-{round_id:08d}"
        try:
            path.write_bytes(aggregate)
            self._aggregates[round_id] = Digest(blake3(aggregate).digest())
        except OSError:
            path.unlink(missing_ok=True)
        base = max(saved for saved in self._saved if saved <= self._oldest)
        for old in [r for r in self._aggregates if r < base]:
            del self._aggregates[old]
            (self._folder / f"aggregate-{old:08d}").unlink(missing_ok=True)

    def _path(self, round_id: int) -> Path:
        return self._folder / f"public-{round_id:08d}.safetensors"

    def _first(self) -> OuterState:
        return start_public(
            self.spec, starting_parameters(self.spec, self._base), imported_buffers(self.spec, self._base)
        )

    def _load(self, path: Path) -> OuterState:
        return read_checkpoint(self.spec, path)

    def _save(self, round_id: int) -> None:
        public = self.public
        arrays: dict[str, NDArray[Any]] = {"theta": public.theta_P}
        arrays |= {f"buffer{i}": part for i, part in enumerate(public.buffers)}
        arrays |= {f"pending{i}": np.frombuffer(body, np.uint8) for i, body in enumerate(public.pending)}
        with durably(self._path(round_id)) as file:
            file.write(save(arrays))
        self._saved[round_id] = self.digest()
        for number, old in list(checkpoints(self._folder).items())[:-3]:
            old.unlink()
            self._saved.pop(number, None)


def write_array(path: Path, array: NDArray[np.float32]) -> None:
    """Write an array so that the file is there whole or not at all, also after a power cut."""
    with durably(path) as file:
        np.save(file, array, allow_pickle=False)


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write named arrays into one file; as `write_array`."""
    with durably(path) as file:
        np.savez(file, allow_pickle=False, **arrays)


@contextmanager
def durably(path: Path) -> Iterator[BinaryIO]:
    """A file to write that takes the place of `path` when the block ends without an error."""
    partial = path.with_suffix(".partial")
    with open(partial, "wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
