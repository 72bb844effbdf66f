"""Claims and figures on disk: what is there with the right hash is not computed again."""

import io
import json
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from promptlimit.cli._console import ERR
from promptlimit.cli._drawing import figure_paths, write_figure

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
    """Return the figure as it lies there, drawn from its stored arrays, or computed now."""
    from promptlimit import experiments
    from promptlimit.results import write_bytes, write_json

    stem = out / "figures" / recipe.name
    about, arrays = stem.with_suffix(".json"), stem.with_suffix(".npz")
    name = experiments.item_hash("figure", recipe.name, setting)
    words, data = _stored(about, name, lambda found: (found, _read_arrays(arrays))) or (None, None)
    fresh = data is None
    if words is None or data is None:
        began = time.monotonic()
        computed = experiments.figure_data(recipe, setting)
        about.unlink(missing_ok=True)
        write_bytes(arrays, _archive(computed))
        told = ("name", "title", "caption", "reference", "section")
        words = {key: getattr(recipe, key) for key in told}
        words |= _about(recipe.name, setting, name, began)
        write_json(about, words)
        data = _read_arrays(arrays)
    drawn, drawing = figure_paths(stem), experiments.drawing_hash()
    if words.get("drawing") != drawing or not all(path.is_file() for path in drawn):
        write_figure(recipe.name, data, stem)
        write_json(about, {**words, "drawing": drawing})
    return Item(name, fresh, [*drawn, arrays, about], None)


def write_provenance(
    out: Path, setting: "Setting", items: Sequence[Item], began: float, *, whole: bool
) -> Path:
    """Write where and when the items came from; that of an earlier run stays if nothing is new.

    Args:
        out: the folder of the items.
        setting: theirs.
        items: all that were asked for.
        began: when, by the monotonic clock.
        whole: whether they are the whole reproduction. A part of it, made later, is added to the
            provenance of the whole and does not take its place.
    """
    from promptlimit.results import run_name, write_json

    path = out / "provenance.json"
    name = run_name({"items": sorted(item.hash for item in items)})
    fresh = [item for item in items if item.fresh]
    before = _stored(path, None, dict) if path.is_file() else None
    if before and not fresh and (not whole or before["hash"] == name):
        return path
    content = {**_run_facts(setting, began), "hash": name}
    content["computed"] = f"{len(fresh)} of {len(items)} items, the others were stored"
    if len(fresh) == len(items):
        content["computed"] = f"all {len(items)} items"
    if before and not whole:
        earlier = before.get("later")
        later = {item.paths[-1].stem: _in_short(content) for item in fresh}
        content = {**before, "later": {**(earlier if isinstance(earlier, dict) else {}), **later}}
    write_json(path, content)
    return path


def _run_facts(setting: "Setting", began: float) -> dict[str, Any]:
    """Return when, where and with what a run was made that ends now."""
    import os

    import jax

    from promptlimit.results import environment

    device = jax.devices()[0]
    seconds = time.monotonic() - began
    return {
        "versions": environment(),
        "device": f"{device.platform}: {device.device_kind}, {os.cpu_count()} CPU cores",
        "setting": setting.as_json(),
        "started": datetime.fromtimestamp(time.time() - seconds, UTC).isoformat(timespec="seconds"),
        "seconds": round(seconds, 1),
    }


def _in_short(run: Mapping[str, Any]) -> str:
    return f"{run['started']} on {run['device']}"


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


def _stored(path: Path, name: str | None, read: Callable[[Mapping[str, Any]], Any]) -> Any:
    """Return what `read` makes of a stored item with that hash; None where it must be made.

    Without a name, any hash will do.
    """
    from promptlimit.results import InputFileError

    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        stored = content["hash"]
        return read(content) if name in (None, stored) else None
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
