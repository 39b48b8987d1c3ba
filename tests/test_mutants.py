"""Mutants: every kind of rule is broken, one expression at a time, and a test that notices is a kill."""

from __future__ import annotations

import ast
from bisect import bisect_right
from pathlib import Path

import pytest

from tests.mutants import (
    Mutant,
    Recorded,
    function_around,
    imports,
    mutants_of,
    reaching,
    record,
    run_tests,
)

pytestmark = pytest.mark.slow


def broken(source: str) -> list[str]:
    """The source with each mutant applied."""
    raw = source.encode()
    return [mutant.apply(raw).decode() for mutant in mutants_of(Path("a.py"), raw)]


@pytest.mark.parametrize(
    ("rule", "mutants"),
    [
        ("a < b", ["(a <= b)"]),
        ("a <= b < c", ["(a < b < c)", "(a <= b <= c)"]),
        ("a and b", ["(a or b)"]),
        ("not a", ["(a)"]),
        ("7", ["8", "6"]),
        ("a - b", ["(a + b)"]),
        ("-1", ["(1)", "-2", "-0"]),
        ("a.reshape(-1, 8)", ["a.reshape((1), 8)", "a.reshape(-1, 9)", "a.reshape(-1, 7)"]),
        ("a += b", ["a -= b"]),
        ("min(a, b)", ["max(a, b)"]),
        ("any(a)", ["all(a)"]),
        ("sorted(a)", ["(sorted(a))[::-1]"]),
        ("sorted(a, key=b)", ["(sorted(a, key=b))[::-1]", "sorted(a)"]),
        ("def f(a: int | None) -> int | None: ...", []),
        (
            "bound: Annotated[str, Max(64)]",
            ["bound: Annotated[str, Max(65)]", "bound: Annotated[str, Max(63)]"],
        ),
        ("raise E(f'{a + 1}')", []),
        ("assert a < b", []),
        ("b'tag' + a", []),
        ("é = 'é' if a > b else c", ["é = 'é' if (a >= b) else c"]),
    ],
)
def test_each_kind_of_rule_is_broken_in_its_own_way(rule, mutants):
    assert broken(rule) == mutants


@pytest.mark.parametrize(
    "path", sorted(Path(__file__).parents[1].glob("protocol/*.py")), ids=lambda p: p.stem
)
def test_every_mutant_of_a_rule_parses_and_differs(path):
    source = path.read_bytes()
    lines = source.splitlines(keepends=True)
    firsts = [
        min([one.lineno, *(word.lineno for word in getattr(one, "decorator_list", []))])
        for one in ast.parse(source).body
    ]
    starts = [sum(map(len, lines[: first - 1])) for first in firsts]

    for mutant in mutants_of(path, source):
        changed, at = mutant.apply(source), bisect_right(starts, mutant.start)
        grown = len(changed) - len(source)
        assert changed != source
        # What is outside of the statement is the source's, which was parsed.
        ast.parse(changed[starts[at - 1] : starts[at] + grown if at < len(starts) else None])


