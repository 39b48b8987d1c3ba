"""Mutants: breaks one rule of a room at a time and lists the breaks that none of the room's tests notices.

    python -m tests.mutants protocol ledger/settlement --sample 60 --seed 1

Each mutant is one changed expression in a copy of the tree. The test files under tests/ROOM whose imports
reach the room run once unchanged, which shows the functions that each test calls. On a mutant run the tests
that call the changed function, or all that reach it if importing runs it, quickest first, in a forked process
that has imported everything foreign. Survivors are printed with their place; each is a missing test, or a
change that no run can show.

A script of our own because mutmut names mutants by path, where `protocol/` is imported as `assay.protocol`,
and changes functions only, neither constants nor bounds of message fields; cosmic-ray changes the working
tree in place, starts an interpreter for each mutant, cannot sample, and leaves `min` and `sorted` alone.
"""

from __future__ import annotations

import argparse
import ast
import functools
import importlib
import os
import pickle
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import pytest
from hypothesis import Phase, settings

ROOT = Path(__file__).parents[1]
COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}
TESTING = ("tests", "assay.testing")  # what they cache is not what is tested
CPU_SECONDS = 10  # a mutant's tests may compute for so long, and three times as long as unchanged
WALL_SECONDS = 60  # and may take so long, and five times as long as unchanged: other work slows them


@dataclass(frozen=True, slots=True)
class Mutant:
    """One changed expression of one file, as the bytes `start` to `end` and what replaces them."""

    path: Path  # from the root
    line: int
    start: int
    end: int
    text: str

    def apply(self, source: bytes) -> bytes:
        """The file with the change."""
        return source[: self.start] + self.text.encode() + source[self.end :]

    def shown(self, source: bytes) -> str:
        """Place and changed line."""
        changed = self.apply(source).decode().splitlines()[self.line - 1]
        return f"{self.path}:{self.line}: {changed.strip()}"


