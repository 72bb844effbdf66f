"""Report folders: claims and figures of papers as they lie on disk, typed in and typed out.

    DIR/index.html  provenance.json  runs/
    DIR/PAPER/paper.json
    DIR/PAPER/claims/NAME.json
    DIR/PAPER/figures/NAME.json  NAME.npz  NAME.png  NAME.svg  NAME.pdf

Every file appears whole, the .json of a figure after its arrays. Nothing that is read is trusted:
what is not as it was written is refused in one sentence, and a verdict that does not follow from
its numbers is no verdict.
"""

import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from promptlimit.results._claims import Check, ClaimResult, Verdict
from promptlimit.results._files import (
    InputFileError,
    numbers_in_archive,
    write_bytes,
    write_json,
)
from promptlimit.results._run_folder import run_name
from promptlimit.results._training import masked, unmasked

_JSON_LIMIT, _ARRAYS_LIMIT = 1_000_000, 100_000_000
_MOST_FILES, _DEEPEST = 300, 20
_PICTURES = ("pdf", "png", "svg")
Section = Literal["paper", "beyond"]


@dataclass(frozen=True)
class Origin:
    """How a result came about, and how to have it again.

    Attributes:
        command: what regenerates it; empty when the file does not say.
        setting: the configuration, by name.
        seconds: how long it took, when known.
        digest: the hash of all that decides it; empty when the file does not say.
    """

    command: str = ""
    setting: Mapping[str, Any] = field(default_factory=dict)
    seconds: float | None = None
    digest: str = ""


@dataclass(frozen=True)
class StoredPaper:
    """What a page says of a paper: its title, who wrote it, where it is, how much it claims."""

    name: str
    title: str
    citation: str = ""
    link: str = ""
    claims: int = 0


@dataclass(frozen=True)
class StoredClaim:
    """A decided claim of a paper, and where it comes from."""

    paper: str
    result: ClaimResult
    origin: Origin

    @property
    def name(self) -> str:
        """The claim's short name."""
        return self.result.name


@dataclass(frozen=True, eq=False)
class StoredFigure:
    """A figure of a paper: words, the arrays it is drawn from, and where they come from.

    Attributes:
        paper: the name of its paper.
        name: the stem of its files.
        title: a line above it.
        caption: the words below it.
        reference: which figure of the paper it is, or the result it belongs to; may be empty.
        section: whether the paper has it, or it goes beyond the paper.
        drawing: the name of what draws it.
        arrays: what it is drawn from.
        origin: where it comes from.
        drawn_by: the hash of the code that drew the pictures beside it; empty before.
        pictures: endings of those pictures.
    """

    paper: str
    name: str
    title: str
    caption: str
    reference: str
    section: Section
    drawing: str
    arrays: Mapping[str, np.ndarray]
    origin: Origin
    drawn_by: str = ""
    pictures: tuple[str, ...] = ()

    @property
    def place(self) -> tuple[bool, bool, tuple[int, ...], str]:
        """What sorts figures: those of the paper by number, those without, those beyond it."""
        numbers = figure_numbers(self.reference)
        return self.section == "beyond", not numbers, numbers, self.name


@dataclass(frozen=True)
class StoredReport:
    """All that a folder holds: papers by name, claims by number, figures by reference."""

    papers: tuple[StoredPaper, ...]
    claims: tuple[StoredClaim, ...]
    figures: tuple[StoredFigure, ...]
    provenance: Mapping[str, Any]

    def of_paper(self, name: str) -> "StoredReport":
        """Return what belongs to one paper."""
        return StoredReport(
            tuple(paper for paper in self.papers if paper.name == name),
            tuple(claim for claim in self.claims if claim.paper == name),
            tuple(figure for figure in self.figures if figure.paper == name),
            {},
        )


def figure_numbers(reference: str) -> tuple[int, ...]:
    """Return the numbers of the figures that a reference names, ranges filled in.

    >>> figure_numbers("Lemma 3 and Figures 1 and 5 to 8")
    (1, 5, 6, 7, 8)
    """
    words = reference.partition("Figure")[2].replace("–", "-").replace("-", " to ")
    numbers: list[int] = []
    before = ""
    for word in words.replace(",", " ").split():
        if word.isascii() and word.isdecimal() and len(word) < 4:
            first = numbers[-1] + 1 if numbers and before == "to" else int(word)
            numbers.extend(range(first, int(word) + 1))
        before = word
    return tuple(numbers)


