"""Objects in .npz files: the arrays of one object, and a JSON description of its construction.

Files are not trusted. The name of a class is looked up in a table and never imported, and the
constructor checks the arrays. The loaded object is then serialised again, and the result must be
identical to the content of the file.
"""

import dataclasses
import importlib
import inspect
import io
import json
import math
import operator
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np

from promptlimit._arrays import is_traced
from promptlimit._inputs import to_device
from promptlimit.errors import ArgumentError, InputFileError
from promptlimit.results import Result
from promptlimit.storage import as_path, reason_of, unpacked_arrays, write_bytes, writing_to

Class = TypeVar("Class", bound=type)

_FORMAT, _VERSION = "promptlimit object", 1
_DEEPEST = 50
"""The deepest nesting of objects, tuples and lists."""
_LONGEST = 2**24
"""The largest description in bytes."""
_DTYPES = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_DTYPES += ("float16", "float32", "float64")

_TABLE: dict[str, tuple[str, dict[str, str] | None]] = {
    "Gaussian": ("measures", {"mean": "location", "cov": "covariance"}),
    "GaussianQuadratic": ("measures", {"mean": "law.location", "cov": "law.covariance"}),
    "UniformSphere": ("measures", {"dim": "space_dim", "radius": "radius"}),
    **dict.fromkeys(
        ("Affine", "Empirical", "Mixture", "Product", "Rademacher", "UniformCube"),
        ("measures", None),
    ),
    **dict.fromkeys(
        ("Factored", "Layer", "LinearAttention", "MultiHead", "SoftmaxAttention", "Stack"),
        ("attention", None),
    ),
    **dict.fromkeys(
        (
            *("CovariateRegression", "LinearRegression", "RotatedRegression"),
            *("Denoising", "InContextDenoising", "Discrimination", "InContextBigram"),
            *("SingleLocation", "InductionHead"),
        ),
        ("tasks", None),
    ),
    "CapturedHeads": ("heads", None),
    "Head": ("heads", None),
    **dict.fromkeys(
        ("AutoregressiveGaussian", "MarkovChain", "Prompt", "WithoutReplacement"), ("prompts", None)
    ),
    **dict.fromkeys(("GaussianScores", "ListedScores", "TokenScores"), ("lengths", None)),
    "AttentionProblem": ("files", None),
    "FlowPlan": ("dynamics", None),
    "TrainingPlan": ("dynamics", None),
}
"""For each class name: the package of the class, and the attribute that contains each argument of
the constructor, or None if the arguments are the fields."""

_PACKAGES_OF_RESULTS = ("results", "weights", "dynamics", "tasks")
"""Packages whose public result classes can be saved."""

_REGISTERED: dict[str, type] = {}


def savable(cls: Class) -> Class:
    """Register a user-defined class, so that `save` and `load` accept its objects.

    Decorate a dataclass or an `equinox.Module` whose constructor has an argument for each field,
    with the name of the field. Import the module that defines the class before calling `load`.

    >>> import equinox as eqx
    >>> @savable
    ... class Scale(eqx.Module):
    ...     factor: float
    """
    if not dataclasses.is_dataclass(cls):
        raise ArgumentError("cls", f"must be a dataclass, got {cls.__name__}.")
    taken = set(inspect.signature(cls).parameters)
    if missing := [name for name in _arguments_of(cls, None) if name not in taken]:
        raise ArgumentError(
            "cls",
            f"must have a constructor with an argument for each field, got {cls.__name__}, whose "
            f"constructor has no argument '{missing[0]}'.",
        )
    _REGISTERED[f"{cls.__module__}.{cls.__qualname__}"] = cls
    return cls


def save(path: str | Path, obj: object) -> None:
    """Write a law, an attention, a task, a training plan or a result to a .npz file.

    The file contains arrays and a JSON description, but no pickle. It is written atomically. All
    results of this library can be saved.

    Args:
        path: a path that ends in .npz.
        obj: an object of this library, or of a class registered with `savable`.

    >>> import tempfile, promptlimit as pl
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     pl.save(f"{folder}/law.npz", pl.Gaussian([1.0], [[2.0]]))
    ...     law = pl.load(f"{folder}/law.npz")
    >>> print(law.mean, law.cov)
    [1.] [[2.]]
    """
    place = as_path(path, "a file")
    if place.suffix != ".npz":
        raise ArgumentError("path", f"must end in .npz, got '{place.name}'.")
    written = _Written()
    described = written.described(obj, "object", 0)
    content = _json(described)
    if len(content) > _LONGEST:
        raise ArgumentError(
            "obj", f"must have a description of at most {_LONGEST} bytes, got {len(content)}."
        )
    archive = io.BytesIO()
    description = np.frombuffer(content, np.uint8)
    np.savez(archive, description=description, **written.arrays)  # ty: ignore[invalid-argument-type]
    with writing_to("path", place):
        write_bytes(place, archive.getvalue())


