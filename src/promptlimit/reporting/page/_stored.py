"""What `promptlimit reproduce` left in a folder, read back. The files are not trusted."""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from promptlimit.reporting.page._svg import Drawing, SvgError, safe_drawing
from promptlimit.results import Check, ClaimResult, InputFileError, Verdict

_JSON_LIMIT, _SVG_LIMIT = 1_000_000, 10_000_000
_MOST_FILES, _DEEPEST = 300, 20
_ROLES, _RELATIONS = ("statement", "amended", "control"), ("<=", ">=")
_SECTIONS = ("paper", "beyond")
_DOWNLOADS = ("pdf", "png", "svg", "npz")


@dataclass(frozen=True)
class Origin:
    """How a result came about, and how to have it again.

    Attributes:
        command: what regenerates it; empty when the file does not say.
        setting: the configuration, by name.
        seconds: how long it took, when known.
        digest: the hash of the configuration; empty when the file does not say.
    """

    command: str
    setting: Mapping[str, Any]
    seconds: float | None
    digest: str


@dataclass(frozen=True)
class StoredClaim:
    """A decided claim, notes beside it where there are some, and where it comes from."""

    result: ClaimResult
    notes: tuple[str, ...]
    origin: Origin


@dataclass(frozen=True)
class StoredFigure:
    """A figure: words, drawing, and the files beside it.

    Attributes:
        name: the stem of its files.
        title: a line above it.
        caption: the words below it.
        reference: which figure of the paper it is, or the result it belongs to; may be empty.
        beyond: whether it goes beyond the paper.
        origin: where it comes from.
        drawing: what is shown, or None.
        problem: why nothing is shown, when nothing is.
        downloads: endings of the files that lie beside the page, without the dot.
    """

    name: str
    title: str
    caption: str
    reference: str
    beyond: bool
    origin: Origin
    drawing: Drawing | None
    problem: str
    downloads: tuple[str, ...]


@dataclass(frozen=True)
class StoredReport:
    """All that a folder holds: claims by number, figures by reference, and the provenance."""

    claims: tuple[StoredClaim, ...]
    figures: tuple[StoredFigure, ...]
    provenance: Mapping[str, Any]


def read_report(folder: Path) -> StoredReport:
    """Return what a folder of results holds, or raise `InputFileError` with one sentence."""
    if not folder.is_dir():
        raise InputFileError(
            f"{folder} must be a folder of results, but there is no such folder. "
            f"Make it with promptlimit reproduce --out {folder}"
        )
    claims = [_claim(path) for path in _entries(folder / "claims", "json")]
    drawn = _entries(folder / "figures", "json", "svg")
    figures = [_figure(path, f"f{i}-") for i, path in enumerate(drawn)]
    if not claims and not figures:
        raise InputFileError(
            f"{folder} must hold claims/NAME.json or figures/NAME.json, but has neither. "
            f"Fill it with promptlimit reproduce --out {folder}"
        )
    _require_different_numbers(claims, folder)
    return StoredReport(
        claims=tuple(sorted(claims, key=lambda claim: claim.result.number)),
        figures=tuple(sorted(figures, key=_place)),
        provenance=_provenance(folder / "provenance.json"),
    )


def _entries(folder: Path, *endings: str) -> list[Path]:
    """Return the .json of each result of a folder, by name, whichever of its files are there."""
    found = (path.stem for ending in endings for path in folder.glob(f"*.{ending}"))
    names = sorted({name for name in found if not name.startswith(".")})
    if len(names) > _MOST_FILES:
        raise InputFileError(
            f"{folder} must hold at most {_MOST_FILES} results, got {len(names)}. "
            "Move what does not belong there."
        )
    return [folder / f"{name}.json" for name in names]


