"""The mutation sampler: which changes it draws, and what it reports about a tiny package."""

import ast
import json
from pathlib import Path

import pytest

from mutation import ROOT, Planted, main, planted, sampled, sites_of, snippet, suite_of

MODULE = '''"""Add two numbers, or -1 + 1."""

def add(x: int, y: int) -> int:
    return x + y


def spare(x: int) -> int:
    if not isinstance(x, int):
        raise TypeError("x must be an int, got " + str(1 + 1))
    return x - 7
'''
TESTS = """from tiny.sums import add


def test_sums():
    assert add(2, 3) == 5
"""
ERRORS = """[[error]]
where = "sums:add"
old = "x+y"
new = "y"
breaks = "The first number is left out."
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in {
        "src/tiny/__init__.py": "",
        "src/tiny/sums.py": MODULE,
        "tests/sums/test_sums.py": TESTS,
        "tests/planted_errors.toml": ERRORS,
        "pyproject.toml": "[tool.pytest.ini_options]\n",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path


def changed(text: str) -> set[str]:
    """Return every text that one random change makes of another."""
    return {text[: s.start] + new + text[s.end :] for s in sites_of(text) for new in s.news}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a + b", {"a - b"}),
        ("(a) * (  # why * not\n b)", {"(a) / (  # why * not\n b)"}),
        ("a**b / c", {"a*b / c", "a**b * c"}),
        ("-a", {"a"}),
        ("not a", {"a"}),
        ("a and b or c", {"a or b or c", "a and b and c"}),
        ("0 < a <= b", {"0 <= a <= b", "0 < a < b", "1 < a <= b"}),
        ("a == b != c", {"a != b != c", "a == b == c"}),
        ("a += b", {"a -= b"}),
        ("a = 1.5", {"a = 2.5", "a = 3.0", "a = 0.0"}),
        ("'é', 3", {"'é', 4", "'é', 6", "'é', 0"}),
    ],
)
def test_every_site_of_a_line_is_found(text: str, expected: set[str]) -> None:
    assert changed(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        '"""One + 1."""',
        "a: Literal[3]",
        "def f(a: Int[3]) -> Out[2]: ...",
        "@cache(maxsize=3)\ndef f(): ...",
        "raise ValueError(3 + 4)",
        "assert a == 3",
        "warnings.warn(str(3 + 4))",
        "f'{a + 1:.3f}'",
        "'a' + b",
        "def __repr__(self): return 3",
        "if TYPE_CHECKING: a = 3",
        "a = True, None, ...",
    ],
)
def test_what_computes_nothing_is_left_alone(text: str) -> None:
    assert sites_of(text) == []


def test_a_seed_always_draws_the_same_changes() -> None:
    first, again, other = (sampled(ROOT, 20, seed, "weights/") for seed in (1, 1, 2))
    assert first == again != other
    assert len({(change.file, change.start) for change in first}) == 20
    assert {change.file.partition("/")[0] for change in first} == {"weights"}


def test_every_change_of_the_package_is_valid_python() -> None:
    for change in sampled(ROOT, 60, 0):
        text = (ROOT / "src" / "promptlimit" / change.file).read_text(encoding="utf-8")
        assert ast.dump(ast.parse(change.applied(text))) != ast.dump(ast.parse(text)), change
        assert not change.file.startswith(("cli/", "reporting/"))


def test_every_package_has_tests() -> None:
    package = ROOT / "src" / "promptlimit"
    modules = [*package.glob("_[!_]*.py"), *package.glob("*/__init__.py")]
    for path in modules:
        file = path.relative_to(package).as_posix()
        if path.name != "_version.py":
            assert all((ROOT / "tests" / test).exists() for test in suite_of(file)), file


def test_every_named_error_still_applies_and_says_what_it_breaks() -> None:
    errors = planted(ROOT)
    assert len(errors) >= 40
    assert len({(error.file, error.start) for error in errors}) == len(errors)
    for error in errors:
        text = (ROOT / "src" / "promptlimit" / error.file).read_text(encoding="utf-8")
        assert ast.dump(ast.parse(error.applied(text))) != ast.dump(ast.parse(text))
        assert error.why.endswith(".")
        assert error.tests
        assert all((ROOT / "tests" / test).exists() for test in error.tests)


@pytest.mark.parametrize(("old", "count"), [("x * y", 0), ("x", 2)])
def test_a_named_error_must_apply_exactly_once(tree: Path, old: str, count: int) -> None:
    with pytest.raises(ValueError, match=f"must hold `.*` once, but it does {count} times"):
        Planted("sums:spare", old, "0", "").change(tree)


def test_a_change_is_noticed_and_a_survivor_listed_and_a_second_run_goes_on(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def lines(seed: int) -> set[str]:
        return {snippet(change, tree).splitlines()[-1] for change in sampled(tree, 2, seed)}

    both = {"    +    return x - y", "    +    return x + 7"}
    seed = next(str(seed) for seed in range(1000) if lines(seed) == both)
    log = tree / "log.jsonl"
    command = [
        "--root",
        str(tree),
        "--log",
        str(log),
        "--jobs",
        "1",
        "--count",
        "2",
        "--seed",
        seed,
    ]
    assert main(command) == 1
    printed = capsys.readouterr().out
    # The named error is seen, too.
    assert "2 seen, 0 timed out, 1 survived, 0 did not run" in printed
    survivor = printed.partition("SURVIVED: ")[2]
    assert survivor.startswith("src/tiny/sums.py:10: operator")
    assert "    -    return x - 7\n    +    return x + 7\n" in survivor
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    assert [entry["verdict"] for entry in entries].count("seen") == 2
    assert (tree / "src" / "tiny" / "sums.py").read_text() == MODULE
    log.write_text(log.read_text() + '{"state": "cut')  # as a killed run may leave it
    before = log.read_text()
    assert main(command) == 1
    assert log.read_text() == before, "the second run must read every verdict from the log"


def test_a_change_that_hangs_is_killed_and_listed(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    endless = ERRORS.replace('"y"', '"sum(iter(int, 1))"')
    (tree / "tests" / "planted_errors.toml").write_text(endless)
    command = ["--root", str(tree), "--log", str(tree / "log.jsonl"), "--count", "0"]
    assert main([*command, "--timeout", "5"]) == 0
    assert "0 seen, 1 timed out, 0 survived" in capsys.readouterr().out