def load(path: str | Path) -> Any:
    """Return the object in a file that `save` wrote, with bitwise equal arrays.

    Nothing in the file is executed, so it need not be trusted. A damaged file raises an
    `InputFileError`.
    """
    place = as_path(path, "a file")
    needed = f"{place} must be a file that promptlimit.save wrote"
    if place.is_dir():
        raise InputFileError(f"{needed}, got a folder. {_advice_for_folder(place)}")
    if not place.exists():
        raise InputFileError(f"{needed}, but it does not exist. Check the path.")
    try:
        with place.open("rb") as file:
            arrays = unpacked_arrays(file, place.stat().st_size)
        return _loaded(arrays)
    except _UnknownClassError as problem:
        raise InputFileError(f"{needed}, but {problem}") from None
    except Exception as problem:  # a damaged or hostile file may raise anything
        reason = reason_of(problem).partition("\n")[0].rstrip(".")
    raise InputFileError(f"{needed}, but {reason}. Save the object again.")


def _advice_for_folder(place: Path) -> str:
    if (place / "config.json").is_file():
        return (
            "It is a run folder: call `gradient_flow`, `sgd` or `stream` again with "
            f"folder={str(place.parent)!r} to read it."
        )
    return "Give the path of a .npz file."


def _loaded(arrays: dict[str, np.ndarray]) -> object:
    content = _content(arrays.pop("description", None))
    for name, array in arrays.items():
        if array.dtype.name not in _DTYPES:
            raise ValueError(f"'{name}' has dtype {array.dtype}.")
    with jax.enable_x64(True):  # arrays keep their precision
        found = _read(content, arrays, 0)
        again = _Written()
        same = again.described(found, "object", 0) == content
    if not same or set(again.arrays) != set(arrays):
        raise ValueError(
            f"its content is not what `save` would write for the {type(found).__name__} in it."
        )
    for name, array in again.arrays.items():
        if not _same_bits(array, arrays[name]):
            raise ValueError(f"'{name}' is not a valid array of {type(found).__name__}.")
    return found


def _same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def _json(described: object) -> bytes:
    whole = {"format": _FORMAT, "version": _VERSION, "object": described}
    return json.dumps(whole, allow_nan=False).encode()


def _content(stored: np.ndarray | None) -> object:
    """Return the description of the object from the stored bytes."""
    if stored is None or stored.dtype != np.uint8 or stored.ndim != 1 or stored.size > _LONGEST:
        raise ValueError("it has no description.")
    whole = json.loads(stored.tobytes())
    if not isinstance(whole, dict) or whole.get("format") != _FORMAT:
        raise ValueError("its description is of another format.")
    if whole.get("version") != _VERSION:
        raise ValueError(f"it is of version {whole.get('version')!r:.20}, not {_VERSION}.")
    return whole.get("object")


def _class_of(name: object) -> tuple[type, dict[str, str]]:
    """Return the class of this name, and the attribute with each argument of its constructor."""
    if isinstance(name, str) and name in _TABLE:
        package, attributes = _TABLE[name]
        cls = getattr(importlib.import_module(f"promptlimit.{package}"), name)
        return cls, _arguments_of(cls, attributes)
    cls = (_REGISTERED.get(name) or _result_class(name)) if isinstance(name, str) else None
    if cls is None:
        raise _UnknownClassError(
            f"its class {name!r:.60} is not known. Import the module that registers it with "
            "`savable`."
        )
    return cls, _arguments_of(cls, None)


def _result_class(name: str) -> type[Result] | None:
    """Return the public result class of this name, if there is one."""
    for package in _PACKAGES_OF_RESULTS:
        found = getattr(importlib.import_module(f"promptlimit.{package}"), name, None)
        if isinstance(found, type) and issubclass(found, Result) and found is not Result:
            return found
    return None


def _name_of(cls: type) -> str | None:
    """Return the name of a class in files; None for a class that cannot be saved."""
    name, whole = cls.__name__, f"{cls.__module__}.{cls.__qualname__}"
    if _REGISTERED.get(whole) is cls:
        return whole
    listed = name in _TABLE or (issubclass(cls, Result) and _result_class(name) is not None)
    return name if listed and _class_of(name)[0] is cls else None


def _arguments_of(cls: Any, attributes: dict[str, str] | None) -> dict[str, str]:
    if attributes is not None:
        return attributes
    return {field.name: field.name for field in dataclasses.fields(cls) if field.init}


