"""Mutants: every kind of rule is broken, one expression at a time, and a test that notices is a kill."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.mutants import imports, mutants_of, reaching, run_tests

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
    seen = {mutant.apply(source) for mutant in mutants_of(path, source)}

    assert source not in seen
    for changed in seen:
        ast.parse(changed)


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

    assert run_tests(tmp_path, [file], cpu_seconds, wall_seconds) == passes
