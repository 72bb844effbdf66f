"""The package's names: lazy, listed once, and typed."""

import ast
import functools
import importlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import promptlimit as pl

ROOT = Path(__file__).parents[1]


def test_every_public_name_loads_and_is_what_it_says() -> None:
    for name in set(dir(pl)) - {"__version__"}:
        assert getattr(pl, name).__name__.removeprefix("promptlimit.") == name


STUBS = sorted((ROOT / "src" / "promptlimit").rglob("__init__.pyi"))


@pytest.mark.parametrize("stub", STUBS, ids=lambda stub: stub.parent.name)
def test_lazy_names_and_typed_names_are_the_same(stub: Path) -> None:
    package = ".".join(stub.parent.relative_to(ROOT / "src").parts)
    imports = [
        node for node in ast.parse(stub.read_text()).body if isinstance(node, ast.ImportFrom)
    ]
    aliases = [alias for node in imports for alias in node.names]
    assert all(alias.asname == alias.name for alias in aliases)  # or no checker would export it
    module = importlib.import_module(package)
    assert sorted(alias.name for alias in aliases) == dir(module) == module.__all__
    for name in dir(module):
        assert getattr(module, name) is not None


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"'Gausian'; did you mean Gaussian\?$"):
        pl.Gausian  # type: ignore  # noqa: B018


def test_importing_the_package_loads_nothing_heavy_and_packages_are_reached_by_name() -> None:
    """In a fresh process, where no other import can have helped; and no flag is set."""
    code = """
import sys, promptlimit
assert "jax" not in sys.modules and "numpy" not in sys.modules
assert promptlimit.dynamics.__name__ == "promptlimit.dynamics"
for name in dir(promptlimit):
    getattr(promptlimit, name)
import jax
assert not jax.config.jax_enable_x64
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_citation_names_this_version() -> None:
    assert f"version: {pl.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"## [{pl.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


def test_contributing_shows_the_layers_that_are_kept() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = next(each["layers"] for each in contracts["contracts"] if each["type"] == "layers")
    shown = "".join(f"{layer}\n" for layer in layers)
    assert f"```text\n{shown}```\n" in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def test_no_module_imports_the_package_above_it() -> None:
    for path, nodes in imports().items():
        if path.parent.name == "cli":
            continue
        for node in nodes:
            if isinstance(node, ast.Import):
                assert "promptlimit" not in {alias.name for alias in node.names}, path
            elif path.name != "__init__.py":
                assert node.module != "promptlimit", path


def test_every_dependency_has_a_lower_bound() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    assert all(">=" in requirement for group in groups for requirement in group)


def test_the_conda_recipe_and_pyproject_say_the_same() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    recipe = yaml.safe_load((ROOT / "packaging/conda/recipe.yaml").read_text(encoding="utf-8"))
    metadata, context = project["project"], recipe["context"]
    assert context["version"] == pl.__version__
    assert metadata["requires-python"] == f">={context['python_min']}"

    def without_spaces(requirements: list[str]) -> set[str]:
        names = (requirement.replace(" ", "") for requirement in requirements)
        return {re.sub("^matplotlib-base(?![a-z-])", "matplotlib", name) for name in names}

    run, host = (without_spaces(recipe["requirements"][part]) for part in ("run", "host"))
    assert run == without_spaces(metadata["dependencies"]) | {"python>=${{python_min}}"}
    assert host == {*project["build-system"]["requires"], "pip", "python${{python_min}}.*"}
    scripts = {f"{name} = {place}" for name, place in metadata["scripts"].items()}
    assert set(recipe["build"]["python"]["entry_points"]) == scripts
    about = recipe["about"]
    assert about["summary"] == metadata["description"]
    assert about["license"] == metadata["license"]
    assert about["homepage"] == metadata["urls"]["Homepage"]
    assert [about["license_file"]] == metadata["license-files"]


ONE_SYSTEM = {
    *("curses", "fcntl", "grp", "nis", "posix", "pty", "pwd", "resource", "spwd", "syslog"),
    *("termios", "tty", "msvcrt", "nt", "winreg", "winsound", "_winapi"),
}
"""Modules of the standard library that not every system has."""

ONE_SYSTEM_NAMES = {
    *(
        "chown",
        "fork",
        "forkpty",
        "getegid",
        "geteuid",
        "getgid",
        "getloadavg",
        "getpgid",
        "getuid",
    ),
    *("killpg", "mkfifo", "posix_spawn", "sched_getaffinity", "sched_setaffinity", "setsid"),
    *("statvfs", "sysconf", "uname", "wait", "O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK"),
    *("SIGALRM", "SIGHUP", "SIGKILL", "SIGUSR1", "SIGUSR2", "alarm", "setitimer"),
}
"""Names in `os` and `signal` that not every system has."""


@functools.cache
def sources() -> dict[Path, str]:
    return {path: path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py")}


@functools.cache
def trees() -> dict[Path, ast.Module]:
    return {path: ast.parse(text) for path, text in sources().items()}


@functools.cache
def imports() -> dict[Path, list[ast.Import | ast.ImportFrom]]:
    return {
        path: [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
        for path, tree in trees().items()
    }


def top_level_imports(tree: ast.Module) -> set[str]:
    """Return the modules imported outside functions, in any branch."""
    found, waiting = set(), list[ast.AST](tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.expr):
            waiting += ast.iter_child_nodes(node)
    return {name.partition(".")[0] for name in found}


def test_no_module_is_imported_that_some_system_lacks() -> None:
    found = {path: top_level_imports(tree) for path, tree in trees().items()}
    assert {"os", "jax", "filelock"} <= set.union(*found.values())
    assert {path: names & ONE_SYSTEM for path, names in found.items() if names & ONE_SYSTEM} == {}


def test_no_name_is_used_unasked_that_some_system_lacks() -> None:
    for path, text in sources().items():
        used = set(re.findall(r"\b(?:os|signal)\.(\w+)", text))
        asked = set(re.findall(r'hasattr\((?:os|signal), "(\w+)"\)', text))
        assert used & ONE_SYSTEM_NAMES <= asked, path


def test_text_is_read_and_written_in_an_encoding_that_is_named() -> None:
    for path, text in sources().items():
        calls = re.findall(r"\.(?:read|write)_text\(.*", text)
        assert all("encoding=" in call for call in calls), path


def test_packages_use_the_public_names_of_one_another() -> None:
    for path, nodes in imports().items():
        own = path.relative_to(ROOT / "src" / "promptlimit").parts[0]
        for node in nodes:
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("promptlimit."):
                package, *inside = (node.module or "").split(".")[1:]
                private = any(name.startswith("_") for name in inside)
                assert package == own or not private, f"{path} imports {node.module}"


def test_a_name_of_a_package_is_pointed_to_its_place() -> None:
    with pytest.raises(AttributeError, match=r"did you mean promptlimit\.results\.GapCurve\?$"):
        _ = pl.GapCurve  # ty: ignore[missing-attribute]
    assert not hasattr(pl, "_repr_mimebundle_")
