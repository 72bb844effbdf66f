"""Claims and figures on disk: what is there with the right hash is not computed again."""

import io
import json
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from promptlimit.cli._console import ERR
from promptlimit.cli._drawing import write_figure

if TYPE_CHECKING:
    import numpy as np

    from promptlimit.experiments import Claim, FigureRecipe, Setting
    from promptlimit.results import ClaimResult


class Item(NamedTuple):
    """A claim or a figure as it lies on disk.

    Attributes:
        hash: of all that decides it.
        fresh: whether it was computed now.
        paths: its files.
        result: the claim's, None for a figure.
    """

    hash: str
    fresh: bool
    paths: list[Path]
    result: "ClaimResult | None"


def claim_item(claim: "Claim", setting: "Setting", out: Path) -> Item:
    """Return the claim, read from its file or decided now and written there."""
    from promptlimit import experiments
    from promptlimit.results import ClaimResult, write_json

    path = out / "claims" / f"{claim.name}.json"
    name = experiments.item_hash("claim", claim.name, setting)
    stored = _stored(path, name, ClaimResult.from_json)
    if stored is not None:
        return Item(name, False, [path], stored)
    began = time.monotonic()
    result = experiments.decide(claim, setting)
    write_json(path, {**result.as_json(), **_about(claim.name, setting, name, began)})
    return Item(name, True, [path], result)


def figure_item(recipe: "FigureRecipe", setting: "Setting", out: Path) -> Item:
    """Return the figure, drawn from its stored arrays or from arrays computed now."""
    from promptlimit import experiments
    from promptlimit.results import write_bytes, write_json

    about, arrays = (out / "figures" / f"{recipe.name}.{kind}" for kind in ("json", "npz"))
    name = experiments.item_hash("figure", recipe.name, setting)
    data = _stored(about, name, lambda _: _read_arrays(arrays))
    fresh = data is None
    if data is None:
        began = time.monotonic()
        computed = experiments.figure_data(recipe, setting)
        about.unlink(missing_ok=True)
        write_bytes(arrays, _archive(computed))
        told = ("name", "title", "caption", "reference", "section")
        words = {key: getattr(recipe, key) for key in told}
        write_json(about, {**words, **_about(recipe.name, setting, name, began)})
        data = _read_arrays(arrays)
    return Item(name, fresh, [*write_figure(recipe.name, data, out), arrays, about], None)


def write_provenance(out: Path, setting: "Setting", items: Sequence[Item], began: float) -> Path:
    """Write where and when the items came from; that of an earlier run stays if nothing is new."""
    import os

    import jax

    from promptlimit.results import environment, run_name, write_json

    path = out / "provenance.json"
    name = run_name({"items": sorted(item.hash for item in items)})
    if not any(item.fresh for item in items) and _stored(path, name, bool):
        return path
    device = jax.devices()[0]
    versions = environment()
    seconds = time.monotonic() - began
    content = {
        "versions": versions,
        "python": versions["python"],
        "device": f"{device.platform}: {device.device_kind}, {os.cpu_count()} CPU cores",
        "setting": setting.as_json(),
        "started": datetime.fromtimestamp(time.time() - seconds, UTC).isoformat(timespec="seconds"),
        "seconds": round(seconds, 1),
        "hash": name,
    }
    write_json(path, content)
    return path


def _about(item: str, setting: "Setting", name: str, began: float) -> dict[str, object]:
    return {
        "setting": setting.as_json(),
        "seconds": round(time.monotonic() - began, 2),
        "hash": name,
        "command": command(item, setting),
    }


def command(item: str, setting: "Setting") -> str:
    """Return the command line that makes an item again."""
    quick = " --quick" if setting.quick else ""
    protocol = "" if setting.protocol == "exact" else f" --protocol {setting.protocol}"
    return f"promptlimit reproduce {item}{quick}{protocol} --seed {setting.seed}"


def _stored(path: Path, name: str, read: Callable[[Mapping[str, Any]], Any]) -> Any:
    """Return what `read` makes of a stored item with that hash; None where it must be made."""
    from promptlimit.results import InputFileError

    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return read(content) if content["hash"] == name else None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, InputFileError):
        ERR.print("note:", f"{path} is damaged and is made again", markup=False)
        return None


def _archive(arrays: "Mapping[str, np.ndarray]") -> bytes:
    """Return the arrays as an .npz file; what is not finite is masked."""
    import numpy as np

    from promptlimit.results import masked

    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **masked(arrays))
    return buffer.getvalue()


def _read_arrays(path: Path) -> "dict[str, np.ndarray]":
    from promptlimit.results import numbers_in_archive, unmasked

    if not path.is_file():
        raise ValueError("its arrays are missing")
    return unmasked(numbers_in_archive(path, path.read_bytes()))
