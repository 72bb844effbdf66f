"""Report folders: claims and figures of studies on disk.

    DIR/index.html  explorer.html  provenance.json  runs/
    DIR/STUDY/index.html  study.json
    DIR/STUDY/claims/NAME.json
    DIR/STUDY/figures/NAME.json  NAME.npz  NAME.png  NAME.svg  NAME.pdf
    DIR/STUDY/failures/NAME.json

Files are written atomically; the .json file of a figure is written after its arrays. Reading
validates files: a damaged file, or a verdict that does not follow from its checks, raises an error.
"""

import contextlib
import io
import shlex
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from promptlimit.claims._claims import (
    Check,
    ClaimResult,
    Origin,
    Section,
    StoredClaim,
    StoredFailure,
    StoredFigure,
    StoredReport,
    StoredStudy,
    Verdict,
)
from promptlimit.errors import InputFileError
from promptlimit.storage import (
    json_object,
    limited_bytes,
    list_of,
    number_of,
    numbers_in_archive,
    one_of,
    pack_nonfinite,
    run_name,
    text_of,
    unpack_nonfinite,
    whole_of,
    write_bytes,
    write_json,
)

_LARGEST_ARRAYS, _LARGEST_PICTURE, _MOST_FILES = 100_000_000, 10_000_000, 300
_PICTURES = ("pdf", "png", "svg")
_BEGINNINGS = {"png": b"\x89PNG\r\n", "svg": b"<?xml "}