def numbers_in(reference: str) -> tuple[int, ...]:
    """Return the whole numbers of a reference, ranges filled in.

    >>> numbers_in("Figures 1 and 5 to 8")
    (1, 5, 6, 7, 8)
    """
    words = reference.replace("–", "-").replace("-", " to ").replace(",", " ").split()
    numbers: list[int] = []
    for i, word in enumerate(words):
        if word.isascii() and word.isdecimal() and len(word) < 4:
            first = numbers[-1] + 1 if numbers and words[i - 1] == "to" else int(word)
            numbers.extend(range(first, int(word) + 1))
    return tuple(numbers)


def _place(figure: StoredFigure) -> tuple[bool, bool, tuple[int, ...], str]:
    numbers = numbers_in(figure.reference)
    return figure.beyond, not numbers, numbers, figure.name


def _claim(path: Path) -> StoredClaim:
    content = _object(path)
    try:
        result = ClaimResult(
            number=_whole(content, "number"),
            name=_text(content, "name"),
            statement=_text(content, "statement"),
            reference=_text(content, "reference"),
            expected=_one_of(content, "expected", get_args(Verdict)),
            checks=tuple(_check(check) for check in _list(content, "checks")),
        )
        if content.get("verdict") != result.verdict:
            raise ValueError(
                f"its numbers say '{result.verdict}' where its verdict says "
                f"'{str(content.get('verdict'))[:40]}'"
            )
        notes = (_text(content, key, "") for key in ("evidence", "note"))
        return StoredClaim(result, tuple(note for note in notes if note), _origin(content))
    except ValueError as problem:
        raise InputFileError(f"{path} must hold a claim, but {problem}. {_again(path)}") from None


def _check(content: object) -> Check:
    if not isinstance(content, Mapping):
        raise ValueError("one of its checks is not an object")
    return Check(
        name=_text(content, "name"),
        value=_number(content, "value"),
        relation=_one_of(content, "relation", _RELATIONS),
        tolerance=_number(content, "tolerance"),
        role=_one_of(content, "role", _ROLES),
        error=None if content.get("error") is None else _number(content, "error"),
    )


def _require_different_numbers(claims: list[StoredClaim], folder: Path) -> None:
    names: dict[int, str] = {}
    for claim in claims:
        name, number = claim.result.name, claim.result.number
        if number in names:
            raise InputFileError(
                f"{folder / 'claims'} must hold each claim once, but '{names[number]}' and "
                f"'{name}' both have number {number}. Delete the one that does not belong there."
            )
        names[number] = name


def _figure(path: Path, prefix: str) -> StoredFigure:
    content = _object(path) if path.is_file() else {}
    try:
        words = {key: _text(content, key, "") for key in ("title", "caption", "reference")}
        beyond = _one_of({"section": "beyond", **content}, "section", _SECTIONS) == "beyond"
        origin = _origin(content)
    except ValueError as problem:
        raise InputFileError(
            f"{path} must hold a figure's words, but {problem}. {_again(path)}"
        ) from None
    drawing, problem = _drawing(path.with_suffix(".svg"), prefix)
    downloads = tuple(end for end in _DOWNLOADS if path.with_suffix(f".{end}").is_file())
    return StoredFigure(
        name=path.stem,
        title=words["title"] or path.stem.replace("_", " ").replace("-", " ").capitalize(),
        caption=words["caption"],
        reference=words["reference"],
        beyond=beyond,
        origin=origin,
        drawing=drawing,
        problem=problem,
        downloads=downloads,
    )


def _drawing(path: Path, prefix: str) -> tuple[Drawing | None, str]:
    """Return the drawing, or why there is none: a page with one figure less is still a page."""
    name = f"{path.parent.name}/{path.name}"
    if not path.is_file():
        return None, f"{name} is not in this folder. Run promptlimit reproduce {path.stem} again."
    try:
        return safe_drawing(_content(path, _SVG_LIMIT), prefix), ""
    except (SvgError, InputFileError) as problem:
        return None, f"{name} is not shown: {problem}. {_again(path)}"