class ReportFolder:
    """A folder of results of papers."""

    def __init__(self, path: Path):
        self.path = path
        self._provenance = path / "provenance.json"

    def runs(self, engine: str) -> Path:
        """Return where runs of the engine with that hash are kept, for all papers."""
        return self.path / "runs" / engine

    def save_paper(self, paper: StoredPaper) -> None:
        """Write what the page says of a paper."""
        write_json(self.path / paper.name / "paper.json", asdict(paper))

    def save_claim(self, claim: StoredClaim) -> None:
        """Write a claim with its numbers and its origin."""
        content = {**claim.result.as_json(), **_origin_json(claim.origin)}
        write_json(self._file(claim.paper, "claims", claim.name), content)

    def save_figure(self, figure: StoredFigure) -> None:
        """Write the arrays of a figure, then its words: without words there is no figure."""
        words = self._file(figure.paper, "figures", figure.name)
        words.unlink(missing_ok=True)
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, **masked(figure.arrays))
        write_bytes(words.with_suffix(".npz"), buffer.getvalue())
        self._save_words(figure)

    def save_pictures(
        self, figure: StoredFigure, pictures: Mapping[str, bytes], drawn_by: str
    ) -> StoredFigure:
        """Write the pictures of a stored figure by their endings; return the figure with them."""
        words = self._file(figure.paper, "figures", figure.name)
        for ending, content in pictures.items():
            write_bytes(words.with_suffix(f".{ending}"), content)
        figure = replace(figure, drawn_by=drawn_by, pictures=_pictures(words))
        self._save_words(figure)
        return figure

    def _save_words(self, figure: StoredFigure) -> None:
        keys = ("name", "title", "caption", "reference", "section", "drawing", "drawn_by")
        content = {key: getattr(figure, key) for key in keys} | _origin_json(figure.origin)
        write_json(self._file(figure.paper, "figures", figure.name), content)

    def save_page(self, text: str) -> Path:
        """Write `index.html` and return its path."""
        write_bytes(self.path / "index.html", text.encode())
        return self.path / "index.html"

    def claim(self, paper: str, name: str) -> StoredClaim | None:
        """Return a stored claim, None where there is none; one that is damaged is refused."""
        path = self._file(paper, "claims", name)
        return _read_claim(paper, path) if path.exists() else None

    def figure(self, paper: str, name: str) -> StoredFigure | None:
        """Return a stored figure, None where there is none; one that is damaged is refused."""
        path = self._file(paper, "figures", name)
        return _read_figure(paper, path) if path.exists() else None

    def holds(self, paper: str, kind: str, name: str, digest: str) -> bool:
        """Return whether a claim or figure seems to be there as all that decides it would have it.

        Args:
            paper: the name of the paper.
            kind: "claims" or "figures".
            name: of the item.
            digest: the hash of what decides it.
        """
        try:
            return _object(self._file(paper, kind, name)).get("hash") == digest
        except InputFileError:
            return False

    def files(self, item: StoredClaim | StoredFigure) -> list[Path]:
        """Return the files of a claim or figure, the .json last."""
        if isinstance(item, StoredClaim):
            return [self._file(item.paper, "claims", item.name)]
        words = self._file(item.paper, "figures", item.name)
        return [words.with_suffix(f".{end}") for end in (*item.pictures, "npz")] + [words]

    def read(self) -> StoredReport:
        """Return all there is, or one sentence for each file that cannot be used."""
        if not self.path.is_dir():
            raise InputFileError(
                f"{self.path} must be a folder of results, but there is no such folder. "
                f"Make it with promptlimit reproduce --out {self.path}"
            )
        self.require_layout()
        problems: list[str] = []
        names = sorted(path.name for path in self.path.iterdir() if _is_paper(path))
        words = ((name, self.path / name / "paper.json") for name in names)
        papers = [_kept(problems, _read_paper, *where) for where in words]
        claims = [_kept(problems, _read_claim, *where) for where in self._entries(names, "claims")]
        drawn = self._entries(names, "figures")
        figures = [_kept(problems, _read_figure, *where) for where in drawn]
        provenance = _kept(problems, _read_provenance, self._provenance)
        if problems:
            raise InputFileError("\n".join(problems))
        if not claims and not figures:
            raise InputFileError(
                f"{self.path} must hold PAPER/claims/NAME.json or PAPER/figures/NAME.json, but has "
                f"neither. Fill it with promptlimit reproduce --out {self.path}"
            )
        self._require_different_numbers(claims)
        return StoredReport(
            papers=tuple(papers),
            claims=tuple(sorted(claims, key=lambda claim: (claim.paper, claim.result.number))),
            figures=tuple(sorted(figures, key=lambda figure: (figure.paper, figure.place))),
            provenance=provenance,
        )

    def require_layout(self) -> None:
        """Refuse a folder of version 0.1, which had no subfolders of papers."""
        if (self.path / "claims").is_dir() or (self.path / "figures").is_dir():
            raise InputFileError(
                f"{self.path} must hold one subfolder for each paper, but claims/ and figures/ lie "
                "in it, as version 0.1 wrote them. Delete it, or choose another folder."
            )

    def record(
        self,
        items: Sequence[StoredClaim | StoredFigure],
        fresh: Sequence[StoredClaim | StoredFigure],
        facts: Mapping[str, Any],
        *,
        whole: bool,
    ) -> Path:
        """Write where and when items came from; what an earlier run wrote stays if nothing is new.

        Args:
            items: all that were asked for.
            fresh: those of them that were computed now.
            facts: when, where and with what.
            whole: whether they are the whole reproduction. A part of it, computed later, is added
                to the provenance of the whole and does not take its place.
        """
        name = run_name({"items": sorted(item.origin.digest for item in items)})
        try:
            before = _read_provenance(self._provenance)
        except InputFileError:
            before = {}
        if "hash" not in before:
            before = {}
        if before and not fresh and (not whole or before["hash"] == name):
            return self._provenance
        content = {**facts, "hash": name}
        content["computed"] = f"{len(fresh)} of {len(items)} items, the others were stored"
        if len(fresh) == len(items):
            content["computed"] = f"all {len(items)} items"
        if before and not whole:
            earlier = before.get("later")
            later = {item.name: f"{facts['started']} on {facts['device']}" for item in fresh}
            earlier = earlier if isinstance(earlier, dict) else {}
            content = {**before, "later": {**earlier, **later}}
        write_json(self._provenance, content)
        return self._provenance

    def _file(self, paper: str, kind: str, name: str) -> Path:
        return self.path / paper / kind / f"{name}.json"

    def _entries(self, papers: Sequence[str], kind: str) -> Iterator[tuple[str, Path]]:
        """Yield the name of its paper and the .json of each result of a kind, by name."""
        for paper in papers:
            folder = self.path / paper / kind
            paths = sorted(path for path in folder.glob("*.json") if not path.name.startswith("."))
            if len(paths) > _MOST_FILES:
                raise InputFileError(
                    f"{folder} must hold at most {_MOST_FILES} results, got {len(paths)}. "
                    "Move what does not belong there."
                )
            yield from ((paper, path) for path in paths)

    def _require_different_numbers(self, claims: Sequence[StoredClaim]) -> None:
        names: dict[tuple[str, int], str] = {}
        for claim in claims:
            number = claim.result.number
            other = names.setdefault((claim.paper, number), claim.name)
            if other != claim.name:
                raise InputFileError(
                    f"{self.path / claim.paper / 'claims'} must hold each claim once, but "
                    f"'{other}' and '{claim.name}' both have number {number}. Delete the one that "
                    "does not belong there."
                )


