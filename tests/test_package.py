"""The package's names: lazy, listed once, and typed."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import promptlimit as pl

ROOT = Path(__file__).parents[1]


def test_every_public_name_loads_and_is_what_it_says() -> None:
    for name in set(dir(pl)) - {"__version__"}:
        assert getattr(pl, name).__name__.removeprefix("promptlimit.") == name


def test_lazy_names_and_typed_names_are_the_same() -> None:
    tree = ast.parse((ROOT / "src" / "promptlimit" / "__init__.py").read_text())
    typed = {
        alias.asname
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").partition(".")[0] == "promptlimit"
        for alias in node.names
        if alias.asname is not None
    }
    assert typed == set(dir(pl)) - {"__version__"}


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'promptlimit' has no attribute 'Gausian'"):
        pl.Gausian  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]


def test_importing_the_package_loads_nothing_heavy_and_sets_no_flag() -> None:
    code = """
import sys, promptlimit
assert "jax" not in sys.modules and "numpy" not in sys.modules
for name in dir(promptlimit):
    getattr(promptlimit, name)
import jax
assert not jax.config.jax_enable_x64
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_citation_names_this_version() -> None:
    assert f"version: {pl.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"## [{pl.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


def test_every_dependency_has_a_lower_bound() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    assert all(">=" in requirement for group in groups for requirement in group)