class ReportFolder:
    """The report folder at `path`, which stores the results of studies."""

    def __init__(self, path: Path):
        self.path = path
        self._provenance = path / "provenance.json"

    def runs(self, engine: str) -> Path:
        """Return the folder of the runs of code whose `studies.engine_hash` is `engine`."""
        return self.path / "runs" / engine

    def save_study(self, study: StoredStudy) -> None:
        """Write the description of a study."""
        write_json(self.path / study.name / "study.json", asdict(study))

    def save_claim(self, claim: StoredClaim) -> None:
        """Write a claim with its checks and its origin."""
        content = {**claim.result.to_dict(), **_origin_json(claim.origin)}
        write_json(self._file(claim.study, "claims", claim.name), content)

    def save_figure(self, figure: StoredFigure) -> None:
        """Write the arrays of a figure, then its .json file, which marks the figure as complete."""
        file = self._file(figure.study, "figures", figure.name)
        file.unlink(missing_ok=True)
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, **pack_nonfinite(figure.arrays))
        write_bytes(file.with_suffix(".npz"), buffer.getvalue())
        self._save_json(figure)

    def save_pictures(
        self, figure: StoredFigure, pictures: Mapping[str, bytes], drawn_by: str
    ) -> StoredFigure:
        """Write the pictures of a stored figure; return it with new `pictures` and `drawn_by`.

        The argument `pictures` contains the bytes of each file by its ending. Pictures with other
        endings belong to an earlier drawing and are deleted. `drawn_by` is the hash of the code
        that drew the pictures.
        """
        file = self._file(figure.study, "figures", figure.name)
        for ending in set(_PICTURES) - set(pictures):
            file.with_suffix(f".{ending}").unlink(missing_ok=True)
        for ending, content in pictures.items():
            write_bytes(file.with_suffix(f".{ending}"), content)
        figure = replace(figure, drawn_by=drawn_by, pictures=_pictures(file))
        self._save_json(figure)
        return figure

    def _save_json(self, figure: StoredFigure) -> None:
        keys = ("name", "title", "caption", "reference", "section", "drawn_by")
        content = {key: getattr(figure, key) for key in keys} | _origin_json(figure.origin)
        write_json(self._file(figure.study, "figures", figure.name), content)

    def save_failure(self, study: str, name: str, problem: str) -> None:
        """Write the reason for a failure; if `problem` is empty, delete the stored reason."""
        file = self._file(study, "failures", name)
        if problem:
            write_json(file, {"problem": problem})
        else:
            file.unlink(missing_ok=True)

    def save_pages(self, pages: Mapping[str, str]) -> Path:
        """Write HTML pages, given by their paths in the folder; return the path of `index.html`."""
        for place, text in pages.items():
            write_bytes(self.path / place, text.encode())
        return self.path / "index.html"

    def claim(self, study: str, name: str) -> StoredClaim | None:
        """Return a stored claim, or None if it has no file; raise an error if it is damaged."""
        path = self._file(study, "claims", name)
        return _read_claim(study, path) if path.exists() else None

    def figure(self, study: str, name: str) -> StoredFigure | None:
        """Return a stored figure, or None if it has no file; raise an error if it is damaged."""
        path = self._file(study, "figures", name)
        return _read_figure(study, path) if path.exists() else None

    def studies(self) -> set[str]:
        """Return the names of the stored studies."""
        if not self.path.is_dir():
            return set()
        return {path.name for path in self.path.iterdir() if _is_study(path)}

    def picture(self, figure: StoredFigure, ending: Literal["png", "svg"]) -> bytes:
        """Return a stored picture of a figure as bytes; empty if it is missing or not valid."""
        path = self._file(figure.study, "figures", figure.name).with_suffix(f".{ending}")
        try:
            content = limited_bytes(path, _LARGEST_PICTURE)
        except ValueError:
            return b""
        return content if content.startswith(_BEGINNINGS[ending]) else b""

    def holds(self, study: str, kind: str, name: str, digest: str) -> bool:
        """Return whether a claim or figure is stored with the hash `digest`.

        `kind` is "claims" or "figures". Only the .json file is read.
        """
        try:
            return _read_object(self._file(study, kind, name)).get("hash") == digest
        except InputFileError:
            return False

    def read(self) -> StoredReport:
        """Return the stored results of each study; raise an error that names all damaged files.

        A result that is no longer part of its study is not returned, and `left_out` has a sentence
        about it. A failure replaces the result of the same name.
        """
        if not self.path.is_dir():
            advice = f"Create it with promptlimit reproduce --out {self.path}"
            raise InputFileError(
                f"{self.path} must be a folder of results, but it "
                + ("is a file." if self.path.exists() else f"does not exist. {advice}")
            )
        self.require_layout()
        problems: list[str] = []
        names = sorted(self.studies())
        study_files = ((name, self.path / name / "study.json") for name in names)
        studies = [_try_read(problems, _read_study, *where) for where in study_files]
        known = {study.name: study.item_names for study in studies if study is not None}

        def is_current(study: str, path: Path) -> bool:
            return not known.get(study) or path.stem in known[study]

        failed = {
            (study, path.stem): _try_read(problems, _read_failure, study, path)
            for study, path in self._entries(names, "failures")
            if is_current(study, path)
        }
        left_out: list[str] = []

        def results(kind: str, read: Any) -> list[Any]:
            found = []
            for study, path in self._entries(names, kind):
                if not is_current(study, path):
                    left_out.append(
                        f"{path} is not in the report: {study} has no {kind[:-1]} of this name."
                    )
                elif (study, path.stem) not in failed:
                    found.append(_try_read(problems, read, study, path))
            return found

        claims, figures = results("claims", _read_claim), results("figures", _read_figure)
        provenance = _try_read(problems, _read_provenance, self._provenance)
        if problems:
            raise InputFileError("\n".join(problems))
        if not (claims or figures or failed or left_out):
            raise InputFileError(
                f"{self.path} must contain STUDY/claims/NAME.json or STUDY/figures/NAME.json, but "
                f"has neither. Create them with promptlimit reproduce --out {self.path}"
            )
        self._require_different_numbers(claims)
        return StoredReport(
            studies=tuple(sorted(studies, key=lambda study: (study.order, study.name))),
            claims=tuple(sorted(claims, key=lambda claim: (claim.study, claim.result.number))),
            figures=tuple(sorted(figures, key=lambda figure: (figure.study, figure.place))),
            failures=tuple(failed.values()),
            provenance=provenance,
            left_out=tuple(left_out),
        )

    def require_layout(self) -> None:
        """Raise an error for a report folder of version 0.1, without subfolders for studies."""
        if (self.path / "claims").is_dir() or (self.path / "figures").is_dir():
            raise InputFileError(
                f"{self.path} must have one subfolder per study, but it contains claims/ and "
                "figures/ of version 0.1. Choose another folder."
            )

    def record(
        self,
        items: Sequence[StoredClaim | StoredFigure],
        fresh: Sequence[StoredClaim | StoredFigure],
        facts: Mapping[str, Any],
        *,
        whole: bool,
    ) -> Path:
        """Write `provenance.json`, unless it is up to date, and return its path.

        Args:
            items: all claims and figures of the run.
            fresh: the items that the run computed rather than read from disk.
            facts: the date, the machine and the versions.
            whole: whether the run covers all items of all studies in the folder. A partial run
                keeps a stored provenance and adds the date and machine of each item in `fresh`.
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
            when = f"{facts['started']} on {facts['device']}"
            later = {f"{item.study}/{item.name}": when for item in fresh}
            earlier = earlier if isinstance(earlier, dict) else {}
            content = {**before, "later": {**earlier, **later}}
        write_json(self._provenance, content)
        return self._provenance

    def _file(self, study: str, kind: str, name: str) -> Path:
        return self.path / study / kind / f"{name}.json"

    def _entries(self, studies: Sequence[str], kind: str) -> Iterator[tuple[str, Path]]:
        """Yield the study and the .json path of each result of a kind, sorted by name."""
        for study in studies:
            folder = self.path / study / kind
            paths = sorted(path for path in folder.glob("*.json") if not path.name.startswith("."))
            if len(paths) > _MOST_FILES:
                raise InputFileError(
                    f"{folder} must contain at most {_MOST_FILES} results, got {len(paths)}. "
                    "Move other files elsewhere."
                )
            yield from ((study, path) for path in paths)

    def _require_different_numbers(self, claims: Sequence[StoredClaim]) -> None:
        names: dict[tuple[str, int], str] = {}
        for claim in claims:
            number = claim.result.number
            other = names.setdefault((claim.study, number), claim.name)
            if other != claim.name:
                raise InputFileError(
                    f"{self.path / claim.study / 'claims'} must contain each claim once, but "
                    f"'{other}' and '{claim.name}' both have number {number}. "
                    f"{_run_again(self.path / claim.study)}"
                )


def _is_study(path: Path) -> bool:
    return any((path / kind).is_dir() for kind in ("claims", "figures", "failures"))


def _try_read(problems: list[str], read: Any, *where: Any) -> Any:
    """Return `read(*where)`; if it raises an error, append the message to `problems`."""
    try:
        return read(*where)
    except InputFileError as problem:
        problems.append(str(problem))
        return None


def _read_study(name: str, path: Path) -> StoredStudy:
    if not path.exists():
        return StoredStudy(name, name.replace("_", " ").capitalize())
    content = _read_object(path)
    with _as_input_error(path, "contain the description of a study"):
        text = ("title", "citation", "link", "summary", "key_figure")
        study = StoredStudy(
            name,
            *(text_of(content, key, "") for key in text),
            order=whole_of({"order": 1} | content, "order", 0),
            address=text_of(content, "address", ""),
            claim_names=_names(content, "claim_names"),
            figure_names=_names(content, "figure_names"),
        )
        if study.link and not study.link.startswith("https://"):
            raise ValueError("its 'link' does not start with https://")
    return study


def _names(content: Mapping[str, Any], key: str) -> tuple[str, ...]:
    names = list_of({key: []} | dict(content), key)
    if not all(isinstance(name, str) for name in names):
        raise ValueError(f"its '{key}' is not a list of names")
    return tuple(names)


def _read_failure(study: str, path: Path) -> StoredFailure:
    content = _read_object(path)
    with _as_input_error(path, "contain the reason for a failure"):
        return StoredFailure(study, path.stem, text_of(content, "problem"))


def _read_claim(study: str, path: Path) -> StoredClaim:
    content = _read_object(path)
    with _as_input_error(path, "contain a claim"):
        result = ClaimResult(
            number=whole_of(content, "number", 1),
            name=text_of(content, "name"),
            statement=text_of(content, "statement"),
            reference=text_of(content, "reference"),
            expected=one_of(content, "expected", get_args(Verdict)),
            checks=tuple(_check(check) for check in list_of(content, "checks")),
            evidence=text_of(content, "evidence", ""),
        )
        if result.name != path.stem:
            raise ValueError(f"its 'name' is '{result.name[:40]}', not that of the file")
        if content.get("verdict") != result.verdict:
            raise ValueError(
                f"its verdict is '{str(content.get('verdict'))[:40]}', and the verdict of its "
                f"checks is '{result.verdict}'"
            )
        return StoredClaim(study, result, _origin(content))


def _check(content: object) -> Check:
    if not isinstance(content, Mapping):
        raise ValueError("one of its checks is not an object")
    return Check(
        name=text_of(content, "name"),
        value=number_of(content, "value"),
        relation=one_of(content, "relation", ("<=", ">=")),
        tolerance=number_of(content, "tolerance"),
        role=one_of(content, "role", ("statement", "amended", "control")),
        error=None if content.get("error") is None else number_of(content, "error"),
        basis=text_of(content, "basis", ""),
        false_alarm=number_of({"false_alarm": 0.0} | dict(content), "false_alarm"),
    )


def _read_figure(study: str, path: Path) -> StoredFigure:
    content = _read_object(path)
    with _as_input_error(path, "contain the description of a figure"):
        figure = StoredFigure(
            study=study,
            name=path.stem,
            title=text_of(content, "title"),
            caption=text_of(content, "caption"),
            reference=text_of(content, "reference"),
            section=one_of(content, "section", get_args(Section)),
            arrays={},
            origin=_origin(content),
            drawn_by=text_of(content, "drawn_by", ""),
            pictures=_pictures(path),
        )
    arrays = path.with_suffix(".npz")
    with _as_input_error(arrays, "contain the arrays of a figure"):
        content = limited_bytes(arrays, _LARGEST_ARRAYS)
        return replace(figure, arrays=unpack_nonfinite(numbers_in_archive(arrays, content)))


def _pictures(path: Path) -> tuple[str, ...]:
    files = {end: path.with_suffix(f".{end}") for end in _PICTURES}
    return tuple(end for end, file in files.items() if file.is_file() and file.stat().st_size)


def _read_provenance(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    content = _read_object(path)
    with _as_input_error(path, "contain the provenance of the results"):
        if "seconds" in content:
            content["seconds"] = number_of(content, "seconds")
    return content


def _origin(content: Mapping[str, Any]) -> Origin:
    setting = content.get("setting", {})
    if not isinstance(setting, Mapping):
        raise ValueError("its 'setting' is not an object")
    return Origin(
        command=text_of(content, "command", ""),
        setting=setting,
        seconds=None if content.get("seconds") is None else number_of(content, "seconds"),
        digest=text_of(content, "hash", ""),
    )


def _origin_json(origin: Origin) -> dict[str, Any]:
    return {
        "setting": dict(origin.setting),
        "seconds": origin.seconds,
        "hash": origin.digest,
        "command": origin.command,
    }


@contextlib.contextmanager
def _as_input_error(path: Path, must: str) -> Generator[None]:
    """Turn a `ValueError` in the block into an `InputFileError` that names the file."""
    try:
        yield
    except ValueError as problem:
        if path.name == "provenance.json":
            again = "Run promptlimit reproduce again."
        elif path.name == "study.json":
            again = _run_again(path.parent)
        else:
            again = _run_again(path.parents[1], path.stem)
        reason = str(problem).rstrip(".")
        raise InputFileError(f"{path} must {must}, but {reason}. {again}") from None


def _run_again(folder: Path, *names: str) -> str:
    """Return the advice to reproduce a study, or some of its items, given its folder."""
    try:
        address = text_of(json_object(folder / "study.json"), "address") or folder.name
    except ValueError:
        address = folder.name
    files = [folder / kind / f"{name}.json" for name in names for kind in ("claims", "figures")]
    options = _options_of([*files, folder.parent / "provenance.json"])
    command = shlex.join(
        ["promptlimit", "reproduce", address, *names, *options, "--out", str(folder.parent)]
    )
    return f"Run {command} again."


def _options_of(files: Sequence[Path]) -> list[str]:
    """Return the options in the setting of the first file that has one, without default values."""
    setting = next(filter(None, map(_setting_in, files)), {})
    options = ["--quick"] if setting.get("quick") is True else []
    if setting.get("protocol") == "full":
        options += ["--protocol", "full"]
    seed = setting.get("seed")
    if isinstance(seed, int) and not isinstance(seed, bool) and seed:
        options += ["--seed", str(seed)]
    return options


def _setting_in(file: Path) -> Mapping[str, Any]:
    """Return the setting in a JSON file; empty if the file cannot be read or has none."""
    try:
        setting = json_object(file).get("setting")
    except ValueError:
        return {}
    return setting if isinstance(setting, Mapping) else {}


def _read_object(path: Path) -> dict[str, Any]:
    with _as_input_error(path, "contain a JSON object"):
        return json_object(path)
