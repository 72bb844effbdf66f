"""Imports of the package are lazy."""

import subprocess
import sys

import pytest

import promptlimit.weights


def test_weight_statistics_load_without_jax():
    code = (
        "import sys, promptlimit as pl; print(pl.weight_statistics(1.0, 2).participation); "
        "print('jax' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    participation, loaded = done.stdout.split()
    assert participation.startswith("0.63683815")
    assert loaded == "False"


def test_every_public_name_is_listed_and_loads():
    for name in dir(promptlimit.weights):
        assert getattr(promptlimit.weights, name) is not None
    with pytest.raises(AttributeError, match=r"^No promptlimit.weights attribute x$"):
        promptlimit.weights.x  # type: ignore  # noqa: B018