def mutants_of(path: Path, source: bytes) -> Iterator[Mutant]:
    """Every mutant of a file, in the order of its syntax tree."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for node in _rules(ast.parse(source)):
        for text in _changes(node):
            assert isinstance(node, (ast.expr, ast.stmt))
            assert node.end_lineno is not None and node.end_col_offset is not None
            start = starts[node.lineno - 1] + node.col_offset
            yield Mutant(
                path, node.lineno, start, starts[node.end_lineno - 1] + node.end_col_offset, text
            )  # fmt: skip


def function_around(source: bytes, mutant: Mutant) -> int | None:
    """First line of the innermost function whose body holds a mutant; None if it runs at import.

    None for a compiled function too: a trace does not see who calls it.
    """
    found, line = None, 0
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first, last = node.body[0], node.body[-1]
            assert last.end_lineno is not None
            if max(first.lineno, line) <= mutant.line <= last.end_lineno:
                line = first.lineno
                is_compiled = any(ast.unparse(word).startswith("compiled(") for word in node.decorator_list)
                found = (
                    None
                    if is_compiled
                    else min(node.lineno, *(word.lineno for word in node.decorator_list), node.lineno)
                )
    return found


def _rules(node: ast.AST, *, is_type: bool = False, is_size: bool = False) -> Iterator[ast.AST]:
    """Nodes that hold a rule: no messages, assertions or types, but the bounds that a type calls for."""
    if isinstance(node, (ast.JoinedStr, ast.Assert)):
        return
    if not is_type:
        yield node
    if isinstance(node, ast.UnaryOp) and is_size:
        return  # NumPy takes every negative size as the one that follows from the others
    is_size = (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "reshape"
    )
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                inside = (is_type and not isinstance(child, ast.Call)) or name in ("annotation", "returns")
                yield from _rules(child, is_type=inside, is_size=is_size)


def _changes(node: ast.AST) -> Iterator[str]:
    """What may replace this node, as source text."""
    match node:
        case ast.Compare(ops=ops):
            for index, op in enumerate(ops):
                other = deepcopy(node)
                other.ops[index] = COMPARISONS[type(op)]()
                yield f"({ast.unparse(other)})"
        case ast.BoolOp(op=op, values=values):
            yield f"({ast.unparse(ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values))})"
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield f"({ast.unparse(operand)})"
        case ast.BinOp(left=left, op=op, right=right) if type(op) in ARITHMETIC:
            if not any(_is_text(side) for side in (left, right)):
                yield f"({ast.unparse(ast.BinOp(left, ARITHMETIC[type(op)](), right))})"
        case ast.AugAssign(target=target, op=op, value=value) if type(op) in ARITHMETIC:
            yield ast.unparse(ast.AugAssign(target, ARITHMETIC[type(op)](), value))
        case ast.Constant(value=value) if type(value) is int:
            yield str(value + 1)
            yield str(value - 1)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords) if name in CALLS:
            yield ast.unparse(ast.Call(ast.Name(CALLS[name]), args, keywords))
        case ast.Call(func=ast.Name(id="sorted"), args=args, keywords=keywords):
            yield f"({ast.unparse(ast.Call(ast.Name('sorted'), args, keywords))})[::-1]"
            if any(word.arg == "key" for word in keywords):
                rest = [word for word in keywords if word.arg != "key"]
                yield ast.unparse(ast.Call(ast.Name("sorted"), args, rest))


def _is_text(node: ast.AST) -> bool:
    """Whether joining it with anything but `+` is a type error, which any test notices."""
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes))
    )


# ---- which tests run


def imports(root: Path) -> dict[Path, set[Path]]:
    """Every module and test file, with the files it imports."""
    files = [path for path in root.rglob("*.py") if "node_modules" not in path.parts and path.is_file()]
    names = {}
    for path in files:
        parts = path.relative_to(root).with_suffix("").parts
        package = parts[:-1] if parts[-1] == "__init__" else parts
        names[".".join(package if parts[0] in ("tests", "benchmarks") else ("assay", *package))] = path
    found: dict[Path, set[Path]] = {}
    for path in files:
        wanted: set[str] = set()
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Import):
                wanted |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                wanted |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        found[path] = {names[name] for name in wanted & names.keys()}
    return found


def reaching(graph: dict[Path, set[Path]], module: Path, tests: Path) -> list[Path]:
    """Test files below `tests` whose imports lead to the module, those with the shortest way first.

    Where there is none, the test files anywhere that import the module themselves.
    """
    distance, front = {module: 0}, [module]
    while front:
        front = [path for path, used in graph.items() if path not in distance and used & {*front}]
        distance |= {path: max(distance.values()) + 1 for path in front}
    found = [
        path
        for path in distance
        if path.name.startswith("test_") and "tests" in path.parts and "e2e" not in path.parts
    ]
    near = [path for path in found if tests in path.parents]
    near = near or [path for path in found if distance[path] == 1]
    return sorted(near, key=lambda path: (path.stem != f"test_{module.stem}", distance[path], path))


# ---- one run


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a run of tests showed: how long each takes, and which functions it calls, by their first lines."""

    seconds: dict[str, float]
    calls: dict[str, set[tuple[str, int]]]  # by test; by file, for its fixtures; by "", for what imports call
    modules: list[str]

    def tests_of(self, path: Path, function: int | None) -> list[str]:
        """Tests that call a function, or all where it is None, quickest first."""
        place = (str(path), function)
        tests = list(self.seconds)
        if function is not None and place not in self.calls[""]:
            tests = [t for t in self.seconds if place in self.calls[t] | self.calls[t.split("::")[0]]]
        return sorted(tests, key=lambda test: (self.seconds[test], test))