def _is_paper(path: Path) -> bool:
    return (path / "claims").is_dir() or (path / "figures").is_dir()


def _kept(problems: list[str], read: Any, *where: Any) -> Any:
    """Return what can be read, or keep the sentence that says why not."""
    try:
        return read(*where)
    except InputFileError as problem:
        problems.append(str(problem))
        return None


def _read_paper(name: str, path: Path) -> StoredPaper:
    if not path.is_file():
        return StoredPaper(name, name.replace("_", " ").capitalize())
    content = _object(path)
    with _as(path, "a paper's words"):
        words = {key: _text(content, key, "") for key in ("title", "citation", "link")}
        if words["link"] and not words["link"].startswith("https://"):
            raise ValueError("its 'link' does not start with https://")
        return StoredPaper(name, **words, claims=_whole({"claims": 0} | content, "claims", 0))


def _read_claim(paper: str, path: Path) -> StoredClaim:
    content = _object(path)
    with _as(path, "a claim"):
        result = ClaimResult(
            number=_whole(content, "number", 1),
            name=_text(content, "name"),
            statement=_text(content, "statement"),
            reference=_text(content, "reference"),
            expected=_one_of(content, "expected", get_args(Verdict)),
            checks=tuple(_check(check) for check in _list(content, "checks")),
            evidence=_text(content, "evidence", ""),
        )
        if content.get("verdict") != result.verdict:
            raise ValueError(
                f"its numbers say '{result.verdict}' where its verdict says "
                f"'{str(content.get('verdict'))[:40]}'"
            )
        return StoredClaim(paper, result, _origin(content))