class _UnknownClassError(ValueError):
    """The class in a file is unknown: neither in `_TABLE`, nor a result, nor registered."""


class _Written:
    """The arrays of an object by path, such as "object.mean", collected by `described`."""

    def __init__(self) -> None:
        self.arrays: dict[str, np.ndarray] = {}

    def described(self, value: object, where: str, depth: int) -> object:
        """Return the JSON description of a value at the path `where`, and collect its arrays."""
        if depth > _DEEPEST:
            raise ArgumentError("obj", f"must not be nested deeper than {_DEEPEST}.")
        if value is None or isinstance(value, bool | int | str):
            return value
        if isinstance(value, float) and not isinstance(value, np.generic):
            return value if math.isfinite(value) else {"float": repr(value)}
        if isinstance(value, tuple | list):
            parts = [
                self.described(part, f"{where}.{index}", depth + 1)
                for index, part in enumerate(value)
            ]
            return {type(value).__name__: parts}
        if isinstance(value, Mapping):
            return {"dict": self._entries(value, where, depth)}
        if isinstance(value, np.ndarray | np.generic | jax.Array):
            return self._array(value, where)
        return self._object(value, where, depth)

    def _entries(self, value: Mapping[Any, object], where: str, depth: int) -> dict[str, object]:
        """Return the descriptions of a mapping's values, by key; their paths contain indices."""
        entries = {}
        for index, (key, part) in enumerate(value.items()):
            if not isinstance(key, str):
                raise ArgumentError(
                    "obj", f"must have strings as keys of mappings, got {key!r} ({where})."
                )
            entries[key] = self.described(part, f"{where}.{index}", depth + 1)
        return entries

    def _array(self, value: np.ndarray | np.generic | jax.Array, where: str) -> object:
        if is_traced(value):
            raise ArgumentError(
                "obj", f"must contain numbers, got an array that jax traces ({where})."
            )
        array = np.asarray(value)
        if array.dtype.name not in _DTYPES:
            raise ArgumentError("obj", f"must contain numbers, got dtype {array.dtype} ({where}).")
        self.arrays[where] = array
        form = "jax" if isinstance(value, jax.Array) else "numpy"
        return {"scalar" if isinstance(value, np.generic) else form: where}

    def _object(self, value: object, where: str, depth: int) -> object:
        cls = type(value)
        name = _name_of(cls)
        if name is None:
            raise ArgumentError(
                "obj",
                f"must consist of classes that can be saved, got {cls.__name__} ({where}). "
                "Decorate user-defined classes with promptlimit.files.savable.",
            )
        arguments = {}
        for argument, attribute in _class_of(name)[1].items():
            part = operator.attrgetter(attribute)(value)
            if name == "TrainingPlan" and argument == "optimiser" and part is not None:
                raise ArgumentError(
                    "obj",
                    "must not contain an optax optimiser, which is code and cannot be saved. Save "
                    "dataclasses.replace(plan, optimiser=None) and set it again after loading.",
                )
            arguments[argument] = self.described(part, f"{where}.{argument}", depth + 1)
        return {"class": name, "arguments": arguments}


def _read(node: object, arrays: Mapping[str, np.ndarray], depth: int) -> Any:
    """Return the value that a description with its arrays represents."""
    if depth > _DEEPEST:
        raise ValueError(f"its description is nested deeper than {_DEEPEST}.")
    if isinstance(node, list):
        raise ValueError("its description has a list that is neither marked as list nor as tuple.")
    if not isinstance(node, dict):
        return node
    if "class" in node:
        cls, known = _class_of(node["class"])
        arguments = node.get("arguments")
        if not isinstance(arguments, dict) or len(node) != 2 or set(arguments) != set(known):
            raise ValueError(f"it does not have the arguments of {cls.__name__}.")
        return cls(**{name: _read(part, arrays, depth + 1) for name, part in arguments.items()})
    ((form, content),) = node.items()
    if form not in _FORMS:
        raise ValueError(f"its description has {form!r:.20}, which is not a known form.")
    if form in ("tuple", "list"):
        content = [_read(part, arrays, depth + 1) for part in content]
    elif form == "dict":
        content = {key: _read(part, arrays, depth + 1) for key, part in content.items()}
    elif form != "float":
        content = arrays[content]
    return _FORMS[form](content)


_FORMS: dict[str, Callable[[Any], object]] = {
    "tuple": tuple,
    "list": list,
    "dict": dict,
    "float": float,
    "numpy": lambda array: array,
    "scalar": lambda array: array[()],
    "jax": to_device,
}
"""For each form in a description: the function that converts its content to the value."""