class _Recorder:
    """Notes for each test its time and the functions it calls; what is cached, is computed for each again."""

    def __init__(self, root: Path) -> None:
        self.seconds: dict[str, float] = {}
        self.calls: dict[str, set[tuple[str, int]]] = {}
        self.places: dict[str, str | None] = {}
        self.root = root

    def _follow(self, context: str) -> None:
        called = self.calls.setdefault(context, set())
        seen: set[int] = set()

        def follow(frame: FrameType, event: str, _: object) -> None:
            code = frame.f_code
            if id(code) in seen:  # most calls: of code that lives as long as its module
                return
            seen.add(id(code))
            if code.co_filename not in self.places:
                path = Path(code.co_filename).resolve()
                inside = path.is_relative_to(self.root) and path.suffix == ".py"
                self.places[code.co_filename] = str(path.relative_to(self.root)) if inside else None
            if place := self.places[code.co_filename]:
                called.add((place, code.co_firstlineno))

        threading.settrace(follow)
        sys.settrace(follow)

    def pytest_sessionstart(self) -> None:
        self._follow("")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[None]:
        for name, module in list(sys.modules.items()):
            ours = (getattr(module, "__file__", None) or "").startswith(f"{self.root}/")
            for value in vars(module).values() if ours and not name.startswith(TESTING) else ():
                if isinstance(value, functools._lru_cache_wrapper):
                    value.cache_clear()
        self.seconds[item.nodeid] = -time.monotonic()
        self._follow(item.nodeid.split("::")[0])
        yield

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        self._follow(item.nodeid)
        try:
            yield
        finally:
            sys.settrace(None)
            self.seconds[item.nodeid] += time.monotonic()


class _Chosen:
    """Runs the given tests in the given order."""

    def __init__(self, tests: list[str]) -> None:
        self.order = {test: index for index, test in enumerate(tests)}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted(
            (item for item in items if item.nodeid in self.order), key=lambda i: self.order[i.nodeid]
        )


class _Fast:
    """Leaves out the tests that are marked slow themselves, not for the file they are in."""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if not any(mark.name == "slow" for mark in item.own_markers)]


def record(root: Path, files: list[Path], *, is_fast: bool = False) -> Recorded | None:
    """The run of these test files, or of their fast tests, on the unchanged tree; None if a test fails."""
    report = root / "recorded"
    report.unlink(missing_ok=True)

    def keep(recorder: _Recorder) -> None:
        seconds = {test: taken for test, taken in recorder.seconds.items() if taken >= 0}
        calls = {test: recorder.calls.get(test, set()) for test in {*recorder.calls, *seconds}}
        report.write_bytes(pickle.dumps(Recorded(seconds, calls, list(sys.modules))))

    recorder = _Recorder(root)
    plugins = [_Fast(), recorder] if is_fast else [recorder]
    if not _forked(root, files, plugins, 3600, 3600, lambda: keep(recorder)):
        return None
    recorded: Recorded = pickle.loads(report.read_bytes())  # what our own child wrote
    return recorded


def run_tests(root: Path, tests: list[str], cpu_seconds: int, wall_seconds: float) -> bool:
    """Whether these tests pass in a forked process. Too slow is a failure: a loop that does not end.

    Args:
        root: The tree to run in.
        tests: Names as pytest shows them, in the order in which they run.
        cpu_seconds: How long they may compute.
        wall_seconds: How long they may take.
    """
    files = [root / name for name in dict.fromkeys(test.split("::")[0] for test in tests)]
    return _forked(root, files, [_Chosen(tests)], cpu_seconds, wall_seconds)


def _forked(
    root: Path,
    files: list[Path],
    plugins: list[object],
    cpu_seconds: int,
    wall_seconds: float,
    at_end: Callable[[], None] = lambda: None,
) -> bool:
    child = os.fork()
    if not child:
        os.setpgid(0, 0)
        os.chdir(root)
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds))
        roots = [str(root / "build/import_root"), str(root)]
        sys.path[:0] = roots
        os.environ["PYTHONPATH"] = os.pathsep.join(roots)  # a test's own child imports the mutant as well
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        options = ["-x", "-q", "--tb=no", "-p", "no:cacheprovider", f"--rootdir={root}"]
        code = 1
        try:
            code = int(pytest.main([*options, *map(str, files)], plugins=[_Unshrunk(), *plugins]))
            at_end()
        finally:
            os._exit(code)
    deadline = time.monotonic() + wall_seconds
    try:
        while time.monotonic() < deadline:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                # A mutant may rename parametrised tests: where none is left, nothing has noticed it.
                return os.waitstatus_to_exitcode(status) in (0, pytest.ExitCode.NO_TESTS_COLLECTED)
            time.sleep(0.02)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