def _provenance(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    content = _object(path)
    try:
        return {**content, **{key: _number(content, key) for key in content if key == "seconds"}}
    except ValueError as problem:
        reason = f"{problem}. {_again(path)}"
        raise InputFileError(
            f"{path} must hold where the results come from, but {reason}"
        ) from None


def _origin(content: Mapping[str, Any]) -> Origin:
    setting = content.get("setting", {})
    if not isinstance(setting, Mapping):
        raise ValueError("its 'setting' is not an object")
    if "seed" in content:
        setting = {"seed": content["seed"], **setting}
    return Origin(
        command=_text(content, "command", ""),
        setting=setting,
        seconds=None if content.get("seconds") is None else _number(content, "seconds"),
        digest=_text(content, "hash", ""),
    )


def _object(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(_content(path, _JSON_LIMIT).decode("utf-8-sig"))
    except RecursionError:
        reason = "it is nested too deep"
    except UnicodeDecodeError:
        reason = "it is not UTF-8 text"
    except InputFileError as problem:
        reason = str(problem)
    except ValueError as problem:
        reason = f"{problem}"
    else:
        if isinstance(content, dict) and _depth(content) <= _DEEPEST:
            return content
        reason = "it is nested too deep" if isinstance(content, dict) else "it is none"
    raise InputFileError(f"{path} must hold a JSON object, but {reason}. {_again(path)}")


def _depth(content: object) -> int:
    """Return how deep lists and objects are nested, up to one more than is allowed."""
    level, depth = [content], 0
    while level and depth <= _DEEPEST:
        depth += 1
        level = [child for part in level for child in _children(part)]
    return depth


def _children(part: object) -> Iterator[object]:
    if isinstance(part, dict):
        yield from part.values()
    elif isinstance(part, list):
        yield from part


def _content(path: Path, limit: int) -> bytes:
    if not path.is_file():
        raise InputFileError("it is no file")
    with path.open("rb") as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise InputFileError(f"it is larger than {limit // 1_000_000} MB")
    return content


def _again(path: Path) -> str:
    name = "" if path.stem == "provenance" else f" {path.stem}"
    return f"Delete it and run promptlimit reproduce{name} again."


def _text(content: Mapping[str, Any], key: str, default: str | None = None) -> str:
    value = content.get(key, default)
    if not isinstance(value, str):
        raise ValueError(f"its '{key}' is not text")
    return value


def _number(content: Mapping[str, Any], key: str) -> float:
    """Return a number; null stands for one that could not be computed."""
    value = content.get(key, "")
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"its '{key}' is not a number")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"its '{key}' is too large a number") from None


def _whole(content: Mapping[str, Any], key: str) -> int:
    value = content.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 1000:
        raise ValueError(f"its '{key}' is not a whole number from 1 to 999")
    return value


def _list(content: Mapping[str, Any], key: str) -> list[Any]:
    value = content.get(key)
    if not isinstance(value, list):
        raise ValueError(f"its '{key}' is not a list")
    return value


def _one_of(content: Mapping[str, Any], key: str, known: tuple[str, ...]) -> Any:
    value = content.get(key)
    if value not in known:
        raise ValueError(f"its '{key}' is none of {', '.join(known)}")
    return value


def parts(value: object) -> Iterator[tuple[str, str]]:
    """Yield names and values of a mapping from a file as text, whatever it holds.

    >>> list(parts({"seed": 0, "quick": False, "versions": {"jax": "0.10"}}))
    [('seed', '0'), ('quick', 'no'), ('versions', 'jax 0.10')]
    """
    if not isinstance(value, Mapping):
        return
    for key, item in value.items():
        if isinstance(item, bool):
            yield str(key), "yes" if item else "no"
        elif isinstance(item, Mapping):
            yield str(key), ", ".join(f"{name} {text}" for name, text in parts(item))
        elif isinstance(item, str):
            yield str(key), item
        else:
            yield str(key), json.dumps(item)
