"""Configuration, weights and tokenizer of models on disk. The files are not trusted."""

import abc
import importlib
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from promptlimit.errors import InputFileError, MissingPackageError

_LARGEST_JSON = 64 * 2**20
_FLOATS = ("F64", "F32", "F16", "BF16")
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\.safetensors")
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
_OLD_NAMES = {"weight": "gamma", "bias": "beta"}
_CONVERT = (
    "Convert it once where you trust it, with transformers: "
    "AutoModel.from_pretrained(folder).save_pretrained(other_folder)."
)


def extra(package: str) -> ModuleType:
    """Import and return a package of the extra `heads`."""
    try:
        return importlib.import_module(package)
    except ImportError:
        raise MissingPackageError(
            f"trained models must be read with the package {package.partition('.')[0]}, "
            "which is not installed. Run pip install 'promptlimit[heads]'."
        ) from None


def _read_config(folder: Path) -> dict[str, Any]:
    try:
        there = folder.is_dir()
    except OSError:  # the name is too long, or access is denied
        there = False
    if not there:
        raise InputFileError(
            f"{folder} must be a folder with config.json and model.safetensors, but it does not "
            "exist. Models are read from disk and never fetched."
        )
    return _read_json(folder / "config.json")


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise InputFileError(
            f"{path.parent} must hold {path.name}, but it does not. Save the model with "
            "save_pretrained(folder), or copy the whole folder."
        )
    if path.stat().st_size > _LARGEST_JSON:
        raise InputFileError(
            f"{path} must be smaller than 64 MiB, got {path.stat().st_size} bytes."
        )
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as problem:
        raise InputFileError(
            f"{path} must be readable as JSON, but {problem}. Copy it again."
        ) from None
    if not isinstance(content, dict):
        raise InputFileError(f"{path} must hold a JSON object, got {type(content).__name__}.")
    return content


class StoredTensor(NamedTuple):
    """A tensor on disk: its name and file for messages, its shape, and a function that reads it."""

    label: str
    shape: tuple[int, ...]
    read: Callable[[], np.ndarray]


class AbstractModelSource(abc.ABC):
    """A model on disk, whose tensors are read by the names that Hugging Face models use.

    Attributes:
        place: the path of the folder or file.
        name: the name of the model.
        described_by: the name of the source of the configuration, for messages.
        config: the content of config.json, or its equivalent.
    """

    place: Path
    name: str
    described_by: str
    config: dict[str, Any]
    _tensors: Mapping[str, Any]

    def __contains__(self, name: str) -> bool:
        return self._spelled(name) in self._tensors

    @abc.abstractmethod
    def tokenizer(self) -> Any:
        """Return the tokenizer, or None if it is missing or not supported."""

    @abc.abstractmethod
    def _spelled(self, name: str) -> str:
        """Return the name in the file of the tensor that Hugging Face models call `name`."""

    @abc.abstractmethod
    def _stored(self, name: str) -> StoredTensor:
        """Return a tensor by its name in the file."""

    def read(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """Return one tensor in single precision, after its shape and type have been checked."""
        name = self._spelled(name)
        if name not in self._tensors:
            raise InputFileError(
                f"{self.place} must hold the tensor '{name}', but it does not. "
                f"The weights do not belong to {self.described_by}."
            )
        stored = self._stored(name)
        if stored.shape != shape:
            raise InputFileError(
                f"{stored.label} must have shape {shape} ({self.described_by}), got {stored.shape}."
            )
        with np.errstate(over="ignore", invalid="ignore"):
            array = stored.read().astype(np.float32, copy=False)
        if not np.isfinite(array).all():
            raise InputFileError(
                f"{stored.label} must be finite in single precision, but it is not."
            )
        return array


class ModelFolder(AbstractModelSource):
    """A folder of Hugging Face layout; the tensors are in one or several files."""

    def __init__(self, folder: Path):
        self.place, self.name, self.described_by = folder, folder.name, "config.json"
        self.config = _read_config(folder)
        self._opened: dict[str, Any] = {}
        self._tensors = _files_of_tensors(folder, self._open)

    def _stored(self, name: str) -> StoredTensor:
        source, label = self._open(self._tensors[name]), f"'{name}' in {self._tensors[name]}"
        entry = source.get_slice(name)
        if entry.get_dtype() not in _FLOATS:
            raise InputFileError(
                f"{label} must be of type {', '.join(_FLOATS)}, "
                f"got {entry.get_dtype()}. Quantised weights must be restored first."
            )
        return StoredTensor(label, tuple(entry.get_shape()), lambda: source.get_tensor(name))

    def tokenizer(self) -> Any:
        """Return the tokenizer of tokenizer.json, or None without that file."""
        path = self.place / "tokenizer.json"
        if not path.is_file():
            return None
        tokenizers = extra("tokenizers")
        try:
            tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as problem:  # the package raises Exception itself
            raise InputFileError(
                f"{path} must be a tokenizer, but {problem}. Save it again."
            ) from None
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return tokenizer

    def _spelled(self, name: str) -> str:
        """Return the name in the file. Old models call weight and bias of a norm gamma and beta."""
        start, dot, end = name.rpartition("LayerNorm.")
        old = f"{start}{dot}{_OLD_NAMES[end]}" if dot and end in _OLD_NAMES else name
        return old if name not in self._tensors and old in self._tensors else name

    def _open(self, file: str) -> Any:
        if file not in self._opened:
            self._opened[file] = _open_safetensors(self.place / file)
        return self._opened[file]


def _open_safetensors(path: Path) -> Any:
    safetensors = extra("safetensors")
    if not path.is_file():
        raise InputFileError(f"{path} must exist, since the index names it. Copy every shard.")
    try:
        return safetensors.safe_open(path, framework="numpy")
    except (safetensors.SafetensorError, OSError) as problem:
        raise InputFileError(
            f"{path} must be a whole safetensors file, but {problem}. Copy it again."
        ) from None


def _files_of_tensors(folder: Path, opener: Any) -> dict[str, str]:
    """Return the name of the file that contains each tensor."""
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.is_file():
        return dict.fromkeys(opener(single.name).keys(), single.name)
    if not index.is_file():
        raise InputFileError(_missing_weights(folder))
    homes = _read_json(index).get("weight_map")
    if not isinstance(homes, Mapping) or not homes:
        raise InputFileError(f"{index} must hold a 'weight_map', but it does not.")
    for name, file in homes.items():
        if not isinstance(file, str) or not _PLAIN_NAME.fullmatch(file):
            raise InputFileError(
                f"{index} must name safetensors files in its own folder, got {file!r} for "
                f"'{name}'. Nothing outside the folder is opened."
            )
        if name not in opener(file).keys():  # noqa: SIM118 - not a mapping
            raise InputFileError(
                f"{folder / file} must hold '{name}' ({index.name}), but it does not."
            )
    return dict(homes)


def _missing_weights(folder: Path) -> str:
    pickled = sorted(path.name for pattern in _PICKLES for path in folder.glob(pattern))
    if pickled:
        return (
            f"{folder} must hold model.safetensors, got the pickle {pickled[0]}, which could run "
            f"any code and is never opened. {_CONVERT}"
        )
    return (
        f"{folder} must hold model.safetensors or model.safetensors.index.json with its shards, "
        "but it holds neither."
    )