def _check(content: object) -> Check:
    if not isinstance(content, Mapping):
        raise ValueError("one of its checks is not an object")
    return Check(
        name=_text(content, "name"),
        value=_number(content, "value"),
        relation=_one_of(content, "relation", ("<=", ">=")),
        tolerance=_number(content, "tolerance"),
        role=_one_of(content, "role", ("statement", "amended", "control")),
        error=None if content.get("error") is None else _number(content, "error"),
    )


def _read_figure(paper: str, path: Path) -> StoredFigure:
    content = _object(path)
    with _as(path, "a figure's words"):
        figure = StoredFigure(
            paper=paper,
            name=path.stem,
            title=_text(content, "title"),
            caption=_text(content, "caption"),
            reference=_text(content, "reference"),
            section=_one_of(content, "section", get_args(Section)),
            drawing=_text(content, "drawing"),
            arrays={},
            origin=_origin(content),
            drawn_by=_text(content, "drawn_by", ""),
            pictures=_pictures(path),
        )
    arrays = path.with_suffix(".npz")
    with _as(arrays, "the figure's arrays"):
        content = _bytes(arrays, _ARRAYS_LIMIT)
        return replace(figure, arrays=unmasked(numbers_in_archive(arrays, content)))


def _pictures(path: Path) -> tuple[str, ...]:
    return tuple(end for end in _PICTURES if path.with_suffix(f".{end}").is_file())


def _read_provenance(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    content = _object(path)
    with _as(path, "where the results come from"):
        return {**content, **{key: _number(content, key) for key in content if key == "seconds"}}


def _origin(content: Mapping[str, Any]) -> Origin:
    setting = content.get("setting", {})
    if not isinstance(setting, Mapping):
        raise ValueError("its 'setting' is not an object")
    return Origin(
        command=_text(content, "command", ""),
        setting=setting,
        seconds=None if content.get("seconds") is None else _number(content, "seconds"),
        digest=_text(content, "hash", ""),
    )


def _origin_json(origin: Origin) -> dict[str, Any]:
    return {
        "setting": dict(origin.setting),
        "seconds": origin.seconds,
        "hash": origin.digest,
        "command": origin.command,
    }


class _as:  # noqa: N801  # reads as a word: with _as(path, "a claim")
    """Turn what is wrong with the content of a file into one sentence about that file."""

    def __init__(self, path: Path, what: str):
        self._path, self._what = path, what

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, problem: BaseException | None, __: object) -> None:
        if isinstance(problem, ValueError):
            reason = f"{problem}. {_again(self._path)}"
            raise InputFileError(f"{self._path} must hold {self._what}, but {reason}") from None


def _object(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(_bytes(path, _JSON_LIMIT).decode("utf-8-sig"))
    except RecursionError:
        reason = "it is nested too deep"
    except UnicodeDecodeError:
        reason = "it is not UTF-8 text"
    except ValueError as problem:
        reason = str(problem)
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


def _bytes(path: Path, limit: int) -> bytes:
    if not path.is_file():
        raise ValueError("it is no file" if path.exists() else "it is not there")
    with path.open("rb") as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise ValueError(f"it is larger than {limit // 1_000_000} MB")
    return content


def _again(path: Path) -> str:
    name = "" if path.stem in ("provenance", "paper") else f" {path.stem}"
    return f"Delete it and run promptlimit reproduce{name} again."


def _text(content: Mapping[str, Any], key: str, default: str | None = None) -> str:
    value = content.get(key, default)
    if not isinstance(value, str):
        raise ValueError(f"its '{key}' is not text")
    return value


def _number(content: Mapping[str, Any], key: str) -> float:
    """Return a number; null stands for one that could not be computed, "inf" for infinity."""
    value = content.get(key, "")
    if value is None:
        return math.nan
    if value in ("inf", "-inf"):
        return float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"its '{key}' is not a number")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"its '{key}' is too large a number") from None


def _whole(content: Mapping[str, Any], key: str, least: int) -> int:
    value = content.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 1000:
        raise ValueError(f"its '{key}' is not a whole number from {least} to 999")
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
