"""Inputs of pandas, xarray and NumPy subclasses: read as arrays, or refused in one sentence."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import promptlimit as pl

pd = pytest.importorskip("pandas", reason="pip install pandas")
xr = pytest.importorskip("xarray", reason="pip install xarray")

EYE = np.eye(2)
PAIR = np.array([1.0, 0.5])
LAW = pl.Gaussian([0.0, 0.0], EYE)
HEAD = pl.SoftmaxAttention(EYE, EYE)
LENGTHS = np.array([10.0, 100.0])

ENTRIES: dict[str, tuple[Callable[[Any], Any], np.ndarray]] = {
    "tokens": (lambda a: pl.Empirical(a).tokens, EYE),
    "mean": (lambda a: pl.Gaussian(a, EYE).mean, PAIR),
    "cov": (lambda a: pl.Gaussian(PAIR, a).cov, EYE),
    "key_query": (lambda a: pl.SoftmaxAttention(a, EYE).key_query, EYE),
    "value": (lambda a: pl.LinearAttention(EYE, a).value, EYE),
    "covariance": (lambda a: pl.LinearRegression(a).covariance, EYE),
    "query": (lambda a: pl.prompt_moments(HEAD, LAW, a, 10).mean, PAIR),
    "queries": (lambda a: pl.output_gap(HEAD, LAW, a, 10).value, EYE),
    "lengths": (lambda a: pl.prompt_moments(HEAD, LAW, PAIR, a).value, LENGTHS),
    "sharpness": (lambda a: pl.weight_statistics(a, 10).participation, PAIR),
    "scores": (lambda a: pl.lengths.ListedScores(a).scores, PAIR),
}


def framed(array: np.ndarray, **options: Any) -> Any:
    """Return a table for a matrix and a column for a vector."""
    return (pd.DataFrame if array.ndim == 2 else pd.Series)(array, **options)


READ = {
    "pandas": framed,
    "pandas with labels": lambda a: framed(a, index=["x", "y"]),
    "pandas with nullable floats": lambda a: framed(a).astype("Float64"),
    "xarray": lambda a: xr.DataArray(a, dims=["i", "j"][: a.ndim]),
}


@pytest.mark.parametrize("kind", READ)
@pytest.mark.parametrize("name", ENTRIES)
def test_tables_and_labelled_arrays_are_read_as_arrays(name: str, kind: str) -> None:
    entry, array = ENTRIES[name]
    found = entry(READ[kind](array))
    assert not isinstance(found, pd.DataFrame | pd.Series | xr.DataArray)
    np.testing.assert_array_equal(found, entry(array))


@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
@pytest.mark.parametrize("name", [name for name, entry in ENTRIES.items() if entry[1].ndim == 2])
def test_a_matrix_of_numpy_is_an_array(name: str) -> None:
    entry, array = ENTRIES[name]
    found = entry(np.matrix(array))
    assert not isinstance(found, np.matrix)
    np.testing.assert_array_equal(found, entry(array))


@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
@pytest.mark.parametrize("name", ["mean", "query", "scores"])
def test_a_matrix_of_numpy_is_no_vector(name: str) -> None:
    entry, array = ENTRIES[name]
    with pytest.raises(ValueError, match=rf"^`{name}` must be a .*, got shape \(1, 2\)\.$"):
        entry(np.matrix(array))


@pytest.mark.parametrize("name", ENTRIES)
def test_datasets_missing_values_and_text_are_refused_by_name(name: str) -> None:
    entry, array = ENTRIES[name]
    with pytest.raises(
        ValueError, match=rf"^`{name}` must be an array .*Pass one of its arrays\.$"
    ):
        entry(xr.Dataset({"a": xr.DataArray(array)}))
    missing = framed(array).astype("Float64").mask(framed(array) == array.flat[0])
    with pytest.raises(ValueError, match=rf"^`{name}` must .*, got .*\.$"):
        entry(missing)
    with pytest.raises(ValueError, match=rf"^`{name}` must .*numbers, got .*\.$"):
        entry(framed(array).astype(str))
