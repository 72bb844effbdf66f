"""Inputs are not trusted, outputs appear whole or not at all."""

import io
import json
import os
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest

from promptlimit.errors import InputFileError
from promptlimit.storage import numbers_in_archive, read_arrays, write_bytes, write_json


def test_written_files_are_read_back(tmp_path: Path) -> None:
    write_json(tmp_path / "deep" / "value.json", {"a": [1.5, 2.0]})
    assert json.loads((tmp_path / "deep" / "value.json").read_text()) == {"a": [1.5, 2.0]}


def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "value.json"
    write_bytes(path, b"old")
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        write_bytes(path, b"new")
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["value.json"]


def test_numbers_json_cannot_hold_are_refused_and_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "value.json", {"a": float("nan")})
    assert list(tmp_path.iterdir()) == []


def test_every_format_gives_the_same_array(tmp_path: Path) -> None:
    matrix = np.array([[1.0, 2.5], [3.0, -4.0]])
    np.save(tmp_path / "m.npy", matrix)
    np.savez(tmp_path / "m.npz", cov=matrix)
    np.savetxt(tmp_path / "m.csv", matrix, delimiter=",", header="a comment")
    (tmp_path / "m.json").write_text(json.dumps({"cov": matrix.tolist(), "prompt": "gaussian"}))
    for name in ("m.npy", "m.csv", "m.npz", "m.json"):
        np.testing.assert_array_equal(read_arrays(f"cov={tmp_path / name}")["cov"], matrix)
    for name in ("m.npz", "m.json"):
        np.testing.assert_array_equal(read_arrays(str(tmp_path / name))["cov"], matrix)
    assert read_arrays(str(tmp_path / "m.json"))["prompt"] == "gaussian"


class Bomb:
    """A pickle that would write a file when loaded."""

    def __reduce__(self) -> tuple:
        return (Path("exploded").touch, ())


def content_of(kind: str) -> bytes:
    buffer = io.BytesIO()
    if kind == "object array":
        np.save(buffer, np.array([Bomb()], dtype=object), allow_pickle=True)
    elif kind == "object archive":
        np.savez(buffer, cov=np.array([Bomb()], dtype=object))
    elif kind == "pickle":
        pickle.dump(Bomb(), buffer)
    elif kind == "truncated array":
        np.save(buffer, np.zeros(100))
        return buffer.getvalue()[:-50]
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("suffix", "kind", "reason"),
    [
        (".npy", "object array", "it holds Python objects, which are never loaded."),
        (".npz", "object archive", "it holds Python objects, which are never loaded."),
        (".npy", "pickle", "it is not an array saved by numpy.save."),
        (".npz", "pickle", "it is not an archive saved by numpy.savez."),
    ],
)
def test_a_pickle_is_never_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, kind: str, reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / f"bomb{suffix}"
    path.write_bytes(content_of(kind))
    with pytest.raises(InputFileError) as refusal:
        read_arrays(f"cov={path}")
    assert str(refusal.value) == f"{path} must be readable as {suffix}, but {reason}"
    assert not (tmp_path / "exploded").exists()


def test_bad_files_are_refused_in_one_sentence(tmp_path: Path) -> None:
    def refused(name: str, content: str | bytes | None, source: str = "{}") -> str:
        path = tmp_path / name
        if content is not None:
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        with pytest.raises(InputFileError) as refusal:
            read_arrays(source.format(path))
        return str(refusal.value).replace(str(path), "FILE")

    assert refused("a.npz", None) == "FILE must be a file, but it does not exist."
    assert refused("a.mat", "x") == "FILE must end in one of .npy, .csv, .npz, .json, got '.mat'."
    assert refused("a.csv", "1,2\n3") == (
        "FILE must be readable as .csv, but its rows have from 1 to 2 entries."
    )
    assert refused("a.csv", "") == "FILE must be readable as .csv, but it holds no numbers."
    assert refused("a.csv", "1,x") == (
        "FILE must be readable as .csv, but it holds 'x', which is not a number. Remove the header "
        "line, if this is one."
    )
    assert refused("a.csv", "1,2\n1,x").endswith("but it holds 'x', which is not a number.")
    assert refused("a.csv", "1,2\n1,\x1b[31m" + 200 * "x").endswith(
        f"but it holds '\\x1b[31m{31 * 'x'}, which is not a number."
    )
    assert refused("a.csv", "1,nan", "q={}") == (
        "FILE must be readable as .csv, but 'a' holds nan, which is not a finite number."
    )
    assert refused("a.csv", "1,2") == (
        "FILE must hold named arrays, got one array without a name. Write NAME=FILE, for example "
        "query=FILE."
    )
    assert refused("a.json", "[1, 2]") == (
        "FILE must be readable as .json, but it must contain an object of named arrays."
    )
    assert refused("a.json", '{"cov": [["a"]]}') == (
        "FILE must be readable as .json, but 'cov' holds <U1 where numbers belong."
    )
    assert refused("a.json", '{"mean": [1]}', "cov={}") == (
        "FILE must hold 'cov', but it holds mean."
    )
    assert refused("a.npy", content_of("truncated array")).startswith(
        "FILE must be readable as .npy, but "
    )
    archive, array = io.BytesIO(), io.BytesIO()
    np.savez_compressed(archive, cov=np.random.default_rng(0).standard_normal(999))
    np.save(array, np.eye(2))
    inside = bytearray(archive.getvalue())
    inside[900:950] = bytes(50)
    damaged = "FILE must be readable as {}, but it is truncated, damaged or of another format."
    for content in (b"PK but no zip", archive.getvalue()[:-9], bytes(inside)):
        assert refused("a.npz", content) == damaged.format(".npz")
    assert refused("a.npy", array.getvalue()[:20]) == damaged.format(".npy")
    assert refused("a.json", '{"mean": [1') == (
        "FILE must be readable as .json, but it is truncated or damaged at line 1, column 12."
    )
    assert refused("a.json", b"\x80") == "FILE must be readable as .json, but it is not UTF-8 text."
    assert refused("a.json", "[" * 100_000) == (
        "FILE must be readable as .json, but it is nested too deep."
    )