class _Unshrunk:
    """Hypothesis tries the same examples for every mutant, and stops at the first that fails."""

    def pytest_configure(self) -> None:
        settings.register_profile(
            "mutants", settings(), derandomize=True, database=None, phases=[Phase.explicit, Phase.generate]
        )
        settings.load_profile("mutants")


def _copy(target: Path) -> None:
    """Copies the tracked and new files of this tree, with an import root of its own."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    for name in listed.split("\0"):
        if name and (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, target / name)
    (target / "build/import_root").mkdir(parents=True)
    (target / "build/import_root/assay").symlink_to("../..")
    with suppress(FileExistsError):
        (target / "contracts/node_modules").symlink_to(ROOT / "contracts/node_modules")


def main() -> None:
    """Runs the mutants of each room and prints the survivors and the score."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants")
    parser.add_argument("rooms", nargs="+", help="folders or files, such as protocol or ledger/settlement")
    parser.add_argument("--tests", help="folder of the tests; otherwise tests/ROOM")
    parser.add_argument("--sample", type=int, default=0, help="so many mutants of each; otherwise all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fast", action="store_true", help="leave out tests marked slow, not files")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mutants-") as name:
        root = Path(name).resolve()
        _copy(root)
        graph = imports(root)
        for room in options.rooms:
            place = root / room
            paths = [place] if place.is_file() else sorted(place.rglob("*.py"))
            mutants = [m for path in paths for m in mutants_of(path.relative_to(root), path.read_bytes())]
            if not mutants:
                parser.error(f"{room}: nothing to change there")
            if 0 < options.sample < len(mutants):
                chosen = random.Random(options.seed).sample(range(len(mutants)), options.sample)
                mutants = [mutants[index] for index in sorted(chosen)]
            folder = place.parent if place.is_file() else place
            tests = root / (options.tests or Path("tests") / folder.relative_to(root))
            killed = sum(_kills(root, graph, mutants, tests, is_fast=options.fast))
            print(
                f"{room}: {killed} of {len(mutants)} mutants killed, {100 * killed / len(mutants):.0f} %",
                flush=True,
            )


def _kills(
    root: Path, graph: dict[Path, set[Path]], mutants: list[Mutant], tests: Path, *, is_fast: bool
) -> Iterator[bool]:
    """Whether a test fails, for each mutant; prints those that survive."""
    reached = {path: reaching(graph, root / path, tests) for path in {mutant.path for mutant in mutants}}
    files = sorted({file for found in reached.values() for file in found})
    recorded = record(root, files, is_fast=is_fast) if files else Recorded({}, {"": set()}, [])
    if recorded is None:
        sys.exit(f"{tests}: the tests fail before anything is changed")
    for name in recorded.modules:
        if not name.startswith(("assay", "tests", "conftest", "__")):
            with suppress(Exception):  # what cannot be imported early, the tests import
                importlib.import_module(name)
    assert not any(name.startswith("assay.") for name in sys.modules), "tests would not meet the mutants"
    for number, mutant in enumerate(mutants):
        path = root / mutant.path
        source = path.read_bytes()
        near = {str(file.relative_to(root)) for file in reached[mutant.path]}
        function = function_around(source, mutant)
        chosen = [t for t in recorded.tests_of(mutant.path, function) if t.split("::")[0] in near]
        path.write_bytes(mutant.apply(source))
        os.utime(path, (number, number))  # another time for each, so that no cached byte code is taken
        seconds = sum(recorded.seconds[test] for test in chosen)
        limits = int(CPU_SECONDS + 3 * seconds), WALL_SECONDS + 5 * seconds
        is_killed = bool(chosen) and not run_tests(root, chosen, *limits)
        if not is_killed:
            print(mutant.shown(source) + ("" if chosen else "  [no test runs it]"), flush=True)
        path.write_bytes(source)
        yield is_killed


if __name__ == "__main__":
    main()