@pytest.fixture
def tree(tmp_path):
    """A room of two modules, and a test that reaches one of them through a builder."""
    for name, text in {
        "room/near.py": "def is_old(age):\n    return age >= 18\n",
        "room/far.py": "",
        "tests/room/builder.py": "from assay.room.near import is_old\n",
        "tests/room/test_near.py": "from tests.room.builder import is_old\n\n\n"
        "def test_eighteen_is_old():\n    assert is_old(18)\n",
        "tests/room/test_else.py": "",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_only_tests_whose_imports_lead_to_a_module_run_on_its_mutants(tree):
    graph = imports(tree)

    assert reaching(graph, tree / "room/near.py", tree / "tests/room") == [tree / "tests/room/test_near.py"]
    assert reaching(graph, tree / "room/far.py", tree / "tests/room") == []


def test_a_module_that_is_named_like_a_test_is_none(tree):
    bed = tree / "redteam/test_bed.py"
    bed.parent.mkdir()
    bed.write_text("from assay.room.near import is_old\n")

    assert reaching(imports(tree), tree / "room/near.py", tree / "tests/none") == []


@pytest.mark.parametrize(
    ("mutant", "function"),
    [("x > 1", 3), ("x < 2", 5), ("x - 3", None), ("x == 4", None), ("x + 5", 9), ("x - 6", None)],
)
def test_a_mutant_belongs_to_the_innermost_function_that_runs_it(mutant, function):
    source = (
        b"import functools\n"
        b"\n"
        b"@functools.cache\n"
        b"def outer(x):\n"
        b"    def inner(x):\n"
        b"        return x < 2\n"
        b"    return inner(x) or x > 1\n"
        b"\n"
        b"def other(\n"
        b"    x=lambda x: x - 3,\n"
        b"):\n"
        b"    return [x + 5 for x in ()]\n"
        b"\n"
        b"is_four = x == 4\n"
        b"\n"
        b"@compiled(INT)\n"
        b"def no_trace_sees(x):\n"
        b"    return x - 6\n"
    )
    start = source.index(mutant.encode())
    line = source[:start].count(b"\n") + 1

    assert function_around(source, Mutant(Path("a.py"), line, start, start + len(mutant), "")) == function


def test_a_mutant_meets_the_tests_that_call_its_function_or_all_if_importing_runs_it(tmp_path):
    for name, text in {
        "near.py": "import functools\n\n\n@functools.cache\ndef one():\n    return 1\n\n\n"
        "def two():\n    return 2\n\n\ndef three():\n    return 3\n\n\nTHREE = three()\n",
        "test_a.py": "import pytest\nimport near\n\n\n"
        "@pytest.fixture\ndef got():\n    return near.two()\n\n\n"
        "def test_one():\n    assert near.one() == 1\n\n\n"
        "def test_two(got):\n    assert got == 2\n",
        "test_b.py": "import near\n\n\ndef test_one():\n    assert near.one() == 1\n",
        "test_c.py": "def test_none():\n    pass\n",
    }.items():
        (tmp_path / name).write_text(text)

    recorded = record(tmp_path, [tmp_path / f"test_{letter}.py" for letter in "abc"])

    assert recorded is not None
    one, two, three = (recorded.tests_of(Path("near.py"), line) for line in (4, 9, 13))
    assert {*one} == {"test_a.py::test_one", "test_b.py::test_one"}
    assert {*two} == {"test_a.py::test_one", "test_a.py::test_two"}  # what a fixture calls, its file calls
    assert {*three} == {*recorded.tests_of(Path("near.py"), None)} == {*recorded.seconds}
    assert len(recorded.seconds) == 4


def test_nothing_is_measured_where_a_test_fails_unchanged(tmp_path):
    (tmp_path / "test_one.py").write_text("def test_one():\n    assert False\n")

    assert record(tmp_path, [tmp_path / "test_one.py"]) is None


@pytest.mark.parametrize(
    ("body", "cpu_seconds", "wall_seconds", "passes"),
    [
        ("assert True", 60, 60, True),
        ("assert False", 60, 60, False),
        ("while True: pass", 2, 60, False),
        ("__import__('time').sleep(99)", 60, 3, False),
    ],
)
def test_a_test_that_fails_computes_on_or_waits_on_kills(tmp_path, body, cpu_seconds, wall_seconds, passes):
    file = tmp_path / "test_one.py"
    file.write_text(f"def test_one():\n    {body}\n")

    assert run_tests(tmp_path, ["test_one.py::test_one"], cpu_seconds, wall_seconds) == passes


def test_a_run_in_which_no_test_is_left_kills_nothing(tmp_path):
    (tmp_path / "test_one.py").write_text("def test_one():\n    assert False\n")

    assert run_tests(tmp_path, ["test_one.py::test_of_another_name"], 60, 60)


def test_a_module_that_no_test_reaches_is_run_by_none():
    assert Recorded({}, {"": set()}, []).tests_of(Path("a.py"), 1) == []
