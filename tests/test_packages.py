"""The requirements of the package, from its metadata."""

import importlib.metadata
import json
import tomllib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import promptlimit as pl
from promptlimit._packages import extra_versions, installed_version, package_versions
from promptlimit.storage import RunFolder, environment
from promptlimit.storage._run_folder import _environment

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Yield the versions of what seems to be installed, this package as pyproject.toml says."""
    versions: dict[str, str] = dict.fromkeys(
        ("promptlimit", "jax", "jaxlib", "optax", "numpy"), "1.0"
    )
    extras = PROJECT["optional-dependencies"]
    requires = PROJECT["dependencies"] + [
        f"{requirement}; extra == '{extra}'"
        for extra, requirements in extras.items()
        for requirement in requirements
    ]

    def version(name: str) -> str:
        if name not in versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: version(name) and requires)
    _environment.cache_clear()
    yield versions
    _environment.cache_clear()


def test_every_dependency_is_told_with_its_version_and_jaxlib_with_them(
    installed: dict[str, str],
) -> None:
    named = [requirement.partition(">=")[0] for requirement in PROJECT["dependencies"]]
    found = package_versions()
    assert list(found)[:3] == ["promptlimit", "jax", "jaxlib"]
    assert set(found) == {"promptlimit", "jaxlib", *named}
    there = {"promptlimit": pl.__version__, "jax": "1.0", "jaxlib": "1.0", "optax": "1.0"}
    there |= {"numpy": "1.0"}
    assert {name: version for name, version in found.items() if version} == there


def test_extras_are_told_apart_and_tools_of_developers_are_not_among_them(
    installed: dict[str, str],
) -> None:
    installed["tokenizers"] = "3.0"
    heads = {"gguf": None, "safetensors": None, "tokenizers": "3.0"}
    assert extra_versions() == {"heads": heads, "xarray": {"xarray": None}}


def test_a_source_tree_that_was_never_installed_tells_of_jax_alone(
    installed: dict[str, str],
) -> None:
    assert installed_version() == "1.0"
    del installed["promptlimit"], installed["jaxlib"]
    assert installed_version() is None
    assert package_versions() == {"promptlimit": pl.__version__, "jax": "1.0", "jaxlib": None}
    assert extra_versions() == {}
    assert environment()["jaxlib"] == "missing"


def test_names_are_read_from_any_form_of_a_requirement(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["a-b_c.d>=1", "e [x,y] <2,>=1", "f", 'g==1 ; extra == "two"', "h;extra=='two'", "i~=1"]
    monkeypatch.setattr(importlib.metadata, "requires", lambda _: lines)
    assert list(package_versions()) == ["promptlimit", "jax", "jaxlib", "a-b_c.d", "e", "f", "i"]
    assert extra_versions() == {"two": {"g": None, "h": None}}
    monkeypatch.setattr(importlib.metadata, "requires", lambda _: None)
    assert list(package_versions()) == ["promptlimit", "jax", "jaxlib"]


def test_no_dependency_is_for_some_systems_only() -> None:
    assert not any(";" in requirement for requirement in PROJECT["dependencies"])


def test_a_run_names_all_that_it_stands_on(tmp_path: Path, installed: dict[str, str]) -> None:
    path = RunFolder(tmp_path, {"what": "test"}).save({"x": np.zeros(1)})
    told = json.loads((path / "environment.json").read_text(encoding="utf-8"))
    assert told == environment()
    assert set(told) == {"python", "machine", *package_versions()}
    assert (told["optax"], told["scipy"]) == ("1.0", "missing")