def write_zeros(path: Path, sizes: dict[str, int], claims: dict[str, int] | None = None) -> None:
    """Write an archive of zeros, 250 times smaller than what it unpacks to, a piece at a time."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, size in sizes.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                shape = ((claims or {}).get(name, size) // 8,)
                header = {"descr": "<f8", "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(member, header)
                for _ in range(size // 2**20):
                    member.write(bytes(2**20))


def test_an_archive_that_unpacks_to_more_than_a_limit_is_refused_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bomb.npz"
    monkeypatch.setattr("promptlimit.storage._arrays._UNPACKED", 2**26)
    write_zeros(path, {"cov": 2**26, "mean": 2**20})
    assert path.stat().st_size < 2**20
    monkeypatch.setattr(np.lib.format, "read_array", lambda *_, **__: pytest.fail("unpacked"))
    for refuse in (
        lambda: read_arrays(str(path)),
        lambda: read_arrays(f"cov={path}"),
        lambda: numbers_in_archive(path, path.read_bytes()),
    ):
        with pytest.raises(InputFileError) as refusal:
            refuse()
        assert str(refusal.value) == (
            f"{path} must be readable as .npz, but it would unpack to 0.1 GiB, and the limit is "
            "0.0625 GiB. Save larger arrays with numpy.savez, which does not compress."
        )
    with pytest.raises(InputFileError, match="must hold 'query', but it holds cov, mean"):
        read_arrays(f"query={path}")


def test_an_archive_whose_directory_states_gibibytes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bomb.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("cov.npy", bytes(2**20))
        archive.filelist[0].file_size = 3 * 2**30
    with pytest.raises(
        InputFileError, match=r"it would unpack to 3\.0 GiB, and the limit is 1 GiB"
    ):
        read_arrays(str(path))


def test_what_is_not_asked_for_is_not_unpacked_and_what_is_stored_whole_is_no_bomb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("promptlimit.storage._arrays._UNPACKED", 2**21)
    path, whole = tmp_path / "bomb.npz", tmp_path / "whole.npz"
    write_zeros(path, {"cov": 2**26, "mean": 2**20})
    assert np.shape(read_arrays(f"mean={path}")["mean"]) == (2**17,)
    np.savez(whole, cov=np.ones(2**20))
    assert np.shape(read_arrays(str(whole))["cov"]) == (2**20,)


def test_arrays_of_other_names_are_not_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "model.npz"
    write_zeros(path, {"cov": 2**20, "weights_of_a_model": 2**20}, {"weights_of_a_model": 2**50})
    arrays = read_arrays(str(path), {"cov", "mean"})
    assert {name: np.shape(array) for name, array in arrays.items()} == {
        "cov": (2**17,),
        "weights_of_a_model": (0,),
    }


def test_arrays_that_claim_more_than_they_hold_are_refused_before_memory_is_taken(
    tmp_path: Path,
) -> None:
    path = tmp_path / "claim.npz"
    write_zeros(path, {"cov": 2**20}, {"cov": 2**50})
    with pytest.raises(InputFileError, match="states 1125899906842624 bytes, but it has 1048576"):
        read_arrays(str(path))
    with zipfile.ZipFile(path) as archive:
        archive.extractall(tmp_path)
    with pytest.raises(InputFileError, match="states 1125899906842624 bytes, but it has 1048576"):
        read_arrays(f"cov={tmp_path / 'cov.npy'}")
